"""Whole turns under constraints, by a model that knows nothing: what they are held to is what comes out, whatever
becomes of reasoning. The full matrix is tests/bench/constraints.py."""

from collections import Counter
from typing import Any

import pytest
from constrained import (
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

from engine import ChatTemplate, Completion, Engine
from engine.errors import RequestError
from engine.testing import ByteVocab, ScriptedBackend
from engine.types import ToolName

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
)


WISHES_OF_ANSWERS: tuple[Wish, ...] = tuple(wish for wish in WISHES if wish != "strict")


def test_the_families_are_there() -> None:
    assert set(FAMILIES) <= set(callable_families())


def answered(llm: Engine, turn: Turn) -> Completion | None:
    """None where the family's reasoning cannot be switched so."""
    options = options_of(turn)
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
    for family in FAMILIES if few else FAMILIES[STATES.index(state) % 2 :: 2]:  # all of them in tests/bench
        # Without a wish for the answer, long reasoning goes on in the content.
        for wish in WISHES if not few else WISHES_OF_ANSWERS:
            turn = Turn(family, state, wish)
            with engine_of(turn) as llm:
                completion = answered(llm, turn)
            if completion is None:
                counts["no such state"] += 1
                continue
            if completion.finish_reason == "length":
                assert completion.usage is not None
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
        with Engine(backend, template) as llm:
            completion = llm.chat("Hi", [tool], **options)
        assert completion.finish_reason == "tool_calls", options
        assert [each.arguments for each in completion.tool_calls] == ['{"x": 1}'], options
        assert not completion.content, options
