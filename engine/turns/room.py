"""A lower bound on a prompt's tokens that costs nothing: what is far too long is refused before it is rendered."""

from collections.abc import Callable, Sequence

from engine.support.errors import ContextOverflowError
from engine.types.messages import DocumentLike, Message
from engine.types.tools import Tool


def check_room(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    documents: Sequence[DocumentLike],
    n_ctx: int,
    longest: Callable[[], int],
) -> None:
    """Raise ContextOverflowError for a prompt that has more than `n_ctx` tokens however it is rendered and tokenized.
    `longest`: the bytes of the vocabulary's longest token.

    Each message, tool and document is a token at least. What earlier answers say is not counted further, since
    templates leave out their reasoning, nor are the schemas of tools, which some write in a shorter form.
    """
    texts = [message.content or "" for message in messages if message.role != "assistant"]
    texts += [tool.description for tool in tools]
    texts += [document for document in documents if isinstance(document, str)]
    least = len([1 for message in messages if message.content or message.tool_calls]) + len(tools) + len(documents)
    if least + sum(map(len, texts)) <= n_ctx:
        return
    if least <= n_ctx:
        token = max(1, longest())
        least += sum(max(0, len(text.strip()) // token - 1) for text in texts)
    if least > n_ctx:
        raise ContextOverflowError(
            f"The prompt has at least {least:,} tokens, and a conversation may hold n_ctx={n_ctx:,}. Shorten it, or "
            "load with a larger n_ctx=."
        )
