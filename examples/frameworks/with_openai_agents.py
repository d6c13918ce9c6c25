"""openai-agents: the same agent over Responses, streamed, and over Chat Completions.

pip install '.[openai]' openai-agents
python examples/frameworks/with_openai_agents.py [MODEL.gguf]
"""

from functools import partial
from typing import Literal

import task
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from agents.items import ReasoningItem

import engine.openai
from engine import Engine

SETTINGS = RunConfig(tracing_disabled=True)  # traces would be sent to OpenAI


async def answer(
    llm: Engine, extra_body: dict[str, object] | None = None, *, endpoint: Literal["responses", "chat"] = "responses"
) -> str:
    kind = OpenAIResponsesModel if endpoint == "responses" else OpenAIChatCompletionsModel
    async with engine.openai.AsyncOpenAI(llm) as client:
        agent = Agent(
            name="Clerk",
            model=kind("local", client),
            model_settings=ModelSettings(temperature=0, extra_body=extra_body),
            tools=[function_tool(task.get_weather), function_tool(task.multiply)],
        )
        run = Runner.run_streamed(agent, task.QUESTION, run_config=SETTINGS)
        async for event in run.stream_events():
            if event.type == "run_item_stream_event" and isinstance(event.item, ReasoningItem):
                parts = event.item.raw_item.content or event.item.raw_item.summary
                print("reasoning:", "".join(part.text for part in parts))
        return str(run.final_output)


if __name__ == "__main__":
    task.main(answer, partial(answer, endpoint="chat"))
