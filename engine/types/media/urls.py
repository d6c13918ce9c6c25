"""Pictures at http(s) addresses: fetched within limits, from public addresses only.

A name is resolved once, all of its addresses are checked, and one of these very addresses is connected to: a second
answer of the name's server would lead nowhere. No proxy is used, and nothing of the environment but the certificates.
Sources: RFC 9110, RFC 9112; IANA's registries of special-purpose addresses (RFC 6890).
"""

import io
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote, urljoin, urlsplit

from engine.support import threads
from engine.support.errors import RequestError, shown
from engine.support.offloop import in_thread, is_unwanted
from engine.types.media.source import MOST_BYTES

if TYPE_CHECKING:
    from http.client import HTTPResponse

Place: TypeAlias = "tuple[socket.AddressFamily, tuple[Any, ...]]"
"""A family, and an address of `socket.connect`: first the numeric address."""

_LONGEST_ADDRESS = 8 << 10
_HEADERS = 64 << 10  # bytes of an answer before its body
_PIECE = 64 << 10
_AHEAD = 8 << 10  # bytes that may be read beyond the headers: part of the body, but counted with them
_PORTS = {"http": 80, "https": 443}
_UNWRITABLE = re.compile(r"[\x00-\x20\x7f\\]")
_IN_PATH = "/:@!$&'()*+,;=-._~%?"
_MOST_RESOLVING = 8
_resolving = threading.BoundedSemaphore(_MOST_RESOLVING)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_log = logging.getLogger("engine.media")


@threads.after_fork
def _after_fork() -> None:
    """Replace the slots, which threads of the parent may hold."""
    global _resolving  # noqa: PLW0603 - a process has one
    _resolving = threading.BoundedSemaphore(_MOST_RESOLVING)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaUrls:
    """That pictures at http(s) addresses are fetched, and within which limits.

    hosts: only from these ("example.org"; ".example.org" is every name below it); None: from any that is public.
        The list narrows: what is not public is never connected to.
    max_bytes: of one picture. max_links: of one conversation. max_redirects: of one picture. seconds: for all pictures
        of one request together. ports: that an address may name.

    Raises RequestError for a value that is not valid.
    """

    hosts: Sequence[str] | None = None
    max_bytes: int = 20 << 20
    max_links: int = 16
    max_redirects: int = 3
    seconds: float = 20.0
    ports: Sequence[int] = (80, 443)

    def __post_init__(self) -> None:
        for name, most in (("max_bytes", MOST_BYTES), ("max_links", 1000), ("max_redirects", 20), ("seconds", 600)):
            value: object = getattr(self, name)
            is_number = isinstance(value, int if name != "seconds" else int | float) and not isinstance(value, bool)
            least = 0 if name == "max_redirects" else 1
            if not is_number or not least <= getattr(self, name) <= most:
                raise RequestError(f"{name}={shown(value)} is not valid; give a number from {least} to {most:,}.")
        for name, kind in (("hosts", str), ("ports", int)):
            values: Any = getattr(self, name)
            if values is not None and (isinstance(values, str) or not all(isinstance(each, kind) for each in values)):
                raise RequestError(f"{name}={shown(values)} is not valid; give a list.")


class _Target(NamedTuple):
    """What an address names. `host`: in ASCII; `path`: with the query."""

    scheme: str
    host: str
    port: int
    path: str


def fetched(address: str, options: MediaUrls, until: float) -> bytes:
    """Returns the bytes at an address. `until`: the deadline on `time.monotonic`'s clock. Raises RequestError, which
    says nothing about addresses of networks that are not public."""
    here, before = address, ""
    try:
        for _ in range(options.max_redirects + 1):
            target = _target(here, options)
            if before.startswith("https:") and target.scheme == "http":
                raise _refused("it redirects from https to http")
            with closing(_connected(target, until)) as connection:
                found = _answered(connection, target, options.max_bytes, until)
            if isinstance(found, bytes):
                return found
            here, before = _joined(here, found), here
        raise _refused(f"it redirects more than {options.max_redirects} times")
    except RequestError as error:
        through = "" if here == address else f" (redirected to {shown(here)})"
        raise RequestError(f"the picture at {shown(address)}{through} was not read: {error}") from error


def _joined(here: str, location: str) -> str:
    try:
        return urljoin(here, location)
    except ValueError as error:
        raise _refused("it redirects to an address that is not valid") from error


def _refused(why: str) -> RequestError:
    return RequestError(f"{why}. Send the picture's bytes as a data: URL.")


def _target(address: str, options: MediaUrls) -> _Target:
    """Returns what an address names. Raises RequestError for what may not be fetched, whatever its host resolves to."""
    if len(address) > _LONGEST_ADDRESS or _UNWRITABLE.search(address):
        raise _refused("its address is too long, or has spaces, control characters or backslashes")
    try:
        parts = urlsplit(address)
        port, name = parts.port, parts.hostname or ""
        host = name if ":" in name else name.encode("idna").decode("ascii")
    except ValueError as error:  # UnicodeError is one
        raise _refused("its address is not valid") from error
    if parts.scheme not in _PORTS:
        raise _refused(f"{shown(parts.scheme)} is neither http nor https")
    if "@" in parts.netloc:
        raise _refused("its address has a user name or password")
    if not host:
        raise _refused("its address has no host")
    if options.hosts is not None and not any(_is_named(host, each.lower()) for each in options.hosts):
        raise _refused("its host is not one of those that this engine fetches from")
    port = _PORTS[parts.scheme] if port is None else port
    if port not in options.ports:
        raise _refused(f"port {port} is not one of those that this engine fetches from")
    path = quote(parts.path or "/", safe=_IN_PATH) + (f"?{quote(parts.query, safe=_IN_PATH)}" if parts.query else "")
    return _Target(parts.scheme, host, port, path)


def _is_named(host: str, allowed: str) -> bool:
    host = host.rstrip(".").lower()
    return host.endswith(allowed) if allowed.startswith(".") else host == allowed


_SPECIAL = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # Azure's own service, from inside its machines
            "192.0.0.0/24",
            "192.88.99.0/24",
            "2001::/23",
            "2002::/16",  # holds an IPv4 address, as some of the one above
            "3fff::/20",
        ),
    )
)
"""Networks that are not public, though `ipaddress` calls some of their addresses global."""
_UNICAST = ip_network("2000::/3")
"""All public IPv6 addresses: so none that holds an IPv4 address (::ffff:0:0/96, 64:ff9b::/96)."""


def is_public(address: str) -> bool:
    """Whether a numeric address is one of the public Internet: not private, shared, of this machine or its link, of
    several machines, reserved, or a way into such a network."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and (ip not in _UNICAST or ip.scope_id):
        return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _SPECIAL)


def resolve(host: str, port: int) -> list[Place]:
    """Returns all addresses of a name. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def connect(place: Place, seconds: float) -> socket.socket:
    """Connects to an address. Raises OSError."""
    family, address = place
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _left(until: float) -> float:
    """Returns the seconds that are left. Raises TimeoutError, and RequestError if nobody waits any more."""
    if is_unwanted():
        raise RequestError("the request was cancelled")
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError
    return left


def _guarded(work: Callable[[], Any], failed: str) -> Any:
    """Returns what `work` returns. Raises RequestError for errors of the network."""
    import http.client
    import ssl

    try:
        return work()
    except TimeoutError as error:
        raise _refused("it takes too long") from error
    except ssl.SSLCertVerificationError as error:
        raise _refused(f"its certificate is not valid ({error.verify_message})") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        _log.debug("%s: %r", failed, error)
        raise _refused(failed) from error


def _resolved(target: _Target, until: float) -> list[Place]:
    """Returns all addresses of a target. A resolver that hangs keeps `_MOST_RESOLVING` threads at most."""
    slots = _resolving
    if not slots.acquire(timeout=_left(until)):
        raise TimeoutError

    def looked_up() -> list[Place]:
        try:
            return resolve(target.host, target.port)
        finally:
            slots.release()

    try:
        places = in_thread(looked_up)
    except BaseException:  # there is no thread that would release it
        slots.release()
        raise
    return places.result(_left(until))


def _connected(target: _Target, until: float) -> socket.socket:
    """Connects to a public address of a target; with https, verifies its certificate."""

    def found() -> list[Place]:
        return _resolved(target, until)

    unknown = "its host is not known, or not a public one"  # in one text, which does not say what is there
    places = _guarded(found, unknown)
    if not places or not all(is_public(address[0]) for _, address in places):
        raise _refused(unknown)

    def reached() -> socket.socket:
        for number, place in enumerate(places):
            try:
                return connect(place, _left(until) / (len(places) - number))
            except OSError:
                if number == len(places) - 1:
                    raise
        raise AssertionError("there is a place")

    connection = _guarded(reached, "its host cannot be reached")
    if target.scheme == "http":
        return connection
    try:
        return _guarded(lambda: _secured(connection, target.host, until), "its host offers no safe connection")
    except BaseException:
        connection.close()
        raise


def _secured(connection: socket.socket, host: str, until: float) -> socket.socket:
    import ssl

    connection.settimeout(_left(until))  # for the whole handshake
    return ssl.create_default_context().wrap_socket(connection, server_hostname=host)


class _Wire(io.RawIOBase):
    """What a server sends, up to `left` bytes and until a deadline, however slowly it comes."""

    def __init__(self, connection: socket.socket, left: int, until: float) -> None:
        self._connection = connection
        self.left = left
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left(self._until))
        count = self._connection.recv_into(buffer)
        self.left -= count
        if self.left < 0:
            raise _refused("it sends too many bytes")
        return count

    def makefile(self, mode: str) -> io.BufferedReader:
        """Returns a file, as HTTPResponse asks a socket for."""
        assert mode == "rb"
        return io.BufferedReader(self, _AHEAD)


def _answered(connection: socket.socket, target: _Target, most: int, until: float) -> bytes | str:
    """Asks for a target. Returns the bytes that come, or the address to which it redirects."""

    def answer() -> bytes | str:
        from http.client import HTTPResponse

        host = f"[{target.host}]" if ":" in target.host else target.host
        port = "" if target.port == _PORTS[target.scheme] else f":{target.port}"
        lines = (
            f"GET {target.path} HTTP/1.1",
            f"Host: {host}{port}",
            "Accept: image/*",
            "Accept-Encoding: identity",
            "User-Agent: llama-engine",
            "Connection: close",
        )
        connection.settimeout(_left(until))
        connection.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii"))
        wire = _Wire(connection, _HEADERS, until)
        with closing(HTTPResponse(wire, method="GET")) as response:  # pyright: ignore[reportArgumentType] - asks for a file
            response.begin()
            if response.status in _REDIRECTS and (location := response.getheader("Location")):
                return location
            wire.left = _HEADERS + 2 * most  # with what divides it into chunks
            return _body(response, most)

    return _guarded(answer, "its server does not answer as HTTP says")


def _body(response: "HTTPResponse", most: int) -> bytes:
    if response.status != 200:
        raise _refused(f"its server answers with status {response.status}")
    for name, usual in (("Content-Encoding", "identity"), ("Transfer-Encoding", "chunked")):
        if (value := response.getheader(name, usual)).strip().lower() != usual:
            raise _refused(f"it comes with {name} {shown(value)}, which was not asked for")
    data = bytearray()
    while len(data) <= most and (response.length or 0) <= most:
        if not (piece := response.read(_PIECE)):
            if response.length:
                raise _refused(f"it ends {response.length:,} bytes early")
            return bytes(data)
        data += piece
    raise _refused(f"it has more than {most:,} bytes")
