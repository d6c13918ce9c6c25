"""Checks a saved sequence before llama.cpp loads it: negative positions could never be removed again, and values that
are not numbers would spoil cells permanently, since attention multiplies masked values by zero.
"""

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.support.errors import DecodeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_F32, _F16 = 0, 1  # enum ggml_type
_MOST = 1 << 20  # streams, layers


def check_state(state: bytes, ends: Mapping[int, int] | None = None, *, cell_bytes: int = 12) -> None:
    """Raise DecodeError for positions that are negative, not contiguous or repeated, and for values that are not
    numbers. `ends`: the positions of pictures all of whose rows have one, and the position after each. `cell_bytes`: of
    what is said of a cell, 24 where it has two more coordinates and its token (`llama_kv_cell_ext`)."""
    offset = 8  # a magic number, and the sequence that was saved
    try:
        while offset < len(state):
            offset = _section(state, offset, ends or {}, cell_bytes)
    except (struct.error, OverflowError):
        return  # the recurrent part of a hybrid model, or data that llama.cpp will refuse


def _section(state: bytes, offset: int, ends: Mapping[int, int], cell_bytes: int) -> int:
    """Check one cache, and return where the next begins."""
    (streams,) = struct.unpack_from("<I", state, offset)
    offset += 4
    if streams > _MOST:
        raise OverflowError
    for _ in range(streams):
        (count,) = struct.unpack_from("<I", state, offset)
        offset += 4
        if count:
            offset = _values(state, _cells(state, offset, count, ends, cell_bytes), count)
    return offset


def _cells(state: bytes, offset: int, count: int, ends: Mapping[int, int], cell_bytes: int) -> int:
    import numpy as np

    end = offset + cell_bytes * count  # position, number of sequences, more of the position, sequence
    if end > len(state):
        raise OverflowError
    cells: NDArray[np.int32] = np.frombuffer(state, "<i4", cell_bytes // 4 * count, offset).reshape(count, -1)
    if (cells[:, 1] != 1).any():
        raise OverflowError
    places = np.sort(cells[:, 0])
    kept = np.ones(count, bool)
    following = places + 1
    for last, after in ends.items():
        first, behind = np.searchsorted(places, (last, last + 1))
        kept[first + 1 : behind] = False  # the other rows of the picture
        following[first:behind] = after
    if places[0] < 0 or (places[kept][1:] != following[kept][:-1]).any():
        raise DecodeError("A saved state has positions that no sequence has; save the prefix again.", "invalid")
    return end


def _values(state: bytes, offset: int, count: int) -> int:
    transposed, layers = struct.unpack_from("<II", state, offset)
    offset += 8
    if layers > _MOST:
        raise OverflowError
    for number in range(2 * layers):
        if number < layers or not transposed:
            kind, row = struct.unpack_from("<iQ", state, offset)
            offset, size = offset + 12, row * count
        else:
            kind, element, width = struct.unpack_from("<iII", state, offset)
            offset, size = offset + 12, element * width * count
        if offset + size > len(state):
            raise OverflowError
        _finite(state, offset, size, kind)
        offset += size
    return offset


def _finite(state: bytes, offset: int, size: int, kind: int) -> None:
    import numpy as np

    if kind not in (_F32, _F16):
        return
    width = 4 if kind == _F32 else 2
    values: NDArray[np.floating] = np.frombuffer(state, "<f4" if width == 4 else "<f2", size // width, offset)
    if not np.isfinite(values).all():
        raise DecodeError("A saved state has values that are not numbers; save the prefix again.", "invalid")
