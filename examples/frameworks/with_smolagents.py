"""smolagents: a ToolCallingAgent whose calls and results reach the model as such.

By itself smolagents writes them into the conversation as text, the results of a step as one, and wants every turn to be
a call, the last one of its tool `final_answer`. Models that were trained to call tools do better with what they know:
`NativeCalls` sends earlier calls as calls, each with its own result, and takes an answer in prose for the final one.

pip install '.[openai]' smolagents
python examples/frameworks/with_smolagents.py [MODEL.gguf]
"""

import ast
import json
from typing import Any

import openai
import task
from smolagents import ChatMessage, LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents.agents import ToolOutput
from smolagents.memory import FinalAnswerStep, ToolCall
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

import engine.openai
from engine import Engine

CALLS, RESULT = "Calling tools:\n", "Observation:\n"


class NativeCalls(OpenAIModel):
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.results: dict[str, str] = {}

    def _prepare_completion_kwargs(self, *given: Any, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = super()._prepare_completion_kwargs(*given, **options)
        found["messages"] = as_calls(found["messages"], self.results)
        return found

    def note(self, event: object) -> None:
        """Keep each call's own result, in the order of the calls: smolagents' memory has one text for them all."""
        if isinstance(event, ToolCall):
            self.results[event.id] = ""
        elif isinstance(event, ToolOutput):
            self.results[event.id] = event.observation

    def parse_tool_calls(self, message: ChatMessage) -> ChatMessage:
        final = ChatMessageToolCallFunction(name="final_answer", arguments={"answer": message.content})
        message.tool_calls = [ChatMessageToolCall(id="final", type="function", function=final)]
        return message


def as_calls(messages: list[dict[str, Any]], results: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    order = list(results)
    for message in messages:
        text = "".join(part["text"] for part in message["content"])
        if text.startswith(CALLS):
            calls = sorted(ast.literal_eval(text.removeprefix(CALLS)), key=lambda call: order.index(call["id"]))
            for call in calls:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
            found.append({"role": "assistant", "content": None, "tool_calls": calls})
            found += [{"role": "tool", "tool_call_id": call["id"], "content": results[call["id"]]} for call in calls]
        elif not text.startswith(RESULT):
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
        tools = [tool(task.get_weather), tool(task.multiply)]
        agent = ToolCallingAgent(tools, model, verbosity_level=LogLevel.OFF, max_steps=4)
        agent.prompt_templates["system_prompt"] = "You are a helpful assistant."
        found = None
        for event in agent.run(task.QUESTION, stream=True):
            model.note(event)
            if isinstance(event, FinalAnswerStep):
                found = event.output
    for step in agent.memory.steps:
        message = getattr(step, "model_output_message", None)
        if message is not None:
            print("reasoning:", message.raw.choices[0].message.reasoning_content)
    return str(found)


if __name__ == "__main__":
    task.main(answer)
