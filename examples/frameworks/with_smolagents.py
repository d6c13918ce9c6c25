"""smolagents: a ToolCallingAgent whose calls and results reach the model as such.

By itself smolagents writes them into the conversation as text, and wants every turn to be a call, the last one of its
tool `final_answer`. Models that were trained to call tools do better with what they know: `NativeCalls` sends earlier
calls as calls, and takes an answer in prose for the final one.

pip install 'llama-engine[openai]' smolagents
python examples/frameworks/with_smolagents.py [MODEL.gguf]
"""

import ast
import json
import sys
from typing import Any

import openai
from smolagents import ChatMessage, LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction
from task import QUESTION, get_weather, multiply

import engine.openai
from engine import Engine

CALLS, RESULT = "Calling tools:\n", "Observation:\n"


class NativeCalls(OpenAIModel):
    def _prepare_completion_kwargs(self, *given: Any, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = super()._prepare_completion_kwargs(*given, **options)
        found["messages"] = as_calls(found["messages"])
        return found

    def parse_tool_calls(self, message: ChatMessage) -> ChatMessage:
        final = ChatMessageToolCallFunction(name="final_answer", arguments={"answer": message.content})
        message.tool_calls = [ChatMessageToolCall(id="final", type="function", function=final)]
        return message


def as_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    ids: list[str] = []
    for message in messages:
        text = "".join(part["text"] for part in message["content"])
        if text.startswith(CALLS):
            calls = ast.literal_eval(text.removeprefix(CALLS))
            ids = [call["id"] for call in calls]
            for call in calls:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
            found.append({"role": "assistant", "content": None, "tool_calls": calls})
        elif text.startswith(RESULT):  # one text for all calls of a step
            result = text.removeprefix(RESULT)
            found += [{"role": "tool", "tool_call_id": each, "content": result} for each in ids]
        else:
            found.append({"role": message["role"], "content": text})
    return found


def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    with openai.DefaultHttpxClient(transport=engine.openai.transport(llm)) as http:
        model = NativeCalls(
            "local",
            api_base="http://in-process/v1",
            api_key="in-process",
            client_kwargs={"http_client": http, "max_retries": 0},
            temperature=0,
            tool_choice="auto",
            extra_body=extra_body,
        )
        agent = ToolCallingAgent([tool(get_weather), tool(multiply)], model, verbosity_level=LogLevel.OFF, max_steps=4)
        agent.prompt_templates["system_prompt"] = "You are a helpful assistant."
        found = agent.run(QUESTION)
    for step in agent.memory.steps:
        message = getattr(step, "model_output_message", None)
        if message is not None:
            print("reasoning:", message.raw.choices[0].message.reasoning_content)
    return str(found)


def main(model: str | None = None) -> None:
    with Engine.load(model) as llm:
        print("answer:", answer(llm))


if __name__ == "__main__":
    main(*sys.argv[1:2])
