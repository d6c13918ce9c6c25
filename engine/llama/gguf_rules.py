"""Refuses headers that violate what llama.cpp assumes without checking, which would end the process.

There are two steps. A header that is certain to end the process, in any architecture, is refused (`check_numbers`). Any
other is either verified, if every number that its architecture uses is checked here, or there are `doubts`, and a child
process has to try the file.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from engine.llama.gguf_header import (
    BOOL,
    F32,
    I32,
    STRING,
    U16,
    U32,
    VALUE_TYPES,
    Entry,
    Header,
    damaged,
    tensor_type_name,
)

_MAX_LAYERS, _MAX_EXPERTS = 512, 1024  # LLAMA_MAX_LAYERS, LLAMA_MAX_EXPERTS
_SCALINGS = ("none", "linear", "yarn", "longrope")
_MATRIX = frozenset((0, 1, 2, 3, 6, 7, 8, *range(10, 15), *range(16, 24), 29, 30, 34, 35, 39))
"""The ggml types that ggml-cpu can multiply by and take rows of: F32, F16, BF16 and the quantised ones in files."""
_VECTOR = frozenset((0,))
_MAX_SIZE = 1 << 31
_FINITE = (-1e30, 1e30)
_LARGEST = 3.4e38


class Rule(NamedTuple):
    """The allowed values of a key, if it is present: `kinds` of GGUF types, numbers from `low` to `high`, or one of
    `texts`.

    `array`: also an array of such numbers. `required`: it must be present.
    """

    key: str
    kinds: tuple[int, ...]
    low: float = 0
    high: float = 2**32 - 1
    array: bool = False
    texts: tuple[str, ...] = ()
    required: bool = False

    def broken(self, entry: Entry | None) -> str:
        """Returns what is wrong with a value; "" if nothing is."""
        if entry is None:
            return "is missing" if self.required else ""
        allowed = " or ".join(VALUE_TYPES[kind] for kind in self.kinds)
        if entry.kind not in self.kinds or (entry.is_array and not self.array):
            given = f"array of {VALUE_TYPES[entry.kind]}" if entry.is_array else VALUE_TYPES[entry.kind]
            return f"is of the type {given}, but must be {allowed}"
        if self.texts:
            return "" if entry.value in self.texts else f"is {entry.value!r}; possible are {', '.join(self.texts)}"
        for number in entry.value if isinstance(entry.value, tuple) else (entry.value,):
            if isinstance(number, int | float) and not self.low <= number <= self.high:
                return f"is {number}; {_range(self.low, self.high)}"
        return ""


def _range(low: float, high: float) -> str:
    return f"it must be at least {low}, and finite" if high == _LARGEST else f"{low} to {high} are possible"


_FATAL: tuple[Rule, ...] = (
    Rule("block_count", (U32,), 1, _MAX_LAYERS, required=True),
    Rule("nextn_predict_layers", (U32,)),
    Rule("expert_count", (U32,), 0, _MAX_EXPERTS),
    Rule("expert_used_count", (U32, I32), 0, _MAX_EXPERTS, array=True),
    Rule("expert_group_count", (U32,), 0, _MAX_EXPERTS),
    Rule("expert_group_used_count", (U32,), 0, _MAX_EXPERTS),
    Rule("rope.scaling.type", (STRING,), texts=_SCALINGS),
    Rule("attention.layer_norm_epsilon", (F32,), 0, _LARGEST),
    Rule("attention.layer_norm_rms_epsilon", (F32,), 0, _LARGEST),
    Rule("attention.group_norm_epsilon", (F32,), 0, _LARGEST),
)
"""Rules for every architecture."""

_PART = Rule("split.no", (U16,), required=True)
"""The rule for each part of a split model."""

_VERIFIED: tuple[Rule, ...] = (
    Rule("context_length", (U32,), 1, _MAX_SIZE, required=True),
    Rule("embedding_length", (U32,), 1, _MAX_SIZE, required=True),
    Rule("feed_forward_length", (U32,), 1, _MAX_SIZE, required=True),
    Rule("attention.head_count", (U32,), 1, _MAX_SIZE, required=True),
    Rule("attention.head_count_kv", (U32,), 1, _MAX_SIZE),
    Rule("attention.key_length", (U32,), 1, _MAX_SIZE),
    Rule("attention.value_length", (U32,), 1, _MAX_SIZE),
    Rule("attention.sliding_window", (U32,), 1, 1 << 20),  # memory is allocated for this many
    Rule("rope.dimension_count", (U32,), 2, _MAX_SIZE),
    Rule("rope.freq_base", (F32,), 1e-30, _FINITE[1]),
    Rule("rope.freq_base_swa", (F32,), 1e-30, _FINITE[1]),
    Rule("rope.scaling.factor", (F32,), 0, _FINITE[1]),
    Rule("rope.scale_linear", (F32,), 0, _FINITE[1]),
    Rule("rope.scaling.attn_factor", (F32,), *_FINITE),
    Rule("rope.scaling.original_context_length", (U32,), 1, _MAX_SIZE),
    Rule("rope.scaling.finetuned", (BOOL,)),
    Rule("attn_logit_softcapping", (F32,), *_FINITE),
    Rule("final_logit_softcapping", (F32,), *_FINITE),
    # What these architectures do not have.
    Rule("nextn_predict_layers", (U32,), 0, 0),
    Rule("expert_count", (U32,), 0, 0),
    Rule("expert_used_count", (U32,), 0, 0),
    Rule("expert_group_count", (U32,), 0, 0),
    Rule("pooling_type", (U32,)),  # a model that pools is refused before
    Rule("attention.causal", (BOOL,), 1, 1),
)
"""Rules for the architectures in `_DENSE`; llama.cpp does not read their other numbers, or checks them against
shapes."""
_UNUSUAL = (
    "embedding_length_out", "attention.key_length_swa", "attention.value_length_swa", "attention.scale",
    "attention.sliding_window_pattern", "rope.dimension_count_swa", "rope.dimension_sections",
    "classifier.output_labels", "classifier.pooling_type",
)  # fmt: skip
"""Keys that change what these architectures compute, and that their usual files do not have."""


class _Dense(NamedTuple):
    """An architecture whose files can be verified. `square`: its heads together are as long as the embedding.
    `partial`: positions may rotate only a part of a head. `matrices`: those in addition to `_LAYER`."""

    square: bool = False
    partial: bool = False
    matrices: frozenset[str] = frozenset()


_LAYER = frozenset(("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"))
_DENSE: dict[str, _Dense] = {
    "llama": _Dense(),
    "qwen2": _Dense(square=True),
    "qwen3": _Dense(),
    "gemma": _Dense(),
    "gemma2": _Dense(),
    "gemma3": _Dense(),
    "phi3": _Dense(square=True, partial=True, matrices=frozenset(("attn_qkv",))),
    "olmo2": _Dense(square=True),
}
_VECTORS = frozenset(
    (
        *("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm", "output_norm"),
        *("rope_freqs", "rope_factors_long", "rope_factors_short"),
    )
)


def check_numbers(file: Path, headers: Sequence[Header]) -> None:
    """Raise ModelLoadError, naming the key, for numbers over which llama.cpp ends the process in every architecture."""
    header = headers[0]
    prefix = header.text("general.architecture") + "."
    for rule in _FATAL:
        if why := rule.broken(header.entry(prefix + rule.key)):
            raise damaged(file, f"{prefix}{rule.key} {why}")
    for number, part in enumerate(headers if len(headers) > 1 else (), 1):
        if why := _PART.broken(part.entry(_PART.key)):
            raise damaged(file, f"{_PART.key} of part {number} {why}")
    layers = header.integer(f"{prefix}block_count", 0)
    later = header.integer(f"{prefix}nextn_predict_layers", 0)
    if later >= layers:
        raise damaged(file, f"{prefix}nextn_predict_layers is {later}, but it has only {layers} layers in all")
    _check_experts(file, header, prefix)
    for each in (tensor for part in headers for tensor in part.tensors):
        kind = each.name.rpartition(".")[0]
        if each.type not in _VECTOR and (kind.endswith("_norm") or each.name.endswith(".bias")):
            raise damaged(
                file, f"the tensor {each.name!r} is of the type {tensor_type_name(each.type)}, but must be F32"
            )


def _check_experts(file: Path, header: Header, prefix: str) -> None:
    count, used = header.integer(f"{prefix}expert_count", 0), header.integer(f"{prefix}expert_used_count", 0)
    groups = header.integer(f"{prefix}expert_group_count", 0)
    used_groups = header.integer(f"{prefix}expert_group_used_count", 0)
    if prefix in ("hunyuan-dense.", "hunyuan_vl.") and count <= 1:
        return  # these architectures treat one expert as none
    if used > count or (count and not used):
        raise damaged(file, f"{prefix}expert_used_count is {used}, of {prefix}expert_count {count}")
    if groups and (groups >= count or (groups > 1 and (count % groups or not 0 < used_groups < groups))):
        raise damaged(
            file,
            f"{prefix}expert_group_count is {groups}, of which {used_groups} are used, for {count} experts in all",
        )


def doubts(headers: Sequence[Header]) -> str:
    """Returns why this header is not verified, as a part of a sentence; "" if it is."""
    header = headers[0]
    architecture = header.text("general.architecture")
    dense = _DENSE.get(architecture)
    if dense is None:
        return f"headers of the architecture {architecture!r} are not verified"
    prefix = architecture + "."
    for rule in _VERIFIED:
        if why := rule.broken(header.entry(prefix + rule.key)):
            return f"{prefix}{rule.key} {why}"
    for key in _UNUSUAL:
        if header.entry(prefix + key) is not None:
            return f"{prefix}{key} is unusual"
    if header.entry("general.tensor_extra.name") is not None:
        return "general.tensor_extra.name is unusual"
    found = (_heads(header, prefix, dense), _tensors(headers, dense), _attention(headers, prefix))
    return next((why for each in found for why in each), "")


def _heads(header: Header, prefix: str, dense: _Dense) -> Iterator[str]:
    def number(key: str, default: int) -> int:
        return header.integer(prefix + key, default)

    embedding, heads = number("embedding_length", 0), number("attention.head_count", 1)
    kept = number("attention.head_count_kv", heads)
    size = number("attention.key_length", embedding // heads)
    turned = number("rope.dimension_count", size)
    if heads % kept:
        yield f"{prefix}attention.head_count is {heads}, no multiple of {prefix}attention.head_count_kv {kept}"
    if number("attention.value_length", embedding // heads) != size:
        yield f"{prefix}attention.key_length is {size}, and {prefix}attention.value_length another"
    if dense.square and size * heads != embedding:
        yield f"{heads} heads of {size} are not as long as {prefix}embedding_length {embedding}"
    if turned % 2 or turned > size or (turned < size and not dense.partial):
        yield f"{prefix}rope.dimension_count is {turned}, of heads of {size}"


def _attention(headers: Sequence[Header], prefix: str) -> Iterator[str]:
    """Yields each layer without attention matrices. llama.cpp takes them fused or one by one (llama-model.cpp,
    `create_tensor_qkv`), and for some architectures ends the process if it finds neither."""
    names = {tensor.name for header in headers for tensor in header.tensors}
    for layer in range(headers[0].integer(f"{prefix}block_count", 0)):
        own = {kind for kind in ("qkv", "q", "k", "v") if f"blk.{layer}.attn_{kind}.weight" in names}
        if "qkv" not in own and own != {"q", "k", "v"}:
            yield f"layer {layer} has no attn_qkv, and not all of attn_q, attn_k and attn_v"


def _tensors(headers: Sequence[Header], dense: _Dense) -> Iterator[str]:
    for tensor in (tensor for header in headers for tensor in header.tensors):
        *_, kind, last = ("", *tensor.name.split("."))[-3:]
        allowed: frozenset[int] = frozenset()
        if last == "weight" and (kind in _LAYER or kind in dense.matrices or kind in ("token_embd", "output")):
            allowed = _MATRIX
        elif (last == "weight" and kind in _VECTORS) or last == "bias":
            allowed = _VECTOR
        if tensor.type not in allowed:
            yield f"the tensor {tensor.name!r} is of the type {tensor_type_name(tensor.type)}"
