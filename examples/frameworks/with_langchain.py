"""langchain over Chat Completions and over Responses; a framework that makes its client by itself gets a transport.

pip install 'llama-engine[openai]' langchain langchain-openai
python examples/frameworks/with_langchain.py [MODEL.gguf]
"""

import sys

import openai
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from task import QUESTION, get_weather, multiply

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
        agent = create_agent(model, tools=[get_weather, multiply])
        found = agent.invoke({"messages": [{"role": "user", "content": QUESTION}]})
    for message in found["messages"]:
        for block in message.content_blocks:
            if block["type"] == "reasoning":
                parts = block.get("extras", {}).get("content", [])
                print("reasoning:", "".join(part["text"] for part in parts))
    return str(found["messages"][-1].text)


def main(model: str | None = None) -> None:
    with Engine.load(model) as llm:
        print("answer:", answer(llm))  # the reasoning is in the next prompt, but not in the messages
        print("answer:", answer(llm, responses=True))


if __name__ == "__main__":
    main(*sys.argv[1:2])
