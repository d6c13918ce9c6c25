"""A provider of litellm: `llama-engine/...` is an engine in this process.

pip install '.[openai]' litellm
"""

from typing import Any

import litellm

import engine.openai
from engine import Engine


class LlamaEngine(litellm.CustomLLM):
    def __init__(self, llm: Engine) -> None:
        super().__init__()
        self.client, self.async_client = engine.openai.OpenAI(llm), engine.openai.AsyncOpenAI(llm)

    def completion(self, model: str, messages: list[Any], *_: object, **rest: Any) -> Any:
        given = {**rest["optional_params"], "client": self.client}
        return litellm.completion(f"openai/{model}", messages, **given)

    async def acompletion(self, model: str, messages: list[Any], *_: object, **rest: Any) -> Any:
        given = {**rest["optional_params"], "client": self.async_client}
        return await litellm.acompletion(f"openai/{model}", messages, **given)


def ask(llm: Engine, question: str) -> str:
    handler = LlamaEngine(llm)
    litellm.custom_provider_map = [{"provider": "llama-engine", "custom_handler": handler}]
    messages = [{"role": "user", "content": question}]
    found = litellm.completion("llama-engine/local", messages, temperature=0)
    return str(found.choices[0].message.content)
