"""`examples/ray_serve.py` on a local Ray cluster: two replicas, one of which is killed; clients that leave.

Needs Ray Serve; `.ci/ray` installs it and runs this file. Where it is missing, the file is skipped.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fakes.ray_engines import scripted

# Ray's own warnings are no failures of ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(sys.platform != "linux", reason="replicas are found in /proc"),
]
ray: Any = pytest.importorskip("ray", reason="needs ray[serve]")
serve: Any = pytest.importorskip("ray.serve", reason="needs ray[serve]")
httpx2: Any = pytest.importorskip("httpx2", reason="needs httpx2")
QUESTION: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}


@pytest.fixture(scope="module")
def example(repository: Path) -> Iterator[Any]:
    """The module of the example, whose replicas find this checkout and the helpers of its tests."""
    paths = [str(repository), str(repository / "examples"), str(repository / "tests" / "helpers")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setattr(sys, "path", [paths[1], *sys.path])
        variables = {"PYTHONPATH": os.pathsep.join(paths)}
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
        yield import_module("ray_serve")
        serve.shutdown()
        ray.shutdown()


@pytest.fixture
def client() -> Iterator[Any]:
    with httpx2.Client(base_url="http://127.0.0.1:8000", timeout=60) as made:
        yield made


def replicas() -> set[int]:
    """The processes that are replicas."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::ServeReplica:default:Chat"):
                found.add(int(path.parent.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def running() -> int:
    [deployment] = serve.status().applications["default"].deployments.values()
    return int(deployment.replica_states.get("RUNNING", 0))


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_two_replicas_of_which_one_is_killed(example: Any, client: Any) -> None:
    """Clients that try again (as OpenAI's does) get every answer, from the other one and from the one that follows."""
    serve.run(example.app({}))
    one, stays = before = sorted(replicas())
    assert len(before) == 2

    def ask(number: int) -> tuple[str, int]:
        for tried in range(1, 20):
            try:
                answer = client.post("/v1/chat/completions", json=QUESTION)
            except httpx2.TransportError:
                continue
            if answer.status_code == 200:
                return answer.json()["choices"][0]["message"]["content"], tried
            assert answer.status_code >= 500, answer.text
            time.sleep(0.2)
        raise AssertionError("no answer")

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, number) for number in range(40)]
        answers[0].result()
        os.kill(one, signal.SIGKILL)
        said = {answer.result()[0] for answer in answers}
    assert said == {"Hello! How can I help?"}
    wait_until(lambda: running() == 2 and len(replicas()) == 2)
    assert stays in replicas()
    assert one not in replicas()


def test_errors_and_streams_are_those_of_the_engine(example: Any, client: Any) -> None:
    serve.run(example.app({"replicas": "1"}))
    wrong = client.post("/v1/chat/completions", json={"messages": "x"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "messages")
    with client.stream("POST", "/v1/chat/completions", json={**QUESTION, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 5
    assert [each["id"] for each in client.get("/v1/models").json()["data"]]


def test_a_client_that_leaves_frees_its_sequence(example: Any, client: Any) -> None:
    """One sequence, whose answer would take more than a minute: the next question is answered at once."""

    base: Any = example.Chat.func_or_class

    class Chat(base):
        def __init__(self) -> None:
            from unittest.mock import patch

            from engine import Engine

            def load(*_: Any, **__: Any) -> Engine:
                return scripted(delay=0.05, n_sequences=1)()

            with patch.object(Engine, "load", load):
                base.__init__(self)

    serve.run(serve.deployment(Chat).options(name="Chat").bind())
    long = {"messages": [{"role": "user", "content": "much " * 500}], "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=long) as answer:
        next(answer.iter_lines())
    began = time.monotonic()
    assert client.post("/v1/chat/completions", json=QUESTION).status_code == 200
    assert time.monotonic() - began < 20
