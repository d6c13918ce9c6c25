"""The same events and agent loop from a server that speaks Chat Completions, such as llama-server.

pip install '.[openai]'
python examples/remote.py http://localhost:8080/v1
"""

import sys

import openai

from engine import ContentDelta, ReasoningDelta, ToolCallEnd, ToolCallStart, ToolResult, remote

TEMPERATURES = {"Oslo": 4, "Cairo": 31, "Lima": 19}


def get_weather(city: str) -> dict[str, object]:
    """Get the current weather.

    Args:
        city: The name of the city.
    """
    return {"temperature": TEMPERATURES[city], "unit": "celsius"}


def main(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="none") as client:
        llm = remote.Remote(client, model="any", temperature=0)
        with llm.stream_run("What is the weather in Oslo?", tools=[get_weather], max_steps=4) as run:
            for event in run:
                match event:
                    case ReasoningDelta() | ContentDelta():
                        print(event.text, end="", flush=True)
                    case ToolCallStart():
                        print(f"\ncall:   {event.name} ", end="")
                    case ToolCallEnd():
                        print(event.arguments)
                    case ToolResult():
                        print(f"result: {event.content}")
                    case _:
                        pass
        print(f"\n[{run.result().stopped}]")


if __name__ == "__main__":
    main(sys.argv[1])
