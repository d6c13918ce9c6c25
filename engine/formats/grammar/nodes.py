"""Grammars as data: the nodes in which each shape states, next to its reader, how a family writes calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

from engine.formats.families import JsonSyntax, ToolSyntax
from engine.formats.grammar.object_schemas import kinds, resolved
from engine.formats.grammar.schemas import TEXT, Schemas, type_name
from engine.tools.formats import PATTERNS
from engine.tools.subschemas import NAMED

Schema: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Marker:
    """Markup of the family, with its white space. The text of a control token in it means that token."""

    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """Plain characters, never a control token."""

    text: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """Text that matches a regular expression (of the syntax that Python and Rust share) as a whole."""

    regex: str


@dataclass(frozen=True)
class JsonText:
    """JSON that fits a schema. References ("#/...") are looked up in `root`; None: in the schema itself. `indented`:
    white space as in JSON that spreads over lines."""

    schema: Schema
    root: Schema | None = None
    indented: bool = False


@dataclass(frozen=True, slots=True)
class Until:
    """Free text and the marker that ends it. The text contains none of `without`, matches `pattern` as a whole, and has
    `least` to `most` characters."""

    end: str
    without: tuple[str, ...] = ()
    pattern: str | None = None
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class InOrder:
    """One item after the other."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any one of the items."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """The item `least` to `most` times (None: any number)."""

    item: "Node"
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A reference to a rule by its name, so that rules can be recursive."""

    name: str


Node: TypeAlias = Marker | Words | Pattern | JsonText | Until | InOrder | OneOf | Repeat | Rule

NOTHING = InOrder(())


def in_order(*items: Node) -> Node:
    """Returns a sequence of the items; empty ones are left out, and adjacent markers become one."""
    kept: list[Node] = []
    for item in items:
        for part in item.items if isinstance(item, InOrder) else (item,):
            before = kept[-1] if kept else None
            if isinstance(part, Marker) and isinstance(before, Marker):
                kept[-1] = Marker(before.text + part.text)
            elif part not in (Marker(""), Words("")):
                kept.append(part)
    return kept[0] if len(kept) == 1 else InOrder(tuple(kept))


def one_of(*items: Node) -> Node:
    """Returns a choice of the items, without duplicates."""
    different = [item for number, item in enumerate(items) if item not in items[:number]]
    return different[0] if len(different) == 1 else OneOf(tuple(different))


def maybe(item: Node) -> Node:
    """Returns an optional item."""
    return NOTHING if item == NOTHING else Repeat(item, 0, 1)


@dataclass(slots=True)
class Rules:
    """The named rules of one grammar under construction, and the schema keywords that it does not enforce.

    `holds` returns whether a regular expression can be enforced. `unheld` are the keywords that are checked afterwards.
    """

    holds: Callable[[str], bool] = lambda _: True
    bodies: dict[str, Node] = field(default_factory=dict[str, Node])
    unheld: list[str] = field(default_factory=list[str])

    def rule(self, hint: str, body: Node | Callable[[Rule], Node]) -> Rule:
        """Add a rule. The body of a recursive rule is given as a function of the rule."""
        made = Rule(f"{hint}-{len(self.bodies)}")
        self.bodies[made.name] = NOTHING
        self.bodies[made.name] = body(made) if callable(body) else body
        return made


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an object: its key, the grammar of its value, and whether it is required."""

    key: str
    value: Node
    required: bool


class Notation(Protocol):
    """How a family writes values in its calls. Each method gives the grammar of one kind of value."""

    def text(self, schema: Schema) -> Node:
        """A string. `schema` may restrict it: pattern, minLength, maxLength."""
        ...

    def constant(self, value: str | float | bool | None) -> Node:
        """Exactly this value."""
        ...

    def json(self, schema: Schema, root: Schema) -> Node:
        """JSON, for values that the notation cannot express."""
        ...

    def any(self) -> Node:
        """A value of any type."""
        ...


class NestedNotation(Notation, Protocol):
    """A notation that also has arrays and objects; in other notations they are JSON."""

    _rules: Rules
    _any: Rule | None = None

    def array(self, item: Node, least: int, most: int | None) -> Node: ...

    def members(self, members: Sequence[Member], others: Node | None = None) -> Node:
        """An object of these members, in this order, then any number of undeclared ones with these values (None: no
        others)."""
        ...

    def json(self, schema: Schema, root: Schema) -> Node:
        return JsonText(schema, root)

    def any(self) -> Node:
        return self._any or self._rules.rule("any", self._begun)

    def _begun(self, rule: Rule) -> Node:
        self._any = rule  # before its body, which uses it
        return self._any_type(rule)

    def _any_type(self, item: Node) -> Node:
        """Returns the grammar of a value of any type; `item` is that of the values nested in it."""
        constants = map(self.constant, (True, False, None))
        numbers = JsonText({"type": "number"})
        return one_of(*constants, numbers, self.text({}), self.array(item, 0, None), self.members((), item))


_BOUNDS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
_OF_TYPE = {
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "array": frozenset(["items", "minItems", "maxItems"]),
    "object": frozenset(["properties", "required", "additionalProperties"]),
}
_COMBINED = frozenset(["anyOf", "oneOf", "allOf", "patternProperties", "dependentSchemas", "if"])
"""Keywords by which an object may have members that its properties do not declare."""
_MEANT = _COMBINED.union(["type", "enum", "const", "$ref", "not", "then", "else", "format", *_OF_TYPE["array"]]).union(
    [*_BOUNDS, *_OF_TYPE["string"], *_OF_TYPE["object"], "minProperties", "maxProperties", "propertyNames"],
    ["dependentRequired", "dependencies", "prefixItems", "additionalItems", "uniqueItems", "contains", "minContains"],
    ["maxContains", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"],
)
"""Keywords that say something about a value. Others are annotations, also those that nobody has defined."""


class Values:
    """Makes grammars of values under one JSON Schema in one notation. What the notation cannot express becomes JSON."""

    def __init__(self, root: Schema, notation: Notation, rules: Rules, nested: NestedNotation | None = None) -> None:
        self._root = root
        self._notation = notation
        self._nested = nested
        self._rules = rules
        self._known: dict[str, Rule] = {}

    def value(self, schema: object) -> Node:
        """Returns the grammar of a value under a schema."""
        if not isinstance(schema, Mapping):
            return self._notation.any()
        node = cast("Schema", schema)
        keys = node.keys() & _MEANT
        if not keys:
            return self._notation.any()
        if keys == {"$ref"}:
            return self._referred(str(node["$ref"]))
        if "const" in node and keys <= {"const", "type"}:
            return self._constants(node, [node["const"]])
        if "enum" in node and keys <= {"enum", "type"}:
            return self._constants(node, node["enum"])
        if Schemas(self._root, node).own() == TEXT:
            self._rules.unheld += sorted(keys - {"type", *_OF_TYPE["string"]})
            return self._notation.text(node)
        union = next((name for name in ("anyOf", "oneOf") if keys == {name}), None)
        if union is not None:
            return one_of(*map(self.value, node[union]))
        stated = node.get("type", ())
        types: Sequence[str] = [stated] if isinstance(stated, str) else stated
        if not types or keys - {"type"}.union(*(_OF_TYPE.get(name, ()) for name in types)):
            return self._json(node)
        return one_of(*(self._of_type(node, name) for name in types))

    def members(self, node: Schema) -> list[Member]:
        """Returns the declared members of an object schema, in order, without those that it forbids."""
        required = node.get("required", ())
        properties = cast("Schema", node.get("properties") or {})
        return [
            Member(key, self.value(schema), key in required)
            for key, schema in properties.items()
            if schema is not False or key in required
        ]

    def others(self, node: Schema) -> Node | None:
        """Returns the grammar of the values of undeclared members of an object schema; None if it allows none. A schema
        that declares properties, and says nothing else, allows none."""
        stated = node.get("additionalProperties", "properties" not in node or not node.keys().isdisjoint(_COMBINED))
        if stated is False:
            return None
        return self.value(cast("Schema", stated)) if isinstance(stated, Mapping) else self._notation.any()

    def arguments(self, write: Callable[[list[Member], Node | None], Node]) -> Node:
        """Returns the grammar of a tool's arguments. `write` makes that of one kind of object, from its members and the
        values of others (None: no others)."""
        found = kinds(self._root, self._root)
        if not found:
            self._rules.unheld += sorted(self._root.keys() & _COMBINED)
        return one_of(*(write(self.members(kind), self.others(kind)) for kind in found or [self._root]))

    def _of_type(self, node: Schema, name: str) -> Node:
        nested = self._nested
        if name == "string":
            return self._notation.text(node)
        if name == "boolean":
            return one_of(self._notation.constant(True), self._notation.constant(False))
        if name == "null":
            return self._notation.constant(None)
        if name == "array" and nested:
            item = self.value(node["items"]) if "items" in node else nested.any()
            return nested.array(item, node.get("minItems", 0), node.get("maxItems"))
        if name == "object" and nested and node.get("properties", {}).keys() >= set(node.get("required", ())):
            return nested.members(self.members(node), self.others(node))
        return self._json({**node, "type": name})

    def _constants(self, node: Schema, values: Sequence[Any]) -> Node:
        """Returns the grammar of these values, as far as the schema's type allows them."""
        types = Schemas(self._root, node).own() or frozenset()
        possible = [value for value in values if types & _types_of(value)]
        if not possible:
            return self._json(node)
        plain = [value for value in possible if value is None or isinstance(value, str | int | float)]
        others = [self._json({"const": value}) for value in possible if isinstance(value, list | dict)]
        return one_of(*map(self._notation.constant, plain), *others)

    def _referred(self, reference: str) -> Node:
        if reference not in self._known:
            target = resolved(self._root, reference)
            if target is None:
                return self._json({"$ref": reference})
            self._rules.rule("value", lambda rule: self._know(reference, rule, target))
        return self._known[reference]

    def _know(self, reference: str, rule: Rule, target: object) -> Node:
        self._known[reference] = rule  # before its value is made, which may refer to it
        return self.value(target)

    def _json(self, schema: Schema) -> Node:
        return self._notation.json(schema, self._root)


def _types_of(value: object) -> frozenset[str]:
    """Returns the JSON types of a value: an integer is a number too, and 1.0 an integer."""
    name = type_name(value)
    is_whole = name == "number" and cast("float", value).is_integer()
    return frozenset([name, *(["number"] if name == "integer" else ["integer"] if is_whole else [])])


_DATA = frozenset(["enum", "const", "default", "examples"])
"""Keywords whose values are no schemas."""


def relocated(schema: object, place: str, *, named: bool = False) -> Any:
    """Copy a schema so that its references to itself stay valid at `place` ("#/$defs/name") in another one. `named`: it
    holds schemas by their names."""
    if isinstance(schema, list | tuple):
        return [relocated(item, place) for item in cast("Sequence[object]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    copy: dict[str, Any] = {}
    for key, item in cast("Mapping[str, object]", schema).items():
        if named:
            copy[key] = relocated(item, place)
        elif key == "$ref" and isinstance(item, str) and item.startswith("#"):
            copy[key] = place + item[1:]
        elif key in _DATA:
            copy[key] = item
        elif key not in ("$id", "$schema"):
            copy[key] = relocated(item, place, named=key in NAMED)
    return copy


def listed(item: Node, least: int, most: int | None, separator: str) -> Node:
    """Returns `least` to `most` items with separators between them."""
    if most == 0:
        return NOTHING
    rest = Repeat(in_order(Words(separator), item), max(least - 1, 0), None if most is None else most - 1)
    several = in_order(item, rest)
    return several if least else maybe(several)


def separated(members: Sequence[tuple[Node, bool]], separator: Node, rules: Rules) -> Node:
    """Returns the members in order, where optional ones may be left out, with separators between those present."""
    after = first = NOTHING
    for node, required in reversed(members):
        first = in_order(node, after) if required else one_of(in_order(node, after), first)
        following = in_order(separator, node, after)
        after = rules.rule("more", following if required else one_of(following, after))
    return first


def arranged(syntax: ToolSyntax, call: Node, most: int | None) -> Node:
    """Returns one to `most` calls (None: any number) with the markers around them, in the way the family writes
    several."""
    opening, closing = syntax.section
    call_open, call_close = syntax.call_marks
    sectioned = (syntax.several or ("sections" if isinstance(syntax, JsonSyntax) else "together")) == "sections"
    between = _after(closing) or _before(opening) or _before(call_open)
    if not sectioned:
        between = _after(call_close) or _before(call_open) or _before(closing)
    if syntax.between is not None:
        between = syntax.between

    def single(lead: str) -> Node:
        whole = in_order(Marker(call_open.lstrip()), call, Marker(call_close.rstrip()))
        if sectioned:
            tail = Marker(_after(call_close) + closing.rstrip())
            whole = in_order(Marker(opening.lstrip()), whole, tail)
        # The text between two calls goes with the marker after it: alone, it might also begin the closing marker.
        return in_order(Marker(lead), whole)

    calls = in_order(single(""), Repeat(single(between), 0, None if most is None else most - 1))
    if sectioned or not opening:
        return in_order(calls, edges(closing if sectioned else call_close)[2])
    return in_order(Marker(opening.lstrip()), calls, Marker(_after(call_close) + closing.rstrip()))


def edges(marker: str) -> tuple[Node, str, Node]:
    """Returns a marker without its white space, between the grammars of that white space, which may be left out."""
    before, after = _before(marker), _after(marker)
    return maybe(Marker(before)) if before else NOTHING, marker.strip(), maybe(Marker(after)) if after else NOTHING


def _before(marker: str) -> str:
    return marker[: len(marker) - len(marker.lstrip())]


def _after(marker: str) -> str:
    return marker[len(marker.rstrip()) :]


def bounds(schema: Schema) -> tuple[int, int | None]:
    """Returns a string's minimum and maximum length in characters."""
    return int(schema.get("minLength", 0)), (None if schema.get("maxLength") is None else int(schema["maxLength"]))


def whole_pattern(schema: Schema, rules: Rules) -> str | None:
    """Returns a string schema's pattern or format as a pattern that matches the whole text, since JSON Schema only
    searches. What cannot be enforced is added to `rules.unheld`."""
    pattern, format_ = schema.get("pattern"), schema.get("format")
    if format_ is not None and (isinstance(pattern, str) or format_ not in PATTERNS):
        rules.unheld.append("format")
    if not isinstance(pattern, str):
        return PATTERNS.get(str(format_))
    begins = pattern.startswith("^")
    ends = pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[begins : len(pattern) - ends]
    whole = f"{'' if begins else '(?s:.*)'}(?:{inner}){'' if ends else '(?s:.*)'}"
    one_alternative = (begins or ends) and "|" in _outside_groups(inner)  # the anchor applies only to that alternative
    if one_alternative or not rules.holds(whole):
        rules.unheld.append(f"pattern {pattern!r}")
        return None
    return whole


def _outside_groups(pattern: str) -> str:
    """Returns the characters of a regular expression outside all groups and character classes."""
    outside: list[str] = []
    depth, escaped, in_class = 0, False, False
    for char in pattern:
        if escaped or char == "\\":
            escaped = not escaped
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif depth == 0:
            outside.append(char)
    return "".join(outside)
