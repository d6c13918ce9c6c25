"""The commands: demo, chat, run, inspect, explain, doctor."""

import argparse
import contextlib
import json
import os
import re
import stat
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack, cast

from pydantic_core import to_json

from engine.api.engine import Engine
from engine.api.engines import Engines
from engine.cli.chat import Chat, model_name
from engine.cli.confirm import can_ask
from engine.cli.doctor import NAME_WIDTH, diagnose
from engine.cli.named import BUILTIN
from engine.cli.screen import Screen, json_line
from engine.cli.sessions import last, read, session
from engine.cli.settings import REASONING
from engine.cli.standard import complain
from engine.cli.tool_files import mcp_servers, named_type, tools_of
from engine.formats.families import Families, builtin_families
from engine.runtime.cache.state_store import StateStore
from engine.support import paths
from engine.support._data import builtin_model
from engine.support.display import figures, visible_json
from engine.support.errors import RequestError
from engine.tools import Toolbox
from engine.turns.options import LoadOptions, TurnOptions
from engine.types.answer_formats import JsonSchema
from engine.types.events import ContentDelta
from engine.types.media import Image
from engine.types.messages import Message
from engine.types.sampling import Reasoning

_STATES = 4 << 30
QUESTION = "What is 127 times 46?"
_CUT_OFF = (
    "the answer was cut off inside its reasoning; allow more tokens (--max-tokens, --ctx), or less reasoning "
    "(--reasoning off, where the model can)."
)


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


def demo(options: argparse.Namespace) -> int:
    """Run the built-in model: one question, one tool that really runs."""
    screen = Screen(sys.stdout)
    with load(options) as llm:
        screen.said("question", QUESTION)
        with llm.stream_run(QUESTION, tools=[multiply], temperature=0, max_steps=4, max_tokens=400) as stream:
            for event in stream:
                screen.show(event)
        run = stream.run
    screen.line()
    screen.prose(figures(step.completion.usage for step in run.steps), "dim")
    return 0


def run(options: argparse.Namespace) -> int:
    """Answer one prompt. Piped, only the answer is printed; on a terminal the reasoning too."""
    if options.model is None and _names_a_model(options.prompt):
        raise RequestError(
            f"{options.prompt} is in the place of the prompt; add one: "
            f'llama-engine run {options.prompt} "What is the capital of France?"'
        )
    screen = Screen(sys.stdout, markdown=not (options.plain or options.json or options.schema))
    turn = turn_options(options)
    if options.schema is not None:
        schema = schema_of(options.schema)
        turn["response_format"] = JsonSchema(schema) if isinstance(schema, Mapping | bool) else schema
    question = _user(_prompt(options.prompt, options.file), map(Image, options.image))
    with (
        load(options) as llm,
        llm.stream([*_system(options), question], **turn) as stream,
        contextlib.closing(screen),
    ):
        for event in stream:
            if options.json:
                screen.line(json_line(event))
            elif screen.is_terminal:
                screen.show(event)
            elif isinstance(event, ContentDelta):
                screen.write(event.text if options.schema is None else visible_json(event.text))
        completion = stream.completion
    if not options.json and not screen.is_terminal:
        screen.line()
    if completion.finish_reason == "length" and completion.reasoning and not completion.content:
        complain(_CUT_OFF)
    if completion.parse_error:
        raise RequestError(f"The answer does not match the schema: {completion.parse_error}")
    return 0


def _names_a_model(text: str) -> bool:
    """Whether a text is no prompt but a model: a file, or one on the Hub with a quantisation. Raises ModelLoadError for
    a name of another program."""
    if text.endswith(".gguf") or len(text.split()) != 1 or not {":", "/"} & set(text):
        return text.endswith(".gguf")
    from engine.hub.names import parse  # imports huggingface_hub

    name = parse(text)
    return name is not None and bool(name.quantization or "gguf" in text.lower())


def _prompt(text: str, files: Sequence[str]) -> str:
    """Returns the whole prompt: the text, then each file, then the input from a pipe or a redirected file."""
    piped = "" if "-" in (text, *files) else (piped_text() or "").strip()
    parts = [read_text("-") if text == "-" else text, *map(read_text, files), *([piped] if piped else [])]
    return "\n\n".join(parts)


def piped_text() -> str | None:
    """Returns standard input if it is a pipe or a file; None if it is a terminal, a device or a closed descriptor."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    return read_text("-") if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) else None


def schema_of(path: str) -> Mapping[str, Any] | bool | type:
    """Returns the JSON Schema in a file, or the type that `MODULE:NAME` names."""
    if (named := named_type(path)) is not None:
        return named
    try:
        found: object = json.loads(read_text(path))
    except ValueError as error:
        raise RequestError(f"{path} is not JSON: {error}. Give a JSON Schema.") from error
    if not isinstance(found, dict | bool):
        raise RequestError(f"{path} is not a JSON Schema; it must be an object, true or false.")
    return cast("Mapping[str, Any] | bool", found)


def chat(options: argparse.Namespace) -> int:
    """Run a conversation: each line is a turn. Ctrl-C stops an answer, Ctrl-D (or /quit) ends."""
    screen = Screen(sys.stdout, markdown=not options.plain)
    if (options.tools or options.mcp) and not options.yes and not can_ask():
        raise RequestError(
            "Calls cannot be confirmed without a terminal as input and output; add --yes to run all of them."
        )
    own = () if options.tools is None else tools_of(options.tools)
    toolbox = Toolbox([*own, *(server for each in options.mcp for server in mcp_servers(each))])
    with _kept(options) as file, _models(options) as (llm, others), toolbox:
        _ = llm.template  # a model that cannot chat says so before anything is typed
        talk = Chat(
            screen,
            llm,
            system=options.system,
            turn=turn_options(options),
            tools=toolbox.tools,
            confirms=not options.yes,
            file=file,
            names=[_lasting(each) for each in options.models or [options.model] if each] if options.session else (),
            models=others,
            commands=options.commands,
        )
        talk.run(lambda: greeting(llm))
    return 0


@contextlib.contextmanager
def _kept(options: argparse.Namespace) -> Generator[Path | None]:
    """Yields the file of the conversation. A session that exists brings its models, unless others are named."""
    options.models = [*options.models_option, *options.models]
    if options.continues:
        options.session = last()
    if options.session is None:
        yield options.resume
        return
    with session(options.session) as path:
        if not options.models and paths.exists(path):
            options.models = list(read(path).models)
        yield path


@contextlib.contextmanager
def _models(options: argparse.Namespace) -> Generator[tuple[Engine, Mapping[str, Engine]]]:
    """Yields the first model, and all by name if there are several: as much of a path as tells them apart."""
    named: list[str] = options.models
    if len(named) < 2:
        options.model = named[0] if named else None
        with load(options) as llm:
            yield llm, {}
        return
    short = [Path(each).stem if each.endswith(".gguf") else each for each in named]
    names = short if len(set(short)) == len(short) else named
    given = _loading(options)
    files = [str(builtin_model()) if each == BUILTIN else each for each in named]
    with Engines({name: {"model": each, **given} for name, each in zip(names, files, strict=True)}) as engines:
        yield engines[names[0]], engines


def _lasting(model: str) -> str:
    """Returns a model's name as it is found from any folder."""
    path = Path(model).expanduser()
    return str(path.absolute()) if path.is_file() else model


def inspect(options: argparse.Namespace) -> int:
    """Show what the engine understood of a model."""
    with load(options) as llm:
        found = llm.inspect()
    screen = Screen(sys.stdout)
    if options.json:
        screen.line(visible_json(to_json(asdict(found)).decode()))
        return 0
    text = found.text()
    column = re.match(r".*?\s{2,}", text)  # where the values begin
    screen.prose(text, hang=column.end() if column else 0)
    return 0


def explain(options: argparse.Namespace) -> int:
    """Show how the engine understands a conversation, piece by piece."""
    if "-" in (options.prompt, options.messages) and options.output == "-":
        raise RequestError("Standard input can only be read once; read the output from a file: --output FILE.")
    messages, tools = _messages(options)
    output = None if options.output is None else read_text(options.output)
    with load(options) as llm:
        turn: TurnOptions = {"reasoning": _reasoning(options)}
        found = llm.explain([*_system(options), *messages], tools, output=output, **turn)
    Screen(sys.stdout).line(visible_json(to_json(found.data()).decode()) if options.json else found.text())
    return 0


def _messages(options: argparse.Namespace) -> tuple[list[Any], list[Any] | None]:
    """Returns the messages and tools to explain."""
    if options.messages is None:
        return [_user(read_text("-") if options.prompt == "-" else options.prompt)], None
    try:
        found: object = json.loads(read_text(options.messages))
    except ValueError as error:
        raise RequestError(f"{options.messages} is not JSON: {error}. Give a list of messages.") from error
    body = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {"messages": found}
    messages, tools = body.get("messages"), body.get("tools")
    if not isinstance(messages, list) or not isinstance(tools, list | None):
        raise RequestError(f'{options.messages} must be a list of messages, or {{"messages": [..], "tools": [..]}}.')
    return cast("list[Any]", messages), cast("list[Any] | None", tools)


def read_text(file: str) -> str:
    """Returns the text of a file, or of standard input."""
    name = "Standard input" if file == "-" else file
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{name} cannot be read: {error}. Correct the path.") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8 text: {error}. Convert it.") from error


def doctor(_: argparse.Namespace) -> int:
    """Show the facts of this installation; returns 1 if llama.cpp cannot be used."""
    report, screen = diagnose(), Screen(sys.stdout)
    for name, value in report.rows():
        row = f"{name:<{NAME_WIDTH}}  {value}"
        if name == "rebuild":  # a command to copy, in one piece
            screen.line(row)
        else:
            screen.prose(row, hang=NAME_WIDTH + 2)
    return 1 if report.library is None or report.verdict.outcome == "faulty" else 0


def load(options: argparse.Namespace, **more: Unpack[LoadOptions]) -> Engine:
    """Load the engine that the options name. Without a name it is the built-in model, but where `asks` says so, the
    user is asked."""
    model: str | None = getattr(options, "model", None)
    if model is None and getattr(options, "asks", False):
        from engine.cli.suggestions import chosen  # imports huggingface_hub

        model = options.model = chosen()
    loading: dict[str, Any] = {**_loading(options), **more}
    return Engine.load(None if model == BUILTIN else model, **loading)


def _loading(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of loading."""
    return {
        "n_ctx": options.ctx,
        "n_gpu_layers": options.gpu_layers,
        "chat_template": options.chat_template,
        "family": _family(options.family),
        "seed": options.seed,
        "preflight": options.preflight,
        "response_template": options.response_template,
        "adapters": _adapters(options),
        **_projector(options),
        **({} if options.threads is None else {"n_threads": options.threads}),
        **({} if options.states is None else {"states": StateStore(path=options.states, disk=_STATES)}),
    }


def _projector(options: argparse.Namespace) -> dict[str, str]:
    """Returns the projector to load; who shows a picture wants one."""
    if options.projector is None and getattr(options, "image", ()) and getattr(options, "model", None) is not None:
        return {"projector": "auto"}
    return {} if options.projector is None else {"projector": options.projector}


def _adapters(options: argparse.Namespace) -> dict[str, str]:
    """Returns the adapters' files by name; without a name, a file is its own."""
    files: list[str] = options.adapter
    return {name: file or name for name, _, file in (each.partition("=") for each in files)}


def _family(named: str | None) -> str | Families | None:
    """Returns a family's name, or the families of a file added to the built-in ones."""
    if named is None or not named.endswith(".toml"):
        return named
    return builtin_families().extended(Families.load(named))


def turn_options(options: argparse.Namespace) -> TurnOptions:
    """Returns the options of a turn."""
    used: TurnOptions = {"adapters": list(_adapters(options))} if options.adapter else {}
    return {
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "reasoning": _reasoning(options),
        **used,
    }


def _reasoning(options: argparse.Namespace) -> Reasoning | None:
    return None if options.reasoning is None else REASONING[options.reasoning]


def _system(options: argparse.Namespace) -> list[Message]:
    return [] if options.system is None else [Message(role="system", content=options.system)]


def _user(text: str, images: Iterable[Image] = ()) -> Message:
    return Message.model_validate({"role": "user", "content": [*images, text]})


def greeting(llm: Engine) -> str:
    """Returns the first line of a conversation at a prompt."""
    return f"{model_name(llm)} ({llm.family.title}). Ctrl-C stops an answer, Ctrl-D ends, /help lists the commands."
