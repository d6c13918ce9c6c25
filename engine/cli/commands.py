"""The commands: chat, run, inspect, explain, doctor."""

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack, cast

from pydantic_core import to_json

from engine.api.engine import Engine
from engine.api.engines import Engines
from engine.api.loading import local
from engine.cli.chat import Chat, model_name
from engine.cli.confirm import can_ask
from engine.cli.doctor import diagnose
from engine.cli.file_facts import FileFacts, file_facts
from engine.cli.named import BUILTIN
from engine.cli.screen import Screen, json_line
from engine.cli.sessions import last, read, session
from engine.cli.settings import REASONING, loading_settings, turn_settings
from engine.cli.standard import complain, is_piped, loading
from engine.cli.tool_files import mcp_servers, named_type, tools_of
from engine.cli.wording import spoken
from engine.formats.families import Families, builtin_families
from engine.runtime.stream.stream import Stream
from engine.support import paths
from engine.support._data import builtin_model
from engine.support.display import visible_json
from engine.support.errors import ContextOverflowError, EngineError, MissingTemplateError, ModelLoadError, RequestError
from engine.support.packaged import PACKAGED
from engine.support.report import aligned, width_of
from engine.tools import Toolbox
from engine.turns.options import AUTO, LoadOptions, RawOptions, TurnOptions
from engine.types.answer_formats import JsonSchema
from engine.types.events import ContentDelta
from engine.types.media import Image
from engine.types.messages import Message
from engine.types.sampling import Reasoning

_TRANSCRIPT = (
    "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""How a base model is asked in a chat; it would write the next question, too."""
_NEXT_QUESTION = "\nUser:"
_BASE = "A base model, which continues a transcript here; `llama-engine run --raw` continues any text.\n"
_CUT_OFF = (
    "the answer was cut off inside its reasoning; allow more tokens (--max-tokens, --ctx), or less reasoning "
    "(--reasoning off, where the model can)."
)


def run(options: argparse.Namespace) -> int:
    """Answer one prompt. Piped, only the answer is printed; on a terminal the reasoning too."""
    text = _asked(options)
    screen = Screen(sys.stdout, markdown=not (options.plain or options.json or options.schema or options.raw))
    with load(options) as llm, _answer(llm, options, text) as stream, contextlib.closing(screen):
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


def _asked(options: argparse.Namespace) -> str:
    """Returns the whole prompt: the text, then each file, then the input from a pipe or a redirected file. An only
    argument that names a model is the model, where the prompt comes from elsewhere."""
    text: str | None = options.prompt
    files: list[str] = options.file
    piped = "" if "-" in (text, *files) else (piped_text() or "")
    piped = piped.removesuffix("\n") if options.raw else piped.strip()
    if options.model is None and text is not None and _names_a_model(text):
        if not (piped or files):
            raise RequestError(
                f"{text} is in the place of the prompt; add one: "
                f'llama-engine run {text} "What is the capital of France?"'
            )
        options.model, text = text, None
    if text is None and not (piped or files):
        raise RequestError("There is no prompt, and nothing came from the pipe; write one: -p PROMPT.")
    given = [] if text is None else [read_text("-") if text == "-" else text]
    return "\n\n".join([*given, *map(read_text, files), *([piped] if piped else [])])


def _answer(llm: Engine, options: argparse.Namespace, text: str) -> Stream[Any]:
    """Start the answer to a prompt, or with --raw its continuation. Raises RequestError for options that --raw cannot
    honour."""
    turn = turn_options(options)
    if options.schema is not None:
        schema = schema_of(options.schema)
        turn["response_format"] = JsonSchema(schema) if isinstance(schema, Mapping | bool) else schema
    if not options.raw:
        return llm.stream([*_system(options), _user(text, map(Image, options.image))], **turn)
    for name in ("system", "reasoning", "image"):
        if getattr(options, name):
            raise RequestError(f"--raw continues the text as it is, so --{name} says nothing; leave one of them out.")
    raw: RawOptions = {name: value for name, value in turn.items() if name != "reasoning"}  # pyright: ignore[reportAssignmentType]
    return llm.stream_complete(text, **raw)


def _names_a_model(text: str) -> bool:
    """Whether a text is no prompt but a model: a file, a short name, or one on the Hub with a quantisation. Raises
    ModelLoadError for a name of another program."""
    if text.endswith(".gguf") or len(text.split()) != 1:
        return text.endswith(".gguf")
    if text in (BUILTIN, AUTO) or text in PACKAGED or _is_gguf(text):
        return True
    from engine.hub import elsewhere  # imports huggingface_hub
    from engine.hub.names import parse

    if text.startswith(elsewhere.PREFIXES):
        return True
    name = parse(text)
    return name is not None and bool(name.quantization or "gguf" in text.lower())


def _is_gguf(text: str) -> bool:
    """Whether a text is the path of a GGUF file."""
    try:
        with Path(text).expanduser().open("rb") as file:
            return file.read(4) == b"GGUF"
    except (OSError, ValueError, RuntimeError):  # no file, no path, no home directory
        return False


def piped_text() -> str | None:
    """Returns standard input if it is a pipe or a file; None if it is a terminal, a device or a closed descriptor."""
    return read_text("-") if is_piped() else None


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
        with loading(", ".join(others)) if others else contextlib.nullcontext():
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
        talk.run(lambda: (_BASE if hasattr(options, "stop") else "") + greeting(llm))
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
        with _chatting(options) as llm:
            yield llm, {}
        return
    short = [Path(each).stem if each.endswith(".gguf") else each for each in named]
    names = short if len(set(short)) == len(short) else named
    given = _loading(options)
    files = [str(builtin_model()) if each == BUILTIN else each for each in named]
    with Engines({name: {"model": each, **given} for name, each in zip(names, files, strict=True)}) as engines:
        yield engines[names[0]], engines


def _chatting(options: argparse.Namespace) -> Engine:
    """Load the model of a chat. A base model, which has no chat template, continues a transcript."""
    llm = load(options)
    try:
        _ = llm.template
    except MissingTemplateError:
        llm.close()
        options.chat_template, options.stop = _TRANSCRIPT, _NEXT_QUESTION
        return load(options)
    return llm


def _lasting(model: str) -> str:
    """Returns a model's name as it is found from any folder."""
    path = Path(model).expanduser()
    return str(path.absolute()) if path.is_file() else model


def inspect(options: argparse.Namespace) -> int:
    """Show what the engine understood of a model; of any other GGUF, what its header says and why it is not loaded."""
    try:
        with load(options) as llm:
            found = llm.inspect()
    except (ModelLoadError, ContextOverflowError) as error:
        found = _header_facts(options, error)
    screen = Screen(sys.stdout)
    if options.json:
        screen.line(visible_json(to_json(asdict(found)).decode()))
        return 0
    text = found.text()
    column = re.match(r".*?\s{2,}", text)  # where the values begin
    screen.prose(text, hang=column.end() if column else 0)
    return 0


def _header_facts(options: argparse.Namespace, error: EngineError) -> FileFacts:
    """Returns what the header of a file says that cannot be loaded. Raises the error if it is no GGUF that is here."""
    model: str | None = options.model
    path = None if model is None or model == BUILTIN else local(model)
    if path is None or not paths.is_file(path):
        raise error
    try:
        return file_facts(path, spoken(str(error)))
    except ModelLoadError:
        raise error from None


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
        raise RequestError(f"{name} is not UTF-8 text: {error}. Save it as UTF-8.") from error


def doctor(_: argparse.Namespace) -> int:
    """Show the facts of this installation; returns 1 if llama.cpp cannot be used."""
    report, screen = diagnose(), Screen(sys.stdout)
    rows = report.rows()
    for row, line in zip(rows, aligned(rows), strict=True):
        if row[0] == "rebuild":  # a command to copy, in one piece
            screen.line(line)
        else:
            screen.prose(line, hang=width_of(rows))
    return 1 if report.library is None or report.verdict.outcome == "faulty" else 0


def load(options: argparse.Namespace, **more: Unpack[LoadOptions]) -> Engine:
    """Load the engine that the options name. Without a name it is the built-in model, but where `asks` says so, the
    user is asked."""
    model: str | None = getattr(options, "model", None)
    if model is None and getattr(options, "asks", False):
        from engine.cli.suggestions import chosen  # imports huggingface_hub

        model = options.model = chosen()
    given: dict[str, Any] = {**_loading(options), **more}
    with loading(model or BUILTIN):
        return Engine.load(None if model == BUILTIN else model, **given)


def _loading(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of loading; a command has some of them."""
    given = vars(options)
    return {
        "n_ctx": given.get("ctx"),
        "n_gpu_layers": given.get("gpu_layers"),
        "chat_template": given.get("chat_template"),
        "family": _family(given.get("family")),
        "adapters": _adapters(options),
        **_projector(options),
        **loading_settings(given.get("given", ()), turns="temperature" in given),
    }


def _projector(options: argparse.Namespace) -> dict[str, str]:
    """Returns the projector to load; who shows a picture wants one."""
    named: str | None = getattr(options, "projector", None)
    if named is None and getattr(options, "image", ()) and getattr(options, "model", None) is not None:
        return {"projector": "auto"}
    return {} if named is None else {"projector": named}


def _adapters(options: argparse.Namespace) -> dict[str, str]:
    """Returns the adapters' files by name; without a name, a file is its own."""
    files: list[str] = getattr(options, "adapter", [])
    return {name: file or name for name, _, file in (each.partition("=") for each in files)}


def _family(named: str | None) -> str | Families | None:
    """Returns a family's name, or the families of a file added to the built-in ones."""
    if named is None or not named.endswith(".toml"):
        return named
    return builtin_families().extended(Families.load(named))


def turn_options(options: argparse.Namespace) -> TurnOptions:
    """Returns the options of a turn."""
    used: TurnOptions = {"adapters": list(_adapters(options))} if options.adapter else {}
    if stop := getattr(options, "stop", ""):
        used["stop"] = stop
    return {
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "reasoning": _reasoning(options),
        **used,
        **turn_settings(options.given),
    }


def _reasoning(options: argparse.Namespace) -> Reasoning | None:
    return None if options.reasoning is None else REASONING[options.reasoning]


def _system(options: argparse.Namespace) -> list[Message]:
    return [] if options.system is None else [Message(role="system", content=options.system)]


def _user(text: str, images: Iterable[Image] = ()) -> Message:
    return Message.model_validate({"role": "user", "content": [*images, text]})


def greeting(llm: Engine) -> str:
    """Returns the first line of a conversation at a prompt."""
    title = f"{model_name(llm)} ({llm.family.title})"
    return f"{title}. Ctrl-C stops an answer, Ctrl-D ends, /help lists the commands."
