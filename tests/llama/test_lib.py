"""llama.cpp's log lines reach Python's logging, whole, at their level, and nowhere else."""

import logging
from pathlib import Path

import pytest
from files import model_files

from engine import Engine, EngineError
from engine.llama import lib as llama_log
from engine.llama.model import Model

DEBUG, INFO, WARN, ERROR, CONT = 1, 2, 3, 4, 5


@pytest.fixture(autouse=True)
def listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="engine.llama")
    llama_log.forget_errors()


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_levels(caplog: pytest.LogCaptureFixture) -> None:
    for level in (DEBUG, INFO, WARN, ERROR, 0, 99):
        llama_log.CALLBACK(level, b"line %s\n", None)
    assert [level for level, _ in lines(caplog)] == [10, 10, 30, 40, 10, 10]
    assert {text for _, text in lines(caplog)} == {"line %s"}


def test_a_full_cache_is_ordinary(caplog: pytest.LogCaptureFixture) -> None:
    llama_log.CALLBACK(WARN, b"decode: failed to find a memory slot for batch of size 4\n", None)
    llama_log.CALLBACK(WARN, b"something else\n", None)
    assert [level for level, _ in lines(caplog)] == [logging.DEBUG, logging.WARNING]


def test_parts_are_joined(caplog: pytest.LogCaptureFixture) -> None:
    llama_log.CALLBACK(WARN, b"load: ", None)
    for _ in range(3):
        llama_log.CALLBACK(CONT, b".", None)
    llama_log.CALLBACK(CONT, b"\n", None)
    assert lines(caplog) == [(30, "load: ...")]


def test_a_part_without_an_end_is_written_when_the_next_line_begins(caplog: pytest.LogCaptureFixture) -> None:
    llama_log.CALLBACK(WARN, b"half", None)
    llama_log.CALLBACK(ERROR, b"whole\n", None)
    assert lines(caplog) == [(30, "half"), (40, "whole")]


def test_empty_and_broken_texts(caplog: pytest.LogCaptureFixture) -> None:
    llama_log.CALLBACK(ERROR, None, None)
    llama_log.CALLBACK(ERROR, b"\n", None)
    llama_log.CALLBACK(ERROR, b"caf\xe9\n", None)
    assert lines(caplog) == [(40, "caf\ufffd")]


def test_errors_are_remembered_though_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="engine.llama")
    llama_log.CALLBACK(WARN, b"a warning\n", None)
    llama_log.CALLBACK(ERROR, b"first\n", None)
    llama_log.CALLBACK(ERROR, b"second\n", None)
    assert llama_log.last_errors() == "first; second"
    llama_log.forget_errors()
    assert llama_log.last_errors() == ""


def test_a_load_is_told_in_detail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Model.load(model_files.write(tmp_path / "m.gguf")).close()
    assert any("general.architecture" in text for _, text in lines(caplog))
    assert all(level == logging.DEBUG or "token" in text for level, text in lines(caplog))


def test_a_fork_does_not_touch_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver would end the process; without a GPU a fork may load."""
    lib, home = llama_log.library(), llama_log._home()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(home, "_pid", -1)
    monkeypatch.setattr(lib, "llama_supports_gpu_offload", lambda: False)
    Engine.load(n_ctx=256, preflight=False).close()
    monkeypatch.setattr(lib, "llama_supports_gpu_offload", lambda: True)
    with pytest.raises(EngineError, match=r"cannot be used after a fork.*spawn"):
        Engine.load(n_ctx=256, preflight=False)
