"""Readers that leave: whatever they read, and however they go, their sequences end and nothing of theirs stays."""

import asyncio
import gc
import random
import threading
import time
from typing import Any

import pytest
from fakes.openai_clients import ASK, backend_of, scripted, wait_until_idle

openai = pytest.importorskip("openai")
ASKED: dict[str, Any] = {"model": "m", "messages": ASK}
LONG = "a" * 100_000


def others() -> set[str]:
    """The threads that are not the engine's own nor asyncio's pool, which both stay for the next request."""
    names = {thread.name for thread in threading.enumerate()}
    return {
        name for name in names if not name.startswith(("llama-engine", "asyncio_", "ThreadPoolExecutor", "MainThread"))
    }


async def test_100_tasks_cancelled_at_any_moment() -> None:
    """Streams and whole answers, alone and in company, cut before they begin, while they wait, while they are read."""
    choice = random.Random(7)
    before = others()
    with scripted(lambda _: LONG, n_ctx=200_000, n_sequences=2, delay=0.001) as llm:
        client: Any = llm.async_openai_client()
        read = 0

        async def stream(n: int) -> None:
            nonlocal read
            async for _ in await client.chat.completions.create(**ASKED, stream=True, n=n):
                read += 1

        async def whole(n: int) -> None:
            await client.chat.completions.create(**ASKED, n=n)

        async def left_early() -> None:
            nonlocal read
            async with await client.chat.completions.create(**ASKED, stream=True) as chunks:
                async for _ in chunks:
                    read += 1
                    if choice.random() < 0.3:
                        break
            await asyncio.sleep(60)

        for _ in range(20):
            kinds = choice.choices(("stream", "whole", "left"), k=5)
            made = [
                {"stream": lambda: stream(choice.randint(1, 3)), "whole": lambda: whole(2), "left": left_early}[kind]()
                for kind in kinds
            ]
            tasks = [asyncio.create_task(each) for each in made]
            for task in choice.sample(tasks, len(tasks)):
                await asyncio.sleep(choice.choice((0, 0, 0.001, 0.01, 0.03)))
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in found), found
            tasks.clear()
        assert read > 50, "hardly anything was ever read"
        gc.collect()
        await asyncio.to_thread(wait_until_idle, llm)
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert others() == before


def test_30_streams_closed_by_threads() -> None:
    """Closed by their reader, by another thread while the reader waits, and just dropped."""
    choice = random.Random(8)
    before = others()
    with scripted(lambda _: LONG, n_ctx=200_000, n_sequences=2, delay=0.001) as llm:
        client: Any = llm.openai_client()
        for number in range(30):
            chunks = client.chat.completions.create(**ASKED, stream=True, n=choice.randint(1, 2))
            source = iter(chunks)
            for _ in range(choice.randint(0, 8)):
                next(source)
            if number % 3 == 0:
                chunks.close()
            elif number % 3 == 1:
                closing = threading.Timer(0.01, chunks.close)
                closing.start()
                for _ in source:
                    pass
                closing.join()
            del chunks, source
            if number % 3 == 2:
                gc.collect()
            wait_until_idle(llm)
    assert others() == before


def test_a_stream_that_is_closed_ends_within_a_step() -> None:
    with scripted(lambda _: LONG, n_ctx=200_000, delay=0.02) as llm:
        client: Any = llm.openai_client()
        chunks = client.chat.completions.create(**ASKED, stream=True)
        for _, _ in zip(chunks, range(3), strict=False):
            pass
        decodes = backend_of(llm).decodes
        chunks.close()
        time.sleep(0.2)
        assert backend_of(llm).decodes <= decodes + 2


async def test_a_task_that_is_cancelled_ends_its_sequence_within_a_step() -> None:
    with scripted(lambda _: LONG, n_ctx=200_000, delay=0.02) as llm:
        client: Any = llm.async_openai_client()
        for stream in (True, False):

            async def read(stream: bool = stream) -> None:
                found = await client.chat.completions.create(**ASKED, stream=stream)
                async for _ in found:
                    pass

            task = asyncio.create_task(read())
            await asyncio.sleep(0.3)
            task.cancel()
            decodes = backend_of(llm).decodes
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.2)
            assert backend_of(llm).decodes <= decodes + 2
