"""Idle sequences leave a pool over whose cells attention passes, and are found again as if they had stayed."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fakes.doubles import Bench, echo

from engine.runtime.adapters.adapters import BASE, Adapters
from engine.runtime.cache.state_store import StateStore

SHARED = "a long beginning that many prompts have in common, and that takes a while to evaluate; "


def pool(replies: Callable[[str], str] = echo, *, info: dict[str, Any] | None = None, **options: Any) -> Bench:
    info = {"passes_idle": True, **(info or {})}
    return Bench(replies, n_sequences=4, n_ctx=1000, kv_tokens=4000, info=info, **options)


def held(bench: Bench) -> list[int]:
    """Returns how many tokens each sequence holds, the longest first."""
    return sorted((len(bench.backend.tokens(index)) for index in range(bench.backend.info.n_sequences)), reverse=True)


def answered(bench: Bench, text: str, **options: Any) -> int:
    """Returns how many tokens of a prompt were reused."""
    id_ = bench.submit(text, **options)
    bench.run()
    usage = bench.completion(id_).usage
    assert usage is not None
    return usage.cached_tokens


def test_conversations_that_are_idle_leave_when_another_starts_and_are_found_again() -> None:
    store = StateStore()
    bench = pool(states=store)
    texts = [f"{number} asks something of its own, at some length" for number in range(4)]
    for text in texts:
        bench.submit(text)
    bench.run()
    assert min(held(bench)) > len(texts[0]), "none leaves before another starts"
    assert answered(bench, "what comes next is new") == 0
    assert held(bench)[1:] == [0, 0, 0]
    assert store.sizes.states == 4
    for text in texts:
        again = f"{text}re: {text} and more"
        assert answered(bench, again) == len(again) - len(" and more")
        assert held(bench)[1:] == [0, 0, 0]


def test_what_starts_at_once_goes_on_where_it_is() -> None:
    store = StateStore()
    bench = pool(states=store)
    texts = [f"{number} asks something of its own, at some length" for number in range(4)]
    for _ in range(3):
        for text in texts:
            bench.submit(text)
        bench.run()
        texts = [f"{text}re: {text} and more" for text in texts]
    assert store.sizes.states == 0


def test_what_a_sequence_in_use_holds_stays() -> None:
    """As of agents with one long prompt, of which some wait for their tools: they would come back without sharing."""
    store = StateStore()
    bench = pool(replies=lambda _: "fine " * 6, states=store)
    for number in range(3):
        bench.submit(f"{SHARED}{number}")
    bench.run()
    assert answered(bench, f"{SHARED}3") == len(SHARED)
    assert store.sizes.states == 0
    assert held(bench)[2] > len(SHARED)
    answered(bench, "something else, at some length, in which the beginning of the others does not occur")
    assert held(bench)[1:] == [0, 0, 0]
    assert store.sizes.states == 3, "nobody uses it any more"


def test_of_rows_of_a_batch_their_beginning_is_kept_once() -> None:
    store = StateStore()
    bench = pool(replies=lambda _: "y" * 200, states=store)
    for number in range(3):
        answered(bench, f"{SHARED}{number}", offline=True)
    answered(bench, "something else, at some length")
    assert held(bench)[1:] == [0, 0, 0]
    assert store.sizes.states == 1
    assert answered(bench, f"{SHARED}another", offline=True) == len(SHARED)


@pytest.mark.parametrize("size", [0, 4000, 7999])
def test_a_store_with_less_room_than_the_pool_takes_none(size: int) -> None:
    store = StateStore(size)
    bench = pool(states=store)
    for number in range(3):
        answered(bench, f"{number} {SHARED}")
    assert held(bench)[2] > len(SHARED)
    assert store.sizes.states == 0


def test_nothing_is_written_to_disk_for_it(tmp_path: Path) -> None:
    store = StateStore(1 << 20, tmp_path / "states", 1 << 20)
    bench = pool(states=store)
    for number in range(3):
        answered(bench, f"{number} {SHARED}")
    assert held(bench)[2] > len(SHARED)
    assert store.sizes.states == 0


def test_a_draft_model_keeps_them_where_it_follows_them() -> None:
    store = StateStore()
    bench = pool(states=store, draft=echo, draft_max=3)
    for number in range(3):
        answered(bench, f"{number} {SHARED}")
    assert held(bench)[2] > len(SHARED)


def test_one_whose_state_cannot_be_saved_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = pool()

    def fails(sequence: int) -> bytes:
        raise MemoryError

    monkeypatch.setattr(bench.backend, "save", fails)
    for number in range(3):
        answered(bench, f"{number} {SHARED}")
    assert held(bench)[2] > len(SHARED)
    assert answered(bench, f"1 {SHARED}re: 1 {SHARED}") == 2 * len(SHARED) + 7


def talks(seed: int, *, passes_idle: bool) -> tuple[list[str], list[int]]:
    """Returns what a random traffic of conversations is answered, and how many tokens of each turn were reused: turns
    that go on, that take something back, alone and several at once."""
    random = Random(seed)
    bench = pool(info={"passes_idle": passes_idle})
    texts = [f"{number} {SHARED if number % 3 == 0 else 'asks ' * 9}" for number in range(8)]
    answers, reused = list[str](), list[int]()
    for _ in range(25):
        now = random.sample(range(8), random.randint(1, 4))
        asked = {each: bench.submit(texts[each]) for each in now}
        bench.run()
        for each, id_ in asked.items():
            completion = bench.completion(id_)
            assert completion.usage is not None
            answers.append(completion.content)
            reused.append(completion.usage.cached_tokens)
            kept = random.choice([len(texts[each]), len(texts[each]) - 9])
            texts[each] = (texts[each][:kept] + "so " * random.randint(1, 5))[:240]
    return answers, reused


def test_one_that_left_is_found_under_its_own_salt_only() -> None:
    bench, text = pool(), f"{SHARED}and what only one caller may know"
    mine, other = (Adapters(salt=salt) for salt in ("mine", "other"))
    answered(bench, text, adapters=mine)
    answered(bench, "something else, at some length")
    assert held(bench)[1:] == [0, 0, 0]
    assert [answered(bench, f"{text}re: {text}?", adapters=each) for each in (BASE, other)] == [0, 0]
    assert answered(bench, f"{text}re: {text}!", adapters=mine) == 2 * len(text) + 4


def test_one_longer_than_a_sliding_window_stays() -> None:
    bench = pool(info={"cut_states": 60})
    short, long = "a short one, but long enough", f"{SHARED}and so on"
    for text in (short, long, "another, at some length"):
        answered(bench, text)
    assert held(bench)[0] > len(long)
    assert held(bench)[2:] == [0, 0], "only that one stays, beside the one that was just answered"


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_the_same_and_no_more_is_evaluated(seed: int) -> None:
    answers, reused = talks(seed, passes_idle=True)
    stayed, before = talks(seed, passes_idle=False)
    assert answers == stayed
    assert sum(reused) >= sum(before)
    assert sum(reused) > 0


def test_a_state_that_cannot_be_cut_is_no_reason_to_evaluate_what_a_sequence_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With sliding windows a state holds what its last token sees: cut, nothing of it is left."""
    bench = Bench(lambda _: "y", n_sequences=2, n_ctx=1000, info={"cut_states": 80}, states=StateStore())
    restored = list[int]()
    restore = bench.backend.restore

    def watched(sequence: int, state: bytes) -> None:
        restored.append(sequence)
        restore(sequence, state)

    monkeypatch.setattr(bench.backend, "restore", watched)
    long = f"{SHARED}{SHARED}{'and so it goes on ' * 9}"
    answered(bench, long)
    for text in ("x", "z"):
        answered(bench, text * 200)
    assert answered(bench, f"{SHARED}{SHARED}but then") == 0
    assert not restored
    assert answered(bench, f"{long}y and on") == len(long) + 1
    assert restored
