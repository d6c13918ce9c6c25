"""pydantic-ai over Chat Completions.

pip install '.[openai]' 'pydantic-ai-slim[openai]'
python examples/frameworks/with_pydantic_ai.py [MODEL.gguf]
"""

import task
from pydantic_ai import Agent, ModelResponse, ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

import engine.openai
from engine import Engine


async def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    async with engine.openai.AsyncOpenAI(llm) as client:
        model = OpenAIChatModel("local", provider=OpenAIProvider(openai_client=client))
        settings = OpenAIChatModelSettings(temperature=0, extra_body=extra_body)
        agent = Agent(model, tools=[task.get_weather, task.multiply], model_settings=settings)
        run = await agent.run(task.QUESTION)
    for message in run.all_messages():
        if isinstance(message, ModelResponse):
            for part in message.parts:
                if isinstance(part, ThinkingPart):
                    print("reasoning:", part.content)
    return run.output


if __name__ == "__main__":
    task.main(answer)
