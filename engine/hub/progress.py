"""Shows a download: bytes, speed and the remaining time.

Sizes are bytes, times seconds.
"""

import time
from collections import deque
from collections.abc import Callable

from engine.hub.variants import size_text
from engine.support.screens import Screen, duration_text

_WINDOW = 10.0  # seconds over which the speed is measured, so that it follows the network


class Progress:
    """The progress of one download after another. Without a screen nothing is shown."""

    def __init__(self, screen: Screen | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._clock = clock
        self._name = ""
        self._total = self._done = self._began_with = 0
        self._began = self._shown = 0.0
        self._samples: deque[tuple[float, int]] = deque()

    def say(self, text: str) -> None:
        """Show a line that stays."""
        if self._screen:
            self._screen.line(text)

    def begin(self, name: str, total: int, done: int = 0) -> None:
        """Begin a download of `total` bytes, `done` of which are in the cache already."""
        self._name, self._total, self._done, self._began_with = name, total, done, done
        self._began = self._clock()
        self._samples.clear()
        self._show(self._began)

    def at(self, done: int) -> None:
        """Update the number of bytes received."""
        self._done = done
        now = self._clock()
        if self._screen and now - self._shown >= self._screen.every:
            self._show(now)

    def end(self) -> None:
        """Show that the download is complete."""
        seconds = max(self._clock() - self._began, 1e-3)
        came = self._done - self._began_with
        self.say(
            f"{self._name}  {size_text(self._total)} in {duration_text(seconds)}, {size_text(int(came / seconds))}/s"
        )

    def stopped(self) -> None:
        """Show that the download stopped early; its bytes are kept."""
        self.say(
            f"{self._name}  stopped at {size_text(self._done)} of {size_text(self._total)}; the next attempt goes on "
            "from there"
        )

    def _show(self, now: float) -> None:
        if self._screen is None:
            return
        self._shown = now
        self._samples.append((now, self._done))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        self._screen.state(self._text())

    def _text(self) -> str:
        share = 100 * self._done // self._total if self._total else 100
        text = f"{self._name}  {size_text(self._done)} of {size_text(self._total)} ({share} %)"
        (since, had), (now, has) = self._samples[0], self._samples[-1]
        if now <= since or has <= had:
            return text
        speed = (has - had) / (now - since)
        return f"{text}, {size_text(int(speed))}/s, {duration_text((self._total - self._done) / speed)} left"
