"""OpenAI's wire format and this package's own records, each made of the other.

    client = engine.openai.OpenAI(llm)  # the real `openai` client, over an engine in this process
    client = openai.OpenAI(http_client=httpx.Client(transport=engine.openai.transport(llm)), ...)

Knows: Chat Completions, as a client of a server (`engine.openai.chat`) and as what a client of OpenAI's talks to. Does
not know: sockets, models. Only `OpenAI` and `AsyncOpenAI` need the `openai` package, and `transport` one of httpx and
httpx2; they are imported when called.
"""

from engine.openai.client import AsyncOpenAI, OpenAI
from engine.openai.transport import transport

__all__ = ["AsyncOpenAI", "OpenAI", "transport"]
