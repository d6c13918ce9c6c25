"""A local server that speaks as much of the Hugging Face Hub's API as downloading takes, with faults to order.

Routes: model info (`/api/models/REPO` and `/revision/REV`), its tree, HEAD and GET of `/REPO/resolve/REV/PATH`, and the
content network that large files are redirected to, under another host name of the same server. Headers and status codes
are those that the Hub sends: X-Repo-Commit, X-Linked-Size, X-Linked-Etag, X-Error-Code. There are no Xet headers.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

LARGE = 1000  # bytes from which on a file is stored with git LFS


@dataclass
class Repo:
    """A repository: the files of each commit, and where its branches are."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    branches: dict[str, str] = field(default_factory=dict[str, str])
    is_private: bool = False
    is_gated: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add a commit with exactly these files; its hash."""
        told = repr([len(self.commits), *((name, etag_of(files[name])) for name in sorted(files))])
        commit = hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()
        self.commits[commit] = files
        self.branches[branch] = commit
        return commit


@dataclass(frozen=True)
class Request:
    """A request that came: its method, path, first byte asked for, and whether it carried a token."""

    method: str
    path: str
    start: int | None
    token: str | None
    host: str


Fault = Callable[["Handler", bytes], bytes | None]
"""What becomes of the bytes that a GET of content would send: others, or None when it has dealt with it itself."""


class Hub:
    """The server's state: what it holds, what it was asked, and what goes wrong."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.renamed: dict[str, str] = {}
        self.tokens: set[str] = {"hf_good"}
        self.allowed: set[str] = {"hf_good"}  # tokens that were granted access to gated repositories
        self.requests: list[Request] = []
        self.faults: list[Fault] = []  # each for one GET of content, in order
        self.statuses: list[int] = []  # each for one request of the API, in order
        self.page: bytes | None = None  # sent in place of everything, as a network's login page is
        self.ignores_ranges = False
        self.instead: Callable[[Handler], bool] | None = None  # deals with a request where it returns true
        self.address = ""
        self._stop = threading.Event()

    def add(self, repo: str, files: dict[str, bytes]) -> Repo:
        """A repository with one commit on main."""
        self.repos[repo] = Repo()
        self.repos[repo].commit(files)
        return self.repos[repo]

    def content_starts(self) -> list[int]:
        """The first bytes that were asked for in GETs of content, in order; 0 where a whole file was."""
        return [each.start or 0 for each in self.requests if each.method == "GET" and each.path.startswith("/cdn/")]

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than the server lives."""
        self._stop.wait(seconds)

    @property
    def is_stopped(self) -> bool:
        """Whether the server is about to end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End all waiting."""
        self._stop.set()


@contextmanager
def running() -> Generator[Hub]:
    """A Hub on the loopback device."""
    hub = Hub()

    class Bound(Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.stop()
        server.shutdown()
        server.server_close()
        thread.join()


def cut_after(count: int) -> Fault:
    """The connection ends after so many bytes."""

    def fault(handler: "Handler", data: bytes) -> None:
        handler.begin(data)
        handler.wfile.write(data[:count])
        handler.wfile.flush()
        handler.close_connection = True

    return fault


def stall_after(count: int, seconds: float) -> Fault:
    """Nothing comes for a while after so many bytes; then the connection ends."""

    def fault(handler: "Handler", data: bytes) -> None:
        handler.begin(data)
        handler.wfile.write(data[:count])
        handler.wfile.flush()
        handler.state.sleep(seconds)
        handler.close_connection = True

    return fault


def corrupt_at(position: int) -> Fault:
    """One byte is another one."""

    def fault(handler: "Handler", data: bytes) -> bytes:
        return data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]

    return fault


def slowly(piece: int, seconds: float) -> Fault:
    """The bytes come in pieces, with pauses."""

    def fault(handler: "Handler", data: bytes) -> None:
        handler.begin(data)
        for start in range(0, len(data), piece):
            handler.wfile.write(data[start : start + piece])
            handler.wfile.flush()
            handler.state.sleep(seconds)

    return fault


def refuse(status: int) -> Fault:
    """An error in place of the bytes."""

    def fault(handler: "Handler", _: bytes) -> None:
        handler.refuse(status, "", f"status {status} to order")

    return fault


def etag_of(data: bytes) -> str:
    """What the Hub calls these bytes: SHA-256 of a large file, git's hash of a small one."""
    if len(data) >= LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    state: Hub
    _is_part = False
    _asked = (0, 0, 0)  # first byte, the one behind the last, the file's length

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quiet."""

    def begin(self, data: bytes) -> None:
        """The head of an answer with content."""
        start, stop, total = self._asked
        self.send_response(206 if self._is_part else 200)
        if self._is_part:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{total}")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def refuse(self, status: int, code: str, message: str, commit: str = "") -> None:
        """An error as the Hub tells it."""
        body = json.dumps({"error": message}).encode()
        self.send_response(status)
        for name, value in (("X-Error-Code", code), ("X-Error-Message", message), ("X-Repo-Commit", commit)):
            if value:
                self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _answer(self) -> None:
        hub, path = self.state, unquote(urlsplit(self.path).path)
        bounds = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        start = int(bounds[1]) if bounds else None
        hub.requests.append(Request(self.command, path, start, token, self.headers.get("Host", "")))
        try:
            if hub.instead is not None and hub.instead(self):
                self.close_connection = True
            elif hub.page is not None:
                self._send(hub.page, "text/html")
            elif path.startswith("/cdn/"):
                self._content(path, bounds)
            elif hub.statuses and (status := hub.statuses.pop(0)) >= 400:
                self.refuse(status, "", f"status {status} to order")
            elif token is not None and token not in hub.tokens:
                self.refuse(401, "", "Invalid credentials in Authorization header")
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path):
                self._api(found[1], found[2], found[3] or "main", token)
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+|refs/\w+/[^/]+)/(.+)", path):
                self._resolve(found[1], found[2], found[3], token)
            else:
                self.refuse(404, "", "Not Found")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _repo(self, name: str, token: str | None) -> Repo | None:
        """The repository, unless the answer is a redirect or an error."""
        hub = self.state
        if name in hub.renamed:
            self.send_response(307)
            self.send_header("Location", self.path.replace(name, hub.renamed[name], 1))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        repo = hub.repos.get(name)
        if repo is None or (repo.is_private and token is None):
            # The Hub does not tell strangers whether there is one.
            if token is None:
                self.refuse(401, "", "Invalid username or password.")
            else:
                self.refuse(404, "RepoNotFound", "Repository not found")
            return None
        return repo

    def _commit(self, repo: Repo, revision: str) -> str | None:
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return commit

    def _api(self, name: str, view: str | None, revision: str, token: str | None) -> None:
        repo = self._repo(name, token)
        commit = self._commit(repo, revision) if repo else None
        if repo is None or commit is None:
            return
        files = repo.commits[commit]
        if view == "tree":
            told: object = [{"type": "file", "path": path, "size": len(data)} for path, data in files.items()]
        else:
            with_sizes = "blobs" in parse_qs(urlsplit(self.path).query)
            siblings = [self._sibling(path, data, with_sizes=with_sizes) for path, data in files.items()]
            gated = "manual" if repo.is_gated else False
            told = {"id": name, "modelId": name, "sha": commit, "private": repo.is_private, "gated": gated}
            told = {**told, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0}
        self._send(json.dumps(told).encode(), "application/json")

    def _sibling(self, path: str, data: bytes, *, with_sizes: bool) -> dict[str, object]:
        if not with_sizes:
            return {"rfilename": path}
        found: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": "0" * 40}
        if len(data) >= LARGE:
            found["lfs"] = {"sha256": etag_of(data), "size": len(data), "pointerSize": 134}
        return found

    def _resolve(self, name: str, revision: str, path: str, token: str | None) -> None:
        repo = self._repo(name, token)
        if repo is None:
            return
        if repo.is_gated and token not in self.state.allowed:
            status, way = (401, "Please log in.") if token is None else (403, "Your request awaits a review.")
            self.refuse(status, "GatedRepo", f"Access to model {name} is restricted. {way}")
            return
        commit = self._commit(repo, revision)
        if commit is None:
            return
        data = repo.commits[commit].get(path)
        if data is None:
            self.refuse(404, "EntryNotFound", "Entry not found", commit)
            return
        is_large, etag = len(data) >= LARGE, etag_of(data)
        self.send_response(302 if is_large else 200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{etag}"')
        if is_large:
            port = self.state.address.rpartition(":")[2]
            self.send_header("X-Linked-Size", str(len(data)))
            self.send_header("X-Linked-ETag", f'"{etag}"')
            self.send_header("Location", f"http://localhost:{port}/cdn/{name}/{commit}/{quote(path)}?Signature=x")
        self.send_header("Content-Length", str(0 if is_large else len(data)))
        self.end_headers()
        if self.command == "GET" and not is_large:
            fault = self.state.faults.pop(0) if self.state.faults else None
            self.wfile.write((fault(self, data) if fault else None) or data)

    def _content(self, path: str, bounds: re.Match[str] | None) -> None:
        """What the content network sends: bytes, or what a fault makes of them."""
        _, _, owner, name, commit, file = path.split("/", 5)
        data = self.state.repos[f"{owner}/{name}"].commits[commit][file]
        start = int(bounds[1]) if bounds else 0
        stop = min(int(bounds[2]) + 1 if bounds and bounds[2] else len(data), len(data))
        self._is_part = bounds is not None and not self.state.ignores_ranges
        if not self._is_part:
            start, stop = 0, len(data)
        self._asked = (start, stop, len(data))
        if start >= len(data):
            self.refuse(416, "", "Range Not Satisfiable")
            return
        fault = self.state.faults.pop(0) if self.state.faults else None
        sent = fault(self, data[start:stop]) if fault else data[start:stop]
        if sent is not None:
            self.begin(sent)
            self.wfile.write(sent)

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def settings(server: Hub, folder: Path) -> dict[str, object]:
    """Returns huggingface_hub's constants for this server, a cache and a token below a folder."""
    return {
        "ENDPOINT": server.address,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(folder / "cache"),
        "HF_TOKEN_PATH": str(folder / "token"),
        "HF_HUB_OFFLINE": False,
    }
