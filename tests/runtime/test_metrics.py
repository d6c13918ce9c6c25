"""engine.runtime.loop.metrics: sums over requests, and their text for Prometheus."""

import re

from fakes.doubles import echo, plain, prompt

from engine.runtime.loop.metrics import Metrics, Tally
from engine.runtime.loop.request import TurnRequest
from engine.runtime.stream.service import Service
from engine.support.errors import EngineError
from engine.testing.scripted import ScriptedBackend
from engine.types.completion import Usage


def test_sums() -> None:
    tally = Tally()
    tally.add("stop", Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=3, time_to_first_token=0.5))
    tally.add("stop", Usage(prompt_tokens=1, drafted_tokens=4, accepted_tokens=3, decode_seconds=1.5))
    before = tally.sums
    tally.add("error", None)
    assert tally.sums == Metrics(
        finished={"stop": 2, "error": 1},
        prompt_tokens=6,
        cached_tokens=2,
        completion_tokens=3,
        drafted_tokens=4,
        accepted_tokens=3,
        decode_seconds=1.5,
        time_to_first_token=0.5,
        first_tokens=1,
    )
    assert before.finished == {"stop": 2}


def test_prometheus_text() -> None:
    text = Metrics(finished={"stop": 2, "cancelled": 1}, running=3, prompt_tokens=7).prometheus("x")
    assert '\nx_requests_total{reason="cancelled"} 1\nx_requests_total{reason="stop"} 2\n' in text
    assert "\nx_requests_running 3\n" in text
    assert "\n# TYPE x_prompt_tokens_total counter\nx_prompt_tokens_total 7\n" in text
    assert "\nx_time_to_first_token_seconds_count 0\n" in text
    sample = r'[a-z_]+(\{[a-z]+="[a-z_]+"\})? -?[0-9.e+-]+'
    assert all(line.startswith("# ") or re.fullmatch(sample, line) for line in text.splitlines())
    described = re.findall(r"# HELP (\S+)", text)
    assert described == re.findall(r"# TYPE (\S+)", text)
    assert len(described) == len(set(described))


def test_a_service_counts_every_request_once() -> None:
    backend = ScriptedBackend(
        lambda text: echo(text) if text != "endless" else "".join(map(str, range(1000))), delay=0.0005
    )
    with Service(backend) as service:
        assert service.metrics == Metrics()
        for _ in range(3):
            service.submit(TurnRequest(prompt("hello"), plain)).result()
        with service.submit(TurnRequest(prompt("endless"), plain)) as stream:
            assert service.metrics.running == 1
        stream.result()
        metrics = service.metrics
    assert metrics.finished == {"stop": 3, "cancelled": 1}
    assert metrics.running == 0
    assert metrics.prompt_tokens == 3 * 5 + 7
    assert metrics.cached_tokens == 2 * 4
    assert metrics.first_tokens >= 3


def test_checkpoints_of_recurrent_memories_are_counted() -> None:
    with Service(ScriptedBackend(echo, trimmable=False, n_sequences=1)) as service:
        service.submit(TurnRequest(prompt("hello"), plain)).result()
        first = service.metrics
        assert first.checkpoints > 0
        service.submit(TurnRequest(prompt("hellore: hello and on"), plain)).result()
        metrics = service.metrics
        assert metrics.checkpoints > first.checkpoints
        assert metrics.checkpoint_bytes > first.checkpoint_bytes > 0
        assert f"\nllama_engine_checkpoint_bytes {metrics.checkpoint_bytes}\n" in metrics.prometheus()


def test_failures_are_counted() -> None:
    with Service(ScriptedBackend([])) as service:
        try:
            service.submit(TurnRequest(prompt("hello"), plain)).result()
        except EngineError:
            assert service.metrics.finished == {"error": 1}
        else:
            raise AssertionError("a script without replies answered")
