"""Reads adapters and control vectors before llama.cpp sees them: what they hold, and whether they can fit a model.

The formats are those that llama.cpp's convert_lora_to_gguf.py and cvector-generator write (llama-adapter.cpp,
`llama_adapter_lora_init_impl`; common.cpp, `common_control_vector_load`).
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.llama.gguf.gguf import check_is_file, check_whole
from engine.llama.gguf.gguf_header import Header, Tensor, damaged, read_header, reading, tensor_type_name
from engine.support import paths
from engine.support.errors import ModelLoadError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_INVOCATION = "adapter.alora.invocation_tokens"
_DIRECTION = re.compile(r"direction\.(\d{1,5})$")
_F32 = 0  # enum ggml_type


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A LoRA adapter's file. `digest`: SHA-256 (hex) of all of it; `rank`: the largest of its matrices; `size_bytes`:
    of its tensors. `invocation`: the tokens from which an activated LoRA applies. `ignored`: tensors that llama.cpp
    does not apply; `flipped`: whether it adapts the embedding matrix, which some models use for the output too."""

    path: Path
    digest: str
    architecture: str
    rank: int
    size_bytes: int
    invocation: tuple[int, ...]
    ignored: tuple[str, ...]
    flipped: bool


def read_adapter(path: str | Path) -> AdapterFile:
    """Read an adapter's header and digest. Raises ModelLoadError if it is not a complete LoRA adapter in GGUF."""
    file = Path(path).expanduser().absolute()
    with reading(file):
        is_folder = paths.is_dir(file)
    if is_folder or file.suffix in (".safetensors", ".bin"):
        raise ModelLoadError(f"{file} is not GGUF; convert the adapter with llama.cpp's convert_lora_to_gguf.py.")
    check_is_file(file)
    header = read_header(file)
    check_whole(file, header)
    kind = header.text("adapter.type")
    if header.text("general.type") != "adapter" or kind != "lora":
        what = f"an adapter of type {kind!r}" if kind else "not an adapter"
        raise ModelLoadError(f"{file} is {what}; pass a LoRA adapter in GGUF.")
    tensors = header.tensors
    invocation = header.integers(_INVOCATION, -1) if header.count(_INVOCATION) else ()
    with reading(file), file.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    return AdapterFile(
        path=file,
        digest=digest,
        architecture=header.text("general.architecture"),
        rank=max((tensor.shape[0] for tensor in tensors if tensor.name.endswith(".lora_b")), default=0),
        size_bytes=sum(tensor.size for tensor in tensors),
        invocation=invocation,
        ignored=tuple(tensor.name for tensor in tensors if tensor.name.endswith("_norm.weight")),
        flipped=any(tensor.name.startswith("token_embd.") for tensor in tensors),
    )


def read_control_vectors(
    vectors: Sequence[tuple[str, float]], n_embd: int, n_layers: int
) -> "NDArray[np.float32] | None":
    """Returns the sum of control vectors, each times its scale, shape (n_layers - 1, n_embd): a direction for each
    layer but the first, which has none. None if there are none. Raises ModelLoadError for a file that is not one for a
    model of this size."""
    if not vectors:
        return None
    import numpy as np

    sums = np.zeros((n_layers - 1, n_embd), np.float32)
    for path, scale in vectors:
        file = Path(path).expanduser()
        check_is_file(file)
        header = read_header(file)
        check_whole(file, header)
        with np.errstate(all="ignore"):  # what is not finite is refused below
            for layer, place in _directions(file, header, n_embd, n_layers):
                sums[layer - 1] += np.fromfile(file, "<f4", n_embd, offset=place) * np.float32(scale)
        if not np.isfinite(sums).all():
            raise damaged(file, "it holds numbers that are not finite, or its scale makes them so")
    return sums


def _directions(file: Path, header: Header, n_embd: int, n_layers: int) -> list[tuple[int, int]]:
    """Returns the layer and the place in the file of each direction."""
    if not header.tensors:
        raise damaged(file, "it holds no directions")
    # The data begin so that the last tensor ends where the file has to.
    start = header.expected_size - max(tensor.offset + tensor.size for tensor in header.tensors)
    found: list[tuple[int, int]] = []
    for tensor in header.tensors:
        layer = _layer(tensor)
        if layer is None or tensor.type != _F32:
            what = f"{tensor.name!r} of type {tensor_type_name(tensor.type)}"
            raise ModelLoadError(
                f"{file} is not a control vector: it holds {what}, and a control vector holds direction.1, "
                "direction.2 and so on, of type F32."
            )
        if tensor.shape != (n_embd,) or not 0 < layer < n_layers:
            raise ModelLoadError(
                f"{file} is for another model: it has a direction of shape {list(tensor.shape)} for layer {layer}, and "
                f"this model has {n_embd} numbers in each of the layers 1 to {n_layers - 1}."
            )
        found.append((layer, start + tensor.offset))
    return found


def _layer(tensor: Tensor) -> int | None:
    match = _DIRECTION.match(tensor.name)
    return int(match[1]) if match else None
