"""A vocabulary without a model: one token for each byte, and control tokens."""

import re
from collections.abc import Sequence

from engine.runtime.loop.backend import FimTokens, is_marker
from engine.types.prompt import Piece


class ByteVocab:
    """A vocabulary of 256 tokens, one for each byte, followed by the control tokens in the order given.

    `control`: the texts of the control tokens; `end`: those that end a generation (they need not be repeated in
    `control`); the first of `end` is what ScriptedBackend writes when a reply is over. `bos`: the token that `encode`
    puts first when asked to.
    """

    def __init__(
        self, control: Sequence[str] = (), *, end: Sequence[str] = ("<|im_end|>",), bos: str | None = None
    ) -> None:
        if not end:
            raise ValueError("a vocabulary needs at least one end token: ByteVocab(end=['<|im_end|>'])")
        texts: dict[str, None] = dict.fromkeys([*control, *end, *([bos] if bos else [])])
        self._ids = {text: 256 + index for index, text in enumerate(texts)}
        self._bytes = [bytes([value]) for value in range(256)] + [text.encode() for text in texts]
        self._ends = frozenset(self._ids[text] for text in end)
        self._control = frozenset(filter(is_marker, texts))
        self._special = frozenset(map(self._ids.__getitem__, self._control))
        self._bos = bos
        self.end = self._ids[end[0]]
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("(" + "|".join(re.escape(text) for text in longest_first) + ")")

    @property
    def size(self) -> int:
        return len(self._bytes)

    @property
    def control_tokens(self) -> frozenset[str]:
        """The texts of the control tokens."""
        return self._control

    def token(self, text: str) -> int:
        """Returns the id of a control token."""
        return self._ids[text]

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Returns the bytes of a text; with `special`, control-token text becomes control tokens."""
        if not special:
            return list(text.encode("utf-8", "replace"))
        tokens: list[int] = []
        for part in self._pattern.split(text):
            tokens.extend([self._ids[part]] if part in self._ids else part.encode("utf-8", "replace"))
        return tokens

    def encode(self, pieces: Sequence[Piece], *, add_bos: bool) -> list[int]:
        """Returns the tokens of a prompt; only pieces that are `trusted` can form control tokens."""
        tokens = [self._ids[self._bos]] if add_bos and self._bos else []
        for piece in pieces:
            tokens += self.tokenize(piece.text, special=piece.trusted)
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def all_token_bytes(self) -> list[bytes]:
        return [self.token_bytes(token) for token in range(self.size)]

    def is_special(self, token: int) -> bool:
        return token in self._special

    def is_end(self, token: int) -> bool:
        return token in self._ends

    @property
    def fim(self) -> FimTokens | None:
        names = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
        known = [self._ids.get(name, -1) for name in names]
        return FimTokens(*known) if min(known[:3]) >= 0 else None

    @property
    def closing(self) -> tuple[int, ...]:
        return ()

    @property
    def between(self) -> tuple[int, ...]:
        return tuple(b"\n")

    def text(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, including control tokens."""
        return b"".join(self._bytes[token] for token in tokens).decode(errors="replace")
