"""Converts the items of a Responses request into messages, and into the form in which they are stored."""

import base64
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, cast

from engine.openai.parameters import Json
from engine.openai.problems import bad
from engine.types import Message, Part, ReasoningPart, TextPart, ToolCall

_ROLES = ("user", "system", "developer", "assistant")
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


def encoded(reasoning: str) -> str:
    """Returns reasoning as `encrypted_content`: base64 of its text, which the response shows anyway."""
    return base64.b64encode(reasoning.encode(errors="replace")).decode()


def _decoded(content: object, param: str) -> str:
    """Returns the reasoning of an `encrypted_content`. Raises Problem for one that is not base64 of a text."""
    try:
        return base64.b64decode(cast("str", content), validate=True).decode()
    except (TypeError, ValueError) as error:
        message = f"{param} does not come from llama-engine; send the reasoning's content."
        raise bad(message, param) from error


def stored_items(value: str | Sequence[Json]) -> list[Json]:
    """Returns the items of an input as they are stored and listed: with ids, and content as lists. Raises Problem for
    an item that cannot be honoured."""
    if isinstance(value, str):
        return [_message({"role": "user", "content": value}, "input")]
    return [_checked(item, f"input[{number}]") for number, item in enumerate(value)]


def _checked(item: Json, param: str) -> Json:
    match item.get("type", "message" if "role" in item else None):
        case "message":
            return _message(item, param)
        case "reasoning":
            if not isinstance(item.get("summary") or [], list) or not isinstance(item.get("content") or [], list):
                raise bad(f"{param}: summary and content of a reasoning item must be lists.", param, "invalid_type")
            return {**item, "id": _id(item, "rs")}
        case "function_call":
            _need_texts(item, ("call_id", "name", "arguments"), param)
            return {**item, "id": _id(item, "fc")}
        case "function_call_output":
            _need_texts(item, ("call_id",), param)
            _text(item.get("output"), f"{param}.output")
            return {**item, "id": _id(item, "fco")}
        case kind:
            message = (
                f"{param} is of type {kind!r}; a local model reads message, reasoning, function_call and its output."
            )
            raise bad(message, param, "unsupported_parameter")


def _id(item: Json, prefix: str) -> str:
    id_ = item.get("id")
    return id_ if isinstance(id_, str) and id_ else f"{prefix}_{secrets.token_hex(16)}"


def _need_texts(item: Json, names: Iterable[str], param: str) -> None:
    for name in names:
        if not isinstance(item.get(name), str):
            raise bad(f"{param}.{name} must be a string, not {item.get(name)!r}.", f"{param}.{name}", "invalid_type")


def _message(item: Json, param: str) -> Json:
    role = item.get("role")
    if role not in _ROLES:
        raise bad(f"{param}.role must be one of {', '.join(_ROLES)}, not {role!r}.", f"{param}.role")
    text = _text(item.get("content"), f"{param}.content")
    part: Json = {"type": "input_text", "text": text}
    if role == "assistant":
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": _id(item, "msg"), "type": "message", "role": role, "status": "completed", "content": [part]}


def _text(content: object, param: str) -> str:
    """Returns the text of a content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(f"{param} must be a string or a list of parts, not {content!r}.", param, "invalid_type")
    texts: list[str] = []
    for number, part in enumerate(cast("list[Any]", content)):
        match part:
            case {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": str(kind), "text": str(text)} if kind in _TEXTS:
                texts.append(text)
            case _:
                kind = cast("Json", part).get("type") if isinstance(part, dict) else part
                message = f"{param}[{number}] is {kind!r}; a local model reads text only."
                raise bad(message, f"{param}[{number}]", "unsupported_parameter")
    return "\n".join(texts)


def messages_of(before: Sequence[Json], items: Sequence[Json], instructions: str | None) -> list[Message]:
    """Returns the conversation of stored items: those before the input, then the input's. What the assistant reasoned,
    wrote and called between two messages of others becomes one message, in that order. Raises Problem for an
    `encrypted_content` that cannot be read."""
    messages: list[Message] = []
    turn: list[Part] = []

    def end_turn() -> None:
        if turn:
            messages.append(Message(role="assistant", parts=tuple(turn)))
            turn.clear()

    for number, item in enumerate([*before, *items], -len(before)):
        match item["type"], item.get("role"):
            case "reasoning", _:
                if text := _reasoning(item, f"input[{number}].encrypted_content"):
                    turn.append(ReasoningPart(text=text))
            case "function_call", _:
                turn.append(ToolCall(id=item["call_id"], name=item["name"], arguments=item["arguments"]))
            case "message", "assistant":
                turn.append(TextPart(text=_text(item["content"], "input")))
            case "function_call_output", _:
                end_turn()
                text = _text(item["output"], "input")
                messages.append(Message(role="tool", tool_call_id=item["call_id"], content=text))
            case _, role:
                end_turn()
                messages.append(Message(role=role or "user", content=_text(item["content"], "input")))
    end_turn()
    return _instructed(messages, instructions)


def _reasoning(item: Json, param: str) -> str:
    """Returns a reasoning item's text: its content, otherwise `encrypted_content`, otherwise its summary."""
    content = item.get("encrypted_content")
    decoded = "" if content is None else _decoded(content, param)
    return _text(item.get("content") or [], param) or decoded or _text(item.get("summary") or [], param)


def _instructed(messages: list[Message], instructions: str | None) -> list[Message]:
    """Put instructions first, joined with the first system message: templates accept only one."""
    if not instructions:
        return messages
    if messages and messages[0].role in ("system", "developer"):
        first = messages[0].model_copy(update={"content": f"{instructions}\n\n{messages[0].content}"})
        return [first, *messages[1:]]
    return [Message(role="system", content=instructions), *messages]
