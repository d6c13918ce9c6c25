"""Every template in the situations where prompts went wrong: a message continued, each position of the reasoning
switch, a tool loop with text and reasoning beside the call, results in another order.

The templates of llama.cpp's tree are read from the folder that `LLAMA_CPP_TEMPLATES` names; without it only our own."""

import re
from functools import cache
from typing import Any

import pytest
from cases.roundtrips import FIXED, SOURCES

from engine.formats.families import builtin_families
from engine.formats.template.chat_template import ChatTemplate
from engine.support import _data
from engine.support.errors import RequestError, TemplateError
from engine.types.events import fold
from engine.types.messages import Message
from engine.types.prompt import Prompt
from engine.types.sampling import Reasoning

OWN = [name for name in builtin_families().names() if _data.template_source(name)]
TEMPLATES = [*(f"own {name}" for name in OWN), *(path.stem for path in SOURCES)]
SWITCHES: tuple[Reasoning | None, ...] = (None, True, False)
ASKED: dict[str, Any] = {"role": "user", "content": "QUESTION"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
SECOND = {**CALL, "id": "abcdefgh2"}
WHY = "WHYTEXT, because."
IGNORES_ITS_SWITCH = {"ibm-granite-granite-3.3-2B-Instruct": "beside tools"}
each_template = pytest.mark.parametrize("name", TEMPLATES)


@cache
def template_of(name: str) -> ChatTemplate:
    if name.startswith("own "):
        return ChatTemplate(None, *FIXED.values(), family=name.removeprefix("own "))
    source = next(path for path in SOURCES if path.stem == name).read_text(encoding="utf-8")
    return ChatTemplate(source, *FIXED.values())


def render(name: str, messages: list[dict[str, Any]], switch: Reasoning | None, **options: Any) -> Prompt | None:
    """None for a position of the switch that the family lacks."""
    try:
        return template_of(name).render(messages, options.pop("tools", None), switch, **options)
    except RequestError:
        assert switch is not None
        return None


def result(call: dict[str, Any], text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def tail(prompt: Prompt) -> str:
    return "".join(piece.text for piece in prompt.prefix)


@each_template
def test_a_message_is_continued_at_its_very_end(name: str) -> None:
    """White space at the end of the caller's text is the prompt's alone; reasoning and content are gone on with where
    they stop; markers are written once."""
    template = template_of(name)
    syntax = template.format.reasoning
    partial: list[tuple[dict[str, Any], str]] = [
        ({"content": "It is four "}, "It is four "),
        ({"content": "A\n"}, "A\n"),
    ]
    if syntax is not None:
        partial += [
            ({"content": "It is four ", "reasoning_content": WHY}, "It is four "),
            ({"content": "", "reasoning_content": "Because it "}, "Because it "),
        ]
    for last, said in partial:
        inside = not last["content"]
        for switch in SWITCHES:
            if inside and switch is False:
                with pytest.raises(RequestError, match=r"stops inside its reasoning|no reasoning|not possible here"):
                    template.render([ASKED, {"role": "assistant", **last}], None, False, continue_final_message=True)
                continue
            prompt = render(name, [ASKED, {"role": "assistant", **last}], switch, continue_final_message=True)
            if prompt is None:
                continue
            assert prompt.text.endswith(said)
            assert prompt.in_reasoning is inside
            for chunks in (["degrees.\nYes"], list("degrees.\nYes")):
                parser = template.parser(prompt)
                completion = fold([*(event for text in chunks for event in parser.feed(text)), *parser.close()])
                found = completion.reasoning if inside else completion.content
                assert found == "degrees.\nYes", (switch, last, prompt.text[-80:])
                assert not (completion.content if inside else completion.reasoning)
            if syntax is not None and syntax.open.strip():
                assert tail(prompt).count(syntax.open.strip()) <= 1, tail(prompt)


@each_template
def test_each_position_of_the_switch_shows_in_the_prompt(name: str) -> None:
    """Off leaves reasoning closed; on leaves it open, or free for the model to open; none is ignored."""
    template = template_of(name)
    syntax = template.format.reasoning
    if syntax is None:
        assert render(name, [ASKED], True) is None
        return
    prompts = {switch: render(name, [ASKED], switch) for switch in (True, False)}
    for switch, prompt in prompts.items():
        if prompt is None:
            continue
        parser = template.parser(prompt)
        completion = fold([*parser.feed("Text"), *parser.close()])
        assert not (switch is False and completion.reasoning)
        for marker in filter(str.strip, (syntax.open, syntax.close)):
            assert tail(prompt).count(marker.strip()) <= 1 or template.format.channels, tail(prompt)
        if switch and syntax.close.strip() not in (syntax.open.strip(), *template.format.content):
            assert syntax.close.strip() not in tail(prompt)
    on, off = prompts[True], prompts[False]
    assert on is None or off is None or on.text != off.text


@each_template
def test_a_tool_loop_with_text_and_reasoning_beside_the_call(name: str) -> None:
    """The model is asked in a turn that is open, whose start seeds the parser; earlier reasoning stands there at most
    once, in markers written once."""
    template = template_of(name)
    format_ = template.format
    for switch in SWITCHES:
        for reasoning in (None, WHY) if format_.reasoning else (None,):
            spoken = {
                "role": "assistant",
                "content": "One moment.",
                "tool_calls": [CALL],
                "reasoning_content": reasoning,
            }
            try:
                prompt = render(name, [ASKED, spoken, result(CALL, "RESULTTEXT")], switch, tools=[TOOL])
            except TemplateError:
                continue  # this template takes no text beside a call
            if prompt is None:
                continue
            ends = (*format_.stops, FIXED["eos_token"])
            assert not any(prompt.text.rstrip().endswith(end) for end in ends), prompt.text[-80:]
            _, _, after = prompt.text.rpartition("RESULTTEXT")
            if format_.start and format_.start in after:
                assert tail(prompt).startswith(format_.start), tail(prompt)
            assert prompt.text.count(WHY) <= 1
            assert not _doubled(name, prompt), prompt.text[-300:]
            parser = template.parser(prompt, [TOOL])
            completion = fold([*parser.feed("x"), *parser.close()])
            assert completion.content + completion.reasoning == "x"


def _doubled(name: str, prompt: Prompt) -> bool:
    """Whether an empty block of reasoning stands before the real one, or a closing marker before an opening one."""
    syntax = template_of(name).format.reasoning
    if syntax is None or template_of(name).format.channels or syntax.close.strip() in template_of(name).format.content:
        return False
    open_, close = re.escape(syntax.open.strip()), re.escape(syntax.close.strip())
    _, _, turn = prompt.text.partition("QUESTION")
    return re.search(rf"{close}\s*{open_}\s*{WHY}", turn) is not None


@each_template
def test_results_come_in_the_order_of_their_calls(name: str) -> None:
    asked = {"role": "assistant", "content": "", "tool_calls": [CALL, SECOND]}
    messages = [ASKED, asked, result(SECOND, "TWOTEXT"), result(CALL, "ONETEXT")]
    try:
        text = template_of(name).render(messages, [TOOL]).text
    except TemplateError:
        pytest.skip("this template rejects two calls in a message")
    assert text.index("ONETEXT") < text.index("TWOTEXT")


@each_template
def test_results_with_foreign_ids_after_calls_without(name: str) -> None:
    bare = [{"name": "look", "arguments": {"city": city}} for city in ("Oslo", "Rome")]
    results = [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in (("z1", "ONE"), ("z2", "TWO"))]
    messages: list[Any] = [ASKED, {"role": "assistant", "tool_calls": bare}, *results]
    try:
        text = template_of(name).render(messages, [TOOL]).text
    except TemplateError:
        pytest.skip("this template rejects two calls in a message")
    assert 0 < text.rindex("ONE") < text.rindex("TWO")
    with pytest.raises(RequestError, match="matches no tool call"):
        template_of(name).render([ASKED, {"role": "assistant", "tool_calls": [CALL]}, results[0]], [TOOL])


def test_what_a_template_escapes_comes_back() -> None:
    """Kimi K3 writes names and keys as attributes."""
    if "Kimi-K3" not in TEMPLATES:
        pytest.skip("set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
    odd = 'x & "y" &amp; z'
    parameters = {"type": "object", "properties": {odd: {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": parameters}}
    call = {"id": "c1", "name": "look", "arguments": {odd: odd}}
    template = template_of("Kimi-K3")
    whole = template.render([ASKED, {"role": "assistant", "tool_calls": [call]}], [tool], add_generation_prompt=False)
    asked = template.render([ASKED], [tool])
    output = whole.text.removeprefix(asked.text)
    assert output != whole.text
    parser = template.parser(asked, [tool])
    (found,) = fold([*parser.feed(output), *parser.close()]).tool_calls
    assert (found.parsed(), found.error) == ({odd: odd}, None)


def test_functionary_goes_on_to_the_reader() -> None:
    """Its heading for text is written again, and what follows can never be a call's name."""
    name = "meetkai-functionary-medium-v3.2"
    if name not in TEMPLATES:
        pytest.skip("set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
    last = {"role": "assistant", "content": "Well, ", "reasoning_content": "because"}
    prompt = template_of(name).render([ASKED, last], continue_final_message=True)
    assert prompt.text.endswith(">>>all\nWell, ")
    parser = template_of(name).parser(prompt, [TOOL])
    assert fold([*parser.feed("two.\nThree?"), *parser.close()]).content == "two.\nThree?"


def test_reasoning_that_was_on_is_continued_with_it_on() -> None:
    """DeepSeek's templates leave it out by default."""
    name = "deepseek-ai-DeepSeek-V4"
    if name not in TEMPLATES:
        pytest.skip("set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
    last = Message(role="assistant", content="So ", reasoning=WHY)
    prompt = template_of(name).render([Message(role="user", content="Why?"), last], continue_final_message=True)
    assert prompt.text.endswith(f"<｜Assistant｜><think>{WHY}</think>So ")
