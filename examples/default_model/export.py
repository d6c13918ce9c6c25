"""Turn a checkpoint into a GGUF that llama.cpp loads as a Qwen3 model.

    python export.py checkpoints/final.pt builtin-q8_0.gguf

Matrices become Q8_0, norms stay F32. The file carries `templates/qwen3.jinja` as its chat template.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizer import CONTROL

HERE = Path(__file__).parent
TEMPLATE = HERE.parent.parent / "templates" / "qwen3.jinja"


def add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_name("llama-engine built-in")
    writer.add_description(
        "A tiny model trained from scratch on synthetic chats; it calls tools and quotes their results."
    )
    writer.add_block_count(config["layers"])
    writer.add_context_length(config["context"])
    writer.add_embedding_length(config["width"])
    writer.add_feed_forward_length(config["feed_forward"])
    writer.add_head_count(config["heads"])
    writer.add_head_count_kv(config["kv_heads"])
    writer.add_key_length(config["head_size"])
    writer.add_value_length(config["head_size"])
    writer.add_layer_norm_rms_eps(config["epsilon"])
    writer.add_rope_freq_base(config["rope_base"])
    writer.add_vocab_size(config["vocabulary"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Tokens in the order of their ids, each with its type; merges; the chat template."""
    saved = json.loads(path.read_text(encoding="utf-8"))
    added = {token["content"]: token["id"] for token in saved["added_tokens"]}
    ids: dict[str, int] = {**saved["model"]["vocab"], **added}
    tokens = sorted(ids, key=lambda token: ids[token])
    assert [ids[token] for token in tokens] == list(range(len(tokens))), "token ids have gaps"
    control = set(CONTROL)
    types = [
        gguf.TokenType.CONTROL
        if token in control
        else gguf.TokenType.USER_DEFINED
        if token in added
        else gguf.TokenType.NORMAL
        for token in tokens
    ]
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in saved["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(ids["<|endoftext|>"])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))


def add_weights(writer: gguf.GGUFWriter, weights: dict[str, torch.Tensor]) -> None:
    for name, tensor in weights.items():
        values = tensor.float().numpy().astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def export(checkpoint: Path, target: Path, tokenizer: Path) -> dict[str, Any]:
    """Write the GGUF beside its place and move it there, so that no reader ever sees half a file."""
    state = torch.load(checkpoint, weights_only=True)
    temporary = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(temporary, "qwen3")
    add_config(writer, state["config"])
    add_tokenizer(writer, tokenizer)
    add_weights(writer, state["weights"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.replace(target)
    parameters = sum(tensor.numel() for tensor in state["weights"].values())
    return {"bytes": target.stat().st_size, "parameters": parameters, **state["facts"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("target", type=Path, nargs="?", default=HERE / "builtin-q8_0.gguf")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer.json")
    options = parser.parse_args()
    print(export(options.checkpoint, options.target, options.tokenizer))


if __name__ == "__main__":
    main()
