"""Tests that no network may be reached by: what tries to connect fails."""

import socket
from typing import Any, NoReturn

import pytest


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **_: Any) -> NoReturn:
        raise AssertionError(f"a test reaches for the network: {arguments}")

    for name in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, name, refused)
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refused)
