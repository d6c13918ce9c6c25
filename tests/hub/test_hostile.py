"""What a hostile or broken server may answer: the right bytes, or one error in plain words, in bounded time and memory.

`test_random_answers` draws answers to each kind of request from a table of statuses, headers and bodies that are odd
each in its own way; the other tests hold what takes its own arrangement.
"""

import gzip
import json
import random
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.hub_server import Handler, Hub, Repo, cut_after, etag_of
from huggingface_hub import constants

from engine.hub import api, download, fetch, located, named
from engine.hub.progress import Progress
from engine.hub.variants import File, variants_of
from engine.support.errors import ModelLoadError, RequestError

DATA = random.Random(1).randbytes(20_000)
Q8 = "m-Q8_0.gguf"

ROUTES: dict[str, Callable[[Handler], bool]] = {
    "listing": lambda handler: handler.path.startswith("/api/models/"),
    "head": lambda handler: handler.command == "HEAD" and "/resolve/" in handler.path,
    "resolve": lambda handler: handler.command == "GET" and "/resolve/" in handler.path,
    "content": lambda handler: handler.path.startswith("/cdn/"),
}
STATUSES = (200, 200, 200, 204, 206, 301, 302, 304, 307, 400, 401, 403, 404, 416, 418, 429, 451, 500, 503, 599)
NUMBERS = (
    "-1",
    "0",
    "1",
    "20000",
    "20001",
    "1e9",
    "abc",
    "",
    "9" * 40,
    "9" * 5000,
    "\u0661".encode().decode("latin-1"),
)
HEADERS = {
    "X-Linked-Size": NUMBERS,
    "Content-Range": ("bytes 0-19999/20000", "bytes 5-6/20000", "bytes */20000", "x", f"bytes {'9' * 5000}-1/*", ""),
    "X-Linked-ETag": ('"..*"', '"../../x"', '"' + "a" * 5000 + '"', "W/", '""', "", '"con"', f'"{"0" * 64}"'),
    "ETag": ('"../x"', "", '"x"', "W/\x00"[:2]),
    "X-Repo-Commit": ("..", "", "a/b", "0" * 40),
    "X-Error-Code": ("RepoNotFound", "RevisionNotFound", "EntryNotFound", "GatedRepo", "\x1b[2J"),
    "X-Error-Message": ("\x1b[31mred", "Invalid credentials in Authorization header", "x" * 5000),
    "Location": ("/", "//", "http://[x", "file:///etc/passwd", "x" * 9000, "http://127.0.0.1:9/", "", "ftp://a/b"),
    "Content-Encoding": ("gzip", "br", "x"),
    "X-Xet-Hash": ("x", ""),
    "Link": ("<x>", '<http://[>; rel="xet-auth"'),
    "Retry-After": ("-1", "abc"),
}
COMMIT = "0" * 40
SIBLINGS = (
    "null", "5", "{}", "[]", "[null]", "[{}]", '[{"rfilename": 5}]',
    *(f'[{{"rfilename": "{Q8}", "size": {size}}}]' for size in ('"5"', "-5", "1e300", "true", "9" * 40, "5", "null")),
    *(
        f'[{{"rfilename": "{path}"}}]'
        for path in (
            "../m-Q8_0.gguf", "\\ud800-Q8_0.gguf", "\\u0000-Q8_0.gguf", "x" * 5000 + "-Q8_0.gguf", "m-Q8_0.gguf/",
            "a/" * 2000 + "m-Q8_0.gguf", "m-Q8_0-00001-of-99999.gguf", "m-Q8_0-00000-of-00000.gguf", "a//m-Q8_0.gguf",
        )
    ),
)  # fmt: skip
BODIES: tuple[bytes, ...] = (
    b"", b"[]", b"null", b"5", b'"x"', b"\xff\xfe", b"<html>", b"{" * 10, b"[" * 100_000, b'{"error": ["a"]}',
    b'{"error": {"a": 1}}', b'{"errors": 5}', b'{"errors": [5]}', b'{"error": "\\u001b[2J\\n"}', b"9" * 10_000,
    b'{"error": "%s"}' % (b"x" * 10_000), DATA, DATA + b"x", DATA[:-1], b"GGUF",
    *(f'{{"id": "own/repo", "sha": "{COMMIT}", "siblings": {siblings}}}'.encode() for siblings in SIBLINGS),
    *(f'{{"id": {name}, "sha": "{COMMIT}", "siblings": []}}'.encode() for name in ("5", '"\\u001b[2J"', '"../x"')),
    *(f'{{"id": "own/repo", "sha": {sha}}}'.encode() for sha in ("5", "null", '".."', '"a/b"', '"x\\u0000"')),
)  # fmt: skip


@pytest.fixture
def repo(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    monkeypatch.setattr(download, "WAITS", (0.0,))
    return hub.add("own/repo", {Q8: DATA})


def get(text: str = "own/repo:Q8_0") -> Path:
    name = named(text)
    assert name is not None
    return fetch(name, progress=Progress(None))


def raw(handler: Handler, status: int, headers: dict[str, str], body: bytes) -> None:
    """A response as it is written here, with nothing added but its length."""
    head = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items()), "Connection: close"]
    if "Content-Length" not in headers:
        head.append(f"Content-Length: {len(body)}")
    handler.wfile.write("\r\n".join([*head, "", ""]).encode("latin-1", "replace"))
    if handler.command == "GET":
        handler.wfile.write(body)


def drawn_answer(draw: random.Random) -> tuple[str, int, dict[str, str], bytes]:
    """A kind of request, and the status, headers and body of an answer to it."""
    route, status, body = draw.choice([*ROUTES]), draw.choice(STATUSES), draw.choice(BODIES)
    headers = {name: draw.choice(HEADERS[name]) for name in draw.sample([*HEADERS], draw.randrange(4))}
    if route == "head" and draw.random() < 0.5:
        headers = {"X-Linked-ETag": f'"{etag_of(DATA)}"', "X-Linked-Size": "20000"} | headers
        status = draw.choice((status, 200))  # older releases of huggingface_hub take no other
    if draw.random() < 0.1:
        headers["Content-Length"] = draw.choice(["5", "999999", "-1", "x"])
    return route, status, headers, body


def outcome(hub: Hub, route: str, status: int, headers: dict[str, str], body: bytes) -> Path | str:
    """What a download gives when all requests of a kind are answered so: a path, or what the user is told."""

    def instead(handler: Handler) -> bool:
        is_meant = ROUTES[route](handler)
        if is_meant:
            raw(handler, status, headers, body)
        return is_meant

    hub.instead = instead
    try:
        return get()
    except ModelLoadError as error:
        return str(error)


def test_random_answers(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    draw = random.Random(26)
    outcomes = {"downloaded": 0, "refused": 0}
    for attempt in range(150):
        route, status, headers, body = drawn_answer(draw)
        began = time.monotonic()
        result = outcome(hub, route, status, headers, body)
        drawn = (attempt, route, status, {name: value[:40] for name, value in headers.items()}, body[:80])
        assert time.monotonic() - began < 10, drawn
        if isinstance(result, Path):
            assert result.read_bytes() == DATA or route in ("listing", "head"), drawn
            outcomes["downloaded"] += 1
        else:
            assert result.isprintable(), drawn
            assert len(result) < 3_000, drawn
            outcomes["refused"] += 1
        assert [each.name for each in tmp_path.iterdir() if each != api.cache_directory()] == [], drawn
        shutil.rmtree(api.cache_directory(), ignore_errors=True)
    assert outcomes["refused"] > 75
    assert outcomes["downloaded"] >= 3


def endless(piece: bytes, seconds: float = 0.0, status: int = 200) -> Callable[[Handler], bool]:
    """A body without an end, in pieces, in answer to whatever is asked."""

    def instead(handler: Handler) -> bool:
        handler.wfile.write(f"HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        while handler.command == "GET" and not handler.state.is_stopped:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            handler.wfile.flush()
            handler.state.sleep(seconds)
        return True

    return instead


def test_a_listing_without_an_end(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_LARGEST_LISTING", 1 << 20)
    monkeypatch.setattr(api, "_LONGEST_ANSWER", 0.3)
    hub.instead = endless(b"[" * 100_000)
    with pytest.raises(ModelLoadError, match="more than 1,048,576 bytes about own/repo"):
        get()
    hub.instead = endless(b"[", 0.01)
    with pytest.raises(ModelLoadError, match="took too long to list own/repo"):
        get()


def test_a_listing_that_would_be_inflated(hub: Hub, repo: Repo) -> None:
    """A megabyte of gzip can be a gigabyte."""

    def bomb(handler: Handler) -> bool:
        if not ROUTES["listing"](handler):
            return False
        asked.append(handler.headers["Accept-Encoding"])
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
        return True

    data, asked = gzip.compress(b"[" * (64 << 20)), list[str]()
    hub.instead = bomb
    tracemalloc.start()
    with pytest.raises(ModelLoadError, match="encoding 'gzip'"):
        get()
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert asked == ["identity"]


@pytest.mark.parametrize("route", ["listing", "resolve"])
@pytest.mark.parametrize(("piece", "seconds"), [(1000, 0.0), (1, 0.01)], ids=["long", "slow"])
def test_a_refusal_without_an_end(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch, route: str, piece: int, seconds: float
) -> None:
    monkeypatch.setattr(api, "_LONGEST_ANSWER", 0.3)
    forever = endless(b"x" * piece, seconds, status=403)
    hub.instead = lambda handler: ROUTES[route](handler) and forever(handler)
    with pytest.raises(ModelLoadError, match="status 403"):
        get()


def test_a_file_without_an_end(hub: Hub, repo: Repo) -> None:
    forever = endless(DATA)
    hub.instead = lambda handler: ROUTES["content"](handler) and forever(handler)
    assert get().read_bytes() == DATA


def test_a_server_that_begins_again_and_again(hub: Hub, repo: Repo) -> None:
    """It ignores ranges in turn, so that each attempt brings bytes and none brings the end nearer."""

    def again(handler: Handler, data: bytes) -> None:
        handler.state.ignores_ranges = not handler.state.ignores_ranges
        cut_after(5_000 if handler.state.ignores_ranges else 100)(handler, data)

    hub.faults = [again] * 500
    with pytest.raises(ModelLoadError, match="stopped at"):
        get()
    assert len(hub.faults) > 450


def test_sizes_that_contradict_each_other(hub: Hub, repo: Repo) -> None:
    listing = {"id": "own/repo", "sha": repo.branches["main"], "siblings": [{"rfilename": Q8, "size": 5}]}

    def instead(handler: Handler) -> bool:
        if ROUTES["listing"](handler):
            raw(handler, 200, {}, json.dumps(listing).encode())
            return True
        return False

    hub.instead = instead
    with pytest.raises(ModelLoadError, match=r"lists own/repo/m-Q8_0\.gguf with 5 bytes, but serves 20,000"):
        get()


def test_huge_listings(hub: Hub, repo: Repo) -> None:
    names = [f"{number:06}-Q8_0-00001-of-99999.gguf" for number in range(50_000)]
    body = json.dumps({"id": "own/repo", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}).encode()

    def instead(handler: Handler) -> bool:
        raw(handler, 200, {}, body)
        return True

    hub.instead = instead
    began = time.process_time()
    with pytest.raises(ModelLoadError, match=r"has several models in Q8_0: .* and 49,980 more") as error:
        get()
    assert len(str(error.value)) < 3_000
    assert time.process_time() - began < 10


def test_parts_beyond_the_last_do_not_count() -> None:
    (variant,) = variants_of(File(f"m-Q8_0-{number:05}-of-00002.gguf", 1) for number in (0, 1, 2, 3))
    assert [file.path for file in variant.files] == ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]


def test_names_that_would_leave_the_cache_are_refused(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    for revision in ("../../../x", "..%2F..%2Fx", "/etc", "a/../../b", "a b", "x\0", "-x\\y", ""):
        with pytest.raises(RequestError, match="cannot be a branch, tag or commit"):
            located(f"{hub.address}/own/repo/blob/{revision.replace('/', '%2F') or '%20'}/{Q8}")
    for commit in ("../../x", "..", "", "/x"):
        repo.commits[commit], repo.branches["main"] = {Q8: DATA}, commit
        with pytest.raises(ModelLoadError, match="did not answer as the Hugging Face Hub does"):
            get("own/repo:Q8_0")
    repo.commit({Q8: DATA})
    for etag in ("..", "../x", "a/b", ""):
        monkeypatch.setattr("fakes.hub_server.etag_of", lambda _, etag=etag: etag)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        with pytest.raises(ModelLoadError, match="did not answer as the Hugging Face Hub does"):
            get("own/repo:Q8_0")
    assert list(api.cache_directory().parent.iterdir()) in ([], [api.cache_directory()])


def test_what_a_server_says_cannot_move_the_cursor(hub: Hub, repo: Repo) -> None:
    hub.add("own/evil", {"\x1b[2Jx-Q8_0.gguf": DATA})
    with pytest.raises(ModelLoadError, match="has no GGUF file"):
        get("own/evil")
    hub.page = b'{"id": "own/repo", "sha": "\\u001b[2J\\nx", "siblings": []}'
    with pytest.raises(ModelLoadError) as error:
        get("own/repo")
    assert str(error.value).isprintable()


def test_a_server_that_sends_more_than_it_announced(hub: Hub, repo: Repo) -> None:
    def longer(handler: Handler, data: bytes) -> None:
        handler.begin(data + bytes(1000))
        handler.wfile.write(data + bytes(1000))

    hub.faults = [longer]
    assert get("own/repo:Q8_0").read_bytes() == DATA
