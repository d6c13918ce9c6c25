"""GGUF files taken apart and put together again, valid or not.

The `gguf` package writes only what a converter may write. A test of damaged files needs the rest: any type under any
key, keys and tensors twice, lengths and offsets that lie. A `Document` says what stands in the file; `encoded` writes
it as it is. `Raw` stands for bytes of the writer's own, where a whole value is not wrong enough.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, TypeAlias

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALARS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
TENSOR_F32, TENSOR_F16 = 0, 1
ALIGNMENT = 32

Scalar: TypeAlias = int | float | bool | bytes


class Array(NamedTuple):
    """The value of an array. `said` is the length that the file tells; None: the true one."""

    kind: int
    items: Sequence[Scalar]
    said: int | None = None


class Raw(NamedTuple):
    """Bytes that stand where a value would."""

    data: bytes


Value: TypeAlias = Scalar | Array | Raw


class Pair(NamedTuple):
    """One key of the metadata; `kind` is one of the constants above."""

    key: bytes
    kind: int
    value: Value

    @property
    def name(self) -> str:
        return self.key.decode("utf-8", "replace")


class Tensor(NamedTuple):
    """One row of the tensor table, and its data. `offset` None: right behind the tensor before it."""

    name: bytes
    shape: tuple[int, ...]
    data: bytes
    kind: int = TENSOR_F32
    offset: int | None = None


@dataclass(frozen=True)
class Document:
    """What stands in a file. The counts are None where they shall be true."""

    pairs: tuple[Pair, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    version: int = 3
    n_pairs: int | None = None
    n_tensors: int | None = None
    edges: list[int] = field(default_factory=list[int], compare=False)

    def same(self) -> Self:
        """Itself: what is wrong with nothing."""
        return self

    def value(self, name: str) -> Value | None:
        """The value of a key; None where there is no such key."""
        return next((pair.value for pair in self.pairs if pair.name == name), None)

    def array(self, name: str) -> Array:
        """The value of a key that holds an array."""
        value = self.value(name)
        assert isinstance(value, Array), name
        return value

    def texts(self, name: str) -> list[bytes]:
        """The elements of an array of texts."""
        return [item for item in self.array(name).items if isinstance(item, bytes)]

    def index(self, name: str) -> int:
        """Where a key stands among the pairs."""
        return next(index for index, pair in enumerate(self.pairs) if pair.name == name)

    def put(self, name: str, kind: int, value: Value) -> Self:
        """The key with this value: in its place, or behind the others."""
        pair = Pair(name.encode(), kind, value)
        if self.value(name) is None:
            return replace(self, pairs=(*self.pairs, pair))
        return replace(self, pairs=tuple(pair if each.name == name else each for each in self.pairs))

    def without(self, name: str) -> Self:
        """Without this key."""
        return replace(self, pairs=tuple(pair for pair in self.pairs if pair.name != name))

    def encoded(self) -> bytes:
        """The file. `edges` then holds where its parts begin."""
        out = _Writer(self.edges)
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_pairs = len(self.pairs) if self.n_pairs is None else self.n_pairs
        out.add(b"GGUF" + struct.pack("<IQQ", self.version, n_tensors, n_pairs))
        for pair in self.pairs:
            out.add(_string(pair.key))
            out.add(struct.pack("<I", pair.kind))
            out.add(_value(pair.kind, pair.value))
        offset = 0
        for tensor in self.tensors:
            out.add(_string(tensor.name))
            out.add(struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape))
            out.add(struct.pack("<IQ", tensor.kind, offset if tensor.offset is None else tensor.offset))
            offset += _padded(len(tensor.data))
        out.pad()
        for tensor in self.tensors:
            out.add(tensor.data)
            out.pad()
        return bytes(out.data)


class _Writer:
    def __init__(self, edges: list[int]) -> None:
        self.data = bytearray()
        self._edges = edges
        edges.clear()

    def add(self, data: bytes) -> None:
        self._edges.append(len(self.data))
        self.data += data

    def pad(self) -> None:
        self.data += bytes(_padded(len(self.data)) - len(self.data))


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _value(kind: int, value: Value) -> bytes:
    if isinstance(value, Raw):
        return value.data
    if isinstance(value, Array):
        count = len(value.items) if value.said is None else value.said
        head = struct.pack("<IQ", value.kind, count)
        if value.kind in SCALARS:
            return head + struct.pack(f"<{len(value.items)}{SCALARS[value.kind]}", *value.items)
        return head + b"".join(_value(value.kind, item) for item in value.items)
    if kind == STRING:
        assert isinstance(value, bytes)
        return _string(value)
    return struct.pack("<" + SCALARS[kind], value)


def decoded(data: bytes) -> Document:
    """A valid file taken apart."""
    reader = _Reader(data)
    assert data[:4] == b"GGUF"
    version, n_tensors, n_pairs = struct.unpack_from("<IQQ", data, 4)
    reader.at = 24
    pairs = tuple(reader.pair() for _ in range(n_pairs))
    rows = [reader.row() for _ in range(n_tensors)]
    start = _padded(reader.at)
    ends = [*(row.offset for row in rows[1:]), len(data) - start][: len(rows)]
    tensors = tuple(
        row._replace(data=data[start + (row.offset or 0) : start + (end or 0)], offset=None)
        for row, end in zip(rows, ends, strict=True)
    )
    return Document(pairs, tensors, version)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def number(self, code: str) -> int:
        layout = struct.Struct("<" + code)
        self.at += layout.size
        return layout.unpack_from(self._data, self.at - layout.size)[0]

    def string(self) -> bytes:
        length = self.number("Q")
        self.at += length
        return self._data[self.at - length : self.at]

    def value(self, kind: int) -> Scalar:
        return self.string() if kind == STRING else self.number(SCALARS[kind])

    def pair(self) -> Pair:
        key, kind = self.string(), self.number("I")
        if kind != ARRAY:
            return Pair(key, kind, self.value(kind))
        inner, count = self.number("I"), self.number("Q")
        return Pair(key, kind, Array(inner, [self.value(inner) for _ in range(count)]))

    def row(self) -> Tensor:
        name, dimensions = self.string(), self.number("I")
        shape = tuple(self.number("Q") for _ in range(dimensions))
        return Tensor(name, shape, b"", self.number("I"), self.number("Q"))
