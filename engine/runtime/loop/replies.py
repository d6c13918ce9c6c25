"""What happened to the requests of a loop since its last replies."""

from collections.abc import Sequence
from dataclasses import replace

from engine.runtime.loop.request import Reply
from engine.runtime.loop.sequence import SequenceState
from engine.runtime.stream.embed_queue import Vectors
from engine.support.errors import EngineError, RequestError
from engine.types.events import Event, Finished


class Replies:
    """Collects what happened to the requests since the last `drain`."""

    def __init__(self) -> None:
        self._touched: dict[SequenceState, None] = {}
        self._replies: list[Reply] = []
        self._told: tuple[int, int] = (0, 0)
        self.threads: tuple[int, int] = (0, 0)
        """The threads that decode now, for a token and for a batch; told when they change."""

    def emit(self, state: SequenceState, events: Sequence[Event]) -> None:
        """Add events to the request's next reply, which waits for the log-probabilities of their tokens, if they were
        asked for."""
        if events and state.unsaid is not None and state.unsaid < len(state.tokens):
            state.later += events
        elif events:
            state.events += events
            self._touched[state] = None

    def said(self, state: SequenceState) -> None:
        """Reply with the events that waited for log-probabilities, which are there now."""
        state.events += state.later
        state.later.clear()
        self._touched[state] = None

    def prefilled(self, state: SequenceState) -> None:
        """Report the progress of the prefill in the next reply, if the request asked for that."""
        if state.request.reports:
            state.prefilled = state.evaluated
            self.touch(state)

    def touch(self, state: SequenceState) -> None:
        """Reply with what the request has so far."""
        self._touched[state] = None

    def refuse(self, id_: int, error: Exception) -> None:
        """End a request with an error before it starts."""
        self._replies.append(Reply(id_, (Finished("error"),), final=True, error=error))

    def give(self, id_: int, vectors: Vectors) -> None:
        """Reply with the vectors that `Embed` asked for under this id."""
        self._replies.append(Reply(id_, (Finished("stop"),), final=True, vectors=vectors))

    def done(self, id_: int) -> None:
        """Reply that what was asked for under this id is done."""
        self._replies.append(Reply(id_, (Finished("stop"),), final=True))

    def end(
        self,
        state: SequenceState,
        closing: Sequence[Event],
        error: Exception | None,
        now: float,
        checkpoints: tuple[int, int],
    ) -> None:
        """End the request; the last of the closing events is its `Finished`."""
        self.said(state)
        del self._touched[state]
        *closing, last = closing
        assert isinstance(last, Finished), "a parser's last event is Finished"
        events, logprobs = state.take()
        usage, most = state.usage(now), state.request.sampling.max_tokens
        if last.reason == "length":
            cut = "max_tokens" if most is not None and usage.completion_tokens >= most else "context"
            usage = usage.model_copy(update={"limit": "repetition" if state.generation.ran_away else cut})
        if last.usage is not None:  # what only the parser knows
            usage = usage.model_copy(update={"dropped_calls": usage.dropped_calls + last.usage.dropped_calls})
        events = (*events, *closing, replace(last, usage=usage))
        self._replies.append(
            Reply(
                state.request.id,
                events,
                True,
                error,
                state.output,
                logprobs=logprobs,
                prefilled=state.prefilled,
                checkpoints=checkpoints,
            )
        )

    def abandon(self, state: SequenceState, error: Exception) -> None:
        """End the request with this error, without calling any of its code."""
        self._touched.pop(state, None)
        self._replies.append(
            Reply(state.request.id, (*state.events, *state.later, Finished("error")), final=True, error=error)
        )

    def drain(self) -> list[Reply]:
        """Returns the replies since the last drain, at most one for each request."""
        replies, self._replies = self._replies, []
        for state in self._touched:
            events, logprobs = state.take()
            replies.append(Reply(state.request.id, events, logprobs=logprobs, prefilled=state.prefilled))
        self._touched.clear()
        if replies and self.threads != self._told:
            self._told = self.threads
            replies[0] = replies[0]._replace(threads=self.threads)
        return replies


def contained(error: BaseException) -> Exception:
    """Returns the error that a request ends with: `error` itself, or one of ours if it would end a thread or a process,
    or says too little."""
    if isinstance(error, MemoryError):
        failure: EngineError = EngineError(
            f"There was no memory for this request ({error!r}), which ended; others go on. Free some and ask again; if "
            "that does not help, load with a smaller n_ctx or n_batch."
        )
    elif isinstance(error, Exception):
        return error
    else:
        failure = RequestError(
            f"Code of this request raised {error!r} in the engine's thread, which ends only this request; raise an "
            "Exception there, or call cancel()."
        )
    failure.__cause__ = error
    return failure
