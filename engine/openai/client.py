"""The `openai` package's own clients, over engines in this process.

The `openai` package is optional and imported when a client is made.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.openai.streaming import EngineLike
from engine.openai.transport import transport
from engine.support.errors import EngineError, RequestError
from engine.support.extras import install

if TYPE_CHECKING:
    import openai

    Client: TypeAlias = openai.OpenAI
    AsyncClient: TypeAlias = openai.AsyncOpenAI

BASE_URL = "http://in-process/v1"


def OpenAI(engines: EngineLike | Mapping[str, EngineLike], **options: Any) -> "Client":  # noqa: N802 - the SDK's
    """Returns the `openai` package's client over an engine, or over `{name: engine}`.

    options: the SDK's own. `max_retries` defaults to 0 and `timeout` to None, because an answer on a CPU may take
    longer than the SDK's 600 seconds, and a retry would generate it again. Raises EngineError if `openai` is not
    installed, RequestError for `http_client`, which the engine replaces.
    """
    sdk = _sdk(options)
    http = sdk.DefaultHttpxClient(transport=transport(engines), trust_env=False)
    return sdk.OpenAI(**_defaults(options), http_client=http)


def AsyncOpenAI(  # noqa: N802 - the SDK's name
    engines: EngineLike | Mapping[str, EngineLike], **options: Any
) -> "AsyncClient":
    """Returns the same client for asyncio."""
    sdk = _sdk(options)
    http = sdk.DefaultAsyncHttpxClient(transport=transport(engines), trust_env=False)
    return sdk.AsyncOpenAI(**_defaults(options), http_client=http)


def _sdk(options: Mapping[str, Any]) -> Any:
    if "http_client" in options:
        raise RequestError(
            "http_client= cannot be given, because the engine takes its place; to use a client of your own, give it "
            "engine.openai.transport(llm) as its transport, and pass it to openai.OpenAI."
        )
    try:
        import openai
    except ImportError as error:
        raise EngineError(f"The openai package is not installed: {install('openai')}.") from error
    return openai


def _defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"api_key": "in-process", "base_url": BASE_URL, "max_retries": 0, "timeout": None, **options}
