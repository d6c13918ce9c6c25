"""Turns under a constraint by a model that knows nothing: it reasons by script, then draws any token that it may."""

import random
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from cases.parsing_cases import FAMILIES, markers

from engine import ChatTemplate, Completion, Engine
from engine.formats.families import Format, builtin_families
from engine.runtime.loop.config import LoopOptions
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.answer_formats import JsonSchema
from engine.types.tools import AllowedTools, ToolName

State: TypeAlias = Literal["default", "on", "off", "budget", "never", "empty"]
"""How reasoning goes: by default, switched on or off, ended by a budget, never ended, closed by the prompt."""
Wish: TypeAlias = Literal["required", "named", "allowed", "strict", "schema", "both"]
STATES: tuple[State, ...] = get_args(State)
WISHES: tuple[Wish, ...] = get_args(Wish)
MAX_TOKENS = 2500
THOUGHT = 'The call <tool_call> or {"city": 1} may come. '
SHORT = {"type": "string", "maxLength": 5}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": SHORT, "days": {"type": "integer", "minimum": 0, "maximum": 14}},
    "required": ["city"],
}
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}, "s": SHORT},
    "required": ["a", "n"],
    "additionalProperties": False,
}


class Turn(NamedTuple):
    """A turn to try."""

    family: str
    state: State
    wish: Wish
    parameters: Mapping[str, Any] = WEATHER
    schema: Mapping[str, Any] = ANSWER


def callable_families() -> list[str]:
    """The families that have calls."""
    formats = {name: builtin_families().get(name).format for name in FAMILIES}
    return [name for name, format_ in formats.items() if format_.tools or format_.channels]


def engine_of(turn: Turn, thought: str = THOUGHT, guess: Callable[[str], str] | None = None) -> Engine:
    """An engine whose model reasons with this thought, then draws any token that it may. `guess`: the script of a draft
    model."""
    format_ = builtin_families().get(turn.family).format
    spaced = (marker for marker in markers(turn.family) if not format_.channels and _is_token(marker))
    vocab = ByteVocab(sorted({*format_.control, *spaced}), end=["<|the_end|>"])
    template = ChatTemplate(_source(format_, turn.state), family=turn.family, control_tokens=vocab.control_tokens)
    script = _script(format_, turn.state, thought)
    backend = ScriptedBackend(
        lambda prompt: _rest(script, prompt, thought), vocab=vocab, n_ctx=16_000, n_batch=4096, rewrite=True
    )
    if guess is None:
        return Engine.over(backend, template)
    draft = ScriptedBackend(guess, vocab=vocab, n_ctx=16_000, n_batch=4096)
    return Engine.over(backend, template, draft=draft, options=LoopOptions(draft_max=8))


def options_of(turn: Turn) -> dict[str, Any]:
    """Options of `chat`."""
    tools = [_tool("get_weather", turn.parameters), _tool("ping", {"type": "object", "properties": {}})]
    wishes: dict[Wish, dict[str, Any]] = {
        "required": {"tools": tools, "tool_choice": "required"},
        "named": {"tools": tools, "tool_choice": ToolName(name="get_weather")},
        "allowed": {"tools": tools, "tool_choice": AllowedTools(names=("ping",))},
        "strict": {"tools": tools, "strict_tools": True},
        "schema": {"response_format": JsonSchema(turn.schema)},
        "both": {"tools": tools, "response_format": JsonSchema(turn.schema)},
    }
    states: dict[str, dict[str, Any]] = {"off": {"reasoning": False}, "budget": {"reasoning_budget": 5}}
    seed = random.Random(repr(turn)).randrange(1 << 30)
    return {"max_tokens": MAX_TOKENS, "seed": seed, **wishes[turn.wish], **states.get(turn.state, {})}


def wrong(turn: Turn, completion: Completion) -> str | None:
    """What is wrong with a turn that was not cut off; None where all is as it was wished."""
    calls = completion.tool_calls
    is_answer = completion.parsed is not None and completion.content.startswith("{")
    valid = all(call.error is None for call in calls)
    names = {call.name for call in calls}
    match turn.wish:
        case "schema":
            fine = is_answer and not calls
        case "both":
            fine = is_answer or (bool(calls) and valid)
        case "strict":
            fine = valid
        case "named":
            fine = names == {"get_weather"} and valid and not completion.content.strip()
        case "allowed":
            fine = names == {"ping"} and valid and not completion.content.strip()
        case "required":
            fine = bool(calls) and valid and not completion.content.strip()
    return None if fine else f"{turn.family} {turn.state} {turn.wish}: {completion.model_dump()}"


def reasons(turn: Turn) -> bool:
    """Whether reasoning is there for certain."""
    format_ = builtin_families().get(turn.family).format
    return bool(_opening(format_)) and turn.state in ("default", "budget", "never") and turn.wish != "strict"


def _tool(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _is_token(marker: str) -> bool:
    return len(marker) > 2 and marker[0] + marker[-1] in ("<>", "[]") and marker.count(marker[0]) == 1


def _source(format_: Format, state: State) -> str:
    """A template that writes the turn's start, and reasoning that is closed already where that is the state."""
    channels, reasoning = format_.channels, format_.reasoning
    start = channels.start + channels.role if channels else format_.start
    closed = reasoning.open + reasoning.close if reasoning and state == "empty" else ""
    literal = repr(start + closed)
    return (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {literal} }}}}{{% endif %}}"
    )


def _rest(script: str, prompt: str, thought: str) -> str:
    """What of the script is not written yet."""
    if thought in prompt:
        return ""
    return script[next(length for length in range(len(script), -1, -1) if prompt.endswith(script[:length])) :]


def _opening(format_: Format) -> str:
    channels, reasoning = format_.channels, format_.reasoning
    if channels is not None:
        return f"{channels.channel}{channels.reasoning[0]}{channels.message}"
    return reasoning.open if reasoning is not None else ""


def _script(format_: Format, state: State, thought: str) -> str:
    """What the model writes while nobody holds it."""
    opening = _opening(format_)
    if not opening:
        return "Well, "
    thoughts = thought * (200 if state in ("never", "budget") else 1)
    close = "" if state == "never" else format_.channels.ends[0] if format_.channels else ""
    if format_.reasoning is not None and state != "never":
        close = format_.reasoning.close
    return opening + thoughts + close
