"""A run as JSON: resumed wherever it was cut, with no call made twice."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.scripts import plain as engine

from engine import CallbackError, Engine, RequestError, Transcript
from engine.agent.run import Run
from engine.formats.template.chat_template import ChatTemplate
from engine.testing.scripted import ScriptedBackend


def said(*numbers: int) -> str:
    calls = [
        f'<tool_call>\n{{"name": "count", "arguments": {{"number": {number}}}}}\n</tool_call>' for number in numbers
    ]
    return "\n".join(["<think>\nHm.\n</think>\n", *calls])


REPLIES = (said(0, 1, 2), said(3), "Done.")


def results(run: Run) -> list[str]:
    return [result.content for step in run.steps for result in step.results]


class Killed(BaseException):
    """The process is gone."""


class Process:
    """A process that dies at its `dies`-th saving or call, before or after it; what it did stays done."""

    def __init__(self, path: Path, made: list[int], dies: int) -> None:
        self.path, self.made, self.dies, self.moment = path, made, dies, 0

    def moments(self) -> None:
        self.moment += 1
        if self.moment == self.dies:
            raise Killed

    def count(self, number: int) -> str:
        """Counts."""
        self.moments()
        self.made.append(number)
        self.moments()
        return f"counted {number}"

    def save(self, transcript: Transcript) -> None:
        self.moments()
        transcript.save(self.path)
        self.moments()


def reply(prompt: str) -> str:
    """What comes after so many results."""
    return REPLIES[{0: 0, 3: 1, 4: 2}[prompt.count("<tool_response>")]]


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.over(ScriptedBackend(reply), ChatTemplate(None, family="qwen3")) as llm:
        yield llm


def live(llm: Engine, process: Process, start: Any, **options: Any) -> Run:
    return llm.run(start, [process.count], save=process.save, **options)


@pytest.mark.parametrize("rerun", [False, True])
def test_killed_at_every_moment_and_resumed(llm: Engine, tmp_path: Path, *, rerun: bool) -> None:
    path = tmp_path / "run.json"
    deaths = interrupted = 0
    for dies in range(1, 100):
        path.unlink(missing_ok=True)
        made: list[int] = []
        try:
            run = live(llm, Process(path, made, dies), "Go.")
        except Killed:
            deaths += 1
            start: Any = Transcript.load(path) if path.exists() else "Go."
            if isinstance(start, Transcript) and start.messages[-1].role == "assistant" and not start.calls:
                assert start.messages[-1].content == "Done.", "over but for the last saving"
                continue
            run = live(llm, Process(path, made, 0), start, rerun=rerun)
        else:
            break
        assert run.stopped == "stop"
        assert run.completion.content == "Done."
        told = [message.content or "" for message in run.messages if message.role == "tool"]
        for number, text in enumerate(told):
            if text.startswith("Error: interrupted"):
                interrupted += 1
                assert not rerun
                assert made.count(number) <= 1
            else:
                assert text == f"counted {number}"
                assert made.count(number) in ((1, 2) if rerun else (1,))
        assert len(told) == 4
        assert Transcript.load(path).messages == run.messages
    else:
        pytest.fail("it never came to its end")
    assert deaths > 20
    assert (interrupted == 0) == rerun


async def test_resumed_from_every_transcript_that_parallel_calls_save(llm: Engine) -> None:
    async def count(number: int) -> str:
        await asyncio.sleep(0.002 * (3 - number))
        return f"counted {number}"

    saved: list[Transcript] = []
    whole = await llm.arun("Go.", [count], save=saved.append, max_parallel_tools=3)
    assert results(whole) == [f"counted {number}" for number in range(4)]
    assert saved[-1] == whole.transcript
    within = 0
    for transcript in saved:
        again = Transcript.from_json(transcript.model_dump_json())
        assert again == transcript
        within += bool(again.calls)
        states = [record.state for record in again.calls]
        if again.stopped is not None or (again.messages[-1].role == "assistant" and not again.calls):
            continue
        run = await llm.arun(again, [count], max_parallel_tools=3)
        told = [message.content or "" for message in run.messages if message.role == "tool"]
        before = [message.role for message in again.messages].count("tool")
        of_step = told[before : before + len(states)]
        assert [text.startswith("Error: interrupted") for text in of_step] == [state == "started" for state in states]
        assert len(told) == 4
        assert (run.transcript.steps, run.stopped) == (3, "stop")
        assert run.messages[1].reasoning == "Hm."
    assert within > 5


def test_a_step_is_counted_once(llm: Engine, tmp_path: Path) -> None:
    made: list[int] = []
    process = Process(tmp_path / "run.json", made, 0)
    run = live(llm, process, "Go.", max_steps=1)
    assert run.stopped == "max_steps"
    assert live(llm, process, run.transcript, max_steps=1).stopped == "max_steps"
    rest = live(llm, process, run.transcript, max_steps=3)
    assert (rest.stopped, made) == ("stop", [0, 1, 2, 3])
    assert rest.transcript.total_tokens > run.transcript.total_tokens


def test_a_turn_whose_calls_were_interrupted_is_counted_once(llm: Engine, tmp_path: Path) -> None:
    made: list[int] = []
    path = tmp_path / "run.json"
    with pytest.raises(Killed):
        live(llm, Process(path, made, 5), "Go.", max_steps=2)
    start = Transcript.load(path)
    assert start.calls
    run = live(llm, Process(path, made, 0), start, max_steps=2, rerun=True)
    assert (run.stopped, set(made)) == ("max_steps", {0, 1, 2, 3})


def test_a_turn_that_was_cut_short_is_generated_again() -> None:
    with engine("".join(f"Answer {number}. " for number in range(900))) as llm, llm.stream_run("Go.") as stream:
        for _ in stream:
            stream.cancel()
        cut = stream.run
    assert cut.stopped == "cancelled"
    assert [message.role for message in cut.transcript.messages] == ["user"]
    with engine("An answer.") as llm:
        assert llm.run(cut.transcript).completion.content == "An answer."


def test_a_path_to_save_at(tmp_path: Path) -> None:
    path = tmp_path / "run.json"

    def count(number: int) -> str:
        held = Transcript.load(path)
        assert held.calls[number].state == "started", "recorded before it starts"
        return "yes"

    with engine(said(0, 1), "Done.") as llm:
        run = llm.run("Go.", [count], save=path)
        assert results(run) == ["yes", "yes"]
        assert Transcript.load(path) == run.transcript
        assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    with engine(said(0)) as llm, pytest.raises(CallbackError, match=r"save=.*raised FileNotFoundError"):
        llm.run("Go.", [count], save=tmp_path / "missing" / "run.json")


def test_calls_without_a_function_stay_pending() -> None:
    tool = {"name": "count", "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}}}
    with engine(said(0)) as llm:
        run = llm.run("Go.", [tool])
    assert run.stopped == "pending"
    with engine() as llm:
        again = llm.run(Transcript.from_json(run.transcript.model_dump_json()), [tool])
    assert (again.stopped, again.pending) == ("pending", run.pending)

    def count(number: int) -> str:
        return "now there is one"

    with engine("Done.") as llm:
        assert results(llm.run(run.transcript, [count])) == ["now there is one"]


def test_what_is_no_transcript() -> None:
    with engine(said(0), "Done.") as llm:
        run = llm.run("Go.", [lambda_count])
        with pytest.raises(RequestError, match="is over"):
            llm.run(run.transcript, [lambda_count])
        with pytest.raises(RequestError, match="is over"):
            llm.run(Transcript())
    good = json.loads(run.transcript.model_dump_json())
    for change, words in (
        ({"version": 2}, "version"),
        ({"messages": [{"role": "nobody", "content": ""}]}, "role"),
        ({"calls": [{"index": 0}]}, "records of 1 calls"),
        ({"extra": 1}, "extra"),
        ({"steps": -1}, "steps"),
        ({"messages": good["messages"][:2], "calls": [{"index": 0, "state": "done"}]}, "without a result"),
        ({"messages": good["messages"][:2], "calls": [{"index": 1}]}, "was changed"),
        ({"messages": [], "calls": [{"index": 0}]}, "was changed"),
    ):
        with pytest.raises(RequestError, match=words):
            Transcript.from_json(json.dumps({**good, **change}))
    for text in ("", "[]", "nothing", b"\xff\xfe", "[" * 100_000):
        with pytest.raises(RequestError, match="not the transcript"):
            Transcript.from_json(text)


def lambda_count(number: int) -> str:
    return "yes"


def test_a_fifo_is_no_transcript(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="fifo"):
        Transcript.load(tmp_path / "fifo")


@pytest.mark.parametrize("in_a_loop", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_that_exits_is_a_tool_that_fails(is_async: bool, in_a_loop: bool) -> None:
    def count(number: int) -> str:
        """Leave."""
        sys.exit(f"for good, {number}")

    async def count_later(number: int) -> str:
        return count(number)

    count_later.__name__ = "count"
    count_later.__doc__ = count.__doc__
    tools: list[Any] = [count_later if is_async else count]
    with engine(said(3), "So.") as llm:
        run = asyncio.run(llm.arun("x", tools)) if in_a_loop else llm.run("x", tools)
    assert results(run) == ["Error: SystemExit: for good, 3"]
    assert run.completion.content == "So."
