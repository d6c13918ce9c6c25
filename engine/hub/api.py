"""The Hugging Face Hub: the files of a repository, their bytes, and the errors if it refuses them.

The room's only importer of huggingface_hub, whose settings apply here (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE,
HF_HUB_ETAG_TIMEOUT, HF_HUB_DOWNLOAD_TIMEOUT, HF_HOME, HF_HUB_CACHE).
"""

import errno
import json
import os
import re
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast
from urllib.parse import quote, urlsplit

from engine.support.errors import ModelLoadError, shown

try:
    from huggingface_hub import (
        constants,
        get_hf_file_metadata,  # pyright: ignore[reportUnknownVariableType]
        get_token,
        hf_hub_url,
        scan_cache_dir,
    )
except ValueError as error:  # it takes the address apart when it is imported
    raise ModelLoadError(
        f"HF_ENDPOINT={shown(os.environ.get('HF_ENDPOINT'))} is not an address ({error}). Correct or unset it."
    ) from error
from huggingface_hub.errors import (
    CacheNotFound,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import are_symlinks_supported, repo_folder_name
from huggingface_hub.utils import (
    WeakFileLock,
    are_progress_bars_disabled,
    build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
    get_session,
    hf_raise_for_status,
    validate_repo_id,
)

from engine.hub.names import HUB_HOSTS
from engine.hub.variants import File

# The HTTP client's errors: httpx's in huggingface_hub 1, httpx2's in 2; its own errors are derived from them.
_TRANSPORT: type[Exception] = HfHubHTTPError.__bases__[0]
_PASSING = frozenset({408, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (\d{1,20})-\d{1,20}/(\d{1,20}|\*)")
_IDENTIFIER = re.compile(r"\w[\w.-]{0,127}", re.ASCII)  # it becomes the name of a file
_LARGEST_LISTING = 32 << 20  # bytes: the largest repositories of GGUFs have some thousand files, 200 bytes each
_LONGEST_ANSWER = 60.0  # seconds
_LARGEST_FILE = 1 << 60
_LONGEST_PATH, _LONGEST_NAME = 1024, 255
_LARGEST_REFUSAL = 1 << 12
_US = "llama-engine"  # for the Hub's statistics
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


class Unavailable(ModelLoadError):
    """The Hub does not provide what was requested, now or to this caller; a copy in the cache will do.

    `passing`: a later attempt may succeed.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at one commit."""

    commit: str
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class Blob:
    """A file at one commit. `etag`: the SHA-256 of its bytes (large files), or its git blob hash; the file's name in
    the cache."""

    repo: str
    commit: str
    path: str
    etag: str
    size: int


def check_repo(repo: str) -> None:
    """Raise ModelLoadError for a text that cannot be the name of a repository."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ModelLoadError(f"{repo!r} cannot be the name of a repository: {error}") from error


def listing(repo: str, revision: str | None) -> Listing:
    """Request the files of a repository; a revision of None is its main branch. Raises ModelLoadError; its subclass
    Unavailable if a copy in the cache will do."""
    info = _info(repo, revision)
    commit, siblings = info.get("sha"), info.get("siblings", [])
    if not isinstance(commit, str) or not _IDENTIFIER.fullmatch(commit):
        raise _no_hub(f"the commit {commit!r}")
    if not isinstance(siblings, list):
        raise _no_hub("no list of files")
    files = (_file(sibling) for sibling in cast("list[object]", siblings))
    return Listing(commit, tuple(file for file in files if _is_inside(file.path)))


def _info(repo: str, revision: str | None) -> dict[str, object]:
    """Returns the Hub's record of a repository. huggingface_hub's own function would read a response of any length, for
    any time."""
    at = f"/revision/{quote(revision, safe='')}" if revision else ""
    url = f"{constants.ENDPOINT}/api/models/{repo}{at}?blobs=true"
    headers = _headers()
    with (
        _own_errors(repo, revision),
        get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_ETAG_TIMEOUT) as response,
    ):
        _check(response)
        if encoding := response.headers.get("Content-Encoding"):
            raise _no_hub(f"{repo} in the encoding {encoding!r}, which was not asked for")
        data = _body(response, _LARGEST_LISTING)
    if data is None:
        raise Unavailable(f"{endpoint()} took too long to list {repo}. Try again later.", passing=True)
    if len(data) > _LARGEST_LISTING:
        raise _no_hub(f"more than {_LARGEST_LISTING:,} bytes about {repo}")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _no_hub(f"{type(error).__name__}: {error}") from error
    if not isinstance(record, dict):
        raise _no_hub("JSON that is not an object")
    return cast("dict[str, object]", record)


def _file(sibling: object) -> File:
    """Returns a file of a listing. Raises Unavailable for an entry that is not a file."""
    fields = cast("dict[str, object]", sibling) if isinstance(sibling, dict) else {}
    path, size = fields.get("rfilename"), fields.get("size")
    if not isinstance(path, str) or not (size is None or (type(size) is int and 0 <= size <= _LARGEST_FILE)):
        raise _no_hub(f"a file {path!r} of size {size!r}")
    return File(path, size)


def _check(response: Any) -> None:
    """Raise the error of a response's status. Reads only the beginning of the body, which may be endless."""
    if response.status_code < 400:
        return
    try:
        reason = json.loads(_body(response, _LARGEST_REFUSAL) or "")["error"]
    except (ValueError, RecursionError, TypeError, KeyError):
        reason = ""
    names = ("X-Error-Code", "X-Error-Message")
    headers = {name: response.headers[name] for name in names if name in response.headers}
    content = {"error": reason if isinstance(reason, str) else ""}
    hf_raise_for_status(type(response)(response.status_code, headers=headers, json=content, request=response.request))


def _body(response: Any, most: int) -> bytes | None:
    """Returns the beginning of a response, longer than `most` bytes if there is more; None if it takes too long. The
    bytes are those that were sent: a few of them can be inflated to gigabytes."""
    until, data = time.monotonic() + _LONGEST_ANSWER, bytearray()
    for piece in response.iter_raw():
        data += piece
        if len(data) > most:
            break
        if time.monotonic() > until:
            return None
    return bytes(data)


def blob(repo: str, commit: str, path: str) -> Blob:
    """Request the etag and size of a file. Raises as `listing` does."""
    with _own_errors(repo, commit, path):
        try:
            about = get_hf_file_metadata(
                _url(repo, commit, path), _token(), constants.HF_HUB_ETAG_TIMEOUT, library_name=_US
            )
        except (ValueError, TypeError, KeyError) as error:  # headers that it cannot read
            raise _no_hub(f"{type(error).__name__}: {error}") from error
    size = -1 if about.size is None else about.size
    if not about.etag or not _IDENTIFIER.fullmatch(about.etag) or not 0 <= size <= _LARGEST_FILE:
        raise _no_hub(f"etag {about.etag!r} and size {about.size} of {path}")
    return Blob(repo, commit, path, about.etag, size)


@contextmanager
def opened(file: Blob, start: int, stop: int) -> Generator[tuple[int, Iterator[bytes]]]:
    """Yields the position of the first byte and the bytes in pieces, from `start` to before `stop`; the position is 0
    if the server sends the whole file instead. Raises as `listing` does, also while the pieces are read."""
    headers = {**_headers(), "Range": f"bytes={start}-{stop - 1}"}
    url, seconds = _url(file.repo, file.commit, file.path), constants.HF_HUB_DOWNLOAD_TIMEOUT
    with (
        _own_errors(file.repo, file.commit, file.path),
        get_session().stream("GET", url, headers=headers, timeout=seconds) as response,
    ):
        _check(response)
        if response.status_code != 206:
            yield 0, response.iter_raw()
            return
        sent = response.headers.get("Content-Range", "")
        bounds = _RANGE.fullmatch(sent)
        if bounds is None or int(bounds[1]) != start or bounds[2] not in ("*", str(file.size)):
            raise _no_hub(f"Content-Range {sent!r} of {file.path} for the bytes from {start:,} of {file.size:,}")
        yield start, response.iter_raw()


def _headers() -> dict[str, str]:
    return {**build_hf_headers(token=_token(), library_name=_US), "Accept-Encoding": "identity"}


def _token() -> str | bool:
    """Returns the caller's token; False for none. huggingface_hub itself reads it in the middle of a request."""
    try:
        return (not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and get_token()) or False
    except OSError as error:
        raise ModelLoadError(
            f"The token for the Hub cannot be read ({error}). Correct that, or set HF_TOKEN."
        ) from error


def endpoint() -> str:
    """Returns the address of the Hub."""
    return constants.ENDPOINT


def hosts() -> frozenset[str]:
    """Returns the host names of the Hub."""
    return HUB_HOSTS | {urlsplit(constants.ENDPOINT).hostname or ""}


def is_offline() -> bool:
    """Whether the caller disabled the network (HF_HUB_OFFLINE)."""
    return constants.HF_HUB_OFFLINE


def is_silent() -> bool:
    """Whether the caller disabled progress output (HF_HUB_DISABLE_PROGRESS_BARS)."""
    return are_progress_bars_disabled()


def cache_directory() -> Path:
    """Returns the directory in which all programs on this machine keep their downloads from the Hub."""
    return Path(constants.HF_HUB_CACHE).expanduser()


def repository_directory(repo: str) -> Path:
    """Returns the directory of a model's repository in the cache."""
    return cache_directory() / repo_folder_name(repo_id=repo, repo_type="model")


def has_links() -> bool:
    """Whether the cache can hold symbolic links; otherwise files are stored in place of the links."""
    return are_symlinks_supported(cache_directory())


def lock(repo: str, etag: str, seconds: float) -> AbstractContextManager[Any]:
    """Returns the lock under which huggingface_hub, too, downloads a file. Entering it raises TimeoutError after
    `seconds`."""
    path = cache_directory() / ".locks" / repository_directory(repo).name / f"{etag}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return WeakFileLock(path, timeout=seconds)


def delete_cached(files: Collection[Path]) -> bool:
    """Delete files of the cache through huggingface_hub, which since 1.31 may store the bytes of several repositories
    in one place. Returns False if it is older and cannot. Raises OSError."""
    try:
        found = scan_cache_dir(cache_directory())
    except CacheNotFound as error:  # Python 3.14 takes a disk that fails for it
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(cache_directory())) from error
    delete = getattr(found, "delete_files", None)
    if delete is None:
        return False
    wanted = {file.parent.resolve() / file.name for file in files}
    delete(
        *(
            file
            for repo in found.repos
            for revision in repo.revisions
            for file in revision.files
            if file.file_path.parent.resolve() / file.file_path.name in wanted
        )
    ).execute()
    return True


def _url(repo: str, commit: str, path: str) -> str:
    return hf_hub_url(repo, path, revision=commit)


def _is_inside(path: str) -> bool:
    """Whether a path stays inside its repository, since it becomes a path on this disk."""
    pure = PurePosixPath(path)
    return (
        path.isprintable()
        and not pure.is_absolute()
        and ".." not in pure.parts
        and not set(path) & set('\\:*?"<>|')
        and len(path) <= _LONGEST_PATH
        and all(len(part.encode()) <= _LONGEST_NAME for part in pure.parts)
    )


@contextmanager
def _own_errors(repo: str, revision: str | None, path: str | None = None) -> Generator[None]:
    """Raise errors of huggingface_hub and of its HTTP client as our own."""
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise Unavailable(
            f"HF_HUB_OFFLINE is set, but {_what(repo, revision, path)} is not in the cache, {cache_directory()}. Unset "
            "it to download, or pass the path of a file."
        ) from error
    except HfHubHTTPError as error:
        raise _refused(error, repo, revision, path) from error
    except _TRANSPORT as error:
        reason = _line(error) or type(error).__name__
        raise Unavailable(
            f"{endpoint()} cannot be reached, or the connection broke ({reason}). Check the network, HTTPS_PROXY and "
            "HF_ENDPOINT. Models in the cache can be used without a network.",
            passing=True,
        ) from error


def _refused(error: HfHubHTTPError, repo: str, revision: str | None, path: str | None) -> ModelLoadError:
    """Returns the error for the Hub's refusal, with the way out."""
    status, page = error.response.status_code, f"{endpoint()}/{repo}"
    token = "the token in use does not give access to it, " if _token() else ""
    if isinstance(error, GatedRepoError):
        way = "check that it was granted, and that the token may read gated repositories." if token else f"{_LOG_IN}."
        return Unavailable(f"{repo} is gated: its owner grants access. Ask for it at {page}, then {way}")
    if isinstance(error, RevisionNotFoundError):
        return ModelLoadError(
            f"{repo} has no revision {revision!r}. Leave it out for the main branch, or choose a branch, tag or commit "
            f"of {page}/commits/main"
        )
    if isinstance(error, RemoteEntryNotFoundError):
        return ModelLoadError(f"{_what(repo, revision, path)} is not there any more; see {page}/tree/main")
    if "Invalid credentials" in str(error):
        return Unavailable(f"The Hub does not accept the token in use: {_LOG_IN}; public models need none.")
    if isinstance(error, RepositoryNotFoundError) or status in (401, 404):
        return Unavailable(
            f"There is no repository {repo} on {endpoint()}, or it is private; nor is there a file of this name here. "
            f"Check the spelling; for a private repository: {token or 'no token is in use, '}{_LOG_IN}."
        )
    if status == 429:
        return Unavailable(
            f"{endpoint()} refuses further requests for a while (status 429). Try again later, or {_LOG_IN}.",
            passing=True,
        )
    reason = _line(error.server_message or error)
    return Unavailable(
        f"{endpoint()} refused {_what(repo, revision, path)} (status {status}: {reason}). "
        + ("Try again later." if status in _PASSING else f"See {page}, and whether a token is needed: {_LOG_IN}."),
        passing=status in _PASSING,
    )


def _what(repo: str, revision: str | None, path: str | None) -> str:
    return f"{repo}{f'/{path}' if path else ''}{f' at {revision}' if revision else ''}"


def _line(text: object) -> str:
    """Returns foreign text as one line for a message: without control characters, and not too long."""
    printable = "".join(character if character.isprintable() else " " for character in str(text))
    return " ".join(printable.split())[:300]


def _no_hub(reason: str) -> Unavailable:
    return Unavailable(
        f"{endpoint()} did not answer as the Hugging Face Hub does ({_line(reason)}). Check HF_ENDPOINT, and whether a "
        "proxy or the login page of a network is in between."
    )
