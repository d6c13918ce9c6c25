"""Templates rendered in a child process: the parent's side.

All templates of this process share the children. A template uses one at a time, so a hostile one delays only itself,
and there is rarely more than one. They start on first use and end with this process; a fork of it starts its own.
"""

import hashlib
import json
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, TypeAlias

from engine.support import threads
from engine.support.child import Child, ChildGoneError
from engine.support.errors import TemplateError

TEXT, NAMES, REFUSAL, EXHAUSTED = b"t", b"n", b"r", b"x"
"""The first byte of an answer. TEXT: the rendered text. NAMES: the variables that the template reads, one per line.
REFUSAL: an error message for the caller. EXHAUSTED: the same, and the process ends because it ran out of memory."""
LONGEST_REFUSAL = 2000
"""The longest error message, in characters."""
SECONDS = 5.0
"""The default time limit of one order, in seconds. A render takes milliseconds."""
LEAST_SECONDS = 0.25
"""The least time limit of one order, in seconds. Sound templates finish within it, so a short deadline does not kill
their child."""
WORKER = "engine.formats.template.worker"
_STARTING = 30.0
"""The time limit, in seconds, for starting a child, which takes a tenth of a second, or some seconds on a busy
machine."""
_LENGTH = 100_000
"""The characters that a template may write regardless of its input. Known templates write up to 7,000 of their own."""
_PER_BYTE = 8
"""The further characters that it may write for each byte of input."""
_TEMPLATES = 256
"""The most templates that a child compiles before it is replaced."""
_REMEDY = (
    "templates that did not come with this package are rendered there. If you trust this model's template, pass "
    "trust_template=True: it is then rendered in this process, with no limits on memory and time"
)


_Answer: TypeAlias = tuple[bytes, str]
"""The kind of a child's answer, and its text."""


class TemplateStoppedError(TemplateError):
    """A render was stopped because of its time or memory; further renders of this template would only cost more."""


class _ExhaustedError(TemplateStoppedError):
    """The child died or ran out of memory, perhaps because of another template before."""


class _Renderer:
    """A child, and the templates that it has compiled."""

    def __init__(self) -> None:
        try:
            self.child = Child(WORKER, "The process that renders chat templates", _REMEDY, grace=0.0)
        except ChildGoneError as error:
            raise TemplateError(str(error)) from error
        self.known: set[str] = set()

    def _wait(self) -> None:
        """Wait until the child has started. Raises TemplateError if it does not."""
        try:
            with self.child.within(_STARTING):
                self.child.wait_for_greeting()
        except ChildGoneError as error:
            raise TemplateError(f"{str(error).removesuffix('.')}; {_REMEDY}.") from error

    def exchange(self, order: Mapping[str, Any], body: bytes, kind: bytes, until: float, limit: int) -> _Answer:
        """Returns the child's answer, of this kind or a refusal. Raises TemplateStoppedError if none arrives in
        time."""
        if not self.child.greeted:
            self._wait()
        seconds = max(until - time.monotonic(), LEAST_SECONDS)
        try:
            with self.child.within(seconds):
                self.child.send(_json({**order, "seconds": seconds}) + b"\n" + body)
                answer = self.child.receive(max(limit, 4 * LONGEST_REFUSAL) + 1)
            found, text = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
        except (ChildGoneError, UnicodeDecodeError) as error:
            self.child.kill()
            if self.child.late:
                raise _too_slow(seconds) from error
            raise _ExhaustedError(f"The chat template was stopped: {error} {_ADVICE}") from error
        except BaseException:
            self.child.kill()  # an interrupt; a late answer would be read as the answer to the next order
            raise
        if found not in (kind, REFUSAL):
            self.child.kill()
            raise _ExhaustedError(text if found == EXHAUSTED else _ODD)
        return found, text


_ODD = "The process that renders chat templates sent an invalid answer; load the model again."
_ADVICE = "Do not trust this model file; pass another template with chat_template=."


def _too_slow(seconds: float) -> TemplateStoppedError:
    return TemplateStoppedError(
        f"The chat template was stopped: it did not finish within {seconds:.3g} seconds. {_ADVICE} Where the request "
        "set a short deadline, give it more time."
    )


_idle: deque[_Renderer] = deque()
"""Idle children."""
_templates: "weakref.WeakSet[RemoteTemplate]" = weakref.WeakSet()


def _served_before() -> _Renderer | None:
    """Returns an idle child that may compile another template, if there is one."""
    with suppress(IndexError):
        while True:
            renderer = _idle.pop()
            if renderer.child.alive and len(renderer.known) < _TEMPLATES:
                return renderer
            renderer.child.kill()
    return None


def prepare() -> None:
    """Start a child in the background if none is idle."""
    with suppress(TemplateError):  # the first render that needs one raises the error
        if not _idle:
            _idle.append(_Renderer())


@threads.after_fork
def _after_fork() -> None:
    """Replace the locks, which threads of the parent may hold. (`Child` itself recognises children of the parent.)"""
    for template in list(_templates):
        template.lock = threading.Lock()


class RemoteTemplate:
    """A template that a child compiles and renders. `variables` are the names that it reads without setting them.

    Raises TemplateError for an invalid template, and if no child can be started.
    """

    def __init__(self, source: str) -> None:
        self._source = _json(source)
        self._key = hashlib.sha256(self._source).hexdigest()
        self.lock = threading.Lock()
        _templates.add(self)
        until = time.monotonic() + SECONDS
        self.variables = frozenset(self._ask(lambda renderer: self._compile(renderer, until), until).splitlines())

    def render(
        self, values: Mapping[str, Any], escapes: Mapping[str, str], now: datetime, until: float | None = None
    ) -> str:
        """Render with these variables, which must be plain JSON values. `escapes` and `now`: see
        `sandbox.Compiled`. `until`: when to stop it, on `time.monotonic`'s clock. Raises TemplateError with what
        the template complains about."""
        end = time.monotonic() + SECONDS if until is None else until
        body = _json({"values": values, "escapes": escapes, "now": _written(now)})
        length = _LENGTH + _PER_BYTE * len(body)

        def exchange(renderer: _Renderer) -> _Answer:
            if self._key not in renderer.known and (refused := self._compile(renderer, end))[0] != NAMES:
                return refused
            return renderer.exchange({"key": self._key, "length": length}, body, TEXT, end, 4 * length)

        return self._ask(exchange, end)

    def _compile(self, renderer: _Renderer, until: float) -> _Answer:
        answer = renderer.exchange({"key": self._key, "length": 0}, self._source, NAMES, until, len(self._source))
        if answer[0] == NAMES:
            renderer.known.add(self._key)
        return answer

    def _ask(self, exchange: Callable[[_Renderer], _Answer], until: float) -> str:
        """Returns a child's answer. If an idle child is exhausted, perhaps by another template, try again with a new
        one."""
        answer = None
        with self._alone(until):
            renderer = _served_before()
            if renderer is not None:
                with suppress(_ExhaustedError):
                    answer = exchange(renderer)
            if renderer is None or answer is None:
                renderer = _Renderer()
                answer = exchange(renderer)
            _idle.append(renderer)
        if answer[0] == REFUSAL:
            raise TemplateError(answer[1])
        return answer[1]

    @contextmanager
    def _alone(self, until: float) -> Generator[None]:
        lock, seconds = self.lock, max(until - time.monotonic(), LEAST_SECONDS)
        if not lock.acquire(timeout=seconds):
            raise _too_slow(seconds)
        try:
            yield
        finally:
            lock.release()


def _json(value: object) -> bytes:
    """Encode as JSON in UTF-8, with lone surrogates kept."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _written(moment: datetime) -> tuple[str, float | None, str | None]:
    """Returns a time as an order holds it: the local time, the seconds from UTC and the zone's name."""
    offset = moment.utcoffset()
    seconds = None if offset is None else offset.total_seconds()
    return moment.replace(tzinfo=None).isoformat(), seconds, moment.tzname()
