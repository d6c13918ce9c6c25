"""engine.runtime.stream.service: streams read from threads and from asyncio, over a scripted backend. Nothing timed is
asserted."""

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fakes.doubles import echo, plain, prompt

from engine.formats.parsing import Parser
from engine.runtime.loop.backend import Row
from engine.runtime.loop.generation import Limits
from engine.runtime.loop.request import TurnRequest
from engine.runtime.stream.process import OwnerProcess
from engine.runtime.stream.service import Service, Stream, _close  # pyright: ignore[reportPrivateUsage]
from engine.support.errors import ContextOverflowError, DecodeError, EngineError, EngineWarning, RequestError
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.completion import Completion
from engine.types.events import ContentDelta, Event, Finished, ReasoningDelta, fold
from engine.types.prompt import Piece, Prompt
from engine.types.sampling import SamplingParams
from engine.types.turn_settings import TurnSettings

ENDLESS = "x" * 100_000


def settled(backend: ScriptedBackend) -> bool:
    """Whether decoding stops: two looks, with pauses far longer than a step, see the same count."""
    for _ in range(100):
        before = backend.decodes
        time.sleep(0.02)
        if backend.decodes == before:
            return True
    return False


def waiting_for(hold: threading.Event) -> Callable[[Sequence[Row]], None]:
    """A hook that holds every decode until the event is set."""

    def wait(_: Sequence[Row]) -> None:
        hold.wait()

    return wait


def endless() -> ScriptedBackend:
    return ScriptedBackend(lambda _: ENDLESS, delay=0.001, n_ctx=200_000)


def test_for() -> None:
    with Service(ScriptedBackend(echo)) as service:
        stream = service.submit(TurnRequest(prompt("hello"), plain))
        events = list(stream)
    assert isinstance(events[-1], Finished)
    assert "".join(event.text for event in events if isinstance(event, ContentDelta)) == "re: hello"
    assert stream.completion == fold(events)
    with pytest.warns(EngineWarning, match="read to its end already"):
        assert list(stream) == [], "it is read"
    assert stream.result() is stream.completion


def test_result() -> None:
    with Service(ScriptedBackend(["hello"])) as service:
        completion = service.submit(TurnRequest(prompt("p"), plain)).result(timeout=30)
    assert (completion.content, completion.finish_reason) == ("hello", "stop")
    assert completion.usage
    assert completion.usage.prompt_tokens == 1


def test_result_after_a_part_was_read() -> None:
    with Service(ScriptedBackend(["hello"])) as service:
        stream = service.submit(TurnRequest(prompt("p"), plain))
        reading = iter(stream)
        assert next(reading) == ContentDelta("h")
        assert stream.result().content == "hello"
        assert [type(event) for event in reading] == [ContentDelta] * 4 + [Finished]


def test_result_times_out_and_the_turn_goes_on() -> None:
    hold = threading.Event()
    backend = ScriptedBackend(["hello"], before_decode=waiting_for(hold))
    with Service(backend) as service:
        stream = service.submit(TurnRequest(prompt("p"), plain))
        with pytest.raises(TimeoutError, match=r"0\.01 s"):
            stream.result(timeout=0.01)
        with pytest.raises(RequestError, match="still running"):
            _ = stream.completion
        hold.set()
        assert stream.result().content == "hello"


def test_sampling_and_family_stops() -> None:
    vocab = ByteVocab(["<stop>"])
    backend = ScriptedBackend(["a<stop>b", "one two", "three/four", "1234567"], vocab=vocab)
    with Service(backend) as service:
        assert service.vocab is vocab
        assert service.info.n_ctx == 4096
        assert service.submit(TurnRequest(prompt("p", stop=("<stop>",)), plain)).result().content == "a"
        by_text = TurnSettings(SamplingParams(stop=("two",)))
        assert service.submit(TurnRequest(prompt("p"), plain, by_text)).result().content == "one "
        text_stop = service.submit(TurnRequest(prompt("p", stop=("/four",)), plain)).result()
        assert text_stop.content == "three", "an end that is no token of this vocabulary is found as text"
        limited = service.submit(TurnRequest(prompt("p"), plain, TurnSettings(SamplingParams(max_tokens=3)))).result()
    assert (limited.content, limited.finish_reason) == ("123", "length")


def test_logprobs() -> None:
    backend = ScriptedBackend(["ab", "ab", "ab"])
    with Service(backend) as service:
        streams = [
            service.submit(TurnRequest(prompt("p"), plain, TurnSettings(SamplingParams(logprobs=top))))
            for top in (None, 0, 2)
        ]
        for stream in streams:
            stream.result()
    tokens = [ord("a"), ord("b"), backend.vocab.end]
    assert [[entry.token for entry in stream.logprobs] for stream in streams] == [[], tokens, tokens]
    assert [len(entry.top) for stream in streams for entry in stream.logprobs] == [0, 0, 0, 1, 1, 1]
    assert [stream.completion.logprobs for stream in streams] == [stream.logprobs for stream in streams]
    assert [entry.text for entry in streams[1].completion.logprobs] == ["a", "b", "<|im_end|>"]


def test_markers_reach_the_parser() -> None:
    vocab = ByteVocab(
        ["<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|end|>"], end=["<|return|>", "<|call|>"]
    )
    backend = ScriptedBackend(["<|channel|>commentary to=functions.f<|message|>{}<|call|>"], vocab=vocab)

    def parser() -> Parser:
        return Parser("gpt-oss", control_tokens=vocab.control_tokens)

    with Service(backend) as service:
        completion = service.submit(
            TurnRequest(prompt("p"), parser, markers=frozenset({"<|call|>", "<|end|>"}))
        ).result()
    assert completion.tool_calls[0].error is None
    assert completion.finish_reason == "tool_calls"


def test_a_prompt_that_does_not_fit_is_told_to_the_caller() -> None:
    with Service(ScriptedBackend([], n_ctx=10)) as service:
        with pytest.raises(ContextOverflowError, match="11 tokens, and a conversation may hold n_ctx=10"):
            service.submit(TurnRequest(prompt("x" * 11), plain))
        with pytest.raises(RequestError, match="empty"):
            service.submit(TurnRequest(Prompt("", ()), plain))


def test_a_budget_that_nothing_could_close() -> None:
    with Service(ScriptedBackend([])) as service, pytest.raises(RequestError, match="needs reasoning_close"):
        service.submit(TurnRequest(prompt("p"), plain, TurnSettings(reasoning_budget=1)))


def test_reasoning_budget_and_end_reasoning() -> None:
    close = (Piece("\n</think>\n\n"),)
    backend = ScriptedBackend(lambda text: "answer" if "</think>" in text else "<think>\n" + ENDLESS, delay=0.0005)
    with Service(backend) as service:
        budgeted = service.submit(
            TurnRequest(prompt("p"), lambda: Parser("qwen3"), TurnSettings(reasoning_budget=20), reasoning_close=close)
        ).result()
        assert budgeted.content == "answer"
        assert 0 < len(budgeted.reasoning) <= 20
        stream = service.submit(TurnRequest(prompt("q"), lambda: Parser("qwen3"), reasoning_close=close))
        for event in stream:
            if isinstance(event, ReasoningDelta):
                stream.end_reasoning()
        assert stream.completion.content == "answer"


def test_deadline_and_priority_are_passed_on() -> None:
    backend = endless()
    with Service(backend) as service:
        stream = service.submit(TurnRequest(prompt("p"), plain, TurnSettings(deadline=0.05, priority=3)))
        assert stream.result().finish_reason == "deadline"


def test_a_failure_is_raised_to_the_reader_with_what_came_before() -> None:
    def poisoned(rows: object) -> None:
        if 4 <= backend.decodes < 100:
            raise DecodeError("cannot")

    backend = ScriptedBackend(["hello", "fine"], before_decode=poisoned)
    with Service(backend) as service:
        stream = service.submit(TurnRequest(prompt("p"), plain))
        seen: list[Event] = []
        with pytest.raises(DecodeError, match="cannot"):
            seen.extend(stream)
        with pytest.raises(DecodeError, match="cannot"):
            stream.result()
        assert (stream.completion.content, stream.completion.finish_reason) == ("hel", "error")
        backend.decodes = 100
        assert service.submit(TurnRequest(prompt("p"), plain)).result().content == "fine"


def test_leaving_a_for_loop_stops_the_decode() -> None:
    backend = endless()
    with Service(backend) as service:
        stream = service.submit(TurnRequest(prompt("p"), plain))
        for _ in stream:
            break
        assert stream.result().finish_reason == "cancelled"
        assert settled(backend)


def test_an_error_in_the_loop_body_stops_the_decode() -> None:
    backend = endless()
    with Service(backend) as service:
        stream = service.submit(TurnRequest(prompt("p"), plain))
        with pytest.raises(ZeroDivisionError):
            fail_within(stream)
        assert stream.result().finish_reason == "cancelled"


def fail_within(stream: Stream) -> None:
    for _ in stream:
        _ = 1 / 0


def test_an_interrupt_while_waiting_stops_the_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    # No `delay`: the backend would wait for it on an Event, which is patched below.
    backend = ScriptedBackend(lambda _: ENDLESS, before_decode=lambda _: time.sleep(0.001), n_ctx=200_000)
    with Service(backend) as service:
        stream = service.submit(TurnRequest(prompt("p"), plain))

        def interrupted(*_: object) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(threading.Event, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                stream.result()
        assert stream.result().finish_reason == "cancelled"


def test_leaving_a_with_stops_the_decode() -> None:
    backend = endless()
    with Service(backend) as service:
        with service.submit(TurnRequest(prompt("p"), plain)) as stream:
            pass
        assert stream.result().finish_reason == "cancelled"
        assert settled(backend)


def test_a_stream_that_nobody_holds_is_cancelled() -> None:
    backend = endless()
    with Service(backend) as service:
        service.submit(TurnRequest(prompt("p"), plain))
        gc.collect()
        assert settled(backend)


def test_cancel_from_another_thread_during_prefill() -> None:
    backend = ScriptedBackend(echo, n_batch=4, delay=0.001, n_ctx=20_000)
    with Service(backend) as service:
        stream = service.submit(TurnRequest(prompt("x" * 10_000), plain))
        threading.Timer(0.02, stream.cancel).start()
        completion = stream.result()
        assert (completion.finish_reason, completion.content) == ("cancelled", "")
        assert settled(backend)
        assert backend.evaluated < 10_000


def test_cancelling_stops_a_chunk_in_its_middle() -> None:
    backend = ScriptedBackend(echo, delay=3600)
    with Service(backend) as service:
        stream = service.submit(TurnRequest(prompt("x" * 100), plain))
        while not backend.decodes:
            time.sleep(0.001)
        stream.cancel()
        assert stream.result().finish_reason == "cancelled"
        other = service.submit(TurnRequest(prompt("y"), plain))
        while backend.decodes < 2:
            time.sleep(0.001)
    assert other.result().finish_reason == "cancelled", "closing does not wait for it either"


def test_close_ends_streams_and_frees_the_backend() -> None:
    backend = endless()
    running = Service(backend)
    streams = [running.submit(TurnRequest(prompt(f"p{i}"), plain)) for i in range(6)]
    next(iter(streams[0]))
    running.close()
    running.close()
    assert backend.closed
    assert {stream.result().finish_reason for stream in streams} == {"cancelled"}
    with pytest.raises(EngineError, match="closed"):
        running.submit(TurnRequest(prompt("p"), plain))
    streams[0].cancel()


def test_closing_at_the_end_is_not_given_up_for_an_interrupt() -> None:
    """A signal handler's exception while the interpreter ends: nothing may be freed before the thread has ended."""
    closed: list[str] = []

    def close() -> None:
        closed.append("interrupted" if not closed else "whole")
        if len(closed) == 1:
            raise KeyboardInterrupt

    _close(OwnerProcess(), close)
    assert closed == ["interrupted", "whole"]


def test_an_answer_that_the_context_ends_names_the_option(caplog: pytest.LogCaptureFixture) -> None:
    with Service(ScriptedBackend(lambda _: "x" * 100, n_ctx=20)) as service:
        assert service.submit(TurnRequest(prompt("0123456789"), plain)).result().finish_reason == "length"
        assert "reached n_ctx=20; load with a larger n_ctx=" in caplog.text
        caplog.clear()
        by_its_limit = service.submit(TurnRequest(prompt("0"), plain, TurnSettings(SamplingParams(max_tokens=3))))
        assert by_its_limit.result().finish_reason == "length"
        assert not caplog.text


def test_a_service_that_nobody_holds_is_closed() -> None:
    backend = ScriptedBackend(echo)
    Service(backend)
    gc.collect()
    assert backend.closed


def test_the_interpreter_ends_though_a_stream_runs() -> None:
    script = (
        "from fakes.doubles import plain, prompt\n"
        "from engine.runtime.loop.request import TurnRequest\n"
        "from engine.runtime.stream.service import Service\n"
        "from engine.testing import ScriptedBackend\n"
        "backend = ScriptedBackend(lambda _: 'x' * 10**6, n_ctx=10**7, delay=0.001)\n"
        "stream = Service(backend).submit(TurnRequest(prompt('p'), plain))\n"
        "reading = iter(stream)\n"
        "print(next(reading).text)\n"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    root = Path(__file__).parents[2]
    paths = os.pathsep.join((str(root / "tests" / "helpers"), str(root)))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert (done.stdout, done.stderr) == ("x\n", "")


def test_a_broken_loop_is_reported_to_everyone() -> None:
    hold = threading.Event()

    def crash(_: object) -> None:
        hold.wait()
        raise ZeroDivisionError("bug")

    backend = ScriptedBackend(echo, before_decode=crash)
    with Service(backend) as service:
        streams = [service.submit(TurnRequest(prompt(f"p{i}"), plain)) for i in range(6)]
        hold.set()
        for stream in streams:
            with pytest.raises(EngineError, match=r"loop broke \(ZeroDivisionError: bug"):
                stream.result()
            assert stream.completion.finish_reason == "error"
        with pytest.raises(EngineError, match="loop broke"):
            service.submit(TurnRequest(prompt("p"), plain))
    assert backend.closed


def test_many_threads_at_once() -> None:
    backend = ScriptedBackend(echo, n_sequences=4, n_ctx=20_000)
    with Service(backend) as service, ThreadPoolExecutor(16) as pool:

        def ask(number: int) -> str:
            stream = service.submit(TurnRequest(prompt(f"question {number}"), plain))
            if number % 2:
                return stream.result().content
            return "".join(event.text for event in stream if isinstance(event, ContentDelta))

        answers = list(pool.map(ask, range(80)))
    assert answers == [f"re: question {number}" for number in range(80)]
    assert max(backend.batches) > 1


def test_iterating_a_stream_of_another_thread() -> None:
    with Service(ScriptedBackend(["hello"])) as service, ThreadPoolExecutor(1) as pool:
        stream = service.submit(TurnRequest(prompt("p"), plain))
        assert fold(pool.submit(list[Event], stream).result()).content == "hello"


async def test_async_for_and_await() -> None:
    with Service(ScriptedBackend(echo, n_sequences=8)) as service:
        events = [event async for event in service.submit(TurnRequest(prompt("one"), plain))]
        assert fold(events).content == "re: one"
        async with service.submit(TurnRequest(prompt("two"), plain)) as stream:
            assert (await stream).content == "re: two"
            assert await stream is stream.completion
        several = await asyncio.gather(*(service.submit(TurnRequest(prompt(f"q{i}"), plain)) for i in range(20)))
        assert [completion.content for completion in several] == [f"re: q{i}" for i in range(20)]


@pytest.mark.parametrize("delay", [0.005, 0.0])
async def test_the_event_loop_stays_free(delay: float) -> None:
    """Another task gets its turns while a stream runs, whether tokens come slowly or faster than they are read."""
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    backend = ScriptedBackend(["y" * 60], delay=delay)
    with Service(backend) as service:
        task = asyncio.create_task(heart())
        events = [event async for event in service.submit(TurnRequest(prompt("p"), plain))]
        task.cancel()
    assert len(events) == 61
    assert beats > (60 if delay else 0)


async def test_breaking_out_of_async_for_stops_the_decode() -> None:
    backend = endless()
    with Service(backend) as service:
        stream = service.submit(TurnRequest(prompt("p"), plain))
        async for _ in stream:
            break
        assert (await stream).finish_reason == "cancelled"
        assert settled(backend)


def decoding(backend: ScriptedBackend) -> None:
    """Wait until a few tokens were decoded."""
    while backend.decodes < 3:
        time.sleep(0.001)


async def test_leaving_an_async_with_stops_the_decode() -> None:
    backend = endless()
    with Service(backend) as service:
        async with service.submit(TurnRequest(prompt("p"), plain)) as stream:
            pass
        assert (await stream).finish_reason == "cancelled"


@pytest.mark.parametrize("how", ["await", "for"])
async def test_cancelling_the_task_stops_the_decode(how: str) -> None:
    backend = endless()
    with Service(backend) as service:
        stream = service.submit(TurnRequest(prompt("p"), plain))

        async def read() -> None:
            if how == "await":
                await stream
            else:
                async for _ in stream:
                    pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0)  # a task that is cancelled before its first step never reads
        await asyncio.to_thread(decoding, backend)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stream.result().finish_reason == "cancelled"
        assert settled(backend)


async def test_errors_reach_async_readers() -> None:
    with Service(ScriptedBackend([])) as service:
        with pytest.raises(EngineError, match="0 replies"):
            await service.submit(TurnRequest(prompt("p"), plain))
        reading = aiter(service.submit(TurnRequest(prompt("p"), plain)))
        finished = await anext(reading)
        assert isinstance(finished, Finished)
        assert finished.reason == "error"
        with pytest.raises(EngineError, match="0 replies"):
            await anext(reading)


def test_an_event_loop_that_is_gone_harms_nobody() -> None:
    hold = threading.Event()
    backend = ScriptedBackend(lambda text: text, before_decode=waiting_for(hold))
    with Service(backend) as service:
        lost = service.submit(TurnRequest(prompt("lost"), plain))
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(_read(lost))
        loop.run_until_complete(asyncio.sleep(0.01))
        other = service.submit(TurnRequest(prompt("other"), plain))
        waiting.cancel()
        loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
        loop.close()
        hold.set()
        assert other.result().content == "other"
        assert lost.result().finish_reason == "cancelled"


async def _read(stream: Stream) -> None:
    await stream


async def test_threads_and_asyncio_at_once() -> None:
    backend = ScriptedBackend(echo, n_sequences=3, n_ctx=20_000)
    with Service(backend) as service:

        def ask(text: str) -> Completion:
            return service.submit(TurnRequest(prompt(text), plain)).result()

        in_threads = [asyncio.to_thread(ask, f"thread {i}") for i in range(10)]
        in_tasks = [service.submit(TurnRequest(prompt(f"task {i}"), plain)) for i in range(10)]
        answers = await asyncio.gather(*in_threads, *in_tasks)
    expected = [f"re: thread {i}" for i in range(10)] + [f"re: task {i}" for i in range(10)]
    assert [answer.content for answer in answers] == expected


def test_requests_and_replies_can_cross_to_another_process() -> None:
    def progress(_done: int, _total: int) -> None: ...

    turn = TurnRequest(prompt("p"), plain, TurnSettings(SamplingParams(temperature=0.5), progress=progress))
    request = turn.crossing(1, (1, 2), Limits(), ())
    assert pickle.loads(pickle.dumps(request)) == request
    assert (request.id, request.tokens, request.reports) == (1, (1, 2), True)
    error = pickle.loads(pickle.dumps(DecodeError("x", "nan")))
    assert (str(error), error.reason) == ("x", "nan")
