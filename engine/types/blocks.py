"""Parts of turns as blocks for display."""

from collections.abc import Iterable

from engine.support.display import Block
from engine.types.media import Image, ImageLink, Media
from engine.types.parts import MediaPart, ReasoningPart, TextPart, ToolCall


def media_block(media: Media | ImageLink) -> Block:
    """Returns a picture, or what a sound is, for display."""
    return Block("media", media.about, picture=media.preview() if isinstance(media, Image) else "")


def call_block(name: str, arguments: str, error: str | None, inside: tuple[Block, ...] = ()) -> Block:
    """Returns a call for display; `inside` is its result."""
    wrong = (Block("notice", f"[{error}]", failed=True),) if error else ()
    return Block("call", arguments, name, failed=bool(error), inside=(*wrong, *inside))


def result_block(content: str, parts: Iterable[object], *, failed: bool, seconds: float | None) -> Block:
    """Returns a tool's result for display, which belongs inside its call."""
    pictures = tuple(media_block(part.media) for part in parts if isinstance(part, MediaPart))
    for picture in pictures:  # what stands for it in the text is no news beside it
        content = content.replace(f"[{picture.text}]", "", 1)
    return Block("result", content, failed=failed, seconds=seconds, inside=pictures)


def part_blocks(parts: Iterable[object]) -> list[Block]:
    """Returns what a model wrote for display."""
    blocks: list[Block] = []
    for part in parts:
        match part:
            case ReasoningPart(text=text):
                blocks.append(Block("reasoning", text))
            case TextPart(text=text):
                blocks.append(Block("content", text))
            case ToolCall():
                blocks.append(call_block(part.name, part.arguments, part.error))
            case _:
                pass
    return blocks
