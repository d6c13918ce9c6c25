"""Errors in the form of OpenAI's API: a status, a message, and the parameter at fault."""

import re
from collections.abc import Mapping
from typing import Any

from engine.support.errors import (
    ContextOverflowError,
    DecodeError,
    EngineError,
    MissingTemplateError,
    QueueFullError,
    RequestError,
    TemplateError,
    bounded,
)

_NAMED = re.compile(r"There is no option '(\w+)'|(\w+(?:\[\d+\])?)")
_OF_CONVERSATION = re.compile(r"The (conversation|last message)\b")
_WORD = re.compile(r"\w+")
_OF_FORMS = frozenset({"Choice", "Regex", "Lark", "GBNF", "grammar"})
_OF_TOOLS = re.compile(r"(The )?[Tt]ools? ")


class Problem(Exception):
    """A request that is refused or failed.

    status: the HTTP status; the `openai` package raises a class of its own for each (400 BadRequestError, 404
    NotFoundError, 429 RateLimitError, from 500 on InternalServerError). param: the field of the request at fault. code:
    a word for programs.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.message = bounded(message)
        super().__init__(self.message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def type(self) -> str:
        """OpenAI's name for the kind of error."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def bad(message: str, param: str | None = None, code: str = "invalid_value") -> Problem:
    """Returns the problem of a request that the caller must change."""
    return Problem(400, message, param=param, code=code)


def problem_of(error: EngineError, names: Mapping[str, str]) -> Problem:
    """Returns the problem that an engine's error is for a client. `names`: the request field for each engine option."""
    text, messages = str(error), names.get("messages", "messages")
    match error:
        case QueueFullError():
            return Problem(429, text, code="rate_limit_exceeded")
        case ContextOverflowError():
            return bad(text, messages, "context_length_exceeded")
        case MissingTemplateError():
            return bad(text, "model", "model_has_no_chat_template")
        case TemplateError():
            return bad(text, messages, "template_error")
        case RequestError():
            # what is wrong with a raw prompt, if no option is, is the prompt
            return bad(text, _param(text, names) or names.get("prompt"), _code(text))
        case DecodeError():
            return Problem(500, text, code="decode_failed")
        case _:
            return Problem(503, text, code="engine_unavailable")


def _param(text: str, names: Mapping[str, str]) -> str | None:
    """Returns the field that a message is about: messages begin with the option's name."""
    if _OF_TOOLS.match(text):
        return "tools"
    match = _NAMED.match(text)
    name = "messages" if _OF_CONVERSATION.match(text) else str(match[1] or match[2]) if match else ""
    if name.startswith("messages"):
        return names.get("messages", name)
    if name.startswith("documents"):
        return name
    words = set(_WORD.findall(text))
    if (words & _OF_FORMS or text.startswith("The constraint ")) and "response_format" in names:
        return names["response_format"]
    return names.get(name) or next((field for option, field in names.items() if option in words), None)


def _code(text: str) -> str:
    refused = text.startswith("There is no option") or "cannot be enforced" in text
    return "unsupported_parameter" if refused else "invalid_value"
