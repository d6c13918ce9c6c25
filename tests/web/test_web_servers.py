"""The programs of docs/guides/web-servers.md, run as they stand there: under uvicorn, gunicorn (also with --preload),
Flask, and Celery; and the chat of docs/guides/recipes.md."""

import asyncio
import contextlib
import gc
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from types import ModuleType
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from engine.support import _data

ROOT = Path(__file__).resolve().parents[2]
QUESTION = {"messages": [{"role": "user", "content": "Hello!"}]}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the pages' programs and a model."""
    page = "".join(
        (ROOT / "docs" / "guides" / name).read_text(encoding="utf-8") for name in ("web-servers.md", "recipes.md")
    )
    for name, text in re.findall(r"^```py title=\"(.+?)\"\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "model.gguf").symlink_to(_data.builtin_model())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextlib.contextmanager
def served(command: list[str], folder: Path) -> Generator[str]:
    """The address of a server that runs until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", *(word.format(port=port) for word in command)]
    log = folder / "log.txt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    with (
        log.open("wb") as told,
        subprocess.Popen(words, cwd=folder, stdout=told, stderr=told, env=environment) as child,
    ):
        try:
            until = time.monotonic() + 60
            while True:
                assert child.poll() is None, log.read_text(encoding="utf-8")
                assert time.monotonic() < until, log.read_text(encoding="utf-8")
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()


def posted(url: str, body: object) -> bytes:
    with urlopen(Request(url, json.dumps(body).encode(), {"content-type": "application/json"}), timeout=60) as answer:
        return answer.read()


SERVERS = {
    "uvicorn": ["uvicorn", "server:app", "--port", "{port}"],
    "gunicorn": ["gunicorn", "server:app", "-b", "127.0.0.1:{port}", "-k", "uvicorn_worker.UvicornWorker"],
    "preload": ["gunicorn", "server:app", "-b", "127.0.0.1:{port}", "-k", "uvicorn_worker.UvicornWorker", "--preload"],
}


@pytest.mark.parametrize("server", SERVERS)
def test_fastapi_streams_and_refuses(server: str, programs: Path) -> None:
    for module in ("fastapi", "uvicorn", *(["gunicorn", "uvicorn_worker"] if server != "uvicorn" else [])):
        pytest.importorskip(module)
    with served(SERVERS[server], programs) as url:
        lines = posted(f"{url}/chat", QUESTION).decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        deltas = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        assert "".join(each.get("content", "") for each in deltas) == "Hello! How can I help?"
        assert any("reasoning" in each for each in deltas)
        with pytest.raises(HTTPError) as refused:
            posted(f"{url}/chat", {"messages": [{"role": "user", "content": "word " * 20_000}]})
        with refused.value as error:
            assert error.code == 400
            assert b"tokens" in error.read()


def test_a_client_that_goes_away_stops_the_decode(programs: Path) -> None:
    """The page's app, with a metrics route and endless answers."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    text = (programs / "server.py").read_text(encoding="utf-8")
    text = text.replace("max_tokens=500", "ignore_eos=True, temperature=1, seed=1")
    text += '\n@app.get("/metrics")\nasync def metrics(request: Request):\n'
    text += "    return {'cancelled': request.app.state.llm.metrics.finished.get('cancelled', 0)}\n"
    (programs / "server.py").write_text(text, encoding="utf-8")
    with served(SERVERS["uvicorn"], programs) as url:
        request = Request(f"{url}/chat", json.dumps(QUESTION).encode())
        with urlopen(request, timeout=60) as answer:
            assert answer.read(6) == b"data: "
        until = time.monotonic() + 20
        while json.loads(urlopen(f"{url}/metrics", timeout=20).read())["cancelled"] == 0:
            assert time.monotonic() < until
            time.sleep(0.1)


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_flask_answers_from_threads(programs: Path) -> None:
    pytest.importorskip("flask")
    program = module(programs / "flask_app.py")
    with contextlib.closing(program.llm()):
        answer = program.app.test_client().post("/chat", json={"question": "Hello!"})
        assert answer.get_json() == {"answer": "Hello! How can I help?"}


def test_celery_loads_the_model_in_its_forked_worker(programs: Path) -> None:
    pytest.importorskip("celery")
    (programs / "broker").mkdir()
    path = programs / "tasks.py"
    folder = repr(str(programs / "broker"))
    ways = f"{{'data_folder_in': {folder}, 'data_folder_out': {folder}}}"
    on_disk = f"broker='filesystem://', backend='file://' + {folder}, broker_transport_options={ways}"
    text = path.read_text(encoding="utf-8")
    assert text.count('broker="redis://localhost", backend="redis://localhost"') == 1
    path.write_text(text.replace('broker="redis://localhost", backend="redis://localhost"', on_disk), encoding="utf-8")
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "1"]
    with (programs / "log.txt").open("wb") as told, subprocess.Popen(command, stdout=told, stderr=told) as worker:
        try:
            answer = module(path).summary.delay("The sky is blue.").get(timeout=60)
        finally:
            worker.terminate()
    assert answer, (programs / "log.txt").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_gradio_shows_an_answer_while_it_is_written(programs: Path) -> None:
    gradio = pytest.importorskip("gradio")
    client = pytest.importorskip("gradio_client")
    program = module(programs / "chat_ui.py")
    page = gradio.ChatInterface(program.answer)
    _, url, _ = page.launch(prevent_thread_lock=True, quiet=True)
    with contextlib.closing(program.llm), contextlib.closing(page):
        browser = client.Client(url, verbose=False)
        shown = list(browser.submit("Hello! Who are you?", api_name="/answer"))
        assert len(shown) > 3
        assert shown[-1].startswith("I am the tiny built-in model")
        assert browser.predict("Thank you.", api_name="/answer") == "You are welcome!"
        told = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]  # as a browser's history is
        assert asyncio.run(last(program.answer("Thank you.", [*told, {"role": "assistant", "content": "Hi."}]))) != ""
    del page, browser
    gc.collect()  # gradio leaves event loops open


async def last(texts: AsyncIterator[str]) -> str:
    return [text async for text in texts][-1]
