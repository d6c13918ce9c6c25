"""Text and tokens as they are, with no chat template between: tokenise, detokenise, and prompts to be continued.

Knows: what a raw prompt is, that its writer is trusted with control tokens, and how its output is read. Does not know:
messages, templates, who generates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index

from engine.errors import RequestError
from engine.parsing import Parser
from engine.parsing.piece import Piece
from engine.runtime.backend import Vocab
from engine.template.prompt import Prompt


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt and the tokens that it is sent as: None where they are made of its text."""

    prompt: Prompt
    tokens: tuple[int, ...] | None


def raw_prompt(vocab: Vocab, given: str | Sequence[int]) -> RawPrompt:
    """A text, in which control-token text is control tokens, or the tokens themselves. Raises RequestError for a token
    that the vocabulary does not have."""
    if isinstance(given, str):
        return RawPrompt(Prompt(given, (Piece(given, True),)), None)
    tokens = _numbers(vocab, given)
    text = _text(vocab, tokens)
    return RawPrompt(Prompt(text, (Piece(text, True),)), tokens)


def raw_parser() -> Parser:
    """Everything that is generated is content."""
    return Parser("content-only")


def tokenize(vocab: Vocab, text: str, *, special: bool, add_bos: bool) -> list[int]:
    """The tokens of a text; `special`: control-token text becomes control tokens; `add_bos`: with the beginning token
    that prompts of this model have."""
    return vocab.encode([Piece(text, special)], add_bos=add_bos)


def detokenize(vocab: Vocab, tokens: Iterable[int]) -> str:
    """The text of tokens, control tokens as their texts; bytes that are no UTF-8 are U+FFFD. Raises RequestError for a
    token that the vocabulary does not have."""
    return _text(vocab, _numbers(vocab, tokens))


def _numbers(vocab: Vocab, tokens: Iterable[int]) -> tuple[int, ...]:
    try:
        known = tuple(map(index, tokens))
    except TypeError as error:
        raise RequestError(f"Tokens are whole numbers in a list ({error}); give those, or a text.") from error
    if wrong := [token for token in known if not 0 <= token < vocab.size]:
        raise RequestError(f"There is no token {wrong[0]}; this model has the tokens 0 to {vocab.size - 1}.")
    return known


def _text(vocab: Vocab, tokens: Iterable[int]) -> str:
    return b"".join(map(vocab.token_bytes, tokens)).decode(errors="replace")
