"""The replies on their way to the readers: one for each request that has something to say, whenever they are fetched.

Knows: what is gathered into a reply, and that nothing follows a final one. Does not know: why requests end, threads,
who reads.
"""

from collections.abc import Sequence
from dataclasses import replace

from engine.events import Event, Finished
from engine.runtime.live import Live
from engine.runtime.requests import Reply
from engine.runtime.state_file import SavedState


class Outbox:
    """What was said since the last `drain`."""

    def __init__(self) -> None:
        self._touched: dict[Live, None] = {}
        self._replies: list[Reply] = []

    def emit(self, live: Live, events: Sequence[Event]) -> None:
        """These happened."""
        if events:
            live.outbox += events
            self._touched[live] = None

    def prefilled(self, live: Live) -> None:
        """More of its prompt is evaluated, if it is to tell of that."""
        if live.request.reports:
            live.prefilled = live.job.evaluated
            self._touched[live] = None

    def refuse(self, id_: int, error: Exception) -> None:
        """A request ends with an error before it started."""
        self._replies.append(Reply(id_, (Finished("error"),), final=True, error=error))

    def hand_over(self, id_: int, saved: SavedState) -> None:
        """What was asked for under this number."""
        self._replies.append(Reply(id_, (Finished("stop"),), final=True, saved=saved))

    def end(self, live: Live, closing: Sequence[Event], error: Exception | None, now: float) -> None:
        """The request is over; the last of the closing events is its `Finished`."""
        self._touched.pop(live, None)
        *closing, last = closing
        assert isinstance(last, Finished), "a parser's last event is Finished"
        events, logprobs = live.take()
        events = (*events, *closing, replace(last, usage=live.usage(now)))
        self._replies.append(
            Reply(live.request.id, events, True, error, live.output, logprobs=logprobs, prefilled=live.prefilled)
        )

    def abandon(self, live: Live, error: Exception) -> None:
        """The request ends with this error, and nothing that it holds is looked at."""
        self._touched.pop(live, None)
        self._replies.append(Reply(live.request.id, (*live.outbox, Finished("error")), final=True, error=error))

    def drain(self) -> list[Reply]:
        """The replies since the last drain, one for each request that has any."""
        replies, self._replies = self._replies, []
        for live in self._touched:
            events, logprobs = live.take()
            replies.append(Reply(live.request.id, events, logprobs=logprobs, prefilled=live.prefilled))
        self._touched.clear()
        return replies
