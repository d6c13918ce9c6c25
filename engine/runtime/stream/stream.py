"""One turn as its reader sees it: a stream of events, for threads and for asyncio."""

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Self

from pydantic_core import from_json

from engine.runtime.loop.logprobs import TokenLogprobs, described
from engine.runtime.loop.replies import contained
from engine.runtime.loop.request import Reply, TurnRequest
from engine.support.display import counted, short
from engine.support.errors import RequestError
from engine.support.nothing import nothing
from engine.support.offloop import keep_awake
from engine.support.warning import warn
from engine.types.answer_formats import Answer_co
from engine.types.completion import Completion
from engine.types.events import Event, fold
from engine.types.sampling import Logprobs, Progress, TokenLogprob
from engine.types.streams import TwoWayStream

if TYPE_CHECKING:  # only readers in an event loop need it
    import asyncio


@dataclass(slots=True, eq=False)
class OutputQueue:
    """Where the engine's thread leaves replies for one stream, and the future of a coroutine that waits for them.

    `replies` are all that came, None for those that a stream has taken; `bell` gets something for each, after it.
    `over` is set when the final reply is there: a reader of the complete turn is woken once. `waits_for_end`: the
    future too waits only for the final reply. `turn` is the caller's (None: nothing is generated), and
    `tokens` are its prompt's. `received` collects its events for `turn.ended`; `fault` is the exception that
    `progress` raised; `cancel` ends the request.
    """

    turn: TurnRequest | None = None
    tokens: tuple[int, ...] = ()
    progress: Progress | None = None
    received: list[Event] = field(default_factory=list[Event])
    prefilled: int = 0
    stopped: bool = False  # by `progress`
    cancel: Callable[[], None] = nothing
    fault: Exception | None = None
    replies: list[Reply | None] = field(default_factory=list[Reply | None])
    bell: SimpleQueue[None] = field(default_factory=SimpleQueue[None])
    over: threading.Event = field(default_factory=threading.Event)
    future: "asyncio.Future[None] | None" = None
    waits_for_end: bool = False
    arrived: Callable[[], None] | None = None

    def note(self, reply: Reply) -> None:
        """Collect the reply's events, and tell the caller how far the prefill is, if the request asks for these."""
        if self.turn is not None and self.turn.ended is not None:
            self.received += reply.events
        if self.progress is None or reply.prefilled <= self.prefilled or self.stopped:
            return
        self.prefilled = reply.prefilled
        try:
            self.stopped = self.progress(reply.prefilled, len(self.tokens)) is False
        except BaseException as error:  # noqa: BLE001 - the caller's code; the turn's reader gets its error
            self.fault, self.stopped = contained(error), True
        if self.stopped:
            self.cancel()


_CLOSED = ("{", "[", '"')
"""What a JSON answer begins with that has an end: cut anywhere, it could not be read."""
_MOST_NAMED = 20
_AT_LIMIT = "The answer is incomplete: its tokens were used up, and what was open was closed. Raise max_tokens."


class Stream(TwoWayStream[Completion[Answer_co]], Generic[Answer_co]):
    """One turn as it is generated; has one reader at a time, in any thread or event loop.

    - `for event in stream` and `async for event in stream` yield its events, `Finished` last; leaving the loop early
      cancels.
    - `stream.result()` and `await stream` return its completion.
    - `with stream` and `async with stream` cancel a turn that still runs at the end of the block.

    A stream that is garbage-collected is cancelled. Reading raises the error that ended the turn, if there was one;
    `completion` holds what came before it.
    """

    _final = True  # until it is made whole: there is nothing to cancel
    _cancelled = False

    def __init__(
        self,
        queue: OutputQueue,
        cancel: Callable[[], None],
        end_reasoning: Callable[[], None],
        check: Callable[[], None] = nothing,
    ) -> None:
        """`check` is called before the stream waits; it raises if no reply can come."""
        self._queue = queue
        self._cancel = cancel
        self._end_reasoning = end_reasoning
        self._check = check
        self._reads = queue.turn.reads if queue.turn is not None else None
        self._events: list[Event] = [] if queue.turn is None else list(queue.turn.before)
        self._logprobs: list[TokenLogprobs] = []
        self._taken = (0, len(self._events), 0)  # replies, and the events and log-probabilities that were in these
        self._read = 0  # events
        self._error: Exception | None = None
        self._completion: Completion[Answer_co] | None = None
        self._final = False
        self.claim: object = None
        """What keeps the turn's tokens in the cache while it is referenced, if the turn claims them."""

    def __iter__(self) -> Iterator[Event]:
        return self._reader()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._reader()

    def _reader(self) -> "_Reader":
        if self._read and self.over:
            warn("This stream was read to its end already, so no event comes; `.completion` is what it came to.")
        return _Reader(self)

    def __repr__(self) -> str:
        if not self._final:
            return f"<Stream: not over, {counted(len(self._events), 'event')} read>"
        if self._error is not None:
            return f"<Stream: ended by {short(repr(self._error))}>"
        return f"<Stream: {self.completion.finish_reason}, content={short(self.completion.content)!r}>"

    def __del__(self) -> None:
        self.cancel()

    def cancel(self) -> None:
        """End the turn at the next chunk boundary, with reason "cancelled". May be called from any thread, any number
        of times."""
        if not self._final and not self._cancelled:
            self._cancelled = True
            self._cancel()

    def end_reasoning(self) -> None:
        """Close the turn's reasoning now, if the request has a `reasoning_close`; the answer follows."""
        self._end_reasoning()

    def result(self, timeout: float | None = None) -> Completion[Answer_co]:
        """Wait for the end and return the completion.

        Raises TimeoutError after `timeout` seconds (the turn goes on), and the error that ended the turn.
        """
        if not self._final:
            self._check()
            try:
                self._queue.over.wait(timeout)
            except BaseException:
                self.cancel()
                raise
            self._take_all()
        if not self._final:
            raise TimeoutError(f"the turn was not over after {timeout} s; call cancel() to end it")
        return self._whole()

    @property
    def completion(self) -> Completion[Answer_co]:
        """The completion, once the turn is over (after an error too). Raises RequestError while it runs."""
        self._take_all()
        if not self._final:
            raise RequestError("The stream is still running; read it to its end, or call result() to wait for it.")
        if self._completion is None:
            whole = fold(self._events)
            found: dict[str, Any] = {"logprobs": self.logprobs} if self._logprobs else {}
            found |= self._answer(whole) if self._reads is not None else {}
            self._completion = whole.model_copy(update=found) if found else whole
        return self._completion

    @property
    def restored(self) -> tuple[int, ...]:
        """The indices of the messages that came without their reasoning and had it restored from memory."""
        return self._queue.turn.prompt.restored if self._queue.turn is not None else ()

    @property
    def partial(self) -> Any:
        """The values so far of an answer that is JSON (`response_format`); None if there is nothing yet. Parses the
        text again on each access, so do not read it for every event."""
        self._take_all()
        text = fold(self._events).content
        try:
            return from_json(text.strip(), allow_partial="trailing-strings")
        except ValueError:
            return None

    def _answer(self, whole: Completion) -> dict[str, Any]:
        """Returns the answer's value, or why there is none."""
        assert self._reads is not None, "called only if answers are read"
        if whole.tool_calls:
            return {"parse_error": "The model called tools instead of giving an answer."}
        if whole.finish_reason == "length" and whole.content.lstrip().startswith(_CLOSED):
            with contextlib.suppress(ValueError):
                made_up = f" Not the model's: {', '.join(whole.made_up[:_MOST_NAMED])}." if whole.made_up else ""
                return {"parsed": self._reads(whole.content), "parse_error": _AT_LIMIT + made_up}
        if whole.finish_reason not in ("stop", "tool_calls"):
            return {"parse_error": f"The answer is incomplete: the turn ended with {whole.finish_reason!r}."}
        try:
            return {"parsed": self._reads(whole.content)}
        except ValueError as error:
            return {"parse_error": str(error)}

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """The log-probabilities of the tokens that were read so far, the end token's included, if
        `SamplingParams.logprobs` asked for them. Those that the engine forced have theirs, too."""
        return Logprobs(map(described, self._logprobs))

    def logprobs_from(self, start: int) -> tuple[TokenLogprob, ...]:
        """Returns `logprobs` from this index on, for readers that take them as they come."""
        return tuple(map(described, self._logprobs[start:]))

    def listen(self, arrived: Callable[[], None], *, of_end: bool = False) -> None:
        """Call `arrived` whenever `take` may return something (`of_end`: once the turn is over, maybe twice): now, then
        in the engine's thread, where it must be quick and raise nothing. For a reader of several streams at once."""
        if not self._queue.over.is_set():
            self._check()
        self._queue.waits_for_end = of_end
        self._queue.arrived = arrived
        if not of_end or self._queue.over.is_set():
            arrived()

    def take(self) -> list[Event] | None:
        """Returns the events that the engine sent together and that nobody has read, without waiting; None if there are
        none. Raises the error that ended the turn once all events are taken."""
        if not self._unread:
            if self._error is not None:
                raise self._error
            if not self._final:
                self._check()
            if not self._take():
                return None
        events = self._events[self._read :]
        self._read = len(self._events)
        return events

    @property
    def ended(self) -> bool:
        """Whether the turn is over, whatever was read of it."""
        return self._queue.over.is_set()

    @property
    def over(self) -> bool:
        """Whether all events were read, and no error is left to raise."""
        return self._final and not self._unread and self._error is None

    def _whole(self) -> Completion[Answer_co]:
        if self._error is not None:
            raise self._error
        return self.completion

    @property
    def _unread(self) -> bool:
        return self._read < len(self._events)

    def _take(self) -> bool:
        """Take the next reply; returns whether one was there. An interrupt at any line loses nothing: what was not
        taken whole is taken again."""
        replies, (count, events, logprobs) = self._queue.replies, self._taken
        if count == len(replies) or (reply := replies[count]) is None:
            return False
        del self._events[events:], self._logprobs[logprobs:]
        self._events += reply.events
        self._logprobs += reply.logprobs
        if reply.final:
            self._final, self._error = True, reply.error or self._queue.fault
        self._taken = (count + 1, len(self._events), len(self._logprobs))
        replies[count] = None
        return True

    def _take_all(self) -> None:
        """Take the replies that are there already."""
        while self._take():
            pass

    def _next(self) -> Event:
        while not self._unread:
            if self._final:
                if self._error is not None:
                    raise self._error
                raise StopIteration
            self._check()
            if not self._take():
                self._queue.bell.get()
        self._read += 1
        return self._events[self._read - 1]

    async def _anext(self) -> Event:
        while not self._unread:
            if self._final:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._arrival()
        self._read += 1
        return self._events[self._read - 1]

    async def _finish(self) -> Completion[Answer_co]:
        try:
            while not self._final:
                await self._arrival(of_end=True)
        except BaseException:
            self.cancel()
            raise
        return self._whole()

    async def _arrival(self, *, of_end: bool = False) -> None:
        """Wait for a reply (`of_end`: for the final one) and take it; other tasks run meanwhile, even if it is there
        already.

        The future is set before the queue is checked, and the engine's thread checks for a future after it has put a
        reply: so one of the two always sees the other.
        """
        import asyncio

        self._check()
        queue = self._queue
        queue.waits_for_end = of_end
        queue.future = asyncio.get_running_loop().create_future()
        try:
            if queue.over.is_set() if of_end else len(queue.replies) > self._taken[0]:
                await asyncio.sleep(0)
            else:
                keep_awake(queue.future)
                await queue.future
        finally:
            queue.future = None
        self._take_all()


class _Reader:
    """One loop over a stream. Cancels the stream when the loop is left and this iterator is collected.

    An exception that arrives while the loop waits (a cancelled task, an interrupt) keeps this iterator alive in its
    traceback, so in that case it cancels at once.
    """

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return self._stream._next()  # pyright: ignore[reportPrivateUsage]
        except BaseException:
            self._stream.cancel()
            raise

    async def __anext__(self) -> Event:
        try:
            return await self._stream._anext()  # pyright: ignore[reportPrivateUsage]
        except BaseException:
            self._stream.cancel()
            raise

    def __del__(self) -> None:
        if hasattr(self, "_stream"):  # it was made whole
            self._stream.cancel()
