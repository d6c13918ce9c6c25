"""Writes grammar nodes as the text that llguidance reads: rules in its variant of Lark, with JSON Schemas."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from engine.formats.grammar.nodes import InOrder, JsonText, Marker, Node, OneOf, Pattern, Repeat, Rule, Until, Words

Cut: TypeAlias = Callable[[str], Sequence[str | int]]
"""Cuts markup into plain text and control tokens (their numbers)."""
_Forms: TypeAlias = Sequence[Mapping[str, Any]]


def _on_one_line(blank: str) -> Mapping[str, Any]:
    separators = {"item_separator": f",{blank}", "key_separator": f":{blank}"}
    return {"whitespace_flexible": False, **separators, "coerce_one_of": True}


_ON_ONE_LINE = (_on_one_line(" "), _on_one_line(""))
"""White space in JSON: a blank after each comma and colon, or none. The first one decides, so that the others are
forced together with what stands around them."""
_EITHER = _on_one_line(" ?")
"""The same where each one decides for itself: half as much to compile."""
_LARGE = 8_000
"""In characters, of a schema."""
_INDENTED: Mapping[str, Any] = {"whitespace_pattern": r"(?:\r?\n[ \t]{0,40}|[ \t])", "coerce_one_of": True}
"""White space in the JSON of families that write their calls over several lines."""
_MANY = 64
"""More texts to choose from are one terminal: otherwise each is an item of the parser at the same position."""


class GrammarText:
    """Writes one grammar. `cut` is the vocabulary's."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._terminals: dict[str, str] = {}
        self._schemas: dict[str, str] = {}
        self._grammars: list[dict[str, Any]] = []

    def text(self, start: Node, bodies: Mapping[str, Node], callers: Mapping[str, str] | None = None) -> str:
        """Returns the grammar as llguidance's JSON. `bodies` are the named rules; `callers` are callers' Lark grammars
        by the names of the rules that stand for them."""
        rules = [f"start: {self._node(start)}"]
        rules += [f"{name}: {self._node(body)}" for name, body in bodies.items()]
        for number, (name, lark) in enumerate((callers or {}).items()):
            rules.append(f"{name}: @caller{number}")
            self._grammars.append({"name": f"caller{number}", "lark_grammar": lark})
        terminals = [f"{name}: {body}" for body, name in self._terminals.items()]
        return json.dumps({"grammars": [{"lark_grammar": "\n".join([*rules, *terminals])}, *self._grammars]})

    def _node(self, node: Node) -> str:
        match node:
            case Marker(text):
                return self._joined(self._cut(text))
            case Words(text):
                return _literal(text)
            case Pattern(regex):
                return self._terminal(_regex(regex))
            case JsonText(schema, root, indented):
                return self._json(schema, root, (_INDENTED,) if indented else _ON_ONE_LINE)
            case Until():
                return self._until(node)
            case InOrder(items):
                return " ".join(map(self._node, items)) or '""'
            case OneOf(items) if len(items) > _MANY and all(isinstance(item, Words) for item in items):
                return self._terminal(" | ".join(_literal(item.text) for item in items if isinstance(item, Words)))
            case OneOf(items):
                return f"({' | '.join(map(self._node, items))})"
            case Repeat(item, least, most):
                return '""' if most == 0 else f"({self._node(item)}){_times(least, most)}"
            case Rule(name):
                return name

    def _joined(self, parts: Sequence[str | int]) -> str:
        return " ".join(f"<[{part}]>" if isinstance(part, int) else _literal(part) for part in parts) or '""'

    def _until(self, node: Until) -> str:
        """Write the text and the plain-text beginning of its end marker as one terminal: with two, it would be
        ambiguous where the first ends."""
        parts = self._cut(node.end)
        plain = parts[0] if parts and isinstance(parts[0], str) else ""
        counted = (node.least, node.most) != (0, None)
        factors = [f"/(?s:.)/{_times(node.least, node.most)}" if counted else "/(?s:.*)/"]
        if node.pattern is not None:
            factors.append(_regex(node.pattern))
        spelt = [text for text in node.without if all(isinstance(part, str) for part in self._cut(text))]
        if spelt:
            factors.append(f"~/(?s:.*)({'|'.join(map(_quoted, spelt))})(?s:.*)/")
        ended = f"({' & '.join(factors)})" + (f" {_literal(plain)}" if plain else "")
        rest = parts[bool(plain) :]
        return self._terminal(ended) + (f" {self._joined(rest)}" if rest else "")

    def _terminal(self, body: str) -> str:
        return self._terminals.setdefault(body, f"T{len(self._terminals)}")

    def _json(self, schema: Mapping[str, Any], root: Mapping[str, Any] | None, forms: _Forms) -> str:
        defined = {key: root[key] for key in ("$defs", "definitions") if key in root} if root else {}
        whole = {**defined, **schema}
        if len(forms) > 1 and len(json.dumps(whole)) > _LARGE:
            forms = (_EITHER,)
        return f"({' | '.join(self._schema({'x-guidance': form, **whole}) for form in forms)})"

    def _schema(self, whole: Mapping[str, Any]) -> str:
        text = json.dumps(whole)
        if text not in self._schemas:
            self._schemas[text] = f"json{len(self._schemas)}"
            self._grammars.append({"name": self._schemas[text], "json_schema": whole})
        return f"@{self._schemas[text]}"


def _literal(text: str) -> str:
    """Quote plain text: JSON's escapes are also Lark's."""
    return json.dumps(text)


_SHOWN = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "/": r"\/"}


def _quoted(text: str) -> str:
    """Escape plain text for a regular expression between slashes."""
    return "".join(_SHOWN.get(char) or re.escape(char) for char in text)


_ESCAPES = re.compile(r"\\.|[/\n]", re.DOTALL)


def _regex(pattern: str) -> str:
    """Write a regular expression between slashes."""
    return f"/{_ESCAPES.sub(lambda found: _SHOWN.get(found[0], found[0]), pattern)}/"


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
