"""Turns a name into a path: asks the Hub or looks in the cache, and downloads missing files."""

import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from engine.hub import api, cache, download, ollama
from engine.hub.api import Listing, Unavailable
from engine.hub.names import SPELLINGS, Name, is_bare, near_names, parse
from engine.hub.progress import Progress
from engine.hub.variants import File, Variant, projector_of, select, size_text, variants_of
from engine.support.errors import ModelLoadError, RequestError
from engine.support.offloop import is_unwanted
from engine.support.screens import screen_for

_log = logging.getLogger("engine.hub")

_REVISION = re.compile(r"(?!.*\.\.)[\w][^\x00-\x20~^:?*\[\\\x7f]*")  # git check-ref-format; it becomes a path, too
T = TypeVar("T")
Memory = Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class Found:
    """The model that a name means, at one commit. `variants`: all of the repository; `why`: how a quantisation was
    chosen, "" if the name contains it. `revision`: as requested."""

    repo: str
    revision: str | None
    commit: str
    variant: Variant
    variants: tuple[Variant, ...]
    why: str

    @property
    def path(self) -> Path:
        """The path of the first file, whether or not it is downloaded."""
        return cache.path_of(self.repo, self.commit, self.variant.files[0])

    @property
    def is_here(self) -> bool:
        """Whether all files are in the cache."""
        return cache.is_here(self.repo, self.commit, self.variant)


def named(model: str, revision: str | None = None) -> Name | None:
    """Returns the name of a model on the Hub that a text contains; None for the path of a file. Raises ModelLoadError
    for a misspelt name, RequestError for two revisions."""
    name = parse(model, api.hosts())
    if name is None:
        return None
    if revision is not None and name.revision not in (None, revision):
        raise RequestError(f"revision={revision!r} contradicts {model}, which names {name.revision!r}; leave one out.")
    name = replace(name, revision=revision or name.revision)
    if name.revision is not None and not _REVISION.fullmatch(name.revision):
        raise RequestError(f"revision={name.revision!r} cannot be a branch, tag or commit; see git check-ref-format.")
    return name


def located(model: str, revision: str | None = None, memory: Memory | None = None) -> Path:
    """Returns the path of the model that a text names: on the Hub, downloaded if missing; otherwise the text as a path,
    which may not exist. Raises what `named` and `fetch` raise."""
    path, name = Path(model).expanduser(), named(model, revision)
    if name is None:
        if revision is not None:
            raise RequestError(f"revision={revision!r} is for models on the Hub, but {model} is a path; leave it out.")
        if not path.exists() and (near := near_names(model)):
            raise ModelLoadError(f"There is neither a file nor a model named {model}; {near}")
        if not path.exists() and is_bare(model):
            raise ModelLoadError(
                f"There is no file {model}, and names of services mean nothing here. Write a model on the Hugging Face "
                f"Hub as {SPELLINGS}, one of Ollama's as ollama:{model}; `llama-engine models suggest` names some."
            )
        return path
    if name.quantization is None and "://" not in model and path.parent.is_dir():
        raise ModelLoadError(
            f"There is no file {path}, though there is a directory {path.parent}. Correct the path; if a model on the "
            f"Hugging Face Hub is meant, write hf://{model}."
        )
    return fetch(name, memory=memory)


def fetch(name: Name, *, memory: Memory | None = None, progress: Progress | None = None) -> Path:
    """Download what is missing of a model, and return the path of its first file.

    `memory` returns the available bytes, to choose a quantisation (None: not known). `progress` is by default shown on
    standard error, or in the notebook. Raises ModelLoadError, with the way out; the next call resumes an interrupted
    download.
    """
    found = find(name, memory)
    if found.why:
        _log.info("%s: %s", found.repo, found.why)
    if not found.is_here:
        progress = progress or Progress(None if api.is_silent() else screen_for(sys.stderr))
        if found.why:
            progress.say(f"{found.repo}: {found.why}")
        try:
            _download(found, progress)
        except Unavailable as error:
            copy = _in_cache(name, memory)
            if copy is None:
                raise
            _warn_of_copy(copy, error)
            return copy.path
    _remember(found)
    return found.path


def projector(path: Path, room: int | None) -> Path:
    """Returns the path of the projector that belongs to a model file: of one in the cache, its repository's at the same
    commit, downloaded if missing; of one of Ollama's, what its manifest names; else one in the same folder. `room`: the
    bytes into which it is to fit (None: not known). Raises ModelLoadError if there is none, or several."""
    repo, commit = cache.origin(path)
    if commit is None:
        if (stored := ollama.projector(path)) is not None:
            return stored
        sizes = {file: file.stat().st_size for file in sorted(path.parent.glob("*.gguf")) if file.is_file()}
        there = variants_of(File(file.name, size) for file, size in sizes.items())
        chosen, why = projector_of(path.name, there, room, lambda _: True, str(path.parent))
        _log.info("The projector: %s", why)
        return path.with_name(chosen.path)
    model = path.relative_to(cache.path_of(repo, commit, File(""))).as_posix()

    def is_here(variant: Variant) -> bool:
        return cache.is_here(repo, commit, variant)

    cached = cache.snapshot(repo, commit)
    files = cached.files if cached else ()
    if any(each.is_projector for each in variants_of(files)):
        try:
            files = api.listing(repo, commit).files
        except Unavailable as error:
            _log.info("%s The projector in the cache is used.", error)
    else:
        files = _patiently(lambda: api.listing(repo, commit)).files
    chosen, why = projector_of(model, variants_of(files), room, is_here, repo)
    _log.info("%s: the projector: %s", repo, why)
    return fetch(Name(repo, commit, pattern=chosen.path))


def find(name: Name, memory: Memory | None = None) -> Found:
    """Returns the model that a name means, without downloading it; without a network, the one in the cache. Raises
    ModelLoadError if there is none, or several."""
    api.check_repo(name.repo)
    cached = _in_cache(name, memory)
    if cached and cache.is_commit(name.revision):
        return cached  # a commit does not change
    try:
        if cached:
            return _chosen(name, api.listing(name.repo, name.revision), memory)
        return _chosen(name, _patiently(lambda: api.listing(name.repo, name.revision)), memory)
    except Unavailable as error:
        if cached is None:
            raise _with_cached(name, error) from error
        if not api.is_offline():
            _warn_of_copy(cached, error)
        return cached


def blobs(found: Found) -> list[api.Blob]:
    """Returns the files of a model on the Hub, in order, to read parts of them without a download. Raises
    ModelLoadError."""
    return [_blob(found, file) for file in found.variant.files]


def read(blob: api.Blob, start: int, length: int) -> bytes:
    """Returns `length` bytes of a file on the Hub from `start` on, or as many as there are. Raises ModelLoadError."""
    stop = min(start + length, blob.size)
    if stop <= start:
        return b""
    with api.opened(blob, start, stop) as (at, pieces):
        taken = bytearray()
        for piece in pieces:
            taken += piece
            if at + len(taken) >= stop:  # a server that ignores ranges would go on
                break
    data = bytes(taken[start - at : stop - at])
    if len(data) < stop - start:
        raise Unavailable(f"{api.endpoint()} sent {len(data):,} of {stop - start:,} bytes; try again.", passing=True)
    return data


def _chosen(name: Name, there: Listing, memory: Memory | None) -> Found:
    variants = tuple(variants_of(there.files))
    available = memory() if memory and name.quantization is None and name.pattern is None else None

    def is_here(variant: Variant) -> bool:
        return cache.is_here(name.repo, there.commit, variant)

    variant, why = select(name, variants, available, is_here)
    return Found(name.repo, name.revision, there.commit, variant, variants, why)


def _in_cache(name: Name, memory: Memory | None) -> Found | None:
    files = cache.snapshot(name.repo, name.revision)
    try:
        return _chosen(name, files, memory) if files else None
    except ModelLoadError as error:
        _log.debug("Not in the cache: %s", error)
        return None


def _warn_of_copy(copy: Found, error: Unavailable) -> None:
    _log.warning("%s The copy of %s in the cache is used instead, commit %s.", error, copy.repo, copy.commit)


def _with_cached(name: Name, error: Unavailable) -> ModelLoadError:
    """Returns the error, extended by what the cache has of this repository."""
    cached = cache.snapshot(name.repo, name.revision)
    variants = variants_of(cached.files) if cached else []
    if not variants:
        return error
    there = ", ".join(f"{variant.path} ({size_text(variant.size)})" for variant in variants)
    return ModelLoadError(f"{error} The cache has {there}, but {name} does not mean that.")


def _download(found: Found, progress: Progress) -> None:
    missing = [
        _blob(found, file)
        for file in found.variant.files
        if not cache.is_whole(cache.path_of(found.repo, found.commit, file), file.size)
    ]
    total, here = sum(blob.size for blob in missing), sum(download.unfinished_size(blob) for blob in missing)
    download.check_room(total - here)
    progress.begin(found.variant.path, total, here)
    before = 0
    try:
        for blob in missing:
            download.download(
                blob,
                lambda here, base=before: _at(progress, base + here),
                lambda: progress.say("Another process downloads this file; waiting for it."),
            )
            before += blob.size
    except BaseException:
        progress.stopped()
        raise
    progress.end()


def _at(progress: Progress, here: int) -> None:
    progress.at(here)
    if is_unwanted():
        raise ModelLoadError("The download was cancelled; call again to go on.")


def _blob(found: Found, file: File) -> api.Blob:
    blob = _patiently(lambda: api.blob(found.repo, found.commit, file.path))
    if file.size not in (None, blob.size):
        raise ModelLoadError(
            f"{api.endpoint()} lists {blob.repo}/{blob.path} with {file.size:,} bytes, but serves {blob.size:,}. "
            "Check HF_ENDPOINT, and whether a proxy is in between."
        )
    return blob


def _patiently(ask: Callable[[], T]) -> T:
    """Call `ask`, again if the Hub is out for a moment."""
    for wait in download.WAITS[:3]:
        try:
            return ask()
        except Unavailable as error:
            if not error.passing:
                raise
        time.sleep(wait)
    return ask()


def _remember(found: Found) -> None:
    try:
        cache.remember(found.repo, found.revision, found.commit)
    except (OSError, ModelLoadError) as error:  # a cache that can only be read
        _log.debug("The commit cannot be recorded in the cache: %s", error)
