"""What callers write is never a control token: vocabularies and templates of llama.cpp's tree, every token of each.

For each pair of a vocabulary and a template: every control and user-defined token of the vocabulary stands, whole,
nested in itself, doubled, beside white space, and cut in two where two texts meet, in every field that a caller fills.
Counted are tokens forged (control tokens beyond those of the same conversation with harmless text), whether the guarded
prompt has the text of the unguarded one and its tokens spell that text byte for byte, and whether prompts with nothing
to guard are token for token the unguarded ones. Reads `LLAMA_CPP_MODELS`, or the folder given
(`vendor/llama.cpp/models`).
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "support")]

from forging import CLEAN, FOLDER, OURS, Probe, forms, guarded_tokens, vocabulary  # noqa: E402

_BATCH = 100


@dataclass
class Sums:
    """What was counted over some pairs."""

    pairs: int = 0
    refused: int = 0
    tokens: int = 0
    prompts: int = 0
    forged: int = 0
    same_text: int = 0
    same_bytes: int = 0
    clean: int = 0
    clean_same: int = 0

    def add(self, other: "Sums") -> None:
        """Add the counts of others."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def line(self) -> str:
        """The counts in words."""
        return (
            f"{self.pairs} pairs ({self.refused} refused by the template), {self.tokens} tokens in {self.prompts} "
            f"prompts: forged {self.forged}; text as unguarded {self.same_text}/{self.prompts}, bytes "
            f"{self.same_bytes}/{self.prompts}; clean prompts token-identical {self.clean_same}/{self.clean}"
        )


def main() -> None:
    """Measure and print, a line for each vocabulary."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", nargs="?", default=FOLDER, help="the folder of vocabularies and templates/")
    arguments.add_argument("--vocabulary", default="", help="vocabularies whose name contains this")
    arguments.add_argument("--template", default="", help="templates whose name contains this")
    arguments.add_argument("--tokens", type=int, default=0, help="tokens of each vocabulary per template; 0: all")
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="stop before the next pair after these")
    given = arguments.parse_args()
    until = time.monotonic() + given.seconds
    folder = Path(given.folder or ".")
    sources = [*sorted((folder / "templates").glob("*.jinja")), *OURS]
    sources = [path for path in sources if given.template in path.name]
    total = Sums()
    for path in sorted(folder.glob("ggml-vocab-*.gguf")):
        if given.vocabulary in path.name and time.monotonic() < until:
            total.add(_vocabulary(path, sources, given.tokens, until))
    print(f"in all: {total.line()}")


def _vocabulary(path: Path, sources: list[Path], bound: int, until: float) -> Sums:
    sums = Sums()
    odd: Counter[str] = Counter()
    with vocabulary(path) as vocab:
        known = guarded_tokens(vocab)
        bound = min(bound, len(known))
        for number, source in enumerate(sources):
            if time.monotonic() > until:
                print(f"    stopped before {source.stem}")
                break
            first = number * bound % len(known) if known and bound else 0
            chosen = [*known, *known][first : first + bound] if bound else known
            found = _pair(Probe(source, vocab), chosen, odd)
            sums.add(found)
    print(f"{path.stem.removeprefix('ggml-vocab-')} ({len(known)} tokens): {sums.line()}", flush=True)
    for text, count in odd.most_common(8):
        print(f"    {count} x {text}")
    return sums


def _pair(probe: Probe, tokens: list[str], odd: Counter[str]) -> Sums:
    sums = Sums(pairs=1)
    if probe.expected is None:
        return Sums(pairs=1, refused=1)
    for start in range(0, len(tokens), _BATCH):
        batch = tokens[start : start + _BATCH]
        text = " ".join(form for token in batch for form in forms(token))
        forged, same_text, same_bytes, about = probe.tried(text)
        sums.tokens += len(batch)
        sums.prompts += 1
        sums.forged += forged
        sums.same_text += same_text
        sums.same_bytes += same_bytes
        if about:
            odd[f"{probe.name}: {about}"] += 1
    for text in CLEAN:
        sums.clean += 1
        sums.clean_same += probe.clean(text)
    return sums


if __name__ == "__main__":
    main()
