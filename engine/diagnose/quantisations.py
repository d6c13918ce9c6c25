"""Finds which quantisations of a model fit into this machine's memory, from headers alone: of a file here, or of files
on the Hub before any download.

Sizes are bytes, contexts tokens.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import RequestError
from engine.llama.gguf import GgufFile, described, read_gguf
from engine.llama.gguf_header import read_header_by_ranges
from engine.llama.params import position_limit
from engine.llama.plan import MODEST_CONTEXT, Machine, longest, plan
from engine.llama.rope import beyond, positions, reach
from engine.runtime.config import ContextOptions, ModelOptions

if TYPE_CHECKING:
    from engine import hub


@dataclass(frozen=True, slots=True)
class Wanted:
    """The context to plan for. `n_ctx`: maximum number of tokens in one conversation; None is 8192, or the training
    length if that is less. `n_sequences`: conversations at once."""

    n_ctx: int | None = None
    n_sequences: int = 1


@dataclass(frozen=True, slots=True)
class Fit:
    """One quantisation. `name` loads it; `size`: its weights; `memory` and `device`: what it takes here and on devices,
    with a context for conversations of `n_ctx` tokens; `layers`: layers on devices, and all layers (None: there are no
    devices). `longest`: the longest conversations that fit, up to the training length, 0 if none do; `fits`: whether
    the requested one does. Both are None if the available memory is not known. `positions`: how far the model's reach;
    `warning`: that `n_ctx` is beyond that, and the way out; "" if it is not."""

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


def fits(model: str, revision: str | None, wanted: Wanted, machine: Machine) -> list[Fit]:
    """Returns what fits into a machine, smallest first: the file at that path, or the model that the name means on the
    Hub; for a whole repository, every quantisation of the model that would be chosen.

    Raises ModelLoadError for a model that cannot be found or is not a chat model, RequestError for impossible options.
    """
    # One output of each conversation, like `Engine.load` without drafts.
    options = ContextOptions(n_ctx=wanted.n_ctx, n_sequences=wanted.n_sequences, outputs_per_sequence=1)
    every = [_fit(each, name, options, machine) for each, name in _models(model, revision)]
    return sorted(every, key=lambda fit: (fit.size, fit.name))


def _models(model: str, revision: str | None) -> Iterator[tuple[GgufFile, str]]:
    """Yields models with the names that load them; on the Hub, all but one are known only by the size of their
    weights."""
    from engine import hub  # imports huggingface_hub, which other commands do not need
    from engine.hub.variants import base_of, spelling

    name = None if Path(model).expanduser().exists() else hub.named(model, revision)
    if name is None:
        if revision is not None:
            raise RequestError(f"revision={revision!r} is for models on the Hub, but {model} is a path; leave it out.")
        yield read_gguf(model), model
        return
    found = hub.find(name)
    file = read_gguf(found.path) if found.is_here else _remote(found)
    models = [each for each in found.variants if each.is_model]
    is_one = name.quantization is not None or name.pattern is not None
    for variant in [found.variant] if is_one else models:
        is_same = variant.size and not variant.lacking and base_of(variant) == base_of(found.variant)
        if variant == found.variant or is_same:
            weights = variant.size or file.weights
            yield (_resized(file, variant.quantization, weights), spelling(found.repo, variant, models))


def _resized(file: GgufFile, quantization: str, weights: int) -> GgufFile:
    """Returns the model in another quantisation: every matrix scaled like the file, all of one type."""
    if weights == file.weights:
        return replace(file, quantization=quantization)
    ratio = weights / max(1, file.weights)
    kind = quantization.removeprefix("UD-").rpartition("_")[0] if quantization.count("_") > 1 else quantization
    size = sum(file.matrices.values())
    return replace(
        file,
        quantization=quantization,
        weights=weights,
        matrices={kind: int(size * ratio)},
        output=int(file.output * ratio),
        tied=int(file.tied * ratio),
        tied_type=kind if file.tied else "",
        layers=tuple(replace(layer, weights=int(layer.weights * ratio)) for layer in file.layers),
    )


def _remote(found: "hub.Found") -> GgufFile:
    """Returns a model on the Hub, from the headers of all its parts."""
    from engine import hub

    blobs = hub.blobs(found)
    paths = tuple(Path(f"{blob.repo}/{blob.path}") for blob in blobs)
    headers = (
        read_header_by_ranges(path, blob.size, partial(hub.read, blob)) for path, blob in zip(paths, blobs, strict=True)
    )
    return described(paths, tuple(headers))


def _fit(file: GgufFile, name: str, options: ContextOptions, machine: Machine) -> Fit:
    n_sequences = options.n_sequences or 1
    free = plan(file, ModelOptions(check_memory=False), replace(options, check_memory=False), machine)
    trained = min(reach(file, options) or MODEST_CONTEXT, position_limit(file, options) or sys.maxsize)
    asked = replace(free.context, n_sequences=n_sequences, check_memory=True)
    room = (
        None if machine.available is None else longest(file, ModelOptions(), asked, max(free.n_ctx, trained), machine)
    )
    layers = (free.model.n_gpu_layers or 0, len(file.layers) + 1) if machine.gpus else None
    need = free.need
    fitting = None if room is None else room >= free.n_ctx
    return Fit(
        name=name,
        quantization=file.quantization,
        size=file.weights,
        n_ctx=free.n_ctx,
        n_sequences=n_sequences,
        memory=need.host,
        device=need.device,
        layers=layers,
        longest=room,
        fits=fitting,
        positions=positions(file, options),
        warning=beyond(file, options, free.n_ctx),
    )
