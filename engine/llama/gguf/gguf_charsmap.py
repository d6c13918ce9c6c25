"""A vocabulary's map of characters to replacements (SentencePiece's, of tokenizers of the kind "t5"): an index that
leads outside it raises a C++ exception, which ends the process. No trial reaches all texts, so the map is walked."""

from pathlib import Path
from typing import TYPE_CHECKING

from engine.llama.gguf.gguf_header import CHARSMAP, Header, damaged

if TYPE_CHECKING:
    import numpy as np


def check_charsmap(file: Path, header: Header) -> None:
    """Walk all of the map that any text can reach. Its layout: `llm_tokenizer_ugm_session` of llama-vocab.cpp. Raises
    ModelLoadError."""
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
