"""Converts the items of a Responses request into messages, and into the form in which they are stored."""

import base64
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, cast

from pydantic import ValidationError

from engine.openai.parameters import Json
from engine.openai.problems import bad
from engine.support.errors import shown
from engine.types.messages import Message
from engine.types.parts import Part, ReasoningPart, TextPart, ToolCall

_ROLES = ("user", "system", "developer", "assistant")
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_MEDIA = ("input_image", "input_audio")


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
            _parts(item.get("output"), f"{param}.output", _MEDIA)
            return {**item, "id": _id(item, "fco")}
        case kind:
            reads = "a local model reads message, reasoning, function_call and its output"
            message = f"{param} is of type {shown(kind)}; {reads}."
            raise bad(message, param, "unsupported_parameter")


def _id(item: Json, prefix: str) -> str:
    id_ = item.get("id")
    return id_ if isinstance(id_, str) and id_ else f"{prefix}_{secrets.token_hex(16)}"


def _need_texts(item: Json, names: Iterable[str], param: str) -> None:
    for name in names:
        if not isinstance(item.get(name), str):
            raise bad(
                f"{param}.{name} must be a string, not {shown(item.get(name))}.", f"{param}.{name}", "invalid_type"
            )


def _message(item: Json, param: str) -> Json:
    role = item.get("role")
    if role not in _ROLES:
        raise bad(f"{param}.role must be one of {', '.join(_ROLES)}, not {shown(role)}.", f"{param}.role")
    content = item.get("content")
    if role == "assistant":
        text = _text(content, f"{param}.content")
        parts: list[Json] = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    else:
        parts = _parts(content, f"{param}.content", _MEDIA)
        if all(part["type"] == "input_text" for part in parts):
            parts = [{"type": "input_text", "text": "\n".join(part["text"] for part in parts)}]
    return {"id": _id(item, "msg"), "type": "message", "role": role, "status": "completed", "content": parts}


def _text(content: object, param: str) -> str:
    """Returns the text of a content, which is a string or a list of parts."""
    return "\n".join(part["text"] for part in _parts(content, param))


def _parts(content: object, param: str, media: Sequence[str] = ()) -> list[Json]:
    """Returns a content, which is a string or a list of parts, as parts of the type "input_text" or one of `media`."""
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise bad(f"{param} must be a string or a list of parts, not {shown(content)}.", param, "invalid_type")
    parts: list[Json] = []
    for number, part in enumerate(cast("list[Any]", content)):
        match part:
            case {"type": "refusal", "refusal": str(text)}:
                parts.append({"type": "input_text", "text": text})
            case {"type": str(kind), "text": str(text)} if kind in _TEXTS:
                parts.append({"type": "input_text", "text": text})
            case {"type": str(kind)} if kind in media:
                parts.append(part)
            case _:
                kind = cast("Json", part).get("type") if isinstance(part, dict) else part
                reads = f"text{''.join(f', {name}' for name in media)} only"
                message = f"{param}[{number}] is {shown(kind)}; a local model reads {reads}."
                raise bad(message, f"{param}[{number}]", "unsupported_parameter")
    return parts


def _said(content: object, role: str, param: str, **fields: str) -> Message:
    """Returns a message of a content. Raises Problem for a picture or sound that cannot be read."""
    parts = _parts(content, param, _MEDIA)
    try:
        return Message.model_validate({"role": role, "content": parts, **fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = param + next((f"[{step}]" for step in first["loc"] if isinstance(step, int)), "")
        raise bad(f"{place} is not valid: {first['msg'].removeprefix('Value error, ')}", place) from error


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
                place = f"input[{number}].output"
                messages.append(_said(item["output"], "tool", place, tool_call_id=item["call_id"]))
            case _, role:
                end_turn()
                messages.append(_said(item["content"], role or "user", f"input[{number}].content"))
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
        if messages[0].media:
            raise bad("instructions and a system message with media cannot be joined; leave one out.", "instructions")
        first = messages[0].model_copy(update={"content": f"{instructions}\n\n{messages[0].content}"})
        return [first, *messages[1:]]
    return [Message(role="system", content=instructions), *messages]
