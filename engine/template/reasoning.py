"""One switch for reasoning, turned into whatever a template understands.

Knows: a family's gate and what to do where it has none, or lacks the position asked for. Does not know: jinja2,
messages.
"""

from dataclasses import dataclass, field
from typing import Any

from engine.errors import RequestError
from engine.families import Format
from engine.types import Reasoning


@dataclass(frozen=True, slots=True)
class Switch:
    """How a request for reasoning is carried out: template variables, and whether an open block is closed by us."""

    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    close: bool = False


def switch(reasoning: Reasoning | None, format_: Format, source: str) -> Switch:
    """The template variables for `reasoning` (None leaves the template its default).

    `source` is the template: a gate that it never mentions is not there, whatever the family's others have. Raises
    RequestError where the model cannot do what is asked, saying what it can.
    """
    syntax = format_.reasoning
    gate = syntax.gate if syntax and syntax.gate and syntax.gate.kwarg in source else None
    if reasoning is None or (reasoning is False and syntax is None):
        return Switch()
    if syntax is None:
        raise RequestError(f"reasoning={reasoning!r}, and this model's family has no reasoning: leave the option out.")
    position = {True: "on", False: "off"}[reasoning] if isinstance(reasoning, bool) else str(reasoning)
    value: Any = getattr(gate, position, None) if gate else None
    if gate and value is not None:
        return Switch({gate.kwarg: value})
    if position == "on":
        return Switch()
    if position == "off" and gate is None and format_.channels is None:
        return Switch(close=True)
    raise RequestError(f"reasoning={reasoning!r} is not possible here: {_offers(gate)}")


def _offers(gate: Any) -> str:
    if gate is None:
        return "the chat template has no switch for it. Pass reasoning=True, False or None."
    names = {"on": "True", "off": "False", "low": '"low"', "medium": '"medium"', "high": '"high"'}
    offered = [text for position, text in names.items() if getattr(gate, position) is not None]
    return f"the chat template knows the positions {', '.join(offered)} only ({gate.kwarg}). Pass one of these."
