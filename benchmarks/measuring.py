"""How the benchmarks measure: contenders take turns, so that a busy machine slows all of them alike. What counts is the
median of the ratios within each round."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")
STREAMS = 16

T = TypeVar("T")


def words(count: int, seed: int) -> str:
    """A text of about so many tokens."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def many_words(common: int, own: int, seed: int) -> list[str]:
    """A text for each of sixteen streams: so many words that all share, and so many of its own."""
    return [f"{words(common, seed)} {at} {words(own, seed * 97 + at)}" for at in range(STREAMS)]


def by_turns(contenders: Mapping[str, Callable[[int], T]], rounds: int) -> dict[str, list[T]]:
    """What each contender returns in each round, whose number it takes; another one begins each round."""
    names = list(contenders)
    results: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(contenders[name](number))
    return results


def seconds(run: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ratio(figures: Sequence[float], base: Sequence[float]) -> float:
    """The median of the ratios within each round."""
    return statistics.median(each / other for each, other in zip(figures, base, strict=True))


def report(title: str, figures: Mapping[str, Sequence[float]], base: str, unit: str) -> None:
    """Print each contender's median, its least and its most, and its ratio to `base`."""
    print(f"\n{title}: {unit} (least, most)")
    for name, each in figures.items():
        middle = f"{statistics.median(each):9.4g} ({min(each):.4g}, {max(each):.4g})"
        print(f"  {name:30}{middle:32}{ratio(each, figures[base]):8.3f} x {base}", flush=True)
