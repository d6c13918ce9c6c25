"""Streams: events as they come, in a plain loop; then two conversations at once under asyncio.

python examples/stream.py [MODEL.gguf]
"""

import asyncio
import sys

from engine import ContentDelta, Engine, Finished, ReasoningDelta, ToolCallDelta, ToolCallStart


def set_timer(minutes: int, label: str | None = None) -> str:
    """Set a timer.

    Args:
        minutes: How long, in minutes.
        label: What it is for.
    """
    return f"timer set to {minutes} minutes" + (f" for {label}" if label else "")


def show(llm: Engine, question: str) -> None:
    """Print each event as it arrives. Leaving the block early would stop the decode."""
    print("user:", question)
    with llm.stream(question, tools=[set_timer], temperature=0) as stream:
        for event in stream:
            match event:
                case ReasoningDelta(text):
                    print(f"({text})", end="", flush=True)
                case ContentDelta(text):
                    print(text, end="", flush=True)
                case ToolCallStart(name=name):
                    print(f"\n{name} ", end="")
                case ToolCallDelta(text=text):
                    print(text, end="|", flush=True)
                case Finished(reason):
                    print(f"\n[{reason}]")
                case _:
                    pass


async def answer(llm: Engine, question: str) -> str:
    """One conversation. The event loop is free while the engine's own thread decodes."""
    pieces = [event.text async for event in llm.stream(question, temperature=0) if isinstance(event, ContentDelta)]
    return "".join(pieces)


async def both(llm: Engine) -> None:
    questions = ("Hello!", "Who are you?")
    answers = await asyncio.gather(*(answer(llm, question) for question in questions))
    for question, text in zip(questions, answers, strict=True):
        print("user:", question)
        print("assistant:", text)


def main(model: str | None = None) -> None:
    with Engine.load(model, n_sequences=2) as llm:
        show(llm, "Set a timer for 12 minutes")
        asyncio.run(both(llm))


if __name__ == "__main__":
    main(*sys.argv[1:2])
