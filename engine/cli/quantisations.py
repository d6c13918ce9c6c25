"""Finds which quantisations of a model fit into this machine's memory, from headers alone: of a file here, or of files
on the Hub before any download.

Sizes are bytes, contexts tokens.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.api import loading
from engine.llama.gguf.gguf import GgufFile, described, read_gguf
from engine.llama.gguf.gguf_header import read_header_by_ranges
from engine.llama.gguf.projector_file import ProjectorFile, described_projector, read_projector
from engine.llama.gguf.rope import beyond, positions, reach
from engine.llama.params import position_limit
from engine.llama.plan.plan import MODEST_CONTEXT, Machine, longest, plan, this_machine
from engine.runtime.loop.config import ContextOptions, MediaOptions, ModelOptions
from engine.support.errors import ModelLoadError, RequestError
from engine.turns.options import AUTO

if TYPE_CHECKING:
    from engine import hub
    from engine.hub.variants import Variant


@dataclass(frozen=True, slots=True)
class Wanted:
    """The context to plan for. `n_ctx`: maximum number of tokens in one conversation; None is 8192, or the training
    length if that is less. `n_sequences`: conversations at once. `projector`: what makes rows of pictures and sounds
    beside the model, as `Engine.load` takes it; None: none."""

    n_ctx: int | None = None
    n_sequences: int = 1
    projector: str | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """One quantisation. `name` loads it; `size`: its weights; `memory` and `device`: what it takes here and on devices,
    with a context for conversations of `n_ctx` tokens; `layers`: layers on devices, and all layers (None: there are no
    devices). `longest`: the longest conversations that fit, up to the training length, 0 if none do; `fits`: whether
    the requested one does. Both are None if the available memory is not known. `positions`: how far the model's reach;
    `warning`: that `n_ctx` is beyond that, and the way out; "" if it is not. `projector`: the projector that is
    counted, and what it takes; `not_counted`: the one that "auto" would choose, and its size. Both "" if there is
    none."""

    name: str
    quantization: str
    size: int
    n_ctx: int
    n_sequences: int
    memory: int
    device: int
    layers: tuple[int, int] | None
    longest: int | None
    fits: bool | None
    positions: str = ""
    warning: str = ""
    projector: str = ""
    not_counted: str = ""


class _Model(NamedTuple):
    """A model, the name that loads it, and where a projector for it may be: in a repository, or a folder."""

    file: GgufFile
    name: str
    found: "hub.Found | None"


def fits(model: str, revision: str | None, wanted: Wanted, machine: Machine) -> list[Fit]:
    """Returns what fits into a machine, smallest first: the file at that path, or the model that the name means on the
    Hub; for a whole repository, every quantisation of the model that would be chosen.

    Raises ModelLoadError for a model that cannot be found or is not a chat model, RequestError for impossible options.
    """
    # One output of each conversation, like `Engine.load` without drafts.
    options = ContextOptions(n_ctx=wanted.n_ctx, n_sequences=wanted.n_sequences, outputs_per_sequence=1)
    projectors = _Projectors(wanted.projector, machine)
    every = [_fit(each, projectors, options, machine) for each in _models(model, revision)]
    return sorted(every, key=lambda fit: (fit.size, fit.name))


class _Projectors:
    """The projector of each model. Sizes are those that `Engine.load` leaves for one."""

    def __init__(self, given: str | None, machine: Machine) -> None:
        self._given = given
        self._room = None if machine.room is None else machine.room + machine.device_room
        self._read = cache(_projector_on_hub)

    def counted(self, model: _Model) -> ProjectorFile | None:
        """Returns the projector to count beside a model; None if none is wanted. Raises ModelLoadError."""
        from engine import hub

        if self._given is None:
            return None
        if self._given != AUTO:
            here = loading.local(self._given)
            name = None if here else hub.named(self._given)
            return read_projector(here or self._given) if name is None else self._read(hub.find(name))
        if model.found is None:
            return read_projector(hub.projector(model.file.path, self._for(model)))
        return self._read(replace(model.found, variant=self._chosen(model, model.found)))

    def not_counted(self, model: _Model) -> str:
        """Returns the projector that "auto" would choose, with its size; "" if there is none."""
        from engine.hub.variants import size_text

        if model.found is None or not any(each.is_projector for each in model.found.variants):
            return ""
        try:
            chosen = self._chosen(model, model.found)
        except ModelLoadError as error:  # several, of which none can be chosen
            return str(error)
        return f"{chosen.path}, {size_text(chosen.size)}"

    def _chosen(self, model: _Model, found: "hub.Found") -> "Variant":
        from engine.hub.variants import projector_of

        def is_here(variant: "Variant") -> bool:
            return replace(found, variant=variant).is_here

        return projector_of(found.variant.path, found.variants, self._for(model), is_here, found.repo)[0]

    def _for(self, model: _Model) -> int | None:
        return None if self._room is None else max(0, self._room - model.file.weights) // 2


def _projector_on_hub(found: "hub.Found") -> ProjectorFile:
    """Returns a projector on the Hub, from its header."""
    from engine import hub

    if found.is_here:
        return read_projector(found.path)
    (blob,) = hub.blobs(found)
    path = Path(blob.path)
    header = read_header_by_ranges(path, blob.size, partial(hub.read, blob))
    return described_projector(path, header, MediaOptions())


def _models(model: str, revision: str | None) -> Iterator[_Model]:
    """Yields models with the names that load them; on the Hub, all but one are known only by the size of their
    weights."""
    from engine import hub  # imports huggingface_hub, which other commands do not need
    from engine.hub.variants import base_of, spelling

    chosen, revision = loading.resolved(model, revision, this_machine)
    here = loading.local(chosen or model)
    name = None if here else hub.named(str(chosen), revision)
    if name is None:
        if revision is not None:
            raise RequestError(f"revision={revision!r} is for models on the Hub, but {model} is a path; leave it out.")
        yield _Model(read_gguf(here or model), str(chosen), None)
        return
    found = hub.find(name)
    file = read_gguf(found.path) if found.is_here else _remote(found)
    models = [each for each in found.variants if each.is_model]
    is_one = name.quantization is not None or name.pattern is not None
    for variant in [found.variant] if is_one else models:
        is_same = variant.size and not variant.lacking and base_of(variant) == base_of(found.variant)
        if variant == found.variant or is_same:
            weights = variant.size or file.weights
            resized = _resized(file, variant.quantization, weights)
            yield _Model(resized, spelling(found.repo, variant, models), replace(found, variant=variant))


def _resized(file: GgufFile, quantization: str, weights: int) -> GgufFile:
    """Returns the model in another quantisation: every matrix scaled like the file, all of one type."""
    if weights == file.weights:
        return replace(file, quantization=quantization)
    ratio = weights / max(1, file.weights)
    kind = quantization.removeprefix("UD-").rpartition("_")[0] if quantization.count("_") > 1 else quantization
    shape, size = file.shape, sum(file.shape.matrices.values())
    scaled = replace(
        shape,
        matrices={kind: int(size * ratio)},
        output=int(shape.output * ratio),
        tied=int(shape.tied * ratio),
        tied_type=kind if shape.tied else "",
        layers=tuple(replace(layer, weights=int(layer.weights * ratio)) for layer in shape.layers),
    )
    return replace(file, quantization=quantization, weights=weights, shape=scaled)


def _remote(found: "hub.Found") -> GgufFile:
    """Returns a model on the Hub, from the headers of all its parts."""
    from engine import hub

    blobs = hub.blobs(found)
    paths = tuple(Path(f"{blob.repo}/{blob.path}") for blob in blobs)
    headers = (
        read_header_by_ranges(path, blob.size, partial(hub.read, blob)) for path, blob in zip(paths, blobs, strict=True)
    )
    return described(paths, tuple(headers))


def _fit(model: _Model, projectors: _Projectors, options: ContextOptions, machine: Machine) -> Fit:
    file, seeing = model.file, projectors.counted(model)
    if seeing is not None:
        options, machine = seeing.widened(options), machine.without(seeing.memory)
    n_sequences = options.n_sequences or 1
    free = plan(file, ModelOptions(check_memory=False), replace(options, check_memory=False), machine)
    trained = min(reach(file, options) or MODEST_CONTEXT, position_limit(file, options) or sys.maxsize)
    asked = replace(free.context, n_sequences=n_sequences, check_memory=True)
    room = (
        None if machine.available is None else longest(file, ModelOptions(), asked, max(free.n_ctx, trained), machine)
    )
    layers = (free.model.n_gpu_layers or 0, len(file.shape.layers) + 1) if machine.gpus else None
    need = free.need
    fitting = None if room is None else room >= free.n_ctx
    host, device = (0, 0) if seeing is None else seeing.places(on_device=bool(free.model.n_gpu_layers))
    return Fit(
        name=model.name,
        quantization=file.quantization,
        size=file.weights,
        n_ctx=free.n_ctx,
        n_sequences=n_sequences,
        memory=need.host + host,
        device=need.device + device,
        layers=layers,
        longest=room,
        fits=fitting,
        positions=positions(file, options),
        warning=beyond(file, options, free.n_ctx),
        projector="" if seeing is None else seeing.memory_text,
        not_counted=projectors.not_counted(model) if seeing is None else "",
    )
