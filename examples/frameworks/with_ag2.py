"""ag2 over Chat Completions.

pip install '.[openai]' 'ag2[openai]'
python examples/frameworks/with_ag2.py [MODEL.gguf]
"""

import openai
import task
from ag2 import Agent
from ag2.config import OpenAIConfig

import engine.openai
from engine import Engine


async def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    async with openai.DefaultAsyncHttpxClient(transport=engine.openai.transport(llm)) as http:
        config = OpenAIConfig(
            model="local",
            temperature=0,
            api_key="in-process",
            base_url="http://in-process/v1",
            http_client=http,
            max_retries=0,
            extra_body=extra_body,
        )
        agent = Agent("clerk", config=config, tools=[task.get_weather, task.multiply])
        reply = await agent.ask(task.QUESTION)
    return str(reply.body)


if __name__ == "__main__":
    task.main(answer)
