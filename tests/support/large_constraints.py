"""Constraints of unusual size or make: forty that are made to do harm, forty that are only large, and schemas of the
shapes that public interfaces have."""

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from engine.types import GBNF, Choice, JsonSchema, Lark, Regex

Wanted: TypeAlias = JsonSchema | Choice | Regex | Lark | GBNF
STRING: dict[str, Any] = {"type": "string"}
WORDS = [
    *("order", "item", "price", "name", "street", "city", "zip", "amount", "status"),
    *("note", "date", "count", "total", "unit", "owner", "email", "phone", "tag"),
]


def hostile() -> dict[str, Wanted]:
    """Expensive to compile, expensive at a later token, dead ends, and too much of everything."""
    found: dict[str, Wanted] = {}
    for size in (8, 11, 14, 20):  # intersections: states multiply
        both = f"/(.*a.{{{size}}}b?)/ & /(.*b.{{{size - 1}}})/"
        found[f"intersection of {size}"] = Lark(f'start: P A\nP: "x "\nA: {both} & ~/(.*c.{{{size + 1}}})/')
        found[f"intersection of {size}, not at once"] = Lark(f'start: P P A\nP: /[a-z]/ " "\nA: {both}')
    for size in (20, 60, 200):  # the place of a letter counted from the end
        found[f"the {size}th from the end"] = Regex(f"(a|b)*a(a|b){{{size}}}")
        found[f"a pattern of {size} from the end"] = JsonSchema({**STRING, "pattern": f"^(a|b)*a(a|b){{{size}}}$"})
        nested = {"allOf": [{"pattern": f"a.{{{size}}}"}, {"pattern": f"b.{{{size - 1}}}"}, {"pattern": "c.{9}$"}]}
        found[f"patterns of {size} at once"] = JsonSchema({**STRING, **nested})
    for size in (3, 6, 12):  # ambiguity: items of the parser multiply
        same = " | ".join(" ".join(["s"] * count) for count in range(2, size))
        found[f"ambiguous by {size}"] = Lark(f"start: s\ns: {same} | A\nA: /[a-z ]/")
    for size in (50, 100, 200):  # rules that lead to one another in many ways
        rules = "\n".join(f"r{n}: A r{(n + 1) % size} | A | r{(n * 7 + 3) % size}?" for n in range(size))
        found[f"{size} tangled rules"] = Lark(
            f"start: {' '.join(f'(r{n}?)' for n in range(size))}\n{rules}\nA: /[a-z]/"
        )
        found[f"{size} tangled rules of GBNF"] = GBNF(
            "root ::= "
            + " ".join(f"(r{n})?" for n in range(size))
            + "\n"
            + "\n".join(f"r{n} ::= [a-z] r{(n + 1) % size} | [a-z]" for n in range(size))
        )
    for size in (3_000, 30_000):
        found[f"brackets {size} deep"] = Lark("start: " + "(" * size + '"a"' + ")" * size)
        found[f"brackets {size} deep in GBNF"] = GBNF("root ::= " + "(" * size + '"a"' + ")" * size)
        found[f"{size} groups in a pattern"] = Regex("(" * size + "a" + ")" * size)
    for count in (1_000, 5_000):
        found[f"{count} times {count}"] = Regex(f"(([a-z]{{1,{count}}} ){{1,{count}}}x){{1,9}}")
        found[f"{count} optional terminals"] = Lark(
            f"start: {' '.join(f'T{n}?' for n in range(count))}\n"
            + "\n".join(f"T{n}: /[a-z]{{1,{n % 40 + 1}}}/" for n in range(count))
        )
    found["a dead end"] = Lark('start: P A\nP: "x "\nA: /a/ & /b/')
    found["a later dead end"] = Lark("start: P P P A\nP: /[xyz]/\nA: /a+/ & /b+/")
    found["20,000 members"] = JsonSchema({"type": "object", "properties": {f"p{n}": STRING for n in range(20_000)}})
    found["unions of unions"] = JsonSchema({"allOf": [{"anyOf": [{"minimum": n}, {"maximum": n}]} for n in range(24)]})
    assert len(found) == 40, len(found)
    return found


def honest() -> dict[str, Wanted]:
    """Large, and nothing else."""
    found: dict[str, Wanted] = {}
    for count in (100, 300, 1_000, 3_000, 10_000):
        found[f"{count} choices"] = Choice([f"option number {n:05d} abcdef" for n in range(count)])
        found[f"{count} values of an enum"] = JsonSchema(
            {"enum": [f"{WORDS[n % 18]} of customer {n}" for n in range(count)]}
        )
    for count in (50, 200, 500, 1_000, 1_500):
        members = {f"{WORDS[n % 18]}_{n}": {**STRING, "maxLength": 40} for n in range(count)}
        found[f"{count} members"] = JsonSchema({"type": "object", "properties": members})
        found[f"{count} required members"] = JsonSchema(
            {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
        )
    for count in (10, 30, 50, 100, 150):
        kinds = [public_shaped(n, tag=f"kind_{n}") for n in range(count)]
        found[f"{count} kinds of records"] = JsonSchema({"anyOf": kinds})
    for depth in (8, 16, 30):
        inner: dict[str, Any] = {"type": "integer"}
        for _ in range(depth):
            inner = {"type": "object", "properties": {"inner": inner, "note": STRING}, "required": ["inner"]}
        found[f"objects {depth} deep"] = JsonSchema(inner)
    for count in (10, 30, 60, 100):
        defined = {f"d{n}": public_shaped(n) for n in range(count)}
        uses = {f"m{n}": {"$ref": f"#/$defs/d{n}"} for n in range(count)}
        found[f"{count} definitions"] = JsonSchema({"type": "object", "properties": uses, "$defs": defined})
    for count in (20, 50, 100):
        coded = {f"c{n}": {**STRING, "pattern": f"^[A-Z]{{2}}-[0-9]{{{n % 9 + 1}}}$"} for n in range(count)}
        found[f"{count} patterns"] = JsonSchema({"type": "object", "properties": coded, "required": list(coded)})
    found["a calculator"] = Lark('start: term (("+" | "-") term)*\nterm: N | "(" start ")"\nN: /[0-9]{1,9}/')
    found["statements"] = GBNF(
        'root ::= "SELECT " names " FROM " name (" WHERE " test)? ";"\nnames ::= name (", " name)*\n'
        'name ::= [a-z_]+\ntest ::= name " = " [0-9]+ (" AND " test)?'
    )
    found["a rule named start"] = GBNF('root ::= start "."\nstart ::= [a-z]+ (" " start)?')
    found["a date and a time"] = Regex(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})")
    found["a long text"] = Regex(r"[A-Z][a-z ,]{10,2000}\.")
    assert len(found) == 40, len(found)
    return found


def public_shaped(seed: int, tag: str = "") -> dict[str, Any]:
    """A record as interfaces publish them: members of every kind, some required, lists and records in records."""
    rng = random.Random(seed)

    def value(depth: int) -> dict[str, Any]:
        kinds: list[Callable[[], dict[str, Any]]] = [
            lambda: {**STRING, "description": f"The {rng.choice(WORDS)}."},
            lambda: {**STRING, "minLength": 1, "maxLength": rng.choice([20, 64, 255])},
            lambda: {**STRING, "enum": rng.sample(WORDS, rng.randint(2, 8))},
            lambda: {**STRING, "format": rng.choice(["date", "date-time", "email", "uuid", "uri"])},
            lambda: {**STRING, "pattern": rng.choice([r"^[A-Z]{3}$", r"^\d{5}(-\d{4})?$", r"^[a-z0-9-]+$"])},
            lambda: {"type": "integer", "minimum": 0, "maximum": rng.choice([10, 100, 65_535])},
            lambda: {"type": "number", "minimum": 0},
            lambda: {"type": "boolean", "default": False},
            lambda: {"anyOf": [{"type": "null"}, value(depth)]},
        ]
        if depth < 3:
            kinds += [
                lambda: {"type": "array", "items": value(depth + 1), "maxItems": 20},
                lambda: members(depth + 1),
                lambda: {"anyOf": [members(depth + 1), members(depth + 1)]},
            ]
        return rng.choice(kinds)()

    def members(depth: int) -> dict[str, Any]:
        names = rng.sample(WORDS, rng.randint(2, 12 if depth == 0 else 6))
        made: Mapping[str, Any] = {name: value(depth) for name in names}
        return {"type": "object", "properties": made, "required": rng.sample(names, len(names) // 2)}

    whole = members(0)
    if tag:
        whole = {**whole, "properties": {"kind": {"const": tag}, **whole["properties"]}}
        whole["required"] = ["kind", *whole["required"]]
    return whole
