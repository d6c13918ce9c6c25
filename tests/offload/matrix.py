"""Offload on whatever device llama.cpp finds: does each feature give there what it gives on the CPU?

    LLAMA_CPP_LIB_PATH=... GGML_VK_VISIBLE_DEVICES=0 python tests/offload/matrix.py

Needs a llama.cpp with a GPU backend, of llama-cpp-python's own or named by LLAMA_CPP_LIB_PATH. A GPU is not needed: the
software Vulkan device of Mesa (Debian: mesa-vulkan-drivers) serves, if GGML_VK_VISIBLE_DEVICES names it; it shows
whether answers are right, not how fast they come, and compiles its shaders for minutes. Each case is loaded twice in
processes of their own, on the CPU and offloaded, with the same options and the built-in model; greedy answers must be
the same, and log-probabilities nearly so. What ends a process is an outcome too. The exit code is 1 if a case failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from engine import ContextOverflowError, Engine, EngineWarning, LlamaOptions  # noqa: E402
from engine.llama import lib  # noqa: E402
from engine.llama.plan.plan import RESERVE  # noqa: E402
from engine.support.child import signal_name  # noqa: E402

PROMPTS = (
    "Hi",
    "What is 127 times 46?",
    "Who are you, and what can you do? Please tell me in a few words.",
    "Tell me of the weather in Paris, in London, in Rome and in Oslo, then say one two three four five six.",
)
TOKENS = 16
NEAR = 0.05
"""How far a log-probability may lie from the CPU's: sums of 16-bit numbers in another order."""
Told: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Options of a load, what is tried with them, and how far log-probabilities may differ."""

    options: dict[str, Any]
    checks: tuple[str, ...]
    near: float = NEAR


def one(llm: Engine) -> Told:
    """One answer, and the log-probabilities of its tokens."""
    answer = llm.chat(PROMPTS[1], temperature=0, max_tokens=TOKENS, logprobs=1)
    return {"told": text(answer), "logprobs": [entry.logprob for entry in answer.logprobs]}


def drawn(llm: Engine) -> Told:
    """One answer, drawn where the model computes."""
    return {"told": text(llm.chat(PROMPTS[1], temperature=0, max_tokens=TOKENS))}


def several(llm: Engine) -> Told:
    """Four answers at once, to prompts of different lengths."""
    return {"told": [text(answer) for answer in llm.generate(PROMPTS, temperature=0, max_tokens=TOKENS)]}


def prefix(llm: Engine) -> Told:
    """A second turn, whose prompt begins with the first and its answer."""
    messages: list[Any] = [{"role": "user", "content": PROMPTS[2]}]
    first = llm.chat(messages, temperature=0, max_tokens=TOKENS)
    messages += [first.message, {"role": "user", "content": PROMPTS[0]}]
    second = llm.chat(messages, temperature=0, max_tokens=TOKENS)
    assert second.usage
    assert second.usage.cached_tokens, "nothing of the prefix was reused"
    return {"told": [text(first), text(second), second.usage.cached_tokens]}


def saved(llm: Engine) -> Told:
    """A prefix pinned, let go, and found again as a state."""
    system: list[Any] = [{"role": "system", "content": "Be brief, and be kind. " * 16}]
    with llm.pin(system):
        pass
    for number in range(8):
        llm.chat(f"{number} {PROMPTS[0]}", max_tokens=1)
    answer = llm.chat([*system, {"role": "user", "content": PROMPTS[2]}], temperature=0, max_tokens=TOKENS)
    assert answer.usage is not None
    assert answer.usage.cached_tokens, "the state was not used"
    return {"told": [text(answer), answer.usage.cached_tokens]}


def cancelled(llm: Engine) -> Told:
    """A stream that is left after its first event, and an answer after that."""
    with llm.stream(PROMPTS[3], temperature=0, max_tokens=200) as stream:
        next(iter(stream))
    begun = time.monotonic()
    told = text(llm.chat(PROMPTS[2], temperature=0, max_tokens=TOKENS))
    return {"told": told, "note": f"the next answer after {time.monotonic() - begun:.1f} s"}


def memory(llm: Engine) -> Told:
    """A context that the host could hold, and the device could not, is refused with the device's numbers."""
    free = sum(device.memory_free for device in lib.devices() if device.is_gpu)
    refused = ""
    try:
        Engine.load(n_gpu_layers=-1, n_ctx=10_000_000, n_sequences=1, preflight=False).close()
    except ContextOverflowError as error:
        refused = str(error).split("; the largest")[0]
    assert f"{int(free * (1 - RESERVE)) / (1 << 20):,.0f} MiB are available" in refused, refused or "it was not refused"
    return {"told": None, "note": refused}


def text(answer: Any) -> str:
    return f"{answer.reasoning}|{answer.content}"


CHECKS: dict[str, Callable[[Engine], Told]] = {
    check.__name__: check for check in (one, drawn, several, prefix, saved, cancelled, memory)
}
FEW = ("one", "several")
CASES: dict[str, Case] = {
    "all layers": Case({}, ("one", "several", "prefix", "saved", "cancelled", "memory")),
    "two layers": Case({"n_gpu_layers": 2}, ("one", "several", "prefix")),
    "flash attention on": Case({"flash_attn": "on"}, ("one", "several", "prefix", "saved")),
    "flash attention off": Case({"flash_attn": "off"}, ("one", "several", "prefix", "saved")),
    "one shared pool": Case({"kv_unified": True, "kv_tokens": 2048}, ("one", "several", "prefix")),
    "KV cache on the host": Case({"llama": LlamaOptions(offload_kqv=False)}, FEW),
    "KV cache of q8_0": Case({"type_k": "q8_0", "type_v": "q8_0"}, FEW, 0.3),
    "KV cache of q4_0": Case({"type_k": "q4_0", "type_v": "q4_0"}, FEW, 1.0),
    "KV cache of f32": Case({"type_k": "f32", "type_v": "f32"}, FEW),
    "KV cache of bf16": Case({"type_k": "bf16", "type_v": "bf16"}, FEW, 0.3),
    "isolated": Case({"isolated": True}, ("one", "several", "cancelled")),
    "after the preflight": Case({"preflight": True}, FEW),
}


def work(name: str, layers: int) -> None:
    """In a process of its own: the checks of one case, each announced and then told as a line of JSON."""
    case = CASES[name]
    options: dict[str, Any] = {"n_ctx": 512, "n_sequences": 4, "preflight": False, **case.options}
    options["n_gpu_layers"] = options.get("n_gpu_layers", -1) if layers else 0
    tell({"check": "load"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EngineWarning)
        llm = Engine.load(**options)
    tell({"told": None, "note": "; ".join(str(warning.message) for warning in caught)})
    with llm:
        for check in case.checks:
            if check == "memory" and not layers:
                continue
            tell({"check": check})
            try:
                tell(CHECKS[check](llm))
            except Exception:  # noqa: BLE001 - whatever it is, it is the outcome of this check, and told
                tell({"error": traceback.format_exc(limit=1).splitlines()[-1]})


def tell(data: Told) -> None:
    print(json.dumps(data), flush=True)


def ran(name: str, layers: int, limit: float) -> dict[str, Told]:
    """What became of each check of a case, in a process that has `limit` seconds."""
    command = [sys.executable, __file__, "--work", name, "--layers", str(layers)]
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        try:
            # ggml's trace of its own end starts a debugger, which may be ended by another signal
            env = {**os.environ, "GGML_NO_BACKTRACE": "1"}
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=limit, env=env, check=False
            )
            printed, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            printed, code = (late.stdout or b"").decode(), 0
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if fault := signal_name(code):
        fault += "".join(f": {line}" for line in said if "GGML_ASSERT" in line)
    results: dict[str, Told] = {}
    check = ""
    for line in printed.splitlines():
        data: Told = json.loads(line)
        if "check" in data:
            check = data["check"]
            results[check] = {"error": fault or (said[-1] if code and said else f"not done in {limit:g} s")}
        else:
            results[check] = data
    results["load"]["seconds"] = time.monotonic() - begun
    return results


def judged(case: Case, here: Told, there: Told) -> tuple[bool, str]:
    """Whether the device told what the CPU did, and in words."""
    if error := there.get("error") or here.get("error"):
        return False, error if "error" in there else f"on the CPU: {error}"
    note = f"; {there['note']}" if there.get("note") else ""
    if here["told"] != there["told"]:
        return False, f"differs: {there['told']!r} for the CPU's {here['told']!r}{note}"
    pairs: Sequence[tuple[float, float]] = list(zip(here.get("logprobs", ()), there.get("logprobs", ()), strict=True))
    if not pairs:
        return True, f"the same{note}"
    apart = max(abs(one - other) for one, other in pairs)
    return apart <= case.near, f"the same; log-probabilities within {apart:.4f} (allowed: {case.near}){note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--limit", type=float, default=1200, help="seconds that a case may take")
    parser.add_argument("--work", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(given.work, given.layers)
    gpus = [device for device in lib.devices() if device.is_gpu]
    if not gpus:
        sys.exit("llama.cpp finds no device to offload to; see the top of this file for what is needed.")
    print(f"{lib.library_path()}: " + "; ".join(f"{gpu.name} ({gpu.description})" for gpu in gpus), flush=True)
    failed = 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("LLAMA_ENGINE_CACHE", cache)
        for name in given.only:
            here, there = ran(name, 0, given.limit), ran(name, 1, given.limit)
            for check, told in there.items():
                good, words = judged(CASES[name], here.get(check, {"told": None}), told)
                failed += not good
                spent = f"{told['seconds']:6.0f} s" if "seconds" in told else " " * 8
                print(f"{name:22}{check:11}{'ok' if good else 'FAILED':8}{spent}  {words}", flush=True)
    print(f"{failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
