"""A vocabulary in the form that llguidance asks for, here and in the child that tries grammars."""

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any, Protocol

from engine.support.errors import RequestError

_SEPARATOR = b"\n"


class VocabularyTokens(Protocol):
    """What is read of a model's tokens."""

    @property
    def size(self) -> int: ...
    def all_token_bytes(self) -> list[bytes]: ...
    def is_special(self, token: int) -> bool: ...
    def is_end(self, token: int) -> bool: ...


def llguidance() -> Any:
    """Returns the library, imported at the first constraint. Raises RequestError if it cannot be loaded."""
    try:
        import llguidance as library
    except ImportError as error:
        raise RequestError(
            f"Constraints need llguidance, which cannot be loaded ({error}). Where the address space is limited "
            "(`ulimit -v`), raise the limit; otherwise reinstall it: pip install --force-reinstall llguidance."
        ) from error
    return library


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of each token, which tokens are control tokens or end a text (no text of a grammar is written with
    these), and the end token."""

    tokens: Sequence[bytes]
    special: Sequence[int]
    end: int

    @classmethod
    def of(cls, tokens: VocabularyTokens) -> "Vocabulary":
        """Returns that of a model."""
        numbers = range(tokens.size)
        special = [token for token in numbers if tokens.is_special(token) or tokens.is_end(token)]
        return cls(tokens.all_token_bytes(), special, next(filter(tokens.is_end, numbers), tokens.size - 1))

    @classmethod
    def of_bytes(cls) -> "Vocabulary":
        """Returns the least one, for grammars that name no token: each byte, and an end."""
        return cls([*(bytes([byte]) for byte in range(256)), b"<|end|>"], [256], 256)

    @cached_property
    def packed(self) -> bytes:
        """The whole as bytes, which `unpacked` reads."""
        head = json.dumps({"end": self.end, "special": list(self.special), "count": len(self.tokens)}).encode()
        return b"".join((head, _SEPARATOR, array("I", map(len, self.tokens)).tobytes(), *self.tokens))

    @cached_property
    def name(self) -> str:
        """What tells it apart from others."""
        return sha256(self.packed).hexdigest()

    @classmethod
    def unpacked(cls, data: bytes) -> "Vocabulary":
        """Returns the vocabulary that was packed."""
        head, _, rest = data.partition(_SEPARATOR)
        about = json.loads(head)
        lengths = array("I")
        start = about["count"] * lengths.itemsize
        lengths.frombytes(rest[:start])
        places = accumulate(lengths, initial=start)
        return cls([rest[begin:end] for begin, end in pairwise(places)], about["special"], about["end"])

    def tokenizer(self, tokenize: Callable[[str], list[int]] | None = None) -> Any:
        """Returns llguidance's tokenizer. `tokenize`: as the model does it; None: byte by byte."""
        library = llguidance()
        wrapped = _Wrapped(self, tokenize or _bytewise(self))
        return library.LLTokenizer(
            library.TokenizerWrapper(wrapped), n_vocab=len(self.tokens), eos_token=wrapped.eos_token_id
        )


def _bytewise(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    special = frozenset(vocabulary.special)
    of_byte = {
        data[0]: token for token, data in enumerate(vocabulary.tokens) if len(data) == 1 and token not in special
    }

    def tokens(text: str) -> Iterator[int]:
        return (of_byte[byte] for byte in text.encode("utf-8", "replace") if byte in of_byte)

    return lambda text: list(tokens(text))


class _Wrapped:
    """What llguidance's wrapper asks for."""

    def __init__(self, vocabulary: Vocabulary, tokenize: Callable[[str], list[int]]) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special
        self.bos_token_id = None
        self.eos_token_id = vocabulary.end
        self._tokenize = tokenize

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenize(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
