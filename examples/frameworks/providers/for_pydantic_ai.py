"""A provider of pydantic-ai: an engine in this process.

pip install '.[openai]' 'pydantic-ai-slim[openai]'
"""

from pydantic_ai import Agent
from pydantic_ai.models import infer_model
from pydantic_ai.providers.openai import OpenAIProvider

import engine.openai
from engine import Engine


class LlamaEngineProvider(OpenAIProvider):
    def __init__(self, llm: Engine) -> None:
        super().__init__(openai_client=engine.openai.AsyncOpenAI(llm))

    @property
    def name(self) -> str:
        return "llama-engine"


def ask(llm: Engine, question: str) -> str:
    model = infer_model("openai-chat:local", lambda _: LlamaEngineProvider(llm))
    return Agent(model, model_settings={"temperature": 0}).run_sync(question).output
