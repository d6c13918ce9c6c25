"""mirascope: its calls over Chat Completions.

pip install '.[openai]' mirascope
python examples/frameworks/with_mirascope.py [MODEL.gguf]
"""

import task
from mirascope import llm as mirascope
from mirascope.llm.providers.openai.completions.base_provider import BaseOpenAICompletionsProvider

import engine.openai
from engine import Engine


class InProcess(BaseOpenAICompletionsProvider):
    """mirascope's Chat Completions, with the clients of an engine."""

    id = "in-process"
    default_scope = "in-process/"

    def __init__(self, llm: Engine) -> None:
        self.client = engine.openai.OpenAI(llm)
        self.async_client = engine.openai.AsyncOpenAI(llm)


def answer(llm: Engine, _extra_body: dict[str, object] | None = None) -> str:
    mirascope.register_provider(InProcess(llm))
    tools = [mirascope.tool(task.get_weather), mirascope.tool(task.multiply)]

    @mirascope.call("in-process/local", tools=tools, temperature=0)
    def ask(question: str) -> str:
        return question

    response = ask(task.QUESTION)
    while response.tool_calls:
        response = response.resume(response.execute_tools())
    return response.text()


if __name__ == "__main__":
    task.main(answer)
