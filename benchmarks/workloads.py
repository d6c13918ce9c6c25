"""What a user does with a local model, timed beside the other ways to run it: `python benchmarks/workloads.py
--model FILE --server BINARY --rounds 5`. Prints seconds, processor seconds and tokens evaluated, and the ratios to
llama-server's within each round.

- chat: ten turns over a system message. agent: twelve forced calls over a prompt of 3,000 tokens with eight tools.
- subagents: four agents of three calls each, at once, over that prompt. extract: documents under a schema, all at once.
- distinct: sixteen prompts of 600 tokens of their own. copying: twelve lines copied, with drafts (the built-in model
  with 49 further layers that add nothing).
- best: eight answers to one prompt of 600 tokens. restart: the prompt of 3,000 tokens again, in a new process.

Each contender runs each workload in a process of its own: this engine, llama-server as it is started by default and
with a slot for each request (`server+`), `llama_cpp.Llama`, and xllamacpp where it is installed. The last two have no
forced calls; `llama_cpp.Llama` answers one request after the other. Weights are random unless a workload says otherwise
(`models.py`), so that only the time is compared, never what is said.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[1] / "tests/helpers"),
]

from files.model_files import copied  # noqa: E402
from measuring import by_turns, ratio, words  # noqa: E402
from models import model_file  # noqa: E402
from peers import LlamaServer  # noqa: E402

from engine import Engine, StateStore  # noqa: E402
from engine.runtime.cache.slots import common_prefix  # noqa: E402
from engine.support import _data  # noqa: E402

Messages = list[dict[str, Any]]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 20},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2030},
        "kind": {"enum": ["letter", "invoice", "report"]},
        "urgent": {"type": "boolean"},
    },
    "required": ["title", "year", "kind", "urgent"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": words(40, number),
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "maxLength": 24}, "limit": {"enum": [5, 10, 20]}},
                "required": ["query", "limit"],
                "additionalProperties": False,
            },
        },
    }
    for number in range(8)
]
N_CTX = 8192


@dataclass(frozen=True)
class Asked:
    """One request. `forced`: one of the tools is called; `schema`: the answer's form."""

    messages: Messages
    steps: int
    forced: bool = False
    schema: Mapping[str, Any] | None = None
    copies: int = 1


@dataclass
class Told:
    """What came back, and the tokens of the prompt, of which so many were evaluated."""

    message: dict[str, Any]
    prompt: int = 0
    evaluated: int = 0
    made: int = 0


class Contender(Protocol):
    """One way to answer requests. `at_once` answers them together where it can."""

    def at_once(self, asked: Sequence[Asked]) -> list[Told]: ...

    def processor(self) -> float:
        """Seconds of processor time so far."""
        ...


class Ours:
    """This engine."""

    def __init__(
        self, model: Path, sequences: int, threads: int, gpu_layers: int, states: Path | None, draft: str | None
    ) -> None:
        kept = None if states is None else StateStore(memory=2**28, path=states, disk=2**31)
        self._llm = Engine.load(
            model,
            n_ctx=N_CTX,
            n_sequences=sequences,
            n_threads=threads,
            n_gpu_layers=gpu_layers,
            preflight=False,
            states=kept,
            draft=draft,
        )
        self._done: list[tuple[Messages, dict[str, Any], int]] = []

    def at_once(self, asked: Sequence[Asked]) -> list[Told]:
        streams: list[Any] = []
        given: list[tuple[Messages, dict[str, Any]]] = []
        for number, each in enumerate(asked):
            options: dict[str, Any] = {"temperature": 0.0, "max_tokens": each.steps, "seed": number, "reasoning": False}
            if each.forced:
                options |= {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
            if each.schema is not None:
                form = {"name": "form", "schema": each.schema, "strict": True}
                options["response_format"] = {"type": "json_schema", "json_schema": form}
            if each.copies > 1:
                options["temperature"] = 1.0
            streams += self._llm.choices(each.messages, each.copies, **options)
            given += [([*each.messages], options)] * each.copies
        answers = [self._told(stream.result()) for stream in streams]
        self._done += [(*each, answer.made) for each, answer in zip(given, answers, strict=True)]
        return answers

    def _told(self, answer: Any) -> Told:
        message = answer.message.model_dump(exclude_none=True)
        usage = answer.usage
        return Told(message, usage.prompt_tokens, usage.prompt_tokens - usage.cached_tokens, usage.completion_tokens)

    def needed(self) -> int:
        """How many tokens of the prompts after the first a memory that forgets nothing would have had to evaluate: of
        each, what no earlier one began with, nor the answer to it went on with; at least its last one."""
        held: list[tuple[Sequence[int], int]] = []
        needed = 0
        for messages, options, made in self._done:
            prompt = self._llm.render(messages, **options)
            tokens = self._llm.tokenize(prompt.text, add_bos=True)
            most = 0
            for before, answer in held:
                same = common_prefix(before, tokens, len(tokens) - 1)
                most = max(most, min(same + answer - 1, len(tokens) - 1) if same == len(before) else same)
            needed += len(tokens) - most if held else 0
            held.append((tokens, made))
        return needed

    def processor(self) -> float:
        return time.process_time()

    def close(self) -> None:
        self._llm.close()


class Server:
    """llama-server over HTTP. `slots` 0: as it is started by default."""

    def __init__(
        self, binary: Path, model: Path, slots: int, threads: int, gpu_layers: int, states: Path | None
    ) -> None:
        more = ["-ngl", str(gpu_layers)]
        if slots:
            more += [
                "--spec-type",
                "ngram-simple",
                "--spec-ngram-simple-size-n",
                "3",
                "--spec-ngram-simple-size-m",
                "16",
            ]
        if slots and states is not None:
            more += ["--slot-save-path", f"{states}/"]
        self._keeps = bool(slots) and states is not None
        self._server = LlamaServer(
            binary, model, n_ctx=N_CTX * max(slots, 4), slots=slots or 4, threads=threads, more=more
        )
        if self._keeps:
            self._server.post("/slots/0?action=restore", {"filename": "slot"})

    def at_once(self, asked: Sequence[Asked]) -> list[Told]:
        every = [each for each in asked for _ in range(each.copies)]
        with ThreadPoolExecutor(len(every)) as pool:
            return list(pool.map(self._one, every, range(len(every))))

    def _one(self, asked: Asked, seed: int) -> Told:
        answer = self._server.post("/v1/chat/completions", body(asked, seed))
        if "error" in answer:
            raise RuntimeError(str(answer["error"]))
        return told(answer)

    def processor(self) -> float:
        return processor_of(self._server.pid)

    def close(self) -> None:
        if self._keeps:
            self._server.post("/slots/0?action=save", {"filename": "slot"})
        self._server.close()


class InProcess:
    """xllamacpp: llama-server's code, and its own build of llama.cpp, in this process; asked without HTTP."""

    def __init__(self, model: Path, slots: int, threads: int, gpu_layers: int) -> None:
        import xllamacpp  # pyright: ignore[reportMissingImports]

        package: Any = xllamacpp
        given = package.CommonParams()
        given.model.path, given.n_ctx, given.n_parallel, given.kv_unified = str(model), N_CTX * slots, slots, True
        given.cpuparams.n_threads = given.cpuparams_batch.n_threads = threads
        given.n_gpu_layers = gpu_layers
        given.use_jinja, given.verbosity = True, 0
        self._server = package.Server(given)

    def at_once(self, asked: Sequence[Asked]) -> list[Told]:
        every = [each for each in asked for _ in range(each.copies)]
        with ThreadPoolExecutor(len(every)) as pool:
            return list(pool.map(self._one, every, range(len(every))))

    def _one(self, asked: Asked, seed: int) -> Told:
        return told(self._server.handle_chat_completions(body(asked, seed)))

    def processor(self) -> float:
        return time.process_time()

    def close(self) -> None:
        del self._server


class Python:
    """`llama_cpp.Llama`, one request after the other, with its cache of the last prompt."""

    def __init__(self, model: Path, threads: int, gpu_layers: int) -> None:
        import llama_cpp

        make: Any = llama_cpp.Llama
        threading = {"n_threads": threads, "n_threads_batch": threads}
        self._llama = make(str(model), n_ctx=N_CTX, n_gpu_layers=gpu_layers, verbose=False, **threading)

    def at_once(self, asked: Sequence[Asked]) -> list[Told]:
        answers: list[Told] = []
        for each in asked:
            for seed in range(each.copies):
                request = body(each, seed)
                for name in ("tools", "tool_choice", "parallel_tool_calls", "cache_prompt", "chat_template_kwargs"):
                    request.pop(name, None)
                if each.schema is not None:
                    request["response_format"] = {"type": "json_object", "schema": each.schema}
                answers.append(told(self._llama.create_chat_completion(**request)))
        return answers

    def processor(self) -> float:
        return time.process_time()

    def close(self) -> None:
        self._llama.close()


def body(asked: Asked, seed: int) -> dict[str, Any]:
    """A request of Chat Completions."""
    request: dict[str, Any] = {
        "messages": asked.messages,
        "max_tokens": asked.steps,
        "temperature": 1.0 if asked.copies > 1 else 0.0,
        "seed": seed,
        "cache_prompt": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    if asked.forced:
        request |= {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    if asked.schema is not None:
        form = {"name": "form", "schema": asked.schema, "strict": True}
        request["response_format"] = {"type": "json_schema", "json_schema": form}
    return request


def told(answer: Mapping[str, Any]) -> Told:
    """Reads an answer of Chat Completions."""
    message = {name: value for name, value in answer["choices"][0]["message"].items() if value is not None}
    usage, timings = answer["usage"], answer.get("timings", {})
    evaluated = timings.get("prompt_n", usage["prompt_tokens"])
    return Told(message, usage["prompt_tokens"], evaluated, usage["completion_tokens"])


def processor_of(pid: int) -> float:
    """The processor seconds of another process so far (Linux)."""
    ticks = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


# The workloads: each asks a contender, and returns what came back.


def chat(contender: Contender, seed: int) -> list[Told]:
    history: Messages = [{"role": "system", "content": words(200, seed)}]
    answers: list[Told] = []
    for turn in range(10):
        history.append({"role": "user", "content": words(40, seed * 31 + turn)})
        answers += contender.at_once([Asked(history, 48)])
        history.append(spoken(answers[-1].message))
    return answers


def spoken(message: Mapping[str, Any]) -> dict[str, Any]:
    """The turn as the next request has it."""
    return {"role": "assistant", "content": message.get("content") or words(10, 1)}


def called(message: Mapping[str, Any], seed: int) -> Messages:
    """A forced call and its result; a contender without calls has said something instead."""
    result = words(60, seed)
    if not message.get("tool_calls"):
        return [spoken(message), {"role": "user", "content": result}]
    call = message["tool_calls"][0]
    name, arguments = (
        (call["function"][key] for key in ("name", "arguments"))
        if "function" in call
        else (
            call["name"],
            call["arguments"],
        )
    )
    function = {"id": call["id"], "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [function]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]


def prompt_of_agents(seed: int) -> Messages:
    return [{"role": "system", "content": words(2400, seed)}]


def agents(contender: Contender, seed: int, count: int, calls: int) -> list[Told]:
    histories = [
        [*prompt_of_agents(seed), {"role": "user", "content": words(20, seed * 7 + at)}] for at in range(count)
    ]
    answers: list[Told] = []
    for step in range(calls):
        answers += (told := contender.at_once([Asked(history, 48, forced=True) for history in histories]))
        for at, history in enumerate(histories):
            history += called(told[at].message, seed * 1000 + step * 10 + at)
    return answers


def extract(contender: Contender, seed: int, rows: int = 48) -> list[Told]:
    asked = [
        Asked([{"role": "user", "content": f"Extract: {words(120, seed * 997 + at)}"}], 80, schema=SCHEMA)
        for at in range(rows)
    ]
    return contender.at_once(asked)


def distinct(contender: Contender, seed: int) -> list[Told]:
    return contender.at_once(
        [Asked([{"role": "user", "content": f"{at} {words(600, seed * 97 + at)}"}], 32) for at in range(16)]
    )


def copying(contender: Contender, seed: int) -> list[Told]:
    lines = [f"Repeat after me: {words(12, seed * 31 + number)}" for number in range(12)]
    return [contender.at_once([Asked([{"role": "user", "content": line}], 96)])[0] for line in lines]


def best(contender: Contender, seed: int) -> list[Told]:
    return contender.at_once([Asked([{"role": "user", "content": words(600, seed)}], 48, copies=8)])


def restart(contender: Contender, seed: int) -> list[Told]:
    return contender.at_once([Asked([*prompt_of_agents(0), {"role": "user", "content": words(20, 5)}], 8)])


WORK: Mapping[str, tuple[Callable[[Contender, int], list[Told]], int]] = {
    "chat": (chat, 1),
    "agent": (lambda contender, seed: agents(contender, seed, 1, 12), 1),
    "subagents": (lambda contender, seed: agents(contender, seed, 4, 3), 4),
    "extract": (extract, 16),
    "distinct": (distinct, 16),
    "copying": (copying, 1),
    "best": (best, 8),
    "restart": (restart, 1),
}
"""Each workload, and how many requests it has at once."""


@contextmanager
def opened(name: str, work: str, options: argparse.Namespace) -> Any:
    model = options.slow if work == "copying" else options.model
    slots = WORK[work][1]
    states = options.states / name if work == "restart" else None
    if states is not None:
        states.mkdir(exist_ok=True)
    device = options.threads, options.gpu_layers
    made: Any
    if name == "ours":
        made = Ours(model, slots, *device, states, "ngram" if work == "copying" else None)
    elif name.startswith("server"):
        made = Server(options.server, model, slots if name == "server+" else 0, *device, states)
    elif name == "xllamacpp":
        made = InProcess(model, slots, *device)
    else:
        made = Python(model, *device)
    with closing(made):
        yield made


def run_once(name: str, work: str, options: argparse.Namespace) -> dict[str, float]:
    """One contender at one workload, in this process. A restart counts the load, too."""
    begun = time.perf_counter()
    contender: Contender
    with opened(name, work, options) as contender:
        if work != "restart":
            contender.at_once([Asked([{"role": "user", "content": "Hello"}], 4)])
            begun = time.perf_counter()
        processor = contender.processor()
        answers = WORK[work][0](contender, options.seed)
        spent, processor = time.perf_counter() - begun, contender.processor() - processor
        return {
            "seconds": spent,
            "processor": processor,
            "prompt": sum(each.prompt for each in answers),
            "evaluated": sum(each.evaluated for each in answers),
            "needed": contender.needed() if isinstance(contender, Ours) else 0,
            "made": sum(each.made for each in answers),
        }


def in_a_process(name: str, work: str, options: argparse.Namespace, number: int) -> dict[str, float]:
    given = {
        "model": options.model,
        "slow": options.slow,
        "server": options.server,
        "threads": options.threads,
        "gpu-layers": options.gpu_layers,
        "states": options.states,
    }
    words_ = [str(each) for key, value in given.items() if value is not None for each in (f"--{key}", value)]
    command = [sys.executable, __file__, *words_, "--seed", str(number + 1), "--one", name, work]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} at {work}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(work: str, names: Sequence[str], options: argparse.Namespace) -> None:
    if work == "restart":
        for name in names:
            in_a_process(name, work, options, 0)  # what an earlier run has left on disk
    found = by_turns(
        {name: lambda at, name=name: in_a_process(name, work, options, at) for name in names}, options.rounds
    )
    base = next((name for name in names if name.startswith("server")), names[0])
    print(f"\n{work}: seconds, processor seconds, evaluated of the prompts' tokens, tokens made; seconds beside {base}")
    for name in names:
        middle = {key: statistics.median(run[key] for run in found[name]) for key in found[name][0]}
        beside = ratio([run["seconds"] for run in found[name]], [run["seconds"] for run in found[base]])
        print(f"  {name:10}{middle['seconds']:7.2f} {middle['processor']:7.2f}", end="")
        print(f"{middle['evaluated']:8.0f} of {middle['prompt']:6.0f} {middle['made']:6.0f} {beside:6.2f}", end="")
        waste = (middle["evaluated"] / middle["needed"] - 1) * 100 if middle["needed"] else None
        print("" if waste is None else f"   {waste:.1f} % more than needed", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--slow", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--vocabulary", type=Path, help="write the random model of 0.2 billion with this vocabulary")
    parser.add_argument("--server", type=Path, help="a llama-server (peers.py says how to build one)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gpu-layers", type=int, default=0, help="-1: all layers on the GPU, for every contender")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(WORK), default=list(WORK))
    parser.add_argument("--contenders", nargs="*", default=["ours", "server", "server+", "xllamacpp", "python"])
    parser.add_argument("--states", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, work = options.one
        print(json.dumps(run_once(name, work, options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        options.states = Path(folder, "states")
        options.states.mkdir()
        options.slow = copied(_data.builtin_model(), Path(folder, "slow.gguf"), layers=7, idle=49)
        if options.model is None:
            options.model = model_file("0.2B", options.vocabulary, Path("build/bench"))
        names = [name for name in options.contenders if options.server or not name.startswith("server")]
        for work in options.only:
            compare(work, names, options)


if __name__ == "__main__":
    main()
