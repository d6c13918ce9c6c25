"""The real `openai` package's clients over engines of this process: Chat Completions, Completions and Responses.

    client = engine.openai.OpenAI(llm)
    client = openai.OpenAI(http_client=httpx.Client(transport=engine.openai.transport(llm)), ...)

`OpenAI` and `AsyncOpenAI` need the `openai` package, `transport` needs httpx or httpx2; each is imported when called.
"""

from engine.openai.client import AsyncOpenAI, OpenAI
from engine.openai.transport import transport

__all__ = ["AsyncOpenAI", "OpenAI", "transport"]


def __getattr__(name: str) -> object:
    if name == "chat":
        raise ImportError("engine.openai.chat is engine.remote now: from engine import remote.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
