"""Which quantisations of a model fit into this machine's memory, told from headers alone: of a file here, or of files
on the Hub before any download.

Knows: that all quantisations of a model have the same shapes, so that one header tells for all of them, and the files'
sizes the rest. Does not know: GPUs; how memory is estimated (`engine.llama.memory`). Sizes are bytes, contexts tokens.
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
from engine.llama.memory import RESERVE, cells_of, estimate, largest_context
from engine.llama.params import position_limit
from engine.runtime.options import ContextOptions

if TYPE_CHECKING:
    from engine import hub

_MODEST_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Wanted:
    """`n_ctx`: the most tokens of one conversation; None is 8192, or the training length if that is less.
    `n_sequences`: conversations at once."""

    n_ctx: int | None = None
    n_sequences: int = 1


@dataclass(frozen=True, slots=True)
class Fit:
    """One quantisation. `name` loads it; `size`: its weights; `context`: what a context for conversations of
    `n_ctx` tokens takes beside them. `longest`: the longest conversations that fit, up to the training length, 0 where
    none do; `fits`: whether the one asked for does. Both are None where nothing tells how much memory there is."""

    name: str
    quantization: str
    size: int
    n_ctx: int
    context: int
    longest: int | None
    fits: bool | None

    @property
    def memory(self) -> int:
        """Weights and context together."""
        return self.size + self.context


def fits(model: str, revision: str | None, wanted: Wanted, available: int | None) -> list[Fit]:
    """What fits into `available` bytes (None: not known): the file that a text is the path of, or what it names on the
    Hub, of a whole repository every quantisation of the model that would be chosen; smallest first.

    Raises ModelLoadError for what cannot be found or is no chat model, RequestError for impossible wishes.
    """
    options = ContextOptions(n_ctx=wanted.n_ctx, n_sequences=wanted.n_sequences)
    every = [_fit(each, name, options, available) for each, name in _models(model, revision)]
    return sorted(every, key=lambda fit: (fit.size, fit.name))


def _models(model: str, revision: str | None) -> Iterator[tuple[GgufFile, str]]:
    """Models with the names that load them; on the Hub the weights of all but one are known by their size only."""
    from engine import hub  # imports huggingface_hub, which other commands do not need
    from engine.hub.variants import base_of, spelling

    name = None if Path(model).expanduser().exists() else hub.named(model, revision)
    if name is None:
        if revision is not None:
            raise RequestError(f"revision={revision!r} is for models on the Hub, and {model} is a path; leave it out.")
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
            yield (
                replace(file, quantization=variant.quantization, weights=weights),
                spelling(found.repo, variant, models),
            )


def _remote(found: "hub.Found") -> GgufFile:
    """A model on the Hub by the headers of all its parts."""
    from engine import hub

    blobs = hub.blobs(found)
    paths = tuple(Path(f"{blob.repo}/{blob.path}") for blob in blobs)
    headers = (
        read_header_by_ranges(path, blob.size, partial(hub.read, blob)) for path, blob in zip(paths, blobs, strict=True)
    )
    return described(paths, tuple(headers))


def _fit(model: GgufFile, name: str, options: ContextOptions, available: int | None) -> Fit:
    n_sequences = options.n_sequences or 1
    trained = min(model.n_ctx_train or _MODEST_CONTEXT, position_limit(model, options) or sys.maxsize)
    n_ctx = options.n_ctx or min(trained, _MODEST_CONTEXT)
    context = estimate(model, options, cells_of(options, n_ctx, n_sequences)).total
    longest = fitting = None
    if available is not None:
        room = int(available * (1 - RESERVE)) - model.weights
        longest = largest_context(model, options, n_sequences, max(n_ctx, trained), max(0, room))
        fitting = context <= room
    return Fit(name, model.quantization, model.weights, n_ctx, context, longest, fitting)
