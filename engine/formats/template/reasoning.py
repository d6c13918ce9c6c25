"""Translates the one switch for reasoning into whatever a template or its model understands."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.formats.families import Format, Gate
from engine.support.errors import NoSuchReasoningError
from engine.types.messages import Message
from engine.types.sampling import Reasoning

_USUAL = tuple(Gate(kwarg=name, on=True, off=False, default="model") for name in ("enable_thinking", "thinking"))
_NAMES = {"on": "True", "off": "False", "low": '"low"', "medium": '"medium"', "high": '"high"'}


@dataclass(frozen=True, slots=True)
class Switch:
    """How a request for reasoning is carried out: template variables, or words inserted into a message (from which the
    opposing words, `against`, are removed), and whether we close an open block."""

    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    place: str = ""
    words: str = ""
    against: tuple[str, ...] = ()
    close: bool = False


NO_SWITCH = Switch()
"""The template's default."""
Renders: TypeAlias = Callable[[Switch], str | None]
"""Renders a plain question under a switch, with this request's tools and system text; None if the template refuses."""


def switch(reasoning: Reasoning | None, format_: Format, variables: Collection[str], renders: Renders) -> Switch:
    """Returns the switch for `reasoning` (None: the template's default).

    `variables` are those that this template reads, and decide over the family: a gate whose variable the template does
    not read is not used, and a variable of a usual name is used even if the family has no gate. A gate that changes
    nothing with these tools or this system text (tested by `renders`) is not used either. Raises NoSuchReasoningError
    if the model cannot do what is asked, saying what it can do.
    """
    syntax = format_.reasoning
    if reasoning is None or (reasoning is False and syntax is None):
        return NO_SWITCH
    if syntax is None:
        raise NoSuchReasoningError(
            f"reasoning={reasoning!r}, but this model's family has no reasoning: leave the option out."
        )
    position = {True: "on", False: "off"}[reasoning] if isinstance(reasoning, bool) else str(reasoning)
    gate = syntax.gate
    if gate is None or not _is_there(gate, variables):
        gate = next((usual for usual in _USUAL if usual.kwarg in variables), gate)
    known = gate is not None and _is_there(gate, variables)
    if syntax.assumed and not known and position != "off":
        raise NoSuchReasoningError(
            f"reasoning={reasoning!r} is not possible here: the chat template shows no reasoning, and no switch for "
            f"it. Leave the option out; text between {syntax.open.strip()} and {syntax.close.strip()} is separated all "
            "the same."
        )
    chosen = _turned(gate, position) if gate is not None and known else None
    if gate is not None and chosen is not None:
        if not _is_inert(gate, position, chosen, renders):
            return chosen
        if position == gate.default:
            return chosen
        if position != "off":
            raise NoSuchReasoningError(
                f"reasoning={reasoning!r} is not possible here: the chat template ignores its own switch "
                f"({_named(gate)}) with these tools or this system message. Leave the option out, or leave those out."
            )
        return Switch(close=True)
    if position == "on" and (gate is None or known or gate.default == "on" or syntax.forced_open):
        return NO_SWITCH
    if position == "off" and not known and syntax.off != "refuse" and format_.channels is None:
        return Switch(close=syntax.off != "nothing")
    raise NoSuchReasoningError(f"reasoning={reasoning!r} is not possible here: {_offers(gate if known else None)}")


def _is_there(gate: Gate, variables: Collection[str]) -> bool:
    """Whether the gate exists here: the model always reads words, but the template may not read the variable."""
    return gate.place != "variable" or gate.kwarg in variables


def _turned(gate: Gate, position: str) -> Switch | None:
    """Returns the switch at a position; None if the gate has no such position."""
    value: Any = getattr(gate, position)
    if value is None:
        return None
    if gate.place == "variable":
        return Switch({gate.kwarg: value})
    others = (str(getattr(gate, name) or "") for name in _NAMES if name != position)
    return Switch(place=gate.place, words=str(value), against=tuple(filter(None, others)))


def _is_inert(gate: Gate, position: str, chosen: Switch, renders: Renders) -> bool:
    """Whether the switch changes nothing, whatever its position."""
    turned = (_turned(gate, name) for name in _NAMES if name != position)
    others = [other for other in turned if other is not None and other != chosen]
    rendered = renders(chosen)
    return bool(others) and rendered is not None and all(renders(other) == rendered for other in others)


def with_words(messages: Sequence[Message], turned: Switch) -> list[Message]:
    """Returns the conversation with the switch's words inserted: before the system text, or after the last user
    message's."""
    changed = list(messages)
    if not turned.place or not changed:
        return changed
    asked = [number for number, message in enumerate(changed) if message.role == "user"]
    if turned.place == "user" and asked:
        changed[asked[-1]] = _with(changed[asked[-1]], turned, behind=True)
    elif changed[0].role in ("system", "developer"):
        changed[0] = _with(changed[0], turned, behind=False)
    elif turned.words:
        changed.insert(0, Message(role="system", content=turned.words))
    return changed


def _with(message: Message, turned: Switch, *, behind: bool) -> Message:
    text = message.content or ""
    for word in turned.against:
        text = text.replace(word, "")
    parts = (text, turned.words) if behind else (turned.words, text)
    return message.model_copy(update={"content": "\n\n".join(filter(None, parts))})


def _named(gate: Gate) -> str:
    """Returns how messages name the gate."""
    words = " / ".join(repr(gate_word) for gate_word in (gate.on, gate.off) if gate_word)
    return gate.kwarg if gate.place == "variable" else f"{words} in the {gate.place} message"


def _offers(gate: Gate | None) -> str:
    if gate is None:
        return (
            "the chat template has no switch for it. Leave the option out, or pass reasoning=True or reasoning=False."
        )
    offered = [f"reasoning={text}" for position, text in _NAMES.items() if getattr(gate, position) is not None]
    return f"the chat template knows only {', '.join(offered)} ({_named(gate)}). Pass one of these."
