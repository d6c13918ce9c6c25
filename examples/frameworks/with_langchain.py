"""langchain over Chat Completions and over Responses; a framework that makes its client by itself gets a transport.

pip install '.[openai]' langchain langchain-openai
python examples/frameworks/with_langchain.py [MODEL.gguf]
"""

from functools import partial

import openai
import task
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

import engine.openai
from engine import Engine


def answer(llm: Engine, extra_body: dict[str, object] | None = None, *, responses: bool = False) -> str:
    with openai.DefaultHttpxClient(transport=engine.openai.transport(llm)) as http:
        model = ChatOpenAI(
            model="local",
            temperature=0,
            api_key=SecretStr("in-process"),
            base_url="http://in-process/v1",
            http_client=http,
            max_retries=0,
            use_responses_api=responses,
            extra_body=extra_body,
        )
        agent = create_agent(model, tools=[task.get_weather, task.multiply])
        found = agent.invoke({"messages": [{"role": "user", "content": task.QUESTION}]})
    for message in found["messages"]:
        for block in message.content_blocks:
            if block["type"] == "reasoning":
                parts = block.get("extras", {}).get("content", [])
                print("reasoning:", "".join(part["text"] for part in parts))
    return str(found["messages"][-1].text)


if __name__ == "__main__":
    task.main(answer, partial(answer, responses=True))
