"""engine.runtime.cache.prefix: reuse, sharing, forgetting; the books are compared with ScriptedBackend's."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from files import model_files
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.llama.model import Model
from engine.runtime.cache.prefix import Blocked, Lease, PrefixCache
from engine.runtime.cache.slots import common_prefix
from engine.runtime.cache.state_store import OriginStates, StateStore
from engine.runtime.loop.backend import Backend, Row
from engine.runtime.loop.config import ContextOptions
from engine.support.errors import DecodeError
from engine.testing.scripted import ScriptedBackend


class Bench:
    """A cache over a scripted backend, and the loop's part: evaluate what a sequence's user wants evaluated."""

    def __init__(
        self,
        n_sequences: int = 3,
        n_ctx: int = 1000,
        *,
        pool: bool = True,
        trimmable: bool = True,
        can_share: bool | None = None,
        patience: int = 32,
        copy_cost: int = 0,
        checkpoint_bytes: int = 0,
        states: int | None = None,
    ) -> None:
        self.backend = ScriptedBackend(
            [],
            n_ctx=n_ctx,
            kv_tokens=n_ctx if pool else None,
            n_batch=n_ctx,
            n_sequences=n_sequences,
            trimmable=trimmable,
        )
        self.backend.info = replace(
            self.backend.info,
            can_share=trimmable if can_share is None else can_share,
            copy_cost=copy_cost,
            checkpoint_bytes=checkpoint_bytes,
        )
        kept = None if states is None else OriginStates(StateStore(states), lambda: self.backend.origin)
        self.cache = PrefixCache(self.backend, patience=patience, states=kept, worth=2)

    def acquire(self, tokens: list[int]) -> Lease:
        lease = self.cache.acquire(tokens)
        assert isinstance(lease, Lease), lease
        self.check()
        assert self.backend.tokens(lease.sequence) == tokens[: lease.reused]
        assert lease.reused < len(tokens)
        return lease

    def evaluate(self, sequence: int, tokens: list[int]) -> None:
        start = self.backend.positions(sequence)
        self.backend.decode([Row(token, start + i, sequence, False) for i, token in enumerate(tokens)])
        self.cache.extend(sequence, tokens)
        self.check()

    def run(self, tokens: list[int]) -> Lease:
        """Acquire, evaluate all, release."""
        lease = self.acquire(tokens)
        self.evaluate(lease.sequence, tokens[lease.reused :])
        self.cache.release(lease.sequence)
        return lease

    def check(self) -> None:
        self.cache.check()
        assert self.cache.cells.used == self.backend.used
        for sequence in range(self.backend.info.n_sequences):
            assert self.cache.held(sequence) == self.backend.tokens(sequence)


def test_a_continued_conversation_stays_in_its_sequence() -> None:
    bench = Bench()
    first = bench.run([1, 2, 3, 4])
    assert first.reused == 0
    assert bench.acquire([1, 2, 3, 4, 5, 6]) == (first.sequence, 4)


def test_the_last_token_is_never_reused() -> None:
    bench = Bench()
    first = bench.run([1, 2, 3, 4])
    assert bench.run([1, 2, 3, 4]) == (first.sequence, 3)
    assert bench.run([1, 2, 3]) == (first.sequence, 2)


def test_a_prefix_is_copied_only_where_that_is_cheaper_than_evaluating_it() -> None:
    bench = Bench(copy_cost=10)
    shared = list(range(100, 112))
    first = bench.run([*shared, *range(30)])
    assert bench.run([*shared[:9], 1, 2]) == (first.sequence + 1, 0), "9 tokens are not worth a copy"
    assert bench.run([*shared[:10], 3]).reused == 10
    assert bench.run([*shared, *range(30), 4]) == (first.sequence, 42), "continuing in place costs nothing"
    assert bench.run([*range(5), 6]).reused == 0
    assert bench.run([*range(5), 6, 7]).reused == 6


def test_what_is_not_worth_a_copy_is_kept_of_the_sequence_that_would_be_emptied() -> None:
    bench = Bench(n_sequences=2, copy_cost=10)
    first = bench.run([*range(100, 105), *range(30)])
    bench.run([7] * 40)
    assert bench.run([*range(100, 105), 1]) == (first.sequence, 5)
    assert bench.run([7, 7, 8]).reused == 2


def test_of_what_is_kept_so_the_last_token_is_not_reused_either() -> None:
    bench = Bench(n_sequences=2, copy_cost=10)
    first = bench.run([*range(100, 105), *range(30)])
    bench.run([7] * 40)
    assert bench.run([*range(100, 104)]) == (first.sequence, 3)


@pytest.mark.parametrize(("copy_cost", "empty", "held"), [(10, [1, 0, 4, 5], [0, 1]), (0, [0, 1, 4, 5], [0, 5])])
def test_between_separate_buffers_busy_sequences_stand_side_by_side(
    copy_cost: int, empty: list[int], held: list[int]
) -> None:
    """An empty sequence beside a busy one is taken, or one of the older half; in one buffer it is the oldest."""

    def bench(n_sequences: int, busy: int) -> Bench:
        made = Bench(n_sequences, copy_cost=copy_cost)
        for sequence in range(busy):
            tokens = [100 + sequence] * 9
            assert made.acquire(tokens).sequence == sequence
            made.evaluate(sequence, tokens)
        return made

    with_empty = bench(7, 5)
    for sequence in (0, 1, 4):
        with_empty.cache.drop(sequence)
    assert [with_empty.acquire([number] * 9).sequence for number in range(200, 204)] == empty

    full = bench(6, 6)
    for sequence in (0, 5, 1, 4, 2):
        full.cache.release(sequence)
    assert [full.acquire([number] * 9).sequence for number in (200, 201)] == held


def test_a_pinned_prefix_is_copied_however_short_it_is() -> None:
    bench = Bench(copy_cost=10, n_sequences=5)
    pinned = bench.run([1, 2, 3])
    bench.cache.pin(pinned.sequence)
    assert bench.run([1, 2, 3, 4, 5, *range(50, 90)]).reused == 3
    assert bench.run([1, 2, 3, 4, 5, 7]).reused == 3, "what shares more is no better where it is not worth a copy"
    assert bench.run([1, 2, 9]).reused == 0, "only a part of what was pinned"


def test_nobody_waits_for_a_prefix_that_is_not_worth_a_copy() -> None:
    for copy_cost, waits in ((0, True), (5, True), (6, False)):
        bench = Bench(copy_cost=copy_cost)
        bench.acquire([1, 2, 3, 4, 5, 6])
        answer = bench.cache.acquire([1, 2, 3, 4, 5, 6])
        assert (answer is Blocked.SHARED) is waits, copy_cost


def test_a_diverging_conversation_is_trimmed_in_place() -> None:
    bench = Bench()
    first = bench.run([1, 2, 3, 4, 5])
    assert bench.run([1, 2, 3, 4, 9, 9]) == (first.sequence, 4)
    assert bench.cache.held(first.sequence) == [1, 2, 3, 4, 9, 9]


def test_a_long_tail_is_kept_by_copying() -> None:
    bench = Bench()
    long = bench.run([1, 2, *range(10, 40)])
    other = bench.run([1, 2, 7])
    assert other.sequence != long.sequence
    assert other.reused == 2
    assert bench.cache.held(long.sequence) == [1, 2, *range(10, 40)]
    assert bench.cache.cells.used == 32 + 1


def test_the_only_sequence_is_trimmed_whatever_it_loses() -> None:
    bench = Bench(n_sequences=1)
    bench.run([1, 2, *range(10, 40)])
    assert bench.run([1, 2, 7]) == (0, 2)


def test_a_busy_sequence_is_shared() -> None:
    bench = Bench()
    tokens = list(range(50))
    first = bench.acquire(tokens)
    bench.evaluate(first.sequence, tokens)
    second = bench.acquire([*tokens, 99])
    assert second.reused == 50
    assert second.sequence != first.sequence
    assert bench.cache.cells.used == 50


def test_waits_for_the_same_prompt_however_short() -> None:
    bench = Bench()
    tokens = list(range(6))
    first = bench.acquire(tokens)
    assert bench.cache.acquire(tokens) is Blocked.SHARED
    assert isinstance(bench.cache.acquire([*tokens[:5], 9]), Lease), "another is not waited for"
    bench.evaluate(first.sequence, tokens)
    assert bench.acquire(tokens).reused == 5


def test_a_prompt_whose_answer_nobody_waits_for_waits_for_a_few_tokens_too() -> None:
    """Questions about one input: while that is half read, none begins to read the rest for itself."""
    bench = Bench()
    state = list(range(40))
    first = bench.acquire([*state, 50, 51])
    bench.evaluate(first.sequence, state[:30])
    assert bench.cache.acquire([*state, 60, 61], offline=True) is Blocked.SHARED
    bench.evaluate(first.sequence, state[30:37])
    lease = bench.cache.acquire([*state, 60, 61], offline=True)
    assert isinstance(lease, Lease), "three tokens are soon read"
    assert lease.reused == 37


def test_waits_for_a_prefix_that_is_being_evaluated() -> None:
    bench = Bench()
    tokens = list(range(50))
    first = bench.acquire(tokens)
    assert bench.cache.acquire(tokens) is Blocked.SHARED
    bench.evaluate(first.sequence, tokens[:30])
    assert bench.acquire([*tokens[:40], 99]).reused == 30, "10 more tokens are not worth the wait"


def test_all_sequences_in_use() -> None:
    bench = Bench(n_sequences=2)
    bench.acquire([1])
    second = bench.acquire([2])
    assert bench.cache.acquire([3]) is Blocked.SEQUENCES
    bench.cache.release(second.sequence)
    assert bench.acquire([3]).sequence == second.sequence


def test_the_least_recently_used_is_forgotten_first() -> None:
    bench = Bench(n_sequences=2)
    first, second = bench.run([1, 1, 1]), bench.run([2, 2, 2])
    bench.run([1, 1, 1, 1])
    assert bench.run([3, 3]).sequence == second.sequence
    assert bench.cache.held(first.sequence) == [1, 1, 1, 1]


def test_cells_promised_to_others_are_not_given_away() -> None:
    bench = Bench(n_sequences=3, n_ctx=100)
    first = bench.acquire(list(range(60)))
    assert bench.cache.acquire([7] * 50) is Blocked.CELLS
    bench.evaluate(first.sequence, list(range(60)))
    assert bench.cache.acquire([7] * 50) is Blocked.CELLS
    assert bench.cache.acquire([*range(59), *[7] * 30]) == (1, 59), "shared cells count once"
    bench.check()


def test_idle_cells_are_given_to_a_new_prompt() -> None:
    bench = Bench(n_sequences=3, n_ctx=600)
    bench.run(list(range(300)))
    small = bench.acquire([5, 6, 7])
    bench.evaluate(small.sequence, [5, 6, 7])
    big = bench.acquire([9] * 400)
    assert bench.cache.make_room(400)
    assert bench.cache.held(0) == list(range(44)), "no more than needed is forgotten, in pieces of 256"
    bench.evaluate(big.sequence, [9] * 400)
    assert not bench.cache.make_room(600)
    assert bench.cache.held(small.sequence) == [5, 6, 7]


@pytest.mark.parametrize("said", [True, False])
def test_recurrent_memory_reuses_whole_sequences_only(said: bool) -> None:
    bench = Bench(trimmable=False, can_share=not said)
    first = bench.run([1, 2, 3, 4])
    assert bench.run([1, 2, 3, 4, 5, 6]) == (first.sequence, 4)
    assert bench.run([1, 2, 3, 9]).reused == 0, "cannot be trimmed, so it is evaluated again"
    assert bench.run([1, 2, 3, 9, 9]).reused == 4
    busy = bench.acquire([1, 2, 3, 9, 9, 9])
    bench.evaluate(busy.sequence, [9])
    assert bench.acquire([1, 2, 3, 9, 9, 9, 7]).reused == 6, "whole sequences can be copied"


def test_one_sequence_that_cannot_be_cut_condemns_no_other_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a sliding window: what lies behind it is gone from one sequence, and from another not."""
    bench = Bench()
    lost, whole = bench.run(list(range(40))), bench.run(list(range(100, 140)))
    usual = bench.backend.can_trim

    def can_trim(sequence: int, position: int) -> bool:
        return sequence != lost.sequence and usual(sequence, position)

    monkeypatch.setattr(bench.backend, "can_trim", can_trim)
    assert bench.run([*range(30), 99]).reused == 0, "no copy that could not be cut"
    assert bench.run([*range(100, 130), 99]).reused == 30
    assert bench.run([*range(40), 99]) == (lost.sequence, 40), "what needs no cut is reused"
    assert whole.reused == 0
    monkeypatch.undo()
    assert bench.run([*range(20), 99]).reused == 20


@pytest.mark.parametrize(("full", "seed"), [(True, 4), (False, 3)])
def test_prompts_edited_at_random_reuse_what_a_window_still_allows(tmp_path: Path, seed: int, *, full: bool) -> None:
    """Also after a cut that failed; and the logits are those of a fresh context, so all that a row may see is there."""
    chance = Random(seed)
    exact: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_threads": 1}
    options = ContextOptions(n_ctx=512, kv_tokens=512, n_ubatch=32, swa_full=full, **exact)
    with Model.load(model_files.write(tmp_path / "m.gguf", "gemma3", model_files.Shape(n_layer=7))) as model:
        backend, fresh = model.backend(replace(options, n_sequences=2)), model.backend(options)
        cache, prompts, refused, cut_later = PrefixCache(backend), [[5] * 90], 0, 0
        for _ in range(25):
            old = chance.choice(prompts[-2:])
            at = chance.choice((0, chance.randrange(len(old)), max(0, len(old) - 20)))
            prompt = [*old[:at], *(chance.randrange(4, 40) for _ in range(chance.randrange(1, 400 - at)))]
            best = max(common_prefix(cache.held(each), prompt, len(prompt) - 1) for each in range(2))
            lease = cache.acquire(prompt)
            assert isinstance(lease, Lease)
            refused += lease.reused < best
            cut_later += bool(refused and 0 < lease.reused < len(old))
            assert cache.make_room(len(prompt) - lease.reused)
            row = evaluated(backend, prompt, lease)
            cache.extend(lease.sequence, prompt[lease.reused :])
            cache.release(lease.sequence)
            cache.check()
            fresh.clear()
            right = evaluated(fresh, prompt, Lease(0, 0))
            assert np.allclose(backend.logits(row), fresh.logits(right), atol=5e-3)
            prompts.append(prompt)
        assert refused > 0
        assert cut_later > 5
        backend.close()
        fresh.close()


def evaluated(backend: Backend, prompt: list[int], lease: Lease) -> int:
    """Evaluate what a sequence does not hold of a prompt; returns the row that has logits."""
    rows = [Row(token, place, lease.sequence, place == len(prompt) - 1) for place, token in enumerate(prompt)]
    for start in range(lease.reused, len(prompt), backend.info.n_batch):
        backend.decode(rows[start : start + backend.info.n_batch])
    return (len(prompt) - lease.reused - 1) % backend.info.n_batch


def taken_back(bench: Bench, tokens: list[int], marks: tuple[int, ...]) -> Lease:
    """Acquire, evaluate all, with checkpoints at the marks; released."""
    lease = bench.cache.acquire(tokens, 0, marks)
    assert isinstance(lease, Lease)
    held = lease.reused
    for stop in (*(mark for mark in marks if mark > held), len(tokens)):
        bench.evaluate(lease.sequence, tokens[held:stop])
        held = stop
        if stop in marks:
            bench.cache.checkpoint(lease.sequence)
    bench.cache.release(lease.sequence)
    return lease


def test_a_memory_that_cannot_be_cut_is_taken_back_to_a_checkpoint() -> None:
    bench = Bench(n_sequences=1, trimmable=False, checkpoint_bytes=10_000)
    taken_back(bench, [1, 2, 3, 4, 5, 6], (2, 4))
    assert bench.cache.checkpoints[0] == 2
    assert taken_back(bench, [1, 2, 3, 4, 5, 6], (2, 4)).reused == 4, "the same prompt again"
    assert taken_back(bench, [1, 2, 3, 9, 9], (2,)).reused == 2, "one that was edited"
    assert taken_back(bench, [1, 2, 3, 4, 5, 6], ()).reused == 2, "what lay behind the edit is gone"
    assert taken_back(bench, [1, 2, 3, 4, 5, 6, 7, 8], ()).reused == 6, "continued in place"
    assert taken_back(bench, [1, 2, 3, 4, 5, 6, 9], ()).reused == 6, "and back to where that turn ended"
    assert taken_back(bench, [8, 8], ()).reused == 0
    assert bench.cache.checkpoints == (0, 0)


def test_a_checkpoint_goes_along_with_a_copy_and_counts_once() -> None:
    bench = Bench(n_sequences=3, trimmable=False, checkpoint_bytes=10_000)
    busy = bench.cache.acquire([1, 2, 3, 4, 5], 0, (3,))
    assert isinstance(busy, Lease)
    bench.evaluate(busy.sequence, [1, 2, 3])
    bench.cache.checkpoint(busy.sequence)
    bench.cache.checkpoint(busy.sequence)
    before = bench.cache.checkpoints
    assert before[0] == 1, "there is one already"
    bench.evaluate(busy.sequence, [4, 5])
    assert bench.acquire([1, 2, 3, 9]).reused == 3
    assert bench.cache.checkpoints == before
    bench.check()


def test_at_most_eight_checkpoints_of_a_conversation_the_oldest_go() -> None:
    bench = Bench(n_sequences=1, trimmable=False, checkpoint_bytes=10_000)
    tokens = list(range(40))
    taken_back(bench, tokens, tuple(range(2, 26, 2)))
    assert bench.cache.checkpoints[0] == 8
    assert taken_back(bench, [*tokens[:9], 99], ()).reused == 0
    taken_back(bench, tokens, tuple(range(2, 26, 2)))
    assert taken_back(bench, [*tokens[:20], 99], ()).reused == 20


def test_checkpoints_take_no_more_than_they_may_the_oldest_go() -> None:
    bench = Bench(n_sequences=2, trimmable=False, checkpoint_bytes=60)
    first = taken_back(bench, [1] * 12, (4, 8))
    assert bench.cache.checkpoints == (2, len("[1, 1, 1, 1]") + len("[1, 1, 1, 1, 1, 1, 1, 1]"))
    second = taken_back(bench, [2] * 12, (9,))
    assert first.sequence != second.sequence
    assert bench.cache.checkpoints == (2, 24 + 27), "the first conversation's first is gone"
    assert taken_back(bench, [1] * 6 + [3], ()).reused == 0
    assert taken_back(bench, [2] * 10 + [3], ()).reused == 9
    small = Bench(n_sequences=1, trimmable=False, checkpoint_bytes=10)
    taken_back(small, [1] * 12, (8,))
    assert small.cache.checkpoints == (0, 0), "one alone is too large"


@pytest.mark.parametrize("fault", [DecodeError("no"), MemoryError()])
def test_a_checkpoint_that_cannot_be_taken_is_not_missed(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def refuse(sequence: int) -> bytes:
        raise fault

    bench = Bench(n_sequences=1, trimmable=False, checkpoint_bytes=60)
    monkeypatch.setattr(bench.backend, "checkpoint", refuse)
    taken_back(bench, [1, 2, 3], (2,))
    assert taken_back(bench, [1, 2, 9], (2,)).reused == 0


def test_a_checkpoint_that_cannot_be_put_back_costs_the_prefix_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(sequence: int, position: int, state: bytes) -> bool:
        return False

    bench = Bench(n_sequences=1, trimmable=False, checkpoint_bytes=60)
    taken_back(bench, [1, 2, 3], (2,))
    monkeypatch.setattr(bench.backend, "rewind", refuse)
    assert taken_back(bench, [1, 2, 9], ()).reused == 0


def test_waits_for_a_checkpoint() -> None:
    bench = Bench(n_sequences=3, trimmable=False, patience=4, checkpoint_bytes=1000)
    tokens = list(range(20))
    busy = bench.cache.acquire(tokens, 0, (10,))
    assert isinstance(busy, Lease)
    assert bench.cache.acquire([*tokens[:12], 99]) is Blocked.SHARED
    assert bench.acquire([*tokens[:8], 99]).reused == 0, "it parts before the checkpoint"
    bench.evaluate(busy.sequence, tokens[:10])
    bench.cache.checkpoint(busy.sequence)
    assert bench.acquire([*tokens[:12], 99]).reused == 10


def test_reconcile_follows_the_memory() -> None:
    bench = Bench()
    lease = bench.acquire(list(range(20)))
    bench.evaluate(lease.sequence, list(range(10)))
    assert bench.cache.reconcile(lease.sequence) == 10
    bench.backend.trim(lease.sequence, 6)
    assert bench.cache.reconcile(lease.sequence) == 6
    bench.check()
    bench.backend.decode([Row(6, 6, lease.sequence, False)])
    assert bench.cache.reconcile(lease.sequence) == 6
    bench.check()


def test_drop_and_clear() -> None:
    bench = Bench()
    idle, busy = bench.run([1, 2]), bench.acquire([3, 4])
    bench.evaluate(busy.sequence, [3])
    assert bench.cache.clear()
    assert not bench.cache.clear()
    assert bench.cache.held(idle.sequence) == []
    assert bench.cache.held(busy.sequence) == [3]
    bench.cache.drop(busy.sequence)
    assert bench.cache.cells.used == 0
    assert bench.cache.cells.free == 1000
    bench.check()


def test_check_finds_mistakes() -> None:
    bench = Bench()
    lease = bench.run([1, 2, 3])
    bench.backend.trim(lease.sequence, 1)
    with pytest.raises(AssertionError, match="holds 1 positions, not 3"):
        bench.cache.check()
    bench.cache.reconcile(lease.sequence)
    other = bench.acquire([4, 5])
    bench.backend.decode([Row(5, 0, other.sequence, False)])
    bench.cache.extend(other.sequence, [5])
    with pytest.raises(AssertionError, match="other tokens"):
        bench.cache.check()


def test_common_prefix() -> None:
    items = list(range(100))
    assert common_prefix(items, items, 100) == 100
    assert common_prefix(items, items, 37) == 37
    assert common_prefix([], items, 100) == 0
    for at in (0, 1, 15, 16, 17, 47, 48, 98, 99):
        assert common_prefix(items, [*items[:at], -1, *items[at + 1 :]], 100) == at


@pytest.mark.parametrize("trimmable", [True, False])
@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("n_sequences", [1, 2])
def test_states_are_loaded_as_far_as_a_prompt_shares_them(
    n_sequences: int, pool: bool, trimmable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(n_sequences)
    bench = Bench(n_sequences, 30, pool=pool, trimmable=trimmable, checkpoint_bytes=0 if trimmable else 500, states=600)
    restored: list[int] = []
    restore = bench.backend.restore

    def counted(sequence: int, state: bytes) -> None:
        restored.append(sequence)
        restore(sequence, state)

    monkeypatch.setattr(bench.backend, "restore", counted)
    for _ in range(500):
        tokens = [random.randrange(2) for _ in range(random.randint(3, 12))]
        bench.run(tokens)
    assert len(restored) > 20


class Conversations(RuleBasedStateMachine):
    """Random prompts over a tiny alphabet, so that prefixes collide; evaluated in random pieces, left, forgotten."""

    @initialize(
        n_sequences=st.integers(1, 4),
        n_ctx=st.integers(12, 60),
        pool=st.booleans(),
        trimmable=st.booleans(),
        checkpoint_bytes=st.sampled_from([0, 40, 1000]),
        states=st.sampled_from([None, 0, 60, 1000]),
    )
    def begin(
        self,
        n_sequences: int,
        n_ctx: int,
        pool: bool,
        trimmable: bool,
        checkpoint_bytes: int,
        states: int | None,
    ) -> None:
        room = 0 if trimmable else checkpoint_bytes
        self.bench = Bench(
            n_sequences, n_ctx, pool=pool, trimmable=trimmable, patience=4, checkpoint_bytes=room, states=states
        )
        self.room = room
        self.users: dict[int, list[int]] = {}

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12), limit=st.integers(0, 12), mark=st.integers(0, 12)
    )
    def acquire(self, tokens: list[int], limit: int, mark: int) -> None:
        lease = self.bench.cache.acquire(tokens, limit, (mark,))
        if isinstance(lease, Blocked):
            assert self.users, "alone, every prompt may start"
            return
        assert lease.sequence not in self.users
        assert lease.reused < len(tokens)
        assert self.bench.backend.tokens(lease.sequence) == tokens[: lease.reused]
        self.users[lease.sequence] = tokens

    @rule(tokens=st.lists(st.integers(0, 1), min_size=4, max_size=12))
    def turn(self, tokens: list[int]) -> None:
        """A request from its beginning to its end."""
        lease = self.bench.cache.acquire(tokens)
        if isinstance(lease, Blocked):
            return
        assert self.bench.backend.tokens(lease.sequence) == tokens[: lease.reused]
        chunk = tokens[lease.reused :]
        if self.bench.cache.make_room(len(chunk)):
            self.bench.evaluate(lease.sequence, chunk)
        self.bench.cache.release(lease.sequence)

    @precondition(lambda self: self.users)
    @rule(data=st.data(), size=st.integers(1, 6))
    def evaluate(self, data: st.DataObject, size: int) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.users)))
        tokens = self.users[sequence]
        start = self.bench.backend.positions(sequence)
        chunk = tokens[start : start + size]
        if chunk and self.bench.cache.make_room(len(chunk)):
            self.bench.evaluate(sequence, chunk)
        if self.bench.backend.positions(sequence) == len(tokens) < self.bench.backend.info.n_ctx:
            tokens.append(data.draw(st.integers(0, 1)))

    @precondition(lambda self: self.users)
    @rule(data=st.data(), keep=st.booleans())
    def leave(self, data: st.DataObject, keep: bool) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.users)))
        del self.users[sequence]
        if keep and data.draw(st.booleans()):
            self.bench.cache.kept.claim(sequence, list(self.bench.cache.held(sequence)))
        (self.bench.cache.release if keep else self.bench.cache.drop)(sequence)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        self.bench.cache.checkpoint(data.draw(st.sampled_from(sorted(self.users))))
        assert self.bench.cache.checkpoints[1] <= self.room

    @rule(claim=st.integers(0, 3))
    def disclaim(self, claim: int) -> None:
        self.bench.cache.kept.disclaim(claim)

    @rule()
    def keep_all(self) -> None:
        self.bench.cache.keep_all()

    @rule(cells=st.integers(1, 60))
    def make_room(self, cells: int) -> None:
        before = {sequence: list(self.bench.cache.held(sequence)) for sequence in self.users}
        if self.bench.cache.make_room(cells):
            assert self.bench.cache.cells.free >= cells
        assert before == {sequence: self.bench.cache.held(sequence) for sequence in self.users}

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "bench"):
            self.bench.check()


Conversations.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestConversations = Conversations.TestCase
