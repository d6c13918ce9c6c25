"""Texts made into tokens and back, and callers' tokens checked."""

from collections.abc import Iterable, Sequence
from operator import index

from engine.runtime.loop.backend import Vocab
from engine.runtime.media.media import are_whole
from engine.support.errors import RequestError, shown
from engine.types.prompt import Piece, Prompt


def tokenize(vocab: Vocab, text: object, *, special: bool, add_bos: bool) -> list[int]:
    """Returns the tokens of a text. `special`: texts of control tokens become control tokens; `add_bos`: add the
    beginning token, if prompts of this model have one. Raises RequestError if `text` is not a string."""
    if not isinstance(text, str):
        raise RequestError(f"tokenize() takes a string; this is a {type(text).__name__}.")
    return vocab.encode([Piece(text, trusted=special)], add_bos=add_bos)


def detokenize(vocab: Vocab, tokens: Iterable[int]) -> str:
    """Returns the text of tokens, control tokens as their texts; bytes that are not UTF-8 become U+FFFD. Raises
    RequestError for a token that the vocabulary does not have."""
    return text_of(vocab, tokens_of(vocab, tokens))


def tokens_of(vocab: Vocab, tokens: Iterable[int]) -> tuple[int, ...]:
    """Returns a caller's list of tokens. Raises RequestError for what is none of this vocabulary's."""
    if isinstance(tokens, Prompt):
        raise RequestError("This is a rendered prompt: llm.complete(prompt.text) continues it.")
    if isinstance(tokens, str | bytes | bytearray):
        raise RequestError(f"Tokens must be a list of integers; this is a {type(tokens).__name__}.")
    try:
        known = tuple(map(index, tokens))
    except TypeError as error:
        raise RequestError(f"Tokens must be a list of integers ({error}); pass one, or one text.") from error
    return known_tokens(vocab, known)


def known_tokens(vocab: Vocab, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the tokens. Raises RequestError for one that the vocabulary does not have."""
    if wrong := [token for token in tokens if not 0 <= token < vocab.size]:
        raise RequestError(f"There is no token {shown(wrong[0])}; this model has the tokens 0 to {vocab.size - 1}.")
    return tokens


def check_known(vocab: Vocab, tokens: tuple[int, ...]) -> None:
    """Raise RequestError for a token that is neither the vocabulary's nor a row of a whole picture or sound."""
    known_tokens(vocab, tuple(token for token in tokens if token >= 0) if are_whole(tokens) else tokens)


def check_end(tokens: Sequence[int]) -> None:
    """Raise RequestError for a prompt after which nothing can be drawn."""
    if tokens[-1] < 0:
        raise RequestError("The prompt ends with a picture or a sound; let text follow it.")


def text_of(vocab: Vocab, tokens: Iterable[int]) -> str:
    """Returns the text of this vocabulary's tokens; bytes that are not UTF-8 become U+FFFD."""
    return b"".join(map(vocab.token_bytes, tokens)).decode(errors="replace")
