"""Argument values: what goes into the call, beside how a person would say it.

A value is drawn for a *kind* ("city", "date", "flag" ..). `text` is how the request says it; `value` is the JSON value
that the call must carry. They differ where people and JSON differ: `yes` and `true`, `red and blue` and a list.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from words import CITIES, CURRENCIES, HELD_CITIES, LANGUAGES, PEOPLE, UNITS, WORDS, invented


@dataclass(frozen=True, slots=True)
class Spoken:
    """One argument: the JSON value, and the words that name it in a request."""

    value: Any
    text: str


def to_json(value: Any) -> str:
    """JSON as the chat templates write it."""
    return json.dumps(value, ensure_ascii=False)


def _city(rng: random.Random, held_out: bool) -> str:
    if rng.random() < 0.3:
        return invented(rng).capitalize()
    return rng.choice(HELD_CITIES if held_out and rng.random() < 0.7 else CITIES)


def _name(rng: random.Random, held_out: bool) -> str:
    first = rng.choice(PEOPLE) if rng.random() < 0.4 else invented(rng).capitalize()
    return first if rng.random() < 0.6 else f"{first} {invented(rng).capitalize()}"


def _phrase(rng: random.Random, held_out: bool) -> str:
    words = [
        invented(rng) if rng.random() < 0.15 else rng.choice(WORDS) for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 5, 6)))
    ]
    text = " ".join(words)
    return text[0].upper() + text[1:] if rng.random() < 0.4 else text


def _code(rng: random.Random, held_out: bool) -> str:
    form = rng.random()
    if form < 0.6:
        letters = "".join(rng.choice("ABCDEFGHKLMNPRSTXZ") for _ in range(rng.randint(1, 3)))
        return letters + rng.choice(("-", "", "_")) + str(rng.randint(10, 99999))
    if form < 0.8:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(rng.randint(4, 9)))
    return f"{invented(rng)}{rng.choice('-_')}{rng.randint(1, 999)}"


def _path(rng: random.Random, held_out: bool) -> str:
    def part() -> str:
        return rng.choice(WORDS) if rng.random() < 0.5 else invented(rng)

    file = part() + rng.choice((".txt", ".py", ".md", ".json", ".csv", ".pdf"))
    return file if rng.random() < 0.5 else "/" + "/".join(part() for _ in range(rng.randint(1, 2))) + "/" + file


def _expression(rng: random.Random, held_out: bool) -> str:
    gap = rng.choice(("", " ", " "))
    parts = [str(rng.randint(0, 10 ** rng.randint(1, 4)))]
    for _ in range(rng.choice((1, 1, 1, 2))):
        parts += [rng.choice("+-*/"), str(rng.randint(0, 10 ** rng.randint(1, 4)))]
    return gap.join(parts)


def _date(rng: random.Random, held_out: bool) -> str:
    year, month, day = rng.randint(1990, 2035), rng.randint(1, 12), rng.randint(1, 28)
    return (
        f"{year}-{month:02}-{day:02}" if rng.random() < 0.8 else rng.choice(("today", "tomorrow", "Monday", "Friday"))
    )


def _tail(rng: random.Random) -> str:
    return rng.choice((".com", ".org", ".net", ".io"))


def _user(rng: random.Random) -> str:
    return rng.choice(PEOPLE).lower() if rng.random() < 0.4 else invented(rng)


_Text = Callable[[random.Random, bool], str]
TEXTS: dict[str, _Text] = {
    "city": _city,
    "name": _name,
    "phrase": _phrase,
    "code": _code,
    "path": _path,
    "date": _date,
    "expression": _expression,
    "word": lambda rng, _: rng.choice(WORDS) if rng.random() < 0.6 else invented(rng),
    "email": lambda rng, _: f"{_user(rng)}@{rng.choice(('example', invented(rng)))}{_tail(rng)}",
    "url": lambda rng, _: f"https://{invented(rng)}{_tail(rng)}" + (f"/{invented(rng)}" if rng.random() < 0.6 else ""),
    "time": lambda rng, _: f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
    "upper": lambda rng, _: "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(2, 5))),
    "digits": lambda rng, _: str(rng.randint(100, 10 ** rng.randint(4, 8))),
    "snake": lambda rng, _: f"{invented(rng)}_{invented(rng)}",
    "language": lambda rng, _: rng.choice(LANGUAGES) if rng.random() < 0.8 else invented(rng).capitalize(),
    "currency": lambda rng, _: rng.choice(CURRENCIES),
    "unit": lambda rng, _: rng.choice(UNITS),
    "ticker": lambda rng, _: "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(3, 4))),
    "letter": lambda rng, _: rng.choice("abcdefghijklmnopqrstuvwxyz"),
    "duration": lambda rng, _: f"{rng.randint(1, 90)} {rng.choice(('minutes', 'seconds', 'hours'))}",
}
_ANY = (
    "city",
    "name",
    "phrase",
    "code",
    "path",
    "date",
    "word",
    "email",
    "url",
    "time",
    "upper",
    "snake",
    "name",
    "city",
)


def text_value(rng: random.Random, kind: str, held_out: bool) -> str:
    """A string of a kind; `any` takes whatever comes."""
    return TEXTS[rng.choice(_ANY) if kind == "any" else kind](rng, held_out)


def integer(rng: random.Random) -> int:
    number = rng.randint(0, 10 ** rng.randint(1, 5))
    return -number if rng.random() < 0.05 else number


def decimal(rng: random.Random) -> float:
    return round(rng.uniform(0, 10 ** rng.randint(1, 4)), rng.randint(1, 2))


def _joined(rng: random.Random, parts: list[str], raw: str) -> str:
    if rng.random() < 0.3:
        return raw
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]


def _fields(rng: random.Random, schema: dict[str, Any], held_out: bool) -> Spoken:
    value: dict[str, Any] = {}
    for name, field in schema["properties"].items():
        value[name] = integer(rng) if field["type"] == "integer" else text_value(rng, "word", held_out)
    said = ", ".join(f"{name} {item}" for name, item in value.items())
    return Spoken(value, to_json(value) if rng.random() < 0.4 else said)


def draw(rng: random.Random, kind: str, schema: dict[str, Any], held_out: bool) -> Spoken:
    """A value of `kind` that fits `schema`, and its words."""
    if "enum" in schema:
        value = rng.choice(schema["enum"])
        return Spoken(value, str(value))
    if kind == "flag":
        flag = rng.random() < 0.5
        return Spoken(flag, rng.choice(("true", "yes", "on") if flag else ("false", "no", "off")))
    if kind in ("int", "small", "number"):
        number = rng.randint(1, 60) if kind == "small" else integer(rng)
        value = decimal(rng) if kind == "number" and rng.random() < 0.5 else number
        return Spoken(value, to_json(value))
    if kind == "list":
        numbers = schema["items"]["type"] != "string"
        count = rng.randint(1, 4)
        items: list[Any] = [integer(rng) if numbers else text_value(rng, "word", held_out) for _ in range(count)]
        return Spoken(items, _joined(rng, [str(item) for item in items], to_json(items)))
    if kind == "object":
        return _fields(rng, schema, held_out)
    text = text_value(rng, kind, held_out)
    style = rng.random()
    if kind in ("expression", "duration", "currency", "unit", "language") or style < 0.75:
        return Spoken(text, text)
    return Spoken(text, f'"{text}"' if style < 0.92 else f"'{text}'")
