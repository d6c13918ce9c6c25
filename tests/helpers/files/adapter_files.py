"""LoRA adapters and control vectors with random numbers, for the built-in model or another of its shape."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from files.model_files import written

LAYERS, WIDTH, INNER = 7, 256, 704  # of the built-in model
TENSORS = ("attn_q", "attn_v", "ffn_down")


def write_adapter(
    path: Path, *, seed: int = 1, architecture: str = "qwen3", rank: int = 4, invocation: Sequence[int] = (),
    width: int = WIDTH, layers: int = LAYERS, strength: float = 1.0, more: Sequence[str] = (), alpha: bool = True,
    words: int = 0,
) -> Path:  # fmt: skip
    """Write an adapter. `invocation`: the tokens of an activated LoRA. `more`: further tensors, each a vector of ones.
    `words`: it adapts the embedding matrix of so many tokens.
    `alpha=False`: its alpha is an integer, over which llama.cpp ends the process."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    if alpha:
        writer.add_float32("adapter.lora.alpha", float(rank))
    else:
        writer.add_uint32("adapter.lora.alpha", rank)
    if invocation:
        kinds = gguf.GGUFValueType
        writer.add_key_value("adapter.alora.invocation_tokens", list(invocation), kinds.ARRAY, sub_type=kinds.UINT32)
    for layer in range(layers):
        for name, rows, columns in zip(TENSORS, (width, width, width), (width, width, INNER), strict=True):
            for half, shape in (("a", (rank, columns)), ("b", (rows, rank))):
                numbers = random.standard_normal(shape) * strength / (columns**0.5 if half == "a" else 1)
                writer.add_tensor(f"blk.{layer}.{name}.weight.lora_{half}", numbers.astype(np.float32))
    if words:
        for half, rows in (("a", words), ("b", width)):
            numbers = random.standard_normal((rows, rank))
            writer.add_tensor(f"token_embd.weight.lora_{half}", numbers.astype(np.float32))
    for name in more:
        writer.add_tensor(name, np.ones(width, np.float32))
    return written(writer, path)


def write_adapter_of(path: Path, model: Path, number: float) -> Path:
    """Write an adapter of rank 1 for a model's queries and the way out of its layers, each output with this number."""
    reader = gguf.GGUFReader(model)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    for tensor in reader.tensors:
        if tensor.name.endswith(("attn_q.weight", "ffn_down.weight")):
            columns, rows = map(int, tensor.shape)
            writer.add_tensor(f"{tensor.name}.lora_a", np.ones((1, columns), np.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", np.full((rows, 1), number, np.float32))
    return written(writer, path)


def write_control_vector(
    path: Path, *, seed: int = 1, width: int = WIDTH, layers: Sequence[int] = range(1, LAYERS)
) -> Path:
    """Write a control vector with a random direction for each of these layers."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "controlvector")
    for layer in layers:
        writer.add_tensor(f"direction.{layer}", random.standard_normal(width).astype(np.float32))
    return written(writer, path)
