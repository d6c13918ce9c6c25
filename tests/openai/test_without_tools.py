"""A request without tools: whatever call a model writes is text, as it wrote it."""

from typing import Any

from cases import writer
from cases.canonical import Call, Turn
from cases.parsing_cases import families_where

from engine import ChatTemplate
from engine.formats.families import builtin_families
from engine.openai import OpenAI
from engine.testing import ScriptedEngine

TURN = Turn("a call", (Call("get_weather", '{"city": "Paris"}'),))
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
with_calls = families_where(lambda of: of.tools and writer.applies(TURN, of))


@with_calls
def test_a_call_is_text_without_tools(family: str) -> None:
    written = writer.written(TURN, builtin_families().get(family).format)
    own: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "Hi"}]}
    with ScriptedEngine([written] * 6, template=ChatTemplate(PLAIN, family=family, trust_template=True)) as llm:
        create: Any = OpenAI(llm).chat.completions.create
        shown: list[str] = []
        ways: list[dict[str, Any]] = [{}, {"tools": []}]
        for more in ways:
            answer = llm.chat("Hi", **more)
            assert (answer.tool_calls, answer.finish_reason) == ((), "stop")
            choice = create(**own, **more).choices[0]
            assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
            chunks = [chunk.choices[0] for chunk in create(**own, **more, stream=True)]
            assert not any(chunk.delta.tool_calls for chunk in chunks)
            assert chunks[-1].finish_reason == "stop"
            shown += [answer.content, choice.message.content, "".join(chunk.delta.content or "" for chunk in chunks)]
    assert len(set(shown)) == 1
    assert shown[0].strip() in written  # markers of the message itself are none of the text
    assert "Paris" in shown[0]


def test_the_same_call_is_one_with_tools() -> None:
    written = writer.written(TURN, builtin_families().get("qwen3").format)
    with ScriptedEngine([written], template=ChatTemplate(PLAIN, family="qwen3", trust_template=True)) as llm:
        answer = llm.chat("Hi", tools=[{"name": "get_weather"}])
    assert [call.name for call in answer.tool_calls] == ["get_weather"]
