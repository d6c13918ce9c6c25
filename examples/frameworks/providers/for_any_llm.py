"""A provider of any-llm: an engine in this process.

pip install '.[openai]' any-llm-sdk
"""

from typing import Any

from any_llm.providers.openai.base import BaseOpenAIProvider

import engine.openai
from engine import Engine


class LlamaEngineProvider(BaseOpenAIProvider):
    PROVIDER_NAME = "llama-engine"
    PROVIDER_DOCUMENTATION_URL = "docs/guides/frameworks.md"
    API_BASE = "http://in-process/v1"
    ENV_API_KEY_NAME = ENV_API_BASE_NAME = ""
    SUPPORTS_RESPONSES = SUPPORTS_COMPLETION_REASONING = True

    def __init__(self, llm: Engine) -> None:
        self.llm = llm
        super().__init__(api_key="in-process")

    def _init_client(self, *_: object, **__: object) -> None:
        self.client = engine.openai.AsyncOpenAI(self.llm)


def ask(llm: Engine, question: str) -> str:
    provider = LlamaEngineProvider(llm)
    messages: list[Any] = [{"role": "user", "content": question}]
    found = provider.completion(model="local", messages=messages, temperature=0, stream=False)
    return str(found.choices[0].message.content)
