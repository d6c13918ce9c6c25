"""Pictures at links: what is read, and what is refused, of addresses, servers and networks that mean harm."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes.picture_server import CAT, PUBLIC, Pictures, answer, certified, drip, redirect, serving
from fakes.scripts import wait_until

from engine import MediaUrls, RequestError
from engine.support.offloop import in_thread
from engine.types.media import ImageLink, MediaBudget, read_media, urls
from engine.types.media.urls import fetched, is_public

SOON = MediaUrls(seconds=1)


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pictures]:
    with serving(monkeypatch) as server:
        yield server


def got(address: str, options: MediaUrls | None = None) -> bytes:
    options = options or MediaUrls()
    return fetched(address, options, time.monotonic() + options.seconds)


def refused(address: str, why: str, options: MediaUrls | None = None) -> None:
    with pytest.raises(RequestError, match=why) as error:
        got(address, options)
    assert "Send the picture's bytes as a data: URL." in str(error.value)


def test_a_picture_is_read_from_the_address_that_was_checked(pictures: Pictures) -> None:
    assert got("http://pictures.example/cat.png?size=%C3%A9&x=ü#part") == CAT.png()
    assert (pictures.resolved, pictures.connected) == (["pictures.example"], [PUBLIC])
    lines = pictures.requests[0].split("\r\n")
    assert lines[:2] == ["GET /cat.png?size=%C3%A9&x=%C3%BC HTTP/1.1", "Host: pictures.example"]
    assert "Accept-Encoding: identity" in lines
    assert lines[-2:] == ["", ""]


def test_chunks_and_a_body_without_a_length(pictures: Pictures) -> None:
    data = CAT.png()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:7], data[7:])) + b"0\r\n\r\n"
    assert got(pictures.on("/c", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks)) == data
    assert got(pictures.on("/o", b"HTTP/1.0 200 OK\r\n\r\n", data)) == data
    assert got(pictures.on("/e", b"HTTP/1.1 100 Continue\r\n\r\n", answer(data))) == data


def test_redirects_are_followed_and_each_is_checked(pictures: Pictures) -> None:
    pictures.names["other.example"] = ["2606:2800:220:1::1"]
    far = pictures.on("/far", redirect("//other.example/cat.png"))
    assert got(pictures.on("/near", redirect("far"))) == CAT.png()
    assert pictures.connected == [PUBLIC, PUBLIC, "2606:2800:220:1::1"]
    refused(far, "redirects more than 0 times", MediaUrls(max_redirects=0))
    refused(pictures.on("/loop", redirect("/loop")), "redirects more than 3 times")


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://127.0.0.1/secret", "not a public one"),
        ("http://[::1]/secret", "not a public one"),
        ("http://169.254.169.254/latest/meta-data/", "not a public one"),
        ("http://2130706433/", "not a public one"),
        ("http://inside.example/", "not a public one"),
        ("file:///etc/passwd", "'file' is neither http nor https"),
        ("ftp://pictures.example/x", "'ftp' is neither"),
        ("data:image/png;base64,AAAA", "'data' is neither"),
        ("gopher://pictures.example:70/x", "'gopher' is neither"),
        ("http://user:pw@pictures.example/cat.png", "user name or password"),
        ("http://pictures.example:22/", "port 22 is not"),
        ("http://pictures.example:99999/", "not valid"),
        ("http://[/", "not valid"),
        ("http://a b/", "spaces, control characters"),
    ],
)
def test_redirects_to_where_nothing_is_read(pictures: Pictures, location: str, why: str) -> None:
    for name in ("127.0.0.1", "::1", "169.254.169.254", "inside.example"):
        pictures.names[name] = [name if name[0] != "i" else "10.0.0.7"]
    pictures.names["2130706433"] = ["127.0.0.1"]
    refused(pictures.on("/r", redirect(location)), why)
    assert pictures.connected == [PUBLIC]


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.9.9.9", "168.63.129.16",
        "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.0.192", "192.0.2.1",
        "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.9", "224.0.0.1", "239.1.1.1",
        "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::", "2001:db8::1",
        "2002:7f00:1::", "2002:a00:1::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%lo",
        "fec0::1", "ff02::1", "2606:2800:220:1::1%eth0",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(pictures: Pictures, address: str) -> None:
    assert not is_public(address)
    for both in ([address], [PUBLIC, address], [address, PUBLIC]):
        pictures.names["pictures.example"] = both
        refused("http://pictures.example/cat.png", "its host is not known, or not a public one")
    assert pictures.connected == []
    assert address not in str(pictures.requests)


@pytest.mark.parametrize("address", [PUBLIC, "1.1.1.1", "223.255.255.255", "2606:4700::1111", "2a00:1450::1"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::]", "[::ffff:7f00:1]",
        "[::ffff:127.0.0.1]", "localhost", "localhost.", "LOCALHOST", "0", "0.0.0.0", "169.254.169.254",
        "[64:ff9b::a9fe:a9fe]", "１２７.0.0.1", "127。0。0。1",
    ],
)  # fmt: skip
def test_this_machine_in_every_spelling(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolved by the system itself."""
    monkeypatch.setattr(urls, "connect", None)
    refused(f"http://{host}/", "its host is not known, or not a public one")


def test_a_name_is_resolved_once(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second answer of its server (DNS rebinding) would lead here."""

    def rebinding(host: str, port: int) -> list[urls.Place]:
        places = pictures.resolve(host, port)
        pictures.names[host] = ["127.0.0.1"]
        return places

    monkeypatch.setattr(urls, "resolve", rebinding)
    assert got("http://pictures.example/cat.png") == CAT.png()
    assert pictures.connected == [PUBLIC]
    refused("http://pictures.example/cat.png", "not a public one")
    assert pictures.connected == [PUBLIC]


def test_the_next_address_is_tried_if_one_does_not_answer(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures.names["pictures.example"] = ["2606:2800:220:1::1", PUBLIC]

    def only_one(place: urls.Place, seconds: float) -> socket.socket:
        if place[1][0] != PUBLIC:
            raise OSError("unreachable")
        return pictures.connect(place, seconds)

    monkeypatch.setattr(urls, "connect", only_one)
    assert got("http://pictures.example/cat.png") == CAT.png()
    pictures.names["pictures.example"] = ["2606:2800:220:1::1"]
    refused("http://pictures.example/cat.png", "its host cannot be reached")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://me@pictures.example/cat.png", "user name or password"),
        ("http://:@pictures.example/cat.png", "user name or password"),
        ("http://127.0.0.1@pictures.example/", "user name or password"),
        ("http://pictures.example\\@127.0.0.1/", "backslashes"),
        ("http://pictures.example/a\r\nHost: x", "control characters"),
        ("http://pictures.example/ a", "spaces"),
        ("http://pictures.example/\x00", "control characters"),
        ("http:///cat.png", "has no host"),
        ("http://", "has no host"),
        ("http://pictures.example:8080/", "port 8080 is not one of those"),
        ("http://pictures.example:-1/", "not valid"),
        ("http://pictures.example:0/", "port 0 is not"),
        (f"http://{'a' * 70}.example/", "not valid"),
        ("http://pictures..example/", "not valid"),
        (f"http://pictures.example/{'a' * 9000}", "too long"),
        ("http://unknown.example/", "not known"),
    ],
)
def test_addresses_that_are_refused(pictures: Pictures, address: str, why: str) -> None:
    refused(address, why)
    assert pictures.connected == []


def test_ports_and_hosts_of_the_options(pictures: Pictures) -> None:
    pictures.names |= {"a.pictures.example": [PUBLIC], "evilpictures.example": [PUBLIC], "inside.example": ["10.0.0.1"]}
    assert got("http://pictures.example:8080/cat.png", MediaUrls(ports=[8080])) == CAT.png()
    assert "Host: pictures.example:8080" in pictures.requests[0]
    only = MediaUrls(hosts=["pictures.example", ".Pictures.example", "inside.example"])
    for host in ("pictures.example", "a.pictures.example", "PICTURES.example"):
        pictures.names |= {host: [PUBLIC]}
        assert got(f"http://{host}/cat.png", only) == CAT.png()
    refused("http://evilpictures.example/cat.png", "not one of those that this engine fetches from", only)
    refused("http://inside.example/cat.png", "not a public one", only)
    away = pictures.on("/away", redirect("http://evilpictures.example/cat.png"))
    refused(away, "not one of those that this engine fetches from", only)


LINE = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([answer(b"x" * 2000)], "more than 1,000 bytes"),
        ([LINE + b"\r\n"] + [b"x" * 1000] * 100, "more than 1,000 bytes|too many bytes"),
        ([LINE + b"Transfer-Encoding: chunked\r\n\r\n"] + [b"1\r\nx\r\n"] * 100_000, "too many bytes"),
        ([LINE + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 70_000], "does not answer as HTTP says"),
        ([LINE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"], "does not answer as HTTP says"),
        ([LINE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"] + [b"A: b\r\n"] * 100_000, "too many bytes|as HTTP says"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"] * 100_000, "too many bytes|as HTTP says"),
        ([LINE + b"A: " + b"x" * 60_000 + b"\r\n", b"B: " + b"x" * 60_000], "too many bytes"),
        ([LINE + b"A: " + b"x" * 200_000], "too many bytes|as HTTP says"),
        ([LINE + b"A: b\r\n" * 5_000], "as HTTP says"),
        ([answer(b"x", "Content-Encoding: gzip")], "Content-Encoding 'gzip', which was not asked for"),
        ([answer(b"x", "Content-Encoding: br")], "Content-Encoding 'br'"),
        ([LINE + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"], "Transfer-Encoding 'gzip, chunked'"),
        ([LINE + b"Content-Length: 500\r\n\r\nshort"], "it ends 495 bytes early"),
        ([LINE + b"Content-Length: -5\r\n\r\n" + b"x" * 2000], "more than 1,000 bytes"),
        ([LINE + b"Content-Length: 99999999999999999999\r\n\r\nx"], "more than 1,000 bytes"),
        ([], "as HTTP says"),
        ([b"\x00\xff" * 100], "as HTTP says"),
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], "as HTTP says"),
        ([b"HTTP/9.9 abc\r\n\r\n"], "as HTTP says"),
        ([answer(b"no", status="404 Not Found")], "status 404"),
        ([answer(b"no", status="500 Oh")], "status 500"),
        ([answer(b"", status="304 Not Modified")], "status 304"),
        ([answer(b"no", status="302 Found")], "status 302"),
        ([answer(b"part", status="206 Partial Content")], "status 206"),
    ],
)
def test_servers_that_mean_harm(pictures: Pictures, pieces: list[bytes], why: str) -> None:
    started = time.monotonic()
    refused(pictures.on("/x", *pieces), why, MediaUrls(max_bytes=1000, seconds=10))
    assert time.monotonic() - started < 8


def test_servers_that_are_slow(pictures: Pictures) -> None:
    data = answer(CAT.png())
    pictures.replies |= {
        "/header": lambda _: drip(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 9000),
        "/body": lambda _: drip(data),
        "/chunks": lambda _: drip(LINE + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 900),
        "/never": lambda _: drip(b"H" * 2, 5),
        "/continue": lambda _: drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 90, 0.02),
    }

    def seconds(path: str) -> float:
        started = time.monotonic()
        refused(f"http://pictures.example{path}", "it takes too long", SOON)
        return time.monotonic() - started

    slow = ("/header", "/body", "/chunks", "/never", "/continue")
    with ThreadPoolExecutor(len(slow)) as pool:  # at once: what they take is all waiting
        took = dict(zip(slow, pool.map(seconds, slow), strict=True))
    assert {path: each for path, each in took.items() if not 0.9 < each < 3} == {}


def test_a_name_server_and_a_host_that_are_slow(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(host: str, port: int) -> list[urls.Place]:
        time.sleep(4)
        return pictures.resolve(host, port)

    started = time.monotonic()
    monkeypatch.setattr(urls, "resolve", late)
    refused("http://pictures.example/cat.png", "it takes too long", SOON)

    def deaf(_: urls.Place, seconds: float) -> socket.socket:
        time.sleep(seconds)
        raise TimeoutError

    monkeypatch.setattr(urls, "resolve", pictures.resolve)
    monkeypatch.setattr(urls, "connect", deaf)
    pictures.names["pictures.example"] = [PUBLIC] * 3
    refused("http://pictures.example/cat.png", "it takes too long", SOON)
    assert time.monotonic() - started < 4


def test_proxies_of_the_environment_are_not_used(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert got("http://pictures.example/cat.png") == CAT.png()
    assert pictures.connected == [PUBLIC]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="a certificate is made by openssl")
def test_https_is_verified(pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures.context, certificate = certified(tmp_path, "pictures.example")
    pictures.names["other.example"] = [PUBLIC]
    refused("https://pictures.example/cat.png", "its certificate is not valid")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert got("https://pictures.example/cat.png") == CAT.png()
    refused("https://other.example/cat.png", "its certificate is not valid .*other.example")
    pictures.on("/down", redirect("http://pictures.example/cat.png"))
    refused("https://pictures.example/down", "redirects from https to http")
    pictures.replies["/slow"] = lambda _: drip(answer(CAT.png()))
    refused("https://pictures.example/slow", "it takes too long", SOON)
    pictures.context = None
    refused("https://pictures.example/cat.png", "its host offers no safe connection", SOON)


def test_links_of_one_request_share_their_limits(pictures: Pictures) -> None:
    one, two = ImageLink("http://pictures.example/cat.png"), ImageLink("http://pictures.example/cat.png?2")
    again = ImageLink("http://pictures.example/cat.png")
    assert read_media([one, two, again, one], {"image"}, MediaUrls(max_links=2), None) == [CAT] * 4
    assert len(pictures.requests) == 2
    assert read_media([one], {"image"}, MediaUrls(), None) == [CAT]
    assert len(pictures.requests) == 2, "a link is read once"
    with pytest.raises(RequestError, match="has 3 links to pictures; send at most 2"):
        read_media([ImageLink(f"http://a/{number}") for number in range(3)], {"image"}, MediaUrls(max_links=2), None)
    pictures.replies["/slow"] = lambda _: drip(answer(CAT.png()), 0.01)
    started = time.monotonic()
    with pytest.raises(RequestError, match="it takes too long"):
        read_media([ImageLink(f"http://pictures.example/slow?{number}") for number in range(9)], {"image"}, SOON, None)
    with pytest.raises(RequestError, match="it takes too long"):
        read_media([ImageLink("http://pictures.example/slow")], {"image"}, MediaUrls(), time.monotonic() + 0.3)
    assert time.monotonic() - started < 4


def test_what_is_no_picture_is_refused_by_its_link(pictures: Pictures) -> None:
    for body, why in (
        (b"<html>", "none of PNG"),
        (CAT.png()[:60], "cannot be decoded|is damaged"),
        (b"", "none of PNG"),
    ):
        link = ImageLink(pictures.on("/x", answer(body)))
        with pytest.raises(RequestError, match=rf"the picture at 'http://pictures.example/x' was not read.*{why}"):
            link.read(MediaUrls(), time.monotonic() + 5, MediaBudget())


@pytest.mark.parametrize(
    "option",
    [
        {"max_bytes": 0}, {"max_bytes": 1 << 40}, {"max_bytes": True}, {"max_links": "4"}, {"seconds": 0},
        {"seconds": float("nan")}, {"max_redirects": -1}, {"hosts": "example.org"}, {"hosts": [1]}, {"ports": ["80"]},
    ],
)  # fmt: skip
def test_options_that_are_not_valid(option: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=rf"{next(iter(option))}=.* is not valid"):
        MediaUrls(**option)


def test_a_resolver_that_hangs_keeps_few_threads(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    go, asked = threading.Event(), list[str]()

    def hanging(host: str, port: int) -> list[urls.Place]:
        asked.append(host)
        go.wait(20)
        return pictures.resolve(host, port)

    monkeypatch.setattr(urls, "resolve", hanging)
    address, until = "http://pictures.example/cat.png", time.monotonic() + 0.3
    begun = [in_thread(lambda: urls.fetched(address, MediaUrls(), until)) for _ in range(20)]
    assert {type(each.exception(10)) for each in begun} == {RequestError}
    assert len(asked) <= urls._MOST_RESOLVING  # pyright: ignore[reportPrivateUsage]
    go.set()
    slots: Any = urls._resolving  # pyright: ignore[reportPrivateUsage]
    wait_until(lambda: slots._value == urls._MOST_RESOLVING)  # pyright: ignore[reportPrivateUsage]


def test_a_thread_that_resolves_ends(pictures: Pictures) -> None:
    before = threading.active_count()
    for _ in range(20):
        got("http://pictures.example/cat.png")
    assert threading.active_count() <= before + 2
