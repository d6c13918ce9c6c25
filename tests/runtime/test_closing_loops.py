"""An event loop is closed while one of its tasks reads a stream, after the n-th event: nothing hangs, that turn ends,
and nobody else notices."""

import asyncio
import gc

from engine.runtime.stream.stream import Stream
from engine.testing.scripted import ScriptedEngine

ANSWER = "one two three four"


def read_until_the_loop_is_closed(stream: Stream, number: int) -> int:
    """Read so many events in a task, and close its loop without cancelling it, as some hosts do. Returns how many it
    read; all, if there are no more."""
    loop, read = asyncio.new_event_loop(), 0

    async def reading() -> None:
        nonlocal read
        async for _ in stream:
            read += 1
            if read == number:
                loop.stop()

    task = loop.create_task(reading())
    task.add_done_callback(lambda _: loop.stop())
    loop.run_forever()
    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
    loop.close()
    return read


def test_a_loop_closed_after_each_event() -> None:
    with ScriptedEngine(lambda _: ANSWER, delay=0.001, n_sequences=3) as llm:
        number = read = 0
        while read == number:
            number += 1
            left, other = llm.stream("left"), llm.stream("other")
            read = read_until_the_loop_is_closed(left, number)
            assert other.result(20).content == ANSWER
            gc.collect()  # the task that was left cancels its stream when it is collected
            assert left.result(20).finish_reason in ("cancelled", "stop")
            assert asyncio.run(llm.achat("after")).content == ANSWER
    assert number > 3  # on a busy machine events come together
