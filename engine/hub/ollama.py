"""The store of Ollama: manifests name the blobs of a model, which are GGUF files. It is only read.

`manifests/HOST/NAMESPACE/MODEL/TAG` is JSON whose `layers` have a media type, a digest and a size; the bytes of the
digest `sha256:HEX` are `blobs/sha256-HEX`. What a manifest says is a stranger's text: nothing of it becomes a path but
64 hexadecimal digits.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, cast

from engine.hub.stored import Stored, files, inside, small_text
from engine.hub.variants import quantization_of
from engine.support import paths
from engine.support.errors import ModelLoadError, did_you_mean

PREFIX = "ollama:"
_log = logging.getLogger("engine.hub")
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_SYSTEM = Path("/usr/share/ollama/.ollama/models")
"""Where the service of a Linux installation keeps what it pulls."""
_PART = r"\w[\w.-]{0,127}"
_NAME = re.compile(
    rf"(?:(?:(?P<host>{_PART}(?::\d+)?)/)?(?P<namespace>{_PART})/)?(?P<model>{_PART})(?::(?P<tag>{_PART}))?", re.ASCII
)
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_IMAGE = "application/vnd.ollama.image."
_KINDS = ("model", "projector", "adapter")


class _Layer(NamedTuple):
    digest: str
    size: int


def located(name: str) -> Path:
    """Returns the file of a model, named as `ollama list` names it. Raises ModelLoadError, with the way out."""
    stores = _stores()
    parts = _parts(name)
    for store in stores:
        if (manifest := _manifest(store, parts)) is not None:
            return _model(store, manifest, name)
    if not stores:
        raise ModelLoadError(
            f"Ollama has no model {name} here: there is no folder {_own()}, and OLLAMA_MODELS names no other. "
            f"`ollama pull {name}` fetches it."
        )
    names = [each.name.removeprefix(PREFIX) for each in models()]
    there = f"which has {', '.join(names[:10]) or 'no model'}" + (f" and {len(names) - 10} more" * (len(names) > 10))
    near = did_you_mean(name, names, f"`ollama pull {name}` fetches it.")
    raise ModelLoadError(f"Ollama has no model {name} in {' or '.join(map(str, stores))}, {there}; {near}")


def models() -> list[Stored]:
    """Returns the models in the store, by name; one whose manifest cannot be used has a `problem`."""
    found: dict[str, Stored] = {}
    for store in _stores():
        try:
            manifests = list(files(store / "manifests", 3))
        except OSError as error:
            _log.warning("Ollama's store, %s, cannot be read: %s", store, error)
            continue
        for manifest in manifests:
            short = _short(manifest.relative_to(store / "manifests").parts)
            if short is not None:
                found.setdefault(short, _stored(store, manifest, short))
    return [found[name] for name in sorted(found)]


def _stored(store: Path, manifest: Path, short: str) -> Stored:
    name = PREFIX + short
    try:
        path = _model(store, manifest, short)
        return Stored(name, path, path.stat().st_size, quantization_of(short.replace(":", "-")))
    except (ModelLoadError, OSError) as error:
        return Stored(name, manifest, problem=str(error))


def projector(path: Path) -> Path | None:
    """Returns the projector that belongs to a file of the store, None if it is no file of it. Raises ModelLoadError if
    it has none, or several."""
    store = next((each for each in _stores() if path.is_relative_to(each / "blobs")), None)
    if store is None:
        return None
    found: set[Path] = set()
    for manifest in files(store / "manifests", 3):
        try:
            layers = _layers(store, manifest)
            if any(_name_of(layer) == path.name for layer in layers["model"]):
                found |= {_blob(store, layer, "A projector of Ollama's") for layer in layers["projector"]}
        except ModelLoadError as error:  # another model's
            _log.debug("A manifest is left out: %s", error)
    if len(found) != 1:
        several = ", ".join(map(str, sorted(found)))
        raise ModelLoadError(
            f"Ollama has several projectors for {path}: {several}. Name one: projector=..."
            if found
            else f"Ollama has no projector for {path}: the model reads text only, or keeps its projector in the same "
            "file, which llama.cpp does not read. Leave projector out, or name a file (mmproj-....gguf)."
        )
    return found.pop()


def _own() -> Path:
    given = os.environ.get("OLLAMA_MODELS")
    return Path(given).expanduser() if given else Path("~/.ollama/models").expanduser()


def _stores() -> list[Path]:
    """Returns the folders of models that are there, links followed: the user's, and without OLLAMA_MODELS the
    service's."""
    try:
        places = [_own()] if os.environ.get("OLLAMA_MODELS") else [_own(), _SYSTEM]
        return [place.resolve() for place in places if os.path.isdir(place)]  # noqa: PTH112 - False where it is forbidden
    except RuntimeError as error:  # no home directory
        _log.debug("Ollama has no store: %s", error)
        return []


def _parts(name: str) -> tuple[str, str, str, str]:
    """Returns host, namespace, model and tag. Raises ModelLoadError for what cannot be a name of Ollama's."""
    found = _NAME.fullmatch(name)
    if found is None or ".." in name:
        raise ModelLoadError(
            f"{PREFIX}{name} is not a name of Ollama's; write it as `ollama list` does, such as {PREFIX}qwen3.5:4b."
        )
    return (found["host"] or _HOST, found["namespace"] or _NAMESPACE, found["model"], found["tag"] or _TAG)


def _short(parts: tuple[str, ...]) -> str | None:
    """Returns the name that stands for the path of a manifest; None for a path that no name means."""
    host, namespace, model, tag = parts
    shown = model if (host, namespace) == (_HOST, _NAMESPACE) else f"{namespace}/{model}"
    name = f"{shown if host == _HOST else f'{host}/{shown}'}:{tag}"
    if host != _HOST and namespace == _NAMESPACE:
        name = f"{host}/{namespace}/{model}:{tag}"
    try:
        return name if _parts(name) == parts else None
    except ModelLoadError:
        return None


def _manifest(store: Path, parts: tuple[str, str, str, str]) -> Path | None:
    """Returns the manifest of a name: exactly this one, else in another case, as names of Ollama's have none."""
    path = store.joinpath("manifests", *parts)
    try:
        if paths.exists(path):
            return path
        wanted = [part.lower() for part in parts]
        every = files(store / "manifests", 3)
        return next((each for each in every if [part.lower() for part in each.parts[-4:]] == wanted), None)
    except OSError as error:
        raise ModelLoadError(
            f"Ollama's store, {store}, cannot be read ({error.strerror}). Let your user read it, or copy the model."
        ) from error


def _model(store: Path, manifest: Path, name: str) -> Path:
    """Returns the weights that a manifest names. Raises ModelLoadError."""
    layers = _layers(store, manifest)
    models = layers["model"]
    if not models:
        raise ModelLoadError(
            f"Ollama's {name} has no GGUF file here: it runs on Ollama's servers, or is kept in another form "
            f"({manifest}). Take one that `llama-engine models list` shows."
        )
    if len(models) > 1:
        raise ModelLoadError(f"Ollama's {name} has {len(models)} files of weights ({manifest}); pass the path of one.")
    path = _blob(store, models[0], f"The model {name} of Ollama's")
    if layers["adapter"]:
        adapter = _blob(store, layers["adapter"][0], f"The adapter of Ollama's {name}")
        raise ModelLoadError(
            f"Ollama's {name} is a model and an adapter, which are loaded so: Engine.load({str(path)!r}, "
            f'adapters={{"it": {str(adapter)!r}}}), and adapter="it" for a turn.'
        )
    return path


def _layers(store: Path, manifest: Path) -> dict[str, list[_Layer]]:
    """Returns the layers of a manifest that are used, by kind. Raises ModelLoadError for one that is none."""
    what = "A manifest of Ollama's"
    data = small_text(inside(store, manifest, what), what)
    try:
        record: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{what}, {manifest}, is not JSON ({error}). `ollama pull` writes it anew.") from error
    layers = cast("Mapping[str, object]", record).get("layers") if isinstance(record, dict) else None
    if not isinstance(layers, list):
        raise ModelLoadError(f"{what}, {manifest}, has no list of layers. `ollama pull` writes it anew.")
    found: dict[str, list[_Layer]] = {kind: [] for kind in _KINDS}
    for layer in cast("list[object]", layers):
        fields: Mapping[str, object] = cast("Mapping[str, object]", layer) if isinstance(layer, dict) else {}
        kind, digest, size = fields.get("mediaType"), fields.get("digest"), fields.get("size")
        if not isinstance(kind, str) or not isinstance(digest, str) or type(size) is not int:
            raise ModelLoadError(f"{what}, {manifest}, has a layer without media type, digest or size.")
        if (short := kind.partition(";")[0].removeprefix(_IMAGE)) in found:
            found[short].append(_Layer(digest, size))
    return found


def _name_of(layer: _Layer) -> str:
    found = _DIGEST.fullmatch(layer.digest)
    return f"sha256-{found[1]}" if found else ""


def _blob(store: Path, layer: _Layer, what: str) -> Path:
    """Returns the file of a layer. Raises ModelLoadError for a digest that is none, and a file that is not whole."""
    name = _name_of(layer)
    if not name:
        raise ModelLoadError(f"{what} has a digest that is none: {layer.digest[:80]!r}. `ollama pull` writes it anew.")
    path = store / "blobs" / name
    real = inside(store, path, what)
    try:
        here = real.stat().st_size if paths.is_file(real) else None
    except OSError as error:
        raise ModelLoadError(f"{what}, {path}, cannot be read ({error.strerror}); see its permissions.") from error
    if here != layer.size:
        state = "is not there" if here is None else f"has {here:,} of {layer.size:,} bytes"
        raise ModelLoadError(f"{what}, {path}, {state}. `ollama pull` completes it.")
    return real
