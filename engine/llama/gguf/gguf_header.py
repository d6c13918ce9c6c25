"""The header of one GGUF file: its metadata and its tensor table.

Every length is checked against the file before it is used, so a damaged file raises ModelLoadError. Of long arrays only
the length is kept, except for those of the vocabulary.

llama.cpp reads texts as C strings, so text after a NUL is ignored here too.
"""

import math
import mmap
import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

from engine.support.errors import ModelLoadError

# enum ggml_type: name, elements per block, bytes per block.
_TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
# enum llama_ftype: the type of most tensors of a file.
_FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip


def file_type_name(number: int) -> str | None:
    """Returns the usual name of a llama_ftype, such as "Q4_K_M"; None for an unknown number."""
    return _FILE_TYPES.get(number)


def tensor_type_name(number: int) -> str:
    """Returns the name of a ggml_type."""
    return _TENSOR_TYPES[number][0] if number in _TENSOR_TYPES else f"type {number}"


def tensor_bytes(number: int, elements: int) -> int:
    """Returns the size of this many elements in bytes; 0 for an unknown type, whose size cannot be checked."""
    if number not in _TENSOR_TYPES:
        return 0
    _, block, size = _TENSOR_TYPES[number]
    return -(-elements // block) * size


# enum gguf_value_type: the format characters of `struct`.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
U16, U32, F32, BOOL, STRING, ARRAY = 2, 4, 6, 7, 8, 9
TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPES = "tokenizer.ggml.token_type"
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_VERSIONS = (2, 3)
_KEPT = 4096  # numbers of an array that are kept; per-layer arrays are far shorter
_FIRST, _LARGEST = 1 << 20, 1 << 28  # the bytes of a header that are read at first, and at most
_SHORTEST = 24
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_MAX_NAME = 63  # GGML_MAX_NAME, less the NUL
_MAX_ELEMENTS = 2**63 - 1
_Number: TypeAlias = int | float | bool
_Value: TypeAlias = _Number | str | tuple[_Number, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the tensor table. `size` is in bytes, 0 for an unknown type."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    size: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class Entry(NamedTuple):
    """A value of the file. `kind` is its type (enum gguf_value_type), for an array that of its elements; the value
    of a long array is None."""

    kind: int
    is_array: bool
    value: _Value | None


class Header:
    """Metadata by key, with defaults, and the tensors. `tokens` are the texts of the vocabulary, as bytes."""

    def __init__(
        self,
        entries: dict[str, Entry],
        counts: dict[str, int],
        tokens: list[bytes],
        tensors: tuple[Tensor, ...],
        sizes: tuple[int, int],
    ):
        self._entries = entries
        self._counts = counts
        self.tokens = tokens
        self.tensors = tensors
        self.file_size, self.expected_size = sizes

    def entry(self, key: str) -> Entry | None:
        """Returns the value of a key with its type; None if there is no such key."""
        return self._entries.get(key)

    def text(self, key: str) -> str:
        """Returns a string; "" if the key is absent or not a string."""
        value = self._value(key)
        return value if isinstance(value, str) else ""

    def integer(self, key: str, default: int) -> int:
        """Returns an integer, of an array the largest; the default if the key is absent or not an integer."""
        return max(self.integers(key, default))

    def integers(self, key: str, default: int) -> tuple[int, ...]:
        """Returns the integers of an array, or a single integer; the default if there is none. Never empty."""
        value = self._value(key)
        if isinstance(value, tuple) and value and type(value[0]) is int:
            return cast("tuple[int, ...]", value)  # all are of one type
        numbers = value if isinstance(value, tuple) else (value,)
        return tuple(int(number) for number in numbers if isinstance(number, int)) or (default,)

    def number(self, key: str, default: float) -> float:
        """Returns a number; the default if the key is absent or not a number."""
        value = self._value(key)
        return float(value) if isinstance(value, int | float) else default

    def count(self, key: str) -> int:
        """Returns the length of an array; 0 if it is absent."""
        return self._counts.get(key, 0)

    def keys_under(self, prefix: str) -> list[str]:
        """Returns the keys that begin with `prefix`, sorted."""
        return sorted(key for key in self._entries if key.startswith(prefix))

    def _value(self, key: str) -> _Value | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.value


def read_header(file: Path) -> Header:
    """Read the header of a file. Raises ModelLoadError if it is not GGUF, of another version or byte order, cut off or
    damaged."""
    with reading(file), file.open("rb") as handle:
        size = file.stat().st_size
        if size < _SHORTEST:
            raise _not_gguf(file, handle.read(4), size)
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(file, data, size).header()


@contextmanager
def reading(file: Path) -> Generator[None]:
    """Raises OSErrors of the block as ModelLoadError."""
    try:
        yield
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read ({error.strerror}); check its permissions.") from error


def read_header_by_ranges(name: Path, size: int, read: Callable[[int, int], bytes]) -> Header:
    """Read the header of a remote file of `size` bytes, of which `read(start, length)` returns a part; `name` is for
    messages. Reads the beginning, then more until the header is complete. Raises what `read_header` and `read`
    raise."""
    data = read(0, min(_FIRST, size))
    if size < _SHORTEST:
        raise _not_gguf(name, data[:4], size)
    while True:
        try:
            return _Reader(name, data, size).header()
        except _Incomplete as incomplete:
            needed = max(incomplete.needed, min(2 * len(data), size))
        if needed > _LARGEST:
            raise damaged(name, f"its header takes more than {_LARGEST:,} bytes")
        more = read(len(data), needed - len(data))
        if not more:
            raise ModelLoadError(f"{name} ended after {len(data):,} of {size:,} bytes; download it again.")
        data += more


class _Incomplete(Exception):
    """The header is longer than the bytes read so far; it takes at least `needed` bytes."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def _not_gguf(file: Path, magic: bytes, size: int) -> ModelLoadError:
    if not size:
        what = "it is empty"
    elif magic == b"GGUF":
        what = f"it ends after {size} bytes"
    else:
        what = f"it begins with {magic!r}, not with b'GGUF'"
    if magic in (b"PK\x03\x04", b"\x80\x02\x8a\x0a") or file.suffix in (".safetensors", ".bin", ".pt", ".pth"):
        what += "; PyTorch and safetensors weights must be converted first with llama.cpp's convert_hf_to_gguf.py"
    elif magic[:4] in (b"vers", b"<!DO", b"<htm"):
        what += "; a web page or a git-lfs pointer was downloaded instead of the model"
    return ModelLoadError(f"{file} is not a GGUF file: {what}. Pass a .gguf file, or download it again.")


class _Reader:
    """A cursor over the bytes; little-endian throughout."""

    def __init__(self, file: Path, data: mmap.mmap | bytes, size: int) -> None:
        self._file = file
        self._data = data
        self._size = size
        self._at = 4
        self._entries: dict[str, Entry] = {}
        self._counts: dict[str, int] = {}
        self._tokens: list[bytes] = []

    def header(self) -> Header:
        if self._data[:4] != b"GGUF":
            raise _not_gguf(self._file, self._data[:4], self._size)
        self._check_version(self._number("I"))
        tensors, pairs = self._number("Q"), self._number("Q")
        # A pair takes at least 13 bytes and a tensor 24; larger counts are damage, which is detected before looping
        # over them.
        if pairs * 13 + tensors * 24 > self._size:
            raise self._too_long()
        for _ in range(pairs):
            self._pair()
        table = tuple(self._tensor() for _ in range(tensors))
        alignment = self._alignment()
        start = -(-self._at // alignment) * alignment
        self._check_table(table, alignment)
        expected = max((start + tensor.offset + tensor.size for tensor in table), default=self._at)
        return Header(self._entries, self._counts, self._tokens, table, (self._size, expected))

    def _alignment(self) -> int:
        entry = self._entries.get("general.alignment")
        if entry is None:
            return 32
        value = entry.value
        if entry.kind != U32 or not isinstance(value, int) or value < 1 or value & (value - 1):
            raise self._damaged(f"general.alignment is {value!r}, but must be a power of 2 of type u32")
        return value

    def _check_version(self, version: int) -> None:
        if version in _VERSIONS:
            return
        if version and version & 0xFFFF == 0:
            raise ModelLoadError(f"{self._file} is a big-endian GGUF; download the little-endian file of this model.")
        raise ModelLoadError(
            f"{self._file} has GGUF version {version}; versions 2 and 3 are supported. Download or convert the model "
            "again."
        )

    def _check_table(self, table: Sequence[Tensor], alignment: int) -> None:
        """Raise for tensors that are not contiguous, or names that occur twice: llama.cpp requires both."""
        seen: set[str] = set()
        offset = 0
        for tensor in table:
            if tensor.name in seen:
                raise self._damaged(f"it has the tensor {tensor.name!r} twice")
            seen.add(tensor.name)
            if tensor.type not in _TENSOR_TYPES:
                return  # llama.cpp knows the type, or refuses it
            if tensor.offset != offset:
                raise self._damaged(f"the tensor {tensor.name!r} is at {tensor.offset:,}, but must be at {offset:,}")
            offset += -(-tensor.size // alignment) * alignment

    def _damaged(self, why: str) -> ModelLoadError:
        return damaged(self._file, why)

    def _too_long(self) -> ModelLoadError:
        return ModelLoadError(
            f"{self._file} is cut off or damaged: its header does not fit into its {self._size:,} bytes; download it "
            "again."
        )

    def _check_end(self, end: int) -> None:
        if end > self._size:
            raise self._too_long()
        if end > len(self._data):
            raise _Incomplete(end)

    def _take(self, length: int) -> int:
        """Advance by `length` bytes and return where they begin."""
        start = self._at
        self._check_end(start + length)
        self._at = start + length
        return start

    def _number(self, code: str) -> int:
        layout = struct.Struct("<" + code)
        return layout.unpack_from(self._data, self._take(layout.size))[0]

    def _bytes(self) -> bytes:
        length = self._number("Q")
        start = self._take(length)
        return self._data[start : start + length]

    def _name(self, what: str) -> str:
        name = self._bytes()
        if not name or b"\0" in name:
            raise self._damaged(f"the name of a {what} is {name[:40]!r}: it is empty or holds a NUL")
        return name.decode("utf-8", "replace")

    def _pair(self) -> None:
        key, kind = self._name("key"), self._number("I")
        if key in self._entries:
            raise self._damaged(f"it has the key {key!r} twice")
        if kind == STRING:
            text = self._bytes().partition(b"\0")[0]
            self._entries[key] = Entry(kind, False, text.decode("utf-8", "replace"))
        elif kind == ARRAY:
            self._array(key)
        elif kind in _SCALARS:
            self._entries[key] = Entry(kind, False, self._number(_SCALARS[kind]))
        else:
            raise self._damaged(f"the key {key!r} has the type {kind}, which GGUF does not have")

    def _array(self, key: str) -> None:
        kind, count = self._number("I"), self._number("Q")
        self._counts[key] = count
        self._entries[key] = Entry(kind, True, None)
        if kind == STRING:
            self._strings(key, count)
            return
        if kind not in _SCALARS:
            raise self._damaged(f"the array {key!r} has elements of type {kind}, which no array can have")
        width = struct.calcsize("<" + _SCALARS[kind])
        start = self._take(count * width)
        if count <= _KEPT or key in (TOKEN_TYPES, CHARSMAP):
            value = struct.unpack_from(f"<{count}{_SCALARS[kind]}", self._data, start)
            self._entries[key] = Entry(kind, True, value)

    def _strings(self, key: str, count: int) -> None:
        # Hundreds of thousands in a vocabulary: a loop without calls of our own.
        data, at, size, length_at = self._data, self._at, len(self._data), struct.Struct("<Q").unpack_from
        keep = self._tokens.append if key == TOKENS else None
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(data, at)[0]
                if at > size:
                    self._check_end(at)
                if keep is not None:
                    keep(data[start:at])
        except struct.error:
            self._check_end(at + 8)
            raise
        self._at = at

    def _tensor(self) -> Tensor:
        name, dimensions = self._name("tensor"), self._number("I")
        if len(name.encode()) > _MAX_NAME:
            raise self._damaged(f"the tensor name {name!r} is longer than {_MAX_NAME} bytes")
        if dimensions > _MAX_DIMENSIONS:
            raise self._damaged(
                f"the tensor {name!r} has {dimensions} dimensions, but at most {_MAX_DIMENSIONS} are possible"
            )
        shape = tuple(self._number("Q") for _ in range(dimensions))
        kind, offset = self._number("I"), self._number("Q")
        block = _TENSOR_TYPES[kind][1] if kind in _TENSOR_TYPES else 1
        if any(length > _MAX_ELEMENTS for length in shape) or math.prod(shape) > _MAX_ELEMENTS:
            raise self._damaged(f"the tensor {name!r} has the impossible shape {list(shape)}")
        if shape and shape[0] % block:
            raise self._damaged(
                f"the rows of the tensor {name!r} have {shape[0]} elements, not a multiple of {block}, the block "
                f"size of {tensor_type_name(kind)}"
            )
        return Tensor(name, shape, kind, offset, tensor_bytes(kind, math.prod(shape)))


def damaged(file: Path, why: str) -> ModelLoadError:
    """Returns the error for a damaged file."""
    return ModelLoadError(f"{file} is damaged: {why}. Download or convert the model again.")
