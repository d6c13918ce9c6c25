"""Which files are known to be safe by their header: of any other, a child process has to try whether llama.cpp survives
it, since an assumption that it does not check ends the process.

Verified are the plain dense architectures with the usual tokenizers, if every number that llama.cpp reads of them is
one that it can compute with.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.llama.gguf.gguf_header import BOOL, F32, STRING, TOKEN_TYPES, TOKENS, U16, U32, Entry, Header, Tensor

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_SCALINGS = ("none", "linear", "yarn", "longrope")
_SIZE, _ABSENT = (U32, 1, 1 << 31), (U32, 0, 0)
_POSITIVE, _FINITE = (F32, 1e-30, 1e30), (F32, -1e30, 1e30)
_REQUIRED = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count")
_NUMBERS: Mapping[str, tuple[int, float, float]] = {
    **dict.fromkeys(_REQUIRED, _SIZE),
    "block_count": (U32, 1, MAX_LAYERS),
    **dict.fromkeys(("attention.head_count_kv", "attention.key_length", "attention.value_length"), _SIZE),
    "attention.sliding_window": (U32, 1, 1 << 20),  # memory is allocated for this many
    "attention.layer_norm_epsilon": (F32, 0, 1),
    "attention.layer_norm_rms_epsilon": (F32, 0, 1),
    "rope.dimension_count": (U32, 2, 1 << 31),
    **dict.fromkeys(("rope.freq_base", "rope.freq_base_swa"), _POSITIVE),
    **dict.fromkeys(("rope.scaling.factor", "rope.scale_linear"), (F32, 0, 1e30)),
    **dict.fromkeys(("rope.scaling.attn_factor", "attn_logit_softcapping", "final_logit_softcapping"), _FINITE),
    "rope.scaling.original_context_length": _SIZE,
    "rope.scaling.finetuned": (BOOL, 0, 1),
    **dict.fromkeys(("nextn_predict_layers", "expert_count", "expert_used_count", "expert_group_count"), _ABSENT),
    **dict.fromkeys(("pooling_type", "vocab_size"), (U32, 0, 1 << 32)),  # a model that pools is refused before
    "attention.causal": (BOOL, 1, 1),
}
"""The keys of a verified architecture, each with its type and the least and largest number."""
_MATRIX_TYPES = frozenset((0, 1, 2, 3, 6, 7, 8, *range(10, 15), *range(16, 24), 29, 30, 34, 35, 39))
"""The ggml types that ggml-cpu can multiply by and take rows of: F32, F16, BF16 and the quantised ones in files."""
_MATRICES = frozenset(
    (*("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), "token_embd", "output")
)
_VECTORS = frozenset(
    (
        *("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm", "output_norm"),
        *("rope_freqs", "rope_factors_long", "rope_factors_short"),
    )
)


class _Dense(NamedTuple):
    """A verified architecture. `square`: its heads together are as long as the embedding. `fused`: queries, keys and
    values may be one matrix, and positions may rotate only a part of a head."""

    square: bool = False
    fused: bool = False


_DENSE: Mapping[str, _Dense] = {
    "llama": _Dense(),
    "qwen2": _Dense(square=True),
    "qwen3": _Dense(),
    "gemma": _Dense(),
    "gemma2": _Dense(),
    "gemma3": _Dense(),
    "phi3": _Dense(square=True, fused=True),
    "olmo2": _Dense(square=True),
}
_TOKENIZERS = ("llama", "gpt2", "gemma4")
_SHORT, _LONGEST = 16, 1024  # bytes; real vocabularies have no longer token
_MOST_SQUARES = 1 << 26
"""The largest sum of the squared lengths of long tokens: of some, llama.cpp keeps as many bytes for each character."""


def verified(headers: Sequence[Header]) -> bool:
    """Returns whether it is certain that llama.cpp survives a model with these headers of its parts."""
    header = headers[0]
    architecture = header.text("general.architecture")
    if (dense := _DENSE.get(architecture)) is None:
        return False
    prefix = architecture + "."
    keys = {key.removeprefix(prefix): header.entry(key) for key in header.keys_under(prefix)}
    tensors = [tensor for part in headers for tensor in part.tensors]
    return (
        all(key in keys for key in _REQUIRED)
        and all(entry is not None and _has_sound_number(key, entry) for key, entry in keys.items())
        and header.entry("general.tensor_extra.name") is None
        and (len(headers) == 1 or all(_is_part(part) for part in headers))
        and _has_sound_heads(header, prefix, dense)
        and all(_has_sound_type(tensor, dense) for tensor in tensors)
        and _attends({tensor.name for tensor in tensors}, header.integer(f"{prefix}block_count", 0), dense)
        and _has_sound_vocabulary(header)
    )


def _has_sound_number(key: str, entry: Entry) -> bool:
    kind, array, value = entry
    if key == "rope.scaling.type":
        return kind == STRING and value in _SCALINGS
    if array or key not in _NUMBERS or not isinstance(value, int | float):
        return False
    expected, low, high = _NUMBERS[key]
    return kind == expected and low <= value <= high


def _is_part(header: Header) -> bool:
    number = header.entry("split.no")
    return number is not None and number.kind == U16 and not number.is_array


def _has_sound_heads(header: Header, prefix: str, dense: _Dense) -> bool:
    def number(key: str, default: int) -> int:
        return header.integer(prefix + key, default)

    embedding, heads = number("embedding_length", 0), number("attention.head_count", 1)
    size = number("attention.key_length", embedding // heads)
    turned = number("rope.dimension_count", size)
    return (
        heads % number("attention.head_count_kv", heads) == 0
        and number("attention.value_length", embedding // heads) == size
        and (not dense.square or size * heads == embedding)
        and turned % 2 == 0
        and (turned == size or (dense.fused and turned < size))
    )


def _has_sound_type(tensor: Tensor, dense: _Dense) -> bool:
    *_, kind, last = ("", *tensor.name.split("."))[-3:]
    if last == "weight" and (kind in _MATRICES or (dense.fused and kind == "attn_qkv")):
        return tensor.type in _MATRIX_TYPES
    return tensor.type == 0 and (last == "bias" or (last == "weight" and kind in _VECTORS))


def _attends(names: set[str], layers: int, dense: _Dense) -> bool:
    """Returns whether each layer has its attention matrices. llama.cpp takes them fused or one by one
    (llama-model.cpp, `create_tensor_qkv`), and for some architectures ends the process if it finds neither."""

    def has(layer: int, *kinds: str) -> bool:
        return all(f"blk.{layer}.attn_{kind}.weight" in names for kind in kinds)

    return all((dense.fused and has(layer, "qkv")) or has(layer, "q", "k", "v") for layer in range(layers))


def _has_sound_vocabulary(header: Header) -> bool:
    texts = header.tokens
    if b"\0" in b"".join(texts):
        texts = [text.partition(b"\0")[0] for text in texts]
    long = [len(text) for text in texts if len(text) > _SHORT]
    return (
        header.text("tokenizer.ggml.model") in _TOKENIZERS
        and header.text("tokenizer.ggml.pre") != "whitespace"
        and 0 < len(texts) == header.count(TOKENS)
        and (header.entry(TOKEN_TYPES) is None or header.count(TOKEN_TYPES) >= len(texts))
        # llama.cpp gives empty texts names of their own.
        and len(set(texts)) + max(0, texts.count(b"") - 1) == len(texts)
        and max(long, default=0) <= _LONGEST
        and sum(length**2 for length in long) <= _MOST_SQUARES
    )
