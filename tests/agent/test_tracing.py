"""Spans of turns, runs and tools, for OpenTelemetry where a process uses it."""

import json
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

SETUP = """
import asyncio, json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, use_span
from engine.support import tracing
from engine.support.errors import RequestError
from engine.testing import ScriptedEngine

done = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(done))
trace.set_tracer_provider(provider)
mine = trace.get_tracer("mine")
CALL = '<tool_call>\\n{"name": "look_up", "arguments": {"q": "secret"}}\\n</tool_call>'

def look_up(q: str) -> str:
    with mine.start_as_current_span("query"):
        return "found"

async def alook_up(q: str) -> str:
    with mine.start_as_current_span("query"):
        return "found"

def broken(q: str) -> str:
    raise ValueError("secret")

def spans():
    told = done.get_finished_spans()
    names = {span.context.span_id: span.name for span in told}
    done.clear()
    return [
        [span.name, span.parent and names.get(span.parent.span_id, "a span of before"), dict(span.attributes or {}),
         span.status.status_code.name, [event.name for event in span.events]]
        for span in told
    ]

told = {}
"""
BODY = """
from engine.tools import as_tool
def tool(function):
    return as_tool(function).model_copy(update={"name": "look_up"})

with ScriptedEngine(["Hello."]) as llm:
    llm.chat("Hi, secret", temperature=0.5, top_k=7, seed=3, max_tokens=50, stop=["secret"])
told["chat"] = spans()
for name, function, options in [
    ("run", look_up, {}), ("threads", look_up, {"tool_timeout": 9.0}), ("broken", broken, {})
]:
    with ScriptedEngine([CALL, "Done."]) as llm:
        llm.run("Hi", [tool(function)], **options)
    told[name] = spans()
for name, function in [("async", alook_up), ("async, sync tool", look_up)]:
    with ScriptedEngine([CALL, "Done."]) as llm:
        asyncio.run(llm.arun("Hi", [tool(function)]))
    told[name] = spans()
with ScriptedEngine(["Hello.", "Hello."]) as llm, mine.start_as_current_span("request"):
    asyncio.run(llm.achat("Hi"))
    llm.openai_client().chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
told["parent"] = spans()
with ScriptedEngine([" ".join(map(str, range(2000))), "Hello.", "Hello."]) as llm:
    with llm.stream("Hi") as stream:
        next(iter(stream))
    stream.result()
    told["cancelled"] = spans()
    try:
        llm.chat("Hi", logit_bias={10**9: 1.0})
    except RequestError:
        told["refused"] = spans()
    unsampled = NonRecordingSpan(SpanContext(1, 2, is_remote=False))
    with use_span(unsampled):
        llm.chat("Hi", max_tokens=3)
    told["unsampled"] = spans()
with ScriptedEngine(["Hello."]) as llm:
    llm.chat("Hi", max_tokens=2**70, stop=["x" * 10_000] * 40)
tracing.begin("execute_tool", "\\ud800" * 900, {"id": "a\\udfff", "least": -(2**90), "no": None}).end({"used": 2**64})
told["strange"] = spans()
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, list[list[Any]]]:
    """What each part of a process that traces has told: names, parents, attributes, statuses and events of spans."""
    script = SETUP + BODY
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, encoding="utf-8", timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def places(spans: list[list[Any]]) -> list[tuple[str, str | None, str]]:
    """Returns each span's operation, its parent's and its status."""
    return sorted((name.split()[0], parent and parent.split()[0], status) for name, parent, _, status, _ in spans)


def test_a_turn_is_a_span_with_what_was_asked_and_used(told: dict[str, list[list[Any]]]) -> None:
    ((name, parent, attributes, status, _),) = told["chat"]
    assert (parent, status) == (None, "UNSET")
    assert name == f"chat {attributes['gen_ai.request.model']}"
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["gen_ai.request.top_k"] == 7
    assert attributes["gen_ai.request.seed"] == 3
    assert attributes["gen_ai.request.max_tokens"] == 50
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes["gen_ai.usage.input_tokens"] > 0
    assert attributes["gen_ai.usage.output_tokens"] > 0


@pytest.mark.parametrize("kind", ["run", "threads", "async", "async, sync tool"])
def test_turns_and_tools_are_inside_their_run(told: dict[str, list[list[Any]]], kind: str) -> None:
    assert places(told[kind]) == [
        ("chat", "invoke_agent", "UNSET"),
        ("chat", "invoke_agent", "UNSET"),
        ("execute_tool", "invoke_agent", "UNSET"),
        ("invoke_agent", None, "UNSET"),
        ("query", "execute_tool", "UNSET"),
    ]


def test_a_tool_that_fails_is_told_and_the_run_goes_on(told: dict[str, list[list[Any]]]) -> None:
    assert ("execute_tool", "invoke_agent", "ERROR") in places(told["broken"])
    assert ("invoke_agent", None, "UNSET") in places(told["broken"])


def test_the_callers_span_is_the_parent(told: dict[str, list[list[Any]]]) -> None:
    assert places(told["parent"]) == [
        ("chat", "request", "UNSET"),
        ("chat", "request", "UNSET"),
        ("request", None, "UNSET"),
    ]


def test_each_span_ends_whatever_becomes_of_its_turn(told: dict[str, list[list[Any]]]) -> None:
    ((_, _, attributes, _, _),) = told["cancelled"]
    assert attributes["gen_ai.response.finish_reasons"] == ["cancelled"]
    ((_, _, attributes, status, _),) = told["refused"]
    assert (status, attributes["error.type"]) == ("ERROR", "RequestError")


def test_what_the_caller_does_not_sample_is_not_sampled_here(told: dict[str, list[list[Any]]]) -> None:
    assert told["unsampled"] == []


def test_spans_have_no_texts(told: dict[str, list[list[Any]]]) -> None:
    told["chat"][0][2].pop("gen_ai.request.stop_sequences")  # the caller's own option
    assert "secret" not in json.dumps(told)


def test_every_exporter_can_write_what_strangers_send(told: dict[str, list[list[Any]]]) -> None:
    """OTLP's takes integers of 64 bits and UTF-8, and loses a whole batch of spans for one that is not."""
    assert len(told["strange"]) == 2
    for name, _, attributes, _, _ in told["strange"]:
        values = (name, *attributes.values())
        lists: list[list[Any]] = [value if isinstance(value, list) else [value] for value in values]
        assert max(map(len, lists)) <= 16
        for each in (each for some in lists for each in some):
            assert not isinstance(each, int) or -(2**63) <= each < 2**63
            assert len(str(each).encode()) <= 1024


def test_a_process_that_does_not_trace_imports_nothing() -> None:
    script = (
        "import sys; from engine.testing import ScriptedEngine\n"
        "with ScriptedEngine(['Hello.']) as llm: llm.run('Hi')\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
