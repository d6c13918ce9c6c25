"""pydantic-ai over Chat Completions.

pip install 'llama-engine[openai]' 'pydantic-ai-slim[openai]'
python examples/frameworks/with_pydantic_ai.py [MODEL.gguf]
"""

import asyncio
import sys

from pydantic_ai import Agent, ModelResponse, ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider
from task import QUESTION, get_weather, multiply

import engine.openai
from engine import Engine


async def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    async with engine.openai.AsyncOpenAI(llm) as client:
        model = OpenAIChatModel("local", provider=OpenAIProvider(openai_client=client))
        settings = OpenAIChatModelSettings(temperature=0, extra_body=extra_body)
        agent = Agent(model, tools=[get_weather, multiply], model_settings=settings)
        run = await agent.run(QUESTION)
    for message in run.all_messages():
        if isinstance(message, ModelResponse):
            for part in message.parts:
                if isinstance(part, ThinkingPart):
                    print("reasoning:", part.content)
    return run.output


def main(model: str | None = None) -> None:
    with Engine.load(model) as llm:
        print("answer:", asyncio.run(answer(llm)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
