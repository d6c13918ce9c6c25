"""GGUF files that tests write: tiny models with random weights, in several architectures, and vocabularies.

Uses the `gguf` package, which the engine itself does not. The weights are seeded, so each file is the same every time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TEMPLATE = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}<|start|>assistant\n"
CONTROL = ("<|start|>", "<|end|>")
USER_DEFINED = ("<tool>", "</tool>", "\n\n", "ß")
WORDS = (
    " ",
    "a",
    "b",
    "ab",
    "▁",
    "▁a",
    "▁b",
    "▁ab",
    "he",
    "ll",
    "o",
    "▁hello",
    "w",
    "▁w",
    "or",
    "ld",
    "▁world",
    "<",
    "|",
    ">",
    "s",
)
N_CTX = 512


@dataclass(frozen=True)
class Shape:
    """Sizes of a tiny model."""

    n_embd: int = 64
    n_ff: int = 96
    n_layer: int = 2
    n_head: int = 2
    n_head_kv: int = 1
    n_ctx: int = N_CTX
    n_vocab: int = 0  # more tokens than the vocabulary has words, to make it as large as a real one
    seed: int = 1
    decays: bool = True  # False: a recurrent state grows until it is not a number

    @property
    def n_rot(self) -> int:
        return self.n_embd // self.n_head


@dataclass
class Vocabulary:
    """Tokens, scores and types of a sentencepiece vocabulary, byte tokens included."""

    tokens: list[str] = field(default_factory=list[str])
    types: list[int] = field(default_factory=list[int])

    def add(self, text: str, kind: gguf.TokenType) -> None:
        self.tokens.append(text)
        self.types.append(int(kind))


def vocabulary(
    size: int = 0,
    words: tuple[str, ...] = WORDS,
    control: tuple[str, ...] = CONTROL,
    user_defined: tuple[str, ...] = USER_DEFINED,
) -> Vocabulary:
    made = Vocabulary()
    made.add("<unk>", gguf.TokenType.UNKNOWN)
    made.add("<s>", gguf.TokenType.CONTROL)
    made.add("</s>", gguf.TokenType.CONTROL)
    for byte in range(256):
        made.add(f"<0x{byte:02X}>", gguf.TokenType.BYTE)
    for text in control:
        made.add(text, gguf.TokenType.CONTROL)
    for text in user_defined:
        made.add(text, gguf.TokenType.USER_DEFINED)
    for text in words:
        made.add(text, gguf.TokenType.NORMAL)
    while len(made.tokens) < size:
        made.add(f"word{len(made.tokens)}", gguf.TokenType.NORMAL)
    return made


def write(
    path: Path,
    architecture: str = "llama",
    shape: Shape | None = None,
    *,
    change: Callable[[gguf.GGUFWriter], None] | None = None,
    tensors: bool = True,
    space_prefix: bool = True,
    split_bytes: int = 0,
    words: tuple[str, ...] = WORDS,
    control: tuple[str, ...] = CONTROL,
    user_defined: tuple[str, ...] = USER_DEFINED,
) -> Path:
    """One model file. `change` may add keys; without `tensors` it is a vocabulary only; `split_bytes` makes parts."""
    shape = shape or Shape()
    writer = gguf.GGUFWriter(path, architecture, split_max_size=split_bytes)
    vocab = vocabulary(shape.n_vocab, words, control, user_defined)
    _hyperparameters(writer, shape, architecture)
    writer.add_vocab_size(len(vocab.tokens))
    add_vocabulary(writer, vocab)
    writer.add_add_space_prefix(space_prefix)
    if change is not None:
        change(writer)
    if tensors:
        weights = _Weights(writer, shape.seed)
        _TENSORS[architecture](weights, shape, len(vocab.tokens))
    return written(writer, path)


def written(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Write the file that a writer was made for; returns its path."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def copied(source: Path, path: Path, *, layers: int, idle: int = 0, tokens: dict[int, str] | None = None) -> Path:
    """A copy of a model with its first `layers` layers, and behind them `idle` ones that add nothing but time: a draft
    model that is often right, or a slow model that says what a fast one does. `tokens`: other texts for some tokens."""
    read = gguf.GGUFReader(source)
    architecture = read.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    for name, field_ in read.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value: Any = field_.contents()
        kind = field_.types[0]
        if name == f"{architecture}.block_count":
            value = layers + idle
        if name == "tokenizer.ggml.tokens" and tokens:
            value = [tokens.get(number, text) for number, text in enumerate(value)]
        inner = field_.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, inner)
    for tensor in read.tensors:
        block = int(tensor.name.split(".")[1]) if tensor.name.startswith("blk.") else -1
        if block < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        if block == layers - 1:
            for number in range(layers, layers + idle):
                adds = any(
                    part in tensor.name for part in ("attn_output", "ffn_down")
                )  # what a layer adds to the stream
                data = np.zeros_like(tensor.data) if adds else tensor.data
                name = tensor.name.replace(f"blk.{block}.", f"blk.{number}.")
                writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    return written(writer, path)


def add_vocabulary(writer: gguf.GGUFWriter, vocab: Vocabulary) -> None:
    """Describe a vocabulary in a file, and a chat template with its tokens."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list(vocab.tokens)
    writer.add_token_scores([-float(index) for index in range(len(vocab.tokens))])
    writer.add_token_types(vocab.types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)


def _hyperparameters(writer: gguf.GGUFWriter, shape: Shape, architecture: str) -> None:
    writer.add_name("tiny")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_layer_norm_rms_eps(1e-5)
    if architecture == "mamba":
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * shape.n_embd)
        writer.add_ssm_state_size(8)
        writer.add_ssm_time_step_rank(4)
        return
    writer.add_head_count(shape.n_head)
    if architecture == "lfm2":
        writer.add_head_count_kv([0, shape.n_head_kv])
        writer.add_shortconv_l_cache(3)
    else:
        writer.add_head_count_kv(shape.n_head_kv)
    if architecture == "gemma3":
        writer.add_key_length(shape.n_rot)
        writer.add_value_length(shape.n_rot)
        writer.add_sliding_window(32)
    elif architecture == "llama":
        writer.add_rope_dimension_count(shape.n_rot)


class _Weights:
    """Adds random tensors."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def matrix(self, name: str, inputs: int, outputs: int) -> None:
        self._add(name, self._random.normal(0, 0.1, (outputs, inputs)))

    def ones(self, name: str, size: int) -> None:
        self._add(name, np.ones(size))

    def decay(self, name: str, inputs: int, outputs: int) -> None:
        """Add a matrix of negative numbers, with which a recurrent state does not grow without bound."""
        self._add(name, -np.abs(self._random.normal(0, 0.1, (outputs, inputs))))

    def _add(self, name: str, values: Any) -> None:
        self._writer.add_tensor(name, values.astype(np.float32))


def _head(weights: _Weights, shape: Shape, n_vocab: int, norm: str = "output_norm.weight") -> None:
    weights.matrix("token_embd.weight", shape.n_embd, n_vocab)
    weights.ones(norm, shape.n_embd)


def _attention(weights: _Weights, shape: Shape, block: str, *, norms: bool) -> None:
    n_kv = shape.n_rot * shape.n_head_kv
    weights.matrix(f"{block}.attn_q.weight", shape.n_embd, shape.n_embd)
    weights.matrix(f"{block}.attn_k.weight", shape.n_embd, n_kv)
    weights.matrix(f"{block}.attn_v.weight", shape.n_embd, n_kv)
    weights.matrix(f"{block}.attn_output.weight", shape.n_embd, shape.n_embd)
    if norms:
        weights.ones(f"{block}.attn_q_norm.weight", shape.n_rot)
        weights.ones(f"{block}.attn_k_norm.weight", shape.n_rot)


def _feed_forward(weights: _Weights, shape: Shape, block: str) -> None:
    weights.ones(f"{block}.ffn_norm.weight", shape.n_embd)
    weights.matrix(f"{block}.ffn_gate.weight", shape.n_embd, shape.n_ff)
    weights.matrix(f"{block}.ffn_up.weight", shape.n_embd, shape.n_ff)
    weights.matrix(f"{block}.ffn_down.weight", shape.n_ff, shape.n_embd)


def _transformer(weights: _Weights, shape: Shape, n_vocab: int, *, norms: bool, posts: bool) -> None:
    _head(weights, shape, n_vocab)
    for index in range(shape.n_layer):
        block = f"blk.{index}"
        weights.ones(f"{block}.attn_norm.weight", shape.n_embd)
        _attention(weights, shape, block, norms=norms)
        _feed_forward(weights, shape, block)
        if posts:
            weights.ones(f"{block}.post_attention_norm.weight", shape.n_embd)
            weights.ones(f"{block}.post_ffw_norm.weight", shape.n_embd)


def _llama(weights: _Weights, shape: Shape, n_vocab: int) -> None:
    _transformer(weights, shape, n_vocab, norms=False, posts=False)


def _qwen3(weights: _Weights, shape: Shape, n_vocab: int) -> None:
    _transformer(weights, shape, n_vocab, norms=True, posts=False)


def _gemma3(weights: _Weights, shape: Shape, n_vocab: int) -> None:
    _transformer(weights, shape, n_vocab, norms=True, posts=True)


def _mamba(weights: _Weights, shape: Shape, n_vocab: int) -> None:
    _head(weights, shape, n_vocab)
    inner, state, rank = 2 * shape.n_embd, 8, 4
    for index in range(shape.n_layer):
        block = f"blk.{index}"
        weights.ones(f"{block}.attn_norm.weight", shape.n_embd)
        weights.matrix(f"{block}.ssm_in.weight", shape.n_embd, 2 * inner)
        weights.matrix(f"{block}.ssm_conv1d.weight", 4, inner)
        weights.ones(f"{block}.ssm_conv1d.bias", inner)
        weights.matrix(f"{block}.ssm_x.weight", inner, rank + 2 * state)
        weights.matrix(f"{block}.ssm_dt.weight", rank, inner)
        weights.ones(f"{block}.ssm_dt.bias", inner)
        (weights.decay if shape.decays else weights.matrix)(f"{block}.ssm_a", state, inner)
        weights.ones(f"{block}.ssm_d", inner)
        weights.matrix(f"{block}.ssm_out.weight", inner, shape.n_embd)


def _lfm2(weights: _Weights, shape: Shape, n_vocab: int) -> None:
    _head(weights, shape, n_vocab, norm="token_embd_norm.weight")
    for index in range(shape.n_layer):
        block = f"blk.{index}"
        weights.ones(f"{block}.attn_norm.weight", shape.n_embd)
        if index % 2:
            _attention(weights, shape, block, norms=True)
        else:
            weights.matrix(f"{block}.shortconv.conv.weight", 3, shape.n_embd)
            weights.matrix(f"{block}.shortconv.in_proj.weight", shape.n_embd, 3 * shape.n_embd)
            weights.matrix(f"{block}.shortconv.out_proj.weight", shape.n_embd, shape.n_embd)
        _feed_forward(weights, shape, block)


_TENSORS: dict[str, Callable[[_Weights, Shape, int], None]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "mamba": _mamba,
    "lfm2": _lfm2,
    "bert": _llama,
    "llada": _llama,
}
