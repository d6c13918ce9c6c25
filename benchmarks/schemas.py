"""Forty JSON Schemas of every kind that callers write, their texts and lists bounded, so that a model that knows
nothing comes to an end."""

from typing import Any

TEXT: dict[str, Any] = {"type": "string", "maxLength": 6}
DIGIT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 9}


def record(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    """An object of these members, all of them required unless said otherwise."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def several(items: dict[str, Any], most: int = 3, **keywords: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most, **keywords}


TREE = record(["v"], v=DIGIT, left={"anyOf": [{"type": "null"}, DIGIT]})

SCHEMAS: list[dict[str, Any]] = [
    record(name=TEXT, age=DIGIT),
    record([], name=TEXT, age=DIGIT),
    record(),
    record(a=record(b=record(c=record(d=DIGIT)))),
    record(rows=several(record(x=DIGIT, y=DIGIT))),
    record(kind={"enum": ["a", "b", "c"]}),
    record(kind={"const": "fixed"}),
    record(mixed={"enum": [1, "one", None, True, 1.5]}),
    record(n={"type": "integer", "minimum": -5, "maximum": 5}),
    record(n={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100}),
    record(n={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50}),
    record(n={"type": "number", "minimum": -1, "maximum": 1}),
    record(b={"type": "boolean"}),
    record(z={"type": "null"}),
    record(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    record(code={"type": "string", "pattern": "^(x|yy|zzz)$"}),
    record(day={"type": "string", "format": "date"}),
    record(id={"type": "string", "format": "uuid"}),
    record(at={"type": "string", "format": "ipv4"}),
    record(t={"type": "string", "minLength": 2, "maxLength": 4}),
    record(list=several(TEXT, 4, minItems=2)),
    record(pair={"type": "array", "prefixItems": [DIGIT, TEXT], "minItems": 2, "maxItems": 2, "items": False}),
    record(either={"anyOf": [DIGIT, TEXT]}),
    record(either={"anyOf": [record(a=DIGIT), record(b=TEXT)]}),
    record(one={"oneOf": [{"type": "integer", "minimum": 0, "maximum": 3}, {"type": "boolean"}]}),
    record(both={"allOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 7}]}),
    record(maybe={"type": ["integer", "null"], "minimum": 0, "maximum": 9}),
    {**record(a={"$ref": "#/$defs/digit"}, b={"$ref": "#/$defs/digit"}), "$defs": {"digit": DIGIT}},
    {
        **record(tree={"$ref": "#/$defs/tree"}),
        "$defs": {
            "tree": record(["v"], v=DIGIT, children=several({"$ref": "#/$defs/leaf"}, 2)),
            "leaf": record(v=DIGIT),
        },
    },
    record(**{"größe": DIGIT, "名前": TEXT, "emoji 🌦": DIGIT}),
    record(**{"with space": DIGIT, 'with "quotes"': DIGIT, "with\\backslash": DIGIT}),
    record(said={"enum": ["naïve", "日本", "a\nb", '"', "\\"]}),
    record(empty=record(), list=several(record(), 2)),
    record(matrix=several(several(DIGIT, 2), 2)),
    {
        "type": "object",
        "properties": {"a": DIGIT},
        "additionalProperties": DIGIT,
        "maxProperties": 3,
        "required": ["a"],
    },
    record(**{f"field_{number}": DIGIT for number in range(24)}),
    record([f"f{number}" for number in range(0, 12, 3)], **{f"f{number}": DIGIT for number in range(12)}),
    record(deep=several(record(kind={"enum": ["x", "y"]}, items=several(record(n=DIGIT), 2)), 2)),
    record(node=TREE, note={"anyOf": [TEXT, {"type": "null"}]}),
    record(large=record(**{f"k{number}": {"enum": [f"v{value}" for value in range(8)]} for number in range(16)})),
]
assert len(SCHEMAS) == 40
