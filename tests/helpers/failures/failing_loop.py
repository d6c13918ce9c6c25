"""Work of many kinds on a loop that is stepped by hand, and a breaker that lets the n-th of some call below it fail.

The right answers are noted first. After each failure the request that met it ended by name, every other one gave its
right answer, the books of the cache agree with the backend, and the same work gives the same answers again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from failures.failing_calls import MEMORY, Breaker, Failure, decode_error, is_named, raising
from fakes.doubles import Bench, plain

from engine.runtime.cache.state_store import StateStore
from engine.runtime.loop.request import Request
from engine.runtime.stream.embed_queue import Embed
from engine.types.sampling import SamplingParams

LONG = "the beginning that several prompts have in common, so that it is copied and kept: " * 2
OTHERS = [letter * 150 for letter in "pqr"]
Outcome = str | Exception


def told(text: str) -> str:
    """The reply to a prompt: says which one it answers."""
    return f"re {text[-6:]}"


class Work:
    """One loop, and the work that it does again and again."""

    def __init__(self, **options: Any) -> None:
        self.bench = Bench(told, n_sequences=3, n_batch=64, n_ctx=512, **options)
        loop: Any = self.bench.loop
        self._states: StateStore = loop.cache.kept._states.store
        self._ids: dict[int, str] = {}
        self._number = 0

    def _id(self, name: str) -> int:
        self._number += 1
        self._ids[self._number] = name
        return self._number

    def submit(self, name: str, text: str, **fields: Any) -> int:
        id_ = self._id(name)
        tokens = tuple(self.bench.backend.vocab.tokenize(text, special=True))
        self.bench.loop.submit(Request(id_, tokens, plain, **fields))
        return id_

    def run(self) -> dict[str, Outcome]:
        """Do all of it once; returns what each request gave. Raises AssertionError if one has no last reply, or two,
        or if the books do not agree."""
        self._ids.clear()
        bench, loop = self.bench, self.bench.loop
        bench.replies.clear()
        self._states.clear()  # so that states are kept anew
        _ = self.submit("first", f"{LONG} one")
        bench.step(2)
        _ = self.submit("same beginning", f"{LONG} two")
        _ = self.submit("short", "three", sampling=SamplingParams(logprobs=1))
        gone = self.submit("cancelled", "four" * 40)
        loop.embed(Embed(self._id("vectors"), (tuple(b"a text"), tuple(b"another"))))
        loop.embed(Embed(self._id("more vectors"), (tuple(b"a third"),)))
        bench.step()
        loop.cancel(gone)
        bench.run()
        pin = self.submit("pin", LONG, pin=True)
        bench.run()
        _ = self.submit("on the pin", f"{LONG} five")
        bench.run()
        loop.unpin(pin)
        for text in OTHERS:  # what was held is kept as states
            _ = self.submit(text[0], text)
            bench.run()
        _ = self.submit("goes on", f"{LONG} one{told('one')} six")
        _ = self.submit("scored", "seven", scored=tuple(b"ab"), sampling=SamplingParams(logprobs=1))
        bench.run()
        loop.unpin(pin)
        return {name: self._outcome(id_) for id_, name in self._ids.items()}

    def _outcome(self, id_: int) -> Outcome:
        replies = self.bench.replies.get(id_, [])
        assert [reply.final for reply in replies].count(True) == 1, f"{self._ids[id_]}: {replies}"
        last = replies[-1]
        assert last.final
        if last.error is not None:
            return last.error
        if last.vectors is not None:
            return last.vectors.data.hex()
        partial = self.bench.partial(id_)
        scores = [each.drawn.token for reply in replies for each in reply.logprobs]
        return f"{partial.content} {partial.finish_reason} {scores}"


Install = Callable[[Work, Breaker, pytest.MonkeyPatch], None]


@dataclass
class Series:
    """What came of a series: `failed` calls, requests that `ended` by name, and each thing that must not be."""

    failed: int = 0
    ended: int = 0
    longest: int = 0
    faults: list[str] = field(default_factory=list[str])


def failing(
    work: Work,
    install: Install,
    *,
    may_end: int = 1,
    lasting: bool = False,
    first: int = 1,
    every: int = 1,
) -> Series:
    """Let the 1st, 2nd, .. call fail (`lasting`: and all after it), each time in the whole work, until the work passes
    without reaching the failure. `may_end`: how many requests one failure may end. `first`, `every`: only these."""
    right = work.run()
    assert work.run() == right, "the work does not give the same answers twice"
    series = Series()
    number = first - every
    while True:
        number += every
        breaker = Breaker(number, lasting)
        with pytest.MonkeyPatch.context() as patch:
            install(work, breaker, patch)
            outcomes = work.run()
        if not breaker.reached:
            return series
        series.failed += breaker.reached
        series.longest = number
        _judge(series, outcomes, right, number, None if lasting else may_end)
        if (after := work.run()) != right:
            series.faults.append(f"after call {number} failed: {_others(after, right)}")


def _judge(
    series: Series, outcomes: Mapping[str, Outcome], right: Mapping[str, Outcome], number: int, most: int | None
) -> None:
    ended = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
    # Where no decode finds room, an answer that has begun ends with its own reason for that.
    full = [name for name, each in outcomes.items() if most is None and " length " in str(each)]
    series.ended += len(ended) + len(full)
    series.faults += [f"call {number}: ended by {each!r}" for each in ended if not is_named(each)]
    if most is not None and len(ended) > most:
        series.faults.append(f"call {number} ended {len(ended)} requests: {ended}")
    wrong = {name: each for name, each in outcomes.items() if not isinstance(each, Exception) and name not in full}
    if others := _others(wrong, right):
        series.faults.append(f"call {number}: {others}")


def _others(outcomes: Mapping[str, Outcome], right: Mapping[str, Outcome]) -> str:
    return ", ".join(f"{name}: {each!r}, not {right[name]!r}" for name, each in outcomes.items() if each != right[name])


def backend(name: str, failure: Failure) -> Install:
    def install(work: Work, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        breaker.guard_method(patch, work.bench.backend, name, failure)

    return install


def vectors(name: str, failure: Failure) -> Install:
    def install(work: Work, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        breaker.guard_method(patch, work.bench.backend.vectors(), name, failure)

    return install


def vocab(name: str, failure: Failure) -> Install:
    def install(work: Work, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        loop: Any = work.bench.loop
        loop._tokens.clear()
        breaker.guard_method(patch, work.bench.backend.vocab, name, failure)

    return install


def trim(work: Work, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
    """A sequence cannot be cut; to be emptied never fails."""
    usual = work.bench.backend.trim

    def cut(sequence: int, position: int) -> bool:
        return usual(sequence, position) if not position else not breaker.fails() and usual(sequence, position)

    patch.setattr(work.bench.backend, "trim", cut)


KINDS: dict[str, tuple[Install, int]] = {
    "decode: no room": (backend("decode", decode_error("no_slot")), 1),
    "decode: aborted": (backend("decode", decode_error("aborted")), 0),
    "decode: bad batch": (backend("decode", decode_error("invalid")), 0),
    "decode: fatal": (backend("decode", decode_error("failed")), 0),
    "decode: memory": (backend("decode", raising(MEMORY)), 0),
    "draw: logits": (backend("sample", decode_error("nan")), 1),
    "draw: memory": (backend("sample", raising(MEMORY)), 1),
    "log-probabilities": (backend("logprobs", raising(MEMORY)), 1),
    "sampler": (backend("sampler", raising(MEMORY)), 1),
    "copy": (backend("copy", decode_error("invalid")), 0),
    "copy: memory": (backend("copy", raising(MEMORY)), 0),
    "trim": (trim, 0),
    "save": (backend("save", decode_error("failed")), 1),
    "save: memory": (backend("save", raising(MEMORY)), 1),
    "restore": (backend("restore", decode_error("invalid")), 0),
    "restore: memory": (backend("restore", raising(MEMORY)), 0),
    "vectors": (vectors("embed", decode_error("failed")), 1),
    "vectors: memory": (vectors("embed", raising(MEMORY)), 1),
    "piece of a token": (vocab("token_bytes", raising(MEMORY)), 1),
}
"""How each kind of call is made to fail, and how many requests one failure may end."""
