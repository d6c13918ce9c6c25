"""A budget of memory for several models: bytes of the machine and of its devices."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from engine.llama.plan.plan import Machine
from engine.support.errors import RequestError, shown

Bytes: TypeAlias = int | str
"""A number of bytes, or a text such as "12GiB"."""
_MIB = 1 << 20
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*")
_POWERS = ("", "k", "m", "g", "t")


class Size(NamedTuple):
    """Bytes of the machine's memory and of its devices'."""

    host: int
    device: int = 0

    def plus(self, other: "Size") -> "Size":
        return Size(self.host + other.host, self.device + other.device)

    def minus(self, other: "Size") -> "Size":
        return Size(self.host - other.host, self.device - other.device)

    def within(self, room: "Size") -> bool:
        """Whether it fits into `room`."""
        return self.host <= room.host and self.device <= room.device

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        device = f" and {self.device / _MIB:,.0f} MiB of devices" if self.device else ""
        return f"{self.host / _MIB:,.0f} MiB{device}"


def total(sizes: Iterable[Size]) -> Size:
    added = Size(0)
    for size in sizes:
        added = added.plus(size)
    return added


def budgeted(budget: Bytes | Mapping[str, Bytes] | None, machine: Machine) -> tuple[Machine, Size]:
    """Returns the machine for which models are planned, with all of the budget and nothing else, and the budget."""
    room = sys.maxsize if machine.room is None else machine.room
    gpus = tuple(replace(gpu, memory_free=int(gpu.memory_free * (1 - machine.reserve))) for gpu in machine.gpus)
    if isinstance(budget, Mapping):
        given = {name.casefold(): _bytes(size) for name, size in budget.items()}
        room = given.pop("cpu", room)
        gpus = tuple(
            replace(gpu, memory_free=given.pop(gpu.name.casefold())) for gpu in gpus if gpu.name.casefold() in given
        )
        if given:
            there = ", ".join(repr(gpu.name.casefold()) for gpu in machine.gpus) or "no GPU"
            raise RequestError(f"There is no device {next(iter(given))!r} for a budget; there is 'cpu' and {there}.")
    elif budget is not None:
        room = _bytes(budget)
    size = Size(room, sum(gpu.memory_free for gpu in gpus))
    return Machine(room, machine.repacked, gpus, reserve=0.0), size


def _bytes(size: object) -> int:
    """Returns a number of bytes. Raises RequestError for what is none."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    if isinstance(size, str) and (found := _AMOUNT.fullmatch(size.lower())) and (count := _count(*found.groups())):
        return count
    raise RequestError(f'{shown(size)} is no budget; pass a number of bytes, or a text such as "12GiB".')


def _count(number: str, prefix: str, binary: str) -> int:
    return int(float(number) * (1024 if binary else 1000) ** _POWERS.index(prefix))
