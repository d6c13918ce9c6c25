"""A chat model of langchain: an engine in this process, for `invoke` and `ainvoke`.

pip install '.[openai]' langchain-openai
"""

from typing import Any, Self

import openai
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

import engine.openai
from engine import Engine


class ChatLlamaEngine(ChatOpenAI):
    @classmethod
    def over(cls, llm: Engine, **options: Any) -> Self:
        way = engine.openai.transport(llm)
        return cls(
            model="local",
            api_key=SecretStr("in-process"),
            base_url="http://in-process/v1",
            http_client=openai.DefaultHttpxClient(transport=way),
            http_async_client=openai.DefaultAsyncHttpxClient(transport=way),
            max_retries=0,
            **options,
        )


def ask(llm: Engine, question: str) -> str:
    model = ChatLlamaEngine.over(llm, temperature=0)
    return str(model.invoke(question).text)
