"""Tests that reach no network: what tries to connect fails, here or in a Python process of their own."""

import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest

_METHODS = ("connect", "connect_ex", "sendto", "bind")
_FUNCTIONS = ("getaddrinfo", "create_connection")


def _refused(*arguments: Any, **_: Any) -> NoReturn:
    raise AssertionError(f"a test reaches for the network: {arguments}")


def block() -> None:
    """From now on this process connects to nothing."""
    for name in _METHODS:
        setattr(socket.socket, name, _refused)
    for name in _FUNCTIONS:
        setattr(socket, name, _refused)


def blocked_path(folder: Path) -> str:
    """A PYTHONPATH under which a Python process blocks its network before anything else."""
    (folder / "sitecustomize.py").write_text("import no_network\nno_network.block()\n", encoding="utf-8")
    return f"{folder}:{Path(__file__).parent}"


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _METHODS:
        monkeypatch.setattr(socket.socket, name, _refused)
    for name in _FUNCTIONS:
        monkeypatch.setattr(socket, name, _refused)
