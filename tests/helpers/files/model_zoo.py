"""Tiny models of many architectures and vocabularies, as `gguf_bytes.Document`s: the seeds of the GGUF fuzzer.

Every one loads and decodes. Shapes are written as llama.cpp's loaders ask for them (src/models/*.cpp): letters stand
for sizes, "E,2*F" is a matrix of E columns and 2 F rows. The weights are seeded.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from files.gguf_bytes import ARRAY, BOOL, F32, I32, STRING, U32, Array, Document, Pair, Tensor

TEMPLATE = b"{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}<|start|>assistant\n"
LAYERS, CONTEXT = 2, 512
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

SIZES = {
    "E": 64, "F": 96, "H": 2, "K": 1, "D": 32, "Q": 64, "KV": 32, "X": 4, "XF": 32, "C": CONTEXT,
    "I": 128, "S": 8, "R": 4, "G": 1, "L": 16, "B": 32, "W": 8, "one": 1, "four": 4, "three": 3,
}  # fmt: skip
"""E embedding, F feed-forward, H heads, K key heads, D of a head, Q = H*D, KV = K*D, X experts, XF of an expert,
C context; of state-space layers I inner, S state, R rank, G groups; L, B, W: low ranks."""


class Vocabulary(NamedTuple):
    """Tokens and what the tokenizer's keys say of them."""

    model: bytes
    pre: bytes = b""
    tokens: tuple[bytes, ...] = ()
    types: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    merges: tuple[bytes, ...] = ()
    more: tuple[Pair, ...] = ()


def _bytes_as_hex() -> list[bytes]:
    return [b"<0x%02X>" % byte for byte in range(256)]


def _byte_letters() -> list[str]:
    """The characters that GPT-2's byte-level BPE writes bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    odd = (byte for byte in range(256) if byte not in plain)
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(odd)}
    return [letters[byte] for byte in range(256)]


_SPECIAL = (b"<|start|>", b"<|end|>")
_WORDS = "▁ a b ab ▁a ▁b ▁ab he ll o ▁hello w ▁w or ld ▁world < | > s"
_PIECES = tuple(_WORDS.split())


def _spm() -> Vocabulary:
    normal = tuple(piece.encode() for piece in _PIECES)
    tokens = (b"<unk>", b"<s>", b"</s>", *_bytes_as_hex(), *_SPECIAL, b"<tool>", *normal)
    types = (UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, CONTROL, CONTROL, USER_DEFINED, *[NORMAL] * len(normal))
    return Vocabulary(b"llama", b"default", tokens, types, tuple(-float(n) for n in range(len(tokens))))


def _bpe(pre: bytes = b"qwen2") -> Vocabulary:
    merges = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld")
    joined = tuple(merge.replace(" ", "").encode() for merge in merges)
    letters = tuple(letter.encode() for letter in _byte_letters())
    tokens = (*letters, *joined, *_SPECIAL, b"<|endoftext|>", b"<tool>")
    types = (*[NORMAL] * (256 + len(joined)), CONTROL, CONTROL, CONTROL, USER_DEFINED)
    return Vocabulary(b"gpt2", pre, tokens, types, (), tuple(merge.encode() for merge in merges))


def _gemma4() -> Vocabulary:
    merges = ("h e", "l l", "he ll", "hell o")
    letters = tuple("helo▁wrd\n")
    joined = tuple(merge.replace(" ", "") for merge in merges)
    normal = tuple(text.encode() for text in (*letters, *joined))
    tokens = (b"<pad>", b"<eos>", b"<bos>", b"<unk>", *_bytes_as_hex(), b"<|turn>", b"<turn|>", *_SPECIAL, *normal)
    types = (CONTROL, CONTROL, CONTROL, UNKNOWN, *[BYTE] * 256, *[CONTROL] * 4, *[NORMAL] * len(normal))
    return Vocabulary(b"gemma4", b"gemma4", tokens, types, (), tuple(merge.encode() for merge in merges))


def _wpm() -> Vocabulary:
    normal = tuple(text.encode() for text in ("▁hello", "▁world", "a", "b", "▁a", "▁b", "o", "w"))
    tokens = (b"[PAD]", b"[UNK]", b"[CLS]", b"[SEP]", b"[MASK]", *_SPECIAL, *normal)
    types = (CONTROL, UNKNOWN, CONTROL, CONTROL, CONTROL, CONTROL, CONTROL, *[NORMAL] * len(normal))
    return Vocabulary(b"bert", b"default", tokens, types, more=_ids(unknown=1, seperator=3, padding=0, bos=2))


def _ugm() -> Vocabulary:
    normal = tuple(piece.encode() for piece in _PIECES)
    tokens = (b"<pad>", b"</s>", b"<unk>", *_SPECIAL, *normal)
    types = (CONTROL, CONTROL, UNKNOWN, CONTROL, CONTROL, *[NORMAL] * len(normal))
    scores = tuple(-float(n) for n in range(len(tokens)))
    charsmap = Array(1, _charsmap({"Ａ": "a", "ﬁ": "fi"}))
    more = (Pair(b"tokenizer.ggml.precompiled_charsmap", ARRAY, charsmap), *_ids(unknown=2, padding=0))
    return Vocabulary(b"t5", b"default", tokens, types, scores, more=more)


def _charsmap(replacements: Mapping[str, str]) -> list[int]:
    """A precompiled map of SentencePiece: a double array (Darts-clone's units), then the replacements.

    Built plainly: each node gets 256 units of its own, so a base is a multiple of 256.
    """
    nodes: list[dict[int, int]] = [{}]
    values: dict[int, int] = {}
    texts = b""
    for source, target in replacements.items():
        node = 0
        for byte in source.encode():
            if byte not in nodes[node]:
                nodes[node][byte] = len(nodes)
                nodes.append({})
            node = nodes[node][byte]
        values[node] = len(texts)
        texts += target.encode() + b"\0"
    units = [0xFF] * (256 * (len(nodes) + 1))  # a label that no byte below 0xFF matches
    place = {0: 0}

    def unit(node: int, label: int) -> int:
        base = (256 * (node + 1)) ^ place[node]
        assert base < 1 << 21
        return base << 10 | (1 << 8 if node in values else 0) | label

    for node, children in enumerate(nodes):
        for byte, child in children.items():
            place[child] = 256 * (node + 1) ^ byte
        if node in values:
            units[256 * (node + 1)] = 1 << 31 | values[node]
        units[place[node]] = unit(node, 0 if node == 0 else place[node] & 0xFF)
    data = b"".join(value.to_bytes(4, "little") for value in units)
    blob = len(data).to_bytes(4, "little") + data + texts
    return [byte - 256 if byte > 127 else byte for byte in blob]


def _rwkv() -> Vocabulary:
    single = [b"\\x%02x" % byte for byte in range(256)]
    tokens = (b"<s>", *single, b"hello", b" world", *_SPECIAL)
    return Vocabulary(b"rwkv", b"", tokens, (CONTROL, *[NORMAL] * 258, CONTROL, CONTROL), more=_ids(bos=0, eos=0))


def _plamo2() -> Vocabulary:
    normal = tuple(piece.encode() for piece in ("hello", "he", "llo", " world", "a", "b", "ab"))
    tokens = (b"<|plamo:unk|>", b"<|plamo:bos|>", b"<|plamo:eos|>", b"<|plamo:pad|>", *_bytes_as_hex(), *_SPECIAL)
    types = (UNKNOWN, CONTROL, CONTROL, CONTROL, *[BYTE] * 256, CONTROL, CONTROL, *[NORMAL] * len(normal))
    tokens = (*tokens, *normal)
    return Vocabulary(b"plamo2", b"default", tokens, types, tuple(-float(n) for n in range(len(tokens))))


def _ids(**ids: int) -> tuple[Pair, ...]:
    return tuple(Pair(f"tokenizer.ggml.{name}_token_id".encode(), U32, id_) for name, id_ in ids.items())


def vocabulary_pairs(vocabulary: Vocabulary) -> tuple[Pair, ...]:
    """The tokenizer's keys."""
    pairs = [Pair(b"tokenizer.ggml.model", STRING, vocabulary.model)]
    if vocabulary.pre:
        pairs.append(Pair(b"tokenizer.ggml.pre", STRING, vocabulary.pre))
    if vocabulary.tokens:
        pairs.append(Pair(b"tokenizer.ggml.tokens", ARRAY, Array(STRING, vocabulary.tokens)))
        pairs.append(Pair(b"tokenizer.ggml.token_type", ARRAY, Array(I32, vocabulary.types)))
    if vocabulary.scores:
        pairs.append(Pair(b"tokenizer.ggml.scores", ARRAY, Array(F32, vocabulary.scores)))
    if vocabulary.merges:
        pairs.append(Pair(b"tokenizer.ggml.merges", ARRAY, Array(STRING, vocabulary.merges)))
    more = vocabulary.more or _ids(bos=1, eos=2)
    return (*pairs, *more, Pair(b"tokenizer.ggml.add_bos_token", BOOL, False))


VOCABULARIES: dict[str, Callable[[], Vocabulary]] = {
    "spm": _spm,
    "bpe": _bpe,
    "gpt-4o": lambda: _bpe(b"gpt-4o"),
    "gemma4": _gemma4,
    "wpm": _wpm,
    "ugm": _ugm,
    "rwkv": _rwkv,
    "plamo2": _plamo2,
    "none": lambda: Vocabulary(b"none"),
}


class Kind(NamedTuple):
    """One architecture: keys (under its name), and tensors as "name shape", of the whole model and of each layer."""

    architecture: str
    vocabulary: str
    keys: tuple[tuple[str, int, float | tuple[int, ...]], ...]
    whole: str
    block: str | Callable[[int], str]
    sizes: Mapping[str, int] = {}


_BASE: tuple[tuple[str, int, float | tuple[int, ...]], ...] = (
    ("context_length", U32, CONTEXT),
    ("embedding_length", U32, 64),
    ("block_count", U32, LAYERS),
    ("feed_forward_length", U32, 96),
)
_RMS = (("attention.layer_norm_rms_epsilon", F32, 1e-5),)
_LAYER_NORM = (("attention.layer_norm_epsilon", F32, 1e-5),)
_HEADS = (("attention.head_count", U32, 2), ("attention.head_count_kv", U32, 1))
_HEAD_SIZE = (("attention.key_length", U32, 32), ("attention.value_length", U32, 32))
_DENSE = (*_BASE, *_RMS, *_HEADS)
_WINDOW = (("attention.sliding_window", U32, 64),)
_EXPERTS = (("expert_count", U32, 4), ("expert_used_count", U32, 2))
_EXPERT_SIZE = (("expert_feed_forward_length", U32, 32),)
_STATE = (("ssm.conv_kernel", U32, 4), ("ssm.inner_size", U32, 128), ("ssm.state_size", U32, 8))
_RANK = (("ssm.time_step_rank", U32, 4),)

_HEAD = "token_embd.weight E,V; output_norm.weight E"
_OUTPUT = "; output.weight E,V"
_ATTENTION = "attn_q.weight E,Q; attn_k.weight E,KV; attn_v.weight E,KV; attn_output.weight Q,E"
_QK_NORMS = "attn_q_norm.weight D; attn_k_norm.weight D"
_BIASES = "attn_q.bias Q; attn_k.bias KV; attn_v.bias KV"
_FEED = "ffn_norm.weight E; ffn_gate.weight E,F; ffn_up.weight E,F; ffn_down.weight F,E"
_POSTS = "post_attention_norm.weight E; post_ffw_norm.weight E"
_PLAIN = f"attn_norm.weight E; {_ATTENTION}; {_FEED}"
_MOE = "ffn_gate_inp.weight E,X; ffn_gate_exps.weight E,XF,X; ffn_up_exps.weight E,XF,X; ffn_down_exps.weight XF,E,X"
_SHARED = "ffn_gate_shexp.weight E,XF; ffn_up_shexp.weight E,XF; ffn_down_shexp.weight XF,E"
_MAMBA = (
    "ssm_in.weight E,2*I; ssm_conv1d.weight four,I; ssm_conv1d.bias I; ssm_x.weight I,R+2*S; ssm_dt.weight R,I; "
    "ssm_dt.bias I; ssm_a S,I; ssm_d I; ssm_out.weight I,E"
)
_MAMBA2 = (
    "ssm_in.weight E,2*I+2*S+R; ssm_conv1d.weight four,I+2*S; ssm_conv1d.bias I+2*S; ssm_dt.bias R; ssm_a one,R; "
    "ssm_d one,R; ssm_norm.weight I,G; ssm_out.weight I,E"
)


def _lfm2(layer: int) -> str:
    convolution = "shortconv.conv.weight three,E; shortconv.in_proj.weight E,3*E; shortconv.out_proj.weight E,E"
    return f"attn_norm.weight E; {_FEED}; " + (f"{_ATTENTION}; {_QK_NORMS}" if layer else convolution)


def _jamba(layer: int) -> str:
    norms = "ssm_dt_norm.weight R; ssm_b_norm.weight S; ssm_c_norm.weight S"
    return f"attn_norm.weight E; {_FEED}; " + (_ATTENTION if layer else f"{_MAMBA}; {norms}")


def _qwen35(layer: int) -> str:
    linear = (
        "attn_qkv.weight E,4*S+2*S+2*S; attn_gate.weight E,4*S; ssm_conv1d.weight four,8*S; ssm_dt.bias R; ssm_a R; "
        "ssm_beta.weight E,R; ssm_alpha.weight E,R; ssm_norm.weight S; ssm_out.weight 4*S,E"
    )
    feed = "ffn_gate.weight E,F; ffn_up.weight E,F; ffn_down.weight F,E"
    full = f"{_ATTENTION.replace('E,Q', 'E,2*Q')}; {_QK_NORMS}"
    return f"attn_norm.weight E; post_attention_norm.weight E; {feed}; " + (full if layer else linear)


def _deepseek2(layer: int) -> str:
    attention = (
        "attn_q_a_norm.weight L; attn_kv_a_norm.weight B; attn_q_a.weight E,L; attn_q_b.weight L,H*D; "
        "attn_kv_a_mqa.weight E,B+L; attn_k_b.weight L,B,H; attn_v_b.weight B,L,H; attn_output.weight H*L,E"
    )
    feed = "ffn_gate.weight E,F; ffn_up.weight E,F; ffn_down.weight F,E"
    moe = f"{_MOE}; {_SHARED}"
    return f"attn_norm.weight E; {attention}; ffn_norm.weight E; " + (moe if layer else feed)


def _glm4moe(layer: int) -> str:
    attention = f"attn_norm.weight E; post_attention_norm.weight E; {_ATTENTION}"
    feed = "ffn_gate.weight E,F; ffn_up.weight E,F; ffn_down.weight F,E"
    moe = f"{_MOE}; {_SHARED}; exp_probs_b.bias X"
    if layer < LAYERS:
        return f"{attention}; " + (moe if layer else feed)
    return f"{attention}; {moe}; nextn.eh_proj.weight 2*E,E; nextn.enorm.weight E; nextn.hnorm.weight E"


def _rwkv7() -> str:
    norms = "; ".join(f"{name}.weight E; {name}.bias E" for name in ("attn_norm", "attn_norm_2", "time_mix_ln"))
    lora = (
        "time_mix_w0.weight E; time_mix_w1.weight E,L; time_mix_w2.weight L,E; time_mix_a0.weight E; "
        "time_mix_a1.weight E,W; time_mix_a2.weight W,E; time_mix_v0.weight E; time_mix_v1.weight E,W; "
        "time_mix_v2.weight W,E; time_mix_g1.weight E,L; time_mix_g2.weight L,E; "
        "time_mix_lerp_fused.weight E,one,one,2*three; time_mix_k_k.weight E; time_mix_k_a.weight E; "
        "time_mix_r_k.weight E; "
    )
    square = "; ".join(f"time_mix_{name}.weight E,E" for name in ("key", "value", "receptance", "output"))
    channel = "channel_mix_lerp_k.weight E; channel_mix_key.weight E,F; channel_mix_value.weight F,E"
    return f"{norms}; {lora}{square}; {channel}"


def _gemma4_block(layer: int) -> str:
    size = "2*D" if layer else "D"
    attention = (
        f"attn_q.weight E,H*{size}; attn_k.weight E,{size}; attn_v.weight E,{size}; attn_output.weight H*{size},E"
    )
    norms = f"attn_q_norm.weight {size}; attn_k_norm.weight {size}"
    return f"attn_norm.weight E; {attention}; {norms}; {_FEED}; {_POSTS}"


KINDS: dict[str, Kind] = {
    "llama": Kind("llama", "spm", (*_DENSE, ("rope.dimension_count", U32, 32)), _HEAD, _PLAIN),
    "mixtral": Kind(
        "llama", "spm", (*_DENSE, *_EXPERTS), _HEAD,
        f"attn_norm.weight E; {_ATTENTION}; ffn_norm.weight E; {_MOE.replace('XF', 'F')}",
    ),
    "qwen2": Kind("qwen2", "bpe", _DENSE, _HEAD + _OUTPUT, f"{_PLAIN}; {_BIASES}"),
    "qwen3": Kind("qwen3", "bpe", (*_DENSE, *_HEAD_SIZE), _HEAD, f"{_PLAIN}; {_QK_NORMS}"),
    "wide": Kind(
        "qwen3", "bpe",
        (("context_length", U32, CONTEXT), ("embedding_length", U32, 256), ("block_count", U32, LAYERS),
         ("feed_forward_length", U32, 256), *_RMS, *_HEADS, ("attention.key_length", U32, 128),
         ("attention.value_length", U32, 128)),
        _HEAD, f"{_PLAIN}; {_QK_NORMS}", {"E": 256, "F": 256, "D": 128, "Q": 256, "KV": 128},
    ),
    "qwen3moe": Kind(
        "qwen3moe", "bpe", (*_DENSE, *_HEAD_SIZE, *_EXPERTS, *_EXPERT_SIZE), _HEAD,
        f"attn_norm.weight E; {_ATTENTION}; {_QK_NORMS}; ffn_norm.weight E; {_MOE}",
    ),
    "qwen2moe": Kind(
        "qwen2moe", "bpe",
        (*_DENSE, *_EXPERTS, *_EXPERT_SIZE, ("expert_shared_feed_forward_length", U32, 32)), _HEAD + _OUTPUT,
        f"attn_norm.weight E; {_ATTENTION}; {_BIASES}; ffn_norm.weight E; {_MOE}; {_SHARED}; "
        "ffn_gate_inp_shexp.weight E",
    ),
    "qwen35": Kind(
        "qwen35", "bpe",
        (*_DENSE, *_HEAD_SIZE, ("rope.dimension_count", U32, 16), ("rope.dimension_sections", ARRAY, (4, 2, 2, 0)),
         ("ssm.conv_kernel", U32, 4), ("ssm.inner_size", U32, 32), ("ssm.state_size", U32, 8),
         ("ssm.time_step_rank", U32, 4), ("ssm.group_count", U32, 2), ("full_attention_interval", U32, 2)),
        _HEAD, _qwen35,
    ),
    "gemma": Kind("gemma", "spm", (*_DENSE, *_HEAD_SIZE), _HEAD, _PLAIN),
    "gemma2": Kind(
        "gemma2", "spm",
        (*_DENSE, *_HEAD_SIZE, *_WINDOW, ("attn_logit_softcapping", F32, 50.0), ("final_logit_softcapping", F32, 30.0)),
        _HEAD, f"{_PLAIN}; {_POSTS}",
    ),
    "gemma3": Kind("gemma3", "spm", (*_DENSE, *_HEAD_SIZE, *_WINDOW), _HEAD, f"{_PLAIN}; {_QK_NORMS}; {_POSTS}"),
    "gemma4": Kind(
        "gemma4", "gemma4",
        (*_BASE, *_RMS, ("attention.head_count", U32, 2), ("attention.head_count_kv", ARRAY, (1, 1)), *_WINDOW,
         ("attention.sliding_window_pattern", ARRAY, (True, False)), ("attention.key_length", U32, 64),
         ("attention.value_length", U32, 64), ("attention.key_length_swa", U32, 32),
         ("attention.value_length_swa", U32, 32), ("embedding_length_per_layer_input", U32, 0),
         ("attention.shared_kv_layers", U32, 0), ("rope.dimension_count", U32, 64),
         ("rope.dimension_count_swa", U32, 32)),
        f"{_HEAD}; rope_freqs.weight D", _gemma4_block,
    ),
    "phi2": Kind(
        "phi2", "bpe", (*_BASE, *_LAYER_NORM, *_HEADS, ("rope.dimension_count", U32, 16)),
        f"{_HEAD}; output_norm.bias E{_OUTPUT}; output.bias V",
        f"attn_norm.weight E; attn_norm.bias E; {_ATTENTION}; {_BIASES}; attn_output.bias E; ffn_up.weight E,F; "
        "ffn_up.bias F; ffn_down.weight F,E; ffn_down.bias E",
    ),
    "phi3": Kind(
        "phi3", "spm",
        (*_DENSE, ("rope.dimension_count", U32, 32), ("rope.scaling.original_context_length", U32, 256),
         ("rope.scaling.attn_factor", F32, 1.1)),
        f"{_HEAD}{_OUTPUT}; rope_factors_long.weight L; rope_factors_short.weight L",
        "attn_norm.weight E; attn_qkv.weight E,Q+2*KV; attn_output.weight E,E; ffn_norm.weight E; ffn_up.weight E,2*F; "
        "ffn_down.weight F,E",
    ),
    "gpt2": Kind(
        "gpt2", "bpe", (*_BASE, *_LAYER_NORM, ("attention.head_count", U32, 2)),
        f"{_HEAD}; output_norm.bias E; position_embd.weight E,C",
        "attn_norm.weight E; attn_norm.bias E; attn_qkv.weight E,3*E; attn_qkv.bias 3*E; attn_output.weight E,E; "
        "attn_output.bias E; ffn_norm.weight E; ffn_norm.bias E; ffn_up.weight E,F; ffn_up.bias F; "
        "ffn_down.weight F,E; ffn_down.bias E",
    ),
    "olmo2": Kind(
        "olmo2", "bpe", _DENSE, _HEAD + _OUTPUT,
        f"{_ATTENTION}; attn_q_norm.weight Q; attn_k_norm.weight KV; {_POSTS}; ffn_gate.weight E,F; ffn_up.weight E,F; "
        "ffn_down.weight F,E",
    ),
    "cohere2": Kind(
        "cohere2", "bpe", (*_BASE, *_LAYER_NORM, *_HEADS, *_WINDOW, ("logit_scale", F32, 0.25)), _HEAD,
        f"attn_norm.weight E; {_ATTENTION}; ffn_gate.weight E,F; ffn_up.weight E,F; ffn_down.weight F,E",
    ),
    "gpt-oss": Kind(
        "gpt-oss", "gpt-4o", (*_DENSE, *_EXPERTS, *_EXPERT_SIZE, *_WINDOW, *_HEAD_SIZE), _HEAD + _OUTPUT,
        f"attn_norm.weight E; post_attention_norm.weight E; {_ATTENTION}; {_BIASES}; attn_output.bias E; "
        f"attn_sinks.weight H; {_MOE}; ffn_gate_inp.bias X; ffn_gate_exps.bias XF,X; ffn_up_exps.bias XF,X; "
        "ffn_down_exps.bias E,X",
    ),
    "glm4moe": Kind(
        "glm4moe", "bpe",
        (*_DENSE, *_HEAD_SIZE, *_EXPERTS, *_EXPERT_SIZE, ("expert_shared_count", U32, 1),
         ("leading_dense_block_count", U32, 1), ("nextn_predict_layers", U32, 1)),
        _HEAD + _OUTPUT, _glm4moe,
    ),
    "deepseek2": Kind(
        "deepseek2", "bpe",
        (*_BASE, *_RMS, ("attention.head_count", U32, 2), ("attention.head_count_kv", U32, 1),
         ("attention.q_lora_rank", U32, 16), ("attention.kv_lora_rank", U32, 32), ("attention.key_length", U32, 48),
         ("attention.value_length", U32, 32), ("attention.key_length_mla", U32, 32),
         ("attention.value_length_mla", U32, 16), ("rope.dimension_count", U32, 16), *_EXPERTS, *_EXPERT_SIZE,
         ("expert_shared_count", U32, 1), ("leading_dense_block_count", U32, 1)),
        _HEAD + _OUTPUT, _deepseek2,
    ),
    "mamba": Kind("mamba", "bpe", (*_BASE, *_RMS, *_STATE, *_RANK), _HEAD, f"attn_norm.weight E; {_MAMBA}"),
    "mamba2": Kind(
        "mamba2", "bpe", (*_BASE, *_RMS, *_STATE, *_RANK, ("ssm.group_count", U32, 1)), _HEAD,
        f"attn_norm.weight E; {_MAMBA2}",
    ),
    "jamba": Kind(
        "jamba", "spm",
        (*_BASE, *_RMS, *_STATE, *_RANK, ("attention.head_count", U32, 2), ("attention.head_count_kv", ARRAY, (0, 1))),
        _HEAD, _jamba,
    ),
    "falcon-h1": Kind(
        "falcon-h1", "bpe", (*_DENSE, *_HEAD_SIZE, *_STATE, *_RANK, ("ssm.group_count", U32, 1)), _HEAD,
        f"{_PLAIN.replace('ffn_norm.weight', 'ffn_norm')}; {_MAMBA2}",
    ),
    "lfm2": Kind(
        "lfm2", "bpe",
        (*_BASE, *_RMS, ("attention.head_count", U32, 2), ("attention.head_count_kv", ARRAY, (0, 1)),
         ("shortconv.l_cache", U32, 3)),
        "token_embd.weight E,V; token_embd_norm.weight E", _lfm2,
    ),
    "rwkv7": Kind(
        "rwkv7", "rwkv",
        (*_BASE, *_LAYER_NORM, ("wkv.head_size", U32, 32), ("attention.decay_lora_rank", U32, 16),
         ("attention.iclr_lora_rank", U32, 8), ("attention.value_residual_mix_lora_rank", U32, 8),
         ("attention.gate_lora_rank", U32, 16), ("token_shift_count", U32, 2)),
        f"{_HEAD}; output_norm.bias E; token_embd_norm.weight E; token_embd_norm.bias E{_OUTPUT}", _rwkv7(),
    ),
}  # fmt: skip
"""By the name of the seed. "mixtral" is llama with experts; "wide" is qwen3 with rows of 256, a block of most quantised
types."""


def model(
    kind: str, vocabulary: str | Vocabulary | None = None, *, sizes: Mapping[str, int] | None = None, seed: int = 1
) -> Document:
    """One model; `vocabulary` (of `VOCABULARIES`, or one's own) in place of the architecture's usual one; `sizes` in
    place of those in `SIZES` for the tensors' shapes (the keys stay)."""
    about = KINDS[kind]
    chosen = vocabulary or about.vocabulary
    words = VOCABULARIES[chosen]() if isinstance(chosen, str) else chosen
    n_vocab = len(words.tokens) or 64
    scale = {**SIZES, **about.sizes, "V": n_vocab, **(sizes or {})}
    layers = LAYERS + (1 if kind == "glm4moe" else 0)
    pairs = [
        Pair(b"general.architecture", STRING, about.architecture.encode()),
        Pair(b"general.name", STRING, b"tiny"),
        Pair(b"general.file_type", U32, 0),
        *(_key(about.architecture, *key) for key in about.keys),
        Pair(f"{about.architecture}.vocab_size".encode(), U32, n_vocab),
        *vocabulary_pairs(words),
        Pair(b"tokenizer.chat_template", STRING, TEMPLATE),
    ]
    if layers > LAYERS:
        pairs[pairs.index(_key(about.architecture, "block_count", U32, LAYERS))] = _key(
            about.architecture, "block_count", U32, layers
        )
    random = np.random.default_rng(seed)
    tensors = [_tensor(random, text, scale) for text in about.whole.split(";")]
    for layer in range(layers):
        block = about.block if isinstance(about.block, str) else about.block(layer)
        tensors += [_tensor(random, text, scale, f"blk.{layer}.") for text in block.split(";")]
    return Document(tuple(pairs), tuple(tensors))


def _key(architecture: str, name: str, kind: int, value: float | tuple[int, ...]) -> Pair:
    key = f"{architecture}.{name}".encode()
    if isinstance(value, tuple):
        items = list(value)
        return Pair(key, ARRAY, Array(BOOL if isinstance(items[0], bool) else I32, items))
    return Pair(key, kind, value)


def _tensor(random: np.random.Generator, text: str, scale: Mapping[str, int], prefix: str = "") -> Tensor:
    name, dimensions = text.split()
    shape = tuple(size(each, scale) for each in dimensions.split(","))
    elements = int(np.prod(shape))
    values = np.ones(elements) if "norm" in name else random.normal(0, 0.1, elements)
    if name == "ssm_a":
        values = -np.abs(values)
    return Tensor((prefix + name).encode(), shape, values.astype("<f4").tobytes())


def size(text: str, scale: Mapping[str, int]) -> int:
    total = 0
    for term in text.split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(factor) if factor.isdigit() else scale[factor]
        total += product
    return total
