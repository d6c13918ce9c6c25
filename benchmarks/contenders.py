"""Three ways to ask the same model file for an answer with a form: this engine, llama-server, `llama_cpp.Llama`."""

import json
import os
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from peers import LlamaServer
from schema_tasks import Task
from text_tasks import CallTask

from engine import Completion, Engine, JsonSchema

N_CTX = 4096
EQUAL: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    **{
        f"seed {seed}": {"temperature": 0.2, "top_p": 0.9, "top_k": 0, "min_p": 0.0, "seed": seed} for seed in (1, 2, 3)
    },
}
"""The same sampling for all contenders."""
OWN: dict[str, dict[str, Any]] = {f"default {seed}": {"seed": seed} for seed in (1, 2, 3)}
"""The sampling that the model file asks for: this engine's default."""


class Said(NamedTuple):
    """One answer: its text, its calls as names and texts of arguments, why it ended, its tokens, and the processor
    seconds it took."""

    text: str
    calls: list[tuple[str, str]]
    ended: str
    tokens: int
    seconds: float


class Contender(Protocol):
    """Who answers."""

    def answer(self, task: Task, sampling: dict[str, Any], most: int) -> Said: ...

    def call(self, task: CallTask, sampling: dict[str, Any], most: int) -> Said: ...

    def close(self) -> None: ...


def schema_of(task: Task) -> dict[str, Any] | None:
    """Returns the schema of the answer; None: any object."""
    return task.model.model_json_schema() if task.model else task.schema


def _asked(task: Task | CallTask) -> list[dict[str, str]]:
    return [{"role": "user", "content": task.question}]


EXAMPLES: list[tuple[str, Any]] = [
    ("The shop opens at 9 and closes at 18.", {"opens": 9, "closes": 18}),
    ("Lea and Omar are friends; Lea lives in Ghent.", {"friends": ["Lea", "Omar"], "city": "Ghent"}),
    ("Is fire cold?", {"answer": "no"}),
]
"""What a base model sees before its task."""


class Ours:
    """This engine, one request after the other. A base model gets a text that its answer continues, with `examples` of
    other tasks before it."""

    def __init__(self, model: Path, threads: int, examples: int = 0) -> None:
        self._engine = Engine.load(model, n_ctx=N_CTX, n_sequences=1, n_threads=threads, preflight=False)
        self._before = "".join(
            _line(question) + json.dumps(right, indent=2) + "\n\n" for question, right in EXAMPLES[:examples]
        )

    def answer(self, task: Task, sampling: dict[str, Any], most: int) -> Said:
        schema = schema_of(task)
        wanted: Any = task.model or (JsonSchema(schema) if schema is not None else {"type": "json_object"})
        return self._said(task.question, response_format=wanted, max_tokens=most, **sampling)

    def call(self, task: CallTask, sampling: dict[str, Any], most: int) -> Said:
        asked: dict[str, Any] = {"parallel_tool_calls": True} if task.parallel else {}
        return self._said(
            task.question, tools=task.tools, tool_choice=task.choice, max_tokens=most, **asked, **sampling
        )

    def _said(self, question: str, **options: Any) -> Said:
        began = time.process_time()
        is_base = self._engine.info.chat_template is None
        ask: Any = self._engine.complete if is_base else self._engine.chat
        completion: Completion[Any] = ask(self._before + _line(question) if is_base else question, **options)
        seconds = time.process_time() - began
        calls = [(call.name, call.arguments) for call in completion.tool_calls]
        tokens = completion.usage.completion_tokens if completion.usage else 0
        return Said(completion.content, calls, completion.finish_reason, tokens, seconds)

    def close(self) -> None:
        self._engine.close()


def _line(question: str) -> str:
    return f"Question: {question}\nAnswer as JSON: "


class Server:
    """llama-server, over HTTP, one request after the other."""

    def __init__(self, binary: Path, model: Path, threads: int) -> None:
        self._server = LlamaServer(binary, model, n_ctx=N_CTX, slots=1, threads=threads, more=["--jinja"])

    def answer(self, task: Task, sampling: dict[str, Any], most: int) -> Said:
        schema = schema_of(task)
        wanted: dict[str, Any] = {"type": "json_object"}
        if schema is not None:
            wanted = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        return self._said(task, response_format=wanted, max_tokens=most, **sampling)

    def call(self, task: CallTask, sampling: dict[str, Any], most: int) -> Said:
        asked = {"tools": task.tools, "tool_choice": task.choice, "parallel_tool_calls": task.parallel}
        return self._said(task, max_tokens=most, **asked, **sampling)

    def _said(self, task: Task | CallTask, **body: Any) -> Said:
        began = processor_seconds(self._server.pid)
        reply = self._server.post("/v1/chat/completions", {"messages": _asked(task), **body})
        return _read(reply, processor_seconds(self._server.pid) - began)

    def close(self) -> None:
        self._server.close()


class Llama:
    """`llama_cpp.Llama` in a child process, since some patterns end its process; then a new child is started.

    Its grammars come from `response_format` and from a tool that is named: its handler of the model's own template
    holds no call to a schema otherwise. So a single tool is named; with several its handler `chatml-function-calling`
    lets the model choose.
    """

    def __init__(self, model: Path, threads: int) -> None:
        self._made = (str(model), threads)
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._child = context.Process(target=_llama, args=(theirs, *self._made), daemon=True)
        self._child.start()
        theirs.close()

    def answer(self, task: Task, sampling: dict[str, Any], most: int) -> Said:
        schema = schema_of(task)
        wanted = {"type": "json_object", **({} if schema is None else {"schema": schema})}
        return self._said(task, response_format=wanted, max_tokens=most, **sampling)

    def call(self, task: CallTask, sampling: dict[str, Any], most: int) -> Said:
        choice: Any = task.choice
        if choice == "required":
            one = len(task.tools) == 1
            choice = {"type": "function", "function": {"name": task.tools[0]["function"]["name"]}} if one else "auto"
        return self._said(task, tools=task.tools, tool_choice=choice, max_tokens=most, **sampling)

    def _said(self, task: Task | CallTask, **options: Any) -> Said:
        self._pipe.send({"messages": _asked(task), "repeat_penalty": 1.0, **options})
        try:
            reply, seconds = self._pipe.recv()
        except EOFError:
            self._child.join()
            ended = Said(f"the process ended with exit code {self._child.exitcode}", [], "error", 0, 0.0)
            self._start()
            return ended
        return _read(reply, seconds)

    def close(self) -> None:
        self._pipe.close()
        self._child.join()


def _llama(pipe: Any, model: str, threads: int) -> None:
    """The child: answers requests until the other end is closed."""
    import llama_cpp

    make: Any = llama_cpp.Llama
    llama = make(model, n_ctx=N_CTX, n_threads=threads, n_threads_batch=threads, verbose=False)
    own = llama.chat_format
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        llama.chat_format = "chatml-function-calling" if "tools" in asked else own
        began = time.process_time()
        try:
            reply: dict[str, Any] = llama.create_chat_completion(**asked)
        except Exception as error:  # noqa: BLE001 - what it refuses, it has not answered
            reply = {"error": repr(error)}
        pipe.send((reply, time.process_time() - began))


def _read(reply: dict[str, Any], seconds: float) -> Said:
    """Reads a completion in OpenAI's form; an error is an answer that ended by it."""
    if "choices" not in reply:
        return Said(json.dumps(reply), [], "error", 0, seconds)
    choice: dict[str, Any] = reply["choices"][0]
    made: Sequence[Any] = choice["message"].get("tool_calls") or ()
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in made]
    tokens = reply["usage"]["completion_tokens"]
    return Said(choice["message"].get("content") or "", calls, choice["finish_reason"], tokens, seconds)


def processor_seconds(pid: int) -> float:
    """Returns the processor time that a process has used, all threads together. Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
