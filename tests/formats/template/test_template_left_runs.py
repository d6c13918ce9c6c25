"""Whatever a model's call holds, and wherever a run was left, the conversation goes on in every template.

The templates of llama.cpp's tree are read from the folder that `LLAMA_CPP_TEMPLATES` names; without it only our own.
"""

import itertools
from pathlib import Path
from typing import Any, get_args

import pytest
from cases.roundtrips import SOURCES, trusted

from engine.formats.template.chat_template import ChatTemplate
from engine.testing import ScriptedEngine, call
from engine.testing.scripted import _written  # pyright: ignore[reportPrivateUsage]
from engine.types.messages import Message
from engine.types.parts import CallError, ToolCall

OWN = sorted((Path(__file__).parents[3] / "templates").glob("*.jinja"))
PATHS = {path.stem: path for path in (*OWN, *SOURCES)}
each_template = pytest.mark.parametrize("name", PATHS)
NUMBERS = {name: number for number, name in enumerate(PATHS)}
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
ERRORS: tuple[Any, ...] = (None, *get_args(CallError))
ARGUMENTS = ("", "{}", '{"q": ', '{"q": "x",}', "[1]", "null", '"x"', '"{}"', '{"q": "a\nb"}', "{}{}", "Oslo", "1e999")
MORE = (f'{{"q": 1{"0" * 5000}}}', '{"q": NaN}', '{"q": "\\ud83d"}', '{"q": "Oslo"')
SYSTEM = Message(role="system", content="Be brief.")
ASKED = Message(role="user", content="QUESTION")
AGAIN = Message(role="user", content="AGAINTEXT")


def template(name: str) -> ChatTemplate:
    return trusted(PATHS[name])


def says(content: str, *calls: ToolCall, reasoning: str | None = None) -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


def made(number: int, **fields: Any) -> ToolCall:
    given: dict[str, Any] = {"id": f"c{number}", "name": "look", "arguments": '{"q": "Oslo"}', **fields}
    return ToolCall(**given)


def result(number: int, text: str = "RESULTTEXT") -> Message:
    return Message(role="tool", tool_call_id=f"c{number}", content=text)


@each_template
def test_a_call_with_any_error_goes_back_with_its_result(name: str) -> None:
    """A template that parses arguments itself gets an object, whatever the model wrote. Each template has all
    arguments, and all names in turn."""
    errors, tools = itertools.cycle(ERRORS), itertools.cycle(("look", "nope", ""))
    for arguments, tool in zip((*ARGUMENTS, *MORE), itertools.islice(tools, NUMBERS[name], None), strict=False):
        wrong = made(1, name=tool, arguments=arguments, error=next(errors))
        prompt = template(name).render([ASKED, says("", wrong), result(1)], [TOOL])
        assert "RESULTTEXT" in prompt.text
        assert "Oslo" in prompt.text or "Oslo" not in arguments, "the model does not see what it wrote"


STEPS: tuple[tuple[Message, ...], ...] = (
    (says("", made(1)), result(1)),
    (says("TEXT", made(1)), result(1)),
    (says("", made(1)), result(1, "")),
    (says("", made(1), made(2)), result(1), result(2)),
    (says("", made(1), made(2)), result(1)),
    (says("", made(1)),),
    (says("TEXT", made(1), reasoning="WHY"),),
    (says(""),),
    (says("", reasoning="WHY"),),
    (says("CUTTEXT"),),
    (says("CUTTEXT", reasoning="WHY"),),
    (),
)


@each_template
def test_the_next_question_after_any_two_steps(name: str) -> None:
    """A run may be left after a call, its results, a part of an answer, or nothing at all; then the user goes on. Each
    template has every second pair, its neighbour the others."""
    requests = itertools.cycle(itertools.product(([], [SYSTEM]), ([TOOL], None)))
    for first, second in list(itertools.product(STEPS, STEPS))[NUMBERS[name] % 2 :: 2]:
        later = [
            message.model_copy(update={"tool_call_id": f"{message.tool_call_id}b", "parts": ()})
            if message.role == "tool"
            else says(message.content or "", *(made(int(one.id[1:]), id=f"{one.id}b") for one in message.tool_calls))
            for message in second
        ]
        system, tools = next(requests)
        text = template(name).render([*system, ASKED, *first, *later, AGAIN], tools, guard=False).text
        assert "QUESTION" in text, (first, second)
        assert "AGAINTEXT" in text, (first, second)


@pytest.mark.parametrize("last", [says("HERETEXT"), says("HERETEXT", made(1))])
@each_template
def test_two_answers_in_a_row_are_shown(name: str, last: Message) -> None:
    text = (
        template(name).render([ASKED, says("FIRSTTEXT"), last, *([result(1)] if last.tool_calls else []), AGAIN]).text
    )
    assert "FIRSTTEXT" in text
    assert "HERETEXT" in text or last.tool_calls  # some templates show no text beside a call


def look(q: str) -> str:
    return f"RESULTTEXT {q}"


def _denied(_: ToolCall) -> str:
    return "not today"


STOPS: dict[str, dict[str, Any]] = {
    "max_steps": {"max_steps": 1},
    "max_total_tokens": {"max_total_tokens": 1},
    "stop_on": {"stop_on": ["look"]},
    "length": {"max_tokens": 3},
    "pending": {"tools": [TOOL]},
    "denied": {"approve": _denied},
    "stop": {},
}


@each_template
def test_a_run_that_stopped_for_any_reason_goes_on(name: str) -> None:
    shape = template(name)
    reasoning = shape.format.reasoning
    opened = shape.render([ASKED], [look]).in_reasoning
    asks = _written([reasoning.close if opened and reasoning else "", call("look", q="Oslo")], shape)
    for stopped, options in STOPS.items():
        with ScriptedEngine([asks, "Fine.", "Good."], template=shape, n_ctx=16384) as llm:
            asked: dict[str, Any] = {"tools": [look], **options}
            run = llm.run("QUESTION", **asked)
            assert run.stopped == ("stop" if stopped == "denied" else stopped)
            answer = llm.chat([*run.messages, AGAIN], tools=[look])
            assert answer.content + answer.reasoning in ("Fine.", "Good.")
