"""A turn that writes one text again and again ends by itself: `repetition_limit`."""

import asyncio
import itertools
import logging
from typing import Any

import pytest
from fakes.doubles import Bench, preempted_states
from fakes.scripts import scripted
from hypothesis import example, given
from hypothesis import strategies as st

from engine import JsonSchema, Regex
from engine.runtime.loop import sequence
from engine.runtime.loop.generation import Limits
from engine.runtime.loop.repetition import LOOK_EVERY, Repetition
from engine.types.completion import Completion
from engine.types.events import ContentDelta

LOOP = "the city, " * 300
UNITS = st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1, max_size=110)
PARTS = st.lists(st.tuples(UNITS, st.integers(1, 40)), max_size=4)


def first_end(tokens: list[int], limit: int) -> int | None:
    """The rule, word for word: after how many tokens one of at most `limit` tokens stands there four times."""
    for end in range(LOOK_EVERY, len(tokens) + 1, LOOK_EVERY):
        for unit in range(1, limit + 1):
            size = max(limit, 4 * unit)
            last = tokens[max(0, end - size) : end]
            if len(last) == size and all(new == old for new, old in zip(last[unit:], last[:-unit], strict=True)):
                return end
    return None


@given(PARTS, st.sampled_from([64, 65, 100]))
@example([([2], 7), ([1] * 99 + [3], 6)], 100)
@example([([1, 2, 1, 1], 16), ([3], 1), ([1, 2, 1, 1], 40)], 65)
def test_a_turn_runs_away_where_the_rule_says_so(parts: Any, limit: int) -> None:
    tokens = [token for unit, times in parts for token in unit * times][:900]
    repetition, found = Repetition(limit), None
    for number, token in enumerate(tokens, 1):
        repetition.append(token)
        if found is None and number % LOOK_EVERY == 0 and repetition.is_runaway():
            found = number
    assert found == first_end(tokens, limit)


@given(st.text("ab", max_size=90), st.text("abc", min_size=1, max_size=40), st.integers(1, 60), st.booleans())
def test_up_to_its_end_nothing_differs(before: str, unit: str, times: int, drafting: bool) -> None:
    text = before + unit * times + "."
    end = first_end(list(text.encode()), 64)

    def guess(seen: str) -> str:
        return text[len(seen) - 1 :]

    bench = Bench(lambda _: text, draft_max=4 if drafting else 0, draft=guess if drafting else None)
    id_ = bench.submit("?", Limits(repetition=64))
    bench.run()
    answer = bench.completion(id_)
    assert answer.content == text[:end]
    assert (answer.finish_reason, answer.usage.limit) == (("stop", None) if end is None else ("length", "repetition"))


def test_one_that_was_preempted_ends_at_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "ANSWER", 0)  # admission would have them wait
    gone = preempted_states(monkeypatch)
    bench = Bench(lambda text: text[0] * 300, n_ctx=200, kv_tokens=200, n_sequences=3)
    ids = [bench.submit(letter * 8, Limits(repetition=80)) for letter in "abc"]
    bench.run()
    assert gone
    assert [bench.completion(id_).content for id_ in ids] == [letter * 128 for letter in "abc"]


def told(answer: Completion) -> tuple[str, str, str | None]:
    return answer.content, answer.finish_reason, answer.usage.limit


def every_door(llm: Any, **options: Any) -> list[Completion]:
    async def awaited() -> Completion:
        return await llm.achat("Go.", **options)

    with llm.stream("Go.", **options) as stream:
        pieces = "".join(event.text for event in stream if isinstance(event, ContentDelta))
    assert pieces == stream.completion.content
    rows: list[Completion] = llm.generate(["Go.", "Go on."], **options)
    return [
        llm.chat("Go.", **options),
        asyncio.run(awaited()),
        stream.completion,
        *rows,
        llm.complete("x", **options),
    ]


def test_every_way_of_asking_ends_alike_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with scripted(lambda _: LOOP) as llm, caplog.at_level(logging.WARNING):
        assert {told(each) for each in every_door(llm)} == {(LOOP[:2048], "length", "repetition")}
        assert told(llm.chat("Go.", repetition_limit=100)) == (LOOP[:128], "length", "repetition")
        page: Any = llm.chat("Go.", min_tokens=2200)
        assert told(page) == (LOOP[:2240], "length", "repetition")
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Go."}]}
        client: Any = llm.openai_client()
        chat = client.chat.completions.create(**asked).choices[0]
        off = client.chat.completions.create(**asked, extra_body={"repetition_limit": 0}).choices[0]
        response = client.responses.create(model="m", input="Go.")
    assert "at 2,240 tokens: its end is one text again and again" in page._repr_html_()
    assert "because the last 2048 were one text again and again" in caplog.text
    assert (chat.message.content, chat.finish_reason) == (LOOP[:2048], "length")
    assert (off.message.content, off.finish_reason) == (LOOP, "stop")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text == LOOP[:2048]


@pytest.mark.parametrize("options", [{"repetition_limit": 0}, {"ignore_eos": True, "max_tokens": len(LOOP)}])
def test_it_can_be_left_out(options: Any) -> None:
    with scripted(lambda _: LOOP) as llm:
        answers: list[Completion] = [llm.chat("Go.", **options), llm.complete("x", **options)]
        assert [each.content for each in answers] == [LOOP, LOOP]


def test_what_stands_in_the_prompt_does_not_count() -> None:
    begun = [{"role": "user", "content": LOOP}, {"role": "assistant", "content": LOOP[:500]}]
    with scripted([LOOP[:400], LOOP[:400]], n_ctx=8192) as llm:
        goes_on = llm.chat(begun, continue_final_message=True)
        assert told(goes_on) == (LOOP[:400], "stop", None)
        assert told(llm.complete(LOOP)) == (LOOP[:400], "stop", None)


def test_what_a_grammar_demands_may_repeat_itself() -> None:
    zeros = JsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 500, "maxItems": 500})
    with scripted(lambda _: f"[{'0,' * 499}0]") as llm:
        assert llm.chat("Go.", response_format=zeros).parsed == [0] * 500
    with scripted(lambda _: "ab" * 400) as llm:
        assert llm.chat("Go.", response_format=Regex("(ab){400}")).content == "ab" * 400


def test_calls_that_no_grammar_holds_end_too() -> None:
    call = '<tool_call>\n{"name": "pay", "arguments": {"to": "' + LOOP
    tool = {"name": "pay", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}}
    with scripted([call]) as llm:
        answer = llm.chat("Go.", tools=[tool])
    assert (answer.finish_reason, answer.usage.limit) == ("length", "repetition")
    assert [each.error for each in answer.tool_calls] == ["truncated"]


def test_reasoning_ends_the_turn_unless_an_answer_is_held_to_a_form() -> None:
    thought = "<think>\n" + "Wait. " * 500
    with scripted(lambda _: thought, rewrite=True) as llm:
        free = llm.chat("Go.")
        held = llm.chat("Go.", response_format=Regex("yes|no"), seed=1)
    assert (free.finish_reason, free.usage.limit, free.content) == ("length", "repetition", "")
    assert len(free.reasoning) < 2200
    assert (held.finish_reason, held.usage.limit, held.parsed in ("yes", "no")) == ("stop", None, True)
    assert len(held.reasoning) < 2200


ROWS = {
    "zeros of 16 to a row": "\n".join(["0, " * 16] * 8),
    "a table with equal cells": "\n".join(f"| {row} | yes | 0 | 0 |" for row in range(200)),
    "a rule of 500 dashes": "-" * 500,
    "a refrain": "\n".join(f"{verse} bottles on the wall, take one down.\n" + "La la la. " * 20 for verse in range(30)),
    "a counted list": "\n".join(f"{number}. the same" for number in range(300)),
    "binary numbers": " ".join("".join(bits) for bits in itertools.product("01", repeat=10)),
    "a text three times": ("".join(map(str, range(150))) + "\n") * 3,
}


@pytest.mark.parametrize("text", ROWS.values(), ids=list(ROWS))
def test_good_answers_that_repeat_themselves_are_left_alone(text: str) -> None:
    with scripted([text], n_ctx=20_000) as llm:
        assert told(llm.chat("Go.")) == (text, "stop", None)
