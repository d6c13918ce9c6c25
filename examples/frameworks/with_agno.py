"""agno over Chat Completions.

pip install '.[openai]' agno
python examples/frameworks/with_agno.py [MODEL.gguf]
"""

import httpx
import task
from agno.agent import Agent
from agno.models.openai import OpenAILike

import engine.openai
from engine import Engine


def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    with httpx.Client(transport=engine.openai.transport(llm)) as http:
        model = OpenAILike(
            id="local",
            temperature=0,
            api_key="in-process",
            base_url="http://in-process/v1",
            http_client=http,
            max_retries=0,
            extra_body=extra_body,
        )
        found = Agent(model=model, tools=[task.get_weather, task.multiply], telemetry=False).run(task.QUESTION)
    for message in found.messages:
        if message.reasoning_content:
            print("reasoning:", message.reasoning_content)
    return str(found.content)


if __name__ == "__main__":
    task.main(answer)
