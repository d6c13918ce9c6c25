"""Many conversations at once: a list of answers, or answers as they finish."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from operator import itemgetter
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias, cast

from engine.runtime.stream.stream import Stream
from engine.support.display import short, table_html
from engine.support.errors import EngineError, QueueFullError, RequestError, shown
from engine.support.offloop import belongs_to_call
from engine.types.completion import Completion
from engine.types.messages import Message, MessagesLike

Row: TypeAlias = "MessagesLike | tuple[MessagesLike, Mapping[str, Any]]"
"""A conversation, or a conversation and its own options."""
Prompts: TypeAlias = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
"""A raw prompt, as a text or as tokens, or a list of them."""
OnError: TypeAlias = Literal["raise", "return"]
Start: TypeAlias = Callable[[MessagesLike, Mapping[str, Any]], Stream]
"""Starts a turn of a conversation with these options, which override the common ones."""
_NUMBER = itemgetter(0)
_ROWS, _LETTERS = 100, 300  # of a table in a notebook, and of an answer in it


_HEAD = ("", "answer", "calls", "tokens", "ended by")


class Answers(list[Completion | EngineError]):
    """The answers of `generate` in order: a list, which a notebook shows as a table, without columns that are empty."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        more = [("…", f"{len(self) - _ROWS:,} more")] if len(self) > _ROWS else []
        rows = [_cells(number, answer) for number, answer in enumerate(self[:_ROWS])]
        said = [place for place in range(len(_HEAD)) if place == 0 or any(row[place] for row in rows)]
        shown = [tuple(row[place] for place in said) for row in (_HEAD, *rows)]
        return table_html([*shown[1:], *more], head=shown[0])


def _cells(number: int, answer: Completion | EngineError) -> tuple[str, ...]:
    if isinstance(answer, EngineError):
        return str(number), short(str(answer), _LETTERS), "", "", type(answer).__name__
    calls = "\n".join(f"{call.name} {short(call.arguments, _LETTERS)}" for call in answer.tool_calls)
    tokens = f"{answer.usage.completion_tokens:,}" if answer.usage else ""
    return str(number), short(answer.content, _LETTERS), calls, tokens, answer.finish_reason


class _Rows:
    """Rows under way, at most `room` of them, each a stream. Both ways of generating read them with `next`."""

    def __init__(self, start: Start, rows: Iterable[Row], room: int, on_error: OnError = "return") -> None:
        self._start = start
        self._waiting = enumerate(rows)
        self._room = room
        self._on_error: OnError = on_error
        self._streams: dict[int, Stream] = {}
        self._over: SimpleQueue[int] = SimpleQueue()
        self._refused: tuple[int, Row] | None = None
        self._left = False

    def next(self) -> tuple[int, Completion | EngineError] | None:
        """Returns the number and the outcome of the next row that finishes; None after the last. Waits."""
        belongs_to_call(self)
        while not self._left:
            if (failure := self._fill()) is not None:
                return failure
            if not self._streams:
                break
            if (stream := self._streams.pop(number := self._over.get(), None)) is not None:
                try:
                    return number, stream.result()
                except EngineError as error:
                    return number, _judged(error, number, self._on_error)
        return None

    def cancel(self) -> None:
        """Cancel the rows under way, also one that begins just now; may be called from another thread."""
        self._left = True
        for stream in list(self._streams.values()):
            stream.cancel()  # no effect on finished streams

    def _fill(self) -> tuple[int, EngineError] | None:
        """Start rows while there is room, in the engine's queue too. Returns one that cannot start."""
        while not self._left and len(self._streams) < self._room:
            if (item := self._refused or next(self._waiting, None)) is None:
                break
            number, row = item
            check_row(row, number)
            self._refused = None
            try:
                stream = _start(self._start, row)
            except QueueFullError as error:
                if not self._streams:
                    return number, _judged(error, number, self._on_error)
                self._refused = item
                return None
            except EngineError as error:
                return number, _judged(error, number, self._on_error)
            self._streams[number] = stream
            stream.listen(partial(self._over.put, number), of_end=True)
            if self._left:  # while the turn began; nobody wants its answer
                stream.cancel()
        return None


def generate_iter(
    start: Start, rows: Iterable[Row], room: int, on_error: OnError = "return"
) -> Generator[tuple[int, Completion | EngineError]]:
    """Yields pairs of a row's number and its answer, or its error, as they finish; at most `room` rows are taken from
    the iterable and run at a time. With `on_error="raise"` an error is raised with a note that names the row, and the
    other rows are cancelled."""
    under_way = _Rows(start, rows, room, on_error)
    try:
        while (answer := under_way.next()) is not None:
            yield answer
    finally:
        under_way.cancel()


def generate(start: Start, rows: Sequence[Row], room: int, on_error: OnError) -> list[Completion | EngineError]:
    """Returns the answers in order. `on_error="return"`: a row's error takes the place of its answer."""
    check_rows(rows, on_error)
    with closing(generate_iter(start, rows, room, on_error)) as answers:
        return Answers(answer for _, answer in sorted(answers, key=_NUMBER))


def several(prompt: Prompts, n: int | None) -> list[Any] | None:
    """Returns raw prompts as rows, each `n` times with the number of its answer; None for one prompt and one answer."""
    listed = isinstance(prompt, list | tuple) and bool(prompt) and isinstance(prompt[0], str | list | tuple)
    if n is None and not listed:
        return None
    return [(each, {"choice": number}) for each in (prompt if listed else [prompt]) for number in range(n or 1)]


def check_rows(rows: Sequence[Row], on_error: object) -> None:
    """Raise RequestError if `rows` is not a list of conversations."""
    if on_error not in ("raise", "return"):
        raise RequestError(f'on_error={shown(on_error)} is not valid: it is "raise" or "return".')
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


def _judged(error: EngineError, number: int, on_error: OnError) -> EngineError:
    """Returns the error of a row, or raise it."""
    error.add_note(f"This was row {number} of those that generate() was given.")
    if on_error == "raise":
        raise error
    return error
