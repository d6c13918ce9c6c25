"""The tokens of a model: their bytes and kinds, and the tokenization of a prompt in which callers cannot forge tokens.

Four quirks matter. llama_tokenize turns the text of *user-defined* tokens into those tokens even with
`parse_special=False`, so callers' text is cut inside every such spelling. And vocabularies with a space prefix put a
space before each separately tokenised text, so a text that continues another is tokenised after an anchor, whose tokens
are then dropped.

The other two would end the process. Most byte-level vocabularies are split into words by std::regex, which recurses
once for each character of a match: some 25,000 letters, spaces or signs in a row overflow a stack of 8 MiB. So a long
text is tokenised in windows; with sentencepiece too, where llama.cpp takes time quadratic in a text's emoji and control
tokens. And a sentencepiece vocabulary without byte tokens throws a C++ exception at a character that it lacks, so such
a text is refused.
"""

import ctypes
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache, partial
from itertools import groupby, islice, pairwise, repeat, takewhile

from engine.llama.lib import brief, library
from engine.llama.lifetime import Shared
from engine.runtime.loop.backend import FimTokens, is_marker
from engine.support.errors import EngineError, RequestError
from engine.types.prompt import Piece

# enum llama_token_attr (llama.h)
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1 << 0, 1 << 3, 1 << 4, 1 << 5
_SENTENCEPIECE, _BYTE_PAIRS, _WORDPIECE = 1, 2, 3  # enum llama_vocab_type
_WINDOW = 4096
"""The most characters that are tokenised at once; only runs of one kind of character are longer words."""
_REMEMBERED = 256
"""How many windows are remembered (2 MiB of English, at most 20): the next turn of a conversation has the same ones."""
_STEPS = 4
_SPECIAL = _CONTROL | _USER_DEFINED
# Characters that no merge crosses in the vocabularies seen; each is tested before use.
_ANCHORS = ("\n", "\x01", "\x02", "!", ".")


class LlamaVocab:
    """The tokens of one model; implements `engine.runtime.loop.backend.Vocab`. Thread-safe. Raises EngineError once the
    model is closed.
    """

    def __init__(self, model: Shared) -> None:
        self._lib = lib = library()
        self._model = model
        with model as pointer:
            self._pointer = vocab = int(lib.llama_model_get_vocab(pointer))
        self._remembered = lru_cache(_REMEMBERED)(partial(_tokenized, model, vocab))
        self.size = int(lib.llama_vocab_n_tokens(vocab))
        attributes: list[int] = list(map(brief("llama_vocab_get_attr"), repeat(vocab), range(self.size)))
        self._bytes: list[bytes | None] = [None] * self.size
        marked = [token for token, value in enumerate(attributes) if value & (_SPECIAL | _UNKNOWN)]
        # A broken vocabulary may have empty special tokens: their text could be found everywhere.
        texts = {token: text for token in marked if (text := self.token_bytes(token).decode("utf-8", "replace"))}
        special = {token for token, text in texts.items() if attributes[token] & _SPECIAL and is_marker(text)}
        self._special = bytes([token in special for token in range(self.size)])
        self._control = frozenset(map(texts.__getitem__, special))
        # In all vocabularies of chat models end tokens are special; eos may be any token, so it is queried separately.
        ends = {token for token in (*marked, lib.llama_vocab_eos(vocab), lib.llama_vocab_eot(vocab)) if token >= 0}
        self._ends = frozenset(token for token in ends if lib.llama_vocab_is_eog(vocab, token))
        self._forgeable = Spellings(filter(is_marker, texts.values()))
        self._bos = int(lib.llama_vocab_bos(vocab)) if lib.llama_vocab_get_add_bos(vocab) else -1
        kind = int(lib.llama_vocab_type(vocab))
        eos, sep = (int(token) for token in (lib.llama_vocab_eos(vocab), lib.llama_vocab_sep(vocab)))
        ends = [token for token in (eos, sep) if token >= 0]
        self._eos = tuple(ends[:1]) if lib.llama_vocab_get_add_eos(vocab) else ()
        self._sep = (sep,) if sep >= 0 and lib.llama_vocab_get_add_sep(vocab) else ()
        if kind == _WORDPIECE and self._eos:  # BERT's SEP is its EOS, and stands once
            self._sep = ()
        self._in_windows = kind in (_BYTE_PAIRS, _SENTENCEPIECE)
        self._spellable = self._find_spellable(attributes) if kind == _SENTENCEPIECE else None
        self._whole_tokens: dict[bool, re.Pattern[str]] = {}
        if self._spellable is not None:
            users = (text for token, text in texts.items() if attributes[token] & _USER_DEFINED)
            # The texts that are one token, with (True) and without (False) recognising control tokens.
            self._whole_tokens = {True: _any_of(texts.values()), False: _any_of(users)}
        self._anchor = self._find_anchor()

    @property
    def control_tokens(self) -> frozenset[str]:
        return self._control

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end generation."""
        return self._ends

    @property
    def adds_bos(self) -> bool:
        """Whether a prompt of this model begins with the BOS token."""
        return self._bos >= 0

    @property
    def fim(self) -> FimTokens | None:
        names = ("pre", "suf", "mid", "rep", "sep")
        found = [int(getattr(self._lib, f"llama_vocab_fim_{name}")(self.handle)) for name in names]
        return FimTokens(*found) if min(found[:3]) >= 0 else None

    @property
    def closing(self) -> tuple[int, ...]:
        """EOS or, for WordPiece, SEP, if the vocabulary adds one."""
        return self._eos or self._sep

    @property
    def between(self) -> tuple[int, ...]:
        return self._eos + self._sep

    @property
    def handle(self) -> int:
        """The llama_vocab pointer. Raises EngineError once the model is closed."""
        with self._model:
            return self._pointer

    def is_special(self, token: int) -> bool:
        return bool(self._special[token])

    def is_end(self, token: int) -> bool:
        return token in self._ends

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes of one token; of a control token, its text. Raises EngineError for an unknown token."""
        if not 0 <= token < self.size:
            raise EngineError(f"Token {token} does not exist; this vocabulary has the tokens 0 to {self.size - 1}.")
        if (known := self._bytes[token]) is not None:
            return known
        function = self._lib.llama_token_to_piece
        length = 64
        while True:
            buffer = ctypes.create_string_buffer(length)
            with self._model:
                written = function(self._pointer, token, buffer, length, 0, True)
            if written >= 0:
                found = self._bytes[token] = buffer.raw[:written]
                return found
            length = -written

    def all_token_bytes(self) -> list[bytes]:
        """Returns what `token_bytes` returns of all tokens, in a quarter of the time."""
        function, length = brief("llama_token_to_piece"), 64
        buffer = ctypes.create_string_buffer(length)
        with self._model:
            for token, known in enumerate(self._bytes):
                if known is None and (written := function(self._pointer, token, buffer, length, 0, True)) >= 0:
                    self._bytes[token] = buffer.raw[:written]
        return [self.token_bytes(token) for token in range(self.size)]

    @cached_property
    def by_text(self) -> list[tuple[bytes, int]]:
        """The tokens that are text, in the order of their bytes."""
        return sorted((data, at) for at, data in enumerate(self.all_token_bytes()) if data and not self.is_special(at))

    @cached_property
    def longest_text(self) -> int:
        """The bytes of the longest token that is text."""
        return max((len(data) for data, _ in self.by_text), default=0)

    def beginning_with(self, data: bytes) -> list[int]:
        """Returns the tokens that are text and begin with these bytes."""
        start = bisect_left(self.by_text, (data, -1))
        return [
            token for _, token in takewhile(lambda each: each[0].startswith(data), islice(self.by_text, start, None))
        ]

    def text(self, token: int) -> str:
        """Returns the text of one token; "" for -1, a token that the vocabulary does not have."""
        return self.token_bytes(token).decode("utf-8", "replace") if token >= 0 else ""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Tokenize a text that continues another: nothing is added at either end, not even a space. Without `special`
        it forms neither control nor user-defined tokens."""
        segments = [text] if special else self._segments([Piece(text)])
        return [token for segment in segments for token in self._continue(segment, special=special)]

    def encode(self, pieces: Sequence[Piece], *, add_bos: bool) -> list[int]:
        """Tokenize a prompt. If no callers' text spells a token, this is the same as tokenising the whole text."""
        joined = [
            Piece("".join(piece.text for piece in group), trusted=trusted)
            for trusted, group in groupby((piece for piece in pieces if piece.text), key=lambda piece: piece.trusted)
        ]
        first, *others = self._segments(joined)
        tokens = self._raw(first, special=True)
        for segment in others:
            tokens += self._continue(segment, special=True)
        if add_bos and self._bos >= 0 and tokens[:1] != [self._bos]:
            tokens.insert(0, self._bos)
        return tokens

    def _segments(self, pieces: Sequence[Piece]) -> list[str]:
        """Returns the pieces' text, cut inside every spelling of a token that is not all in trusted pieces."""
        text = "".join(piece.text for piece in pieces)
        return [text[start:end] for start, end in pairwise((0, *self._forgeable.cuts(text, pieces), len(text)))]

    def _raw(self, text: str, *, special: bool) -> list[int]:
        first, *others = self._parts(text, special=special)
        tokens = self._at_once(first, special=special)
        for part in others:
            tokens += self._behind_anchor(part, special=special)
        return tokens

    def _continue(self, text: str, *, special: bool) -> list[int]:
        if not text:
            return []
        return [
            token for part in self._parts(text, special=special) for token in self._behind_anchor(part, special=special)
        ]

    def _parts(self, text: str, *, special: bool) -> list[str]:
        """Split the text into windows. Raises RequestError for a character that no tokens spell."""
        if self._spellable is not None:
            self._check_spellable(self._whole_tokens[special].sub("", text))
        return self._forgeable.windows(text, _WINDOW) if self._in_windows and len(text) > _WINDOW else [text]

    def _behind_anchor(self, text: str, *, special: bool) -> list[int]:
        if self._anchor is None:
            return self._at_once(text, special=special)
        anchor, expected = self._anchor
        tokens = self._at_once(anchor + text, special=special)
        return tokens[len(expected) :] if tokens[: len(expected)] == expected else self._at_once(text, special=special)

    def _at_once(self, text: str, *, special: bool) -> list[int]:
        is_window = _WINDOW // 2 < len(text) <= _WINDOW + 1  # with an anchor; some vocabularies are not read in windows
        tokenized = self._remembered if is_window else self._remembered.__wrapped__
        return tokenized(text, special).tolist()

    def _find_spellable(self, attributes: Sequence[int]) -> frozenset[bytes] | None:
        """Returns the texts of all tokens if some byte has no token; None for a vocabulary that can spell
        everything."""
        text = self._lib.llama_vocab_get_text
        names = {b"<0x%02X>" % byte for byte in range(256)}
        with self._model:
            if names <= {text(self._pointer, token) for token, value in enumerate(attributes) if value & _BYTE}:
                return None
            return frozenset(text(self._pointer, token) for token in range(self.size))

    def _check_spellable(self, text: str) -> None:
        """Raise RequestError for a character that is not a token and has a byte that is not one. llama.cpp may put a
        space, "▁" in the vocabulary, before the text."""
        for character in sorted(set(text.replace(" ", "▁")) | {"▁"}):
            data = character.encode("utf-8", "replace")
            missing = [byte for byte in data if not {b"<0x%02X>" % byte, bytes([byte])} & (self._spellable or set())]
            if missing and data not in (self._spellable or ()):
                raise RequestError(
                    f"This model's vocabulary has no token for the character {character!r}, nor for its bytes; leave "
                    "it out, or use another model."
                )

    def _find_anchor(self) -> tuple[str, list[int]] | None:
        """Returns an anchor and its tokens; None if the vocabulary puts no space before a text, or cannot spell an
        anchor."""
        try:
            return self._anchor_found()
        except RequestError:
            return None

    def _anchor_found(self) -> tuple[str, list[int]] | None:
        if not self._spelt(self._raw("a", special=False)).startswith(b" "):
            return None
        for anchor in _ANCHORS:
            expected = self._raw(anchor, special=False)
            tokens = self._raw(anchor + "a", special=False)
            if tokens[: len(expected)] == expected and self._spelt(tokens[len(expected) :]) == b"a":
                return anchor, expected
        return None

    def _spelt(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.token_bytes, tokens))


def _tokenized(model: Shared, vocab: int, text: str, special: bool) -> "array[int]":
    # A lone surrogate has no UTF-8 form; llama.cpp would throw a C++ exception.
    data = text.encode("utf-8", "replace")
    capacity = len(data) + 8
    while True:
        buffer = (ctypes.c_int32 * capacity)()
        with model:
            count = library().llama_tokenize(vocab, data, len(data), buffer, capacity, False, special)
        if count >= 0:
            return array("i", memoryview(buffer).cast("B")[: 4 * count].tobytes())
        if count == -(2**31):
            raise EngineError(f"A text of {len(data):,} bytes is too long to tokenise; shorten it.")
        capacity = -count


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern for these texts that prefers the longest."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


class Spellings:
    """The texts of tokens that callers must not forge; finds where to cut a text so that none of them is left complete.

    Whitespace tokens and single characters are not included: they have no other meaning when a caller writes them.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        self._lengths: dict[str, list[int]] = {}
        for text in self._texts:
            lengths = self._lengths.setdefault(text[0], [])
            if len(text) not in lengths:
                lengths.append(len(text))
        for lengths in self._lengths.values():
            lengths.sort(reverse=True)
        self._longest_text = max(map(len, self._texts), default=0)
        self._heads = re.compile("[" + re.escape("".join(self._lengths)) + "]") if self._texts else None

    def cuts(self, text: str, pieces: Sequence[Piece]) -> list[int]:
        """Returns positions, ascending, such that no token's text with a character of a plain piece lies between two of
        them."""
        found: list[int] = []
        start = 0
        for piece in pieces:
            end = start + len(piece.text)
            for head in self._heads.finditer(text, start, end) if self._heads else ():
                position = head.start()
                length = self._longest(text, position)
                if not length:
                    continue
                if not piece.trusted:
                    found.append(position + 1)
                elif position + length > end:
                    found.append(end)
            start = end
        return sorted(set(found))

    def windows(self, text: str, size: int) -> list[str]:
        """Split a text into parts of at most `size` characters without cutting a token's text, if possible before a
        space between two words: no vocabulary has words across it, so the tokens stay the same."""
        parts: list[str] = []
        start = 0
        while len(text) - start > size:
            least = start + size // 2
            cut = text.rfind(" ", least, start + size)
            while cut >= 0 and not self._between_words(text, cut):
                cut = text.rfind(" ", least, cut)
            cut = max(self._whole(text, cut if cut >= 0 else start + size), start + 1)
            parts.append(text[start:cut])
            start = cut
        return [*parts, text[start:]]

    def _between_words(self, text: str, cut: int) -> bool:
        """Whether the space there is between two letters and in no token's text."""
        return text[cut - 1].isalpha() and text[cut + 1].isalpha() and self._whole(text, cut) == cut

    def _whole(self, text: str, cut: int) -> int:
        """Returns a position at or shortly before `cut` that is not inside a token's text; in a long run of overlapping
        ones, such as "====" with the token "==", it may be inside one after all."""
        for _ in range(_STEPS):
            position = self._across(text, cut)
            if position == cut:
                break
            cut = position
        return cut

    def _across(self, text: str, cut: int) -> int:
        """Returns where the first token's text that spans the cut begins; the cut itself if none does."""
        for position in range(max(0, cut - self._longest_text + 1), cut):
            for length in self._lengths.get(text[position], ()):
                if length > cut - position and text[position : position + length] in self._texts:
                    return position
        return cut

    def _longest(self, text: str, position: int) -> int:
        room = len(text) - position
        return next(
            (n for n in self._lengths[text[position]] if n <= room and text[position : position + n] in self._texts), 0
        )
