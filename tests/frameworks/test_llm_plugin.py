"""The plugin for `llm`: its command in a process of its own, without a network; and what goes through its API."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.openai_clients import scripted
from no_network import blocked_path

from engine.support.errors import EngineError, RequestError

llm: Any = pytest.importorskip("llm")
cli: Any = pytest.importorskip("llm.cli")
testing: Any = pytest.importorskip("click.testing")
parts: Any = pytest.importorskip("llm.parts")
plugin: Any = pytest.importorskip("engine.plugins.llm_plugin")

Run = Callable[..., subprocess.CompletedProcess[str]]
TOOLS = '''
def get_weather(city: str) -> str:
    """Get the current weather."""
    return f"4 °C in {city}"

def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b
'''


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "user").mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": blocked_path(tmp_path),
        "LLM_USER_PATH": str(tmp_path / "user"),
        "PYTHONIOENCODING": "utf-8",
        "HF_HOME": str(tmp_path / "hub"),
    }

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "llm", *arguments],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            timeout=240,
            check=False,
        )

    return command


@pytest.fixture(scope="module")
def local() -> Callable[[str], Any]:
    """The models as the plugin registers them, over the engines of one process."""
    found: dict[str, Any] = {}

    def register(model: Any, asynchronous: Any) -> None:
        assert model.model_id == asynchronous.model_id
        found[model.model_id] = model

    plugin.register_models(register)
    return lambda name: found[f"llama-engine/{name}"]


def test_the_entry_point_lists_the_models(run: Run) -> None:
    done = run("models")
    assert done.returncode == 0, done.stderr
    assert {"Local: llama-engine/builtin", "Local: llama-engine/file"} <= set(done.stdout.splitlines())


def test_two_tools_one_after_the_other_and_the_log(
    run: Run, builtin_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    question = "What is the weather in Oslo and what is 127 times 46?"
    chosen = ["-m", "llama-engine/file", "-o", "file", str(builtin_model_path), "-o", "family", "gpt-oss"]
    done = run(*chosen, "-o", "temperature", "0", "--functions", "tools.py", "--td", question)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "The weather result: 4 °C in Oslo. The multiply result: 5842"
    assert "Tool call: get_weather({'city': 'Oslo'})" in done.stderr
    assert "Tool call: multiply({'a': 127, 'b': 46})" in done.stderr
    assert 'I have the first result. I call "multiply" with {"a": 127, "b": 46}.' in done.stderr
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "user"))
    (logged,) = json.loads(testing.CliRunner().invoke(cli.cli, ["logs", "-n", "1", "--json"]).stdout)
    assert logged["model"] == "llama-engine/file"
    assert logged["input_tokens"] > 100
    assert logged["output_tokens"] > 10


def test_a_schema_holds_the_answer(local: Any) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    answer = local("builtin").prompt("Age 36", schema=schema, temperature=0).text()
    assert isinstance(json.loads(answer)["age"], int)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("builtin", {"n_ctx": -5}, "n_ctx=-5 is not valid"),
        ("builtin", {"file": "x.gguf"}, "-o file goes with the model llama-engine/file"),
        ("file", {}, "-o file goes with the model llama-engine/file"),
        ("file", {"file": "no/such.gguf"}, "no/such.gguf"),
        ("builtin", {"temperature": -1}, "temperature"),
    ],
)
def test_mistakes_are_named(local: Any, name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineError, match=re.escape(said)):
        local(name).prompt("Hi", **options).text()


class Held:
    """In place of `Engines`: an engine that is there."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def get(self, name: str, options: Any) -> Any:
        return self.engine


CALL = '<think>\nI ping.\n</think>\n\nSee: <tool_call>\n{"name": "ping", "arguments": {"x": 1}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "ping", "arguments": {"x": [}}\n</tool_call>'


def ping(x: int) -> str:
    """Pings."""
    return f"pong {x}"


def test_parts_stream_as_they_come() -> None:
    with scripted([CALL, "Done."]) as engine:
        response = plugin.Local("builtin", Held(engine)).prompt("Hi.", tools=[ping])
        events = list(response.stream_events())
        kinds = list(dict.fromkeys(event.type for event in events))
        assert kinds == ["reasoning", "text", "tool_call_name", "tool_call_args"]
        assert len(events) > len(kinds), "text comes in fragments"
        (message,) = response.messages()
        assert [type(part).__name__ for part in message.parts] == ["ReasoningPart", "TextPart", "ToolCallPart"]
        (call,) = response.tool_calls()
        assert (call.name, call.arguments) == ("ping", {"x": 1})
        assert message.parts[2].arguments == {"x": 1}
        assert message.parts[2].tool_call_id == call.tool_call_id
        assert response.usage().output > 10
        sent = [each for message in [*response.prompt.messages, message] for each in plugin.as_fields(message)]
        assert sent[1]["reasoning"] == "I ping."
        assert sent[1]["tool_calls"] == [{"id": call.tool_call_id, "name": "ping", "arguments": '{"x": 1}'}]


def test_a_broken_call_is_data() -> None:
    with scripted([BROKEN]) as engine:
        response = plugin.Local("builtin", Held(engine)).prompt("Hi.", tools=[ping])
        (call,) = response.tool_calls()
        assert call.name == "ping"
        assert list(call.arguments) == ["_raw"]
        (message,) = response.messages()
        assert list(message.parts[-1].arguments) == ["_raw"]


def test_a_chain_runs_tools() -> None:
    with scripted([CALL, "Done."]) as engine:
        chain = plugin.Local("builtin", Held(engine)).chain("Hi.", tools=[ping])
        assert chain.text().endswith("Done.")
        results = [result.output for each in chain._responses for result in each.prompt.tool_results]
        assert results == ["pong 1"]


async def test_the_asynchronous_model() -> None:
    with scripted([CALL]) as engine:
        response = plugin.AsyncLocal("builtin", Held(engine)).prompt("Hi.", tools=[ping])
        assert (await response.text()).strip() == "See:"
        assert [call.arguments for call in await response.tool_calls()] == [{"x": 1}]


def test_attachments_are_refused() -> None:
    message = parts.Message("user", [parts.AttachmentPart(llm.Attachment(content=b"x", type="image/png"))])
    with pytest.raises(RequestError, match="attachment"):
        list(plugin.as_fields(message))


def test_options_reach_the_turn() -> None:
    with scripted(["Hello."]) as engine:
        model = plugin.Local("builtin", Held(engine))
        assert model.prompt("Hi.", reasoning="off", max_tokens=3, seed=1).text()
        with pytest.raises(Exception, match="reasoning"):
            model.prompt("Hi.", reasoning="maybe").text()
