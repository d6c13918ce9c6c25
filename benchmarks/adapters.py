"""Adapters in figures: `python benchmarks/adapters.py [TURNS]`.

Conversations with an adapter, another at half its scale, an activated one, and none, on one engine: how many answers
are not those of an engine of each set's own, and of these how many differ by rounding; tokens reused across sets; what
a change costs, and what a token costs if sets take turns.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

from cases.adapted_turns import BareAdapted, Set, compared, hits_across
from files.adapter_files import write_adapter
from measuring import by_turns, report, seconds

from engine import Engine
from engine.support import _data

FOLDER, MODEL = Path(tempfile.mkdtemp()), _data.builtin_model()
SETS = {"a": {"a": 1.0}, "b, half": {"b": 0.5}, "activated": {"late": 1.0}, "none": {}}


def adapters() -> dict[str, Path]:
    with Engine.load(MODEL, n_ctx=512) as llm:
        invocation = llm.tokenize("<|im_start|>assistant\n")
    return {
        "a": write_adapter(FOLDER / "a.gguf", seed=1, strength=1.0),
        "b": write_adapter(FOLDER / "b.gguf", seed=2, strength=1.0),
        "late": write_adapter(FOLDER / "late.gguf", seed=3, strength=1.0, invocation=invocation),
    }


def answers(files: dict[str, Path], turns: int, *, unified: bool) -> None:
    made, found = compared(MODEL, files, SETS, turns, n_ctx=1024, n_threads=1, kv_unified=unified)
    asked = Counter(turn.name for turn in made)
    reused = Counter({name: sum(turn.cached for turn in made if turn.name == name) for name in SETS})
    read = Counter({name: sum(len(turn.request.tokens) for turn in made if turn.name == name) for name in SETS})
    kind = "one pool, flash attention" if unified else "a buffer for each"
    print(f"{kind}: {len(made)} turns, four at once; {hits_across(made)} tokens reused across sets")
    print(f"{'set':12}{'turns':>8}{'reused':>10}{'differ':>9}{'by rounding':>13}")
    for name in SETS:
        own = [each for each in found if each.name == name]
        share = reused[name] / read[name]
        print(f"{name:12}{asked[name]:8}{share:10.0%}{len(own):9}{sum(each.is_rounding for each in own):13}")


def change(files: dict[str, Path]) -> None:
    bare = BareAdapted(MODEL, files)

    def milliseconds(*sets: Set) -> float:
        parts = [([token], sets[token % len(sets)]) for token in range(1, 301)]
        return seconds(lambda: bare.logits(parts)) / 300 * 1e3

    contenders: dict[str, Callable[[int], float]] = {
        "one set": lambda _: milliseconds({"a": 1.0}),
        "another at each token": lambda _: milliseconds({"a": 1.0}, {"b": 0.5}),
    }
    report("a token of the bare loop", by_turns(contenders, 5), "one set", "ms")
    bare.close()


def speed(files: dict[str, Path]) -> None:
    with Engine.load(MODEL, adapters=files, n_ctx=1024, n_threads=1, n_sequences=4) as llm:

        def tokens(*named: list[str]) -> float:
            def run() -> None:
                started = [llm.stream("A story?", adapters=each, ignore_eos=True, max_tokens=200) for each in named]
                for stream in started:
                    stream.result()

            return 200 * len(named) / seconds(run)

        contenders: dict[str, Callable[[int], float]] = {
            "four alike": lambda _: tokens(*[["a"]] * 4),
            "two sets": lambda _: tokens(["a"], ["a"], ["b"], ["b"]),
            "four sets": lambda _: tokens(["a"], ["b"], ["late"], []),
        }
        report("200 tokens of each of four answers at once", by_turns(contenders, 5), "four alike", "tokens/s")


if __name__ == "__main__":
    files = adapters()
    for unified in (False, True):
        answers(files, int(sys.argv[1]) if len(sys.argv) > 1 else 200, unified=unified)
    change(files)
    speed(files)
