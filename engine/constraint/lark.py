"""Grammar nodes as the text that llguidance reads: rules in its variant of Lark, JSON Schemas beside them.

Knows: the syntax (llguidance's docs/syntax.md), and that control tokens stand in rules by their number while text stands
in terminals. Does not know: what a grammar is for, llguidance itself.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.constraint.json_schema import GUIDANCE, with_root
from engine.parsing.grammar import (
    InOrder,
    JsonText,
    Marker,
    Node,
    OneOf,
    Pattern,
    Repeat,
    Rule,
    Until,
    Words,
)
from engine.parsing.reader import Piece


@dataclass(frozen=True, slots=True)
class Named:
    """A grammar of the caller's own, by name."""

    lark: str


Part = Node | Named
Cut = Callable[[str], Sequence[Piece | int]]
"""Cuts markup into control tokens (their numbers) and plain text (pieces)."""


def grammar_text(start: Node, bodies: Mapping[str, Node], cut: Cut, callers: Mapping[str, str] | None = None) -> str:
    """The grammar that llguidance compiles. `bodies` are the named rules; `callers`: Lark grammars that rules called
    `caller-NAME` stand for."""
    return _Writer(cut).text(start, bodies, callers or {})


class _Writer:
    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._terminals: dict[str, str] = {}
        self._schemas: dict[str, str] = {}
        self._grammars: list[dict[str, Any]] = []

    def text(self, start: Node, bodies: Mapping[str, Node], callers: Mapping[str, str]) -> str:
        rules = [f"start: {self._node(start)}"]
        rules += [f"{name}: {self._node(body)}" for name, body in bodies.items()]
        rules += [f"caller-{name}: @{name}" for name in callers]
        self._grammars += [{"name": name, "lark_grammar": lark} for name, lark in callers.items()]
        terminals = [f"{name}: {body}" for body, name in self._terminals.items()]
        return json.dumps({"grammars": [{"lark_grammar": "\n".join([*rules, *terminals])}, *self._grammars]})

    def _node(self, node: Node) -> str:
        match node:
            case Marker(text):
                return self._marker(text)
            case Words(text):
                return _literal(text)
            case Pattern(regex):
                return self._terminal(_regex(regex))
            case JsonText(schema, root):
                return self._json(schema, root)
            case Until():
                return self._until(node)
            case InOrder(items):
                return " ".join(filter(None, map(self._node, items))) or '""'
            case OneOf(items):
                return f"({' | '.join(map(self._node, items))})"
            case Repeat():
                return self._repeat(node)
            case Rule(name):
                return name

    def _marker(self, text: str) -> str:
        return " ".join(f"<[{part}]>" if isinstance(part, int) else _literal(part.text) for part in self._cut(text))

    def _repeat(self, node: Repeat) -> str:
        item = self._node(node.item)
        if node.between is None:
            return f"({item}){_times(node.least, node.most)}"
        if node.most == 0:
            return '""'
        more = _times(max(node.least - 1, 0), None if node.most is None else node.most - 1)
        several = f"({item}) ({self._node(node.between)} ({item})){more}"
        return several if node.least else f"({several})?"

    def _until(self, node: Until) -> str:
        """The text and the plain beginning of its end are one terminal: two would leave it open where one ends."""
        parts = list(self._cut(node.end))
        plain = parts.pop(0) if parts and not isinstance(parts[0], int) else None
        free = r"/(?s:.)/" + _times(node.least, node.most) if (node.least, node.most) != (0, None) else r"/(?s:.*)/"
        factors = [free, *([_regex(node.pattern)] if node.pattern else [])]
        spelt = [text for text in node.without if not any(isinstance(part, int) for part in self._cut(text))]
        if spelt:
            factors.append(f"~/(?s:.*)({'|'.join(map(_quoted, spelt))})(?s:.*)/")
        ended = f"({' & '.join(factors)})" + (f" {_literal(plain.text)}" if plain else "")
        rest = [f"<[{part}]>" if isinstance(part, int) else _literal(part.text) for part in parts]
        return " ".join([self._terminal(ended), *rest])

    def _terminal(self, body: str) -> str:
        return self._terminals.setdefault(body, f"T{len(self._terminals)}")

    def _json(self, schema: Mapping[str, Any], root: Mapping[str, Any] | None) -> str:
        whole = with_root(schema, root)
        text = json.dumps(whole)
        if text not in self._schemas:
            self._schemas[text] = name = f"json{len(self._schemas)}"
            self._grammars.append({"name": name, "json_schema": {"x-guidance": GUIDANCE, **whole}})
        return f"@{self._schemas[text]}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=True) if text else '""'


def _quoted(text: str) -> str:
    """Plain text inside /../."""
    return re.sub(
        r"[\n\r\t/]", lambda found: {"\n": r"\n", "\r": r"\r", "\t": r"\t", "/": r"\/"}[found[0]], re.escape(text)
    )


def _regex(pattern: str) -> str:
    """A regular expression between slashes."""
    escaped = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", pattern, flags=re.DOTALL)
    return f"/{escaped.replace(chr(10), chr(92) + 'n')}/"


def _times(least: int, most: int | None) -> str:
    match least, most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case 1, 1:
            return ""
        case _:
            return f"{{{least},{'' if most is None else most}}}"
