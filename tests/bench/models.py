"""Model files for benchmarks: random weights in a real shape, Q4_0, with the real vocabulary of Qwen2 (152 k tokens).

What a model says does not matter for its speed, so the weights are random; its shape, its types and the size of its
vocabulary do. The vocabulary comes from `ggml-vocab-qwen2.gguf` of llama.cpp's source tree (in the source distribution
of llama-cpp-python, `vendor/llama.cpp/models`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
_BLOCK = 32  # weights of one Q4_0 block, in 18 bytes: a half-precision scale and 32 numbers of 4 bits
_SPREAD = 4.6  # standard deviation of those numbers, drawn evenly


@dataclass(frozen=True)
class Shape:
    """The sizes of a Qwen3-architecture model whose output matrix is its embedding."""

    layers: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int


SHAPES = {
    "tiny": Shape(2, 64, 128, 4, 2, 32),
    "0.2B": Shape(12, 768, 2048, 12, 4, 64),
    "0.6B": Shape(28, 1024, 3072, 16, 8, 128),
}
N_CTX = 40_960


def model_file(size: str, vocabulary: Path, folder: Path) -> Path:
    """The file of a model of this size, written if it is not there."""
    path = folder / f"random-{size}-q4_0.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        _write(temporary, SHAPES[size], vocabulary)
        temporary.rename(path)
    return path


def _write(path: Path, shape: Shape, vocabulary: Path) -> None:
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name("random")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    n_vocab = copy_vocabulary(writer, vocabulary)
    writer.add_chat_template((REPOSITORY / "templates" / "qwen3.jinja").read_text(encoding="utf-8"))
    _tensors(writer, shape, n_vocab)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_vocabulary(writer: gguf.GGUFWriter, vocabulary: Path) -> int:
    """Every `tokenizer.` key of the vocabulary file; the number of tokens."""
    n_vocab = 0
    for key, field in gguf.GGUFReader(vocabulary).fields.items():
        if not key.startswith("tokenizer.") or key == "tokenizer.chat_template":
            continue
        value: Any = field.contents()
        kinds = field.types
        if kinds[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kinds[0])
        if key == "tokenizer.ggml.tokens":
            n_vocab = len(value)
    return n_vocab


def _tensors(writer: gguf.GGUFWriter, shape: Shape, n_vocab: int) -> None:
    random = np.random.default_rng(1)

    def matrix(name: str, inputs: int, outputs: int) -> None:
        blocks = outputs * inputs // _BLOCK
        data = random.integers(0, 256, (blocks, 18), dtype=np.uint8)
        scale = np.float16(1 / (_SPREAD * inputs**0.5))
        data[:, :2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
        row = inputs // _BLOCK * 18
        writer.add_tensor(name, data.reshape(outputs, row), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    def ones(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, dtype=np.float32))

    inner, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    matrix("token_embd.weight", shape.width, n_vocab)
    ones("output_norm.weight", shape.width)
    for index in range(shape.layers):
        block = f"blk.{index}"
        ones(f"{block}.attn_norm.weight", shape.width)
        matrix(f"{block}.attn_q.weight", shape.width, inner)
        matrix(f"{block}.attn_k.weight", shape.width, kv)
        matrix(f"{block}.attn_v.weight", shape.width, kv)
        matrix(f"{block}.attn_output.weight", inner, shape.width)
        ones(f"{block}.attn_q_norm.weight", shape.head_size)
        ones(f"{block}.attn_k_norm.weight", shape.head_size)
        ones(f"{block}.ffn_norm.weight", shape.width)
        matrix(f"{block}.ffn_gate.weight", shape.width, shape.feed_forward)
        matrix(f"{block}.ffn_up.weight", shape.width, shape.feed_forward)
        matrix(f"{block}.ffn_down.weight", shape.feed_forward, shape.width)
