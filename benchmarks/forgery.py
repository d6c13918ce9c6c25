"""What callers write is never a control token: every template, on real vocabularies and on one of all families' tokens.

For each pair of a vocabulary and a template, every control and user-defined token stands in every field that a caller
or a model fills (messages, arguments whole and malformed, schemas and their keys, results, documents, variables,
prefills): whole, nested in itself, doubled, beside white space, escaped for JSON and for HTML; every proper part of one
that the template completes, in the field where it does; and split over two fields where they meet. Of a numbered row of
tokens (`<|reserved_special_token_17|>`) the first and the last stand everywhere, the others whole, each with one
template in turn. The same tokens, whole and in halves, stand in texts to embed, to rank, to score and to fill in, where
no template is. Counted are control tokens too many or too few, prompts that have the text of the unguarded one,
prompts whose tokens spell their text, and prompts with nothing to guard that are token for token the unguarded ones.
With `--projectors`, instead: every marker of every projector in the same fields, beside pictures or sounds, through a
real projector of each kind, whose model has a token for each marker; a picture too many is forged, too.
Reads `LLAMA_CPP_MODELS` (`vendor/llama.cpp/models`).
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[1] / "tests/helpers"),
]

from attacks.forging import (  # noqa: E402
    CLEAN,
    MEDIA_MARKERS,
    OURS,
    SOURCES,
    VOCABULARIES,
    Probe,
    TextProbe,
    Tried,
    families_vocabulary,
    few_of_a_row,
    guarded_tokens,
    vocabulary,
)
from attacks.media_forging import SeeingProbe, seeing  # noqa: E402
from files.projector_files import KINDS  # noqa: E402

_BATCH = 50


@dataclass
class Sums:
    """What was counted over some pairs."""

    pairs: int = 0
    refused: int = 0
    texts: int = 0
    prompts: int = 0
    forged: int = 0
    lost: int = 0
    same_text: int = 0
    same_bytes: int = 0
    clean: int = 0
    clean_same: int = 0
    odd: Counter[str] = field(default_factory=Counter[str])

    def add(self, other: "Sums") -> None:
        """Add the counts of others."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def count(self, name: str, tried: Tried) -> None:
        """Count one prompt."""
        self.prompts += 1
        self.texts += tried.texts
        self.forged += tried.forged
        self.lost += tried.lost
        self.same_text += tried.same_text
        self.same_bytes += tried.same_bytes
        if tried.about:
            self.odd[f"{name}: {tried.about}"] += 1

    def line(self) -> str:
        """The counts in words."""
        return (
            f"{self.pairs} pairs ({self.refused} refused by the template): forged {self.forged} of {self.texts:,} texts"
            f" in {self.prompts:,} prompts, the template's own lost {self.lost}; text as unguarded "
            f"{self.same_text:,}/{self.prompts:,}, bytes {self.same_bytes:,}/{self.prompts:,}; clean prompts "
            f"token-identical {self.clean_same:,}/{self.clean:,}"
        )


class Job(NamedTuple):
    """Templates to try on one vocabulary: every `step`-th from `first` on."""

    path: Path
    template: str
    first: int
    step: int
    until: float


def main() -> None:
    """Measure and print, a line for each vocabulary."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--vocabulary", default="", help="vocabularies whose name contains this")
    arguments.add_argument("--template", default="", help="templates whose name contains this")
    arguments.add_argument("--projectors", action="store_true", help="markers of media, through projectors")
    arguments.add_argument("--jobs", type=int, default=1, help="processes")
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="stop before the next pair after these")
    given = arguments.parse_args()
    if given.projectors:
        _projectors(given.template, given.jobs)
        return
    until, total = time.time() + given.seconds, Sums()
    without = Sums()
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(given.jobs) as pool:
        paths = [families_vocabulary(Path(folder)), *VOCABULARIES]
        for path in (path for path in paths if given.vocabulary in path.name):
            jobs = [Job(path, given.template, first, given.jobs, until) for first in range(given.jobs)]
            sums = Sums()
            for found in pool.map(_measure, jobs):
                sums.add(found)
            print(f"{path.stem.removeprefix('ggml-vocab-')}: {sums.line()}", flush=True)
            texts = Sums()
            for found in pool.map(_measure_texts, jobs):
                texts.add(found)
            print(
                f"    embed, rerank, score, suffix: forged {texts.forged} of {texts.texts:,}, lost {texts.lost}",
                flush=True,
            )
            sums.odd += texts.odd
            without.add(texts)
            for text, count in sums.odd.most_common(12):
                print(f"    {count} x {text}")
            total.add(sums)
    print(f"in all: {total.line()}; embed, rerank, score, suffix: forged {without.forged} of {without.texts:,}")


def _measure(job: Job) -> Sums:
    warnings.simplefilter("ignore")
    sums = Sums()
    sources = [source for source in (*SOURCES, *OURS) if job.template in source.name]
    with vocabulary(job.path) as vocab:
        known = guarded_tokens(vocab)
        few = few_of_a_row(known)
        others = sorted(set(known) - set(few))
        for number in range(job.first, len(sources), job.step):
            if time.time() > job.until:
                sums.odd[f"stopped before {sources[number].stem}"] += 1
                break
            probe = Probe(sources[number], vocab)
            sums.pairs += 1
            if probe.takes is None:
                sums.refused += 1
                continue
            for tried in _pair(probe, few, others[number :: len(sources)]):
                sums.count(probe.name, tried)
            sums.clean += len(CLEAN)
            sums.clean_same += sum(map(probe.clean, CLEAN))
    return sums


def _projectors(template: str, jobs: int) -> None:
    total = Sums()
    with ProcessPoolExecutor(jobs) as pool:
        for name, sums in zip(KINDS, pool.map(partial(_measure_projector, template), KINDS), strict=True):
            print(f"{name}: {sums.line()}", flush=True)
            for text, count in sums.odd.most_common(12):
                print(f"    {count} x {text}")
            total.add(sums)
    print(f"in all: {total.line()}")


def _measure_projector(template: str, name: str) -> Sums:
    warnings.simplefilter("ignore")
    sums = Sums()
    with tempfile.TemporaryDirectory() as folder, seeing(Path(folder), name) as llm:
        for source in (source for source in (*SOURCES, *OURS) if template in source.name):
            probe = SeeingProbe(source, llm, name)
            sums.pairs += 1
            if probe.takes is None:
                sums.refused += 1
                continue
            if any(probe.kinds[0][what] != count for what, count in probe.expected.items()):
                sums.odd[f"{probe.name}: not the pictures that were shown"] += 1
            for tried in _pair(probe, [*MEDIA_MARKERS], []):
                sums.count(probe.name, tried)
            sums.clean += len(CLEAN)
            sums.clean_same += sum(map(probe.clean, CLEAN))
    return sums


def _measure_texts(job: Job) -> Sums:
    sums = Sums()
    with vocabulary(job.path) as vocab:
        probe = TextProbe(vocab)
        for token in few_of_a_row(guarded_tokens(vocab))[job.first :: job.step]:
            if time.time() > job.until:
                sums.odd[f"stopped before {token}"] += 1
                break
            for place, tried in (*probe.whole(token), *probe.halves(token)):
                sums.count(place, tried)
    return sums


def _pair(probe: Probe, tokens: list[str], others: list[str]) -> Iterator[Tried]:
    for kind in probe.kinds:
        for some in (tokens, others):
            for start in range(0, len(some), _BATCH):
                yield probe.whole(kind, some[start : start + _BATCH])
    for kind, texts in probe.completions(tokens):
        yield probe.filled(kind, texts)


if __name__ == "__main__":
    main()
