"""A damaged GGUF loaded in a process of its own, so that its death is counted and not suffered.

Knows: which files there are to try (`cases`, made of model_zoo and gguf_mutants), and how each ended (`run`). The
engine's own trial of a file in a child is run as a fork here, which saves the start of an interpreter; all else is what
users get.
Only for a process that has computed nothing yet: OpenMP does not live through a fork.
"""

import contextlib
import json
import os
import random
import resource
import signal
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from attacks import gguf_mutants
from attacks.gguf_mutants import Mutation
from files import model_zoo
from files.gguf_bytes import I32, U16, Document

SECONDS = 60
MEMORY = 1 << 30
NEVER = ("DEATH", "RAW", "HANG", "MEMORY")
_TEXT = "hello world Ａﬁ ▁ aé中😀\t\n\x00\x7f<tool><|end|>'s 1234"
SEEDS = (
    *((kind, None) for kind in model_zoo.KINDS),
    *(("llama", words) for words in ("gpt-4o", "gemma4", "wpm", "ugm", "rwkv", "plamo2", "none")),
    ("gemma3", "gemma4"),
    ("qwen3", "spm"),
)


@dataclass(frozen=True)
class Case:
    """One file, or the parts of one, still to be made."""

    seed: tuple[str, str | None]
    mutation: Mutation
    parts: int = 1

    @property
    def name(self) -> str:
        kind, words = self.seed
        split = f" in {self.parts} parts" if self.parts > 1 else ""
        return f"{kind}{f' with {words}' if words else ''}{split}: {self.mutation.part}: {self.mutation.label}"

    def write(self, folder: Path) -> Path:
        document = _seed(*self.seed)
        if self.parts > 1:
            return write_parts(folder, document, self.parts, self.mutation)
        made = self.mutation.apply(document)
        path = folder / "model.gguf"
        path.write_bytes(made if isinstance(made, bytes) else made.encoded())
        return path


@cache
def _seed(kind: str, vocabulary: str | None) -> Document:
    return model_zoo.model(kind, vocabulary)


def write_parts(folder: Path, document: Document, count: int, mutation: Mutation | None = None) -> Path:
    """The model as so many files; the mutation damages the second. Returns the first."""
    share = -(-len(document.tensors) // count)
    paths: list[Path] = []
    for number in range(count):
        tensors = document.tensors[number * share : (number + 1) * share]
        part = Document(document.pairs if number == 0 else (), tensors)
        part = part.put("split.no", U16, number).put("split.count", U16, count)
        part = part.put("split.tensors.count", I32, len(document.tensors))
        made = mutation.apply(part) if mutation and number == 1 else part
        paths.append(folder / f"model-{number + 1:05d}-of-{count:05d}.gguf")
        paths[-1].write_bytes(made if isinstance(made, bytes) else made.encoded())
    return paths[0]


def cases(seeds: Sequence[tuple[str, str | None]], count: int, seed: int) -> Iterator[Case]:
    """So many of them, spread over the seeds: one damage each, and for every fourth file a few at once."""
    chance = random.Random(seed)
    share = -(-count // (len(seeds) + 2))
    for each in seeds:
        yield from _of_seed(each, share, chance)
    for each in (("llama", None), ("qwen3moe", None)):
        yield from _of_parts(each, share, chance)


def _of_seed(seed: tuple[str, str | None], share: int, chance: random.Random) -> Iterator[Case]:
    document = _seed(*seed)
    single = list(gguf_mutants.mutations(document))
    # What llama.cpp computes with is worth more tries than what its reader refuses.
    rare = [*gguf_mutants.resized(*seed), *(each for each in single if each.part in ("value", "tokens", "array"))]
    taken = chance.sample(rare, min(len(rare), share // 4))
    taken += chance.sample(single, min(len(single), share - len(taken) - share // 4))
    yield Case(seed, gguf_mutants.AS_IT_IS)
    yield from (Case(seed, mutation) for mutation in taken)
    for _ in range(share - len(taken) - 1):
        yield Case(seed, gguf_mutants.combined(document, chance, single))


def _of_parts(seed: tuple[str, str | None], share: int, chance: random.Random) -> Iterator[Case]:
    """The second of three parts is damaged, as a document of its own."""
    part = model_zoo.model(*seed)
    part = Document((), part.tensors[: len(part.tensors) // 3])
    part = part.put("split.no", U16, 1).put("split.count", U16, 3).put("split.tensors.count", I32, 99)
    part = part.put("general.architecture", 8, b"llama")
    single = list(gguf_mutants.mutations(part))
    picked = [each for each in single if each.part in ("key", "type", "value", "layout", "tensor")]
    yield Case(seed, gguf_mutants.AS_IT_IS, 3)
    for mutation in chance.sample(picked, min(len(picked), share - 1)):
        yield Case(seed, mutation, 3)


@dataclass(frozen=True)
class End:
    """How a file ended; what was said; seconds that it took, and bytes of the process that loaded it."""

    outcome: str
    said: str
    seconds: float
    memory: int


class Made(Protocol):
    """A file to be made, or several of which one is returned."""

    def write(self, folder: Path) -> Path: ...


Use: TypeAlias = Callable[[Path, Callable[[], None]], None]
"""Loads a file, calls the function that it is given, and uses the file."""


def chat(path: Path, loaded: Callable[[], None]) -> None:
    """Load a model, and generate with it."""
    from engine import Engine

    with Engine.load(path, n_ctx=256, n_threads=1) as llm:
        loaded()
        llm.tokenize(_TEXT)
        llm.complete("hello world", max_tokens=3)
        llm.chat([{"role": "user", "content": _TEXT}], max_tokens=3)


def run_all(chosen: Sequence[Made], work: Path, jobs: int, use: Use = chat) -> list[End]:
    """Run them all: every job takes each `jobs`-th, in a process of its own."""
    files = [work / f"ends-{job}.jsonl" for job in range(jobs)]
    children: list[int] = []
    for job, file in enumerate(files):
        child = os.fork()
        if child == 0:
            folder = work / f"job-{job}"
            with file.open("w", encoding="utf-8") as out:
                for case in chosen[job::jobs]:
                    folder.mkdir()
                    end = run(case, folder, use)
                    out.write(json.dumps([end.outcome, end.said, end.seconds, end.memory]) + "\n")
                    _empty(folder)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    ends: dict[int, End] = {}
    for job, file in enumerate(files):
        for index, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
            ends[job + index * jobs] = End(*json.loads(line))
    return [ends[index] for index in range(len(chosen))]


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            path.unlink()
    folder.rmdir()


def run(case: Made, folder: Path, use: Use = chat) -> End:
    """Write the file and use it in a process of its own."""
    try:
        path = case.write(folder)
    except (StopIteration, LookupError, ValueError, AssertionError, TypeError, struct.error) as error:
        return End("not made", repr(error), 0.0, 0)
    begun = time.perf_counter()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _in_the_child(path, writing, use)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a file descriptor
        said = _said(pipe.read())
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - begun
    outcome = said.get("outcome", "DEATH")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        outcome = "HANG" if number == signal.SIGALRM else "DEATH"
        said["said"] = f"{signal.Signals(number).name}, {said.get('said', 'while it loaded')}"
    memory = int(said.get("memory", usage.ru_maxrss)) * 1024
    if memory > MEMORY and outcome not in NEVER:
        outcome = "MEMORY"
    return End(outcome, said.get("said", ""), seconds, memory)


def _said(data: bytes) -> dict[str, str]:
    """The last line: a child that dies after it has told something says more in the end."""
    lines = data.splitlines()
    return json.loads(lines[-1]) if lines else {}


def _in_the_child(path: Path, writing: int, use: Use) -> None:
    def tell(**said: str) -> None:
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # without that of a trial's child
        os.write(writing, json.dumps({**said, "memory": str(own)}).encode() + b"\n")

    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    from engine.support.errors import EngineError

    progress = {"native": False, "tried": "", "loaded": False}

    def loaded() -> None:
        progress["loaded"] = True
        tell(said="loaded")

    _watch(progress)
    try:
        use(path, loaded)
        tell(outcome="decoded", said=str(progress["tried"]))
    except EngineError as error:
        tell(outcome=_refusal(progress, str(error)), said=f"{type(error).__name__}: {error}")
    except BaseException as error:  # noqa: BLE001 - any other is what we look for
        tell(outcome="RAW", said=f"{type(error).__name__}: {error}")
    os._exit(0)


def _refusal(progress: Mapping[str, object], said: str) -> str:
    if progress["loaded"]:
        return "request"
    if progress["native"]:
        return "llama.cpp"
    return "trial" if progress["tried"] and "is not loaded." in said else "header"


def _watch(progress: dict[str, Any]) -> None:
    """Note when llama.cpp sees the file in this process, and run the engine's trials as forks."""
    from engine.isolated import preflight
    from engine.llama.lib import library

    lib = library()
    load = lib.llama_model_load_from_file

    def watched(*arguments: Any) -> Any:
        progress["native"] = True
        return load(*arguments)

    lib.llama_model_load_from_file = watched

    def forked(order: Mapping[str, object], _child: str | None = None, _seconds: float | None = None) -> Any:
        progress["tried"] = "tried in a child first"
        return ask_fork(order)

    preflight.ask_child = forked


def ask_fork(order: Mapping[str, object]) -> Any:
    """`preflight.ask_child` without the start of an interpreter."""
    from engine.isolated import preflight_child
    from engine.isolated.preflight import ChildFaultError
    from engine.support.errors import EngineError

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS // 2)
            os.dup2(err.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = 1
            try:
                out.write(json.dumps(preflight_child.carry_out(dict(order)), default=str).encode())
                out.flush()
                code = 0
            except BaseException as error:  # noqa: BLE001 - as an interpreter ends
                os.write(2, f"{type(error).__name__}: {error}".encode())
            os._exit(code)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        if status == 0:
            return json.loads(out.read())
        lines = err.read().decode("utf-8", "replace").strip().splitlines()
        said = f" ({lines[-1]})" if lines else ""
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            raise ChildFaultError(f"A child process that tried it died by {name}{said}.", name)
        raise EngineError(f"A child process that tried it ended with exit code {os.WEXITSTATUS(status)}{said}.")


def prepare(cache: Path) -> None:
    """What every child would else do anew: import the engine, and try the options."""
    os.environ["LLAMA_ENGINE_CACHE"] = str(cache)
    os.environ["GGML_NO_BACKTRACE"] = "1"  # a debugger attached to each death takes seconds
    warnings.simplefilter("ignore")
    from engine.isolated import preflight
    from engine.llama.lib import library
    from engine.runtime.loop.config import ContextOptions, ModelOptions

    library()
    for name in (
        "engine.api.engine",
        "engine.isolated.preflight_child",
        "engine.llama.model",
        "engine.runtime.loop.backend",
    ):
        __import__(name)
    preflight.prepare(ModelOptions(), ContextOptions(n_ctx=256, n_threads=1))
