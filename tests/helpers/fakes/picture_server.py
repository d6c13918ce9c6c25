"""A server of pictures on the loopback device, which sends what a test orders, and a network in which names lead to
it."""

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from engine import Image
from engine.types.media import urls
from engine.types.media.urls import Place

PUBLIC = "93.184.216.34"
CAT = Image(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
Reply = Callable[[str], Iterable[bytes]]
"""Returns the pieces to send for a request's first lines."""


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def redirect(location: str) -> bytes:
    return answer(b"", f"Location: {location}", status="302 Found")


def drip(data: bytes, seconds: float = 0.05) -> Iterator[bytes]:
    """One byte at a time."""
    for number in range(len(data)):
        yield data[number : number + 1]
        time.sleep(seconds)


class Pictures:
    """The server, and what was asked of it and of the network. `names`: the addresses of names, which are all led to
    this server; `replies`: by path."""

    def __init__(self) -> None:
        self.names: dict[str, Sequence[str]] = {"pictures.example": [PUBLIC]}
        self.replies: dict[str, Reply] = {"/cat.png": lambda _: [answer(CAT.png())]}
        self.requests: list[str] = []
        self.resolved: list[str] = []
        self.connected: list[str] = []
        self.context: ssl.SSLContext | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def on(self, path: str, *pieces: bytes) -> str:
        """Order what is sent for a path; its address."""
        self.replies[path] = lambda _: pieces
        return f"http://pictures.example{path}"

    def resolve(self, host: str, port: int) -> list[Place]:
        self.resolved.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(families[":" in each], (each, port)) for each in self.names[host]]

    def connect(self, place: Place, seconds: float) -> socket.socket:
        """Connects to this server, wherever the address is."""
        self.connected.append(place[1][0])
        return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)

    def close(self) -> None:
        self._ended.set()
        self._listener.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            with suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._reply, args=(connection,), daemon=True).start()

    def _reply(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            secure = self.context.wrap_socket(connection, server_side=True) if self.context else connection
            asked = secure.recv(65536).decode("latin-1")
            self.requests.append(asked)
            path = asked.split(" ")[1].partition("?")[0]
            for piece in self.replies.get(path, lambda _: [answer(b"", status="404 Not Found")])(asked):
                if self._ended.is_set():
                    break
                secure.sendall(piece)
            if secure is not connection:
                secure.close()


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Generator[Pictures]:
    """A server to which every name of its network leads."""
    pictures = Pictures()
    monkeypatch.setattr(urls, "resolve", pictures.resolve)
    monkeypatch.setattr(urls, "connect", pictures.connect)
    try:
        yield pictures
    finally:
        pictures.close()


def certified(folder: Path, host: str) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS with a certificate of its own for a host, and the certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}"]
    more = ["-addext", f"subjectAltName=DNS:{host}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *more], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
