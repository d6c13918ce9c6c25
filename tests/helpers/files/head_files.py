"""GGUF files of a tiny glm4moe with random weights and a head of its own for the next tokens (MTP, NextN)."""

from pathlib import Path
from typing import Any, Literal, TypeAlias

import gguf
import numpy as np
from files.model_files import add_vocabulary, vocabulary, written

Kind: TypeAlias = Literal["right", "often", "random", "wrong"]
"""What the head guesses: what the model says, always; often; hardly ever; never, though it is sure."""
_WIDTH, _HEADS, _FEED, _EXPERTS = 64, 4, 32, 2
N_CTX = 1024


def write(path: Path, kind: Kind | None, *, seed: int = 5) -> Path:
    """One model file of a block and its head. A head whose block is the model's own, and which reads the token alone,
    says what the model says; the more it also reads of the hidden state, the less. None: the file declares a head and
    leaves it out."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "glm4moe")
    vocab = vocabulary()
    _describe(writer, len(vocab.tokens))
    add_vocabulary(writer, vocab)

    def add(name: str, values: Any) -> None:
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))

    embeddings = random.normal(0, 1, (len(vocab.tokens), _WIDTH))
    embeddings /= np.sqrt((embeddings**2).mean(1, keepdims=True))  # so that a norm does not change them
    output = random.normal(0, 2, (len(vocab.tokens), _WIDTH))
    output[:3] = 0  # the control tokens that end a text
    add("token_embd.weight", embeddings)
    add("output_norm.weight", np.ones(_WIDTH))
    add("output.weight", output)
    own = _block(random)
    for name, values in own.items():
        add(f"blk.0.{name}", values)
    if kind is not None:
        _add_head(add, kind, random, own, output)
    return written(writer, path)


def _add_head(add: Any, kind: Kind, random: Any, own: dict[str, Any], output: Any) -> None:
    for name, values in (_block(random) if kind == "random" else own).items():
        add(f"blk.1.{name}", values)
    share = {"right": 0.0, "wrong": 0.0, "often": 0.05, "random": 1.0}[kind]
    mixed = random.normal(0, share / 8, (_WIDTH, _WIDTH)) if share else np.zeros((_WIDTH, _WIDTH))
    add("blk.1.nextn.eh_proj.weight", np.hstack([np.eye(_WIDTH), mixed]))
    for name in ("enorm", "hnorm", "shared_head_norm"):
        add(f"blk.1.nextn.{name}.weight", np.ones(_WIDTH))
    if kind == "wrong":
        add("blk.1.nextn.shared_head_head.weight", np.roll(output, 1, axis=0))


def _describe(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    writer.add_name("tiny head")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(n_vocab)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(_FEED)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_key_length(_WIDTH // _HEADS)
    writer.add_value_length(_WIDTH // _HEADS)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_expert_count(_EXPERTS)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(_FEED)
    writer.add_expert_shared_count(1)
    writer.add_leading_dense_block_count(0)
    writer.add_uint32("glm4moe.nextn_predict_layers", 1)


def _block(random: Any) -> dict[str, Any]:
    def matrix(*shape: int) -> Any:
        return random.normal(0, 0.3, shape)

    made = {f"{name}.weight": np.ones(_WIDTH) for name in ("attn_norm", "post_attention_norm")}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        made[f"{name}.weight"] = matrix(_WIDTH, _WIDTH)
    made["ffn_gate_inp.weight"] = matrix(_EXPERTS, _WIDTH)
    made["exp_probs_b.bias"] = matrix(_EXPERTS)
    for name, rows, columns in (("ffn_gate", _FEED, _WIDTH), ("ffn_up", _FEED, _WIDTH), ("ffn_down", _WIDTH, _FEED)):
        made[f"{name}_exps.weight"] = matrix(_EXPERTS, rows, columns)
        made[f"{name}_shexp.weight"] = matrix(rows, columns)
    return made
