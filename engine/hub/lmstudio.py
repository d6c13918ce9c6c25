"""The folders of LM Studio: PUBLISHER/MODEL/FILE.gguf. They are only read."""

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from engine.hub.names import Name
from engine.hub.stored import Stored, files, inside, small_text
from engine.hub.variants import File, Variant, select, variants_of
from engine.support.errors import ModelLoadError, did_you_mean

PREFIX = "lmstudio:"
_log = logging.getLogger("engine.hub")
_GGUF = ".gguf"
_NAME = re.compile(
    r"(?P<repo>[^/:\x00]+/[^/:\x00]+)(?: : (?P<quantization>[\w.-]+) | / (?P<file>[^/\x00]+) )?", re.VERBOSE | re.ASCII
)


def located(name: str, memory: int | None) -> Path:
    """Returns the file of a model, named as "publisher/model/file.gguf" (".gguf" may be left out),
    "publisher/model:Q4_K_M", or "publisher/model" for a quantisation that fits into `memory` bytes. Raises
    ModelLoadError."""
    found = _NAME.fullmatch(name)
    if found is None or any(part in (".", "..") for part in name.split("/")):
        raise ModelLoadError(
            f"{PREFIX}{name} is not a model of LM Studio's; write {PREFIX}publisher/model/file.gguf, as `llama-engine "
            "models list` does."
        )
    repo, file = found["repo"], found["file"]
    if file is not None and not file.lower().endswith(_GGUF):
        file += _GGUF
    wanted = Name(PREFIX + repo, None, found["quantization"], file)
    for folder in folders():
        if variants := _variants(folder, repo):
            chosen, _ = select(wanted, variants, memory, lambda _: True)
            whole = [inside(folder, folder / repo / each.path, "A model of LM Studio's") for each in chosen.files]
            return whole[0]
    repos = [each.name.removeprefix(PREFIX).rpartition("/")[0] for each in models()]
    where = " and ".join(map(str, folders())) or "there is no folder ~/.lmstudio/models"
    raise ModelLoadError(
        f"LM Studio has no model {repo} here ({where}); "
        f"{did_you_mean(repo, repos, '`llama-engine models list` shows what there is.')}"
    )


def models() -> list[Stored]:
    """Returns the models in the folders, by name; one that cannot be used has a `problem`."""
    found: dict[str, Stored] = {}
    for folder in folders():
        try:
            repos = sorted({path.parent.relative_to(folder).as_posix() for path in files(folder, 2) if _is_gguf(path)})
        except OSError as error:
            _log.warning("LM Studio's folder, %s, cannot be read: %s", folder, error)
            continue
        for repo in repos:
            for variant in _variants(folder, repo):
                name = f"{PREFIX}{repo}/{variant.path}"
                found.setdefault(name, _stored(folder, repo, variant, name))
    return [found[name] for name in sorted(found)]


def folders() -> list[Path]:
    """Returns the folders of models that are there: of LM Studio's home, at each place where that has been, the one
    that its settings name, or `models`."""
    try:
        homes = [_pointed(), Path("~/.lmstudio").expanduser(), Path("~/.cache/lm-studio").expanduser()]
    except RuntimeError as error:  # no home directory
        _log.debug("LM Studio has no folder: %s", error)
        return []
    places = [place for home in homes if home is not None for place in (_moved(home) or home / "models",)]
    return list(dict.fromkeys(place.resolve() for place in places if os.path.isdir(place)))  # noqa: PTH112 - may be forbidden


def _pointed() -> Path | None:
    """Returns the home that LM Studio's pointer file names."""
    pointer = Path("~/.lmstudio-home-pointer").expanduser()
    if not os.path.isfile(pointer):  # noqa: PTH113 - False where it is forbidden
        return None
    try:
        return _folder(small_text(pointer, "LM Studio's pointer").decode(errors="replace").strip())
    except ModelLoadError as error:
        _log.warning("LM Studio's home is looked for where it usually is: %s", error)
        return None


def _moved(home: Path) -> Path | None:
    """Returns the folder for models that the settings name."""
    settings = home / "settings.json"
    if not os.path.isfile(settings):  # noqa: PTH113 - False where it is forbidden
        return None
    try:
        record: Any = json.loads(small_text(settings, "LM Studio's settings"))
        return _folder(record["downloadsFolder"])
    except (ValueError, RecursionError, KeyError, TypeError, ModelLoadError) as error:
        _log.debug("%s names no folder for models: %s", settings, error)
        return None


def _folder(text: object) -> Path | None:
    """Returns the folder that a text names, if it is a whole path."""
    if not isinstance(text, str) or "\0" in text or not Path(text).is_absolute():
        return None
    return Path(text)


def _is_gguf(path: Path) -> bool:
    return path.name.lower().endswith(_GGUF)


def _variants(folder: Path, repo: str) -> list[Variant]:
    """Returns the models in the folder of a repository, split ones with their parts together."""
    try:
        here = [path for path in files(folder / repo, 0) if _is_gguf(path)]
        return variants_of(File(path.name, path.stat().st_size if path.exists() else None) for path in here)
    except OSError as error:
        raise ModelLoadError(
            f"LM Studio's folder, {folder / repo}, cannot be read ({error.strerror}). Let your user read it."
        ) from error


def _stored(folder: Path, repo: str, variant: Variant, name: str) -> Stored:
    problem = f"parts of it are missing: {variant.lacking}" if variant.lacking else ""
    try:
        for each in variant.files:
            inside(folder, folder / repo / each.path, "A model of LM Studio's")
    except ModelLoadError as error:
        problem = str(error)
    return Stored(name, folder / repo / variant.path, variant.size or 0, variant.quantization, problem)
