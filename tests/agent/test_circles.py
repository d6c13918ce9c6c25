"""Runs that go in circles end, and the model is told so before; what is repeated for a reason goes on."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine import Engine, Run, as_tool
from engine.agent.circles import NOTE
from engine.agent.transcript import Transcript
from engine.testing import ScriptedEngine, call

MOST = 16
"""Turns of a run; the last reply of a script is given for ever."""


def look(path: str, deep: bool = False) -> str:
    """Look what is in a folder."""
    return f"{path}: a.txt, b.txt{', c/d.txt' if deep else ''}"


def read(path: str) -> str:
    """Read a file."""
    if path == "none.txt":
        raise FileNotFoundError(path)
    return f"the text of {path}"


def edit(path: str, text: str) -> str:
    """Write a file."""
    return f"{path} is written"


def check() -> str:
    """Run the tests."""
    return "2 failed"


def tools() -> list[Any]:
    """All tools of a task; the state of some begins anew."""
    states = itertools.chain(["working"] * 7, itertools.repeat("ready"))
    visits = itertools.count(1)

    def poll() -> str:
        """See how far the work is."""
        return next(states)

    def dice() -> str:
        """Throw a die."""
        return "6"

    def visit() -> str:
        """Count the visitors."""
        return f"visitor {next(visits)}"

    return [look, read, edit, check, visit, as_tool(poll, repeats=True), as_tool(dice, repeats=True)]


LOOK, LOOK_B, READ = call("look", path="/x"), call("look", path="/y"), call("read", path="a.txt")
POLL, DICE, VISIT, CHECK = call("poll"), call("dice"), call("visit"), call("check")
WRONG = '<tool_call>\n{"name": "lok", "arguments": {"path": "/x"}}\n</tool_call>'
SWAPPED = '<tool_call>\n{"name": "look", "arguments": {"deep": false, "path": "/x"}}\n</tool_call>'
ORDERED = '<tool_call>\n{"name": "look", "arguments": {"path": "/x", "deep": false}}\n</tool_call>'


def edits(count: int) -> list[Any]:
    """Edits, each followed by tests that fail alike."""
    return [each for number in range(count) for each in (call("edit", path="a.py", text=f"try {number}"), CHECK)]


TASKS: dict[str, tuple[list[Any], str, int]] = {
    "one call": ([LOOK] * MOST, "repeated", 4),
    "one call, after others": ([READ, LOOK_B, *[LOOK] * MOST], "repeated", 6),
    "arguments in another order": ([SWAPPED, ORDERED] * MOST, "repeated", 4),
    "two calls in turn": ([LOOK, READ] * MOST, "repeated", 8),
    "three calls in turn": ([LOOK, READ, LOOK_B] * MOST, "repeated", 12),
    "four calls in turn": ([LOOK, READ, LOOK_B, CHECK] * MOST, "repeated", 16),
    "two calls of one turn": ([[LOOK, READ]] * MOST, "repeated", 8),
    "two calls of one turn, in any order": ([[LOOK, READ], [READ, LOOK]] * MOST, "repeated", 8),
    "an error": ([call("read", path="none.txt")] * MOST, "repeated", 4),
    "a tool that is not there": ([WRONG] * MOST, "repeated", 4),
    "arguments that do not fit": ([call("look", folder="/x")] * MOST, "repeated", 4),
    "told, then another way, then again": ([*[LOOK] * 3, READ, *[LOOK] * MOST], "repeated", 8),
    "told, and stops": ([*[LOOK] * 3, "It has two files."], "stop", 3),
    "polling": ([*[POLL] * 8, "It is ready."], "stop", 8),
    "polling and a look in turn": ([*[POLL, LOOK] * 6, "It is ready."], "stop", 12),
    "dice": ([*[DICE] * 9, "All six."], "stop", 9),
    "a result that changes": ([*[VISIT] * 9, "Nine."], "stop", 9),
    "other arguments": ([*[call("look", path=f"/{n}") for n in range(9)], "Nine folders."], "stop", 9),
    "edits and tests": ([*edits(6), "It does not work."], "stop", 12),
    "twice, and later twice": ([LOOK, LOOK, READ, LOOK, LOOK, "Two files."], "stop", 5),
    "three of one turn": ([[LOOK, LOOK, LOOK], "Two files."], "stop", 3),
}


def scripted(replies: Sequence[Any]) -> Engine:
    return ScriptedEngine(replies, n_ctx=16384, n_sequences=1)


def arun(llm: Engine) -> Run[Any]:
    return asyncio.run(llm.arun("Do it.", tools(), MOST))


def streamed(llm: Engine) -> Run[Any]:
    stream = llm.stream_run("Do it.", tools(), MOST)
    for _ in stream:
        pass
    return stream.run


DOORS: dict[str, Callable[[Engine], Run[Any]]] = {
    "run": lambda llm: llm.run("Do it.", tools(), MOST),
    "arun": arun,
    "stream": streamed,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("task", TASKS)
def test_circles_end_and_what_is_repeated_for_a_reason_does_not(task: str, door: str) -> None:
    replies, stopped, calls = TASKS[task]
    with scripted(replies) as llm:
        run = DOORS[door](llm)
    results = [result for step in run.steps for result in step.results]
    assert (run.stopped, len(results)) == (stopped, calls)
    assert bool(run.why) == (stopped == "repeated")
    notes = [NOTE in result.content for result in results]
    if stopped == "repeated":
        assert not notes[-1], "the last time is the end"
        assert sum(notes) == 1 + (task == "told, then another way, then again"), "it is told once in a circle"
    else:
        assert sum(notes) == (task == "told, and stops")


def test_the_end_names_the_calls() -> None:
    with scripted([LOOK, READ] * MOST) as llm:
        run = llm.run("Do it.", tools(), MOST)
    assert run.why == 'look {"path": "/x"}, then read {"path": "a.txt"}: 4 times in a row, with the same results.'
    assert run.transcript.stopped == "repeated"
    assert run.ending == f"The run ended, since the model went in a circle. {run.why}"


def test_a_run_that_is_resumed_knows_what_it_did() -> None:
    with scripted([LOOK] * MOST) as llm:
        first = llm.run("Do it.", tools(), max_steps=3)
        assert first.stopped == "max_steps"
        second = llm.run(Transcript.from_json(first.transcript.model_dump_json()), tools(), MOST)
    assert (second.stopped, len(second.steps)) == ("repeated", 1)


def test_what_the_user_says_begins_anew() -> None:
    with scripted([LOOK, LOOK, "Two files.", LOOK, LOOK, LOOK, "Two files."]) as llm:
        first = llm.run("Do it.", tools(), MOST)
        second = llm.run([*first.messages, {"role": "user", "content": "Again."}], tools(), MOST)
    assert (first.stopped, second.stopped) == ("stop", "stop")
    assert [NOTE in result.content for step in second.steps for result in step.results] == [False, False, True]


def test_no_call_of_a_turn_that_ran_away_is_made() -> None:
    made: list[str] = []

    def note(text: str) -> str:
        """Note a text."""
        made.append(text)
        return "noted"

    endless = '<tool_call>\n{"name": "note", "arguments": {"text": "a"}}\n</tool_call>\n' + "word " * 2000
    with scripted([endless, "Done."]) as llm:
        run = llm.run("Do it.", [note], repetition_limit=64)
    assert run.steps[0].completion.usage.limit == "repetition"
    assert [call.name for call in run.steps[0].completion.tool_calls] == ["note"]
    assert made == []
    assert [result.error for result in run.steps[0].results] == [True]
    assert "repetition_limit" in run.steps[0].results[0].content
    assert (run.stopped, run.content) == ("stop", "Done.")
