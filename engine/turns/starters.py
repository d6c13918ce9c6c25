"""Functions that start one turn of many. Their options are checked once, and the model is leased for each turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.runtime.stream.stream import Stream
from engine.tools import ToolLike, as_tools
from engine.turns.model_parts import Lease
from engine.turns.options import RawOptions, TurnOptions
from engine.types.messages import Message, MessagesLike
from engine.types.tools import AllowedTools, ToolChoice, ToolName


def raw_starter(lease: Lease, options: RawOptions) -> Callable[..., Stream]:
    """Returns a function that starts one of many turns without a chat template, which nobody reads as they come."""
    with lease() as parts:
        settings = parts.turns.check(options, RawOptions)

    def start(prompt: Any, own: Mapping[str, Any]) -> Stream:
        with lease() as parts:
            return parts.turns.start_raw(prompt, settings, own["choice"], offline=True)

    return start


def batch_starter(lease: Lease, tools: Sequence[ToolLike] | None, options: TurnOptions) -> Callable[..., Stream]:
    """Returns a function that starts the turn of one of many conversations, with options of its own."""
    known = as_tools(tools)
    with lease() as parts:
        settings = parts.turns.check(options)

    def start(messages: MessagesLike, own: Mapping[str, Any]) -> Stream:
        with lease() as parts:
            turns = parts.turns
            if not own:
                return turns.start(messages, known, settings, offline=True)[0]
            merged: dict[str, Any] = {**options, **own}
            return turns.start(messages, merged.pop("tools", known), turns.check(merged), offline=True)[0]

    return start


def agent_stepper(lease: Lease, tools: Callable[[], Sequence[ToolLike]], options: TurnOptions) -> Callable[..., Stream]:
    """Returns a function that starts the next turn of a run. Only a message that the caller began is continued. A call
    is demanded until there was one: else the run would never answer."""
    with lease() as parts:
        settings = parts.turns.check(options)
    begun = False

    def turn(history: Sequence[Message]) -> Stream:
        nonlocal begun
        goes_on = settings.continue_final_message and history[-1].role == "assistant"
        called = begun and history[-1].role == "tool"
        choice = _after_call(settings.tool_choice) if called else settings.tool_choice
        begun = True
        own = replace(settings, continue_final_message=goes_on, tool_choice=choice)
        known = tools()
        with lease() as parts:
            return parts.turns.start(history, known, own)[0]

    return turn


def _after_call(choice: ToolChoice | AllowedTools) -> ToolChoice | AllowedTools:
    """Returns the choice of tools of a run's turn after one with a call: a demanded call was made."""
    if isinstance(choice, AllowedTools):
        return choice.model_copy(update={"mode": "auto"})
    return "auto" if choice == "required" or isinstance(choice, ToolName) else choice
