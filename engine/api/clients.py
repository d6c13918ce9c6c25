"""The methods of an engine, and of several, that make the `openai` package's clients; their code is imported then."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.openai.client import AsyncClient, Client
    from engine.openai.streaming import EngineLike


def openai_client(engines: "EngineLike | Mapping[str, EngineLike]", **options: Any) -> "Client":
    """Returns the `openai` package's client over this: `engine.openai.OpenAI(llm, **options)`."""
    from engine.openai.client import OpenAI

    return OpenAI(engines, **options)


def async_openai_client(engines: "EngineLike | Mapping[str, EngineLike]", **options: Any) -> "AsyncClient":
    """`openai_client` for an event loop."""
    from engine.openai.client import AsyncOpenAI

    return AsyncOpenAI(engines, **options)
