"""How two formats read the same turns, beside `engine.formats.check.roundtrip`.

Templates of llama.cpp's tree are read from the folder that `LLAMA_CPP_TEMPLATES` names
(`vendor/llama.cpp/models/templates` of llama-cpp-python's source distribution).
"""

import os
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cases.writer import stated

from engine.formats.check.roundtrip import MESSAGES, Outcome, lost, read
from engine.formats.families import Format, builtin_families
from engine.formats.template.capabilities import probe
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.derive.derivation import Derivation, derivation
from engine.formats.template.env import Template
from engine.support.errors import TemplateError
from engine.types.messages import Message

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
SOURCES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
FIXED = {"bos_token": "<s>", "eos_token": "</s>"}


@cache
def trusted(path: Path) -> ChatTemplate:
    """A template rendered in this process, compiled once for the tests of all files."""
    return ChatTemplate(path.read_text(encoding="utf-8"), *FIXED.values(), trust_template=True)


@dataclass(frozen=True)
class Row:
    """One template with its family's row switched off: what was derived, and how that compares.

    `back`: the messages that do not come back through the derived format; `unlike`: those that it reads otherwise than
    the declared row, of the same renders; `differs`: fields of the record that differ from the row's, white space
    beside markers apart.
    """

    name: str
    family: str
    derived: Derivation
    back: dict[str, str]
    unlike: tuple[str, ...]
    differs: tuple[str, ...]

    @property
    def has_calls(self) -> bool:
        format_ = self.derived.format
        return format_ is not None and bool(format_.tools or format_.channels)


def row(path: Path) -> Row:
    """The measurement of one template."""
    source = path.read_text(encoding="utf-8")
    template = Template(source)
    derived = derivation(template, FIXED, probe(template, FIXED))
    family = builtin_families().detect(source).family
    if derived.format is None:
        return Row(path.stem, family.name, derived, {}, (), ())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = ChatTemplate(source, "<s>", "</s>", derived.format)
        declared = ChatTemplate(source, "<s>", "</s>", family)
    unlike = tuple(name for name, message in MESSAGES.items() if not _alike(declared, derived.format, message))
    return Row(
        path.stem,
        family.name,
        derived,
        lost(alone, continues=False),
        unlike,
        _differences(derived.format, family.format),
    )


def _alike(declared: ChatTemplate, derived: Format, message: Message) -> bool:
    """Whether both formats read what the declared one's template renders of a message alike."""
    try:
        outcome = Outcome(declared, message)
    except TemplateError:
        return True  # there is nothing to read
    output = outcome.turn(declared.format)
    prefix = "" if outcome.kept is None else outcome.kept.prefix
    calls = bool(message.tool_calls)
    declared_format = declared.family.format
    return read(derived, prefix, output, calls=calls) == read(declared_format, prefix, output, calls=calls)


def _differences(derived: Format, declared: Format) -> tuple[str, ...]:
    """The fields of two formats that say different things, as far as a template can show them."""
    pairs: list[tuple[str, Any, Any]] = [
        ("start", derived.start, declared.start),
        ("stops", derived.stops[:1], declared.stops[:1]),
        ("content", derived.content, declared.content),
        ("calls", derived.tools is not None, declared.tools is not None),
    ]
    one, other = derived.reasoning, declared.reasoning
    if one is not None and other is not None:
        fields = ("open", "close", "history", "forced_open")
        pairs += [(f"reasoning.{field}", getattr(one, field), getattr(other, field)) for field in fields]
    if derived.tools is not None and declared.tools is not None:
        defaults: dict[str, Any] = {
            "shape": "",
            "section": ("", ""),
            "call": ("", ""),
            "name_end": "",
            "argument": ("", ""),
            "quote": "",
            "tag": ("", "", ""),
            "name_is_key": False,
            "id_open": "",
            "id_end": "",
        }
        for field, default in defaults.items():
            mine, theirs = (stated(tools, field, default) for tools in (derived.tools, declared.tools))
            pairs.append((f"tools.{field}", mine, theirs))
    return tuple(name for name, mine, theirs in pairs if _bare(mine) != _bare(theirs))


def _bare(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    return tuple(map(_bare, value)) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
