"""Every error the engine raises on purpose.

Each message says what is wrong (with the numbers) and what to do next. Bad *model output* never raises; it arrives as
data on the events (see `engine.types.events.ToolCallEnd`).
"""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from traceback import extract_tb
from typing import ClassVar, Literal, NoReturn, TypeAlias

DecodeFailure: TypeAlias = Literal["no_slot", "aborted", "invalid", "nan", "failed"]


class _Short(Repr):
    """Shows any value; Python refuses to show an integer of more than 4,300 digits."""

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"<an integer of {x.bit_length():,} bits>"


_short = _Short()
_short.maxstring = _short.maxother = 80
_MOST, _HEAD, _TAIL = 4000, 2000, 1000
_LONGEST_NAME = 100


def bounded(message: str) -> str:
    """Returns a message of at most 4,000 characters: of a longer one the beginning and the end, where the way out is.
    A caller's path, or the text of a library's error, may be as long as a file."""
    if len(message) <= _MOST:
        return message
    return f"{message[:_HEAD]} … ({len(message) - _HEAD - _TAIL:,} characters) … {message[-_TAIL:]}"


def shown(value: object) -> str:
    """Returns a short `repr` of any value, for a message."""
    return _short.repr(value)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Returns the end of a message about an unknown name, a question or a sentence: the nearest known name, those that
    begin with it, or else another hint."""
    names = sorted(set(known))
    near: list[str] = []
    if len(name) <= _LONGEST_NAME:  # the comparison takes the product of both lengths
        near = get_close_matches(name, names, n=1, cutoff=0.66) or [
            each for each in names if name and each.startswith(name)
        ]
    return f"did you mean {' or '.join(map(repr, near[:4]))}?" if near else otherwise


class EngineError(Exception):
    """Base of every error raised on purpose by this package."""

    def __init__(self, message: object = "") -> None:
        super().__init__(bounded(str(message)))

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython shows instead of a traceback: the caller's own lines that led here, and the message."""
        ours = str(Path(__file__).parent.parent)
        frames = [
            frame
            for frame in extract_tb(self.__traceback__)
            if frame.line and not frame.filename.startswith(ours) and "site-packages" not in frame.filename
        ]
        lines = [f"line {frame.lineno}: {frame.line}" for frame in frames]
        return [_printable(line) for line in (*lines, f"{type(self).__name__}: {self}")]


class NotCopied:
    """The base of objects that belong to this process: copying or pickling one raises TypeError, as it does for locks
    and files."""

    _instead: ClassVar[str]
    """What they hold, and what to do instead, as sentences."""

    def __reduce_ex__(self, protocol: object, /) -> NoReturn:
        raise TypeError(f"{type(self).__name__} objects cannot be copied or pickled. {self._instead}")


def _printable(text: str) -> str:
    """Returns the text with characters that act instead of being visible, such as terminal control codes, escaped."""
    return "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text)


class ModelLoadError(EngineError):
    """A model file is missing, damaged, not a chat model, or cannot be run on this machine."""


class ContextOverflowError(EngineError):
    """A prompt does not fit into the context, or a requested context does not fit into memory."""


class TemplateError(EngineError):
    """A chat template is broken or hostile, or it rejects the messages it was given."""


class MissingTemplateError(TemplateError):
    """The model has no chat template: it is a base model, which continues texts (`Engine.complete`) and has no
    turns."""


class RequestError(EngineError):
    """The caller's messages, tools or options are not valid."""


class LateError(RequestError):
    """The request was still being prepared when its deadline passed."""


class NoSuchReasoningError(RequestError):
    """This model's reasoning cannot be switched as `reasoning=` asks for."""


class CallbackError(EngineError):
    """A function that the caller gave to a run (`approve=`, `save=`) raised, or returned a wrong type of value. The
    message names the function; `__cause__` is what it raised."""


class BatchInputError(RequestError):
    """The input of a batch cannot be read, or has rows that cannot be run; nothing was computed."""


class DiskFullError(EngineError):
    """A batch stopped because its output file could not grow. All written rows are complete, and the same call resumes
    it."""


class ForgedPromptError(RequestError):
    """Text of the caller's messages or tools became a control token, so the prompt was not sent."""


class QueueFullError(EngineError):
    """More requests wait than `max_waiting` allows; try again later."""


class WaitTimeoutError(EngineError, TimeoutError):
    """The memory for a model of `Engines` was not free in time; try again later."""


class FamilyError(EngineError):
    """A family is unknown, or a family table (models.toml, or a user's own) is incomplete or contradicts itself."""


class DecodeError(EngineError):
    """llama.cpp could not evaluate a batch; the request that caused it failed.

    `reason`: "no_slot" (the KV cache is full; nothing was computed), "aborted" (on request), "invalid" (the batch
    contradicts the cache's contents; nothing was computed), "nan" (a row's logits are not numbers), "failed" (anything
    else).
    """

    def __init__(self, message: str, reason: DecodeFailure = "failed") -> None:
        super().__init__(message)
        self.reason: DecodeFailure = reason


class RemoteError(EngineError):
    """A server sent an error instead of, or in the middle of, a completion.

    `code` and `type` are the server's own, if it sent them (llama.cpp's server: an HTTP status and, for example,
    "exceed_context_size_error").
    """

    def __init__(self, message: str, code: str | int | None = None, type_: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.type = type_


class EngineWarning(UserWarning):
    """Something works, but not as requested; the message says what was done instead and how to fix it."""

    def __init__(self, message: object = "") -> None:
        super().__init__(bounded(str(message)))


class MalformedEventWarning(EngineWarning):
    """An event of a server's stream, or a field of one, is invalid; it was skipped and the rest was read."""
