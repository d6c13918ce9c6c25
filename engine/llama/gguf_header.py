"""The header of one GGUF file: its metadata and its tensor table.

Knows: the binary layout, enum ggml_type with its block sizes (ggml.h, ggml-common.h) and enum llama_ftype (llama.h).
Does not know: what any key means. Every length is checked against the file before it is believed, so a damaged file
ends in ModelLoadError. Long arrays (vocabularies) are walked over, only their length is kept.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from engine.errors import ModelLoadError

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
# enum llama_ftype: what most tensors of a file are.
_FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip


def file_type_name(number: int) -> str | None:
    """The usual name of a llama_ftype, such as "Q4_K_M"; None for a number that is not known."""
    return _FILE_TYPES.get(number)


def tensor_type_name(number: int) -> str:
    """The name of a ggml_type."""
    return _TENSOR_TYPES[number][0] if number in _TENSOR_TYPES else f"type {number}"


def tensor_bytes(number: int, elements: int) -> int:
    """The bytes that so many elements take; 0 for a type that is not known (its size cannot be checked then)."""
    if number not in _TENSOR_TYPES:
        return 0
    _, block, size = _TENSOR_TYPES[number]
    return -(-elements // block) * size


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_KEPT = 4096  # numbers of an array that are kept; per-layer arrays are far shorter
_MAX_DIMENSIONS = 8
_Value: TypeAlias = int | float | bool | str | tuple[int | float | bool, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the tensor table. `size` is bytes, 0 for a type that this table does not know."""

    name: str
    elements: int
    type: int
    offset: int
    size: int


class Header:
    """Metadata by key, with defaults, and the tensors."""

    def __init__(
        self, values: dict[str, _Value], counts: dict[str, int], tensors: tuple[Tensor, ...], sizes: tuple[int, int]
    ):
        self._values = values
        self._counts = counts
        self.tensors = tensors
        self.file_size, self.expected_size = sizes

    def text(self, key: str) -> str:
        """A string; "" when absent or something else."""
        value = self._values.get(key, "")
        return value if isinstance(value, str) else ""

    def integer(self, key: str, default: int) -> int:
        """A whole number; of an array the largest."""
        return max(self.integers(key, default))

    def integers(self, key: str, default: int) -> tuple[int, ...]:
        """The whole numbers of an array, or one number alone; never empty."""
        value = self._values.get(key, default)
        numbers = value if isinstance(value, tuple) else (value,)
        return tuple(int(number) for number in numbers if not isinstance(number, str)) or (default,)

    def number(self, key: str, default: float) -> float:
        """One number; the default when absent or something else."""
        value = self._values.get(key, default)
        return default if isinstance(value, str | tuple) else float(value)

    def count(self, key: str) -> int:
        """The length of an array; 0 when absent."""
        return self._counts.get(key, 0)

    def keys_under(self, prefix: str) -> list[str]:
        """The keys that begin so, sorted."""
        return sorted(key for key in self._values if key.startswith(prefix))


def read_header(file: Path) -> Header:
    """Raises ModelLoadError for what is not GGUF, of another version or byte order, cut off or damaged."""
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            if size < 24:
                raise _not_gguf(file, handle.read(4))
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(file, data, size).header()
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read ({error.strerror}); check its permissions.") from error


def _not_gguf(file: Path, magic: bytes) -> ModelLoadError:
    hint = "it is empty" if not magic else f"it begins with {magic!r}"
    if magic in (b"PK\x03\x04", b"\x80\x02\x8a\x0a") or file.suffix in (".safetensors", ".bin", ".pt", ".pth"):
        hint += "; PyTorch and safetensors weights must be converted first with llama.cpp's convert_hf_to_gguf.py"
    elif magic[:4] in (b"vers", b"<!DO", b"<htm"):
        hint += "; a page or a git-lfs pointer was downloaded in place of the model"
    return ModelLoadError(f"{file} is not a GGUF file: {hint}. Pass a .gguf file, or download it again.")


class _Reader:
    """A cursor over the bytes; little-endian throughout."""

    def __init__(self, file: Path, data: mmap.mmap, size: int) -> None:
        self._file = file
        self._data = data
        self._size = size
        self._at = 4
        self._values: dict[str, _Value] = {}
        self._counts: dict[str, int] = {}

    def header(self) -> Header:
        if self._data[:4] != b"GGUF":
            raise _not_gguf(self._file, self._data[:4])
        self._check_version(self._number("I"))
        tensors, pairs = self._number("Q"), self._number("Q")
        # A pair takes at least 13 bytes and a tensor 24, so larger counts are damage, found before a loop runs on them.
        if pairs * 13 + tensors * 24 > self._size:
            raise self._damaged()
        for _ in range(pairs):
            self._pair()
        table = tuple(self._tensor() for _ in range(tensors))
        alignment = self._values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._damaged()
        start = -(-self._at // alignment) * alignment
        expected = max((start + tensor.offset + tensor.size for tensor in table), default=self._at)
        return Header(self._values, self._counts, table, (self._size, expected))

    def _check_version(self, version: int) -> None:
        if version in _VERSIONS:
            return
        if version and version & 0xFFFF == 0:
            raise ModelLoadError(f"{self._file} is a big-endian GGUF; download the little-endian file of this model.")
        raise ModelLoadError(
            f"{self._file} has GGUF version {version}; versions 2 and 3 are supported. Download or convert the model "
            "again."
        )

    def _damaged(self) -> ModelLoadError:
        return ModelLoadError(
            f"{self._file} is cut off or damaged: its header does not fit into its {self._size:,} bytes; download it "
            "again."
        )

    def _take(self, length: int) -> int:
        """Moves on by so many bytes; gives where they begin."""
        start = self._at
        if length < 0 or start + length > self._size:
            raise self._damaged()
        self._at = start + length
        return start

    def _number(self, code: str) -> int:
        layout = struct.Struct("<" + code)
        return layout.unpack_from(self._data, self._take(layout.size))[0]

    def _string(self) -> str:
        length = self._number("Q")
        start = self._take(length)
        return self._data[start : start + length].decode("utf-8", "replace")

    def _pair(self) -> None:
        key, kind = self._string(), self._number("I")
        if kind == _STRING:
            self._values[key] = self._string()
        elif kind == _ARRAY:
            self._array(key)
        elif kind in _SCALARS:
            self._values[key] = self._number(_SCALARS[kind])
        else:
            raise self._damaged()

    def _array(self, key: str) -> None:
        kind, count = self._number("I"), self._number("Q")
        self._counts[key] = count
        if kind == _STRING:
            self._skip_strings(count)
            return
        if kind not in _SCALARS:
            raise self._damaged()
        width = struct.calcsize("<" + _SCALARS[kind])
        start = self._take(count * width)
        if 0 < count <= _KEPT:
            self._values[key] = struct.unpack_from(f"<{count}{_SCALARS[kind]}", self._data, start)

    def _skip_strings(self, count: int) -> None:
        # Hundreds of thousands in a vocabulary: a loop without calls of our own.
        at, size, length_at = self._at, self._size, struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                at += 8 + length_at(self._data, at)[0]
                if at > size:
                    raise self._damaged()
        except struct.error as error:
            raise self._damaged() from error
        self._at = at

    def _tensor(self) -> Tensor:
        name, dimensions = self._string(), self._number("I")
        if dimensions > _MAX_DIMENSIONS:
            raise self._damaged()
        elements = 1
        for _ in range(dimensions):
            elements *= self._number("Q")
        kind, offset = self._number("I"), self._number("Q")
        return Tensor(name, elements, kind, offset, tensor_bytes(kind, elements))
