"""Fuzzing that is led by coverage: inputs that reach new lines of a target's modules are kept and changed further.

A `Target` makes inputs (bytes) and tries them; what it raises is a fault. Its corpus is a folder of
tests/fuzz_corpus, small, and tried by every run of the tests.
"""

import hashlib
import json
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias, cast

ROOT = Path(__file__).resolve().parents[3]
CORPUS = ROOT / "tests" / "fuzz_corpus"
MOST_INPUTS, MOST_BYTES = 40, 4096
"""Of a corpus; faults that were found are kept beside them."""
SECONDS = 10.0
"""Of processor time, which one input may take."""
_SHRINKS = 300
_PARTICULAR = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
_OVERWRITTEN = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\x00" * 8, b"\xff" * 8, b"\x01\x00\x00\x00\x00\x00\x00\x00")

Try: TypeAlias = Callable[[bytes], object]
"""Tries an input; raises where a promise is broken."""


class HangError(BaseException):
    """An input takes too long. No `except Exception` may catch it."""


@dataclass(frozen=True)
class Target:
    """What is fuzzed. `modules`: files and folders of `engine/` whose lines count. `seeds`: inputs to begin with, which
    are made and need not be kept. `changed`: an input like one of the pool. `opened`: what trying needs."""

    name: str
    modules: tuple[str, ...]
    suffix: str
    seeds: Callable[[], Iterable[bytes]]
    changed: Callable[[bytes, random.Random, Sequence[bytes]], bytes]
    opened: Callable[[], AbstractContextManager[Try]]

    @property
    def folder(self) -> Path:
        """Where its corpus is."""
        return CORPUS / self.name

    def kept(self) -> dict[str, bytes]:
        """Its corpus, by the names of its files."""
        return {path.name: path.read_bytes() for path in sorted(self.folder.glob(f"*{self.suffix}"))}


def always(attempt: Try) -> Callable[[], AbstractContextManager[Try]]:
    """`Target.opened` for a target that needs nothing."""
    return lambda: nullcontext(attempt)


class Lines:
    """The lines of functions in some files, and which of them were reached while they were traced. What runs when a
    module is imported does not count."""

    def __init__(self, modules: Iterable[str]) -> None:
        paths = [(ROOT / "engine" / each).resolve() for each in modules]
        files = [file for path in paths for file in ([path] if path.suffix else sorted(path.rglob("*.py")))]
        assert files
        self.all = {(str(file), line) for file in files for line in _lines_of(file)}
        self.reached: set[tuple[str, int]] = set()
        self._files = {str(file) for file in files}
        self._left: dict[CodeType, set[int]] = {}

    @contextmanager
    def traced(self) -> Generator[None]:
        """Note what this thread reaches, and threads that are started meanwhile."""
        before = sys.gettrace()
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(cast("Any", before))

    def forget(self) -> set[tuple[str, int]]:
        """Returns what was reached, and begins anew."""
        reached, self.reached = self.reached, set()
        self._left.clear()
        return reached

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code.co_filename not in self._files:
            return None
        left = self._left.get(code)
        if left is None:
            left = self._left[code] = {line for _, _, line in code.co_lines() if line}
        if not left:  # all of it was reached, so there is nothing to trace
            return None
        self._note(code, left, frame.f_lineno)
        return self._traced

    def _traced(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if event == "line" and (left := self._left.get(code)):
            self._note(code, left, frame.f_lineno)
        return self._traced

    def _note(self, code: CodeType, left: set[int], line: int) -> None:
        if line in left:
            left.discard(line)
            if (place := (code.co_filename, line)) in self.all:
                self.reached.add(place)


def _lines_of(file: Path) -> Iterator[int]:
    def of(code: CodeType) -> Iterator[int]:
        if code.co_flags & 0x1:  # CO_OPTIMIZED: a function, not a module or a class
            first = min((line for _, _, line in code.co_lines() if line), default=0)
            yield from (line for _, _, line in code.co_lines() if line and line != first)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from of(constant)

    return of(compile(file.read_text(encoding="utf-8"), str(file), "exec"))


@dataclass
class Found:
    """What a run found. `faults`: how often each happened, and the smallest input that shows it."""

    tried: int = 0
    corpus: int = 0
    reached: int = 0
    lines: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter[str])
    faults: dict[str, bytes] = field(default_factory=dict[str, bytes])


def fuzz(target: Target, seconds: float, seed: int, *, save: bool = True) -> Found:
    """Try inputs for so long. Faults are written into the corpus at once, and the corpus anew at the end: the fewest
    inputs that reach the same lines."""
    lines, found, chance = Lines(target.modules), Found(), random.Random(seed)
    began = time.monotonic()
    with lines.traced(), target.opened() as attempt:
        begun = [*target.seeds(), *target.kept().values()]
        pool = list(begun)
        for data in begun:
            _try(target, attempt, data, found, save=save)
        fresh: list[bytes] = []
        while time.monotonic() - began < seconds:
            parent = chance.choice(fresh[-50:] if fresh and chance.random() < 0.4 else pool)
            data = target.changed(parent, chance, pool)
            before = len(lines.reached)
            _try(target, attempt, data, found, save=save)
            if len(lines.reached) > before and len(data) <= MOST_BYTES:
                pool.append(data)
                fresh.append(data)
        found.reached, found.lines = len(lines.reached), len(lines.all)
        if save:
            found.corpus = _write(target, attempt, lines, pool)
    found.seconds = time.monotonic() - began
    return found


@contextmanager
def limited() -> Generator[None]:
    """Raise HangError in the main thread when its block takes too much processor time."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise HangError(f"it takes more than {SECONDS:g} s")

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fault_of(attempt: Try, data: bytes) -> str:
    """What trying an input raises, with its place in the engine; "" if nothing."""
    try:
        with limited():
            attempt(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - finding these is what it is for
        words = _PARTICULAR.sub("..", str(error).split("\n", 1)[0])[:120]
        return f"{type(error).__name__}: {words}{_place(error)}"
    return ""


def _place(error: BaseException) -> str:
    places: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(ROOT / "engine"):
            places.append(f" ({file.relative_to(ROOT)}:{trace.tb_lineno})")
        trace = trace.tb_next
    return places[-1] if places else ""


def _try(target: Target, attempt: Try, data: bytes, found: Found, *, save: bool) -> None:
    found.tried += 1
    fault = fault_of(attempt, data)
    if not fault:
        return
    found.counts[fault] += 1
    if fault not in found.faults:
        found.faults[fault] = small = _shrunk(target, attempt, data, fault)
        if save:
            target.folder.mkdir(parents=True, exist_ok=True)
            (target.folder / f"found-{_name(small)}{target.suffix}").write_bytes(small)


def _shrunk(target: Target, attempt: Try, data: bytes, fault: str) -> bytes:
    """A smaller input with the same fault, if changes find one."""
    chance = random.Random(0)
    for _ in range(0 if fault.startswith("HangError") else _SHRINKS):
        other = target.changed(data, chance, [data])
        if len(other) < len(data) and fault_of(attempt, other) == fault:
            data = other
    return data


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _write(target: Target, attempt: Try, lines: Lines, pool: Collection[bytes]) -> int:
    """Write the corpus: inputs of the pool that reach, together and beyond what the seeds do, what all of it does."""
    lines.forget()
    for data in target.seeds():
        fault_of(attempt, data)
    covered = lines.forget()
    candidates: list[tuple[bytes, set[tuple[str, int]]]] = []
    for data in dict.fromkeys(each for each in pool if len(each) <= MOST_BYTES):
        fault_of(attempt, data)
        candidates.append((data, lines.forget()))
    chosen: list[bytes] = []
    while candidates and len(chosen) < MOST_INPUTS:
        best, reached = max(candidates, key=lambda each: (len(each[1] - covered), -len(each[0])))
        if not reached - covered:
            break
        covered |= reached
        chosen.append(best)
    target.folder.mkdir(parents=True, exist_ok=True)
    names = {f"{_name(data)}{target.suffix}": data for data in chosen}
    for path in target.folder.glob(f"*{target.suffix}"):
        if path.name not in names and not path.name.startswith("found-"):
            path.unlink()
    for name, data in names.items():
        (target.folder / name).write_bytes(data)
    return len(target.kept())


def changed_bytes(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    """The bytes changed in one place, or a few: cut, doubled, overwritten, or spliced with others of the pool."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        a, b = sorted(chance.randrange(len(made) + 1) for _ in range(2))
        near = min(b, a + chance.choice((1, 2, 8, 64)))
        other = chance.choice(pool)
        c, d = sorted(chance.randrange(len(other) + 1) for _ in range(2))
        match chance.randrange(7):
            case 0:
                del made[a:near]
            case 1:
                del made[a:]
            case 2:
                made[a:a] = made[a:near]
            case 3:
                made[a:a] = other[c : min(d, c + 64)]
            case 4 if a < len(made):
                made[a] ^= 1 << chance.randrange(8)
            case 5:
                value = chance.choice(_OVERWRITTEN)
                made[a : a + len(value)] = value
            case _:
                made[a:near] = chance.randbytes(near - a)
    return bytes(made)


def changed_json(data: bytes, chance: random.Random, pool: Sequence[bytes], odd: Sequence[Any] = ()) -> bytes:
    """JSON changed in one place, or a few: a value left out, doubled, or replaced by an odd one or one of the pool."""
    value: Any = json.loads(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            break
        holder, key = chance.choice(places)
        match chance.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                renamed = chance.choice([name for inner, name in places if isinstance(inner, dict)])
                cast("dict[str, Any]", holder)[renamed] = holder[key]
            case 1 | 2 if isinstance(holder, list):
                cast("list[Any]", holder).insert(key, json.loads(json.dumps(holder[key])))
            case 3 if isinstance(holder[key], str):
                holder[key] = changed_text(holder[key], chance)
            case 4 if odd:
                holder[key] = json.loads(json.dumps(chance.choice(odd)))
            case _:
                others = list(_places(json.loads(chance.choice(pool))))
                inner, name = chance.choice(others) if others else (holder, key)
                holder[key] = json.loads(json.dumps(inner[name]))
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or dictionary in a value, with each of its keys."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        pairs: Iterable[tuple[Any, Any]] = ()
        if isinstance(each, dict):
            pairs = list(cast("dict[str, Any]", each).items())
        elif isinstance(each, list):
            pairs = list(enumerate(cast("list[Any]", each)))
        for key, inner in pairs:
            yield each, key
            waiting.append(inner)


def changed_text(
    text: str, chance: random.Random, salt: Sequence[str] = ('"', "\\", "\n", "\0", "é", "\ud800", "{")
) -> str:
    """The text changed in one place."""
    a, b = sorted(chance.randrange(len(text) + 1) for _ in range(2))
    near = min(b, a + chance.choice((1, 2, 8, 64)))
    match chance.randrange(5):
        case 0:
            return text[:a] + text[near:]
        case 1:
            return text[:near] + text[a:]
        case 2:
            return text[:a]
        case 3:
            return text[:a] + text[near:b] + text[a:near] + text[b:]
        case _:
            return text[:a] + chance.choice(salt) + text[a:]
