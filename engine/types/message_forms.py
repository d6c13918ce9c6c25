"""Converts messages from the forms that callers use into the fields of `engine.types.Message`."""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from engine.support.errors import shown

Fields = dict[str, Any]

_LONGEST = 100  # the comparison of two names takes the product of their lengths
_REASONING = ("reasoning_content", "thinking")
_CARRY_CONTENT = frozenset(
    {
        "audio",
        "attachments",
        "documents",
        "file",
        "files",
        "image",
        "image_url",
        "images",
        "input_audio",
        "video",
        "videos",
    }
)
"""Fields of other interfaces for content that this engine cannot show to a model."""
_IMAGES = {"image": "image", "image_url": "image_url", "input_image": "image_url"}
_SOUNDS = {"audio": "audio", "input_audio": "input_audio"}
"""The field that holds the picture or the sound in a part of each type."""
_PART_TYPES = frozenset(["text", "input_text", "output_text", "file", "input_file", "video", *_IMAGES, *_SOUNDS])
"""The types of content parts in OpenAI's and Anthropic's interfaces."""
_MESSAGE = frozenset({"role", "content", "reasoning", "tool_calls", "tool_call_id", "name", "parts", *_REASONING})
_CALL = frozenset({"type", "id", "name", "arguments", "error", "function"})


def fields_of(value: object) -> Fields | None:
    """Returns the fields of a dictionary, or of an SDK's object (anything with `model_dump`); None for anything
    else."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in cast("Mapping[object, Any]", value).items()}
    dump: Any = getattr(value, "model_dump", None)
    return cast("Fields", dump()) if callable(dump) and not isinstance(value, type) else None


def message_fields(given: Fields) -> Fields:
    """Returns a message's fields under our names. Raises ValueError for a field that is misspelt or contains content
    that this engine cannot show to a model; drops any other unknown field."""
    data = dict(given)
    for alias in _REASONING:
        text = data.pop(alias, None)
        if data.get("reasoning") is None and text is not None:
            data["reasoning"] = text
    refusal, function = data.pop("refusal", None), data.pop("function_call", None)
    if refusal and data.get("content") is None:
        data["content"] = refusal
    if function and not data.get("tool_calls"):
        data["tool_calls"] = [{"function": function_fields(function)}]
    empty = data.get("role") == "assistant" and "content" in data and not (data.get("tool_calls") or data.get("parts"))
    if empty and data["content"] is None and not data.get("reasoning"):
        data["content"] = ""  # this is how frameworks write an answer without text
    known = _known({name: value for name, value in data.items() if value is not None}, _MESSAGE, "message")
    if not known.keys() & {"content", "reasoning", "tool_calls", "parts"}:
        others = ", ".join(map(shown, sorted(data.keys() - _MESSAGE)[:9]))
        raise ValueError(
            f"it has neither content nor tool calls{f', but unknown fields: {others}' if others else ''}; an empty "
            'message has content ""'
        )
    return known


def call_fields(given: Fields) -> Fields:
    """Returns a call's fields under our names, with its arguments as JSON text. Raises ValueError as `message_fields`
    does."""
    data = dict(given)
    function = data.pop("function", None)
    if function is not None:
        data |= function_fields(function)
    if data.get("type") == "function":
        del data["type"]
    arguments = data.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        data["arguments"] = json_text(arguments)
    return _known({name: value for name, value in data.items() if value is not None}, _CALL, "tool call")


def function_fields(function: object) -> Fields:
    """Returns the name and arguments of an OpenAI call's `function`. Raises ValueError if it is not an object."""
    found = fields_of(function)
    if found is None:
        raise ValueError(f'the function of a call is {shown(function)}; write {{"name": "...", "arguments": "..."}}')
    return found


def content_text(role: object, value: object) -> object:
    """Returns content as text: a list of text parts joined, a tool's result that is not text as JSON. Other values are
    returned unchanged. Raises ValueError for a part that is not text."""
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        is_data = role == "tool" and not (items and all(map(_is_part, items)))
        return json_text(items) if is_data else "\n".join(map(text_of_part, items))
    if role == "tool" and value is not None and not isinstance(value, str):
        return json_text(value)
    return value


def json_text(value: object) -> str:
    """Returns a value as JSON text. Raises ValueError for a value that JSON cannot represent."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError as error:
        raise ValueError(f"{error}; give text, or values that JSON can hold") from error
    except RecursionError as error:
        raise ValueError("it nests too deep for JSON, or holds itself; give a flatter value") from error


def _is_part(item: object) -> bool:
    """Whether an item is a content part rather than data: a text, or an object with the type of a part."""
    return isinstance(item, str) or (fields_of(item) or {}).get("type") in _PART_TYPES


def text_of_part(item: object) -> str:
    """Returns the text of a content part. Raises ValueError for one that is not text."""
    if isinstance(item, str):
        return item
    part = fields_of(item) or {}
    text, kind = part.get("text"), part.get("type")
    if not isinstance(text, str):
        what = f"this one is of type {shown(kind)}" if isinstance(kind, str) else f"this one is {shown(item)}"
        raise ValueError(f"content parts must be text, images or sounds, but {what}; put what it says into a text")
    return text


def media_part(item: object) -> Fields | None:
    """Returns a content part with a picture or a sound under our names: its type, and its object or its address (base64
    for sounds) in a field of that name; None for any other part. `detail` has no effect. Raises ValueError for a part
    without either."""
    part = {} if isinstance(item, str) else fields_of(item) or {}
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _IMAGES | _SOUNDS:
        return None
    name = "image" if kind in _IMAGES else "audio"
    value = part.get(field := (_IMAGES | _SOUNDS)[kind])
    if (inner := fields_of(value)) is not None:
        value = inner.get("url" if name == "image" else "data")
    if value is None:
        also = " (file_id names a file of another service)" if part.get("file_id") else ""
        raise ValueError(f"a content part of type {shown(kind)} needs its {field!r}{also}; send a data: URL")
    return {"type": name, name: value}


def _known(data: Fields, names: frozenset[str], what: str) -> Fields:
    for name in sorted(data.keys() - names):
        value = data.pop(name)
        if value is None or value in ("", [], {}, ()):
            continue
        if len(name) <= _LONGEST and (near := get_close_matches(name, names, n=1, cutoff=0.8)):
            raise ValueError(f"a {what} has no field {shown(name)}; did you mean {near[0]!r}?")
        if name in _CARRY_CONTENT:
            raise ValueError(
                f"the field {shown(name)} holds content that this engine cannot show to a model; put text into "
                "'content'"
            )
    return data
