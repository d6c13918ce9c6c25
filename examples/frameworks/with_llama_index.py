"""llama-index: a FunctionAgent over Chat Completions.

pip install '.[openai]' llama-index-core llama-index-llms-openai-like 'openai<3' 'huggingface-hub<2'
python examples/frameworks/with_llama_index.py [MODEL.gguf]
"""

import openai
import task
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

import engine.openai
from engine import Engine


async def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    async with openai.DefaultAsyncHttpxClient(transport=engine.openai.transport(llm)) as http:
        model = OpenAILike(
            model="local",
            api_base="http://in-process/v1",
            api_key="in-process",
            async_http_client=http,
            is_chat_model=True,
            is_function_calling_model=True,
            temperature=0,
            max_retries=0,
            additional_kwargs={"extra_body": extra_body},
        )
        agent = FunctionAgent(tools=[task.get_weather, task.multiply], llm=model)
        return str(await agent.run(task.QUESTION))


if __name__ == "__main__":
    task.main(answer)
