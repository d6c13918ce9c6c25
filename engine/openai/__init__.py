"""Converts between OpenAI's wire format and this package's own records, in both directions.

    client = engine.openai.OpenAI(llm)  # the real `openai` client, over an engine in this process
    client = openai.OpenAI(http_client=httpx.Client(transport=engine.openai.transport(llm)), ...)

Knows: Chat Completions and Responses, as a client of a server (`engine.openai.chat`, Chat Completions only) and as the
server of an OpenAI client. Does not know: sockets, models. `OpenAI` and `AsyncOpenAI` need the `openai` package,
`transport` needs httpx or httpx2; each is imported when called.
"""

from engine.openai.client import AsyncOpenAI, OpenAI
from engine.openai.transport import transport

__all__ = ["AsyncOpenAI", "OpenAI", "transport"]
