"""All kinds of work at once, for hours: does anything grow, and is any answer another than when it is asked alone?

    python benchmarks/soak.py run.jsonl --minutes 120 [--share 0.6] [--seed 0]
    python benchmarks/soak.py run.jsonl --picture docs/pictures/soak.svg

Three engines (the built-in model with a projector and an adapter, a random one of a llama's shape with a projector, and
the built-in model in a child process), four threads, and 24 kinds of work at random: turns, streams that are left
anywhere, constraints, agents, batches, conversations that fork, states, pins, vectors, scores, pictures, adapters,
event loops, the `openai` client, engines that are loaded and closed, a child that is killed, requests that must fail.
Each kind has a few variants; what each gives is noted at the start, alone, and compared every time. Greedy answers of
which two tokens lie too close (rounding could choose either) are not among them.

Writes a line of JSON a minute: memory, handles, threads, Python objects, requests and wrong answers by kind, errors by
name. `--share` is how much of one core it takes on average, with its children.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[1] / "tests/helpers"),
]

from cases.media_talks import files, opened  # noqa: E402
from files.adapter_files import write_adapter  # noqa: E402
from files.projector_files import KINDS, media, write_projector  # noqa: E402

from engine import (  # noqa: E402
    Choice,
    Completion,
    ContextOverflowError,
    Engine,
    EngineError,
    JsonSchema,
    RequestError,
    StateStore,
    batch,
)

THREADS, VARIANTS = 4, 4
WORKER = "engine.isolated.worker"
CLOSE = 0.02
"""Two tokens whose log-probabilities are no further apart may change places by rounding, which moves them by 0.001."""
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
QUESTIONS = ("Say hello.", "What is the weather in Lima?", "Who are you?", "Thank you.")
SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 12}
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 12}, "kind": {"enum": ["a", "b"]}},
    "required": ["title", "kind"],
    "additionalProperties": False,
}
Leave = Callable[[], bool]
"""Whether to leave the stream here. Alone, nothing is left."""


class WrongError(Exception):
    """An answer is not the one that was noted."""


def get_weather(city: str) -> dict[str, object]:
    """Get the current weather.

    Args:
        city: The name of the city.
    """
    return {"city": city, "temperature": 12, "sky": "clear"}


@dataclass
class Engines:
    """The engines that the work shares, and a folder for its files."""

    folder: Path
    main: Engine
    small: Engine
    child: Engine
    turn_of_child: threading.Lock = field(default_factory=threading.Lock)
    pins: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))

    @classmethod
    def load(cls, folder: Path) -> "Engines":
        projector = write_projector(folder / "mmproj.gguf", KINDS["llava"])
        write_adapter(folder / "other.gguf", seed=2)
        adapter = write_adapter(folder / "a.gguf", seed=1)
        states = StateStore(16 << 20, folder / "states", 64 << 20)
        main = Engine.load(
            projector=projector, adapters={"a": adapter}, n_ctx=1024, n_threads=1, n_sequences=6, states=states,
            media_cache_mib=8,
        )  # fmt: skip
        small = opened(files(folder, "idefics3"), states=StateStore(8 << 20), media_cache_mib=8)
        return cls(folder, main, small, load_child())

    @contextmanager
    def borrowed_child(self) -> Generator[Engine]:
        """The isolated engine, for one at a time, loaded again if it was killed."""
        with self.turn_of_child:
            if self.child.closed:
                self.child = load_child()
            yield self.child

    def close(self) -> None:
        for each in (self.main, self.small, self.child):
            each.close()


def load_child() -> Engine:
    return Engine.load(n_ctx=512, n_threads=1, n_sequences=2, isolated=True)


def told(completion: Completion) -> str:
    """All that an answer says, as one text."""
    calls = [f"{call.name}{call.arguments}{call.error}" for call in completion.tool_calls]
    return "\0".join((completion.reasoning, completion.content, *calls, str(completion.finish_reason)))


def shown(kind: str, number: int) -> list[Any]:
    return [{"role": "user", "content": ["See:", media(KINDS[kind], number), "What?"]}]


def steady(llm: Engine, candidates: Iterator[Any], **options: Any) -> list[Any]:
    """Returns requests of whose answers no two likeliest tokens lie close."""
    found: list[Any] = []
    for messages in candidates:
        answer = llm.chat(messages, logprobs=2, **options)
        gaps = [each.top[0].logprob - each.top[1].logprob for each in answer.logprobs or ()]
        if min(gaps) > CLOSE:
            found.append(messages)
        if len(found) == VARIANTS:
            return found
    raise SystemExit("Too few requests whose answers rounding cannot change; change the candidates.")


class Work:
    """The kinds of work. Each takes the number of a variant and how streams are left, and returns what was answered; a
    stream that was left returns its beginning."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.main = main = engines.main
        numbers = range(100)
        random_model = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
        self.random_model: dict[str, Any] = random_model
        self.adapted = steady(main, (f"What is {n}?" for n in numbers), adapters=["a"], temperature=0, max_tokens=16)
        self.small_asked = steady(engines.small, (f"What is {n}?" for n in numbers), **random_model)
        self.small_seen = steady(engines.small, (shown("idefics3", n) for n in numbers), **random_model)
        self.seen = steady(main, (shown("llava", n) for n in numbers), temperature=0, max_tokens=16)
        self.kinds: dict[str, tuple[float, Callable[[int, Leave], Any]]] = {
            "chat": (6, self.chat),
            "stream, left": (6, self.left),
            "deadline": (2, self.deadline),
            "schema": (4, self.schema),
            "choice": (2, self.choice),
            "required tool": (4, self.required),
            "agent": (4, self.agent),
            "generate": (2, self.generate),
            "batch": (1, self.batch),
            "conversation, forked": (3, self.forked),
            "pin, save, restore": (2, self.pinned),
            "embed": (3, self.embed),
            "decide, score": (3, self.decide),
            "picture": (3, self.picture),
            "adapter": (3, self.adapter),
            "adapter, loaded": (0.5, self.loaded_adapter),
            "small model": (3, self.small),
            "small model, picture": (3, self.small_picture),
            "event loop": (3, self.event_loop),
            "openai client": (3, self.openai),
            "must fail": (3, self.must_fail),
            "load, close": (0.5, self.reload),
            "isolated": (3, self.isolated),
            "isolated, killed": (0.15, self.killed),
        }

    def chat(self, variant: int, leave: Leave) -> str:
        return told(self.main.chat(QUESTIONS[variant], **GREEDY))

    def left(self, variant: int, leave: Leave) -> str:
        text = ""
        with self.main.stream(QUESTIONS[variant], **GREEDY) as stream:
            for event in stream:
                text += getattr(event, "text", "")
                if leave():
                    return text
        return text

    def deadline(self, variant: int, leave: Leave) -> str:
        options: dict[str, Any] = {**GREEDY, "deadline": 0.001 if leave() else 600.0}
        return self.main.chat(QUESTIONS[variant], **options).content

    def schema(self, variant: int, leave: Leave) -> str:
        options: dict[str, Any] = {**GREEDY, "max_tokens": 90}
        return told(self.main.chat(QUESTIONS[variant], response_format=JsonSchema(SCHEMA), **options))

    def choice(self, variant: int, leave: Leave) -> str:
        return told(self.main.chat(QUESTIONS[variant], response_format=Choice(["red", "green", "blue"]), **GREEDY))

    def required(self, variant: int, leave: Leave) -> str:
        options: dict[str, Any] = {**GREEDY, "max_tokens": 100, "tool_choice": "required"}
        return told(self.main.chat(QUESTIONS[variant], [get_weather], **options))

    def agent(self, variant: int, leave: Leave) -> str:
        city = ("Lima", "Paris", "Oslo", "Rome")[variant]
        run = self.main.run(f"What is the weather in {city}?", tools=[get_weather], temperature=0, max_tokens=120)
        return f"{run.stopped} {len(run.steps)} {told(run.completion)}"

    def generate(self, variant: int, leave: Leave) -> str:
        asked = [*QUESTIONS[variant:], *QUESTIONS[:variant]]
        return "\n".join(map(told, self.main.generate(asked, temperature=0, max_tokens=40)))

    def batch(self, variant: int, leave: Leave) -> str:
        rows = [{"prompt": text} for text in (*QUESTIONS[variant:], *QUESTIONS[:variant])]
        with tempfile.TemporaryDirectory(dir=self.engines.folder) as folder:
            out = Path(folder, "out.jsonl")
            batch.run(rows, out, self.main, in_order=True, quiet=True, **GREEDY)
            lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        return "\n".join(str(line["completion"]["content"]) for line in lines)

    def forked(self, variant: int, leave: Leave) -> str:
        talk = self.main.conversation([SYSTEM], **GREEDY)
        said = [told(talk.chat(QUESTIONS[variant]))]
        forks = [talk.fork() for _ in range(3)]
        streams = [fork.stream(text) for fork, text in zip(forks, QUESTIONS, strict=False)]
        return "\n".join(said + [told(stream.result()) for stream in streams])

    def pinned(self, variant: int, leave: Leave) -> str:
        head = [SYSTEM, {"role": "system", "content": f"This is number {variant}."}]
        asked = [*head, {"role": "user", "content": QUESTIONS[variant]}]
        with self.engines.pins:
            with self.main.pin(head):
                first = told(self.main.chat(asked, **GREEDY))
            with self.main.pin(head):
                return f"{first}\n{told(self.main.chat(asked, **GREEDY))}"

    def embed(self, variant: int, leave: Leave) -> Any:
        return self.main.embed([f"{text} {variant}" for text in QUESTIONS])

    def decide(self, variant: int, leave: Leave) -> Any:
        done = self.main.decide(QUESTIONS[variant], {"known": "It is known.", "which": Literal["hello.", "Paris"]})
        scores = self.main.score(QUESTIONS[variant], [" sunny", " x"])
        likely = [p for each in done.answers.values() for _, p in each.rows]
        return np.array([*likely, *(score.logprob for score in scores)])

    def picture(self, variant: int, leave: Leave) -> str:
        return told(self.main.chat(self.seen[variant], temperature=0, max_tokens=16))

    def adapter(self, variant: int, leave: Leave) -> str:
        return told(self.main.chat(self.adapted[variant], adapters=["a"], temperature=0, max_tokens=16))

    def loaded_adapter(self, variant: int, leave: Leave) -> str:
        name = f"{threading.get_ident()}"
        info = self.main.load_adapter(name, self.engines.folder / "other.gguf")
        try:
            self.main.chat(QUESTIONS[variant], adapters=[name], max_tokens=2)
        finally:
            self.main.drop_adapter(name)
        return f"{info.rank} {info.size_bytes}"

    def small(self, variant: int, leave: Leave) -> str:
        return told(self.engines.small.chat(self.small_asked[variant], **self.random_model))

    def small_picture(self, variant: int, leave: Leave) -> str:
        return told(self.engines.small.chat(self.small_seen[variant], **self.random_model))

    def event_loop(self, variant: int, leave: Leave) -> str:
        async def read(text: str) -> str:
            return told(await self.main.achat(text, **GREEDY))

        async def main() -> str:
            tasks = [asyncio.create_task(read(text)) for text in (*QUESTIONS[variant:], *QUESTIONS[:variant])]
            if leave():
                await asyncio.sleep(0.01)
                tasks[-1].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            if not isinstance(results[-1], str):
                results.pop()
            return "\n".join(each if isinstance(each, str) else repr(each) for each in results)

        return asyncio.run(main())

    def openai(self, variant: int, leave: Leave) -> str:
        messages: Any = [{"role": "user", "content": QUESTIONS[variant]}]
        text = ""
        with self.main.openai_client() as client:
            stream = client.chat.completions.create(
                model="any", messages=messages, temperature=0, max_tokens=40, stream=True
            )
            with stream:
                for chunk in stream:
                    text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                    if leave():
                        return text
        return text

    def must_fail(self, variant: int, leave: Leave) -> str:
        asks: Sequence[tuple[type[EngineError], dict[str, Any]]] = (
            (RequestError, {"messages": "x", "adapters": ["none"]}),
            (ContextOverflowError, {"messages": "word " * 3000}),
            (RequestError, {"messages": "x", "response_format": JsonSchema({"type": "no such type"})}),
            (RequestError, {"messages": "x", "no_such_option": 1}),
        )
        kind, options = asks[variant]
        try:
            self.main.chat(**options)
        except kind as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    def reload(self, variant: int, leave: Leave) -> str:
        with Engine.load(n_ctx=512, n_threads=1, n_sequences=1 + variant) as llm:
            return told(llm.chat(QUESTIONS[variant], **GREEDY))

    def isolated(self, variant: int, leave: Leave) -> str:
        with self.engines.borrowed_child() as child, child.stream(QUESTIONS[variant], **GREEDY) as stream:
            text = ""
            for event in stream:
                text += getattr(event, "text", "")
                if leave():
                    return text
            return text

    def killed(self, variant: int, leave: Leave) -> str:
        with self.engines.borrowed_child() as child:
            if not leave():
                return "an error"
            before = child.stream(QUESTIONS[variant], **GREEDY)
            for process in psutil.Process().children():
                if WORKER in process.cmdline():
                    process.kill()
            try:
                before.result()
                child.chat(QUESTIONS[variant], **GREEDY)
            except EngineError:
                child.close()
                return "an error"
            return "no error"


class Leaving:
    """Leaves streams at random, and knows whether one was left."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._often = chance.choice((0.0, 0.0, 0.05, 0.3, 1.0))
        self.left = False

    def __call__(self) -> bool:
        leaves = self._chance.random() < self._often
        self.left |= leaves
        return leaves


def agrees(observed: Any, expected: Any, *, left: bool) -> bool:
    """Whether this is what was noted: a text, or its beginning if it was left, or numbers that are close."""
    if isinstance(observed, str):
        return expected.startswith(observed) if left else observed == expected
    return bool(np.allclose(observed, expected, rtol=2e-3, atol=2e-3))


@dataclass
class Record:
    """What is counted, and how long threads wait between requests."""

    done: Counter[str] = field(default_factory=Counter[str])
    wrong: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    pause: float = 0.05
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


def worker(work: Work, expected: Mapping[tuple[str, int], Any], record: Record, seed: int) -> None:
    """Do one thing after the other until it is over."""
    chance = random.Random(seed)
    weights = [weight for weight, _ in work.kinds.values()]
    while not record.over.is_set():
        kind, variant = chance.choices(list(work.kinds), weights)[0], chance.randrange(VARIANTS)
        leave = Leaving(chance)
        try:
            observed = work.kinds[kind][1](variant, leave)
            wrong, error = not agrees(observed, expected[kind, variant], left=leave.left), ""
        except Exception as raised:  # noqa: BLE001 - every error is counted
            wrong, error, observed = False, f"{kind}: {type(raised).__name__}: {str(raised)[:200]}", None
        with record.lock:
            record.done[kind] += 1
            if wrong:
                record.wrong[kind] += 1
                print(f"WRONG {kind} {variant}\n  {observed!r}\n  {expected[kind, variant]!r}", flush=True)
            if error:
                record.errors[error] += 1
        record.over.wait(chance.uniform(0, 2 * record.pause))


def cpu() -> float:
    """Seconds of processor time of this process and its children, the ended ones too."""
    times, total = os.times(), 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total + times.user + times.system + times.children_user + times.children_system


def measured(engines: Engines) -> dict[str, Any]:
    """What the process holds now, in MiB and numbers."""
    gc.collect()
    process = psutil.Process()
    memory = process.memory_full_info()
    children: list[int] = []
    for child in process.children(recursive=True):
        try:
            children.append(child.memory_full_info().pss)
        except psutil.Error:
            continue
    return {
        "rss": round(memory.rss / (1 << 20), 2),
        "pss": round(memory.pss / (1 << 20), 2),
        "children": round(sum(children) / (1 << 20), 2),
        "n_children": len(children),
        "handles": process.num_fds(),
        "threads": process.num_threads(),
        "objects": len(gc.get_objects()),
        "files": sum(len(names) for _, _, names in os.walk(engines.folder)),
    }


def soak(path: Path, minutes: float, share: float, seed: int) -> int:
    """Run, write the lines; returns how many answers were wrong and errors were raised."""
    record, work_began = Record(), time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: record.over.set())
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, path.open("a", encoding="utf-8") as lines:

        def write(**line: Any) -> None:
            print(json.dumps(line), file=lines, flush=True)

        engines = Engines.load(Path(folder))
        work = Work(engines)
        expected = {
            (kind, variant): run(variant, lambda: False)
            for kind, (_, run) in work.kinds.items()
            for variant in range(VARIANTS)
        }
        write(
            at=0, minutes=minutes, share=share, seed=seed, prepared=time.monotonic() - work_began, **measured(engines)
        )
        threads = [
            threading.Thread(target=worker, args=(work, expected, record, 1000 * seed + number))
            for number in range(THREADS)
        ]
        began, used_at_start = time.monotonic(), cpu()
        for thread in threads:
            thread.start()
        minute, looked, used = 0, began, used_at_start
        while not record.over.wait(5) and time.monotonic() - began < 60 * minutes:
            now, total = time.monotonic(), cpu()
            taken = (total - used) / (now - looked)
            record.pause = min(5.0, max(0.005, record.pause * (1.25 if taken > share else 0.85)))
            looked, used = now, total
            if now - began >= 60 * (minute + 1):
                minute = int((now - began) / 60)
                write(at=minute, **counted(record), cpu=total - used_at_start, **measured(engines))
        record.over.set()
        for thread in threads:
            thread.join()
        write(at=(time.monotonic() - began) / 60, **counted(record), cpu=cpu() - used_at_start, **measured(engines))
        engines.close()
        write(at="closed", **measured(engines))
    print(json.dumps(counted(record), indent=1))
    return record.wrong.total() + record.errors.total()


def counted(record: Record) -> dict[str, Any]:
    with record.lock:
        return {"done": dict(record.done), "wrong": dict(record.wrong), "errors": dict(record.errors)}


_WIDE, _HIGH, _LEFT, _GAP = 720, 130, 70, 46
_PANELS = (
    ("memory of the process, MiB (PSS)", "pss"),
    ("memory of its children, MiB (PSS)", "children"),
    ("open file descriptors", "handles"),
    ("threads", "threads"),
    ("Python objects, thousands", "objects"),
)
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #57606a } .line { fill: none; stroke: #0969da; stroke-width: 1.5 }
.axis { stroke: #8c959f; stroke-width: 1 }
@media (prefers-color-scheme: dark) { text { fill: #9198a1 } .line { stroke: #58a6ff } .axis { stroke: #6e7681 } }
"""


def picture(path: Path) -> str:
    """Returns an SVG of the lines that a run wrote: a panel for each figure, over the minutes."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line["at"] != "closed"]
    last = lines[-1]["at"]
    drawn: list[str] = []
    for number, (title, key) in enumerate(_PANELS):
        top = 24 + number * (_HIGH + _GAP)
        figures = [line[key] / (1000 if key == "objects" else 1) for line in lines]
        most = max(figures) * 1.1
        places = [
            f"{_LEFT + line['at'] / last * (_WIDE - _LEFT - 32):.1f},{top + _HIGH * (1 - figure / most):.1f}"
            for line, figure in zip(lines, figures, strict=True)
        ]
        bottom = top + _HIGH
        drawn += [
            f'<text x="{_LEFT}" y="{top - 6}">{title}: {figures[-1]:.0f} at the end</text>',
            f'<path class="axis" fill="none" d="M{_LEFT} {top}V{bottom}H{_WIDE - 32}"/>',
            f'<polyline class="line" points="{" ".join(places)}"/>',
            *(
                f'<text x="{_LEFT - 8}" y="{top + _HIGH * (1 - part / 2 / 1.1) + 4:.0f}" text-anchor="end">'
                f"{max(figures) * part / 2:.0f}</text>"
                for part in range(3)
            ),
        ]
    bottom = 24 + len(_PANELS) * (_HIGH + _GAP) - _GAP
    drawn += [
        f'<text x="{_LEFT + part / 4 * (_WIDE - _LEFT - 32):.0f}" y="{bottom + 18}" text-anchor="middle">'
        f"{part / 4 * last:.0f} min</text>"
        for part in range(5)
    ]
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {bottom + 28}" role="img">\n'
        f"<title>What a process holds during all kinds of work</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("path", type=Path, help="where the lines go")
    arguments.add_argument("--minutes", type=float, default=120)
    arguments.add_argument("--share", type=float, default=0.6, help="of one core, on average")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--picture", type=Path, help="only draw the lines that are there, into this SVG")
    given = arguments.parse_args()
    if given.picture:
        given.picture.write_text(picture(given.path), encoding="utf-8")
        return 0
    return int(soak(given.path, given.minutes, given.share, given.seed) > 0)


if __name__ == "__main__":
    sys.exit(main())
