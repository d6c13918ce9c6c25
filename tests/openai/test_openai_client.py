"""The SDK's own clients over engines: models by name, errors as its classes, raw responses, time limits."""

import asyncio
import sys
import threading
import time
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal

import pytest
from fakes.openai_clients import ASK, PING, WrittenEngine, scripted, wait_until_idle
from pydantic import BaseModel

import engine.openai
from engine import Engine, RequestError
from engine.runtime.loop.config import LoopOptions
from engine.support.errors import DecodeError, EngineError
from engine.types.events import ContentDelta, Finished

openai = pytest.importorskip("openai")
HTTP = import_module("httpx2" if int(openai.__version__.split(".")[0]) >= 3 else "httpx")
LATE = (openai.APITimeoutError, HTTP.ReadTimeout)  # version 2 of the SDK lets a late stream's own error through
ASKED: dict[str, Any] = {"model": "m", "messages": ASK}


def test_the_defaults_wait_for_a_slow_answer_and_never_repeat_it() -> None:
    client: Any = engine.openai.OpenAI(WrittenEngine())
    assert (client.max_retries, client.timeout) == (0, None)
    mine: Any = engine.openai.OpenAI(WrittenEngine(), max_retries=2, timeout=3.0, api_key="k")
    assert (mine.max_retries, mine.timeout, mine.api_key) == (2, 3.0, "k")
    with pytest.raises(RequestError, match="transport"):
        engine.openai.OpenAI(WrittenEngine(), http_client=object())


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.openai import transport

    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(EngineError, match=r"openai package is not installed: pip install '\.\[openai\]'"):
        engine.openai.OpenAI(WrittenEngine())
    module: Any = sys.modules[transport.__module__]
    monkeypatch.setattr(module, "_LIBRARIES", ())
    module._transport_class.cache_clear()
    with pytest.raises(EngineError, match="httpx"):
        transport(WrittenEngine())


def test_one_engine_goes_by_any_name_and_says_its_own() -> None:
    with scripted() as llm:
        client: Any = llm.openai_client()
        assert client.chat.completions.create(**ASKED).model == "qwen3"
        assert [model.id for model in client.models.list()] == ["qwen3"]
        assert client.models.retrieve("gpt-x").id == "qwen3"


def test_several_engines_go_by_their_names() -> None:
    small, large = (WrittenEngine([ContentDelta(name), Finished("stop")]) for name in ("small", "large"))
    client: Any = engine.openai.OpenAI({"small": small, "own/large": large})
    assert client.chat.completions.create(model="own/large", messages=ASK).choices[0].message.content == "large"
    assert [model.id for model in client.models.list()] == ["small", "own/large"]
    assert client.models.retrieve("own/large").id == "own/large"
    for call in (lambda: client.chat.completions.create(**ASKED), lambda: client.models.retrieve("m")):
        with pytest.raises(openai.NotFoundError, match="'small', 'own/large'") as told:
            call()
        assert (told.value.code, told.value.param) == ("model_not_found", "model")
    with pytest.raises(RequestError, match="of engines is empty"):
        engine.openai.transport({})


def test_the_builtin_model_says_the_name_in_its_file(builtin_model_path: Any) -> None:
    with Engine.load(builtin_model_path, n_ctx=512) as llm:
        client: Any = llm.openai_client()
        found = client.chat.completions.create(**ASKED, max_tokens=4, temperature=0)
        assert found.model == client.models.list().data[0].id == llm.info.name
        assert found.usage.prompt_tokens > 0


class Weather(BaseModel):
    city: Literal["Oslo", "Lima"]
    degrees: int


def test_answers_and_calls_are_held_to_their_schemas(builtin_model_path: Any) -> None:
    tool = {"type": "function", "function": {**PING["function"], "strict": True}}
    asked: dict[str, Any] = {**ASKED, "temperature": 0, "max_tokens": 300}
    with Engine.load(builtin_model_path, n_ctx=2048) as llm:
        client: Any = llm.openai_client()
        parsed = client.chat.completions.parse(**asked, response_format=Weather).choices[0].message.parsed
        assert isinstance(parsed, Weather)
        answer = client.responses.parse(model="m", input="Hi.", text_format=Weather, temperature=0)
        assert isinstance(answer.output_parsed, Weather)
        called = client.chat.completions.create(**asked, tools=[tool], tool_choice="required").choices[0]
        assert [call.function.name for call in called.message.tool_calls] == ["ping"]
        assert called.finish_reason == "tool_calls"
        bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(**asked, response_format=bad)
        assert error.value.param == "response_format"


def test_other_endpoints_are_refused_by_name() -> None:
    client: Any = engine.openai.OpenAI(WrittenEngine())
    for call, told in (
        (lambda: client.moderations.create(input="x"), "POST /moderations"),
        (lambda: client.chat.completions.retrieve("x"), "GET /chat/completions/x"),
        (lambda: client.files.list(), "GET /files"),
        (lambda: client.models.delete("m"), "DELETE /models/m"),
        (lambda: client.batches.list(), "GET /batches"),
        (lambda: client.images.generate(prompt="x"), "POST /images/generations"),
    ):
        with pytest.raises(openai.NotFoundError, match=f"{told} is not served") as error:
            call()
        assert error.value.code == "unsupported_endpoint"


class Failing(WrittenEngine):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

        def fails(*_: Any, **__: Any) -> Any:
            raise self.error

        self.choices = fails


def test_errors_of_the_engine_are_the_sdks_classes() -> None:
    closed = scripted()
    closed.close()
    for llm, kind, status in (
        (Failing(DecodeError("x")), openai.InternalServerError, 500),
        (Failing(EngineError("x")), openai.InternalServerError, 503),
        (Failing(RequestError("x")), openai.BadRequestError, 400),
        (closed, openai.InternalServerError, 503),
    ):
        client: Any = engine.openai.OpenAI(llm)
        for stream in (False, True):
            with pytest.raises(kind) as error:
                client.chat.completions.create(**ASKED, stream=stream)
            assert error.value.status_code == status


def test_a_full_queue_is_429() -> None:
    with scripted(lambda _: "a" * 3000, LoopOptions(max_waiting=1), n_sequences=1, delay=0.01) as llm:
        client: Any = llm.openai_client()
        with client.chat.completions.create(**ASKED, stream=True), client.chat.completions.create(**ASKED, stream=True):
            with pytest.raises(openai.RateLimitError, match="max_waiting=1") as error:
                client.chat.completions.create(**ASKED)
            assert error.value.code == "rate_limit_exceeded"
        wait_until_idle(llm)
        assert client.chat.completions.create(**ASKED, max_tokens=2).choices[0].message.content == "aa"


def test_an_error_amid_a_stream_is_the_sdks_error() -> None:
    def fails(rows: Any) -> None:
        if len(rows) == 1 and rows[0].position > 60:
            raise DecodeError("the decode of row 61 failed.")

    with scripted(lambda _: "a" * 3000, before_decode=fails) as llm:
        client: Any = llm.openai_client()
        stream = client.chat.completions.create(**ASKED, stream=True)
        with pytest.raises(openai.APIError, match="failed") as error:
            for _ in stream:
                pass
        assert error.value.code == "decode_failed"
        with pytest.raises(openai.InternalServerError, match="failed"):
            client.chat.completions.create(**ASKED)


def test_an_engine_closed_amid_a_stream_is_an_error() -> None:
    llm = scripted(lambda _: "a" * 3000, delay=0.005)
    client: Any = llm.openai_client()
    stream = client.chat.completions.create(**ASKED, stream=True)
    for _, _ in zip(stream, range(5), strict=False):
        pass
    llm.close()
    with pytest.raises(openai.APIError, match=r"cancelled|closed"):
        for _ in stream:
            pass


def test_raw_and_streaming_responses() -> None:
    with scripted() as llm:
        client: Any = llm.openai_client()
        raw = client.chat.completions.with_raw_response.create(**ASKED)
        assert raw.status_code == 200
        assert raw.headers["x-request-id"].startswith("req_")
        assert raw.parse().choices[0].message.reasoning_content == "I ping."
        with client.chat.completions.with_streaming_response.create(**ASKED, stream=True) as response:
            lines = [line for line in response.iter_lines() if line]
        assert response.headers["content-type"].startswith("text/event-stream")
        assert lines[-1] == "data: [DONE]"
        assert all(line.startswith("data: ") for line in lines)


def test_a_time_limit_is_the_callers_and_cancels() -> None:
    def slow(rows: Any) -> None:
        time.sleep(0.001 if slow_after > rows[0].position else 0.5)

    slow_after = 10_000
    with scripted(lambda _: "a" * 3000, delay=0.005) as llm:
        client: Any = llm.openai_client()
        begun = time.monotonic()
        with pytest.raises(LATE):
            client.chat.completions.create(**ASKED, timeout=0.2)
        assert time.monotonic() - begun < 5
        wait_until_idle(llm)
    slow_after = 50
    with scripted(lambda _: "a" * 3000, n_sequences=2, before_decode=slow) as llm:
        client = llm.openai_client(timeout=0.2)
        for n in (1, 2):
            stream = client.chat.completions.create(**ASKED, n=n, stream=True)
            with pytest.raises(LATE):
                for _ in stream:
                    pass
            wait_until_idle(llm)


async def test_a_time_limit_of_an_async_client() -> None:
    def slow(rows: Any) -> None:
        time.sleep(0.001 if rows[0].position < 50 else 0.5)

    with scripted(lambda _: "a" * 3000, n_sequences=2, before_decode=slow) as llm:
        client: Any = llm.async_openai_client(timeout=0.2)
        with pytest.raises(LATE):
            await client.chat.completions.create(**ASKED)
        for n in (1, 2):
            stream = await client.chat.completions.create(**ASKED, n=n, stream=True)
            with pytest.raises(LATE):
                async for _ in stream:
                    pass
        wait_until_idle(llm)


def check_woven(chunks: list[Any]) -> None:
    """Chunks of three choices of 400 characters each."""
    told = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].delta.content]
    for number in range(3):
        text = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices[0].index == number]
        assert "".join(text) == "a" * 400
    changes = sum(before != after for before, after in pairwise(told))
    assert changes > 100, f"the choices change places only {changes} times"
    assert max(told.index(number) for number in range(3)) < 50, "one waits for another"


async def test_choices_come_in_between_one_another() -> None:
    asked: dict[str, Any] = {**ASKED, "n": 3, "stream": True}
    with scripted(lambda _: "a" * 400, n_sequences=3, delay=0.001) as llm:
        here: Any = llm.openai_client()
        there: Any = llm.async_openai_client()
        check_woven(await asyncio.to_thread(lambda: list(here.chat.completions.create(**asked))))
        stream = await there.chat.completions.create(**asked)
        check_woven([chunk async for chunk in stream])


async def test_an_error_ends_all_choices() -> None:
    def fail(rows: Any) -> None:
        if rows[0].position > 100:
            raise OSError("the device is gone")

    asked: dict[str, Any] = {**ASKED, "n": 3, "stream": True}
    with scripted(lambda _: "a" * 400, n_sequences=3, before_decode=fail) as llm:
        here: Any = llm.openai_client()
        with pytest.raises(openai.APIError, match="the device is gone"):
            list(here.chat.completions.create(**asked))
    with scripted(lambda _: "a" * 400, n_sequences=3, before_decode=fail) as llm:
        there: Any = llm.async_openai_client()
        with pytest.raises(openai.APIError, match="the device is gone"):
            [chunk async for chunk in await there.chat.completions.create(**asked)]


async def test_an_async_client_says_the_same() -> None:
    with scripted() as llm:
        client: Any = llm.async_openai_client()
        whole = await client.chat.completions.create(**ASKED, tools=[PING], seed=1)
        stream = await client.chat.completions.create(**ASKED, tools=[PING], seed=1, stream=True)
        chunks = [chunk async for chunk in stream]
        sync: Any = llm.openai_client()
        same = sync.chat.completions.create(**ASKED, tools=[PING], seed=1)
        assert whole.choices == same.choices
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content == "See: "
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(**ASKED, temperature=-1)
        assert [model.id async for model in client.models.list()] == ["qwen3"]


async def test_sixteen_streams_leave_the_loop_to_others() -> None:
    stalls: list[float] = []
    late: list[float] = []  # how long a thread that only sleeps is kept waiting by the machine itself

    async def watch() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            stalls.append(time.monotonic() - before - 0.01)

    def sleep(over: threading.Event) -> None:
        while not over.is_set():
            before = time.monotonic()
            time.sleep(0.01)
            late.append(time.monotonic() - before - 0.01)

    with scripted(lambda _: "a" * 100, n_sequences=4) as llm:
        client: Any = llm.async_openai_client()

        async def read() -> int:
            stream = await client.chat.completions.create(**ASKED, stream=True)
            return len([chunk async for chunk in stream])

        await read()  # what the SDK makes for its first stream is no matter of these
        watching, over = asyncio.create_task(watch()), threading.Event()
        sleeping = asyncio.create_task(asyncio.to_thread(sleep, over))
        counts = await asyncio.gather(*(read() for _ in range(16)))
        watching.cancel()
        over.set()
        await sleeping
    assert counts == [102] * 16
    # A busy machine may halt the loop several times within one stall: all that the thread lost counts.
    assert max(stalls) < 1.0 + 2 * sum(late), (
        f"the loop stood still for {max(stalls):.3f} s, a thread {sum(late):.3f} s in all"
    )


def test_a_transport_under_a_client_of_ones_own() -> None:
    """Either library's client; the SDK's version 3 takes both."""
    major = int(openai.__version__.split(".")[0])
    for name in ("httpx2", "httpx") if major >= 3 else ("httpx",):
        try:
            library = import_module(name)
        except ImportError:
            continue
        with scripted() as llm:
            transport = engine.openai.transport(llm)
            own: Any = openai.OpenAI(
                api_key="x", base_url="http://elsewhere/v1", http_client=library.Client(transport=transport)
            )
            assert own.chat.completions.create(**ASKED, tools=[PING]).choices[0].message.content == "See: "


def test_the_former_home_of_the_client_of_other_servers_names_the_new_one() -> None:
    with pytest.raises(ImportError, match="from engine import remote"):
        from engine.openai import chat  # noqa: F401  # pyright: ignore[reportUnusedImport]
