"""What the pictures and sounds of one request may take together, decoded one after the other."""

import time

from engine.support.deadlines import finished_by, latest
from engine.support.errors import RequestError
from engine.support.offloop import is_unwanted

MOST_PIXELS = 64_000_000
"""The most pixels of a picture."""
MOST_SECONDS = 30 * 60
MOST_SAMPLES = MOST_SECONDS * 48_000
"""The most samples of a sound, one channel: of higher rates, fewer seconds fit."""
_MOST = {"parts": 256, "bytes": 128 << 20, "pixels": 2 * MOST_PIXELS, "samples": MOST_SAMPLES}
_SECONDS = 10.0
"""Of decoding, in all. 128 million pixels take two to four."""
_NAMES = {"pixels": "the images", "samples": "the sounds"}


class MediaBudget:
    """What is left of it for the pictures and sounds of one request: so many `parts`, `bytes` of files, `pixels` and
    `samples`, and so many seconds of decoding. Only what came over the wire counts, when it is decoded: a program has
    paid for its own pictures.

    until: the request's deadline on `time.monotonic`'s clock; None for none. What the caller waits at most, such as the
    `timeout` of a client, holds too.
    """

    def __init__(self, until: float | None = None) -> None:
        self._left = dict(_MOST)
        with finished_by(until):
            self._until = latest()
        self._seconds = _SECONDS

    def left(self, what: str) -> int:
        return self._left[what]

    def take(self, what: str, count: int = 1) -> None:
        """Count "parts", "bytes", "pixels" or "samples". Raises RequestError if fewer are left."""
        if count > self._left[what]:
            raise too_many(what)
        self._left[what] -= count

    def hold(self, what: str, count: int) -> None:
        """Count what is held already, even if it is more than was left."""
        self._left[what] = max(0, self._left[what] - count)

    @property
    def seconds(self) -> float:
        """The seconds of decoding that are left."""
        until = self._until
        return self._seconds if until is None else min(self._seconds, until - time.monotonic())

    def spend(self, seconds: float) -> None:
        """Count seconds of decoding."""
        self._seconds -= seconds

    def check(self) -> None:
        """Raise RequestError if nobody waits any more, or the time is over."""
        if is_unwanted():
            raise RequestError("the request was cancelled while its images and sounds were decoded.")
        if self.seconds <= 0:
            raise self.late()

    def late(self) -> RequestError:
        own = self._until is not None and self._until - time.monotonic() < self._seconds
        limit = "the request's deadline" if own else f"{_SECONDS:.0f} seconds"
        return RequestError(
            f"the images and sounds took longer to decode than {limit}; send smaller ones, or save them anew."
        )


def too_many(what: str) -> RequestError:
    """Returns the error for a request whose pictures and sounds have too many "parts", "bytes", "pixels" or "samples"
    together."""
    return RequestError(
        f"{_NAMES.get(what, 'the images and sounds')} of this request have more than {_MOST[what]:,} {what} together; "
        "send fewer, or smaller ones."
    )
