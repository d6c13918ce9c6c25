"""What all examples of this folder share: a question that needs two tools, and how they are started."""

import asyncio
import inspect
import sys
from collections.abc import Callable
from typing import Any

from engine import Engine

TEMPERATURES = {"Oslo": 4, "Cairo": 31, "Lima": 19}
QUESTION = "What is the weather in Oslo and what is 127 times 46?"


def get_weather(city: str) -> str:
    """Get the current weather.

    Args:
        city: The name of the city.
    """
    found = f"{TEMPERATURES[city]} °C"
    print(f"call: get_weather city={city!r} -> {found}")
    return found


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: A whole number.
        b: A whole number.
    """
    print(f"call: multiply a={a!r} b={b!r} -> {a * b}")
    return a * b


def main(*answers: Callable[[Engine], Any]) -> None:
    """Print the answers of the model that the command line names, or of the built-in one."""
    with Engine.load(*sys.argv[1:2]) as llm:
        for answer in answers:
            found = answer(llm)
            print("answer:", asyncio.run(found) if inspect.iscoroutine(found) else found)
