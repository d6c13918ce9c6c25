"""What a docstring says: the description, and one for each parameter.

Knows: the Google ("Args:"), NumPy ("Parameters" underlined) and Sphinx (":param name:") conventions, in their plain
forms. Does not know: functions, schemas. Text in no convention is description and nothing else.
"""

import inspect
import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

_PARAMETERS = {"args", "arguments", "parameters", "params", "other parameters", "keyword args", "keyword arguments"}
_OTHERS = {
    "returns",
    "return",
    "yields",
    "raises",
    "example",
    "examples",
    "note",
    "notes",
    "attributes",
    "see also",
    "warns",
}
_SPHINX = re.compile(r":(?P<kind>\w+)(?:\s+[^:]*?(?P<name>\w+))?\s*:\s*(?P<text>.*)")
_GOOGLE = re.compile(r"\*{0,2}(?P<names>\w+)\s*(?:\(.*?\))?\s*:\s*(?P<text>.*)")
_NUMPY = re.compile(r"\*{0,2}(?P<names>\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?(?P<text>)$")


class Docstring(NamedTuple):
    """The text outside all sections, and the parameters' descriptions by name (each joined to one line)."""

    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> Docstring:
    """Split a docstring into its description and what it says of each parameter."""
    lines = inspect.cleandoc(text or "").splitlines()
    reader = _Reader()
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        reader.line(line, underlined=_is_underline(below))
    parameters = {name: " ".join(words) for name, words in reader.parameters.items() if any(words)}
    return Docstring("\n".join(reader.description).strip(), parameters)


def _is_underline(line: str) -> bool:
    return len(line) >= 3 and not line.strip("-")


@dataclass(slots=True)
class _Reader:
    """The lines so far. `inside` tells what the present line belongs to, `names` the parameters it describes."""

    description: list[str] = field(default_factory=list[str])
    parameters: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    inside: Literal["description", "google", "numpy", "field", "other"] = "description"
    names: list[str] = field(default_factory=list[str])
    margin: int | None = None

    def line(self, line: str, *, underlined: bool) -> None:
        if _is_underline(line):
            return
        if not self._opens(line, underlined):
            self._belongs(line)

    def _opens(self, line: str, underlined: bool) -> bool:
        """Whether the line is a heading or a Sphinx field, which change what the lines after it belong to."""
        title = line.rstrip().removesuffix(":").casefold()
        if underlined:
            self._enter("numpy" if title in _PARAMETERS else "other")
        elif line.rstrip().endswith(":") and title in _PARAMETERS | _OTHERS:
            self._enter("google" if title in _PARAMETERS else "other")
        elif found := _SPHINX.match(line):
            self._enter("field")
            if found["kind"] in {"param", "parameter", "arg", "argument", "key"} and found["name"]:
                self._describe(found["name"], found["text"])
        else:
            return False
        return True

    def _enter(self, inside: Literal["google", "numpy", "field", "other"]) -> None:
        self.inside, self.names, self.margin = inside, [], None

    def _describe(self, names: str, text: str) -> None:
        self.names = [name.strip(" *") for name in names.split(",")]
        for name in self.names:
            self.parameters[name] = [text] if text else []

    def _belongs(self, line: str) -> None:
        indent = len(line) - len(line.lstrip())
        if self.inside == "google" and line and not indent:
            self.inside = "description"
        if self.inside == "description":
            self.description.append(line)
        elif line.strip() and self.inside != "other":
            self._entry(line.strip(), indent)

    def _entry(self, text: str, indent: int) -> None:
        if self.margin is None:
            self.margin = indent
        if self.inside != "field" and indent <= self.margin:
            found = (_GOOGLE if self.inside == "google" else _NUMPY).match(text)
            self.names = []
            if found:
                self._describe(found["names"], found["text"])
        else:
            for name in self.names:
                self.parameters[name].append(text)
