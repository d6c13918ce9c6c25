"""Templates rendered in a child process: what this process holds of them.

Knows: the children, what an order may cost, and what becomes of a child that was late, died or ran out of memory. Does
not know: what the child does with an order (`engine.template.worker`), what a template is. The children are shared by
all templates of this process. A template uses one at a time, so a hostile one delays only itself, and there is rarely
more than one. They start when they are first needed and end with this process; a fork of it starts its own.
"""

import hashlib
import json
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, TypeAlias

from engine.child import Child, ChildGoneError
from engine.errors import TemplateError

TEXT, NAMES, REFUSAL, EXHAUSTED = b"t", b"n", b"r", b"x"
"""The first byte of an answer. TEXT: what was rendered. NAMES: the variables that the template reads, one a line.
REFUSAL: what to tell the caller. EXHAUSTED: the same, and the process ends, as its memory is used up."""
LONGEST_REFUSAL = 2000
"""Characters of what the caller is told."""
SECONDS = 5.0
"""How long one order may take where the caller sets no limit. A render takes milliseconds."""
LEAST_SECONDS = 0.25
"""How long it may take at least. Sound templates are done by then: a short deadline ends no child of theirs."""
WORKER = "engine.template.worker"
_STARTING = 30.0
"""How long a child may take to start: a tenth of a second, some seconds on a busy machine."""
_LENGTH = 100_000
"""Characters that a template may write, whatever its input. Those that are known write up to 7,000 on their own."""
_PER_BYTE = 8
"""Characters that it may write beyond that, for each byte of input."""
_TEMPLATES = 256
"""Templates that a child keeps compiled before another takes its place."""
_REMEDY = (
    "templates that did not come with this package are rendered there. If you trust this model's template, pass "
    "trust_template=True: it is then rendered in this process, with no limits on memory and time"
)


_Answer: TypeAlias = tuple[bytes, str]
"""What kind of answer a child gave, and its text."""


class TemplateStoppedError(TemplateError):
    """A render was cut off, for its time or its memory: others of this template would only cost more."""


class _ExhaustedError(TemplateStoppedError):
    """The child died or ran out of memory. Perhaps another template had left it little."""


class _Renderer:
    """A child, and the templates that it has compiled."""

    def __init__(self) -> None:
        try:
            self.child = Child(WORKER, "The process that renders chat templates", _REMEDY, grace=0.0)
        except ChildGoneError as error:
            raise TemplateError(str(error)) from error
        self.known: set[str] = set()

    def _wait(self) -> None:
        """Until it has started. Raises TemplateError when it does not."""
        try:
            with self.child.within(_STARTING):
                self.child.wait_for_greeting()
        except ChildGoneError as error:
            raise TemplateError(f"{str(error).removesuffix('.')}; {_REMEDY}.") from error

    def exchange(self, order: Mapping[str, Any], body: bytes, kind: bytes, until: float, limit: int) -> _Answer:
        """What the child answers: of this kind, or a refusal. Raises TemplateStoppedError when there is none, or not in
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
            self.child.kill()  # an interrupt; a late answer would be taken for that to the next order
            raise
        if found not in (kind, REFUSAL):
            self.child.kill()
            raise _ExhaustedError(text if found == EXHAUSTED else _ODD)
        return found, text


_ODD = "The process that renders chat templates sent what is no answer; load the model again."
_ADVICE = "Do not trust this model file; pass another template with chat_template=."


def _too_slow(seconds: float) -> TemplateStoppedError:
    return TemplateStoppedError(
        f"The chat template was stopped: it did not finish within {seconds:.3g} seconds. {_ADVICE} Where the request "
        "set a short deadline, give it more time."
    )


_idle: deque[_Renderer] = deque()
"""Children that wait for orders."""
_templates: "weakref.WeakSet[RemoteTemplate]" = weakref.WeakSet()


def _served_before() -> _Renderer | None:
    """A child that waits for orders, if there is one that can do with another template."""
    with suppress(IndexError):
        while True:
            renderer = _idle.pop()
            if renderer.child.alive and len(renderer.known) < _TEMPLATES:
                return renderer
            renderer.child.kill()
    return None


def prepare() -> None:
    """Let a child start meanwhile, if none waits for orders."""
    with suppress(TemplateError):  # who needs one will be told
        if not _idle:
            _idle.append(_Renderer())


def _after_fork() -> None:
    """The threads that may hold these locks are the parent's. So are the children, which are seen not to be ours."""
    for template in list(_templates):
        template.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class RemoteTemplate:
    """A template that a child compiles and renders. `variables` are the names that it reads without setting them.

    Raises TemplateError for what is no template, and where no child can be started.
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
        """The text for these variables, which must be plain JSON values. `escapes` and `now`: see
        `sandbox.Surroundings`. `until`: when it is cut off, on `time.monotonic`'s clock. Raises TemplateError with the
        complaint."""
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
        """What a child answers; one that has served before may be worn out by another template."""
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
    """As JSON, in which half a character stays one."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _written(moment: datetime) -> tuple[str, float | None, str | None]:
    """A time as an order holds it: the clock, the seconds from UTC and the zone's name."""
    offset = moment.utcoffset()
    seconds = None if offset is None else offset.total_seconds()
    return moment.replace(tzinfo=None).isoformat(), seconds, moment.tzname()
