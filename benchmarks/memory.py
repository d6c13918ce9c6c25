"""Is the memory that is foreseen the memory that a model takes? Writes random model files of a few hundred MB in many
architectures, quantisations and layouts, one after another; loads each in a child process, fills every conversation to
the last token, and prints what was foreseen beside what was measured:

    python benchmarks/memory.py --vocabularies .../vendor/llama.cpp/models [--only NAME ...]

Checkpoints of recurrent states are left out: they are taken turn by turn, up to what is foreseen for them, and one
conversation takes few. Measured: the highest resident memory (VmHWM: anonymous and of files) of the child from before
the load on, less what it had then. Linux only. Takes about a quarter of an hour on two idle cores, 500 MB of disk at a
time and at most 1 GiB of memory.
"""

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Type

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from models import Plan, attention, keys, write  # noqa: E402

MIB = 1 << 20
_BUFFER = re.compile(r"(\w+) +(KV|RS|compute|output|model) buffer size = +([\d.]+) MiB")


def _plain(
    kind: str,
    kind_of: Type,
    layers: int,
    sizes: dict[str, int],
    vocabulary: str = "qwen2",
    more: Mapping[str, Any] | None = None,
    **plain: Any,
) -> Plan:
    return Plan(kind, kind_of, layers, sizes, {**keys(sizes, **plain), **(more or {})}, vocabulary=vocabulary)


_QWEN35 = {**attention(1280, 8, 2, 256, 4096), "S": 128, "R": 4}
_DEEPSEEK = {"E": 1024, "F": 2816, "H": 16, "D": 256, "L": 128, "B": 512, "X": 16, "XF": 512}
_FALCON = {**attention(1536, 12, 4, 128, 3072), "I": 1536, "S": 128, "R": 24, "G": 1}
_JAMBA = {**attention(2048, 16, 4, 128, 7168), "I": 4096, "S": 16, "R": 128}

PLANS: dict[str, tuple[Plan, dict[str, Any]]] = {
    "llama": (
        _plain("llama", Type.Q4_0, 6, attention(2048, 16, 16, 128, 5632), "llama-bpe",
               more={"rope.dimension_count": 128}),
        {"n_ctx": 1024, "n_sequences": 1},
    ),
    "qwen3": (_plain("qwen3", Type.Q8_0, 5, attention(1536, 12, 4, 128, 3072)), {"n_ctx": 512, "n_sequences": 4}),
    "qwen3-pool": (
        _plain("qwen3", Type.Q5_0, 4, attention(2048, 16, 8, 128, 4096)),
        {"n_ctx": 512, "n_sequences": 4, "kv_unified": True, "kv_tokens": 2048},
    ),
    "qwen3moe": (
        _plain("qwen3moe", Type.Q4_K, 8, {**attention(1024, 16, 4, 64, 2048), "X": 64, "XF": 256}, expert_count=64,
               expert_used_count=4, expert_feed_forward_length=256),
        {"n_ctx": 1024, "n_sequences": 4, "type_k": "q8_0", "type_v": "q8_0"},
    ),
    "gemma3": (
        _plain("gemma3", Type.Q4_0, 12, attention(1152, 4, 1, 256, 5120), "gemma-4",
               more={"attention.sliding_window": 128}),
        {"n_ctx": 1024, "n_sequences": 1},
    ),
    "gemma3-short": (
        _plain("gemma3", Type.Q6_K, 6, attention(1280, 4, 2, 256, 5120), "gemma-4",
               more={"attention.sliding_window": 64}),
        {"n_ctx": 768, "n_sequences": 2, "llama": {"swa_full": False}, "flash_attn": "on"},
    ),
    "gpt-oss": (
        _plain("gpt-oss", Type.MXFP4, 12, {**attention(640, 16, 4, 64, 640), "X": 32, "XF": 640}, expert_count=32,
               expert_used_count=4, expert_feed_forward_length=640, more={"attention.sliding_window": 128}),
        {"n_ctx": 2048, "n_sequences": 1, "llama": {"swa_full": False}},
    ),
    "deepseek2": (
        Plan(
            "deepseek2", Type.Q8_0, 4, _DEEPSEEK,
            {"context_length": 32_768, "embedding_length": 1024, "feed_forward_length": 2816,
             "attention.head_count": 16, "attention.q_lora_rank": 128, "attention.kv_lora_rank": 512,
             "attention.key_length": 512 + 128, "attention.value_length": 512, "attention.key_length_mla": 192 + 64,
             "attention.value_length_mla": 128, "rope.dimension_count": 128, "expert_count": 16,
             "expert_used_count": 4, "expert_feed_forward_length": 512, "leading_dense_block_count": 0},
        ),
        {"n_ctx": 2048, "n_sequences": 1},
    ),
    "mamba": (
        Plan("mamba", Type.F16, 16, {"E": 1024, "I": 2048, "S": 16, "R": 64},
             {"context_length": 32_768, "embedding_length": 1024, "ssm.inner_size": 2048, "ssm.state_size": 16,
              "ssm.time_step_rank": 64, "feed_forward_length": 0}, vocabulary="gpt-neox"),
        {"n_ctx": 256, "n_sequences": 4, "llama": {"checkpoint_mib": 0}},
    ),
    "falcon-h1": (
        _plain("falcon-h1", Type.Q6_K, 10, _FALCON,
               more={"ssm.inner_size": 1536, "ssm.state_size": 128, "ssm.time_step_rank": 24, "ssm.group_count": 1}),
        {"n_ctx": 256, "n_sequences": 4, "llama": {"checkpoint_mib": 0}},
    ),
    "jamba": (
        Plan("jamba", Type.Q5_K, 6, _JAMBA,
             {**keys(_JAMBA), "attention.head_count_kv": tuple(4 * (layer % 3 == 2) for layer in range(6)),
              "ssm.inner_size": 4096, "ssm.state_size": 16, "ssm.time_step_rank": 128}, 3, "llama-spm"),
        {"n_ctx": 512, "n_sequences": 1, "llama": {"checkpoint_mib": 0}},
    ),
    "lfm2": (
        Plan("lfm2", Type.Q8_0, 4, attention(1536, 24, 8, 64, 4096),
             {**keys(attention(1536, 24, 8, 64, 4096)),
              "attention.head_count_kv": tuple(8 * (layer % 2) for layer in range(4))}, 2),
        {"n_ctx": 256, "n_sequences": 4, "type_k": "q8_0"},
    ),
    "qwen35": (
        Plan("qwen35", Type.Q4_K, 20, _QWEN35,
             {**keys(_QWEN35), "rope.dimension_count": 64, "rope.dimension_sections": (11, 11, 10, 0),
              "ssm.inner_size": 512, "ssm.state_size": 128, "ssm.time_step_rank": 4, "ssm.group_count": 2,
              "full_attention_interval": 4}, 4, "qwen35"),
        {"n_ctx": 1024, "n_sequences": 1, "llama": {"checkpoint_mib": 0}},
    ),
    "rwkv7": (
        Plan("rwkv7", Type.F16, 12, {"E": 1024, "F": 4096, "L": 128, "W": 64},
             {"context_length": 32_768, "embedding_length": 1024, "feed_forward_length": 4096, "wkv.head_size": 64,
              "attention.decay_lora_rank": 128, "attention.iclr_lora_rank": 64,
              "attention.value_residual_mix_lora_rank": 64, "attention.gate_lora_rank": 128}),
        {"n_ctx": 256, "n_sequences": 4, "llama": {"checkpoint_mib": 0}},
    ),
}  # fmt: skip


def _resident(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024


def _measure(path: str, options: dict[str, Any]) -> dict[str, Any]:
    """In the child: load, fill every conversation, tell the memory."""
    from engine import Engine, LlamaOptions
    from engine.api import loading
    from engine.llama.lib import library
    from engine.llama.plan.plan import plan, this_machine
    from engine.turns.options import settings

    library()
    buffers: dict[str, float] = {}
    handler = logging.Handler()
    handler.emit = lambda record: _note(buffers, record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("engine.llama")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _resident("VmHWM")
    asked = settings({"n_threads": 1, **options, "llama": LlamaOptions(**options.get("llama", {}))})
    ready = loading.load(path, asked, loading.TemplateChoice(trust_template=True), preflight=False)
    weights: Any = ready.weights
    with Engine.over(ready.backend, ready.template, model=ready.weights, options=ready.loop) as llm:
        n_ctx = llm.n_ctx
        loaded = _resident("VmHWM") - before
        threads = [
            threading.Thread(target=_fill, args=(llm, n_ctx, seed)) for seed in range(options.get("n_sequences", 1))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        peak = _resident("VmHWM") - before
        need = plan(weights.file, asked.model, asked.context, this_machine()).need
    told = {**need.weights._asdict(), **need.context._asdict()}
    return {"peak": peak, "loaded": loaded, "buffers": buffers, "plan": told, "total": need.peak}


def _note(buffers: dict[str, float], line: str) -> None:
    if found := _BUFFER.search(line):
        kind = f"{found[1]} {found[2]}" if found[2] == "model" else found[2]
        buffers[kind] = buffers.get(kind, 0) + float(found[3]) * MIB


def _fill(llm: Any, n_ctx: int, seed: int) -> None:
    import random

    tokens = random.Random(seed).choices(range(3, 250), k=n_ctx - 16)
    llm.complete(tokens, ignore_eos=True, max_tokens=8, temperature=0)


def _run(path: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    command = [sys.executable, __file__, "--child", str(path), json.dumps(asked)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", type=Path, default=os.environ.get("LLAMA_CPP_MODELS"))
    parser.add_argument("--only", nargs="*", choices=PLANS, default=list(PLANS))
    parser.add_argument("--parts", action="store_true", help="print what was foreseen and what llama.cpp allocated")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_measure(options.child[0], json.loads(options.child[1]))))
        return
    print(f"{'MODEL':<13} {'TYPE':<6} {'FILE':>5} {'FORESEEN':>9} {'MEASURED':>9} {'RATIO':>6}  OPTIONS")
    for name in options.only:
        plan, asked = PLANS[name]
        with tempfile.TemporaryDirectory() as folder:
            place = write(Path(folder) / f"{name}.gguf", plan, Path(options.vocabularies))
            size, told = place.stat().st_size, _run(place, asked)
        if told is None:
            print(f"{name:<13} the child ended without an answer")
            continue
        ratio = told["total"] / told["peak"]
        sizes = f"{size // MIB:>5} {told['total'] // MIB:>9} {told['peak'] // MIB:>9} {ratio:>6.3f}"
        shown = ", ".join(f"{key}={value}" for key, value in asked.items())
        print(f"{name:<13} {plan.type.name:<6} {sizes}  {shown}", flush=True)
        if options.parts:
            for about in (told["plan"], told["buffers"]):
                print("   ", {key: round(value / MIB, 1) for key, value in about.items()}, flush=True)


if __name__ == "__main__":
    main()
