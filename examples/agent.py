"""An agent: the model calls plain Python functions, reads their results, and answers.

python examples/agent.py [MODEL.gguf]
"""

import sys
from typing import Annotated, Literal

from pydantic import Field

from engine import Engine

TEMPERATURES = {"Oslo": 4, "Cairo": 31, "Lima": 19}


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> dict[str, object]:
    """Get the current weather.

    Args:
        city: The name of the city.
        unit: The unit of the temperature.
    """
    if city not in TEMPERATURES:
        raise ValueError(f"no weather station in {city}")  # the model reads this
    degrees = TEMPERATURES[city]
    return {"temperature": degrees if unit == "celsius" else degrees * 9 / 5 + 32, "unit": unit}


def multiply(
    a: Annotated[int, Field(description="the first number")],
    b: Annotated[int, Field(description="the second number")],
) -> int:
    """Multiply two numbers."""
    return a * b


def main(model: str | None = None) -> None:
    with Engine.load(model) as llm:
        for question in ("What is the weather in Oslo?", "What is 127 times 46?", "What is the weather in Atlantis?"):
            run = llm.run(question, tools=[get_weather, multiply], max_steps=4, temperature=0)
            print("question:", question)
            for step in run.steps:
                for call in step.completion.tool_calls:
                    print("call:    ", call.name, call.arguments)
                for result in step.results:
                    print("result:  ", result.content)
            print("answer:  ", run.completion.content, end="\n\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
