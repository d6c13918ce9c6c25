"""The configuration that MCP clients share: read from a dictionary or a file, and run."""

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from fakes.scripts import said, wait_until
from mcp_servers import engine, http, threads

from engine import MCP, EngineError, RequestError
from engine.agent.mcp.config import entries

STDIO = str(Path(__file__).parents[2] / "helpers" / "mcp_stdio.py")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test no connection is left."""
    yield
    wait_until(lambda: not threads(), 10)


def good(**more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", STDIO, "good"], **more}


def test_a_dictionary_and_a_file_of_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two with the same tools, of which one has a prefix; one that is off; keys that only other clients know."""
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("SECRET", "s3cret")
    servers = {
        "a": good(type="stdio", alwaysAllow=["double"]),
        "b": {**good(command="${PYTHON}", env={"KEY": "${SECRET}"}), "cwd": str(tmp_path), "prefix": "b_"},
        "c": {"command": "no-such-command", "disabled": True},
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers, "theme": "dark"}), encoding="utf-8")
    for config in ({"mcpServers": servers}, {"servers": servers}, file, str(file)):
        with engine(said('double {"n": 4}'), said('b_double {"n": 5}'), said("b_where"), "Done.") as llm:
            run = llm.run("Go.", MCP.from_config(config))
        results = [result.content for step in run.steps for result in step.results]
        assert results[:2] == ["8", "10"]
        assert str(tmp_path) in results[2]
    assert [repr(server) for server in MCP.from_config(file)] == [
        "<MCP: the MCP server 'a', not connected>",
        "<MCP: the MCP server 'b', not connected>",
    ]
    with engine(said('x_b_double {"n": 4}'), "Done.") as llm:
        assert llm.run("Go.", MCP.from_config(file, prefix="x_")).steps[0].results[0].content == "8"


def test_the_same_names_without_a_prefix_are_refused() -> None:
    with engine("Done.") as llm, pytest.raises(RequestError, match=r"of the MCP server 'a', one of the MCP server 'b'"):
        llm.run("Go.", MCP.from_config({"mcpServers": {"a": good(), "b": good()}}))


def test_a_url_with_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp.server import MCPServer

    monkeypatch.setenv("TOKEN", "abc")
    real = MCPServer("far", log_level="CRITICAL")
    real.add_tool(double)
    with http(real) as address:
        entry = {"type": "http", "url": address, "headers": {"Authorization": "Bearer ${TOKEN}"}}
        [server] = MCP.from_config({"mcpServers": {"far": entry}})
        with server:
            assert [tool.name for tool in server.tools()] == ["double"]
    assert entries({"mcpServers": {"far": entry}})[0].options["headers"] == {"Authorization": "Bearer abc"}


def double(n: int) -> int:
    """Doubles."""
    return 2 * n


def test_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everywhere; put in once, with a text for one that is not set."""
    monkeypatch.setenv("ONE", "1 ${TWO}")
    monkeypatch.delenv("TWO", raising=False)
    entry = {"command": "${env:ONE}", "args": ["a${ONE}b", "${TWO:-}", "${TWO:-x:y}", "$ONE"], "env": {"A": "${ONE}"}}
    [found] = entries({"mcpServers": {"s": entry}})
    assert found.server == ["1 ${TWO}", "a1 ${TWO}b", "", "x:y", "$ONE"]
    assert found.options["env"] == {"A": "1 ${TWO}"}


def test_a_secret_of_the_environment_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    [server] = MCP.from_config({"mcpServers": {"s": {"command": "no-such-command", "args": ["--token=${SECRET}"]}}})
    with pytest.raises(EngineError, match="MCP server 's' cannot be used") as error, server:
        pass
    assert "s3cret" not in str(error.value) + repr(server)


def test_the_page_runs_a_real_server(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mcp-server-time` of PyPI, by the configuration and the lines of its page, on the built-in model."""
    pytest.importorskip("mcp_server_time", reason="needs mcp-server-time")
    page = (repository / "docs" / "guides" / "agents-and-mcp.md").read_text(encoding="utf-8")
    config = re.search(r'^```json title="mcp.json"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    block = re.search(r"^```py\n([^`]*from_config.*?)^```\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert config
    assert block
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    Path("mcp.json").write_text(config[1], encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block[1], {})
    times = re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|"\w+day"')
    assert times.sub("#", printed.getvalue()) == times.sub("#", block[2])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, 'must have "mcpServers"'),
        ([], 'must have "mcpServers"'),
        ({"mcpServers": []}, 'must have "mcpServers"'),
        ({"mcpServers": {"s": 7}}, 'server "s" must be an object'),
        ({"mcpServers": {"s": {}}}, 'server "s" must have either a "command" or a "url"'),
        ({"mcpServers": {"s": {"command": "a", "url": "http://b"}}}, "must have either"),
        ({"mcpServers": {"s": {"command": 7}}}, '"command" has 7 where a text must be'),
        ({"mcpServers": {"s": {"command": "a", "args": "b"}}}, '"args" must be a list'),
        ({"mcpServers": {"s": {"command": "a", "args": [1]}}}, '"args" has 1 where'),
        ({"mcpServers": {"s": {"command": "a", "env": {"A": 1}}}}, '"env" has 1 where'),
        ({"mcpServers": {"s": {"command": "a", "env": []}}}, '"env" must be an object'),
        ({"mcpServers": {"s": {"command": "${NO_SUCH}"}}}, r'"command" needs the environment variable \${NO_SUCH}'),
        ({"mcpServers": {"s": {"command": "${input:key}"}}}, r"needs the environment variable \${input:key}"),
        ({"mcpServers": {"s": {"type": "sse", "url": "http://b"}}}, "speaks SSE"),
        ({"mcpServers": {"s": {"command": "a", "headers": {"A": "b"}}}}, "headers= is for a server given as a URL"),
        ({"mcpServers": {"s": {"command": "a", "prefix": "a b"}}}, "prefix='a b' is not valid"),
        ("no such.json", "no such.json cannot be read as a configuration of MCP servers"),
        (STDIO, "cannot be read as a configuration of MCP servers"),
    ],
)
def test_what_is_no_configuration(config: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        MCP.from_config(config)
