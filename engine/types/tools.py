"""Tools that a model may call, and which of them a turn allows."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, field_validator

from engine.support.errors import RequestError
from engine.types.parts import Record, Text

IN_NAME = r"[\w./-]"
"""A character of a tool's name, as a regular expression: what reads names and what checks them say the same."""


class Tool(Record):
    """A function the model may call: its name, what it does, the JSON Schema of its arguments.

    `function` runs it (absent for tools described by a dictionary); `check` returns None for arguments (Python values)
    that fit, else one sentence that says what does not. `strict`: calls are constrained to the schema while they are
    written. `returns` is the JSON Schema of its result, which some chat templates show (transformers'
    `get_json_schema` writes it under the key `return`). `repeats`: an agent may call it again and again with the same
    arguments, though its result stays the same (polling, dice). Made by `engine.tools.as_tool`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    description: Text = ""
    parameters: dict[str, Any]
    strict: bool = False
    returns: dict[str, Any] | None = None
    function: Callable[..., Any] | None = Field(default=None, repr=False)
    check: Callable[[Any], str | None] | None = Field(default=None, repr=False)
    repeats: bool = False

    def openai(self) -> dict[str, Any]:
        """Returns the dictionary form that chat templates and OpenAI clients use, without `description` and `return`
        if they are empty."""
        about = {"description": self.description} if self.description else {}
        result = {"return": self.returns} if self.returns else {}
        return {"type": "function", "function": {"name": self.name, **about, "parameters": self.parameters, **result}}


class ToolName(Record):
    """A tool choice that names one tool."""

    name: str


class AllowedTools(Record):
    """A tool choice that allows only some of the tools, though the prompt states all: one of these must ("required") or
    may ("auto") be called. Raises RequestError if it names none."""

    names: tuple[str, ...]
    mode: Literal["auto", "required"] = "required"

    @field_validator("names")
    @classmethod
    def _some(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise RequestError('AllowedTools names no tool; name one or more, or use tool_choice="none".')
        return names


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | ToolName


AllowedChoice: TypeAlias = ToolChoice | AllowedTools
