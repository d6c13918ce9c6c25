"""Many conversations at once: a list of answers, or answers as they finish."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Literal, TypeAlias, cast

from engine.errors import EngineError, QueueFullError, RequestError
from engine.offloop import off_loop
from engine.runtime.stream import Stream
from engine.types import Completion, Message, MessagesLike

Row: TypeAlias = "MessagesLike | tuple[MessagesLike, Mapping[str, Any]]"
"""A conversation, or a conversation and its own options."""
OnError: TypeAlias = Literal["raise", "return"]
Start: TypeAlias = Callable[[MessagesLike, Mapping[str, Any]], Stream]
"""Starts a turn of a conversation with these options, which override the common ones."""


def generate(start: Start, rows: Sequence[Row], on_error: OnError) -> list[Completion | EngineError]:
    """Returns the answers in order. `on_error="return"`: a row's error takes the place of its answer; otherwise it is
    raised with a note that names the row, and the other rows are cancelled."""
    check_rows(rows, on_error)
    started: list[Stream | EngineError] = []
    done = 0
    try:
        for number, row in enumerate(rows):
            while True:
                try:
                    started.append(_started(start, number, row, on_error))
                    break
                except QueueFullError:
                    if done == len(started):
                        raise
                    _ended(started[done], done, on_error)
                    done += 1
        return [_ended(stream, number, on_error) for number, stream in enumerate(started)]
    finally:
        for stream in started:
            if isinstance(stream, Stream):
                stream.cancel()  # no effect on finished streams


async def agenerate(start: Start, rows: Sequence[Row], on_error: OnError, room: int) -> list[Completion | EngineError]:
    """Like `generate`, for an event loop, with `room` rows at a time; cancelling the task stops them."""
    check_rows(rows, on_error)
    free = asyncio.Semaphore(room)

    async def one(number: int, row: Row) -> Completion | EngineError:
        async with free:
            try:
                stream = await off_loop(lambda: _start(start, row), Stream.cancel)
                return await stream
            except EngineError as error:
                return _judged(error, number, on_error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number, row)) for number, row in enumerate(rows)]
    return [task.result() for task in tasks]


def generate_iter(start: Start, rows: Iterable[Row], room: int) -> Iterator[tuple[int, Completion | EngineError]]:
    """Yields pairs of a row's number and its answer, or its error, as they finish; at most `room` rows are taken from
    the iterable and run at a time."""
    running: dict[Future[Completion | EngineError], int] = {}
    streams: dict[int, Stream] = {}
    waiting = enumerate(rows)
    left = False

    def one(number: int, row: Row) -> Completion | EngineError:
        try:
            streams[number] = stream = _start(start, row)
            if left:  # while the turn began; nobody wants its answer
                stream.cancel()
            return stream.result()
        except EngineError as error:
            return _judged(error, number, "return")
        finally:
            streams.pop(number, None)

    with ThreadPoolExecutor(room, thread_name_prefix="llama-engine-rows") as pool:
        try:
            while True:
                while len(running) < room and (item := next(waiting, None)) is not None:
                    number, row = item
                    check_row(row, number)
                    running[pool.submit(one, number, row)] = number
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:
            left = True
            for future in running:
                future.cancel()
            for stream in list(streams.values()):
                stream.cancel()


async def agenerate_iter(
    start: Start, rows: Iterable[Row], room: int
) -> AsyncIterator[tuple[int, Completion | EngineError]]:
    """Like `generate_iter`, for an event loop."""
    running: dict[asyncio.Task[Completion | EngineError], int] = {}
    waiting = enumerate(rows)

    async def one(number: int, row: Row) -> Completion | EngineError:
        try:
            return await (await off_loop(lambda: _start(start, row), Stream.cancel))
        except EngineError as error:
            return _judged(error, number, "return")

    try:
        while True:
            while len(running) < room and (item := next(waiting, None)) is not None:
                number, row = item
                check_row(row, number)
                running[asyncio.create_task(one(number, row))] = number
            if not running:
                return
            finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                yield running.pop(task), task.result()
    finally:
        for task in running:
            task.cancel()


def check_rows(rows: Sequence[Row], on_error: object) -> None:
    """Raise RequestError if `rows` is not a list of conversations."""
    if on_error not in ("raise", "return"):
        raise RequestError(f'on_error={on_error!r} is not valid: it is "raise" or "return".')
    given = cast("object", rows)
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise RequestError("generate() takes a list of conversations; put this one in a list, or use chat().")
    for number, row in enumerate(rows):
        check_row(row, number)


def check_row(row: Row, number: int) -> None:
    """Raise RequestError if a row is a message rather than a conversation."""
    given = cast("object", row)
    if isinstance(given, Message) or (isinstance(given, Mapping) and "role" in given):
        raise RequestError(
            f"Row {number} is a message, but generate() takes conversations; put the messages of each conversation "
            "in a list, or use chat()."
        )


def _start(start: Start, row: Row) -> Stream:
    own: Mapping[str, Any] = {}
    if isinstance(row, tuple) and len(row) == 2 and isinstance(row[1], Mapping) and "role" not in row[1]:
        row, own = cast("tuple[MessagesLike, Mapping[str, Any]]", row)
    return start(cast("MessagesLike", row), own)


def _started(start: Start, number: int, row: Row, on_error: OnError) -> Stream | EngineError:
    try:
        return _start(start, row)
    except QueueFullError:
        raise
    except EngineError as error:
        return _judged(error, number, on_error)


def _ended(stream: Stream | EngineError, number: int, on_error: OnError) -> Completion | EngineError:
    if isinstance(stream, EngineError):
        return stream
    try:
        return stream.result()
    except EngineError as error:
        return _judged(error, number, on_error)


def _judged(error: EngineError, number: int, on_error: OnError) -> EngineError:
    """Returns the error of a row, or raise it."""
    error.add_note(f"This was row {number} of those that generate() was given.")
    if on_error == "raise":
        raise error
    return error
