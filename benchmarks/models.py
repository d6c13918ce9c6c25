"""Model files for benchmarks: random weights in real shapes and types, with real vocabularies.

What a model says does not matter for its speed and its memory, so the weights are random: blocks of random bits with a
small scale. The tensors' names and shapes are those of `tests/helpers/files/model_zoo.py`, in real sizes; the
vocabularies are those of llama.cpp's source tree (`vendor/llama.cpp/models` in the source distribution of
llama-cpp-python)."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/helpers"))

from files import gguf_bytes, model_zoo

REPOSITORY = Path(__file__).resolve().parents[1]
_SCALES: dict[Type, tuple[int, ...]] = {
    Type.Q4_0: (0,), Type.Q5_0: (0,), Type.Q8_0: (0,), Type.IQ4_NL: (0,),
    Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,),
}  # fmt: skip
"""Where a block has its scales, numbers of 16 bits. MXFP4 has an exponent of 8 bits in its first byte."""


@dataclass(frozen=True)
class Plan:
    """A model of the zoo's kind in a real size. `sizes` are the zoo's letters, and `layers`; `keys` replace the kind's;
    `attention`: which layers attend in a hybrid (the zoo's layer 1; the others are its layer 0): every so many."""

    kind: str
    type: Type
    layers: int
    sizes: Mapping[str, int]
    keys: Mapping[str, int | tuple[int, ...] | tuple[bool, ...]] = field(default_factory=dict[str, int])
    attention: int = 1
    vocabulary: str = "qwen2"
    template: str = model_zoo.TEMPLATE.decode()


def keys(sizes: Mapping[str, int], n_ctx: int = 32_768, **more: Any) -> dict[str, Any]:
    """The keys of a model of these sizes."""
    return {
        "context_length": n_ctx,
        "embedding_length": sizes["E"],
        "feed_forward_length": sizes["F"],
        "attention.head_count": sizes["H"],
        "attention.head_count_kv": sizes["K"],
        "attention.key_length": sizes["D"],
        "attention.value_length": sizes["D"],
        **more,
    }


def attention(width: int, heads: int, kv: int, head: int, ff: int) -> dict[str, int]:
    """The zoo's letters for these sizes."""
    return {"E": width, "H": heads, "K": kv, "D": head, "Q": heads * head, "KV": kv * head, "F": ff}


SHAPES = {
    "0.2B": (12, attention(768, 12, 4, 64, 2048)),
    "0.6B": (28, attention(1024, 16, 8, 128, 3072)),
    "8B": (36, attention(4096, 32, 8, 128, 12_288)),
}
"""Layers and sizes of models in Qwen3's architecture."""


def model_file(size: str, vocabulary: Path, folder: Path) -> Path:
    """The file of a Q4_0 model of this size, written if it is not there."""
    path = folder / f"random-{size}-q4_0.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        layers, sizes = SHAPES[size]
        template = (REPOSITORY / "templates" / "qwen3.jinja").read_text(encoding="utf-8")
        name = vocabulary.stem.removeprefix("ggml-vocab-")
        plan = Plan("qwen3", Type.Q4_0, layers, sizes, keys(sizes, 40_960), vocabulary=name, template=template)
        write(path.with_suffix(".tmp"), plan, vocabulary.parent).rename(path)
    return path


def write(path: Path, plan: Plan, vocabularies: Path) -> Path:
    """Write the file."""
    about = model_zoo.KINDS[plan.kind]
    writer = gguf.GGUFWriter(path, about.architecture)
    writer.add_name("random")
    n_vocab = _vocabulary(writer, about.vocabulary, plan.vocabulary, vocabularies)
    keys: dict[str, tuple[int, object]] = {name: (kind, value) for name, kind, value in about.keys}
    keys["block_count"] = (gguf_bytes.U32, plan.layers)
    for name, value in plan.keys.items():
        keys[name] = (gguf_bytes.ARRAY if isinstance(value, tuple) else gguf_bytes.U32, value)
    for name, (kind, value) in keys.items():
        key = f"{about.architecture}.{name}"
        if isinstance(value, tuple):
            writer.add_array(key, [*value])
        else:
            writer.add_key_value(key, value, gguf.GGUFValueType(_VALUE_TYPES[kind]))
    writer.add_chat_template(plan.template)
    letters = {**model_zoo.SIZES, **about.sizes, "V": n_vocab, **plan.sizes}
    random = np.random.default_rng(1)
    for text in about.whole.split(";"):
        _tensor(writer, random, text, letters, plan.type)
    for layer in range(plan.layers):
        like = int((layer + 1) % plan.attention == 0)
        block = about.block if isinstance(about.block, str) else about.block(like)
        for text in block.split(";"):
            _tensor(writer, random, text, letters, plan.type, f"blk.{layer}.")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_VALUE_TYPES = {
    gguf_bytes.U32: gguf.GGUFValueType.UINT32,
    gguf_bytes.F32: gguf.GGUFValueType.FLOAT32,
    gguf_bytes.BOOL: gguf.GGUFValueType.BOOL,
}


def _vocabulary(writer: gguf.GGUFWriter, kind: str, name: str, folder: Path) -> int:
    """The real vocabulary of that name, of the RWKV kind the zoo's; the number of tokens."""
    if kind == "rwkv":
        for pair in model_zoo.vocabulary_pairs(model_zoo.VOCABULARIES[kind]()):
            if isinstance(pair.value, gguf_bytes.Array):
                writer.add_array(pair.name, [each.decode("latin1") if isinstance(each, bytes) else each
                                             for each in pair.value.items])  # fmt: skip
            elif isinstance(pair.value, bytes):
                writer.add_string(pair.name, pair.value.decode())
            else:
                writer.add_key_value(pair.name, pair.value, gguf.GGUFValueType(pair.kind))
        return len(model_zoo.VOCABULARIES[kind]().tokens)
    return copy_vocabulary(writer, folder / f"ggml-vocab-{name}.gguf")


def copy_vocabulary(writer: gguf.GGUFWriter, vocabulary: Path) -> int:
    """Every `tokenizer.` key of the vocabulary file; the number of tokens."""
    n_vocab = 0
    for key, field_ in gguf.GGUFReader(vocabulary).fields.items():
        if not key.startswith("tokenizer.") or key == "tokenizer.chat_template":
            continue
        value: Any = field_.contents()
        if field_.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, field_.types[0])
        if key == "tokenizer.ggml.tokens":
            n_vocab = len(value)
    return n_vocab


def _tensor(
    writer: gguf.GGUFWriter,
    random: np.random.Generator,
    text: str,
    letters: Mapping[str, int],
    kind: Type,
    prefix: str = "",
) -> None:
    name, dimensions = text.split()
    shape = [model_zoo.size(each, letters) for each in dimensions.split(",")]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    matrix = len(shape) > 1 and shape[0] % block == 0 and "ssm" not in name.replace("ssm_in", "").replace("ssm_out", "")
    if not matrix or "norm" in name or "bias" in name or "conv" in name or "gate_inp" in name or "lerp" in name:
        values = np.ones(shape[::-1], dtype=np.float32) if "norm" in name else -np.ones(shape[::-1], dtype=np.float32)
        writer.add_tensor(prefix + name, values if "norm" in name or name == "ssm_a" else values * np.float32(-0.01))
        return
    rows = int(np.prod(shape[1:]))
    data = random.integers(0, 256, (rows * shape[0] // block, size), dtype=np.uint8)
    small = np.frombuffer(np.float16(0.02 / shape[0] ** 0.5).tobytes(), dtype=np.uint8)
    if kind == Type.MXFP4:
        data[:, 0] = 118
    elif kind in (Type.F16, Type.BF16):
        data[:, 1] &= 0x9F if kind == Type.F16 else 0xBC
    for place in _SCALES.get(kind, ()):
        data[:, place : place + 2] = small
    writer.add_tensor(prefix + name, data.reshape(*shape[:0:-1], shape[0] // block * size), raw_dtype=kind)
