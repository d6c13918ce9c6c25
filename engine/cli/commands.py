"""The commands: demo, chat, run, inspect, explain, doctor.

Knows: what each asks of the engine, and in which order it is shown. Does not know: how options are spelt, or styles.
"""

import argparse
import contextlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack, cast

from pydantic_core import to_json

from engine.cli.screen import Screen, json_line
from engine.diagnose.doctor import diagnose
from engine.display import figures
from engine.engine import Engine
from engine.errors import EngineError, RequestError
from engine.events import ContentDelta
from engine.options import LoadOptions, TurnOptions
from engine.types import Completion, Message, Reasoning

QUESTION = "What is 127 times 46?"

_REASONING: dict[str, Reasoning] = {"on": True, "off": False, "low": "low", "medium": "medium", "high": "high"}


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


def demo(options: argparse.Namespace) -> int:
    """The built-in model: one question, one tool that really runs."""
    screen = Screen(sys.stdout)
    with load(options) as llm:
        screen.said("question", QUESTION)
        with llm.stream_run(QUESTION, tools=[multiply], temperature=0, max_steps=4, max_tokens=400) as stream:
            for event in stream:
                screen.show(event)
        run = stream.run
    screen.line()
    screen.line(figures(step.completion.usage for step in run.steps), "dim")
    return 0


def run(options: argparse.Namespace) -> int:
    """One prompt. Piped, only the answer is printed; on a terminal the reasoning too."""
    screen = Screen(sys.stdout)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    with load(options) as llm, llm.stream([*_system(options), _user(prompt)], **turn_options(options)) as stream:
        for event in stream:
            if options.json:
                screen.line(json_line(event))
            elif screen.is_terminal:
                screen.show(event)
            elif isinstance(event, ContentDelta):
                screen.write(event.text)
    if not options.json and not screen.is_terminal:
        screen.line()
    return 0


def chat(options: argparse.Namespace) -> int:
    """A conversation: a line is a turn. Ctrl-C stops an answer, Ctrl-D (or /exit) ends."""
    screen = Screen(sys.stdout)
    with load(options) as llm:
        history = _system(options)
        for text in _lines(screen, llm):
            if text == "/reset":
                history = _system(options)
                continue
            asked = [*history, _user(text)]
            if completion := _answer(screen, llm, asked, turn_options(options)):
                history = [*asked, completion.message]
    return 0


def inspect(options: argparse.Namespace) -> int:
    """What the engine understood of a model."""
    with load(options) as llm:
        found = llm.inspect()
    Screen(sys.stdout).line(to_json(asdict(found)).decode() if options.json else found.text())
    return 0


def explain(options: argparse.Namespace) -> int:
    """What the engine makes of a conversation, piece by piece."""
    if "-" in (options.prompt, options.messages) and options.output == "-":
        raise RequestError("Standard input holds one thing; read the output from a file: --output FILE.")
    messages, tools = _said(options)
    output = None if options.output is None else _read(options.output)
    with load(options) as llm:
        turn: TurnOptions = {"reasoning": _reasoning(options)}
        found = llm.explain([*_system(options), *messages], tools, output=output, **turn)
    Screen(sys.stdout).line(to_json(found.data()).decode() if options.json else found.text())
    return 0


def _said(options: argparse.Namespace) -> tuple[list[Any], list[Any] | None]:
    """The messages and tools to explain."""
    if options.messages is None:
        return [_user(sys.stdin.read() if options.prompt == "-" else options.prompt)], None
    try:
        found: object = json.loads(_read(options.messages))
    except ValueError as error:
        raise RequestError(f"{options.messages} is no JSON: {error}. Give a list of messages.") from error
    body = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {"messages": found}
    messages, tools = body.get("messages"), body.get("tools")
    if not isinstance(messages, list) or not isinstance(tools, list | None):
        raise RequestError(f'{options.messages} is no list of messages, nor {{"messages": [..], "tools": [..]}}.')
    return cast("list[Any]", messages), cast("list[Any] | None", tools)


def _read(file: str) -> str:
    """The text of a file, or of standard input."""
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{file} cannot be read: {error}. Correct the path.") from error


def doctor(_: argparse.Namespace) -> int:
    """The facts of this installation; 1 when llama.cpp cannot be used."""
    report = diagnose()
    Screen(sys.stdout).line(report.text())
    return 1 if report.library is None or report.verdict.outcome == "faulty" else 0


def load(options: argparse.Namespace, **more: Unpack[LoadOptions]) -> Engine:
    """The engine that the options ask for. `demo` has no model to choose: it is the built-in one."""
    threads: LoadOptions = {} if options.threads is None else {"n_threads": options.threads}
    return Engine.load(
        getattr(options, "model", None),
        n_ctx=options.ctx,
        n_gpu_layers=options.gpu_layers,
        chat_template=options.chat_template,
        family=options.family,
        seed=options.seed,
        preflight=options.preflight,
        **{**threads, **more},
    )


def turn_options(options: argparse.Namespace) -> TurnOptions:
    """How answers are drawn, as the options say."""
    return {"temperature": options.temperature, "max_tokens": options.max_tokens, "reasoning": _reasoning(options)}


def _reasoning(options: argparse.Namespace) -> Reasoning | None:
    return None if options.reasoning is None else _REASONING[options.reasoning]


def _system(options: argparse.Namespace) -> list[Message]:
    return [] if options.system is None else [Message(role="system", content=options.system)]


def _user(text: str) -> Message:
    return Message(role="user", content=text)


def _lines(screen: Screen, llm: Engine) -> Iterator[str]:
    """What the user says: typed at a prompt, or the lines of a pipe."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            if text := line.strip():
                screen.said("question", text)
                yield text
        return
    screen.line(greeting(llm), "dim")
    with contextlib.suppress(ImportError):  # lines are edited where the platform has it
        importlib.import_module("readline")
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            screen.line()
            return
        if text == "/exit":
            return
        if text:
            yield text


def greeting(llm: Engine) -> str:
    """What a conversation at a prompt begins with."""
    name = llm.info.name or llm.info.path.name
    return f"{name} ({llm.family.title}). Ctrl-C stops an answer, Ctrl-D ends, /reset forgets."


def _answer(screen: Screen, llm: Engine, asked: Sequence[Message], turn: TurnOptions) -> Completion | None:
    """One turn, shown as it comes. None when it failed: at a prompt that is said, and the conversation goes on."""
    try:
        with llm.stream(asked, **turn) as stream:
            try:
                for event in stream:
                    screen.show(event)
            except KeyboardInterrupt:
                stream.cancel()
                for event in stream:
                    screen.show(event)
            return stream.completion
    except EngineError as error:
        if not sys.stdin.isatty():
            raise
        screen.line(f"{error}", "red")
        return None
