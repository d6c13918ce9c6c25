"""Reads small files that belong to a downloaded model, such as tokenizer_config.json: its repository's, or its base
model's."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.hub import api, cache, download
from engine.hub.names import parse
from engine.hub.variants import File
from engine.support import paths
from engine.support.errors import ModelLoadError
from engine.support.nothing import nothing

_log = logging.getLogger("engine.hub")

LARGEST = 16 << 20
"""The largest file that is read, in bytes: vocabularies of added tokens take some megabytes."""


def companions(path: Path, bases: Sequence[str], file: str = cache.COMPANION) -> Iterator[tuple[str, bytes]]:
    """Yields name and bytes of each `file` of a model in the cache: first its repository's at the same commit, then its
    base models' (the addresses of their repositories), at the commit that was seen first.

    They are kept in the cache, and so is the knowledge that there is none. What cannot be had (no network, no access,
    no such file) is left out and logged: a model can be used without it.
    """
    repositories = [cache.origin(path), *((repo, None) for repo in map(_repository, bases))]
    for repo, commit in repositories:
        if not repo:
            continue
        try:
            data = _read(repo, commit, file)
        except (ModelLoadError, OSError) as error:
            _log.debug("%s of %s is left out: %s", file, repo, error)
            if isinstance(error, api.Unavailable) and error.passing:
                return  # without a network, the next one would only take as long to fail
            continue
        if data is not None:
            yield f"{repo} ({file})", data


def _repository(address: str) -> str:
    """Returns the repository on the Hub at an address; "" for any other address."""
    try:
        name = parse(address, api.hosts()) if "://" in address else None
    except ModelLoadError as error:
        _log.debug("The base model %r is left out: %s", address[:200], error)
        return ""
    return name.repo if name else ""


def _read(repo: str, commit: str | None, name: str) -> bytes | None:
    """Returns a file of a repository; None if it has none. Raises ModelLoadError, OSError."""
    api.check_repo(repo)
    commit = commit or cache.known_commit(repo, cache.MAIN)
    if commit is not None:
        path = cache.path_of(repo, commit, File(name))
        if paths.is_file(path):
            return path.read_bytes() if path.stat().st_size <= LARGEST else None
        if paths.exists(cache.absent(repo, commit, name)):
            return None
    there = api.listing(repo, commit)
    sizes = {file.path: file.size for file in there.files}
    if commit is None:
        cache.remember(repo, None, there.commit)
    if name not in sizes or (sizes[name] or 0) > LARGEST:
        marker = cache.absent(repo, there.commit, name)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        return None
    blob = api.blob(repo, there.commit, name)
    if blob.size > LARGEST:
        raise ModelLoadError(f"it has {blob.size:,} bytes, more than {LARGEST:,}")
    return download.download(blob, nothing, nothing).read_bytes()
