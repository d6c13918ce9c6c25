"""The task that all examples of this folder give to a framework: a question that needs two tools."""

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
