"""Reads the probabilities of given tokens after many prompts: as many at once as there are sequences, within a time."""

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic

from engine.runtime.media.media import TokensAndMedia
from engine.runtime.stream.service import Service
from engine.runtime.stream.stream import Stream
from engine.support.deadlines import latest
from engine.support.errors import ContextOverflowError, EngineError, QueueFullError
from engine.types.completion import Usage
from engine.types.sampling import TokenLogprob
from engine.types.turn_settings import TurnSettings


class Reads:
    """The readings of one call. `by`: when it must be over, on `time.monotonic`'s clock."""

    def __init__(self, settings: TurnSettings, by: float | None) -> None:
        self._settings = settings
        times = [each for each in (latest(), by) if each is not None]
        self._until = min(times) if times else None
        self._running: deque[Stream] = deque()
        self.whose = f"{settings.adapters!r} {settings.cache_salt!r}"
        """What else than the prompt its probabilities hang on."""

    def start(
        self,
        service: Service,
        prompt: TokensAndMedia,
        path: tuple[int, ...],
        asked: tuple[int, ...],
        shared: int = 0,
        *,
        top: int | None = None,
    ) -> Stream:
        """Start to read the probabilities of the tokens `asked` behind a prompt and a path; with `top`, of so many of
        the likeliest tokens instead. `shared`: how many tokens this prompt shares with the next ones. Waits while too
        many are read. Raises what `Service.score` raises."""
        tokens, media = prompt
        while len(self._running) >= service.room:
            self._wait_for_room()
        while True:
            try:
                stream = service.score(
                    (*tokens, *path), asked[:1], self._settings, media, top or 1, asked if top is None else (),
                    turns=(shared,) if 0 < shared < len(tokens) else (),
                )  # fmt: skip
            except QueueFullError:
                if not self._running:
                    raise
                self._wait_for_room()
            else:
                self._running.append(stream)
                return stream

    def _wait_for_room(self) -> None:
        """Wait for the oldest. That it has outgrown the context is told to who asks for its chances."""
        with suppress(ContextOverflowError):
            self._wait(self._running.popleft())

    def chances(self, stream: Stream) -> tuple[Mapping[int, float], Usage]:
        """Wait for what was read: the log-probability of each token, and the usage. Raises TimeoutError when the time
        is over, and the error that ended the reading."""
        top = self.top(stream)
        return {each.token: each.logprob for each in top}, stream.result().usage or Usage()

    def top(self, stream: Stream) -> tuple[TokenLogprob, ...]:
        """Wait for the likeliest tokens of a place. Raises what `chances` raises."""
        self._wait(stream)
        return stream.logprobs[0].top

    def cancel(self) -> None:
        """Stop what is still being read."""
        for stream in self._running:
            stream.cancel()

    def _wait(self, stream: Stream) -> None:
        left = None if self._until is None else max(0.0, self._until - monotonic())
        try:
            ended = stream.result(left).finish_reason
        except TimeoutError as error:
            message = "The decision was not read before its deadline; give it more time, or ask less."
            raise TimeoutError(message) from error
        if ended != "stop":
            raise EngineError("The decision was cancelled, or the engine was closed; if it was, load the model again.")
