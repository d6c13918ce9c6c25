"""Names as programs use them: `Engine.load`, the environment's settings, several processes, and ends by force."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes import hub_server
from fakes.hub_server import Hub, cut_after, slowly
from fakes.scripts import wait_until
from files import model_files

from engine import Engine
from engine.hub import api
from engine.support.errors import RequestError

DATA = random.Random(1).randbytes(400_000)
LOCATE = "import sys; from engine.hub import located; print(located(sys.argv[1]))"


@pytest.fixture
def server() -> Generator[Hub]:
    with hub_server.running() as hub:
        hub.add("own/repo", {"m-Q8_0.gguf": DATA})
        yield hub


@contextmanager
def process(hub: Hub, home: Path, code: str, *arguments: str, **settings: str) -> Generator[subprocess.Popen[str]]:
    """A Python process whose huggingface_hub is set up by the environment alone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1,localhost", **settings}
    command = [sys.executable, "-c", code, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as started:
        try:
            yield started
        finally:
            started.kill()


def result(started: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = started.communicate(timeout=60)
    return started.returncode, out.strip(), err


def partial_size(home: Path) -> int:
    return sum(path.stat().st_size for path in home.rglob("*.incomplete"))


def test_an_engine_is_loaded_by_name(hub: Hub, builtin_model_path: Path) -> None:
    hub.add("own/builtin", {"tiny-Q8_0.gguf": builtin_model_path.read_bytes()})
    commit = hub.repos["own/builtin"].commit({"other-Q8_0.gguf": builtin_model_path.read_bytes()}, "v2")
    with Engine.load("own/builtin:q8_0", n_ctx=256) as llm:
        assert llm.chat("Hello", max_tokens=4, temperature=0).usage
        assert llm.info.path.name == "tiny-Q8_0.gguf"
    with Engine.load("own/builtin", revision="v2", n_ctx=256) as llm:
        assert llm.info.path.parts[-2:] == (commit, "other-Q8_0.gguf")
    for model in (builtin_model_path, str(builtin_model_path), None):
        with pytest.raises(RequestError, match="revision='v2' is for models on the Hub"):
            Engine.load(model, revision="v2")


def test_a_split_model_is_loaded(hub: Hub, tmp_path: Path) -> None:
    model_files.write(tmp_path / "tiny-F32.gguf", split_bytes=60_000)
    parts = {path.name: path.read_bytes() for path in tmp_path.glob("tiny-F32-*.gguf")}
    assert len(parts) > 1
    hub.add("own/split", parts)
    with Engine.load("own/split", n_ctx=64, family="hermes") as llm:
        assert llm.info.path.name == f"tiny-F32-00001-of-{len(parts):05}.gguf"
        assert llm.info.path.is_relative_to(api.cache_directory())


def test_settings_come_from_the_environment(server: Hub, tmp_path: Path) -> None:
    server.repos["own/repo"].is_private = True
    cache = tmp_path / "elsewhere"
    with process(server, tmp_path / "home", LOCATE, "own/repo", HF_TOKEN="hf_good", HF_HUB_CACHE=str(cache)) as first:
        code, out, err = result(first)
    assert (code, Path(out).is_relative_to(cache)) == (0, True), err
    assert "m-Q8_0.gguf  400 kB in " in err
    server.requests.clear()
    with process(server, tmp_path / "home", LOCATE, "own/repo", HF_HUB_CACHE=str(cache), HF_HUB_OFFLINE="1") as second:
        assert result(second)[:2] == (0, out)
    assert server.requests == []
    with process(server, tmp_path, LOCATE, "own/repo", HF_TOKEN="hf_good", HF_HUB_DISABLE_PROGRESS_BARS="1") as third:
        code, out, err = result(third)
    assert (code, err, Path(out).is_relative_to(tmp_path / "hub")) == (0, "", True)


def test_a_file_is_loaded_without_huggingface_hub(builtin_model_path: Path, server: Hub, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom engine.api import loading\nloading.located(sys.argv[1], None)\n"
        "print([name for name in sys.modules if name.startswith('huggingface_hub')])"
    )
    with process(server, tmp_path, code, str(builtin_model_path)) as started:
        assert result(started)[:2] == (0, "[]")


def test_two_processes_download_a_file_once(server: Hub, tmp_path: Path) -> None:
    server.faults = [slowly(20_000, 0.1)]
    with process(server, tmp_path, LOCATE, "own/repo") as first:
        wait_until(lambda: partial_size(tmp_path) > 0, 30)
        with process(server, tmp_path, LOCATE, "own/repo") as second:
            results = [result(first), result(second)]
    assert [code for code, *_ in results] == [0, 0], results
    assert results[0][1] == results[1][1]
    assert Path(results[0][1]).read_bytes() == DATA
    assert server.content_starts() == [0]
    assert "Another process downloads this file; waiting for it." in results[1][2]


def test_many_processes_at_once(server: Hub, tmp_path: Path) -> None:
    server.faults = [cut_after(100_000)]
    with (
        process(server, tmp_path, LOCATE, "own/repo") as first,
        process(server, tmp_path, LOCATE, "own/repo") as second,
        process(server, tmp_path, LOCATE, "own/repo") as third,
    ):
        results = [result(each) for each in (first, second, third)]
    assert {out for _, out, _ in results} == {str(next((tmp_path / "hub").rglob("m-Q8_0.gguf")))}, results
    assert Path(results[0][1]).read_bytes() == DATA
    assert server.content_starts() == [0, 100_000]


def test_a_process_that_was_killed_is_taken_over_where_it_was(server: Hub, tmp_path: Path) -> None:
    server.faults = [slowly(20_000, 0.1)]
    with process(server, tmp_path, LOCATE, "own/repo") as first:
        wait_until(lambda: partial_size(tmp_path) >= 60_000, 30)
        with process(server, tmp_path, LOCATE, "own/repo") as second:
            wait_until(lambda: sum(each.method == "HEAD" for each in server.requests) >= 2, 30)
            first.kill()
            code, out, err = result(second)
    assert code == 0, err
    assert Path(out).read_bytes() == DATA
    starts = server.content_starts()
    assert len(starts) == 2
    assert starts[1] >= 60_000
    assert starts[1] % 20_000 == 0


def test_ctrl_c_stops_and_the_next_call_goes_on(server: Hub, tmp_path: Path) -> None:
    server.faults = [slowly(20_000, 0.1)]
    with process(server, tmp_path, LOCATE, "own/repo") as first:
        wait_until(lambda: partial_size(tmp_path) >= 60_000, 30)
        first.send_signal(signal.SIGINT)
        code, _, err = result(first)
    assert code != 0
    assert "the next attempt goes on from there" in err
    assert "KeyboardInterrupt" in err
    begun = partial_size(tmp_path)
    with process(server, tmp_path, LOCATE, "own/repo") as second:
        code, out, err = result(second)
    assert (code, Path(out).read_bytes() == DATA) == (0, True), err
    assert server.content_starts() == [0, begun]
