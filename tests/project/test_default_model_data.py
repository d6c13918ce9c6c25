"""The data that the built-in model is trained on: it must ask for exactly what it rewards."""

from __future__ import annotations

import importlib
import json
import random
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from engine import ChatTemplate, Parser, fold

FOLDER = Path(__file__).parents[2] / "examples" / "default_model"


def load(name: str) -> Any:
    """A module of the example folder, which is a set of scripts and no package."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)


conversations: Any = load("conversations")
rendering: Any = load("rendering")
toolbox: Any = load("toolbox")
words: Any = load("words")

FAMILIES: tuple[str, ...] = rendering.FAMILIES
ONE_CALL: tuple[str, ...] = rendering.ONE_CALL_A_MESSAGE


def end(target: str) -> str:
    """The stop token, which the engine does not feed as text unless it is a marker of the format."""
    stops = ("<|im_end|>", "<|eot_id|>", "</s>", "<｜end▁of▁sentence｜>", "<|return|>")
    return next((stop for stop in stops if target.endswith(stop)), "")


TODAY = date(2026, 5, 1)


@cache
def engine_template(family: str, bos: str, eos: str) -> ChatTemplate:
    return ChatTemplate(None, bos, eos, family=family, now=lambda: datetime.combine(TODAY, datetime.min.time()))


def variables(options: Any) -> dict[str, str]:
    """What the template takes beside the conversation."""
    if options.family == "llama-3":
        return {"date_string": options.today.strftime("%d %b %Y")}
    return {"reasoning_effort": options.effort} if options.family == "gpt-oss" and options.effort else {}


def after_results(family: str, options: Any) -> str:
    """What the prompt ends with, from the last assistant start on, when tool results stand before it."""
    if family == "qwen3":
        return "<|im_start|>assistant\n" + ("" if options.thinking else "<think>\n\n</think>\n\n")
    starts = {"gpt-oss": "<|start|>assistant", "qwen3-coder": "<|im_start|>assistant\n"}
    return starts.get(family, "")


def seen(family: str, options: Any, prompt: str) -> bool:
    """Whether this message has reasoning."""
    if family == "deepseek-r1":
        return prompt.endswith("<think>\n")
    return family == "gpt-oss" or (family == "qwen3" and options.thinking)


def made(seed: int, count: int, family: str = "qwen3", held_out: bool = False, turns: int = 1) -> Iterator[Any]:
    rng = random.Random(f"{seed} {family}")
    for _ in range(count):
        setting = conversations.make_setting(rng, held_out, rng.random() < 0.9)
        yield conversations.make_conversation(rng, setting, held_out, family not in ONE_CALL, turns)


@cache
def some() -> list[Any]:
    """Conversations that several tests look at."""
    return list(made(1, 400))


def steps(conversation: Any) -> Iterator[Any]:
    for turn in conversation.turns:
        yield from turn.steps


def test_calls_fit_their_schemas() -> None:
    checked = 0
    for conversation in some():
        for step in steps(conversation):
            for call in step.calls:
                schema = rendering.tool_schema(call.tool, conversation.setting)["function"]["parameters"]
                jsonschema.validate(call.arguments, schema)
                checked += 1
    assert checked > 250


def test_a_request_says_every_value() -> None:
    for conversation in some():
        for turn in conversation.turns:
            for call in (call for step in turn.steps for call in step.calls):
                said = [value for value in call.arguments.values() if isinstance(value, str)]
                missing = [value for value in said if value.lower() not in turn.user.lower()]
                assert not missing, f"{turn.user!r} does not say {missing}"


def test_no_two_tools_of_a_list_can_be_meant() -> None:
    for conversation in some():
        tools = conversation.setting.tools
        assert len({tool.name for tool in tools}) == len(tools)
        alike = [(tool.topic, tool.verb) for tool in tools if not tool.recipe]
        assert len(set(alike)) == len(alike)


def test_held_out_words_never_occur_in_training() -> None:
    known = " ".join(tool.topic for conversation in made(4, 500) for tool in conversation.setting.tools)
    assert not set(words.HELD_NOUNS) & set(known.split())
    held = [tool for conversation in made(4, 300, held_out=True) for tool in conversation.setting.tools]
    share = sum(bool(set(words.HELD_NOUNS) & set(tool.topic.split())) for tool in held if not tool.recipe)
    assert share > 0.4 * sum(not tool.recipe for tool in held)


def test_reasoning_names_tool_and_arguments() -> None:
    for conversation in some():
        for step in steps(conversation):
            for call in step.calls:
                said = json.dumps(call.arguments, ensure_ascii=False)
                assert f'"{call.tool.name}" with {said}' in step.reasoning


@pytest.mark.parametrize("family", FAMILIES)
def test_two_requests_are_two_calls(family: str) -> None:
    kinds = [turn for conversation in made(6, 300, family) for turn in conversation.turns if turn.kind == "two calls"]
    most = max(len(step.calls) for turn in kinds for step in turn.steps)
    assert most == (1 if family in ONE_CALL else 2)
    assert all(sum(len(step.calls) for step in turn.steps) == 2 for turn in kinds)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_reads_what_the_model_is_taught(family: str) -> None:
    """The engine's own prompt is the training prompt, and its parser finds in the target what was meant."""
    rng = random.Random(7)
    for conversation in made(7, 40, family):
        options = replace(rendering.choose_options(rng, family), today=TODAY)
        tools = [rendering.tool_schema(tool, conversation.setting) for tool in conversation.setting.tools]
        template = engine_template(family, options.bos, options.eos)
        reasoning = False if family == "qwen3" and not options.thinking else None
        system = conversation.setting.system
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": conversation.turns[0].user})
        texts = rendering.conversation_texts(conversation, options)
        for step, (prompt, target) in zip(steps(conversation), texts, strict=True):
            if prompt is texts[0][0]:
                rendered = template.render(messages, tools, reasoning, template_kwargs=variables(options))
                assert rendered.text == prompt
                seed = rendered.prefix
            else:
                seed = after_results(family, options)
            parser = Parser(template.format, seed, tools=tools)
            written = fold([*parser.feed(target.removesuffix(end(target))), *parser.close()])
            assert written.content == step.answer
            expected = [(call.tool.name, call.arguments) for call in step.calls]
            assert [(call.name, json.loads(call.arguments)) for call in written.tool_calls] == expected
            assert written.reasoning == (step.reasoning if seen(family, options, prompt) else "")


@pytest.mark.parametrize("family", ["qwen3", "llama-3"])
def test_the_next_prompt_begins_with_what_was_written(family: str) -> None:
    """Families that keep the current turn as written: training sequences run through, and so does a KV prefix."""
    options = rendering.Options(family)
    for conversation in made(8, 100, family):
        texts = rendering.conversation_texts(conversation, options)
        assert len(rendering.sequences(texts)) == 1
        for (prompt, target), (later, _) in pairwise(texts):
            assert later.startswith(prompt + target)


def test_sequences_lose_nothing() -> None:
    options = rendering.Options("gpt-oss")
    for conversation in made(9, 60, "gpt-oss", turns=2):
        texts = rendering.conversation_texts(conversation, options)
        found = rendering.sequences(texts)
        assert [piece.text for sequence in found for piece in sequence if piece.written] == [
            target for _, target in texts
        ]


def test_handwritten_cases_are_sound() -> None:
    cases = tomllib.loads((FOLDER / "handwritten.toml").read_text(encoding="utf-8"))["case"]
    assert len(cases) == 40
    for case in cases:
        names = [tool.partition("(")[0] for tool in case["tools"]]
        assert all(call["name"] in names for call in case["expect"])
        assert len(case.get("result", [])) == len(case["expect"])
        spoken = case["user"].lower()
        for call in case["expect"]:
            said = [value for value in call["arguments"].values() if isinstance(value, str)]
            assert all(value.lower() in spoken for value in said)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_drill_ends_where_the_last_look_up_is_done(family: str) -> None:
    """Behind it only values are copied: the name of every call and the first key of the last are there, and no more."""
    rng = random.Random(f"drill {family}")
    cut = 0
    for _ in range(150):
        setting, options = conversations.make_setting(rng, False, True, True), rendering.choose_options(rng, family)
        turn = conversations.make_turn(rng, setting, False, family not in ONE_CALL, 0.3)
        assert (
            rendering.first_prompt(setting, options, turn.user)
            == rendering.conversation_texts(conversations.Conversation(setting, (turn,)), options)[0][0]
        )
        step = turn.steps[0]
        whole = rendering.TARGETS[family](step, options, 1, False)
        drill = rendering.look_ups(whole, step.calls)
        assert whole.startswith(drill)
        if not step.calls:
            assert drill == whole
            continue
        cut += len(drill) < len(whole)
        assert all(call.tool.name in drill for call in step.calls)
        key = next(iter(step.calls[-1].arguments), step.calls[-1].tool.name)
        assert drill.endswith(key)
    assert cut > 80


def test_a_message_that_does_not_name_its_call_is_no_drill() -> None:
    call = toolbox.Call(toolbox.make_tool(random.Random(1), False), {})
    assert rendering.look_ups("something else", [call]) == "something else"
