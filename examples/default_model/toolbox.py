"""Tools: invented ones that no model has seen, and the requests that name them.

A request must name what it wants. Two tools of one list may share a noun (`read_note`, `delete_note`) only if the
request then says the verb; they never share both.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from values import Spoken, draw
from words import FLAGS, NOUNS, PARAMS, VERBS, WORDS, invented, noun


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter: its JSON schema, the kind of value that it takes, and whether a call must have it."""

    name: str
    schema: dict[str, Any]
    kind: str
    required: bool = True

    @property
    def spoken(self) -> str:
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the model sees it, and what a request calls it."""

    name: str
    topic: str
    verb: str
    description: str
    params: tuple[Param, ...]
    recipe: str = ""
    requests: tuple[str, ...] = field(default=())

    @property
    def keys(self) -> set[str]:
        """What makes two tools hard to tell apart when they share it."""
        return {f"{self.verb} {word}" for word in self.topic.split()} if not self.recipe else {self.recipe}


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a request asks for."""

    tool: Tool
    arguments: dict[str, Any]


def make_param(rng: random.Random, required: bool) -> Param:
    """A parameter of any type; mostly strings and numbers, as tools have."""
    roll = rng.random()
    if roll < 0.07:
        return Param(rng.choice(FLAGS), {"type": "boolean"}, "flag", required)
    name = rng.choice(list(PARAMS)) if rng.random() < 0.75 else invented(rng)
    if rng.random() < 0.08:
        name = f"{name}_{rng.choice(('id', 'name', 'type', 'key', 'to', 'from'))}"
    kind = PARAMS.get(name, "any")
    if roll < 0.15:
        choices = {rng.choice(WORDS) if rng.random() < 0.7 else invented(rng) for _ in range(rng.randint(2, 4))}
        return Param(name, {"type": "string", "enum": sorted(choices)}, "enum", required)
    if roll < 0.20:
        item = {"type": rng.choice(("string", "string", "integer"))}
        return Param(name if name.endswith("s") else name + "s", {"type": "array", "items": item}, "list", required)
    if roll < 0.23:
        inner = {rng.choice("xyz") if rng.random() < 0.4 else rng.choice(list(PARAMS)) for _ in range(2)}
        fields = {key: {"type": rng.choice(("integer", "string"))} for key in sorted(inner)}
        schema = {"type": "object", "properties": fields, "required": list(fields)}
        return Param(name, schema, "object", required)
    if kind in ("int", "small") or (kind == "any" and rng.random() < 0.2):
        return Param(name, {"type": "integer"}, "int", required)
    if kind == "number":
        return Param(name, {"type": rng.choice(("number", "number", "integer"))}, "number", required)
    return Param(name, {"type": "string"}, kind, required)


def fix_number(param: Param) -> Param:
    """An integer schema takes no decimals."""
    return Param(param.name, param.schema, "int", param.required) if param.schema.get("type") == "integer" else param


def make_params(rng: random.Random, topic: str) -> tuple[Param, ...]:
    """No to four parameters of different names; the first is required."""
    found: dict[str, Param] = {}
    for place in range(rng.choices((0, 1, 2, 3, 4), (0.05, 0.42, 0.33, 0.15, 0.05))[0]):
        param = fix_number(make_param(rng, required=place == 0 or rng.random() < 0.7))
        taken = {word for name in found for word in name.split("_")} | set(topic.split())
        if not taken & set(param.name.split("_")) and param.name.rstrip("s") not in taken:
            found[param.name] = param
    return tuple(found.values())


def make_tool(rng: random.Random, held_out: bool, sibling: Tool | None = None) -> Tool:
    """An invented tool; with a sibling one of the same noun and another verb."""
    verb = rng.choice([verb for verb in VERBS if sibling is None or verb != sibling.verb])
    topic = sibling.topic if sibling else noun(rng, held_out)
    if sibling is None and rng.random() < 0.12:
        second = rng.choice(NOUNS)
        topic = f"{topic} {second}" if second != topic else topic
    word = topic.replace(" ", "_")
    style = rng.random()
    described = f"{verb.capitalize()} the {topic}"
    if sibling or style < 0.62:
        name = f"{verb}_{word}"
    elif style < 0.68:
        name = verb + "".join(part.capitalize() for part in topic.split())
    elif style < 0.84:
        name, verb = word, "get"
    elif style < 0.93:
        name = f"{word}_{verb}"
    else:  # the name says nothing, the description does
        name = f"{invented(rng)}_{invented(rng, 1)}"
        return Tool(name, topic, verb, described + rng.choice(("", ".")), make_params(rng, topic))
    params = make_params(rng, topic)
    key = params[0].spoken if params else "id"
    forms = (
        described,
        f"{verb.capitalize()} {topic} by {key}",
        f"Returns the {topic}",
        f"{topic.capitalize()} tool",
        "",
    )
    description = rng.choices(forms, (0.4, 0.2, 0.15, 0.15, 0.1))[0] + rng.choice(("", "."))
    return Tool(name, topic, verb, description if description != "." else "", params)


def named_request(rng: random.Random, tool: Tool, held_out: bool, verb_needed: bool) -> tuple[str, dict[str, Any]]:
    """A request for an invented tool, and the arguments that it asks for."""
    said: dict[str, Spoken] = {
        param.name: draw(rng, param.kind, param.schema, held_out)
        for param in tool.params
        if param.required or rng.random() < 0.4
    }
    arguments = {name: spoken.value for name, spoken in said.items()}
    topic, verb = tool.topic, tool.verb
    if not said:
        plain = [f"{verb.capitalize()} the {topic}.", f"Use {tool.name}.", f"Please {verb} the {topic}"]
        if not verb_needed:
            plain += [f"What is the {topic}?", f"Show me the {topic}, please.", f"{topic.capitalize()}?"]
        return rng.choice(plain), arguments
    first = next(iter(said))
    short = next(param.kind for param in tool.params if param.name == first) not in ("flag", "object", "list", "enum")
    if short and rng.random() < 0.6:
        return _running_request(rng, tool, said, verb_needed), arguments
    return _listed_request(rng, tool, said, verb_needed), arguments


def _running_request(rng: random.Random, tool: Tool, said: dict[str, Spoken], verb_needed: bool) -> str:
    """`What is the tide in Oslo with unit metric?`: the first value without its key, the others with theirs."""
    first, *others = said
    topic, verb, value = tool.topic, tool.verb, said[first].text
    place = rng.choice(("in", "for", "of", "at", "on", "with", "about", "to", "from", "by"))
    heads = [
        f"{verb.capitalize()} the {topic} {place} {value}",
        f"Please {verb} the {topic} {place} {value}",
        f"Can you {verb} the {topic} {place} {value}",
        f"{verb} {topic} {value}",
        f"I want to {verb} the {topic} {place} {value}",
    ]
    if not verb_needed:
        heads += [
            f"What is the {topic} {place} {value}",
            f"What's the {topic} {place} {value}",
            f"Tell me the {topic} {place} {value}",
            f"I need the {topic} {place} {value}",
            f"How is the {topic} {place} {value}",
            f"{topic.capitalize()} {place} {value}",
            f"Could you tell me the {topic} {place} {value}",
        ]
    text = rng.choice(heads)
    for name in others:
        key = name.replace("_", " ")
        text += rng.choice(
            (f" with {key} {said[name].text}", f", {key} {said[name].text}", f" and {key} {said[name].text}")
        )
    if value[-1:] in "\"'0123456789" and not others and rng.random() < 0.2:
        text += rng.choice((" right now", " please", ", please", " for me", " today"))
    return text + rng.choice(("?", ".", "", "?", "!"))


def _listed_request(rng: random.Random, tool: Tool, said: dict[str, Spoken], verb_needed: bool) -> str:
    """`Send parcel: id=A-17, weight=3`: every value with its key."""
    topic, verb = tool.topic, tool.verb
    heads = [f"{verb.capitalize()} the {topic}", f"Use {tool.name}", f"Please {verb} the {topic}", f"Call {tool.name}"]
    if not verb_needed:
        heads += [topic.capitalize(), f"I need the {topic}"]
    names = list(said)
    if rng.random() < 0.3:
        rng.shuffle(names)
    head, style = rng.choice(heads), rng.random()
    pairs = [(name.replace("_", " "), said[name].text) for name in names]
    if style < 0.45:
        return f"{head} with {' and '.join(f'{key} {text}' for key, text in pairs)}{rng.choice(('', '.'))}"
    if style < 0.7:
        return f"{head}: {', '.join(f'{name}={said[name].text}' for name in names)}"
    return f"{head}, {', '.join(f'{key}: {text}' for key, text in pairs)}"
