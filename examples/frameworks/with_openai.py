"""The `openai` package by itself: Responses, with `previous_response_id` in place of a history.

pip install '.[openai]'
python examples/frameworks/with_openai.py [MODEL.gguf]
"""

import json
from typing import TYPE_CHECKING

import task

import engine.openai
from engine import Engine
from engine.tools import as_tools

if TYPE_CHECKING:
    from openai.types.responses import FunctionToolParam
    from openai.types.responses.response_input_item_param import FunctionCallOutput

FUNCTIONS = {"get_weather": task.get_weather, "multiply": task.multiply}


def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    tools: list[FunctionToolParam] = [
        {
            "type": "function",
            "name": t.name,
            "description": t.description,
            "parameters": dict(t.parameters),
            "strict": True,
        }
        for t in as_tools([task.get_weather, task.multiply])
    ]
    with engine.openai.OpenAI(llm) as client:
        response = client.responses.create(
            model="local", input=task.QUESTION, tools=tools, temperature=0, extra_body=extra_body
        )
        while True:
            results: list[FunctionCallOutput] = []
            for item in response.output:
                if item.type == "reasoning":
                    print("reasoning:", "".join(part.text for part in item.content or []))
                elif item.type == "function_call":
                    result = FUNCTIONS[item.name](**json.loads(item.arguments))
                    results.append({"type": "function_call_output", "call_id": item.call_id, "output": str(result)})
            if not results:
                return response.output_text
            response = client.responses.create(
                model="local",
                input=[*results],
                previous_response_id=response.id,
                tools=tools,
                temperature=0,
                extra_body=extra_body,
            )


if __name__ == "__main__":
    task.main(answer)
