"""The models that are on this disk, whoever put them there, and the best of them for this machine: "auto"."""

import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from engine.hub import api, cache, elsewhere
from engine.hub.cache import exactly, origin
from engine.hub.progress import Progress
from engine.hub.variants import size_text
from engine.llama.gguf.gguf import GgufFile, read_gguf
from engine.llama.plan.plan import Machine, plan
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support.errors import ContextOverflowError, ModelLoadError
from engine.support.packaged import PACKAGED
from engine.support.screens import screen_for

_log = logging.getLogger("engine.llama")
_EASY = 0.75
"""The share of the memory that the best may take without a GPU: other programs need some."""
_QUICK = 3_500_000_000
"""The most bytes that each token of the best may read without a GPU: about 5 billion weights in 4 bits."""
_SHOWN = 5


class OnDisk(NamedTuple):
    """A model here: `name` loads it, `path` is its first file, `size` is bytes. `problem`: see `Stored`."""

    name: str
    path: Path
    size: int
    quantization: str = ""
    problem: str = ""


class _Candidate(NamedTuple):
    model: OnDisk
    file: GgufFile
    on_device: bool

    @property
    def rank(self) -> tuple[bool, int, int]:
        """More is better: a chat template, then parameters, then bytes of them."""
        return self.file.tokens.chat_template is not None, self.file.parameters, self.file.weights


def on_disk() -> list[OnDisk]:
    """Returns the models in the Hub's cache, in packages, and those of Ollama and LM Studio; projectors and adapters
    only where their names do not say so."""
    found = [
        OnDisk(each.name, each.paths[0], each.size, each.quantization)
        for each in cache.models()
        if each.variant is not None and each.variant.is_model and not each.variant.lacking
    ]
    found += [OnDisk(name, path, each.size) for name, each in PACKAGED.items() if (path := each.path) is not None]
    found += [OnDisk(each.name, each.path, each.size, each.quantization, each.problem) for each in elsewhere.models()]
    return found


def best(machine: Machine) -> tuple[str | Path, str | None]:
    """Returns name and commit of the best chat model on this disk that fits a machine, and tells which it is. Nothing
    is downloaded. Raises ModelLoadError if there is none.

    With a GPU the largest that it holds whole; else the largest that a CPU computes quickly and that leaves room to
    other programs, at worst the smallest that fits.
    """
    reasons: list[str] = []
    every = on_disk()
    fitting = sorted(_fitting(every, machine, reasons), key=lambda each: each.rank)
    if not fitting:
        why = f": {'; '.join(reasons[:_SHOWN])}" if reasons else ""
        raise ModelLoadError(
            f'model="auto" finds no chat model on this disk that fits, among {len(every)}{why}. `llama-engine models '
            "list` shows what is here, `llama-engine models suggest` names some to download."
        )
    easy = (machine.room or 0) * _EASY
    quick = [each for each in fitting if each.file.active <= _QUICK and each.file.weights <= easy]
    chosen = ([each for each in fitting if each.on_device] or quick or fitting[:1])[-1].model
    text = f"auto: {chosen.name} ({size_text(chosen.size)}), the best of {len(fitting)} here that fit"
    _log.info("%s", text)
    Progress(None if api.is_silent() else screen_for(sys.stderr)).say(text)
    if origin(chosen.path)[1] is None:
        return chosen.path if chosen.name in PACKAGED else chosen.name, None
    return exactly(chosen.path)


def _fitting(every: Sequence[OnDisk], machine: Machine, reasons: list[str]) -> Iterator[_Candidate]:
    room = None if machine.room is None else machine.room + machine.device_room
    for each in every:
        try:
            if each.problem:
                raise ModelLoadError(each.problem)
            if room is not None and each.size > room:
                raise ModelLoadError(f"{size_text(each.size)} are more than the {size_text(room)} of memory")
            file = read_gguf(each.path)
            if file.embeds:
                raise ModelLoadError("it makes vectors")
            made = plan(file, ModelOptions(), ContextOptions(n_sequences=1), machine)
        except (ModelLoadError, ContextOverflowError) as error:
            _log.info("auto: %s is left out: %s", each.name, error)
            reasons.append(f"{each.name}: {str(error)[:200]}")
            continue
        layers = len(file.shape.layers)
        yield _Candidate(each, file, on_device=bool(machine.gpus) and (made.model.n_gpu_layers or 0) > layers)
