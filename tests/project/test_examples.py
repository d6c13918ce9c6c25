"""The examples run on the built-in model and print what a reader expects."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from files.projector_files import KINDS, write_projector

from engine import Engine
from engine.openai import transport


def run(repository: Path, name: str, *arguments: object) -> str:
    """What an example prints. It must end well and say nothing on stderr."""
    done = subprocess.run(
        [sys.executable, f"examples/{name}", *map(str, arguments)],
        cwd=repository,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(repository), "PYTHONIOENCODING": "utf-8"},
    )
    warned = [line for line in done.stderr.splitlines() if "preflight" not in line.lower()]
    assert done.returncode == 0, done.stderr
    assert warned == [] or "EngineWarning" in done.stderr, done.stderr
    return done.stdout


def test_agent(repository: Path, builtin_model_path: Path) -> None:
    weather, product, missing = run(repository, "agent.py", builtin_model_path).strip().split("\n\n")
    assert 'call:     get_weather {"city": "Oslo"}' in weather
    assert 'result:   {"temperature": 4, "unit": "celsius"}' in weather
    assert re.search(r"answer: .*\b4\b", weather)
    assert 'call:     multiply {"a": 127, "b": 46}' in product
    assert re.search(r"answer: .*5842", product)
    assert "result:   Error: ValueError: no weather station in Atlantis" in missing
    assert re.search(r"answer: .*no weather station in Atlantis", missing)


def test_stream(repository: Path, builtin_model_path: Path) -> None:
    printed = run(repository, "stream.py", builtin_model_path)
    assert re.search(r"^user: Set a timer for 12 minutes\n\(.+\)\nset_timer ", printed)
    arguments = re.search(r"^set_timer (.+)$", printed, re.MULTILINE)
    assert arguments
    assert arguments[1].count("|") > 2
    assert json.loads(arguments[1].replace("|", "")) == {"minutes": 12}
    assert "[tool_calls]" in printed
    assert len(re.findall(r"^assistant: \w+", printed, re.MULTILINE)) == 2


def test_images(repository: Path, builtin_model_path: Path, tmp_path: Path) -> None:
    pictures = pytest.importorskip("PIL.Image")
    photos = [tmp_path / "red.png", tmp_path / "blue.png"]
    for path, colour in zip(photos, ("red", "blue"), strict=True):
        pictures.new("RGB", (64, 40), colour).save(path)
    projector = write_projector(tmp_path / "mmproj.gguf", KINDS["llava"])
    red, blue, together = run(repository, "images.py", builtin_model_path, projector, *photos).splitlines()
    assert re.match(r"red.png: 64 x 40, kind='(photo|drawing|text)' what=", red)
    assert blue.startswith("blue.png: 64 x 40, kind=")
    assert together.startswith("together: ")


def test_openai_client(repository: Path, builtin_model_path: Path) -> None:
    pytest.importorskip("openai")
    fragments, call, answer, cached = run(repository, "openai_client.py", builtin_model_path).strip().splitlines()
    assert fragments.count("|") > 2
    assert json.loads(fragments.replace("|", "")) == {"city": "Oslo"}
    assert call == 'get_weather {"city": "Oslo"} -> 4'
    assert re.search(r"\b4\b", answer)
    assert re.match(r"\d{3} of \d{3} prompt tokens were there already", cached)


@contextmanager
def serving(llm: Engine) -> Generator[str]:
    """An engine as an HTTP server on the loopback device; its URL."""
    import openai

    client = openai.DefaultHttpxClient(transport=transport(llm))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            with client.stream("POST", f"http://engine{self.path}", content=content) as response:
                self.send_response(response.status_code)
                self.send_header("content-type", response.headers["content-type"])
                self.end_headers()
                for block in response.iter_bytes():
                    self.wfile.write(block)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
            """Say nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        client.close()


def test_remote(repository: Path, builtin_model_path: Path) -> None:
    pytest.importorskip("openai")
    with Engine.load(builtin_model_path) as llm, serving(llm) as url:
        lines = run(repository, "remote.py", url).splitlines()
    assert 'call:   get_weather {"city": "Oslo"}' in lines
    assert 'result: {"temperature": 4, "unit": "celsius"}' in lines
    assert re.search(r"\b4\b", lines[-2])
    assert lines[-1] == "[stop]"


def test_mcp_agent(repository: Path, builtin_model_path: Path) -> None:
    pytest.importorskip("mcp")
    lines = run(repository, "mcp_agent.py", builtin_model_path).splitlines()
    assert lines[:3] == ["tools:    get_weather", 'call:     get_weather {"city": "Oslo"}', "result:   4 degrees"]
    assert re.match(r"answer: .*\b4\b", lines[3])
    assert lines[4:6] == [
        'call:     get_weather {"city": "Lima"}',
        "result:   Error: the call was denied: Lima is closed today",
    ]


def test_batch(repository: Path, builtin_model_path: Path) -> None:
    lines = run(repository, "batch.py", builtin_model_path).splitlines()
    assert lines[0] == "Create an event budget review on 2026-03-14"
    assert len([line for line in lines if line.startswith("    ")]) == 6
    found = [line.strip() for line in lines if re.match(r"    2026-\d\d-\d\d  \w", line)]
    assert len(found) >= 4, "\n".join(lines)
    assert re.match(r"6 answers, \d{3,} tokens", lines[-1])
