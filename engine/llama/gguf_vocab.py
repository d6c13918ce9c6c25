"""Refuses vocabularies over which llama.cpp would end the process, naming the token."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ModelLoadError
from engine.llama.gguf_header import CHARSMAP, TOKEN_TYPES, TOKENS, Header, damaged

if TYPE_CHECKING:
    import numpy as np

# enum llama_token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_SPECIAL = frozenset((_UNKNOWN, _CONTROL, _USER_DEFINED))
_SHORT = 16  # bytes
_LONGEST, _LONGEST_SPECIAL = 4096, 1024
"""The longest token, and the longest control or user-defined one, in bytes. Real vocabularies have at most 1,024 and
about 50."""
_MOST_SPECIAL = 1 << 27
"""The largest sum of the squared lengths of special tokens, since structures for a marker may grow quadratically."""
_MOST_DECODED = 64 << 20
"""The most bytes that llama.cpp may write for characters outside its byte-level alphabet: the whole token for each
one."""
_NO_TOKENIZER = {
    "none": "no tokenizer",
    "no_vocab": "no tokenizer",
    "test": "a tokenizer for llama.cpp's own tests",
}
_VERIFIED = ("llama", "gpt2", "gemma4")
# GPT-2's byte-level alphabet: the printable characters of Latin 1, and 256 to 323 for the other bytes.
_NOT_BYTE_LEVEL = re.compile("[^!-~¡-¬®-\u0143]+")


def check_vocabulary(file: Path, header: Header) -> str:
    """Raise ModelLoadError for a vocabulary over which llama.cpp would end the process. Returns why the rest is not
    verified; "" if it is."""
    model = header.text("tokenizer.ggml.model")
    if model in _NO_TOKENIZER:
        raise ModelLoadError(
            f"{file} has {_NO_TOKENIZER[model]} (tokenizer.ggml.model is {model!r}): text cannot become tokens. Pass a "
            "GGUF that was converted with its tokenizer."
        )
    if model != "whitespace" and header.text("tokenizer.ggml.pre") == "whitespace":
        raise damaged(
            file, f"tokenizer.ggml.pre is 'whitespace', which tokenizer.ggml.model {model!r} does not support"
        )
    types = _types(header)
    texts = header.tokens
    if b"\0" in b"".join(texts):
        texts = [text.partition(b"\0")[0] for text in texts]
    _check_texts(file, texts, types)
    checks: dict[str, Callable[[Path, Header, Sequence[bytes], Sequence[int]], None]] = {
        "gpt2": _check_byte_level,
        "bert": _check_no_bytes,
        "t5": _check_charsmap,
        "rwkv": _check_single_bytes,
    }
    if model in checks:
        checks[model](file, header, texts, types)
    if model not in _VERIFIED:
        return f"its tokenizer is of the kind {model!r}"
    if len(types) < len(texts) and header.entry(TOKEN_TYPES) is not None:
        return f"{TOKEN_TYPES} is shorter than {TOKENS}"
    return "" if texts else f"{TOKENS} is empty"


def _types(header: Header) -> tuple[int, ...]:
    entry = header.entry(TOKEN_TYPES)
    values = entry.value if entry is not None and entry.is_array else ()
    return tuple(int(value) for value in values) if isinstance(values, tuple) else ()


def _kind(types: Sequence[int], token: int) -> int:
    return types[token] if token < len(types) else _NORMAL


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "replace")) + ("..." if len(text) > 40 else "")


def _check_texts(file: Path, texts: Sequence[bytes], types: Sequence[int]) -> None:
    # llama.cpp gives empty texts names of their own.
    if len(set(texts)) + max(0, texts.count(b"") - 1) < len(texts):
        token, before = next(_repeated(texts))
        raise damaged(file, f"the tokens {before} and {token} of {TOKENS} have the same text {_shown(texts[token])}")
    squares = 0
    for token, text in _long(texts):
        special = _kind(types, token) in _SPECIAL
        limit = _LONGEST_SPECIAL if special else _LONGEST
        if len(text) > limit:
            what = "control or user-defined token" if special else "token"
            raise damaged(
                file, f"the {what} {token}, {_shown(text)}, has {len(text):,} bytes, above the limit of {limit:,}"
            )
        squares += len(text) ** 2 if special else 0
    if squares > _MOST_SPECIAL:
        raise damaged(file, "its control and user-defined tokens are too many and too long")


def _long(texts: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Returns the tokens, with their ids, that are long enough for their squared lengths to matter."""
    return [(token, text) for token, text in enumerate(texts) if len(text) > _SHORT]


def _repeated(texts: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yields each token with an earlier one of the same text."""
    seen: dict[bytes, int] = {}
    for token, text in enumerate(texts):
        if text and (before := seen.setdefault(text, token)) != token:
            yield token, before


def _check_byte_level(file: Path, _header: Header, texts: Sequence[bytes], types: Sequence[int]) -> None:
    """Limit the characters that stand for no byte: for each one in an ordinary token, llama.cpp writes the whole token
    again."""
    total = 0
    for token, text in _long(texts):
        if _kind(types, token) == _NORMAL:
            total += len("".join(_NOT_BYTE_LEVEL.findall(text.decode("utf-8", "replace")))) * len(text)
            if total > _MOST_DECODED:
                raise damaged(
                    file,
                    f"its tokens would take more than {_MOST_DECODED >> 20} MiB decoded, since characters of tokens "
                    f"such as {token}, {_shown(text)}, stand for no bytes",
                )


def _check_no_bytes(file: Path, _header: Header, _texts: Sequence[bytes], types: Sequence[int]) -> None:
    if _BYTE in types:
        token = types.index(_BYTE)
        raise damaged(
            file, f"{TOKEN_TYPES} makes token {token} a byte, but tokenizer.ggml.model 'bert' has no byte tokens"
        )


def _check_single_bytes(file: Path, _header: Header, texts: Sequence[bytes], _types: Sequence[int]) -> None:
    """Require a token for each first byte: at a text that begins like a token but is none, this tokenizer loops
    forever."""
    bare = {text for text in map(_unescaped, texts) if text}
    for first in sorted({text[:1] for text in bare}):
        if first not in bare:
            raise damaged(file, f"{TOKENS} has tokens that begin with the byte {first!r}, but none that is this byte")


_ESCAPE = re.compile(rb"\\(x..|.)", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def _unescaped(text: bytes) -> bytes:
    """Returns a token of RWKV as llama.cpp decodes it."""

    def plain(found: re.Match[bytes]) -> bytes:
        code = found[1]
        if code[:1] != b"x" or len(code) == 1:
            return _LETTERS.get(code, b"" if code == b"x" else code)
        high, low = (digit - 87 if digit >= 97 else digit - 48 for digit in code[1:])
        return bytes([(((high & 0xFF) << 4) + (low & 0xFF)) & 0xFF])

    return _ESCAPE.sub(plain, text)


def _check_charsmap(file: Path, header: Header, _texts: Sequence[bytes], _types: Sequence[int]) -> None:
    """Walk all of the replacement map that any text can reach: an index outside it raises a C++ exception that nothing
    catches. Its layout: `llm_tokenizer_ugm_session` of llama-vocab.cpp."""
    entry = header.entry(CHARSMAP)
    if entry is None or not isinstance(entry.value, tuple) or entry.kind > 1:
        return  # none, or a type that llama.cpp refuses
    import numpy as np

    blob = np.asarray(entry.value).astype(np.uint8).tobytes()
    size = int.from_bytes(blob[:4], "little")
    if len(blob) < 4 or size + 4 >= len(blob):
        return  # llama.cpp refuses it
    units = np.frombuffer(blob, np.uint32, size // 4, 4).astype(np.int64)
    if not _stays_inside(units, blob[4 + size :]):
        raise damaged(file, f"{CHARSMAP} leads outside of its own {len(blob):,} bytes")


def _stays_inside(units: "np.ndarray[tuple[int], np.dtype[np.int64]]", replacements: bytes) -> bool:
    import numpy as np

    if not len(units):
        return True
    bases = (units >> 10) << ((units & (1 << 9)) >> 6)
    labels, values = units & ((1 << 31) | 0xFF), units & ((1 << 31) - 1)
    ends = replacements.rfind(b"\0")
    states = np.unique(bases[:1])
    seen = np.zeros(len(units), bool)
    letters = np.arange(1, 256)
    while len(states):
        places = (states[:, None] ^ letters).ravel()
        if places.max() >= len(units):
            return False
        places = places[(labels[places] == np.tile(letters, len(states))) & ~seen[places]]
        seen[places] = True
        states = np.unique(places ^ bases[places])
        leaves = (places ^ bases[places])[(units[places] >> 8) & 1 == 1]
        if (len(leaves) and leaves.max() >= len(units)) or any(values[leaf] > ends for leaf in leaves):
            return False
    return True
