"""strands: an Agent over Chat Completions.

pip install '.[openai]' 'strands-agents[openai]'
python examples/frameworks/with_strands.py [MODEL.gguf]
"""

import task
from strands import Agent, tool
from strands.models.openai import OpenAIModel

import engine.openai
from engine import Engine


async def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    async with engine.openai.AsyncOpenAI(llm) as client:
        model = OpenAIModel(client, model_id="local", params={"temperature": 0, "extra_body": extra_body})
        agent = Agent(model, tools=[tool(task.get_weather), tool(task.multiply)], callback_handler=None)
        found = await agent.invoke_async(task.QUESTION)
    for message in agent.messages:
        for part in message["content"]:
            if "reasoningContent" in part:
                print("reasoning:", part["reasoningContent"]["reasoningText"]["text"])
    return str(found).strip()


if __name__ == "__main__":
    task.main(answer)
