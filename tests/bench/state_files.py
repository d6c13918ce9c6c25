"""State files whose states somebody changed, under a right digest: does a process die of one?

    python tests/bench/state_files.py --count 500

For models of several architectures and every layout of the KV cache: how many states were refused, how many were taken
(they are the model's memory, so that what they say is believed), and how many ended in anything but an EngineError or
took the process.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]

import forged_states  # noqa: E402
import model_zoo  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="of each model and layout")
    parser.add_argument("--kinds", nargs="+", default=["llama", "gemma2", "mamba", "falcon-h1"])
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        for kind in given.kinds:
            path = Path(directory) / f"{kind}.gguf"
            path.write_bytes(model_zoo.model(kind).encoded())
            for layout in forged_states.LAYOUTS:
                found = forged_states.attack(path, layout, given.seed, given.count)
                failures += len(found.wrong) + bool(found.died)
                counts = f"{found.refused:5} refused {found.restored:5} taken {len(found.wrong):3} wrong"
                print(f"{kind:10} {layout:20}{counts} {found.died or 'the process lived'}", flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
