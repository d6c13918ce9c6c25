"""engine.runtime.loop.generation: tokens in, events out; with the real parser and the byte vocabulary."""

import itertools
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.formats.parsing import Parser
from engine.runtime.loop.generation import Generation, Limits, TokenTable
from engine.runtime.loop.stops import ContentStops
from engine.testing.scripted import ByteVocab
from engine.types.completion import Completion
from engine.types.events import ContentDelta, Event, Finished, ReasoningDelta, ToolCallStart, fold
from engine.types.prompt import Piece
from engine.types.sampling import FinishReason, SamplingParams

VOCAB = ByteVocab(["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"])
TOKENS = TokenTable(VOCAB)
END = VOCAB.end


def run(generation: Generation, tokens: list[int], reason: FinishReason = "cancelled") -> Completion:
    """Feed tokens until something ends the turn (else it is closed with `reason`)."""
    events: list[Event] = []
    for token in tokens:
        new, _, finish, _ = generation.advance(token)
        events += new
        if finish is not None:
            reason = finish
            break
    events += generation.close(reason)
    assert isinstance(events[-1], Finished)
    return fold(events)


def text(text: str) -> list[int]:
    return VOCAB.tokenize(text, special=True)


def plain(limits: Limits | None = None) -> Generation:
    return Generation(TOKENS, Parser("content-only"), limits or Limits())


def test_an_end_token_stops_and_leaves_no_text() -> None:
    generation = plain()
    completion = run(generation, [*text("hello"), END, *text("no more")])
    assert completion.content == "hello"
    assert completion.finish_reason == "stop"
    assert generation.tokens == 6


def test_a_family_has_ends_of_its_own() -> None:
    generation = plain(Limits(ends=frozenset({VOCAB.token("<|end|>")})))
    assert run(generation, text("a<|end|>b")).content == "a"


def test_ignore_eos_goes_on_without_a_trace() -> None:
    generation = plain(Limits(ignore_eos=True, max_tokens=4))
    completion = run(generation, [*text("a"), END, *text("b"), END, END])
    assert (completion.content, completion.finish_reason, generation.tokens) == ("ab", "length", 4)


def test_max_tokens() -> None:
    completion = run(plain(Limits(max_tokens=3)), text("hello"))
    assert (completion.content, completion.finish_reason) == ("hel", "length")


def test_the_end_token_wins_over_max_tokens() -> None:
    assert run(plain(Limits(max_tokens=3)), [*text("he"), END]).finish_reason == "stop"


@pytest.mark.parametrize("spelling", ["é", "漢字", "🎈 ok", "e\u0301"])
def test_a_character_split_over_tokens(spelling: str) -> None:
    generation = plain()
    events: list[Event] = []
    for token in spelling.encode():
        events += generation.advance(token).events
        assert all(isinstance(event, ContentDelta) and "\ufffd" not in event.text for event in events)
    events += generation.close("stop")
    assert fold(events).content == spelling


def test_bytes_that_are_no_character_are_replaced_where_they_end() -> None:
    assert run(plain(), [0xC3, *text("a"), 0xE6, 0xBC, END]).content == "\ufffda\ufffd"
    channels = Generation(TOKENS, Parser("gpt-oss", control_tokens=VOCAB.control_tokens), Limits())
    completion = run(channels, [*text("<|channel|>analysis<|message|>ab"), 0xC3, *text("<|end|>")])
    assert completion.reasoning == "ab\ufffd"


def test_control_tokens_reach_the_parser_as_such_and_their_spelling_does_not() -> None:
    spelt = list(b"<|end|>")
    generation = Generation(TOKENS, Parser("gpt-oss", control_tokens=VOCAB.control_tokens), Limits())
    completion = run(generation, [*text("<|channel|>final<|message|>a"), *spelt, *text("b<|end|>")])
    assert completion.content == "a<|end|>b"


@pytest.mark.parametrize("fed", [True, False])
def test_an_end_token_that_is_a_marker_is_parsed(fed: bool) -> None:
    call = VOCAB.token("<|call|>")
    limits = Limits(ends=frozenset({call}), markers=frozenset({call} if fed else ()))
    generation = Generation(TOKENS, Parser("gpt-oss", control_tokens=VOCAB.control_tokens), limits)
    events: list[Event] = []
    finish = None
    tokens = text('<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>')
    for token in tokens:
        new, _, finish, _ = generation.advance(token)
        events += new
    assert finish == "stop"
    assert [event for event in events if isinstance(event, ToolCallStart)]
    before = len(events)
    events += generation.close("stop")
    assert fold(events).tool_calls[0].arguments == '{"a": 1}'
    assert fold(events).finish_reason == "tool_calls"
    # The marker settles the call when it is read, not only when the turn is closed.
    assert fold(events[:before]).tool_calls[0].error == (None if fed else "truncated")


def test_reasoning_tokens_are_counted() -> None:
    generation = Generation(TOKENS, Parser("qwen3"), Limits())
    completion = run(generation, [*text("<think>\nabc\n</think>\n\nok"), END])
    assert (completion.reasoning, completion.content) == ("abc", "ok")
    assert len("abc") <= generation.reasoning_tokens <= len("\nabc\n</think>\n\n")
    open_by_prompt = Generation(TOKENS, Parser("qwen3", [Piece("<think>\n")]), Limits())
    run(open_by_prompt, text("abc"))
    assert open_by_prompt.reasoning_tokens == 3


@pytest.mark.parametrize(
    ("output", "stop", "content"),
    [
        ("one two three", ("two",), "one "),
        ("one two three", ("three", "two"), "one "),
        ("aab", ("ab",), "a"),
        ("aaab!", ("aab",), "a"),
        ("abcabd", ("abd",), "abc"),
        ("stop", ("stop",), ""),
        ("almost sto", ("stop",), "almost sto"),
        ("nothing", ("xyz", ""), "nothing"),
        ("é|ü", ("|ü",), "é"),
    ],
)
def test_stop_strings(output: str, stop: tuple[str, ...], content: str) -> None:
    completion = run(plain(Limits(stop=stop)), [*text(output), END])
    assert (completion.content, completion.finish_reason) == (content, "stop")


def test_a_stop_string_matches_content_only() -> None:
    generation = Generation(TOKENS, Parser("qwen3"), Limits(stop=("x",)))
    completion = run(generation, [*text("<think>\nx\n</think>\n\nax"), END])
    assert (completion.reasoning, completion.content) == ("x", "a")


def test_a_stop_string_after_a_call() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
    generation = Generation(TOKENS, Parser("qwen3"), Limits(stop=("END",)))
    completion = run(generation, text(call + "and END" + call))
    assert len(completion.tool_calls) == 1
    assert completion.finish_reason == "tool_calls"
    assert completion.content.strip() == "and"


def test_a_stop_string_found_when_the_parser_lets_go() -> None:
    class Holding:
        in_reasoning = undecided = False
        answer_start = 0
        call_start = None

        def size(self, text: str, special: bool = False) -> int:
            return len(text)

        def feed(self, text: str, special: bool = False) -> list[Event]:
            return []

        def close(self, finish_reason: FinishReason = "stop") -> list[Event]:
            return [ContentDelta("held STOP more"), Finished(finish_reason)]

    completion = run(Generation(TOKENS, Holding(), Limits(stop=("STOP",))), text("abc"), "length")
    assert (completion.content, completion.finish_reason) == ("held ", "stop")


def test_what_is_held_back_is_shorter_than_the_stop_and_comes_out() -> None:
    stops = ContentStops(["stop"])
    assert stops.filter([ContentDelta("a s"), ContentDelta("to")]) == [ContentDelta("a ")]
    assert stops.filter([ReasoningDelta("r", part=1)]) == [ContentDelta("sto"), ReasoningDelta("r", part=1)]
    assert stops.filter([ContentDelta("st", part=2), ContentDelta("op", part=3)]) == [
        ContentDelta("st", part=2),
        ContentDelta("op", part=3),
    ]
    assert stops.flush() == []


def test_nothing_comes_after_a_stop() -> None:
    stops = ContentStops(["|"])
    assert stops.filter([ContentDelta("a|b"), ToolCallStart(0, "i", "f")]) == [ContentDelta("a")]
    assert stops.hit
    assert stops.calls == 0
    assert stops.filter([ContentDelta("c")]) == []


@given(data=st.text("ab|", max_size=20), stops=st.lists(st.text("ab|", min_size=1, max_size=4), max_size=3))
def test_stop_strings_as_on_the_whole_text(data: str, stops: list[str]) -> None:
    completion = run(plain(Limits(stop=tuple(stops))), text(data), "length")
    found = [at for stop in stops if (at := data.find(stop)) >= 0]
    # Fed one character at a time the stop that is complete first ends the turn; it is cut where the earliest begins.
    ends = [data.find(stop) + len(stop) for stop in stops if stop in data]
    expected = data
    if found:
        seen = data[: min(ends)]
        expected = data[: min(at for stop in stops if (at := seen.find(stop)) >= 0)]
    assert completion.content == expected
    assert completion.finish_reason == ("stop" if found else "length")


CLOSE = tuple(b"\n</think>\n\n")


def budgeted(budget: int | None, prefix: str = "") -> Generation:
    limits = Limits(reasoning_budget=budget, reasoning_close=CLOSE)
    return Generation(TOKENS, Parser("qwen3", [Piece(prefix)]), limits)


def test_the_reasoning_budget_forces_the_close() -> None:
    generation = budgeted(3, "<think>\n")
    events: list[Event] = []
    advances = [generation.advance(token) for token in b"abc"]
    assert [advance.forced for advance in advances] == [(), (), CLOSE]
    assert generation.tokens == 3 + len(CLOSE)
    for advance in advances:
        events += advance.events
    for token in b"answer":
        advance = generation.advance(token)
        assert advance.forced == ()
        events += advance.events
    completion = fold([*events, *generation.close("stop")])
    assert (completion.reasoning, completion.content) == ("abc", "answer")


def test_a_budget_of_nothing_closes_before_the_first_draw() -> None:
    generation = budgeted(0, "<think>\n")
    assert generation.start().forced == CLOSE
    assert run(generation, [*b"answer", END]).content == "answer"
    assert budgeted(5, "<think>\n").start().forced == ()
    assert budgeted(0).start().forced == (), "reasoning is not open"


def test_a_budget_waits_for_the_character() -> None:
    generation = budgeted(1, "<think>\n")
    assert generation.advance(0xC3).forced == ()
    assert generation.advance(0xA9).forced == CLOSE


def test_end_reasoning() -> None:
    generation = budgeted(None, "<think>\n")
    assert generation.advance(ord("a")).forced == ()
    generation.end_reasoning()
    assert generation.advance(ord("b")).forced == CLOSE
    assert generation.advance(ord("c")).forced == ()
    without = Generation(TOKENS, Parser("qwen3", [Piece("<think>\n")]), Limits())
    without.end_reasoning()
    assert without.advance(ord("b")).forced == ()


def test_stop_tokens() -> None:
    token = VOCAB.token("<|channel|>")
    for limits in (Limits(stop_tokens=frozenset({token})), Limits(stop_tokens=frozenset({token}), ignore_eos=True)):
        generation = plain(limits)
        completion = run(generation, [*text("ab<|channel|>c"), END])
        assert (completion.content, completion.finish_reason, generation.tokens) == ("ab", "stop", 3)
    assert run(plain(Limits(stop_tokens=frozenset({ord("c")}))), text("abcd")).content == "ab"


def filtered(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    search = ContentStops(stops)
    events = [*search.filter(ContentDelta(piece) for piece in pieces), *search.flush()]
    return "".join(event.text for event in events if isinstance(event, ContentDelta)), search.hit


@given(
    data=st.text("ab|", max_size=30),
    stops=st.lists(st.text("ab|", min_size=1, max_size=6), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
def test_any_split_of_the_output_stops_at_the_same_place(data: str, stops: list[str], cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    whole = filtered(stops, [data])
    assert filtered(stops, pieces) == filtered(stops, list(data)) == whole
    assert whole[1] == any(stop in data for stop in stops)


def follow(size: int) -> None:
    """An output that nearly is a stop string of so many characters, in pieces of four."""
    stops = ContentStops(["ab" * (size // 2 - 1) + "!"])
    out = [event for _ in range(size // 4) for event in stops.filter([ContentDelta("abab")])]
    text = "".join(event.text for event in [*out, *stops.flush()] if isinstance(event, ContentDelta))
    assert text == "abab" * (size // 4)


def peak(size: int) -> int:
    tracemalloc.start()
    follow(size)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def seconds(size: int) -> float:
    began = time.process_time()
    follow(size)
    return time.process_time() - began


def test_a_long_stop_string_costs_memory_and_time_by_its_length() -> None:
    """17 GB for a megabyte, where every prefix was kept."""
    assert peak(1 << 15) < 2.5 * peak(1 << 14) < 2.5 * (1 << 14) * 300
    long, short = (min(seconds(1 << bits) for _ in range(3)) for bits in (16, 14))
    assert long < 12 * short


def test_stop_strings_have_a_limit_with_a_name() -> None:
    for stop in (["x" * 100_001], ["x"] * 101):
        with pytest.raises(ValidationError, match="at most 100"):
            SamplingParams(stop=tuple(stop))
    follow(100_000)
