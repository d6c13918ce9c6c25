"""litellm: `acompletion` with the engine's client, and a loop over its calls.

pip install '.[openai]' litellm
python examples/frameworks/with_litellm.py [MODEL.gguf]
"""

import json
from typing import Any

import litellm
import task

import engine.openai
from engine import Engine
from engine.tools import as_tools

FUNCTIONS = {"get_weather": task.get_weather, "multiply": task.multiply}


async def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    tools = [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description, "parameters": dict(t.parameters)},
        }
        for t in as_tools([task.get_weather, task.multiply])
    ]
    messages: list[Any] = [{"role": "user", "content": task.QUESTION}]
    async with engine.openai.AsyncOpenAI(llm) as client:
        while True:
            found = await litellm.acompletion(
                model="openai/local",
                messages=messages,
                tools=tools,
                temperature=0,
                client=client,
                extra_body=extra_body,
            )
            message = found.choices[0].message
            print("reasoning:", message.reasoning_content)
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return str(message.content)
            for call in message.tool_calls:
                result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})


if __name__ == "__main__":
    task.main(answer)
