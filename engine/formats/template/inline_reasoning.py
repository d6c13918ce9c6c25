"""Reasoning that callers send inside an answer's text, moved to its own field."""

from engine.formats.families import Format
from engine.types.messages import Message


def without_inline_reasoning(message: Message, format_: Format) -> Message:
    """Move reasoning that an assistant message's content begins with, in the family's markers, to its own field.

    Callers who send raw output back, including markers, mean that; an output cut off inside its reasoning has no
    closing marker. A message that already has `reasoning` is not changed.
    """
    syntax = format_.reasoning
    if message.role != "assistant" or message.reasoning is not None or not message.content or not syntax:
        return message
    opening, closing = syntax.open.strip(), syntax.close.strip()
    if format_.channels or not opening or not closing:
        return message
    head, closed, rest = message.content.partition(closing)
    bare = head.lstrip()
    if bare.startswith(opening):
        inside = bare[len(opening) :]
    elif closed and syntax.forced_open and opening not in head:
        inside = head
    else:
        return message
    beside = (syntax.open.partition(opening)[2], *syntax.close.split(closing, 1))
    return message.model_copy(
        update={
            "reasoning": inside.removeprefix(beside[0]).removesuffix(beside[1]),
            "content": rest.removeprefix(beside[2]).lstrip("\n"),
            "parts": (),
        }
    )
