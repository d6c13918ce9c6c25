"""What may be wrong with a GGUF, one thing at a time: mutations of a `gguf_bytes.Document`, by what they damage.

`mutations` lists all that apply to one document, in a fixed order; each is small data and a function, made into a file
only when it is asked for. `KEYS` are names that llama.cpp reads under an architecture (llama-arch.cpp), so that keys
which a seed has not are tried too. Everything is reproducible: what is drawn, is drawn from a seed.
"""

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import gguf
from files import model_zoo
from files.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I32,
    SCALARS,
    STRING,
    U16,
    U32,
    Array,
    Document,
    Pair,
    Raw,
    Tensor,
    Value,
)

LONG = 60_000
"""Characters of a text that is far too long."""


class Mutation(NamedTuple):
    """One damage. `part` is what is damaged; `label` says how, and is enough to find it again."""

    part: str
    label: str
    apply: Callable[[Document], Document | bytes]


AS_IT_IS = Mutation("none", "as it is", Document.same)

_KEYS_TEXT = (
    "vocab_size context_length embedding_length embedding_length_out embedding_length_per_layer_input block_count "
    "leading_dense_block_count feed_forward_length expert_feed_forward_length expert_shared_feed_forward_length "
    "use_parallel_residual tensor_data_layout expert_count expert_used_count expert_shared_count expert_group_count "
    "expert_group_used_count expert_weights_scale expert_weights_norm expert_gating_func expert_group_scale "
    "experts_per_group moe_every_n_layers nextn_predict_layers n_deepstack_layers hidden_activation pooling_type "
    "logit_scale decoder_block_count attn_logit_softcapping final_logit_softcapping rescale_every_n_layers "
    "residual_scale embedding_scale token_shift_count interleave_moe_layer_step full_attention_interval swin_norm "
    "attention.head_count attention.head_count_kv attention.max_alibi_bias attention.clamp_kqv attention.key_length "
    "attention.value_length attention.layer_norm_epsilon attention.layer_norm_rms_epsilon "
    "attention.group_norm_epsilon attention.group_norm_groups attention.causal attention.q_lora_rank "
    "attention.kv_lora_rank attention.sliding_window attention.sliding_window_pattern attention.scale "
    "attention.output_scale attention.temperature_length attention.temperature_scale attention.key_length_mla "
    "attention.value_length_mla attention.key_length_swa attention.value_length_swa attention.shared_kv_layers "
    "attention.recurrent_layers rope.dimension_count rope.dimension_count_swa rope.dimension_sections rope.freq_base "
    "rope.freq_base_swa rope.scale_linear rope.scaling.type rope.scaling.factor rope.scaling.attn_factor "
    "rope.scaling.original_context_length rope.scaling.finetuned rope.scaling.yarn_log_multiplier "
    "rope.scaling.yarn_ext_factor rope.scaling.yarn_beta_fast ssm.conv_kernel ssm.inner_size ssm.state_size "
    "ssm.time_step_rank ssm.group_count ssm.dt_b_c_rms wkv.head_size shortconv.l_cache classifier.output_labels"
)
KEYS = tuple(_KEYS_TEXT.split())
_TOKENIZER_TEXT = (
    "bos_token_id eos_token_id eot_token_id eom_token_id unknown_token_id seperator_token_id padding_token_id "
    "cls_token_id mask_token_id fim_pre_token_id fim_pad_token_id add_bos_token add_eos_token add_sep_token "
    "add_space_prefix remove_extra_whitespaces suppress_tokens token_type_count scores token_type merges "
    "precompiled_charsmap pre model"
)
_TOKENIZER_KEYS = tuple(_TOKENIZER_TEXT.split())
_WHOLE = (0, 1, 2, 3, 7, 64, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
_REAL = (0.0, -1.0, 1.0, float("nan"), float("inf"), float("-inf"), 1e30, -1e30, 1e-45)
_TEXTS = (b"", b"x", b"llama", b"gpt2", b"none", b"yarn", b"\xff\xfe\x80", b"a\0b", b"{{", b"y" * LONG)
_SPLITS_TEXT = (
    "default llama-bpe deepseek-llm deepseek-coder deepseek-v3 falcon gpt-2 starcoder refact command-r qwen2 qwen35 "
    "stablelm2 olmo dbrx smaug-bpe poro-chat glm4 viking jais tekken smollm codeshell bloom exaone exaone-moe "
    "chameleon minerva-7b gpt-4o superbpe trillion bailingmoe seed-coder hunyuan kimi-k2 afmoe laguna gemma4 "
    "sarvam-moe whitespace minicpm5 youtu tiny_aya jina-v2-de spark2_5"
)
_SPLITS = tuple(_SPLITS_TEXT.split())
"""What tokenizer.ggml.pre may be."""
_TOKENIZERS_TEXT = "no_vocab none llama bert gpt2 hybriddna whitespace t5 rwkv test plamo2 gemma4"
_TOKENIZERS = tuple(_TOKENIZERS_TEXT.split())
_TYPES = sorted({*(int(kind) for kind in gguf.GGMLQuantizationType), 4, 5, 31, 36, 43, 99, 2**31, 2**32 - 1})


def mutations(document: Document) -> Iterator[Mutation]:
    """All of them."""
    yield from _of_pairs(document)
    yield from _of_absent_keys(document)
    yield from _of_tokenizer(document)
    yield from _of_tensors(document)
    yield from _of_layout(document)


def combined(document: Document, chance: random.Random, parts: Sequence[Mutation]) -> Mutation:
    """Two or three of them at once; those that make bytes come last."""
    chosen = chance.sample(parts, chance.randint(2, 3))

    def apply(changed: Document) -> Document | bytes:
        for mutation in chosen:
            try:
                made = mutation.apply(changed)
            except (StopIteration, LookupError, ValueError, struct.error, AssertionError, TypeError):
                continue  # an earlier one took away what this one damages
            if isinstance(made, bytes):
                return made
            changed = made
        return changed

    del document
    return Mutation("several", " + ".join(f"{each.part}: {each.label}" for each in chosen), apply)


def put(part: str, label: str, name: str, kind: int, value: Value) -> Mutation:
    """A key with another value."""
    return Mutation(part, f"{name} {label}", partial(Document.put, name=name, kind=kind, value=value))


def _of_pairs(document: Document) -> Iterator[Mutation]:
    """Every key of the file: absent, twice, of another type, with other values."""
    for pair in document.pairs:
        yield Mutation("key", f"{pair.name} deleted", partial(_without, name=pair.name))
        yield Mutation("key", f"{pair.name} twice", partial(_twice, name=pair.name))
        yield Mutation("key", f"{pair.name} renamed", partial(_renamed, name=pair.name, to=pair.key + b"\0x"))
        yield from _retyped(pair)
        yield from _revalued(pair)


def _without(document: Document, name: str) -> Document:
    return document.without(name)


def _twice(document: Document, name: str) -> Document:
    return replace(document, pairs=(*document.pairs, document.pairs[document.index(name)]))


def _renamed(document: Document, name: str, to: bytes) -> Document:
    pairs = tuple(pair._replace(key=to) if pair.name == name else pair for pair in document.pairs)
    return replace(document, pairs=pairs)


def _retyped(pair: Pair) -> Iterator[Mutation]:
    value = pair.value
    number = value if isinstance(value, int | float) else 1
    for kind in SCALARS:
        if kind == pair.kind:
            continue
        fitted = float(number) if kind in (F32, F64) else bool(number) if kind == BOOL else int(number) & 0x7F
        yield put("type", f"as type {kind}", pair.name, kind, fitted)
    if pair.kind != STRING:
        yield put("type", "as text", pair.name, STRING, b"1")
    if pair.kind != ARRAY:
        for count in (0, 1, 2, 3, 600):
            yield put("type", f"as {count} of i32", pair.name, ARRAY, Array(I32, [int(number)] * count))
        yield put("type", "as 2 of f32", pair.name, ARRAY, Array(F32, [1.0, 2.0]))
        yield put("type", "as 2 texts", pair.name, ARRAY, Array(STRING, [b"a", b"b"]))
    yield put("type", "as an array of arrays", pair.name, ARRAY, Array(ARRAY, []))
    yield put("type", "as a type that is none", pair.name, 77, Raw(bytes(16)))


def _revalued(pair: Pair) -> Iterator[Mutation]:
    value = pair.value
    if isinstance(value, Array):
        yield from _rearrayed(pair.name, value)
    elif isinstance(value, bytes):
        more = {"tokenizer.ggml.pre": _SPLITS, "tokenizer.ggml.model": _TOKENIZERS}.get(pair.name, ())
        for text in (*_TEXTS, *(each.encode() for each in more)):
            yield put("value", f"= {text[:12]!r} ({len(text)})", pair.name, STRING, text)
    elif isinstance(value, bool):
        yield put("value", f"= {not value}", pair.name, BOOL, not value)
    elif isinstance(value, float):
        for number in _REAL:
            yield put("value", f"= {number}", pair.name, pair.kind, number)
    elif isinstance(value, int):
        near = (value - 1, value + 1, value * 2, value // 2, value * 3)
        for number in dict.fromkeys((*_WHOLE, *near, -1)):
            if number != value and _fits(pair.kind, number):
                yield put("value", f"= {number}", pair.name, pair.kind, number)


def _fits(kind: int, number: int) -> bool:
    try:
        struct.pack("<" + SCALARS[kind], number)
    except struct.error:
        return False
    return True


def _rearrayed(name: str, array: Array) -> Iterator[Mutation]:
    items = list(array.items)
    kept = {"empty": [], "one": items[:1], "without the last": items[:-1], "one more": [*items, *items[-1:]]}
    for label, changed in kept.items():
        yield put("array", label, name, ARRAY, Array(array.kind, changed))
    for count in (0, len(items) - 1, len(items) + 1, 2**31, 2**63, 2**64 - 1):
        yield put("array", f"says {count}", name, ARRAY, Array(array.kind, items, count))
    if array.kind in SCALARS and items:
        odd = [True, False] if array.kind == BOOL else [0, 1, 9, 100]
        if array.kind == I32:
            odd += [-1, 2**31 - 1, -(2**31)]
        for number in _REAL if array.kind == F32 else odd:
            yield put("array", f"all {number}", name, ARRAY, Array(array.kind, [number] * len(items)))
            yield put("array", f"first {number}", name, ARRAY, Array(array.kind, [number, *items[1:]]))


def _of_absent_keys(document: Document) -> Iterator[Mutation]:
    """Keys that llama.cpp knows and the file has not."""
    architecture = document.value("general.architecture")
    assert isinstance(architecture, bytes)
    for short in KEYS:
        name = f"{architecture.decode()}.{short}"
        if document.value(name) is not None:
            continue
        for number in (0, 1, 2, 5, 2**31, 2**32 - 1):
            yield put("added", f"= {number}", name, U32, number)
        for real in (0.0, 2.5, float("nan")):
            yield put("added", f"= {real}", name, F32, real)
        for flag in (True, False):
            yield put("added", f"= {flag}", name, BOOL, flag)
        yield put("added", "= text", name, STRING, b"longrope")
        for items in ([0, 0], [1, 1], [1, 0], [4, 4, 4, 4], [2**31 - 1, -1]):
            yield put("added", f"= {items}", name, ARRAY, Array(I32, items))
        yield put("added", "= flags", name, ARRAY, Array(BOOL, [False, False]))
        yield put("added", "= texts", name, ARRAY, Array(STRING, [b"no", b"yes"]))
    for short in _TOKENIZER_KEYS:
        name = f"tokenizer.ggml.{short}"
        if document.value(name) is not None:
            continue
        for number in (0, 1, 2**31, 2**32 - 1):
            yield put("added", f"= {number}", name, U32, number)
        yield put("added", "= True", name, BOOL, True)
        yield put("added", "= [0, 9]", name, ARRAY, Array(I32, [0, 9]))
        yield put("added", "= texts", name, ARRAY, Array(STRING, [b"a b", b""]))
    for count in (0, 1, 2, 3, 65535):
        yield put("added", f"= {count}", "split.count", U16, count)
    yield put("added", "= yes", "general.alignment", U32, 64)
    yield put("added", "= 48", "general.alignment", U32, 48)
    for name, number in (("phi-3", 1), ("modern-bert", 2)):
        yield put("added", str(number), "general.name", STRING, name.encode())


def _of_tokenizer(document: Document) -> Iterator[Mutation]:
    """Tokens by their kind: twice, empty, far too long, not UTF-8, with a NUL; kinds that do not fit; too few."""
    tokens = document.value("tokenizer.ggml.tokens")
    types = document.value("tokenizer.ggml.token_type")
    if not isinstance(tokens, Array) or not isinstance(types, Array):
        return
    texts = list(tokens.items)
    first = {kind: types.items.index(kind) for kind in sorted({int(kind) for kind in types.items})}
    wrong = {
        "twice": texts[-1], "as the next": None, "empty": b"", "a NUL": b"\0", "cut by a NUL": b"a\0b",
        "not UTF-8": b"\xc3", "half a character": b"\xe2\x96", "a space": b" ", "spaces": b"   ",
        "60 kB": b"x" * LONG, "60 kB of letters that are no bytes": "ж".encode() * (LONG // 2),
        "60 kB of spaces": b" " * LONG, "5 kB": b"x" * 5000, "a byte": b"<0x41>", "half a byte": b"<0",
        "no byte": b"<0xZZ>",
    }  # fmt: skip
    for kind, index in first.items():
        for label, text in wrong.items():
            chosen = texts[(index + 1) % len(texts)] if text is None else text
            changed = [*texts[:index], chosen, *texts[index + 1 :]]
            yield put("tokens", f"of kind {kind}: {label}", "tokenizer.ggml.tokens", ARRAY, Array(STRING, changed))
    for kind in (-1, 0, 1, 2, 3, 4, 5, 6, 7, 2**31 - 1):
        some = [kind if index % 7 == 3 else old for index, old in enumerate(types.items)]
        for label, changed in (("all", [kind] * len(texts)), ("some", some)):
            yield put("tokens", f"{label} of kind {kind}", "tokenizer.ggml.token_type", ARRAY, Array(I32, changed))
    for byte in (b"<0x0A>", b"<0x61>", b"<0xC3>", b"<0xF0>", b"\\x61"):
        if byte in texts:
            changed = [b"gone" if text == byte else text for text in texts]
            yield put("tokens", f"no {byte!r}", "tokenizer.ggml.tokens", ARRAY, Array(STRING, changed))
    charsmap = document.value("tokenizer.ggml.precompiled_charsmap")
    for seed in range(60) if isinstance(charsmap, Array) else ():
        yield Mutation("charsmap", f"changed {seed}", partial(_other_charsmap, seed=seed))
    for kept in (0, 1, 2, 3, 40):
        yield Mutation("tokens", f"{kept} in all, and so the weights", partial(_fewer, kept=kept))
    yield Mutation("tokens", "each 2 kB, special", partial(_all_long, kind=3, length=2000))
    yield Mutation("tokens", "each 2 kB, of letters that are no bytes", partial(_all_long, kind=1, length=2000))


def _other_charsmap(document: Document, seed: int) -> Document:
    """Some of its units changed, those that texts reach most of all."""
    array = document.value("tokenizer.ggml.precompiled_charsmap")
    assert isinstance(array, Array)
    items, chance = list(array.items), random.Random(seed)
    used = [place for place, item in enumerate(items) if item not in (-1, 0)]
    for _ in range(chance.randint(1, 6)):
        items[chance.choice(used)] = chance.randrange(-128, 128)
    return document.put("tokenizer.ggml.precompiled_charsmap", ARRAY, Array(array.kind, items))


def _fewer(document: Document, kept: int) -> Document:
    """A vocabulary of the first tokens only, with as many rows of weights."""
    tokens = document.value("tokenizer.ggml.tokens")
    assert isinstance(tokens, Array)
    old = len(tokens.items)
    for name in ("tokens", "token_type", "scores"):
        value = document.value(f"tokenizer.ggml.{name}")
        if isinstance(value, Array):
            shorter = Array(value.kind, list(value.items[:kept]))
            document = document.put(f"tokenizer.ggml.{name}", ARRAY, shorter)
    tensors = tuple(
        tensor._replace(shape=(*tensor.shape[:-1], kept), data=tensor.data[: len(tensor.data) // old * kept])
        if tensor.shape[-1:] == (old,)
        else tensor
        for tensor in document.tensors
    )
    return replace(document, tensors=tensors)


def _all_long(document: Document, kind: int, length: int) -> Document:
    tokens = document.value("tokenizer.ggml.tokens")
    assert isinstance(tokens, Array)
    texts = [(f"{index} " + "ж" * (length // 2)).encode() for index in range(len(tokens.items))]
    changed = document.put("tokenizer.ggml.tokens", ARRAY, Array(STRING, texts))
    return changed.put("tokenizer.ggml.token_type", ARRAY, Array(I32, [kind] * len(texts)))


def _of_tensors(document: Document) -> Iterator[Mutation]:
    """Every tensor of the table: its type, shape, place and data; absent, twice, one too many."""
    for index, tensor in enumerate(document.tensors):
        name = tensor.name.decode()
        for kind in _TYPES:
            if kind == tensor.kind:
                continue
            if _fits_blocks(tensor, kind):
                apply = partial(_convert, index=index, kind=kind)
                yield Mutation("tensor type", f"{name} of type {kind}, all fits", apply)
            yield _tensor("tensor type", f"{name} says type {kind}", index, tensor._replace(kind=kind))
        for shape in _shapes(tensor.shape):
            yield _tensor("tensor shape", f"{name} {shape}", index, tensor._replace(shape=shape))
        for offset in (0, 1, 32, 2**31, 2**63, 2**64 - 32):
            yield _tensor("tensor place", f"{name} at {offset}", index, tensor._replace(offset=offset))
        for label, pattern in (("NaN", b"\0\0\xc0\x7f"), ("inf", b"\0\0\x80\x7f"), ("zero", bytes(4))):
            yield Mutation("tensor data", f"{name} all {label}", partial(_filled, index=index, pattern=pattern))
        yield Mutation("tensor", f"{name} missing", partial(_drop, index=index))
        yield Mutation("tensor", f"{name} twice", partial(_extra, tensor=tensor))
        for new in (tensor.name + b"\0x", tensor.name[:-1], b"", tensor.name * 4, b"\xff" + tensor.name):
            yield _tensor("tensor", f"{name} named {new[:20]!r}", index, tensor._replace(name=new))
    for name in ("output.weight", "rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.attn_q.scale", "blk.7.x", "extra"):
        for shape, kind in (((1,), 0), ((64,), 0), ((16,), 0), ((64,), 1)):
            size = shape[0] * (4 if kind == 0 else 2)
            yield Mutation(
                "tensor",
                f"{name} {shape} of type {kind} added",
                partial(_extra, tensor=Tensor(name.encode(), shape, bytes(size), kind)),
            )


def _filled(document: Document, index: int, pattern: bytes) -> Document:
    tensors = document.tensors
    made = tensors[index]._replace(data=pattern * (len(tensors[index].data) // len(pattern)))
    return replace(document, tensors=(*tensors[:index], made, *tensors[index + 1 :]))


def _tensor(part: str, label: str, index: int, tensor: Tensor) -> Mutation:
    def apply(document: Document) -> Document:
        return replace(document, tensors=(*document.tensors[:index], tensor, *document.tensors[index + 1 :]))

    return Mutation(part, label, apply)


def _drop(document: Document, index: int) -> Document:
    return replace(document, tensors=(*document.tensors[:index], *document.tensors[index + 1 :]))


def _extra(document: Document, tensor: Tensor) -> Document:
    return replace(document, tensors=(*document.tensors, tensor))


_MOST_ELEMENTS = 1 << 22


def _fits_blocks(tensor: Tensor, kind: int) -> bool:
    """Whether its rows are whole blocks of a type."""
    try:
        block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        return False
    return bool(tensor.shape) and tensor.shape[0] % block == 0


def converted(tensor: Tensor, kind: int) -> Tensor:
    """The tensor with data of another type, so that only its use is wrong."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    elements = 1
    for length in tensor.shape:
        elements *= length
    if elements > _MOST_ELEMENTS:  # another mutation's shape, for which no data is written
        return tensor._replace(kind=kind)
    # Small bytes, so that what they mean as numbers of any kind is finite.
    data = bytes(random.Random(kind).choices(range(0x2C), k=elements // block * size))
    return tensor._replace(kind=kind, data=data)


def _convert(document: Document, index: int, kind: int) -> Document:
    tensors = document.tensors
    made = converted(tensors[index], kind)
    return replace(document, tensors=(*tensors[:index], made, *tensors[index + 1 :]))


def _shapes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    yield ()
    if len(shape) < 1:
        return
    yield shape[::-1] if len(shape) > 1 else (*shape, 2)
    yield (*shape, 1)
    yield (0, *shape[1:])
    yield (*shape[:-1], 0)
    yield (shape[0] - 1, *shape[1:])
    yield (shape[0] * 2, *shape[1:])
    yield (2**62, *shape[1:])
    yield (2**32, 2**32)
    yield (2**63, *shape[1:])
    yield (1, 1, 1, 1, 1)


def _of_layout(document: Document) -> Iterator[Mutation]:
    """The file as bytes: counts and versions that lie, cut off at every edge, and with bytes to spare."""
    for version in (0, 1, 2, 4, 0x03000000, 2**32 - 1):
        yield Mutation("layout", f"version {version}", partial(replace, version=version))
    for count in (0, 1, len(document.pairs) - 1, len(document.pairs) + 1, 2**32, 2**63, 2**64 - 1):
        yield Mutation("layout", f"{count} pairs", partial(replace, n_pairs=count))
    for count in (0, 1, len(document.tensors) - 1, len(document.tensors) + 1, 2**32, 2**63, 2**64 - 1):
        yield Mutation("layout", f"{count} tensors", partial(replace, n_tensors=count))
    document.encoded()
    for edge in document.edges[1:]:
        for length in (edge, edge + 3):
            yield Mutation("cut", f"after {length} bytes", partial(_cut, length=length))
    yield Mutation("layout", "more at the end", partial(_longer, by=1000))
    yield Mutation("layout", "other magic", _other_magic)
    for seed in range(40):
        yield Mutation("bytes", f"flipped {seed}", partial(_flipped, seed=seed))


def _longer(document: Document, by: int) -> bytes:
    return document.encoded() + bytes(by)


def _other_magic(document: Document) -> bytes:
    return b"GGUX" + document.encoded()[4:]


def _cut(document: Document, length: int) -> bytes:
    return document.encoded()[:length]


def _flipped(document: Document, seed: int) -> bytes:
    """Some bytes of the header changed."""
    data = bytearray(document.encoded())
    end = next((edge for edge in document.edges if edge > len(data) // 2), len(data))
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(end)] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
    return bytes(data)


RESIZED: tuple[tuple[str, dict[str, int], dict[str, int]], ...] = tuple(
    (f"{letters}={value}", dict.fromkeys(letters.split(), value), dict.fromkeys(keys.split(), value))
    for letters, keys, values in (
        ("F", "feed_forward_length", (0, 1, 31, 97)),
        ("C", "context_length", (0, 1, 100, 300)),
        ("X", "expert_count", (0, 1, 3, 130)),
        ("XF", "expert_feed_forward_length", (0, 1, 33)),
        ("S", "ssm.state_size", (0, 1, 7, 300)),
        ("R", "ssm.time_step_rank", (0, 1, 3, 128, 129)),
        ("G", "ssm.group_count", (0, 2, 3)),
        ("four", "ssm.conv_kernel", (0, 1, 2, 40)),
        ("three", "shortconv.l_cache", (0, 1, 2, 40)),
        ("I", "ssm.inner_size", (0, 64, 127, 130)),
        ("W", "attention.iclr_lora_rank attention.value_residual_mix_lora_rank", (0, 1, 5)),
    )
    for value in values
) + tuple(
    (f"heads of {size}, {heads} and {kept}", sizes, keys)
    for size, heads, kept in (
        (31, 2, 1), (2, 2, 1), (1, 2, 2), (0, 2, 1), (48, 2, 1), (32, 3, 2), (32, 2, 3), (32, 0, 0), (32, 2, 0),
        (32, 2, 2), (16, 4, 3), (256, 1, 1),
    )
    for sizes, keys in (
        (
            {"D": size, "H": heads, "K": kept, "Q": size * heads, "KV": size * kept},
            {
                "attention.head_count": heads, "attention.head_count_kv": kept, "attention.key_length": size,
                "attention.value_length": size, "rope.dimension_count": size,
            },
        ),
    )
)  # fmt: skip
"""Sizes changed in the keys and in the shapes alike, so that the file is consistent: a label, letters, keys."""


def resized(kind: str, vocabulary: str | None) -> Iterator[Mutation]:
    """The model made anew with other sizes. Keys that the architecture has not are left out."""
    plain = model_zoo.model(kind, vocabulary)
    prefix = model_zoo.KINDS[kind].architecture
    for label, letters, keys in RESIZED:
        for whole in (False, True):
            sizes = dict(letters)
            changed = {f"{prefix}.{key}": value for key, value in keys.items()}
            present = {key: value for key, value in changed.items() if plain.value(key) is not None or whole}
            if not present:
                continue
            if "H" in letters and whole:
                sizes["E"] = letters["D"] * letters["H"]
                present[f"{prefix}.embedding_length"] = sizes["E"]
            apply = partial(_made_anew, kind=kind, vocabulary=vocabulary, sizes=sizes, keys=present)
            yield Mutation("resized", f"{label}{', and the rest' if whole else ''}", apply)


def _made_anew(_: Document, kind: str, vocabulary: str | None, sizes: dict[str, int], keys: dict[str, int]) -> Document:
    made = model_zoo.model(kind, vocabulary, sizes=sizes)
    for key, value in keys.items():
        made = made.put(key, U32, value)
    return made
