"""engine.runtime.draft.drafter: a second model guesses for all sequences together and changes nothing but the speed."""

import zlib
from collections.abc import Callable, Sequence

import pytest
from fakes.doubles import Bench
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.parsing import Parser
from engine.runtime.loop import sequence
from engine.runtime.loop.backend import Row
from engine.runtime.loop.generation import Limits
from engine.support.errors import DecodeError


def rest(text: str) -> str:
    """The reply to "question:" is its letters backwards, thrice; called with a part of the reply, what is left."""
    question, _, said = text.partition(":")
    return (question[::-1] * 3)[len(said) :]


def mistaken(right: Callable[[str], str], share: int) -> Callable[[str], str]:
    """A draft model that errs at one place of `share`."""

    def guess(text: str) -> str:
        wrong = zlib.crc32(text.encode()) % share == 0
        return "?" if wrong else right(text)

    return guess


def answered(bench: Bench, texts: list[str], limits: Limits | None = None) -> list[int]:
    ids = [bench.submit(f"{text}:", limits) for text in texts]
    bench.run()
    return ids


def test_a_model_that_is_right_saves_decodes() -> None:
    bare, drafting = Bench(rest), Bench(rest, draft_max=8, draft=rest)
    for bench in (bare, drafting):
        (id_,) = answered(bench, ["abcdefghij"])
        assert bench.completion(id_).content == "jihgfedcba" * 3
    assert bare.backend.decodes == 31
    assert drafting.backend.decodes == 5 + 3, "the prompt, four that are measured, then 26 tokens in drafts of eight"
    usage = drafting.completion(1).usage
    assert usage is not None
    assert usage.accepted_tokens == usage.drafted_tokens == 23
    assert drafting.draft is not None
    assert drafting.draft.decodes == 24, "one for each guess, and one for the end, which is none"


@pytest.mark.parametrize("share", [1, 2, 3, 7])
def test_a_model_that_errs_changes_nothing(share: int) -> None:
    bench = Bench(rest, draft_max=8, draft=mistaken(rest, share))
    texts = ["abc", "defg", "hijklmn", "abx", "o", "pq"]
    ids = answered(bench, texts)
    assert [bench.completion(id_).content for id_ in ids] == [text[::-1] * 3 for text in texts]


def test_all_sequences_are_guessed_for_in_the_same_decodes() -> None:
    bench = Bench(rest, draft_max=3, draft=rest, n_sequences=4)
    answered(bench, ["abcdefghij", "klmnopqrst", "uvwxyzABCD", "EFGHIJKLMN"])
    assert bench.draft is not None
    assert bench.draft.batches.count(4) > 2 * len([rows for rows in bench.draft.batches if rows < 4])
    assert bench.draft.decodes < 3 * bench.backend.decodes


def test_what_was_guessed_wrongly_is_cut_off_in_both() -> None:
    bench = Bench(rest, draft_max=8, draft=mistaken(rest, 3))
    answered(bench, ["abcdefghij"])
    whole = list(b"abcdefghij:" + b"jihgfedcba" * 3)
    assert bench.loop.cache.held(0) == whole
    assert bench.draft is not None
    held = bench.draft.tokens(0)
    same = next((at for at, token in enumerate(held) if token != whole[at]), len(held))
    assert same >= len(whole) - 16, "only the last draft's guesses may still stand"


def test_what_the_draft_model_holds_is_not_read_again() -> None:
    bench = Bench(rest, draft_max=8, draft=rest, n_sequences=1)
    answered(bench, ["abcdefghij"])
    assert bench.draft is not None
    before = bench.draft.evaluated
    answered(bench, ["abcdefghij", "abcdefgxyz"])
    assert bench.draft.evaluated - before < 2 * 30 + 3 + 3, "the questions' beginnings are held"


def test_guesses_end_where_the_turn_may_end() -> None:
    bench = Bench(rest, draft_max=8, draft=rest)
    (id_,) = answered(bench, ["abcdefghij"], Limits(max_tokens=11))
    usage = bench.completion(id_).usage
    assert usage is not None
    assert usage.completion_tokens == 11
    assert max(bench.backend.batches[1:]) <= 6, "no guess beyond the last token"
    full = Bench(rest, draft_max=8, draft=rest, n_ctx=30)
    (id_,) = answered(full, ["abcdefghij"])
    assert full.completion(id_).finish_reason == "length"


def test_long_prompts_are_read_in_chunks_beside_running_answers() -> None:
    bench = Bench(
        lambda text: "ab" * 300, draft_max=4, draft=lambda text: "ab"[text.count("a", -1) :] + "ab", n_batch=64
    )
    first = bench.submit("short:")
    bench.step(12)
    assert bench.draft is not None
    bench.submit("x" * 1000 + ":")
    before = len(bench.replies[first])
    while bench.draft.positions(1) < 1000:
        bench.step()
        assert bench.loop.busy
    assert max(bench.draft.batches) <= 64
    assert len(bench.replies[first]) - before > 15, "a reply in each step"
    bench.loop.cancel_all()
    bench.run()


@pytest.mark.parametrize("guess", [(257, 1.0), (ord("j"), 0.5), (256, 1.0)], ids=["unknown", "improbable", "end"])
def test_no_guess_is_a_token_that_only_the_draft_model_has_or_an_improbable_one_or_an_end(
    monkeypatch: pytest.MonkeyPatch, guess: tuple[int, float]
) -> None:
    bench = Bench(rest, draft_max=8, draft=rest)
    assert bench.draft is not None

    def likeliest(_: int) -> tuple[int, float]:
        return guess

    monkeypatch.setattr(bench.draft, "likeliest", likeliest)
    (id_,) = answered(bench, ["abcdefghij"])
    usage = bench.completion(id_).usage
    assert usage is not None
    assert usage.drafted_tokens == 0
    assert bench.draft.decodes == 26, "one for each token after those that are measured"


def test_a_draft_model_that_fails_ends_no_request() -> None:
    failures: list[int] = []

    def fail(rows: Sequence[Row]) -> None:
        if len(rows) == 1:
            failures.append(len(rows))
            raise DecodeError("the draft model broke")

    bench = Bench(rest, draft_max=8, draft=rest)
    assert bench.draft is not None
    bench.draft.before_decode = fail
    ids = answered(bench, ["abcdefghij", "klmnop"])
    assert [bench.completion(id_).content for id_ in ids] == ["jihgfedcba" * 3, "ponmlk" * 3]
    assert len(failures) == 3, "then it is not used any more"
    assert not bench.draft.used


def test_a_draft_model_that_fails_now_and_then_is_still_used() -> None:
    bench = Bench(rest, draft_max=2, draft=rest)
    calls = 0

    def fail(_: object) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise DecodeError("now and then")

    assert bench.draft is not None
    bench.draft.before_decode = fail
    (id_,) = answered(bench, ["abcdefghijklmnop"])
    usage = bench.completion(id_).usage
    assert usage is not None
    assert calls > 12
    assert usage.accepted_tokens > 0


def test_a_memory_that_cannot_be_cut_is_not_guessed_for() -> None:
    bench = Bench(rest, draft_max=8, draft=rest, trimmable=False)
    (id_,) = answered(bench, ["abcdefghij"])
    usage = bench.completion(id_).usage
    assert usage is not None
    assert usage.drafted_tokens == 0
    assert bench.draft is not None
    assert bench.draft.decodes == 0


def test_a_draft_memory_that_cannot_be_cut_is_read_again() -> None:
    bench = Bench(rest, draft_max=8, draft=mistaken(rest, 3))
    assert bench.draft is not None
    bench.draft.trimmable = False
    texts = ["abcdefghij", "klmnop"]
    ids = answered(bench, texts)
    assert [bench.completion(id_).content for id_ in ids] == [text[::-1] * 3 for text in texts]


def test_offline_answers_that_wait_for_prompts_are_not_guessed_for() -> None:
    bench = Bench(rest, draft_max=8, draft=rest, n_batch=32)
    bench.submit("abcdefghij:", offline=True)
    bench.step(8)
    assert bench.draft is not None
    before = bench.draft.decodes
    bench.submit("x" * 300 + ":", offline=True)
    bench.step(2)
    assert bench.draft.decodes == before
    bench.run()


def test_forced_tokens_that_were_guessed_need_no_decode() -> None:
    """The close of reasoning is forced; the draft model guesses it, since it has seen where the budget ends."""
    close = tuple(b"\n</think>\n\n")

    def reply(text: str) -> str:
        return "answer" if "</think>" in text else "<think>\n" + "hm" * 50

    def guess(text: str) -> str:
        script = "<think>\n" + "hm" * 10 + "\n</think>\n\nanswer"
        return script[len(text) - 1 :]

    limits = Limits(reasoning_budget=21, reasoning_close=close)
    benches: list[Bench] = []
    for draft in (None, guess):
        bench = Bench(reply, draft_max=0 if draft is None else 16, draft=draft, n_batch=64)
        id_ = bench.submit("q", limits, parser=lambda: Parser("qwen3"))
        bench.run()
        assert (bench.completion(id_).content, len(bench.completion(id_).reasoning)) == ("answer", 20)
        benches.append(bench)
    bare, drafting = (bench.backend for bench in benches)
    assert drafting.evaluated == bare.evaluated, "nothing twice"
    assert drafting.decodes < bare.decodes / 4


@settings(max_examples=120, deadline=None)
@given(
    n_sequences=st.integers(1, 4),
    n_ctx=st.integers(56, 130),
    pool=st.booleans(),
    reserve=st.sampled_from([0, 8, 512]),
    n_batch=st.integers(4, 40),
    draft_max=st.sampled_from([1, 3, 8]),
    share=st.integers(1, 6),
    script=st.lists(
        st.tuples(st.integers(0, 3), st.text("ab", min_size=1, max_size=12), st.integers(-1, 20)),
        min_size=1,
        max_size=10,
    ),
)
def test_every_output_equals_its_run_alone(
    n_sequences: int,
    n_ctx: int,
    pool: bool,
    reserve: int,
    n_batch: int,
    draft_max: int,
    share: int,
    script: list[tuple[int, str, int]],
) -> None:
    """Random arrivals, shared prefixes, cancels, preemption, drafts that err: survivors answer as if alone, and the
    draft model never reads what its sequence does not hold."""
    bench = Bench(
        rest,
        n_sequences=n_sequences,
        n_ctx=n_ctx,
        kv_tokens=n_ctx if pool else None,
        n_batch=n_batch,
        draft_max=draft_max,
        draft=mistaken(rest, share),
    )
    cancels: list[tuple[int, int]] = []
    texts: dict[int, str] = {}
    step = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence, "ANSWER", reserve)
        for pause, text, cancel_after in script:
            bench.step(pause)
            step += pause
            id_ = bench.submit(f"{text}:")
            texts[id_] = text
            if cancel_after >= 0:
                cancels.append((step + cancel_after, id_))
            for at, other in cancels:
                if at <= step:
                    bench.loop.cancel(other)
        bench.run()
    for id_, text in texts.items():
        completion = bench.completion(id_)
        whole = text[::-1] * 3
        assert whole.startswith(completion.content)
        if completion.finish_reason != "cancelled":
            assert (completion.content, completion.finish_reason) == (whole, "stop")
