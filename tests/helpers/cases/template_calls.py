"""Calls as the families' own templates write them, held to the grammar of the same tools: are they allowed, do they
wake it, are they read back?"""

import json
import os
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from engine import ChatTemplate
from engine.formats.check.roundtrip import Outcome, turn
from engine.formats.families import Format
from engine.formats.grammar.demand import Demand, constraint_of
from engine.formats.template.prompt import prefix_of
from engine.runtime.guidance import matcher
from engine.runtime.guidance.guide import Guide
from engine.runtime.guidance.matcher import Compiler, Marks, Matcher
from engine.testing.scripted import ByteVocab
from engine.tools import as_tools
from engine.types.events import Event, fold
from engine.types.parts import ToolCall
from engine.types.prompt import Piece, Prompt
from engine.types.tools import Tool, ToolChoice
from engine.types.turn_settings import TurnSettings

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
OWN = sorted((Path(__file__).parents[3] / "templates").glob("*.jinja"))
SOURCES = [*OWN, *(sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else [])]
TEXTS = (
    "x",
    "two words",
    'a "quoted" one',
    "it's",
    "line\nline",
    "größe 漢字 🙂",
    "07",
    "true",
    "a\\b",
    "<b> & </b>",
    "-",
)
NAMES = ("city", "a_b", "withCamel", "x1", "größe", "from", "max-items")
Case = tuple[Tool, dict[str, Any]]
UNFAITHFUL: dict[str, tuple[str, Callable[[Case], bool]]] = {
    "LFM2.5-8B-A1B": ("does not escape backslashes and quotes", lambda case: bool({"\\", "'"} & set(_texts(case[1])))),
    "MiniMax-M3": (
        "leaves out null; an undeclared member's text is like a value",
        lambda case: any(word in json.dumps(case[1]) for word in ("null", '"true"')),
    ),
    "Reka-Edge": ("escapes names, which a grammar knows as they are", lambda case: not _keys(case[1]).isascii()),
    "google-gemma-4-31B-it": ("writes null as None, a bare text", lambda case: "null" in json.dumps(case[1])),
    "google-gemma-4-31B-it-interleaved": ("the same", lambda case: "null" in json.dumps(case[1])),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("leaves out the section's end before results", lambda _: True),
}
"""Templates that do not write some values, or not so that they can be told from others."""
ENDS = {"CohereForAI-c4ai-command-r-plus-tool_use": "\n<|START_OF_TURN_TOKEN|>"}
"""What follows a turn where its end is no stop."""


def drawn(rng: random.Random) -> Case:
    """A tool and arguments that fit it: any types, optional parameters that are missing, or no parameters at all."""
    names = rng.sample(NAMES, rng.randrange(5))
    schemas: dict[str, dict[str, Any]] = {}
    values: dict[str, Any] = {}
    for name in names:
        schemas[name], values[name] = _valued(rng, 2)
    required = [name for name in names if rng.random() < 0.6]
    given = {name: values[name] for name in names if name in required or rng.random() < 0.5}
    parameters = {"type": "object", "properties": schemas, "required": required}
    name = "".join(rng.choice(string.ascii_lowercase + "_") for _ in range(rng.randrange(3, 12))) + "7"
    function = {"name": name, "description": "Does it.", "parameters": parameters}
    return as_tools([{"type": "function", "function": function}])[0], given


def _valued(rng: random.Random, depth: int) -> tuple[dict[str, Any], Any]:
    """A schema, and a value that fits it."""
    kinds = ["string", "string", "integer", "number", "boolean", "null", "enum", "nullable"]
    kind = rng.choice([*kinds, *(["array", "object", "free"] if depth else [])])
    match kind:
        case "string":
            return {"type": "string"}, rng.choice(TEXTS)
        case "integer":
            return {"type": "integer"}, rng.randrange(-9, 1000)
        case "number":
            return {"type": "number"}, rng.choice([0.5, -1.25, 3])
        case "boolean":
            return {"type": "boolean"}, rng.random() < 0.5
        case "null":
            return {"type": "null"}, None
        case "enum":
            return {"enum": ["north", "south west"]}, rng.choice(["north", "south west"])
        case "nullable":
            return {"type": ["integer", "null"]}, rng.choice([None, 4])
        case "array":
            schema, value = _valued(rng, 0)
            return {"type": "array", "items": schema}, [value] * rng.randrange(3)
        case "free":
            return {"type": "object"}, {rng.choice(NAMES[:4]): _valued(rng, 0)[1] for _ in range(rng.randrange(3))}
        case _:
            members = {name: _valued(rng, depth - 1) for name in rng.sample(NAMES[:4], rng.randrange(1, 4))}
            properties = {name: schema for name, (schema, _) in members.items()}
            schema = {"type": "object", "properties": properties, "required": list(properties)}
            return schema, {name: value for name, (_, value) in members.items()}


def _texts(value: object) -> Iterator[str]:
    """The characters of all strings in a JSON value."""
    match value:
        case str():
            yield from value
        case dict():
            yield from _texts(list(cast("dict[str, object]", value).values()))
        case list():
            for item in cast("list[object]", value):
                yield from _texts(item)
        case _:
            pass


def _keys(value: object) -> str:
    """The names of all members in a JSON value."""
    if isinstance(value, list):
        return "".join(map(_keys, cast("list[object]", value)))
    if not isinstance(value, dict):
        return ""
    return "".join(name + _keys(item) for name, item in cast("dict[str, object]", value).items())


@cache
def template_of(path: Path) -> ChatTemplate:
    return ChatTemplate(path.read_text(encoding="utf-8"), "<s>", "</s>", trust_template=True)


def writers() -> Iterator[Path]:
    """The templates that write calls in a syntax of their own."""
    return filter(writes, SOURCES)


def writes(path: Path) -> bool:
    """Whether a template writes calls in a syntax of its own."""
    template = template_of(path)
    return bool((template.format.tools or template.format.channels) and template.capabilities.calls)


def held(path: Path, case: Case, choice: ToolChoice) -> str | None:
    """What is wrong with a template's own call under the grammar of its tool; None if it is allowed, wakes the grammar
    and is read back; "" if the template does not write such a call faithfully."""
    template, (tool, given) = template_of(path), case
    if path.stem in UNFAITHFUL and UNFAITHFUL[path.stem][1](case):
        return ""
    call = ToolCall(id="abcdefgh1", name=tool.name, arguments=json.dumps(given, ensure_ascii=False))
    outcome = Outcome(template, turn("", call), [tool])
    output = outcome.turn(template.format)
    if path.stem in ENDS:
        output = output.partition(ENDS[path.stem])[0]
    assert tool.name in output, f"{path.stem} does not write {call}"
    prompt = outcome.kept
    if prompt is None:
        assert outcome.asked is not None
        start = Piece(template.format.start, special=True)
        prompt = replace(outcome.asked, prefix=prefix_of([start], 0, template.format.control))
        output = output.removeprefix(template.format.start)
    return refused(template, prompt, output, case, choice)


@cache
def _compiler(control: tuple[str, ...]) -> tuple[ByteVocab, Compiler]:
    vocab = ByteVocab(control, end=["<|the_end|>"])
    return vocab, Compiler(vocab)


def refused(template: ChatTemplate, prompt: Prompt, output: str, case: Case, choice: ToolChoice) -> str | None:
    """What becomes of an output under the grammar of the tool; None if it is allowed, woke it and was read back."""
    tool, given = case
    format_ = template.format
    vocab, compiler = _compiler(format_.control)
    demand = Demand(TurnSettings(tool_choice=choice, strict_tools=True), [tool])
    constraint = constraint_of(demand, format_, prompt.prefix, Marks(vocab).cut, matcher)
    assert constraint is not None
    parser = template.parser(prompt, [tool], choice, control_tokens=vocab.control_tokens)
    guide = Guide(constraint, compiler, parser)
    events: list[Event] = []
    written = b""
    for token in vocab.tokenize(output, special=True):
        if guide.matcher is not None and not guide.matcher.consume(token):
            return f"not allowed in {output!r}: {vocab.text([token])!r} after {written.decode(errors='replace')!r}"
        special = vocab.is_special(token)
        written += vocab.token_bytes(token)
        text = vocab.text([token]) if special else _character(written)
        events += parser.feed(text, special)
        guide.parsed(token, text, special=special)
    if guide.woke is None and given:  # a call without arguments may be over at once
        return f"not woken by {output!r}"
    if choice != "auto" and not _completes(guide.matcher, format_, vocab):
        return f"not complete: {output!r}"
    read = fold([*events, *parser.close()])
    calls = [(each.name, each.error or json.loads(each.arguments)) for each in read.tool_calls]
    return None if calls == [(tool.name, given)] and not read.content.strip() else f"read as {calls} of {output!r}"


def _completes(position: Matcher | None, format_: Format, vocab: ByteVocab) -> bool:
    """Whether the turn may end here: a stop may be a part of the calls."""
    if position is None or position.accepts:
        return position is not None
    stopped = [position.copy() for _ in format_.stops]
    taken = [
        each.accepts
        for each, stop in zip(stopped, format_.stops, strict=True)
        if all(map(each.consume, vocab.tokenize(stop, special=True)))
    ]
    return any(taken)


def _character(written: bytes) -> str:
    """The character that the last byte completes; "" if it completes none."""
    for size in range(1, 5):
        try:
            return written[-size:].decode()
        except UnicodeDecodeError:
            continue
    return ""
