"""engine.runtime.loop.loop: many requests over one scripted backend, step by step; nothing here runs in a thread."""

from collections.abc import Sequence
from typing import Any

import pytest
from fakes.doubles import Bench, echo, preempted_states
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.parsing import Parser
from engine.runtime.guidance.matcher import Mask
from engine.runtime.loop import sequence
from engine.runtime.loop.backend import Row, Sampler
from engine.runtime.loop.generation import Limits
from engine.support.errors import ContextOverflowError, DecodeError, EngineError
from engine.testing.scripted import ScriptedSampler
from engine.types.sampling import SamplingParams


def test_one_request() -> None:
    bench = Bench(["hello"])
    id_ = bench.submit("prompt")
    bench.run()
    completion = bench.completion(id_)
    assert (completion.content, completion.finish_reason) == ("hello", "stop")
    assert bench.backend.samplers[0].closed
    assert bench.backend.batches == [6, 1, 1, 1, 1, 1]


def test_events_come_once_per_step() -> None:
    bench = Bench(["abc"])
    id_ = bench.submit("prompt")
    bench.run()
    assert [len(reply.events) for reply in bench.replies[id_]] == [1, 1, 1, 1]


def test_usage() -> None:
    bench = Bench(lambda _: "<think>\nhm\n</think>\n\nabc")

    def tick(_: object) -> None:
        bench.now += 0.5

    bench.backend.before_decode = tick
    first = bench.submit("shared prefix, first", parser=lambda: Parser("qwen3"))
    bench.now += 1
    bench.run()
    usage = bench.completion(first).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (20, 0, 25)
    assert usage.time_to_first_token == 1.5
    assert usage.prefill_seconds == 0.5
    assert usage.decode_seconds == 24 * 0.5
    assert usage.decode_tokens_per_second == 2
    assert 2 <= usage.reasoning_tokens < 20
    second = bench.submit("shared prefix, second", parser=lambda: Parser("qwen3"))
    bench.run()
    usage = bench.completion(second).usage
    assert usage is not None
    assert usage.cached_tokens == len("shared prefix, ")


def test_a_second_turn_prefills_only_what_is_new() -> None:
    bench = Bench(lambda text: f"re: {text[:8]}", n_sequences=1)
    bench.submit("question")
    bench.run()
    before = bench.backend.evaluated
    turn = "questionre: question<|im_end|>next"
    second = bench.submit(turn)
    bench.step()
    assert bench.backend.evaluated - before == len("next") + 1, "the end token was drawn, never evaluated"
    bench.run()
    assert bench.completion(second).content == "re: question"


def test_several_at_once_share_batches_and_keep_apart() -> None:
    bench = Bench(echo, n_sequences=3)
    texts = [f"{name} asks something" for name in ("anna", "bert", "carl", "dora", "emil")]
    ids = [bench.submit(text) for text in texts]
    bench.run()
    assert [bench.completion(id_).content for id_ in ids] == [f"re: {text}" for text in texts]
    assert max(bench.backend.batches[1:20]) >= 3
    alone = sum(len(text) + len(f"re: {text}") for text in texts)
    assert bench.backend.decodes < alone / 2


def test_a_long_prompt_does_not_stall_running_streams() -> None:
    bench = Bench(echo, n_batch=8)
    stream = bench.submit("s")
    bench.step(2)
    assert bench.partial(stream).content == "re"
    bench.submit("x" * 40)
    bench.step(2)
    assert bench.partial(stream).content == "re:"
    bench.step()
    assert bench.partial(stream).content == "re: s", "the space was held back by the parser"
    assert bench.backend.batches[-3:] == [8, 8, 8]


def test_streams_and_a_long_prompt_are_evaluated_apart_where_the_backend_wants_it() -> None:
    bench = Bench(echo, n_batch=256, n_sequences=3, info={"separate_prefill": True})
    streams = [bench.submit(text) for text in ("anna", "bert")]
    bench.step(2)
    long = bench.submit("x" * 160)
    bench.step(3)
    assert bench.backend.batches == [8, 2, 2, 64, 2, 96, 3]
    bench.run()
    assert [bench.completion(id_).content for id_ in streams] == ["re: anna", "re: bert"]
    assert bench.completion(long).content == f"re: {'x' * 160}"


def test_a_failure_beside_a_long_prompt_that_is_evaluated_apart() -> None:
    failing = iter([DecodeError("hiccup"), DecodeError("again")])

    def fail(rows: Sequence[Row]) -> None:
        if len(rows) == 2 and bench.backend.decodes > 2:
            for error in failing:
                raise error

    bench = Bench(echo, n_batch=256, n_sequences=3, info={"separate_prefill": True}, before_decode=fail)
    streams = [bench.submit(text) for text in ("anna", "bert")]
    bench.step(2)
    long = bench.submit("x" * 160)
    bench.run()
    assert bench.backend.batches[2:10] == [2, 1, 1, 2, 1, 1, 2, 64], "each failure ends its step"
    assert [bench.completion(id_).content for id_ in streams] == ["re: anna", "re: bert"]
    assert bench.completion(long).content == f"re: {'x' * 160}"


def test_answers_to_one_prompt_share_its_prefill() -> None:
    bench = Bench(lambda _: "same", n_sequences=4, n_batch=64)
    text = "a rather long prompt, which is worth the wait: " * 4
    ids = [bench.submit(text) for _ in range(4)]
    bench.run()
    assert {bench.completion(id_).content for id_ in ids} == {"same"}
    cached = [usage.cached_tokens for id_ in ids if (usage := bench.completion(id_).usage)]
    assert cached == [0, *[len(text) - 1] * 3]
    assert bench.backend.evaluated == len(text) + 3 + 4 * len("same")


def test_a_hundred_requests_compute_their_system_prompt_once() -> None:
    bench = Bench(lambda text: text[-3:], n_sequences=4, n_ctx=2000)
    system = "You are a system prompt with many tools and rules. " * 4
    ids = [bench.submit(f"{system}{number:03}") for number in range(100)]
    bench.run()
    assert [bench.completion(id_).content for id_ in ids] == [f"{number:03}" for number in range(100)]
    assert bench.backend.evaluated < len(system) + 100 * 8


def test_priority_goes_first() -> None:
    bench = Bench(echo, n_sequences=1)
    bench.submit("running")
    bench.step()
    low, high = bench.submit("low"), bench.submit("high", priority=1)
    bench.run()
    assert list(bench.replies) == [1, high, low]


def test_an_abort_stops_a_decode_for_one_request_alone() -> None:
    bench = Bench(echo, n_sequences=2)
    heard: list[bool] = []

    def interrupt(rows: list[Row]) -> None:
        for id_ in ids:
            bench.loop.interrupt(id_)
        heard.append(bench.backend.aborting)

    ids = [bench.submit("one")]
    bench.loop.interrupt(ids[0])
    assert not bench.backend.aborting, "nothing is being decoded"
    bench.backend.before_decode = interrupt  # pyright: ignore[reportAttributeAccessIssue]
    bench.step(2)
    assert bench.backend.evaluated == 0
    ids.append(bench.submit("two"))
    bench.step()
    assert bench.backend.evaluated == 6, "the neighbour is not held up"
    ids.remove(1)
    bench.loop.cancel(1)
    bench.backend.before_decode = None
    bench.run()
    assert bench.completion(2).content == "re: two"
    assert heard == [True, True, False]


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_cancel_while_waiting_in_prefill_and_in_decode(steps: int) -> None:
    bench = Bench(echo, n_batch=8, n_sequences=2)
    neighbour = bench.submit("n")
    bench.step(2)
    id_ = bench.submit("a prompt of three chunks")
    bench.step(steps)
    bench.loop.cancel(id_)
    bench.collect()
    assert bench.completion(id_).finish_reason == "cancelled"
    assert len(bench.loop.cache.held(1)) <= 8 * steps
    bench.run()
    assert bench.completion(neighbour).content == "re: n"
    bench.loop.cancel(id_)
    bench.loop.cancel(77)
    assert len(bench.replies[id_]) <= steps + 1


def test_what_a_cancelled_request_evaluated_is_reused() -> None:
    bench = Bench(echo, n_batch=8)
    id_ = bench.submit("a prompt of three chunks")
    bench.step(2)
    bench.loop.cancel(id_)
    again = bench.submit("a prompt of three chunks")
    bench.run()
    usage = bench.completion(again).usage
    assert usage is not None
    assert usage.cached_tokens == 16


def test_deadline() -> None:
    bench = Bench(lambda _: "x" * 50)

    def tick(_: object) -> None:
        bench.now += 1

    bench.backend.before_decode = tick
    late, calm = bench.submit("late", deadline=5), bench.submit("calm", deadline=500)
    bench.run()
    assert bench.completion(late).finish_reason == "deadline"
    assert bench.completion(late).content == "x" * 5
    assert bench.completion(calm).content == "x" * 50


def test_the_context_ends_a_turn_by_length() -> None:
    bench = Bench(lambda _: "x" * 100, n_ctx=20)
    id_ = bench.submit("0123456789")
    bench.run()
    completion = bench.completion(id_)
    assert (completion.content, completion.finish_reason) == ("x" * 11, "length")


def test_a_prompt_that_fills_the_context_draws_one_token() -> None:
    bench = Bench(lambda _: "x" * 100, n_ctx=10)
    id_ = bench.submit("0123456789")
    bench.run()
    assert bench.completion(id_).content == "x"
    too_long = bench.submit("0123456789!")
    bench.collect()
    assert isinstance(bench.error(too_long), ContextOverflowError)
    assert "11 tokens" in str(bench.error(too_long))


def test_out_of_cells_preempts_the_youngest_and_resumes_it_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "ANSWER", 0)  # admission would have them wait
    bench = Bench(lambda text: text[0] * 30, n_ctx=64, kv_tokens=64, n_sequences=3)
    ids = [bench.submit(letter * 8) for letter in "abc"]
    bench.run()
    assert [bench.completion(id_).content for id_ in ids] == ["a" * 30, "b" * 30, "c" * 30]
    assert list(bench.replies) == ids
    finished = [max(step for step, _ in enumerate(bench.replies[id_])) for id_ in ids]
    assert finished == [30, 30, 30], "every token came in a reply of its own, none twice"
    assert bench.backend.evaluated > 3 * 38, "something was evaluated again"
    assert all(each.closed for each in bench.backend.samplers), "no sampler stays open"


def test_idle_prefixes_give_way_before_anybody_is_preempted() -> None:
    bench = Bench(lambda text: text[0] * 30, n_ctx=64, kv_tokens=64, n_sequences=3)
    bench.submit("z" * 20)
    bench.run()
    before = bench.backend.evaluated
    id_ = bench.submit("a" * 20)
    bench.run()
    assert bench.completion(id_).content == "a" * 30
    assert bench.backend.evaluated - before == 20 + 30


def test_recurrent_memory() -> None:
    bench = Bench(echo, n_sequences=2, trimmable=False, n_batch=16)
    texts = ["one prompt", "one prompt", "one prompt, continued", "another"]
    ids = [bench.submit(text) for text in texts]
    bench.run()
    assert [bench.completion(id_).content for id_ in ids] == [f"re: {text}" for text in texts]


def test_a_failed_decode_fails_the_culprit_only() -> None:
    def poisoned(rows: list[Row]) -> None:
        if any(row.token == ord("!") for row in rows):
            raise DecodeError("this token cannot be evaluated")

    bench = Bench(echo, before_decode=poisoned)
    ids = [bench.submit(text) for text in ("fine", "bad!", "good")]
    bench.run()
    assert bench.completion(ids[0]).content == "re: fine"
    assert bench.completion(ids[2]).content == "re: good"
    assert "cannot be evaluated" in str(bench.error(ids[1]))
    assert bench.loop.cache.held(1)[:4] != list(b"bad!")


HICCUP, ABORTED = DecodeError("hiccup"), DecodeError("stopped", "aborted")


@pytest.mark.parametrize(
    "several",
    [
        pytest.param([HICCUP, None, None, HICCUP], id="one that fails once"),
        pytest.param([HICCUP, ABORTED, ABORTED] * 5, id="somebody cancels while the culprit is looked for"),
    ],
)
def test_a_decode_that_fails_now_and_then_is_not_noticed(several: list[DecodeError | None]) -> None:
    failures = iter(several)

    def moody(rows: list[Row]) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure

    bench = Bench(echo, before_decode=moody)
    ids = [bench.submit("one"), bench.submit("two")]
    bench.run()
    assert [bench.completion(id_).content for id_ in ids] == ["re: one", "re: two"]


def test_a_decode_that_fails_for_all_fails_all() -> None:
    def broken(rows: list[Row]) -> None:
        raise DecodeError("no device")

    bench = Bench(echo, before_decode=broken)
    ids = [bench.submit("one"), bench.submit("two")]
    bench.run()
    assert {str(bench.error(id_)) for id_ in ids} == {"no device"}
    assert bench.backend.used == 0
    bench.backend.before_decode = None
    again = bench.submit("three")
    bench.run()
    assert bench.completion(again).content == "re: three"


@pytest.mark.parametrize("trimmable", [True, False])
def test_a_decode_that_gets_half_way_each_time_is_given_up(trimmable: bool) -> None:
    """The memory changed under a failing decode: what is held is read back, and nobody retries for ever."""
    bench = Bench(echo, trimmable=trimmable, n_batch=64)

    def half(rows: list[Row]) -> None:
        for index in {row.sequence for row in rows}:
            bench.backend.trim(index, 0 if not trimmable else bench.backend.positions(index) // 2)
        raise DecodeError("died half way")

    ids = [bench.submit("a first prompt"), bench.submit("b other prompt")]
    bench.step(3)
    bench.backend.before_decode = half  # pyright: ignore[reportAttributeAccessIssue]
    bench.run(limit=50)
    assert {str(bench.error(id_)) for id_ in ids} == {"died half way"}


def test_no_slot_forgets_idle_sequences_then_preempts() -> None:
    bench = Bench(lambda text: text[0] * 20, n_sequences=3, n_ctx=200, kv_tokens=200)
    bench.submit("z" * 60)
    bench.run()

    def smaller(rows: list[Row]) -> None:
        if bench.backend.used + len(rows) > 70:
            raise DecodeError("no room", "no_slot")

    bench.backend.before_decode = smaller  # pyright: ignore[reportAttributeAccessIssue]
    ids = [bench.submit(letter * 20) for letter in "ab"]
    bench.run()
    assert [bench.completion(id_).content for id_ in ids] == ["a" * 20, "b" * 20]
    hopeless = bench.submit("c" * 80)
    bench.run()
    assert "80 tokens, but the KV cache has room for 70" in str(bench.error(hopeless)), "it was found out"
    longer = bench.submit("e" * 60)
    bench.run()
    assert bench.completion(longer).finish_reason == "length"


def test_a_parser_that_cannot_be_made_fails_its_request() -> None:
    bench = Bench(echo)
    fine = bench.submit("fine")
    broken = bench.submit("x", parser=lambda: Parser("no such family"))
    bench.run()
    assert "no such family" in str(bench.error(broken))
    assert bench.completion(fine).content == "re: fine"


def test_a_sampler_or_a_draw_that_fails_fails_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(["one"])
    ids = [bench.submit("a"), bench.submit("b")]
    bench.run()
    assert bench.completion(ids[0]).content == "one"
    assert "1 replies and request 2" in str(bench.error(ids[1]))
    assert bench.backend.samplers[1].closed

    def refuse(params: SamplingParams, tokens: list[int]) -> None:
        raise EngineError("no such sampler")

    monkeypatch.setattr(bench.backend, "sampler", refuse)
    third = bench.submit("c")
    bench.run()
    assert "no such sampler" in str(bench.error(third))


def test_logits_that_are_not_numbers_fail_their_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(echo, n_sequences=3)
    sample = bench.backend.sample

    def poisoned(sampler: Sampler, row: int, mask: Mask | None = None, *more: Any) -> int:
        assert isinstance(sampler, ScriptedSampler)
        if bench.backend.decodes > 3 and bench.backend.vocab.text(sampler.tokens[:3]) == "two":
            raise DecodeError("not numbers", "nan")
        return sample(sampler, row, mask, *more)

    monkeypatch.setattr(bench.backend, "sample", poisoned)
    ids = [bench.submit(text) for text in ("one", "two", "six")]
    bench.run()
    error = bench.error(ids[1])
    assert isinstance(error, DecodeError)
    assert error.reason == "nan"
    assert [bench.completion(id_).content for id_ in (ids[0], ids[2])] == ["re: one", "re: six"]
    monkeypatch.undo()
    again = bench.submit("two")
    bench.run()
    assert bench.completion(again).usage
    assert bench.completion(again).content == "re: two"
    assert bench.replies[again][-1].output, "nothing of the failed one was kept"


def test_a_parser_that_fails_at_the_end_is_reported() -> None:
    class Brittle(Parser):
        def close(self, *_: object) -> list[object]:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise RuntimeError("parser broke")

    bench = Bench(echo)
    id_ = bench.submit("a", parser=lambda: Brittle("content-only"))
    bench.run()
    assert "parser broke" in str(bench.error(id_))


def test_forced_tokens_are_evaluated_and_accepted() -> None:
    close = tuple(b"\n</think>\n\n")
    bench = Bench(lambda text: "answer" if "</think>" in text else "<think>\n" + "hm" * 50)
    limits = Limits(reasoning_budget=10, reasoning_close=close)
    id_ = bench.submit("q", limits, parser=lambda: Parser("qwen3"))
    bench.run()
    completion = bench.completion(id_)
    assert completion.content == "answer"
    assert len(completion.reasoning) < 12
    usage = completion.usage
    assert usage is not None
    assert usage.completion_tokens == len("<think>\n" + completion.reasoning) + len(close) + len("answer") + 1


def test_reasoning_left_open_is_closed_before_the_prefill() -> None:
    bench = Bench(lambda text: "answer" if text.endswith("</think>\n\n") else "wrong")
    limits = Limits(reasoning_budget=0, reasoning_close=tuple(b"\n</think>\n\n"))
    id_ = bench.submit("q<think>\n", limits, parser=lambda: Parser("qwen3", "<think>\n"))
    bench.run()
    assert bench.completion(id_).content == "answer"


def test_end_reasoning_while_it_runs() -> None:
    bench = Bench(lambda text: "answer" if "</think>" in text else "<think>\n" + "hm" * 50)
    limits = Limits(reasoning_close=tuple(b"\n</think>\n\n"))
    id_ = bench.submit("q", limits, parser=lambda: Parser("qwen3"))
    bench.step(14)
    bench.loop.end_reasoning(id_)
    bench.loop.end_reasoning(99)
    bench.run()
    completion = bench.completion(id_)
    assert completion.content == "answer"
    assert 0 < len(completion.reasoning) < 12


def test_cancel_all_and_abandon() -> None:
    bench = Bench(echo)
    ids = [bench.submit("one"), bench.submit("two")]
    bench.step(2)
    bench.loop.cancel_all()
    bench.collect()
    assert {bench.completion(id_).finish_reason for id_ in ids} == {"cancelled"}
    third = bench.submit("three")
    bench.step()
    bench.loop.abandon(RuntimeError("gone"))
    bench.collect()
    assert str(bench.error(third)) == "gone"
    assert not bench.loop.busy


def cached(bench: Bench, id_: int) -> int:
    usage = bench.completion(id_).usage
    assert usage is not None
    return usage.cached_tokens


def test_a_memory_that_cannot_be_cut_goes_back_to_where_turns_began() -> None:
    """In one sequence: a prompt again, one whose turn lost its reasoning, one whose last message was edited."""
    bench = Bench(lambda _: "<think>\nhm\n</think>\n\nyes", n_sequences=1, trimmable=False, n_batch=16)
    system, question, start = "system prompt. ", "question? ", "assistant:"
    history = f"{system}{question}"
    turns = (len(system), len(history))
    bench.submit(history + start, turns=turns)
    bench.run()
    again = bench.submit(history + start, turns=turns)
    bench.run()
    assert cached(bench, again) == len(history)
    longer = f"{history}{start}yes. Next? "
    followed = bench.submit(longer + start, turns=(len(history), len(longer)))
    bench.run()
    assert cached(bench, followed) == len(history), "the answer is not there as it was generated"
    edited = bench.submit(f"{system}other question? {start}", turns=(len(system), len(system) + 16))
    bench.run()
    assert cached(bench, edited) == len(system)


def test_a_turn_that_is_continued_can_be_gone_back_to() -> None:
    bench = Bench(lambda text: "an answer", n_sequences=1, trimmable=False, n_batch=16)
    history = "question?assistant:"
    bench.submit(history)
    bench.run()
    held = f"{history}an answer"
    first = bench.submit(f"{held}one more question?")
    bench.run()
    second = bench.submit(f"{held}another question?")
    bench.run()
    assert (cached(bench, first), cached(bench, second)) == (len(held), len(held))


def test_answers_to_one_prompt_share_a_checkpoint() -> None:
    bench = Bench(lambda _: "same", n_sequences=4, trimmable=False, n_batch=64)
    text = "a rather long prompt, which is worth the wait: " * 4
    ids = [bench.submit(text, turns=(len(text) - 1,)) for _ in range(3)]
    bench.run()
    assert [cached(bench, id_) for id_ in ids] == [0, len(text) - 1, len(text) - 1]


def test_guesses_from_the_context_save_decodes_and_change_nothing() -> None:
    text = "the quick brown fox jumps over the lazy dog"
    plain, drafting = (Bench(lambda text: text, n_batch=64, draft_max=most) for most in (0, 8))
    for bench in (plain, drafting):
        id_ = bench.submit(text)
        bench.run()
        assert bench.completion(id_).content == text
    assert drafting.backend.decodes < plain.backend.decodes / 2
    usage = drafting.completion(1).usage
    assert usage is not None
    assert 0 < usage.accepted_tokens <= usage.drafted_tokens
    assert usage.completion_tokens == len(text) + 1
    assert drafting.loop.cache.held(0) == list(f"{text}{text}".encode()), "what was guessed wrongly is cut off"


def test_guesses_stop_at_what_ends_a_turn() -> None:
    text = "abcdef abcdef abcdef abcdef "
    bench = Bench(lambda text: text, draft_max=16)
    limited = bench.submit(text, Limits(max_tokens=9))
    stopped = bench.submit(text, Limits(stop=("f abc",)))
    bench.run()
    assert bench.completion(limited).content == text[:9].rstrip()
    assert bench.completion(stopped).content == "abcde"
    full = Bench(lambda text: text, draft_max=16, n_ctx=40)
    id_ = full.submit(text)
    full.run()
    assert full.completion(id_).finish_reason == "length"
    assert full.completion(id_).content == text[:13]


def test_forced_tokens_end_a_draft() -> None:
    close = tuple(b"\n</think>\n\n")
    bench = Bench(lambda text: "answer" if "</think>" in text else "<think>\n" + "hm" * 50, draft_max=8)
    limits = Limits(reasoning_budget=21, reasoning_close=close)
    id_ = bench.submit("q", limits, parser=lambda: Parser("qwen3"))
    bench.run()
    assert bench.completion(id_).content == "answer"
    assert len(bench.completion(id_).reasoning) == 20


def test_a_memory_that_refuses_to_cut_guesses_off_takes_no_more() -> None:
    bench = Bench(lambda text: text * 2, draft_max=8, trimmable=False, info={"can_share": True})
    text = "abcabxabcaby"
    id_ = bench.submit(text)
    bench.run()
    completion = bench.completion(id_)
    assert completion.content == text * 2
    assert not bench.loop.cache.takes_guesses


def test_guesses_give_way_when_cells_are_few() -> None:
    text = "abcabcabcabc"
    bench = Bench(lambda text: text[:12], draft_max=8, n_ctx=50, kv_tokens=50, n_sequences=2)
    ids = [bench.submit(text), bench.submit(f"{text}!")]
    bench.run()
    assert [bench.completion(id_).content for id_ in ids] == [text, text]


@settings(max_examples=60)
@given(
    n_sequences=st.integers(1, 4),
    n_ctx=st.integers(40, 120),
    pool=st.booleans(),
    reserve=st.sampled_from([0, 8, 512]),
    n_batch=st.integers(1, 20),
    trimmable=st.booleans(),
    draft_max=st.sampled_from([0, 1, 8]),
    script=st.lists(
        st.tuples(st.integers(0, 3), st.text("ab", min_size=1, max_size=18), st.integers(-1, 12)),
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
    trimmable: bool,
    draft_max: int,
    script: list[tuple[int, str, int]],
) -> None:
    """Random arrivals, colliding prefixes, random cancels, too little memory: survivors answer as if alone."""
    bench = Bench(
        echo,
        n_sequences=n_sequences,
        n_ctx=n_ctx,
        kv_tokens=n_ctx if pool else None,
        n_batch=n_batch,
        trimmable=trimmable,
        draft_max=draft_max,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence, "ANSWER", reserve)
        texts = played(bench, script)
    for id_, text in texts.items():
        completion = bench.completion(id_)
        whole = f"re: {text}"
        assert whole.startswith(completion.content)
        if completion.finish_reason != "cancelled":
            assert (completion.content, completion.finish_reason) == (whole, "stop")
    assert all(sampler.closed for sampler in bench.backend.samplers)


def played(bench: Bench, script: list[tuple[int, str, int]]) -> dict[int, str]:
    """Pauses in steps, prompts, and after how many steps each is cancelled (-1: never); the prompt of each request."""
    cancels: dict[int, int] = {}
    texts: dict[int, str] = {}
    step = 0
    for pause, text, cancel_after in script:
        for _ in range(pause):
            bench.step()
            step += 1
        id_ = bench.submit(text, turns=(len(text) // 3, len(text) // 2))
        texts[id_] = text
        if cancel_after >= 0:
            cancels[id_] = step + cancel_after
        for other in [other for other, at in cancels.items() if at <= step]:
            bench.loop.cancel(other)
    bench.run()
    return texts


@pytest.mark.parametrize(("max_tokens", "at_once"), [(64, 5), (None, 3)])
def test_a_pool_admits_as_many_as_will_fit_and_evaluates_nothing_twice(max_tokens: int | None, at_once: int) -> None:
    """Sixteen prompts of 620 tokens over 4,096 cells: five with answers of 64, three where nobody said how long."""
    bench = Bench(lambda text: text[0] * 60, n_ctx=4096, kv_tokens=4096, n_sequences=16)
    texts = [chr(ord("a") + number) * 620 for number in range(16)]
    ids = [bench.submit(text, Limits(max_tokens=max_tokens)) for text in texts]
    most = 0
    while bench.loop.busy:
        bench.step()
        most = max(most, len({id_ for id_ in ids if bench.replies.get(id_)} - {id_ for id_ in ids if over(bench, id_)}))
    assert [bench.completion(id_).content for id_ in ids] == [text[0] * 60 for text in texts]
    assert bench.backend.evaluated == 16 * (620 + 60)
    assert most == at_once


@pytest.mark.parametrize(("length", "preempted"), [(60, 0), (600, 1)])
def test_answers_that_may_be_long_begin_together(monkeypatch: pytest.MonkeyPatch, length: int, preempted: int) -> None:
    """Three answers, of which each may fill the pool: they start at once, and where they outgrow it one waits once."""
    gone = preempted_states(monkeypatch)
    bench = Bench(lambda text: text[0] * length, n_ctx=2000, kv_tokens=2000, n_sequences=3)
    ids = [bench.submit(letter * 100, Limits(max_tokens=1900)) for letter in "abc"]
    bench.step(3)
    assert all(bench.replies.get(id_) for id_ in ids)
    bench.run()
    assert [bench.completion(id_).content for id_ in ids] == [letter * length for letter in "abc"]
    assert (len(gone), {state.request.id for state in gone} - set(ids[-1:])) == (preempted, set())


def over(bench: Bench, id_: int) -> bool:
    return bool(bench.replies.get(id_)) and bench.replies[id_][-1].final


def test_a_prompt_that_leaves_no_room_for_its_answer_runs_alone() -> None:
    bench = Bench(echo, n_ctx=100, kv_tokens=100, n_sequences=4)
    ids = [bench.submit(letter * 40, Limits(max_tokens=90)) for letter in "ab"]
    bench.step(3)
    assert list(bench.replies) == ids[:1]
    bench.run()
    assert [bench.completion(id_).content for id_ in ids] == [f"re: {letter * 40}" for letter in "ab"]
