"""Whole turns under constraints, by a model that knows nothing: what they are held to is what comes out, whatever
becomes of reasoning. The full matrix is benchmarks/constraints.py."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from cases.constrained import (
    MAX_TOKENS,
    STATES,
    WISHES,
    State,
    Turn,
    Wish,
    callable_families,
    engine_of,
    options_of,
    reasons,
    wrong,
)
from cases.parsing_cases import find

from engine import ChatTemplate, Completion, Engine
from engine.formats.families import builtin_families
from engine.support.errors import RequestError
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.answer_formats import Choice, Regex
from engine.types.tools import AllowedTools, ToolName

PING: dict[str, Any] = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}},
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
FAMILIES = (
    "qwen3",
    "gpt-oss",
    "llama-3",
    "mistral-nemo",
    "deepseek-r1",
    "qwen3-coder",
    "kimi-k2",
    "glm-4.5",
    "minimax-m2",
    "granite-4",
    "command-a",
    "lfm2",
    "muse-glimmer",
)


WISHES_OF_ANSWERS: tuple[Wish, ...] = tuple(wish for wish in WISHES if wish != "strict")


def one_call(family: str) -> str:
    """A call of `get_weather` in Paris, as the family writes it."""
    case = find(family, "one call")
    return case.output.lstrip()


def test_the_families_are_there() -> None:
    assert set(FAMILIES) <= set(callable_families())


def answered(llm: Engine, turn: Turn, **others: Any) -> Completion | None:
    """None where the family's reasoning cannot be switched so."""
    options = {**options_of(turn), **others}
    try:
        return llm.chat("Hi", **options)
    except RequestError as error:
        if not {"reasoning", "reasoning_budget"} & options.keys() or "reasoning" not in str(error):
            raise
        return None


@pytest.mark.parametrize("state", STATES)
def test_what_is_wished_comes_out(state: State) -> None:
    counts: Counter[str] = Counter()
    found: list[str] = []
    few = state in ("budget", "never")  # families that can be in that state
    # All of them in benchmarks. Without a wish for the answer, long reasoning goes on in the content.
    for number, family in enumerate(FAMILIES if few else FAMILIES[STATES.index(state) % 2 :: 2]):
        for wish in WISHES if not few else WISHES_OF_ANSWERS[number % 2 :: 2]:
            turn = Turn(family, state, wish)
            with engine_of(turn) as llm:
                completion = answered(llm, turn)
            if completion is None:
                counts["no such state"] += 1
                continue
            if completion.finish_reason == "length":
                assert completion.usage
                assert completion.usage.completion_tokens >= MAX_TOKENS
                counts["length"] += 1
                continue
            counts["whole"] += 1
            found += [said] if (said := wrong(turn, completion)) else []
            if reasons(turn) and not completion.reasoning:
                found.append(f"{turn}: no reasoning")
    assert not found, "\n".join(found)
    assert counts["whole"] >= 10, counts
    assert counts["length"] <= len(FAMILIES), counts


SPACED = (Choice([" a", "b\n", "\n", "  ", "c d", "\n\ne"]), Regex(r"\n\n\n"), Regex(r"[ \n]{1,3}x?[ \n]{1,3}"))


@pytest.mark.parametrize("state", ["default", "on", "off", "empty"])
def test_white_space_of_a_text_to_choose_is_the_answer_s(state: State) -> None:
    found: list[str] = []
    whole = 0
    for number, family in enumerate(FAMILIES):
        turn = Turn(family, state, "schema")
        wanted = SPACED[number % len(SPACED)]
        with engine_of(turn) as llm:
            completion = answered(llm, turn, response_format=wanted)
        if completion is None:
            continue
        whole += completion.finish_reason == "stop"
        if completion.parsed is None or completion.content != completion.parsed:
            found.append(
                f"{family}: {completion.model_dump(include={'content', 'reasoning', 'parse_error', 'parsed'})}"
            )
    assert not found, "\n".join(found)
    assert whole >= 10


@pytest.mark.parametrize("family", ["glm-4.5", "minimax-m2", "qwen3-coder", "kimi-k2"])
def test_odd_names_are_read_as_they_stand(family: str) -> None:
    """Quotes at the ends of a parameter's name, and names that Python could not have."""
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    names = ["with space", 'with "quotes"', "'both'", "größe"]
    parameters = {"type": "object", "properties": dict.fromkeys(names, digit), "required": names}
    turn = Turn(family, "off", "named", parameters)
    with engine_of(turn) as llm:
        completion = answered(llm, Turn(family, "default", "named", parameters))
    assert completion is not None
    assert completion.tool_calls
    assert {call.error for call in completion.tool_calls} == {None}


ENDED_BY_CALLS = [
    family
    for family in callable_families()
    if (reasoning := builtin_families().get(family).format.reasoning) and reasoning.ends_on_call
]
DRAFTS: dict[str, Callable[[str], str]] = {
    "whole": lambda call: call,
    "begun": lambda call: call[: call.index("Paris")],
    "unnamed": lambda call: call[: call.index("get_weather")] + "{ or [ or so,",
}


@pytest.mark.parametrize("draft", DRAFTS)
def test_what_a_model_drafts_in_its_reasoning_is_no_error_of_the_caller(draft: str) -> None:
    """Calls that the wish forbids, whole or broken off, in families whose reasoning may end at a call."""
    assert len(ENDED_BY_CALLS) >= 12
    wrongs: list[str] = []
    for number, family in enumerate(ENDED_BY_CALLS):
        written = DRAFTS[draft](one_call(family))
        wishes: tuple[Wish, ...] = ("allowed", "schema", "both", "required", "named")
        turn = Turn(family, "default", wishes[number % 2] if draft == "whole" else wishes[number % 5])
        with engine_of(turn, f"Perhaps {written} but no. ") as llm:
            completion = llm.chat("Hi", **options_of(turn))
        wrongs += [said] if completion.finish_reason != "length" and (said := wrong(turn, completion)) else []
        if turn.wish == "schema" and draft == "whole" and "but no." not in completion.reasoning:
            wrongs.append(f"{turn}: the draft ended reasoning: {completion}")
    assert not wrongs, "\n".join(wrongs)


def test_kimi_k3_calls_tools_where_its_prompt_opens_the_answer() -> None:
    """With reasoning off its template ends with the mark that opens a response; calls come after an empty one."""
    control = builtin_families().get("kimi-k3").format.control
    vocab = ByteVocab(control, end=["<|end_of_msg|>"])
    source = (
        '{% for m in messages %}{{ m.content }}{% endfor %}<|open|>message role="assistant"<|sep|>'
        "{% if add_generation_prompt %}<|open|>{{ 'think' if thinking | default(true) else 'response' }}<|sep|>"
        "{% endif %}"
    )
    template = ChatTemplate(source, family="kimi-k3", control_tokens=vocab.control_tokens)
    choices: list[Any] = ["required", ToolName(name="ping")]
    for choice in choices:
        with Engine.over(ScriptedBackend(lambda _: "", vocab=vocab, rewrite=True), template) as llm:
            completion = llm.chat("Hi", [PING], tool_choice=choice, reasoning=False, max_tokens=500, seed=2)
        assert {(call.name, call.error) for call in completion.tool_calls} == {("ping", None)}
        assert not completion.content


@pytest.mark.parametrize("family", ["qwen3-coder", "minimax-m2", "deepseek-v3.2", "minimax-m3", "gemma-4"])
def test_arguments_that_nobody_constrains_are_the_model_s(family: str) -> None:
    """Under `allowed_tools`, and of a tool that is not strict beside one that is."""
    call = one_call(family)
    control = builtin_families().get(family).format.control
    vocab = ByteVocab(control, end=["<|the_end|>"])
    template = ChatTemplate("{{ messages[-1].content }}", family=family, control_tokens=vocab.control_tokens)
    strict = {"type": "function", "function": {**PING["function"], "strict": True}}
    ways: list[dict[str, Any]] = [
        {"tools": [WEATHER, PING], "tool_choice": AllowedTools(names=("get_weather",), mode="auto")},
        {"tools": [WEATHER, strict]},
    ]
    for options in ways:
        with Engine.over(ScriptedBackend([call], vocab=vocab), template) as llm:
            completion = llm.chat("Hi", **options)
        assert [json.loads(each.arguments)["city"] for each in completion.tool_calls] == ["Paris"], completion


def test_a_call_whose_end_is_an_end_token_ends_the_turn_though_the_grammar_forced_it() -> None:
    """gpt-oss's `<|call|>`: nothing that the model would write behind it is drawn."""
    family = "gpt-oss"
    control = list(ChatTemplate(None, family=family).format.control)
    vocab = ByteVocab(control, end=["<|return|>", "<|call|>"])
    template = ChatTemplate(None, family=family, control_tokens=vocab.control_tokens)
    call = '<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{"x": 1}<|call|>'
    again = "<|start|>assistant" + call + "<|start|>assistant<|channel|>final<|message|>Well.<|return|>"
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "ping", "description": "", "parameters": parameters}}
    choices: list[Any] = ["required", ToolName(name="ping")]
    ways: list[dict[str, Any]] = [{}, {"strict_tools": True}, *({"tool_choice": choice} for choice in choices)]
    for options in ways:
        backend = ScriptedBackend([call + again], vocab=vocab, n_ctx=4000)
        with Engine.over(backend, template) as llm:
            completion = llm.chat("Hi", [tool], **options)
        assert completion.finish_reason == "tool_calls", options
        assert [each.arguments for each in completion.tool_calls] == ['{"x": 1}'], options
        assert not completion.content, options
