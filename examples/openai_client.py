"""The `openai` package's own client, over a model in this process: a tool call streamed, its result sent back.

pip install '.[openai]'
python examples/openai_client.py [MODEL.gguf]
"""

import json
import sys
from typing import TYPE_CHECKING

from engine import Engine

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

TEMPERATURES = {"Oslo": 4, "Cairo": 31, "Lima": 19}
TOOL: "ChatCompletionToolParam" = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def main(model: str | None = None) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    with Engine.load(model) as llm, llm.openai_client() as client:
        with client.chat.completions.stream(
            model="local", messages=messages, tools=[TOOL], temperature=0, parallel_tool_calls=False
        ) as stream:
            for event in stream:
                if event.type == "tool_calls.function.arguments.delta":
                    print(event.arguments_delta, end="|")
            answer = stream.get_final_completion().choices[0].message
        print()
        calls = answer.tool_calls or []
        messages.append(
            {
                "role": "assistant",
                "content": answer.content,
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments},
                    }
                    for call in calls
                ],
            }
        )
        for call in calls:
            degrees = TEMPERATURES[json.loads(call.function.arguments)["city"]]
            print(call.function.name, call.function.arguments, "->", degrees)
            result = json.dumps({"temperature": degrees, "unit": "celsius"})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        last = client.chat.completions.create(model="local", messages=messages, tools=[TOOL], temperature=0)
        print(last.choices[0].message.content)
        if last.usage and last.usage.prompt_tokens_details:
            cached = last.usage.prompt_tokens_details.cached_tokens
            print(f"{cached} of {last.usage.prompt_tokens} prompt tokens were there already")


if __name__ == "__main__":
    main(*sys.argv[1:2])
