"""Headers of messages with marks left out, and messages of others than the assistant."""

import itertools

import pytest
from cases.parsing_cases import run, splits

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import fold

FORMAT = builtin_families().get("gpt-oss").format
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
FINAL = "<|channel|>final<|message|>"
SAID = "The answer is five."


def read(output: str) -> Completion:
    """What an output holds, the same however it is cut."""
    first, *others = [fold(run(Parser("gpt-oss", FORMAT.start, tools=[TOOL]), chunks)) for chunks in splits(output)]
    assert all(other.content == first.content for other in others)
    assert all(len(other.tool_calls) == len(first.tool_calls) for other in others)
    return first


@pytest.mark.parametrize("end", ["", "<|return|>", "<|end|>", "<|return|>\n"])
@pytest.mark.parametrize("channel", ["", "final ", "commentary "])
@pytest.mark.parametrize("before", ["", "<|channel|>analysis<|message|>WHY<|end|><|start|>assistant"])
def test_a_header_that_announces_nothing_is_the_answer(before: str, channel: str, end: str) -> None:
    answer = read(f"{before}<|channel|>{channel}{SAID}{end}")
    assert (answer.content, answer.reasoning) == (SAID, "WHY" if before else "")


@pytest.mark.parametrize("stray", ["??", f"final {SAID}", SAID, "analysis", "analysis so"])
def test_a_stray_header_before_the_answer_is_nothing(stray: str) -> None:
    assert read(f"<|channel|>{stray}<|end|><|start|>assistant{FINAL}Hi<|return|>").content == "Hi"


def test_a_vocabulary_that_has_a_blank_behind_each_mark_has_none_in_the_text() -> None:
    """As LLM-jp 4 writes; without one behind the channel's mark, it belongs to the text."""
    spaced = "<|channel|> analysis<|message|> WHY<|end|><|start|> assistant<|channel|> final<|message|> Hi <|return|>"
    call = '<|channel|> commentary to=functions.look <|constrain|> json<|message|> {"a": 1}<|call|>'
    assert (read(spaced).reasoning, read(spaced).content) == ("WHY", "Hi ")
    assert [(each.name, each.arguments, each.error) for each in read(call).tool_calls] == [("look", '{"a": 1}', None)]
    assert read(f"{FINAL} Hi").content == " Hi"


ROLES = ("user", "functions.look", "system", "developer", "functions.look to=assistant")


@pytest.mark.parametrize("role", ROLES)
def test_a_message_of_another_role_is_not_the_answer(role: str) -> None:
    for channel, end in itertools.product(("", "<|channel|>commentary", "<|channel|>final"), ("", "<|end|>")):
        other = f"<|start|>{role}{channel}<|message|>OTHER{end}"
        assert read(f"{FINAL}Hi<|end|>{other}").content == "Hi"
        assert read(f"{other}<|start|>assistant{FINAL}Hi<|return|>").content == "Hi"


@pytest.mark.parametrize("to", [" to=look", " to=functions.look"])
@pytest.mark.parametrize("end", ["", "<|return|>", "<|call|>", "<|end|>"])
def test_a_recipient_in_the_role_is_a_call(to: str, end: str) -> None:
    for start in ("", "<|channel|>analysis<|message|>WHY<|end|><|start|>assistant"):
        (call,) = read(f'{start}{to}<|channel|>commentary<|message|>{{"q": 1}}{end}').tool_calls
        assert (call.name, call.arguments, call.error) == ("look", '{"q": 1}', None)
