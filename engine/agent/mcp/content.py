"""Converts the result of an MCP tool into what a model reads."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.tools import ToolOutcome, tool_error, unshown
from engine.types.media import EncodedMedia
from engine.types.parts import TextPart, whole_characters

if TYPE_CHECKING:
    from mcp.types import AudioContent, CallToolResult, ContentBlock, ImageContent


def outcome_of(result: "CallToolResult", most: int) -> ToolOutcome:
    """Returns the first `most` characters of a result, as the model reads it; pictures and sounds for models that take
    them. `isError` makes it a tool's error."""
    text = "\n".join(map(_block_text, result.content))
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    if result.is_error:
        return tool_error(cut(text or "the tool failed and gave no reason.", most))
    return ToolOutcome(cut(text or "(The tool returned nothing.)", most), parts=_parts(result.content, most))


def _parts(blocks: "Sequence[ContentBlock]", most: int) -> "tuple[TextPart | EncodedMedia, ...]":
    """Returns the blocks as parts, if one is a picture or a sound; their texts have `most` characters together."""
    if not any(block.type in ("image", "audio") for block in blocks):
        return ()
    parts: list[TextPart | EncodedMedia] = []
    for block in blocks:
        if block.type == "image" or block.type == "audio":
            parts.append(_encoded(block))
        elif most > 0:
            parts.append(TextPart(text=cut(text := _block_text(block), most)))
            most -= len(text)
    return tuple(parts)


def _encoded(block: "ImageContent | AudioContent") -> EncodedMedia:
    return EncodedMedia(
        block.type, block.data, f"{block.type}, {whole_characters(block.mime_type)}, {_size(block.data)}"
    )


def cut(text: str, most: int) -> str:
    """Returns the text's first `most` characters; if there are more, a line after them says so."""
    text = whole_characters(text)
    if len(text) <= most:
        return text
    return f"{text[:most]}\n(Cut here: these are the first {most:,} of {len(text):,} characters.)"


def _block_text(block: "ContentBlock") -> str:
    """Returns one piece of content as text. Content other than text is named, so that the model knows about it."""
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return unshown(_encoded(block))
        case "resource_link":
            kind = f", {block.mime_type}" if block.mime_type else ""
            return f"(Link to the resource {block.name!r}: {block.uri}{kind}.)"
        case "resource":
            resource = block.resource
            if (text := getattr(resource, "text", None)) is not None:
                return f"(Resource {resource.uri}:)\n{text}"
            about = f"{resource.mime_type or 'of no stated type'}, {_size(getattr(resource, 'blob', ''))}"
            return f"(Resource {resource.uri}, {about}: not shown, as only text can be.)"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4:,} bytes"
