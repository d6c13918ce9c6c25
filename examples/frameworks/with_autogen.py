"""autogen: an AssistantAgent over Chat Completions.

pip install '.[openai]' autogen-agentchat 'autogen-ext[openai]'
python examples/frameworks/with_autogen.py [MODEL.gguf]
"""

import openai
import task
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ThoughtEvent
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

import engine.openai
from engine import Engine

INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, structured_output=True, family=ModelFamily.UNKNOWN
)


async def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    async with openai.DefaultAsyncHttpxClient(transport=engine.openai.transport(llm)) as http:
        model = OpenAIChatCompletionClient(
            model=llm.info.name,  # another one than the answers name is warned of
            model_info=INFO,
            temperature=0,
            api_key="in-process",
            base_url="http://in-process/v1",
            http_client=http,
            max_retries=0,
            extra_body=extra_body,
        )
        agent = AssistantAgent(
            "clerk", model, tools=[task.get_weather, task.multiply], max_tool_iterations=4, system_message=None
        )
        found = await agent.run(task=task.QUESTION)
    for message in found.messages:
        if isinstance(message, ThoughtEvent):
            print("reasoning:", message.content)
    return str(found.messages[-1].content)


if __name__ == "__main__":
    task.main(answer)
