"""Makes the constraint that a turn's options demand of its output, in the family's own syntax."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.formats.families import Format, ReasoningSyntax
from engine.formats.grammar.enforcer import Enforcer
from engine.formats.grammar.json_schema import prepared
from engine.formats.grammar.lark import Cut
from engine.formats.grammar.nodes import Rules
from engine.formats.grammar.response import Response
from engine.formats.grammar.turn_grammar import Allowed, is_call_marked, turn_grammar
from engine.support.errors import RequestError
from engine.support.recent import characters, recent
from engine.types.constraint import Constraint, Holds
from engine.types.prompt import Piece
from engine.types.tools import AllowedTools, Tool, ToolName
from engine.types.turn_settings import TurnSettings

_ANY_OBJECT = {"type": "object"}
_LONGEST = 2000
_log = logging.getLogger("engine.constraint")


@dataclass(frozen=True, slots=True)
class Demand:
    """What the settings of a turn require of its output: `tools` are those of the prompt, of which `tool_choice` says
    whether and which are called; `response`: what an answer must be (None: any text)."""

    settings: TurnSettings
    tools: Sequence[Tool] = ()
    response: Response | None = None


def constraint_of(
    demand: Demand, format_: Format, prefix: Sequence[Piece], cut: Cut, enforcer: Enforcer
) -> Constraint | None:
    """Returns the constraint of a turn whose prompt ends with `prefix`; None if the output is free. `cut` cuts markers
    into text and control tokens of the vocabulary.

    Raises RequestError for a schema that must be enforced but cannot be.
    """
    allowed = _allowed(demand, enforcer)
    if allowed is None:
        return None
    what, holds = allowed
    if what.tools and format_.tools is None and format_.channels is None:
        raise RequestError("This model's format has no tool calls; use another model, or leave tool_choice out.")
    settings = demand.settings
    reasoning = _reasoning(format_, "".join(piece.text for piece in prefix), wanted=settings.reasoning is not False)
    if reasoning.syntax is None and format_.reasoning is not None:
        format_ = format_.model_copy(update={"reasoning": None})
    rules = Rules(lambda pattern: enforcer.regex_refusal(pattern) is None)
    grammar = turn_grammar(format_, replace(what, reasoned=reasoning.precedes), cut, rules)
    if rules.unheld:
        _log.info("not enforced by the grammar but checked afterwards: %s", ", ".join(dict.fromkeys(rules.unheld)))
    # Where a call is JSON without a mark, it could not be told from the answer.
    is_marked = not what.tools or format_.channels is not None or is_call_marked(format_)
    is_json = what.answer is not None and what.answer.is_json and is_marked
    return Constraint(
        grammar,
        holds,
        reasoning.may_begin,
        tuple(prefix),
        reasoning.closes,
        _enders(format_),
        closing(format_),
        _reserved(settings),
        is_json,
        is_json and settings.close_at_limit,
        holds == "answer" and what.answer is None,
    )


class _Reasoning(NamedTuple):
    """The reasoning of a turn. `syntax`: None if nothing shows that the model reasons; `may_begin`: the output may hold
    some; `precedes`: some may come before the answer, in the prompt or in the output; `closes`: the marks that close
    it."""

    syntax: ReasoningSyntax | None
    may_begin: bool
    precedes: bool
    closes: tuple[str, ...] = ()


def _reasoning(format_: Format, prompt: str, *, wanted: bool) -> _Reasoning:
    """Returns what a family's format and the end of the prompt say about the reasoning of a turn, `wanted` or not."""
    syntax = format_.reasoning
    if syntax is None:
        return _Reasoning(None, wanted, wanted)
    opens, close = syntax.open.strip() in prompt, syntax.close.strip()
    if syntax.assumed and not opens:
        return _Reasoning(None, may_begin=False, precedes=False)
    is_closed = bool(close) and close in prompt
    closes = tuple(filter(None, (close, *(mark.strip() for mark in syntax.also_close))))
    return _Reasoning(syntax, wanted and not is_closed, is_closed or wanted or syntax.implicit or opens, closes)


def _reserved(settings: TurnSettings) -> int:
    """Returns the tokens reserved for the answer while the model reasons."""
    most = settings.sampling.max_tokens
    return settings.answer_reserve if most is None else min(settings.answer_reserve, most // 2)


def closing(format_: Format) -> str:
    """Returns the text that closes this family's reasoning when it is inserted into the output; "" if there is none."""
    channels = format_.channels
    if channels is not None:
        return channels.ends[0] + channels.start + channels.role
    return format_.reasoning.close if format_.reasoning is not None else ""


def _enders(format_: Format) -> tuple[str, ...]:
    """Returns the markers that end reasoning without closing it, by the parser's rules."""
    channels = format_.channels
    if channels is not None:
        return (channels.start, channels.channel)
    return (format_.content[0].strip(),) if format_.content[0].strip() else ()


def _allowed(demand: Demand, enforcer: Enforcer) -> tuple[Allowed, Holds] | None:
    """Returns what the turn may contain, and whether that holds for the whole answer or only for calls. None:
    anything."""
    # One call where one is demanded, if the caller leaves it open: a small model repeats it as long as it may.
    settings = demand.settings
    choice, parallel = settings.tool_choice, settings.parallel_tool_calls
    most = 1 if parallel is False else None
    chosen = tuple(demand.tools) if choice != "none" else ()
    if isinstance(choice, ToolName):
        chosen = _named(demand.tools, [choice.name])
    elif isinstance(choice, AllowedTools):
        chosen = _named(demand.tools, choice.names)
    must = choice == "required" or isinstance(choice, ToolName)
    if must or (isinstance(choice, AllowedTools) and choice.mode == "required"):
        most = None if parallel else 1
        return Allowed(None, [_held(tool, enforcer) for tool in chosen], most), "answer"
    answer = None if demand.response is None else demand.response.answer
    if answer is not None:
        held = [_held_or_free(tool, demand, enforcer) for tool in chosen]
        return Allowed(answer, held, most, layout=settings.json_layout), "answer"
    if chosen and (isinstance(choice, AllowedTools) or settings.strict_tools or any(tool.strict for tool in chosen)):
        return Allowed(None, [_held_or_free(tool, demand, enforcer) for tool in chosen], most, begun=True), "calls"
    return None


def _named(tools: Sequence[Tool], names: Sequence[str]) -> tuple[Tool, ...]:
    known = {tool.name: tool for tool in tools}
    return tuple(known[name] for name in names)


def _held(tool: Tool, enforcer: Enforcer) -> Tool:
    """Returns the tool with a schema that a grammar can enforce. Raises RequestError if none can."""
    schema, _ = prepared(tool.parameters, enforcer.refusal, f"The schema of tool {tool.name!r}", close=True)
    return tool.model_copy(update={"parameters": dict(schema)})


def _held_or_free(tool: Tool, demand: Demand, enforcer: Enforcer) -> Tool:
    """Returns the same as `_held` if the schema must or can be enforced; else a tool with free arguments, checked
    afterwards."""
    if tool.strict:
        return _held(tool, enforcer)
    if demand.settings.strict_tools or demand.response is not None:
        try:
            return _held(tool, enforcer)
        except RequestError as error:
            _warn_once(str(error)[:_LONGEST])
    return tool.model_copy(update={"parameters": _ANY_OBJECT})


@recent(1 << 18, characters)
def _warn_once(why: str) -> None:
    _log.warning("arguments are not constrained but checked afterwards: %s", why)
