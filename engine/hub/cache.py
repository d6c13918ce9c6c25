"""The Hub's cache: the files of a repository at a commit, all models, and how they are removed."""

import errno
import re
import shutil
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.hub import api
from engine.hub.api import Listing
from engine.hub.names import Name
from engine.hub.variants import File, Variant, is_meant, variants_of
from engine.support import paths
from engine.support.errors import ModelLoadError
from engine.support.output_file import replacing

MAIN = "main"
COMPANION = "tokenizer_config.json"
GENERATION = "generation_config.json"
UNFINISHED = ".incomplete"  # what `hf cache prune` looks for, too
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache, at one commit. `name` loads it; `paths` are its files, in order; `size` is bytes. An
    unfinished download has no variant and no commit; its name says that it is unfinished."""

    repo: str
    name: str
    size: int
    paths: tuple[Path, ...]
    commit: str = ""
    variant: Variant | None = None

    @property
    def quantization(self) -> str:
        """The quantisation in the file's name."""
        return self.variant.quantization if self.variant else ""


@contextmanager
def on_disk() -> Generator[None]:
    """Raise errors of the disk as ModelLoadError."""
    try:
        yield
    except OSError as error:
        directory, reason = api.cache_directory(), error.strerror or str(error)
        if error.errno in _FULL:
            raise ModelLoadError(
                f"The disk of {directory} is full ({reason}). The part downloaded so far is kept: free some space "
                "(`llama-engine models list` shows the models there) and call again to go on; or set HF_HOME to a "
                "directory on another disk."
            ) from error
        raise ModelLoadError(
            f"The Hub's cache, {directory}, cannot be used ({reason}: {error.filename or 'no file named'}). Correct "
            "its permissions, or set HF_HOME to a directory that can be written."
        ) from error


def is_commit(revision: str | None) -> bool:
    """Whether a revision is a full commit hash, which always means the same files."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def path_of(repo: str, commit: str, file: File) -> Path:
    """Returns the path of a file of a repository in the cache, whether or not it exists yet."""
    return _snapshots(repo) / commit / file.path


def origin(path: Path) -> tuple[str, str | None]:
    """Returns the repository and commit of a file in the cache; "" for any other file."""
    root = api.cache_directory()
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    if len(parts) < 4 or not parts[0].startswith("models--") or parts[1] != "snapshots":
        return "", None
    return parts[0].removeprefix("models--").replace("--", "/"), parts[2]


def exactly(path: Path) -> tuple[str, str]:
    """Returns the name of this very file of the cache, "owner/repo/file.gguf", and its commit."""
    repo, commit = origin(path)
    assert commit is not None, "the file is in the cache"
    return f"{repo}/{path.relative_to(api.cache_directory()).as_posix().split('/', 3)[3]}", commit


def absent(repo: str, commit: str, name: str = COMPANION) -> Path:
    """Returns the empty file that says that a commit has no such file; huggingface_hub, too, keeps it there."""
    return api.repository_directory(repo) / ".no_exist" / commit / name


def is_here(repo: str, commit: str, variant: Variant) -> bool:
    """Whether all files of a variant are in the cache, with the right sizes."""
    return all(is_whole(path_of(repo, commit, file), file.size) for file in variant.files)


@on_disk()
def is_whole(path: Path, size: int | None) -> bool:
    """Whether a file is there and has this size."""
    return paths.is_file(path) and size in (None, path.stat().st_size)


@on_disk()
def snapshot(repo: str, revision: str | None) -> Listing | None:
    """Returns the cached files at a revision, as far as known without asking the Hub; None if there are none."""
    commit = revision if is_commit(revision) else known_commit(repo, revision or MAIN)
    folder = _snapshots(repo) / (commit or "")
    if commit is None or not paths.is_dir(folder):
        return None
    files = (path for path in paths.below(folder) if path.name.endswith(".gguf") and paths.is_file(path))
    return Listing(commit, tuple(File(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files))


def remember(repo: str, revision: str | None, commit: str) -> None:
    """Record the commit of a branch or tag, for when the Hub cannot be asked."""
    if revision == commit or known_commit(repo, revision or MAIN) == commit:
        return
    path = _reference(repo, revision or MAIN)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, mode=0o644) as (file, _):
        file.write(commit.encode())


@on_disk()
def models() -> list[CachedModel]:
    """Returns the GGUF models in the cache, and unfinished downloads, sorted by name."""
    found: dict[tuple[Path, ...], CachedModel] = {}
    for repo in _repositories():
        main = known_commit(repo, MAIN)
        for folder in sorted(paths.listed(_snapshots(repo)), key=lambda folder: folder.name != main):
            here = snapshot(repo, folder.name)
            variants = variants_of(here.files if here else ())
            for variant in variants:
                parts = tuple(folder / file.path for file in variant.files)
                name = _name(repo, None if folder.name == main else folder.name, variant, variants)
                model = CachedModel(repo, str(name), variant.size or 0, parts, folder.name, variant)
                found.setdefault(tuple(path.resolve() for path in parts), model)
        for path in paths.listed(api.repository_directory(repo) / "blobs"):
            if path.name.endswith(UNFINISHED):
                size = path.stat().st_size
                found[path,] = CachedModel(repo, f"{repo} (unfinished download)", size, (path,))
    return sorted(found.values(), key=lambda model: (model.name, model.paths))


def models_of(name: Name) -> list[CachedModel]:
    """Returns the cached models that a name means; for a whole repository all of them, with unfinished downloads.
    Raises ModelLoadError if there are none."""
    found: list[CachedModel] = []
    for model in models():
        if model.repo != name.repo or name.revision not in (None, model.commit, _branch(model)):
            continue
        if (name.quantization, name.pattern) == (None, None) or (model.variant and is_meant(name, model.variant)):
            found.append(model)
    if not found:
        raise ModelLoadError(
            f"The cache, {api.cache_directory()}, has no model {name}; `llama-engine models list` shows what it "
            "contains."
        )
    return found


def _branch(model: CachedModel) -> str | None:
    return MAIN if model.commit == known_commit(model.repo, MAIN) else None


def remove(unwanted: Collection[CachedModel]) -> None:
    """Delete models, at every commit with the same bytes, and the directories that are left empty. Raises OSError if
    the system refuses."""
    for model in unwanted:
        if model.variant is None:
            model.paths[0].unlink(missing_ok=True)
            continue
        blobs = {path.resolve() for path in model.paths}
        _delete([path for path in paths.below(_snapshots(model.repo)) if path.resolve() in blobs])
    for repo in {model.repo for model in unwanted}:
        folder = api.repository_directory(repo)
        ours = {path.resolve() for path in paths.below(_snapshots(repo)) if path.name in (COMPANION, GENERATION)}
        kept = [path for name in ("snapshots", "blobs") for path in paths.below(folder / name)]
        if {path.resolve() for path in kept} <= ours:
            shutil.rmtree(folder)


def _delete(files: Sequence[Path]) -> None:
    if api.delete_cached(files):
        return
    for file in files:
        blob = file.resolve()
        file.unlink()
        blob.unlink(missing_ok=True)  # without links the file was the blob


def _name(repo: str, revision: str | None, variant: Variant, variants: Sequence[Variant]) -> Name:
    """Returns the shortest name that loads a variant from the cache."""
    alone = variant.is_model and sum(each.quantization == variant.quantization for each in variants) == 1
    if variant.quantization and alone:
        return Name(repo, revision, quantization=variant.quantization)
    return Name(repo, revision, pattern=variant.path)


def _repositories() -> list[str]:
    folders = (folder.name for folder in paths.listed(api.cache_directory()))
    return [found[1].replace("--", "/") for name in folders if (found := re.fullmatch("models--(.*--.*)", name))]


def _snapshots(repo: str) -> Path:
    return api.repository_directory(repo) / "snapshots"


def _reference(repo: str, revision: str) -> Path:
    return api.repository_directory(repo) / "refs" / revision


@on_disk()
def known_commit(repo: str, revision: str) -> str | None:
    """Returns the commit that a branch or tag was at when the Hub was last asked."""
    path = _reference(repo, revision)
    return path.read_text(encoding="utf-8").strip() if paths.is_file(path) else None
