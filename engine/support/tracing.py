"""Spans by OpenTelemetry's conventions for generative AI, in a process that uses it; others import nothing."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OpenSpan

Attributes: TypeAlias = Mapping[str, str | int | float | Sequence[str] | None]
"""Names of https://opentelemetry.io/docs/specs/semconv/gen-ai/ and their values; those that are None are left out."""
_LARGEST = 2**63 - 1
_LONGEST, _MOST = 256, 16
"""Characters of a text, and items of a list."""


class Span:
    """A span that has begun. Where the process does not trace, its methods do nothing. It has no texts: neither
    prompts nor answers, arguments nor results."""

    __slots__ = ("_span",)

    def __init__(self, span: "OpenSpan | None" = None) -> None:
        self._span = span

    def inside(self) -> AbstractContextManager[Any]:
        """Spans that begin in this block, in this thread or task, are children of this one."""
        if self._span is None:
            return nullcontext()
        from opentelemetry.trace import use_span

        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, attributes: Attributes | None = None, failed: str = "") -> None:
        """End the span, once. `failed`: the kind of error, if there was one."""
        if self._span is None:
            return
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes(_known({**(attributes or {}), "error.type": failed or None}))
        if failed:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()
        self._span = None


def begin(operation: str, about: str, attributes: Attributes | None = None) -> Span:
    """Begin a span, a child of the caller's current one. `about`: what the operation is done with, for its name."""
    if "opentelemetry" not in sys.modules:
        return Span()
    from opentelemetry.trace import get_tracer

    known = _known({"gen_ai.operation.name": operation, **(attributes or {})})
    span = get_tracer("llama-engine").start_span(_text(f"{operation} {about}".strip()), attributes=known)
    # Without an SDK the span is nobody's; one that is not sampled has a context, which its children must follow.
    return Span(span if span.get_span_context().is_valid else None)


def _known(attributes: Attributes) -> dict[str, Any]:
    return {name: _exported(value) for name, value in attributes.items() if value is not None}


def _exported(value: str | int | float | Sequence[str]) -> str | int | float | list[str]:
    """Returns a value that every exporter can write: for one that it cannot, OTLP's loses all spans of its batch. Some
    of them are a client's, such as `max_tokens` and `stop`, or a model's, such as the id of a call."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return min(max(value, -_LARGEST), _LARGEST)
    return value if isinstance(value, float) else list(map(_text, value[:_MOST]))


def _text(text: str) -> str:
    return text[:_LONGEST].encode(errors="replace").decode()
