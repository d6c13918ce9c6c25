"""The same in a real kernel: a cell that ends with a stream, and an interrupted one."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ipykernel")
manager = pytest.importorskip("jupyter_client.manager")

LOAD = """
from engine import ChatTemplate, Engine
from engine.testing import ByteVocab, ScriptedBackend
vocab = ByteVocab(["<|im_start|>", "<think>", "</think>"])
words = " ".join(f"word {n}" for n in range(1200))
long = lambda prompt: words if "long" in prompt else "**Short** <script>alert(1)</script>"
backend = ScriptedBackend(long, vocab=vocab, delay=0.005)
llm = Engine.over(backend, ChatTemplate(None, family="qwen3", control_tokens=vocab.control_tokens))
"""
SHORT = "llm.stream('A question', reasoning=False)"
LONG = "llm.stream('A long one', reasoning=False)"
BEGUN = "print('begun')\n"
WAITING = (
    "await llm.achat('A long one', reasoning=False)",
    "await llm.stream('A long one', reasoning=False)",
    "async for _ in llm.stream('A long one', reasoning=False): pass",
    "await llm.arun('A long one', reasoning=False)",
    "llm.chat('A long one', reasoning=False)",
    "llm.generate(['A long one', 'A long two'], reasoning=False)",
)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """A kernel of this Python with an engine in it, and its client."""
    made = manager.KernelManager()
    made.kernel_spec.argv[0] = sys.executable
    made.start_kernel()
    client = made.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        assert run((made, client), LOAD)[0] == []
        yield made, client
    finally:
        client.stop_channels()
        made.shutdown_kernel(now=True)


def run(kernel: Any, code: str, *, interrupt: bool = False) -> tuple[list[dict[str, Any]], float]:
    """Run a cell; what it shows. With `interrupt` the kernel is interrupted once the cell is under way, and the seconds
    until it ended are given too."""
    made, client = kernel
    shown: list[dict[str, Any]] = []
    at = time.monotonic()

    def heard(message: dict[str, Any]) -> None:
        nonlocal at, interrupt
        kind, content = message["msg_type"], message["content"]
        if kind in ("display_data", "update_display_data", "execute_result", "stream", "error"):
            shown.append({"kind": kind, **content})
        if interrupt and kind == ("stream" if code.startswith(BEGUN) else "display_data"):
            time.sleep(0.7)
            made.interrupt_kernel()
            interrupt, at = False, time.monotonic()

    client.execute_interactive(code, timeout=60, output_hook=heard)
    return shown, time.monotonic() - at


def html(output: dict[str, Any]) -> str:
    return output["data"]["text/html"]


def test_a_stream_renders_live_in_one_output(kernel: Any) -> None:
    first, *updates = run(kernel, SHORT)[0]
    assert first["kind"] == "display_data"
    assert {output["kind"] for output in updates} == {"update_display_data"}
    assert {output["transient"]["display_id"] for output in updates} == {first["transient"]["display_id"]}
    assert "<strong>Short</strong> &lt;script&gt;" in html(updates[-1])
    (table,) = run(kernel, "llm")[0]
    assert "Qwen3" in html(table)


def test_interrupting_a_live_stream_leaves_the_engine_usable(kernel: Any) -> None:
    shown, seconds = run(kernel, LONG, interrupt=True)
    assert seconds < 2, "an interrupt ends the request at once"
    assert "word" in html(shown[-2])
    assert "Interrupted" in html(shown[-2])
    assert shown[-1]["ename"] == "KeyboardInterrupt"
    assert shown[-1]["traceback"] == ["KeyboardInterrupt"], "no lines of this package"
    assert "Short" in html(run(kernel, SHORT)[0][-1])


def test_interrupting_any_wait_leaves_the_engine_usable(kernel: Any) -> None:
    for code in WAITING:
        shown, seconds = run(kernel, BEGUN + code, interrupt=True)
        assert seconds < 2, f"an interrupt ends the request at once: {code}"
        assert shown[-1]["ename"] in ("KeyboardInterrupt", "CancelledError"), code
        (running,) = run(kernel, "print(llm.metrics.running)")[0]
        assert running["text"] == "0\n", f"the request went on: {code}"
    assert "Short" in html(run(kernel, SHORT)[0][-1])


def test_a_loading_cell_that_is_run_again_says_what_is_open(kernel: Any, builtin_model_path: object) -> None:
    quiet = "preflight=False, progress=lambda share: None"
    load = f"real = Engine.load({str(builtin_model_path)!r}, {quiet})"
    assert run(kernel, load)[0] == []
    (told,) = run(kernel, load)[0]
    assert told["data"]["text/plain"].startswith("real is open already and keeps builtin-q8_0.gguf in memory (6 MB)")
    assert run(kernel, f"real.close()\n{load}")[0] == []
    assert run(kernel, "real.close()")[0] == []


def test_a_load_that_takes_long_is_shown_in_the_cell(kernel: Any, builtin_model_path: object) -> None:
    told, *_, last = run(
        kernel,
        "from engine.support import screens\nscreens._LOAD_SHOWN_AFTER = 0\n"
        f"slow = Engine.load({str(builtin_model_path)!r}, preflight=False)\nslow.close()",
    )[0]
    assert told["kind"] == "display_data"
    assert "builtin-q8_0.gguf  loading, " in told["data"]["text/plain"]
    assert last["kind"] == "update_display_data"
    assert "builtin-q8_0.gguf  loaded in " in last["data"]["text/plain"]


def test_what_is_imported_for_the_hub_says_nothing(kernel: Any) -> None:
    """tqdm warns in a notebook without widgets, whoever imports it."""
    assert run(kernel, "import engine.hub, engine.batch")[0] == []


def test_an_error_of_ours_is_a_few_lines(kernel: Any) -> None:
    code = "llm.chat('Hello', temperature=-1)"
    (output,) = run(kernel, code)[0]
    lines = "\n".join(output["traceback"]).splitlines()
    assert len(lines) <= 4
    assert lines[0] == f"line 1: {code}"
    assert lines[-1].startswith("RequestError: ")
