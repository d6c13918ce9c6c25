"""haystack: its Agent over Chat Completions.

pip install '.[openai]' haystack-ai
python examples/frameworks/with_haystack.py [MODEL.gguf]
"""

import task
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

import engine.openai
from engine import Engine


def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    generator = OpenAIChatGenerator(
        model="local",
        api_key=Secret.from_token("in-process"),
        api_base_url="http://in-process/v1",
        http_client_kwargs={"transport": engine.openai.transport(llm)},
        max_retries=0,
        generation_kwargs={"temperature": 0, "extra_body": extra_body},
    )
    tools = [create_tool_from_function(task.get_weather), create_tool_from_function(task.multiply)]
    agent = Agent(chat_generator=generator, tools=tools)
    found = agent.run([ChatMessage.from_user(task.QUESTION)])
    for message in found["messages"]:
        if message.reasoning:
            print("reasoning:", message.reasoning.reasoning_text)
    return str(found["last_message"].text)


if __name__ == "__main__":
    task.main(answer)
