"""A conversation that does not fit: what goes and what never does, and what a full context does."""

from collections.abc import Sequence
from typing import Any

import pytest
from fakes.long_talks import CHAT, TURNS, message, question, scripted, transcript
from hypothesis import given
from hypothesis import strategies as st

from engine import ContextOverflowError, RequestError, as_tool
from engine.turns.overflow import kept, shortened
from engine.types.messages import Message

SYSTEM, USER, ANSWER = message("system", "s"), message("user", "u"), message("assistant", "a")
CALL, RESULT = message("assistant", "", "1"), message("tool", "r", answers="1")


def order(messages: Sequence[Message], limit: int, step: int = 1) -> str:
    """Which of the messages are kept, by number, when each counts one."""
    return "".join(map(str, kept(messages, len, limit, step)))


@pytest.mark.parametrize(
    ("messages", "states"),
    [
        ([USER], ["0"]),
        ([SYSTEM, USER, ANSWER, USER], ["0123", "03"]),
        ([SYSTEM, USER, ANSWER, SYSTEM, USER, ANSWER, USER], ["0123456", "03456", "036"]),
        ([ANSWER, USER, ANSWER, USER], ["0123", "123", "3"]),
        ([USER, USER, ANSWER, USER], ["0123", "123", "3"]),
        # A turn with its calls and results goes whole.
        ([USER, CALL, RESULT, ANSWER, USER], ["01234", "4"]),
        # In the turn under way an exchange goes whole; the newest stays.
        ([USER, CALL, RESULT, CALL, RESULT, CALL, RESULT], ["0123456", "03456", "056"]),
        ([USER, ANSWER, USER, CALL, RESULT, CALL, RESULT], ["0123456", "23456", "256"]),
        ([SYSTEM, USER, CALL, RESULT], ["0123"]),
        # A result that comes after the next question holds its call, and all between.
        ([USER, ANSWER, USER, CALL, USER, RESULT], ["012345", "2345"]),
    ],
)
def test_what_goes_and_in_what_order(messages: list[Message], states: list[str]) -> None:
    found = [order(messages, limit) for limit in range(len(messages), -1, -1)]
    assert list(dict.fromkeys(found)) == states


def test_what_goes_is_rounded_up_where_there_is_as_much() -> None:
    messages = [message(role) for _ in range(9) for role in ("user", "assistant")] + [USER]
    lengths = range(len(messages) - 12, len(messages) + 1, 2)
    starts = [kept(messages[:length], len, 8, 6)[0] for length in lengths]
    assert starts == [0, 6, 6, 6, 12, 12, 12], "the beginning stays for some turns"
    assert order(messages[:5], 3, 100) == "234", "no more goes than must, where there is not as much as a step"


def test_counting_is_not_done_for_every_turn() -> None:
    counted: list[int] = []

    def count(numbers: Sequence[int]) -> int:
        counted.append(len(numbers))
        return len(numbers)

    kept([USER, ANSWER] * 500 + [USER], count, 100, 10)
    assert len(counted) < 30


def test_an_error_has_the_numbers() -> None:
    with scripted([], n_ctx=600) as llm:
        tokens = len(llm.render(CHAT).text.encode())
        with pytest.raises(ContextOverflowError, match=r"prompt has [\d,]+ tokens, .* n_ctx=600"):
            llm.chat(CHAT)
        assert tokens > 600
        with pytest.raises(
            RequestError,
            match="overflow='drop' is not valid: it should be 'error', 'truncate_oldest', 'shorten_results' or",
        ):
            llm.chat(CHAT, overflow="drop")  # pyright: ignore[reportArgumentType]


def test_old_turns_are_left_out() -> None:
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return question(prompt)

    with scripted(reply, n_ctx=600) as llm:
        completion = llm.chat(CHAT, overflow="truncate_oldest", reasoning=False)
        short = llm.chat(CHAT[-3:], overflow="truncate_oldest", reasoning=False)
    assert completion.content == "the last"
    assert completion.usage
    assert completion.usage.prompt_tokens <= 450, "a quarter is left for the answer"
    gone = completion.usage.dropped_messages
    assert gone > 0
    assert gone % 2 == 0
    assert prompts[0].startswith(
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n" + f"question {gone // 2:02}"
    )
    assert prompts[0].count("question") == 20 - gone // 2
    assert short.usage
    assert short.usage.dropped_messages == 0


def test_room_is_left_for_the_answer_that_was_asked_for() -> None:
    with scripted(lambda _: "x" * 1000, n_ctx=800) as llm:
        for asked, length in ((250, 250), (5000, 400)):
            usage = llm.chat(CHAT, overflow="truncate_oldest", reasoning=False, max_tokens=asked).usage
            assert usage is not None
            assert usage.completion_tokens >= length


@pytest.mark.parametrize("policy", ["truncate_oldest", "shorten_results"])
def test_no_limit_leaves_the_same_room_however_it_is_written(policy: Any) -> None:
    """-1 is no limit in llama.cpp, ollama and vLLM."""
    ways: list[Any] = [{}, {"max_tokens": None}, {"max_tokens": -1}]
    with scripted(lambda _: "x" * 1000, n_ctx=800) as llm:
        prompts = {llm.render(CHAT, overflow=policy, **way).text for way in ways}
        answers = [llm.chat(CHAT, overflow=policy, reasoning=False, **way) for way in ways]
    assert len(prompts) == 1
    assert {len(answer.content) >= 200 for answer in answers} == {True}
    assert len({answer.usage.dropped_messages if answer.usage else None for answer in answers}) == 1


def test_no_more_room_is_left_than_was_asked_for() -> None:
    dropped: list[int] = []
    with scripted(lambda _: "x" * 1000, n_ctx=800) as llm:
        for asked in (50, 250):
            usage = llm.chat(CHAT, overflow="truncate_oldest", reasoning=False, max_tokens=asked).usage
            assert usage is not None
            dropped.append(usage.dropped_messages)
    assert dropped[0] < dropped[1]


def test_what_cannot_be_left_out_is_an_error() -> None:
    with scripted([], n_ctx=600) as llm, pytest.raises(ContextOverflowError, match="n_ctx=600"):
        llm.chat([*CHAT, {"role": "user", "content": "x" * 700}], overflow="truncate_oldest")


def test_the_beginning_stays_so_that_the_prefix_cache_serves() -> None:
    cached: list[bool] = []
    with scripted(lambda _: "fine", n_ctx=600, n_sequences=1) as llm:
        for turns in range(21, len(CHAT) + 1, 2):
            usage = llm.chat([*CHAT[:turns], *CHAT[-1:]], overflow="truncate_oldest", reasoning=False).usage
            assert usage is not None
            cached.append(usage.cached_tokens > usage.prompt_tokens / 2)
    assert cached.count(True) > len(cached) / 2


CALL_TEXT = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


def look() -> str:
    """Looks."""
    return "It is long. " * 12


def test_a_run_that_outgrows_the_context_ends_with_what_it_has() -> None:
    with scripted(lambda _: CALL_TEXT, n_ctx=1200) as llm:
        run = llm.run("Look.", tools=[look], reasoning=False, max_steps=20)
        assert run.stopped == "overflow"
        assert 1 < len(run.steps) < 20
        assert run.messages[-1].role == "tool"
        with pytest.raises(ContextOverflowError):
            llm.run("Look." * 300, tools=[look])


def test_a_run_goes_on_when_old_exchanges_may_go() -> None:
    with scripted(lambda _: CALL_TEXT, n_ctx=1200) as llm:
        run = llm.run(
            "Look.", tools=[as_tool(look, repeats=True)], reasoning=False, max_steps=20, overflow="truncate_oldest"
        )
    assert (run.stopped, len(run.steps)) == ("max_steps", 20)
    assert len(run.messages) == 41, "the run itself keeps all of it"
    usage = run.completion.usage
    assert usage is not None
    assert usage.dropped_messages > 0


def test_old_results_are_shortened_before_anything_is_left_out() -> None:
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return CALL_TEXT

    def read() -> str:
        """Reads."""
        return f"It begins: {'x' * 900}"

    with scripted(lambda prompt: reply(prompt).replace("look", "read"), n_ctx=4000) as llm:
        options: Any = {"reasoning": False, "max_steps": 12, "overflow": "shorten_results"}
        run = llm.run("Look.", tools=[as_tool(read, repeats=True)], **options)
    assert (run.stopped, len(run.steps)) == ("max_steps", 12)
    assert all(len(result.content) == 911 for step in run.steps for result in step.results), "the run keeps all"
    usages = [usage for step in run.steps if (usage := step.completion.usage)]
    assert all(usage.prompt_tokens <= 3000 for usage in usages), "a quarter is left for the answer"
    cut = [usage.shortened_results for usage in usages]
    dropped = [usage.dropped_messages for usage in usages]
    assert cut[0] == dropped[0] == 0
    first = next(number for number, count in enumerate(cut) if count)
    assert dropped[first] == 0, "results are shortened first"
    assert dropped[-1] > 0, "and where that is not enough, exchanges go"
    for prompt, count in zip(prompts, cut, strict=True):
        assert prompt.count("(Cut to save room: these are the first 200 of 911 characters.)") == count
    assert all(prompt.rstrip().rsplit("It begins: ", 1)[1].count("x") == 900 for prompt in prompts[1:]), "unread: whole"


@given(TURNS, st.integers(0, 12_000), st.integers(1, 4000), st.booleans(), st.booleans())
def test_any_transcript_under_any_limit_keeps_calls_and_results_together(
    turns: Any, limit: int, step: int, system: bool, shorten: bool
) -> None:
    messages = transcript(turns, system=system)

    def count(some: Sequence[Message]) -> int:
        return sum(len(each.content or "") + 10 for each in some)

    sent = shortened(messages, count, limit, step) if shorten else tuple(messages)
    numbers = kept(sent, lambda some: count([sent[number] for number in some]), limit, step)
    left = [sent[number] for number in numbers]
    made = [call.id for each in left for call in each.tool_calls]
    assert made == [each.tool_call_id for each in left if each.role == "tool"], "calls and results stay together"
    everywhere = [each for each in messages if each.role == "system"]
    assert [each for each in left if each.role == "system"] == everywhere, "system messages stay as they are"
    question = max(number for number, each in enumerate(messages) if each.role == "user")
    assert question in numbers
    asks = max((number for number, each in enumerate(messages) if each.role == "assistant"), default=-1)
    if asks > question:  # what the model has not read yet is whole
        assert [sent[number] for number in range(asks, len(sent))] == messages[asks:]
        assert set(range(asks, len(sent))) <= set(numbers)
    for before, after in zip(messages, sent, strict=True):
        changed = before.model_copy(update={"content": ""}) != after.model_copy(update={"content": ""})
        assert not changed
        assert after.content == before.content or (before.role == "tool" and len(after.content or "") < 300)
    if count(messages) <= limit:
        assert left == messages
    elif count(left) > limit:  # then nothing more may go: the prompt is refused with the numbers
        assert all(
            each.role in ("system", "developer") or number >= question
            for number, each in zip(numbers, left, strict=True)
        )
        assert not shorten or not any(
            len(each.content or "") > 400 for each in left if each.role == "tool" and sent.index(each) < asks
        )
