"""GGUF files of embedding models and rerankers with random weights, and vectors computed without the engine.

Uses the `gguf` package. The weights are seeded, so each file is the same every time.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from files.model_files import written
from numpy.typing import NDArray

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!<|>_[]"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDPIECES = (*SPECIAL, *(f"▁{letter}" for letter in LETTERS), *LETTERS)
CLS, SEP = 2, 3
RERANK_TEMPLATE = "[CLS]judge: {query} against: {document}[SEP]"


@dataclass(frozen=True)
class Kind:
    """What a file holds: an architecture, how it pools, and the labels of its classifier, if it has one."""

    architecture: str
    pooling: gguf.PoolingType
    labels: tuple[str, ...] = ()


KINDS = {
    "bert-mean": Kind("bert", gguf.PoolingType.MEAN),
    "bert-cls": Kind("bert", gguf.PoolingType.CLS),
    "nomic-mean": Kind("nomic-bert", gguf.PoolingType.MEAN),
    "qwen3-last": Kind("qwen3", gguf.PoolingType.LAST),
    "qwen3-mean": Kind("qwen3", gguf.PoolingType.MEAN),
}
RERANKERS = {
    "bert-rank": Kind("bert", gguf.PoolingType.RANK, ("relevance",)),
    "qwen3-rank": Kind("qwen3", gguf.PoolingType.RANK, ("yes", "no")),
}


def write(
    path: Path, kind: Kind, *, width: int = 64, layers: int = 2, context: int = 256, words: int = 0, wider: int = 2,
    template: str = "", classes: int = 0,
) -> Path:  # fmt: skip
    """Write a model. `words`: more tokens, to make the vocabulary as large as a real one. `wider`: how many times the
    feed-forward layers are. `classes`: of its classifier, if they are not as many as its labels."""
    writer = gguf.GGUFWriter(path, kind.architecture)
    tokens = [*WORDPIECES, *(f"▁word{number}" for number in range(words))]
    _vocabulary(writer, tokens)
    writer.add_name(f"random {kind.architecture}")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(wider * width)
    writer.add_head_count(4)
    writer.add_pooling_type(kind.pooling)
    if kind.labels:
        writer.add_classifier_output_labels(list(kind.labels))
    if template:
        writer.add_chat_template([{"name": "rerank", "template": template}])
    weights = _Weights(writer, width, wider * width, classes or len(kind.labels))
    (_qwen3 if kind.architecture == "qwen3" else _bert)(weights, kind, layers, context, len(tokens))
    return written(writer, path)


def _vocabulary(writer: gguf.GGUFWriter, tokens: Sequence[str]) -> None:
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(tokens))
    writer.add_token_types([int(gguf.TokenType.CONTROL)] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_bos_token_id(CLS)
    writer.add_eos_token_id(SEP)
    writer.add_sep_token_id(SEP)
    writer.add_unk_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_mask_token_id(4)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_token_type_count(2)
    writer.add_vocab_size(len(tokens))


class _Weights:
    """Random tensors of a model of this width, and of its feed-forward layers' (`inner`)."""

    def __init__(self, writer: gguf.GGUFWriter, width: int, inner: int, classes: int) -> None:
        self.width = width
        self.inner = inner
        self.classes = classes
        self._writer = writer
        self._random = np.random.default_rng(5)

    def matrix(self, name: str, *shape: int) -> None:
        numbers = self._random.standard_normal(shape) * (1.6 / np.sqrt(self.width))
        self._writer.add_tensor(name, numbers.astype(np.float32))

    def linear(self, name: str, rows: int, columns: int) -> None:
        self.matrix(f"{name}.weight", rows, columns)
        self.matrix(f"{name}.bias", rows)

    def norm(self, name: str, size: int = 0, *, bias: bool = False) -> None:
        self._writer.add_tensor(f"{name}.weight", np.ones(size or self.width, np.float32))
        if bias:
            self._writer.add_tensor(f"{name}.bias", np.zeros(size or self.width, np.float32))

    def add(self, key: str, value: float) -> None:
        getattr(self._writer, f"add_{key}")(value)


def _bert(weights: _Weights, kind: Kind, layers: int, context: int, size: int) -> None:
    width, nomic = weights.width, kind.architecture == "nomic-bert"
    weights.add("layer_norm_eps", 1e-5)
    weights.add("causal_attention", False)
    weights.matrix("token_embd.weight", size, width)
    weights.matrix("token_types.weight", 2, width)
    weights.norm("token_embd_norm", bias=True)
    if nomic:
        weights.add("rope_freq_base", 1000.0)
    else:
        weights.matrix("position_embd.weight", context, width)
    if kind.labels:
        weights.linear("cls", width, width)
        weights.linear("cls.output", weights.classes, width)
    for block in (f"blk.{number}." for number in range(layers)):
        if nomic:
            weights.matrix(f"{block}attn_qkv.weight", 3 * width, width)
            weights.matrix(f"{block}attn_output.weight", width, width)
            weights.matrix(f"{block}ffn_gate.weight", weights.inner, width)
            weights.matrix(f"{block}ffn_up.weight", weights.inner, width)
            weights.matrix(f"{block}ffn_down.weight", width, weights.inner)
        else:
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                weights.linear(f"{block}{name}", width, width)
            weights.linear(f"{block}ffn_up", weights.inner, width)
            weights.linear(f"{block}ffn_down", width, weights.inner)
        weights.norm(f"{block}attn_output_norm", bias=True)
        weights.norm(f"{block}layer_output_norm", bias=True)


def _qwen3(weights: _Weights, kind: Kind, layers: int, context: int, size: int) -> None:
    width, head = weights.width, weights.width // 4
    weights.add("head_count_kv", 4)
    weights.add("key_length", head)
    weights.add("value_length", head)
    weights.add("rope_freq_base", 1e6)
    weights.add("layer_norm_rms_eps", 1e-6)
    weights.matrix("token_embd.weight", size, width)
    weights.norm("output_norm")
    if kind.labels:
        weights.matrix("cls.output.weight", weights.classes, width)
    for block in (f"blk.{number}." for number in range(layers)):
        weights.norm(f"{block}attn_norm")
        weights.norm(f"{block}ffn_norm")
        weights.norm(f"{block}attn_q_norm", head)
        weights.norm(f"{block}attn_k_norm", head)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights.matrix(f"{block}{name}.weight", width, width)
        for name in ("ffn_gate", "ffn_up"):
            weights.matrix(f"{block}{name}.weight", weights.inner, width)
        weights.matrix(f"{block}ffn_down.weight", width, weights.inner)


class _Bare:
    """A model and a context for one sequence by llama.cpp's calls alone; every token is an output."""

    def __init__(self, path: Path, longest: int, **options: Any) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = longest
        context.n_seq_max = context.n_threads = context.n_threads_batch = 1
        for name, value in options.items():
            setattr(context, name, value)
        self._context: Any = llama_cpp.llama_init_from_model(self._model, context)

    def _read(self, tokens: Sequence[int]) -> None:
        lib = self._lib
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.n_seq_id[place] = token, place, 1
            batch.seq_id[place][0], batch.logits[place] = 0, 1
        batch.n_tokens = len(tokens)
        memory = lib.llama_get_memory(self._context)
        if memory:
            lib.llama_memory_clear(memory, True)
        assert (lib.llama_decode if memory else lib.llama_encode)(self._context, batch) == 0
        lib.llama_batch_free(batch)

    def close(self) -> None:
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)


class Alone(_Bare):
    """Vectors, each text in a decode of its own: the reference."""

    def __init__(self, path: Path, *, longest: int = 512, **options: Any) -> None:
        super().__init__(path, longest, embeddings=True, **options)
        ranks = self._lib.llama_pooling_type(self._context) == int(gguf.PoolingType.RANK)
        size = self._lib.llama_model_n_cls_out if ranks else self._lib.llama_model_n_embd_out
        self._size: int = size(self._model)

    def vector(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self._read(tokens)
        pointer = ctypes.cast(self._lib.llama_get_embeddings_seq(self._context, 0), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (self._size,)).copy()


class ScoredAlone(_Bare):
    """The log-probability of every token of a text, from one decode: the reference."""

    def __init__(self, path: Path, longest: int = 512) -> None:
        super().__init__(path, longest, flash_attn_type=0)
        self._size: int = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(self._model))

    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        self._read(tokens)
        sums: list[float] = []
        for place, token in enumerate(tokens[1:]):
            logits = np.ctypeslib.as_array(self._lib.llama_get_logits_ith(self._context, place), (self._size,))
            logits = logits.astype(np.float64)
            sums.append(float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())))
        return sums


def cosine(left: NDArray[Any], right: NDArray[Any]) -> float:
    """Returns the cosine of two vectors."""
    return float(left @ right / (np.linalg.norm(left) * np.linalg.norm(right)))
