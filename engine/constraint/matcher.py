"""Grammars enforced: the vocabulary's table, compiled grammars, matchers. The only importer of llguidance.

Knows: llguidance's calls, and that none of them raises for a bad grammar. Does not know: what a grammar says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.errors import RequestError


class Tokens(Protocol):
    """What of a vocabulary the table is made of."""

    @property
    def size(self) -> int: ...

    def token_bytes(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Table:
    """A vocabulary as llguidance needs it; made once for a model, which takes a second for 150,000 tokens."""

    tokenizer: Any
    size: int


class _Wrapped:
    """A vocabulary in the form that llguidance's wrapper asks for."""

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], eos: int, tokenize: Any) -> None:
        self.eos_token_id = eos
        self.bos_token_id = None
        self.tokens = tokens
        self.special_token_ids = special
        self._tokenize = tokenize

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenize(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def table(tokens: Sequence[bytes], special: Sequence[int], eos: int, tokenize: Any) -> Table:
    """`tokens`: the bytes of each. `special`: the numbers of those that no plain text holds. `tokenize`: plain text to
    numbers."""
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapped = TokenizerWrapper(_Wrapped(tokens, special, eos, tokenize))
    return Table(LLTokenizer(wrapped, n_vocab=len(tokens), eos_token=eos), len(tokens))


def compiled(table: Table, grammar: str) -> Any:
    """A matcher at the beginning of the grammar. Raises RequestError for a grammar that cannot be enforced."""
    from llguidance import LLMatcher

    matcher = LLMatcher(table.tokenizer, grammar)
    if matcher.is_error():
        raise RequestError(f"The constraint cannot be enforced: {matcher.get_error().splitlines()[0]}.")
    return matcher
