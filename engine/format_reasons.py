"""Why each field of a model's format is what it is: who declared it, and what speaks for it in the template and the
vocabulary.

Knows: where formats come from, and what evidence a template and a vocabulary can give. Does not know: how a format is
parsed or derived.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from engine.chat_template import ChatTemplate
from engine.families import Gate
from engine.template.capabilities import Capabilities
from engine.types import Record


@dataclass(frozen=True, slots=True)
class FieldReason:
    """A field of the format that says something, by its dotted name, its value as plain JSON, and why it is so."""

    name: str
    value: Any
    reason: str


def reasons(template: ChatTemplate) -> Iterator[FieldReason]:
    """The fields of the template's format, less those that are at rest (no such marker, no such rule)."""
    format_, family = template.format, template.family
    source = {
        "derived": "comparing renders of the chat template showed it",
        "given": "the caller's format says so",
    }.get(family.name, f"[family.{family.name}] declares it")
    for name, value in _fields(format_):
        base = source
        if name.startswith("tools.") and family.format.tools is None:
            base = "the chat template states no tools: the generic form is prompted"
        yield FieldReason(name, _plain(value), "; ".join((base, *_evidence(template, name, value))))


def _fields(record: Record, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in type(record).model_fields.items():
        value: Any = getattr(record, name)
        if isinstance(value, Record) and not isinstance(value, Gate):
            yield from _fields(value, f"{before}{name}.")
        elif field.is_required() or value != field.get_default():
            yield before + name, value


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.model_dump(exclude_none=True, exclude_defaults=True)
    return list(cast("Sequence[Any]", value)) if isinstance(value, tuple) else value


def _evidence(template: ChatTemplate, name: str, value: Any) -> Iterator[str]:
    """What template and vocabulary say of a field."""
    can = template.capabilities
    if name == "reasoning.gate":
        yield _gate(value, template.source)
    elif name == "reasoning.fields":
        yield _reading(can)
    elif name in ("control", "stops"):
        yield from _spelt(value, template.control_tokens)
    elif name == "tools.arguments_as":
        yield f"the chat template takes arguments as {' or '.join(sorted(can.arguments))}"
    elif name == "tools.parallel":
        yield f"the chat template shows {'several calls' if can.parallel_calls else 'one call'} in a message"
    else:
        yield from _contained(value, template.source)


def _gate(gate: Gate, source: str) -> str:
    if gate.place != "variable":
        return f"the model reads it in the {gate.place} message"
    if gate.kwarg in source:
        return f"the chat template reads {gate.kwarg}"
    return f"the chat template never mentions {gate.kwarg}, so this model has no switch"


def _reading(can: Capabilities) -> str:
    if not can.reasoning_fields:
        return "the chat template shows none of the fields that it was tried with"
    return f"tried with it, the chat template showed {' and '.join(can.reasoning_fields)}"


def _spelt(texts: Sequence[str], vocabulary: frozenset[str] | None) -> Iterator[str]:
    if vocabulary is None:
        yield "no vocabulary is known, so they match as text"
        return
    single, others = [text for text in texts if text in vocabulary], [text for text in texts if text not in vocabulary]
    if single:
        yield f"one control token each in this vocabulary: {' '.join(single)}"
    if others:
        yield f"text in this vocabulary: {' '.join(others)}"


def _contained(value: Any, source: str) -> Iterator[str]:
    """Whether the template holds a marker's text."""
    parts = cast("Sequence[Any]", value) if isinstance(value, tuple) else (value,)
    texts = [part.strip() for part in parts if isinstance(part, str) and len(part.strip()) > 1]
    if not texts or not any(not text.isidentifier() for text in texts):
        return
    found = [text for text in texts if text in source]
    if len(found) == len(texts):
        yield "the chat template contains it"
    elif not found:
        yield "the chat template does not spell it out"
