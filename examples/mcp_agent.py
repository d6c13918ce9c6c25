"""An agent whose tools come from an MCP server in a process of its own.

python examples/mcp_agent.py [MODEL.gguf]

Needs `pip install '.[mcp]'`. This file is the server, too: it starts itself with `--serve`.
"""

import sys

from engine import MCP, Engine, ToolCall

TEMPERATURES = {"Oslo": 4, "Cairo": 31, "Lima": 19}


def serve() -> None:
    """The server, as anybody may write one."""
    from mcp.server import MCPServer

    server = MCPServer("weather", log_level="ERROR")

    @server.tool()
    def get_weather(city: str) -> str:  # pyright: ignore[reportUnusedFunction]
        """Get the current weather.

        Args:
            city: The name of the city.
        """
        return f"{TEMPERATURES[city]} degrees" if city in TEMPERATURES else f"no weather station in {city}"

    server.run()


def allow(call: ToolCall) -> bool | str:
    """Asked before each call."""
    return "Lima is closed today" if call.parsed()["city"] == "Lima" else True


def main(model: str | None = None) -> None:
    weather = MCP([sys.executable, __file__, "--serve"])  # MCP("uvx some-server"), MCP("https://host/mcp")
    with Engine.load(model) as llm, weather:  # connected for all the runs
        print("tools:   ", ", ".join(tool.name for tool in weather.tools()))
        for city in ("Oslo", "Lima"):
            run = llm.run(f"What is the weather in {city}?", [weather], approve=allow, max_steps=4, temperature=0)
            for step in run.steps:
                for call in step.completion.tool_calls:
                    print("call:    ", call.name, call.arguments)
                for result in step.results:
                    print("result:  ", result.content)
            print("answer:  ", run.completion.content)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        main(*sys.argv[1:2])
