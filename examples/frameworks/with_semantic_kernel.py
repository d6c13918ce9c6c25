"""semantic-kernel: a ChatCompletionAgent over Chat Completions.

pip install '.[openai]' semantic-kernel
python examples/frameworks/with_semantic_kernel.py [MODEL.gguf]
"""

import task
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.functions import KernelArguments, KernelFunctionFromMethod, kernel_function

import engine.openai
from engine import Engine


async def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    async with engine.openai.AsyncOpenAI(llm) as client:
        model = OpenAIChatCompletion("local", async_client=client)
        functions = [KernelFunctionFromMethod(kernel_function(f)) for f in (task.get_weather, task.multiply)]
        settings = OpenAIChatPromptExecutionSettings(temperature=0, extra_body=extra_body)
        agent = ChatCompletionAgent(service=model, plugins=functions, arguments=KernelArguments(settings))
        found = await agent.get_response(task.QUESTION)
    return str(found.content)


if __name__ == "__main__":
    task.main(answer)
