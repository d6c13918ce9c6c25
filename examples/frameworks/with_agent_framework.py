"""Microsoft's agent-framework over Chat Completions.

pip install '.[openai]' agent-framework-openai
python examples/frameworks/with_agent_framework.py [MODEL.gguf]
"""

import task
from agent_framework import Agent, FunctionTool
from agent_framework.openai import OpenAIChatCompletionClient

import engine.openai
from engine import Engine
from engine.tools import as_tools


async def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    async with engine.openai.AsyncOpenAI(llm) as client:
        model = OpenAIChatCompletionClient("local", async_client=client)
        # Its own schemas have a title that is not the tool's name, which small models then call.
        functions = [task.get_weather, task.multiply]
        tools = [
            FunctionTool(name=t.name, description=t.description, func=f, input_model=dict(t.parameters))
            for f, t in zip(functions, as_tools(functions), strict=True)
        ]
        agent = Agent(client=model, tools=tools, default_options={"temperature": 0, "extra_body": extra_body})
        found = await agent.run(task.QUESTION)
    for message in found.messages:
        for content in message.contents:
            if content.type == "text_reasoning":
                print("reasoning:", content.text)
    return found.text


if __name__ == "__main__":
    task.main(answer)
