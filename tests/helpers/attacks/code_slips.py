"""Calls beside code, in pairs that differ in what follows: one that code shows, and that must not run; one behind code
that is over, or that the model left open, which is meant. In content and in reasoning, whole and cut off.
"""

import json
import random
import re
import textwrap
from collections.abc import Mapping
from typing import Any, Literal

from attacks.slip import Slip, no_call
from cases import writer
from cases.canonical import Call, Turn
from cases.parsing_cases import markers

from engine.formats.families import Format

SHOWN: Mapping[str, str] = {
    "fence": "So:\n\n```xml\n{}\n```\nbut I must not.",
    "words behind a fence": 'So:\n\n```py title="x"\n{}\n```\nbut I must not.',
    "longer fence": "So:\n\n`````\n```\n{}\n```\n`````\nbut I must not.",
    "nested": "So:\n\n```md\nUse:\n```xml\n{}\n```\nThen go.\n```\nbut I must not.",
    "nested, call last": "So:\n\n```md\nUse:\n```sh\nls\n```\n{}\n```\nbut I must not.",
    "tildes": "So:\n\n~~~xml\n{}\n~~~\nbut I must not.",
    "longer tildes": "So:\n\n~~~~\n{}\n~~~~~\nbut I must not.",
    "backticks in tildes": "So:\n\n~~~\n```\n{}\n```\n~~~\nbut I must not.",
    "tildes in backticks": "So:\n\n```md\n~~~\n{}\n~~~\n```\nbut I must not.",
    "in a list": "- so:\n\n  ```xml\n  {2}\n  ```\n- but I must not.",
    "behind a list's mark": "1. ```xml\n   {3}\n   ```\n2. but I must not.",
    "behind another list's mark": "So:\n- ```xml\n  {2}\n  ```\n- but I must not.",
    "tildes behind a list's mark": "1) ~~~xml\n   {3}\n   ~~~\n2) but I must not.",
    "block quote": "So:\n\n> ```xml\n> {>}\n> ```\n\nbut I must not.",
    "tildes in a block quote": "So:\n\n>~~~xml\n>{>}\n>~~~\n\nbut I must not.",
    "backticks": "The form is `{}` but I must not.",
    "two backticks": "The form is ``x {}``, but I must not.",
    "backticks over lines": "The form is `\n{}\n` but I must not.",
    "two backticks over lines": "The form is ``so\n{}``, but I must not.",
    "fence that a block quote ends": "So:\n\n> ```xml\n> {>}\n\nbut I must not.",
    "indented": "So:\n\n    {4}\n\nbut I must not.",
    "indented by a tab": "So:\n\n\t{t}\n\nbut I must not.",
    "indented behind a line": "So:\n\n    ls\n    {4}\n\nbut I must not.",
    "indented between lines": "So:\n\n    {4}\n\n    ls\n\nbut I must not.",
}
"""What shows a call that stands in place of `{}`, or of `{INDENT}`."""

OPEN: Mapping[str, str] = {
    "fence": "So:\n\n```py\nx = 1\n",
    "fence, blank line": "So:\n\n```py\nx = 1\n\nDone.",
    "two fences": "So:\n\n```sh\nls\n```\n\n```py\nx = 1\n\nDone.",
    "two fences, both open": "So:\n\n```sh\nls\n\nThen:\n\n```py\nx = 1\n\nDone.",
    "open, then closed": "So:\n\n```sh\nls\n\nThen:\n\n```py\nx = 1\n```\n\nDone.",
    "nested": "So:\n\n```md\nUse:\n```sh\nls\n```\n\nx = 1",
    "tildes": "So:\n\n~~~py\nx = 1\n",
    "backtick": "I use `x = 1",
    "two backticks": "I use ``x = 1",
    "backtick, then more": "I use `x = 1\nand go.",
    "behind a list's mark": "1. ```py\n   x = 1\n",
    "block quote": "> ```py\n> x = 1\n\nDone.",
}
CLOSED: Mapping[str, str] = {
    "nothing": "x = 1",
    "fence": "So:\n\n```py\nx = 1\n```\n",
    "tildes": "So:\n\n~~~py\nx = 1\n~~~\n",
    "tildes in a line": "So: ~~~ x = 1\n\n",
    "struck": "So:\n\n~~~x = 1~~~ is out.",
    "nested": "So:\n\n```md\nUse:\n```sh\nx = 1\n```\nor\n```\n",
    "indented": "So:\n\n    x = 1\n\nDone.",
    "indented, at the end": "So:\n\n    x = 1\n",
    "list": "- x = 1\n\n      y\n\nDone.",
    "behind a list's mark": "1. ```py\n   x = 1\n   ```\n2. Done.",
    "block quote": "> ```py\n> x = 1\n> ```\n\nDone.",
    "backticks": "I use `x = 1` and ``y``.",
    "backticks over lines": "I use `x = 1\nand y` now.",
}
BEFORE = {f"open: {name}": text for name, text in OPEN.items()} | {f"over: {n}": text for n, text in CLOSED.items()}
"""What stands before a call that is meant: code left open, and code that is over."""

_INDENTS = {"{}": "", "{2}": "  ", "{3}": "   ", "{4}": "    ", "{t}": "\t", "{>}": "> "}
_TO = ("all", "all", "a `b` c", "# T\n```\nls\n```\nend")
_WIPE = Call("wipe", '{"to": "all"}')
_KEPT = "I must not"


def around(shape: str, text: str) -> str:
    """The text shown in code of this shape."""
    wrapped = SHOWN[shape]
    place = next(place for place in _INDENTS if place in wrapped)
    indent = ">" if ">{>}" in wrapped else _INDENTS[place]
    return wrapped.replace(place, textwrap.indent(text, indent, lambda _: True).removeprefix(indent))


def fits(shape: str, text: str) -> bool:
    """Whether code of this shape can hold the text: none ends within its own marks."""
    wrapped = SHOWN[shape]
    inline = shape.endswith(("backticks", "over lines"))
    return not ("`" in text and "`" in wrapped) and not (inline and "\n\n" in text)


def call_in_code(family: str, format_: Format, chance: random.Random, shape: str = "") -> Slip:
    """An answer that shows a call in code; maybe a call follows that is meant."""
    to = chance.choice(("all", "all", "all `b` c"))
    call, then = Call("wipe", json.dumps({"to": to})), Call("trip", '{"to": "Rome"}')
    shown = writer.written(Turn("", (call,)), format_).strip()
    shapes = [shape for shape in SHOWN if fits(shape, shown)]
    parts: tuple[Any, ...] = ("Fine.", *((then,) if chance.random() < 0.3 else ()))
    if not (shape in shapes if shape else shapes) or not writer.applies(Turn("", parts), format_):
        return no_call(family)
    shape = shape or chance.choice(shapes)
    turn = Turn("", (around(shape, shown), *parts[1:]))
    output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
    meant = (("trip", {"to": "Rome"}),) if parts[1:] else ()
    kept = (_KEPT, "all", *(("Rome",) if parts[1:] else ()))
    return Slip(f"call in code: {shape}", family, output, meant, kept, prefix=prefix, runs=True)


def call_behind_code(family: str, format_: Format, chance: random.Random, shape: str = "") -> Slip:
    """A call behind code in an answer that is over, or left open."""
    to, shape = chance.choice(_TO), shape or chance.choice([*BEFORE])
    call = Call("wipe", json.dumps({"to": to}))
    turn = Turn("", (BEFORE[shape].strip(), call))
    if not writer.applies(turn, format_):
        return no_call(family)
    output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
    meant, kept = (("wipe", {"to": to}),), ("x = 1", f"{call.arguments}wipe")
    return Slip(f"call behind code: {shape}", family, output, meant, kept, prefix=prefix, runs=True)


def indented_call(family: str, format_: Format, chance: random.Random) -> Slip:
    """A call that is meant, and only indented: nothing follows it."""
    shown = writer.written(Turn("", (_WIPE,)), format_).strip()
    if format_.header[0] or any("\n" in text for text in markers(family)):
        return no_call(family)  # such a marker is none where its lines are indented
    indent = chance.choice(("    ", "\t", "  "))
    turn = Turn("", ("I go:\n\n" + textwrap.indent(shown, indent),))
    if format_.channels or not writer.applies(Turn("", ("I go.", _WIPE)), format_):
        return no_call(family)
    output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
    return Slip("call indented", family, output, (("wipe", {"to": "all"}),), ("I go", "all"), prefix=prefix, runs=True)


def quoted_call(family: str, format_: Format, chance: random.Random) -> Slip:
    """A call that a text quotes, in reasoning and in content."""
    call = writer.written(Turn("", (_WIPE,)), format_)
    quotes = (
        "The form would be `{}`, but I must not.",
        "- never write `{}` here\n- or there",
        "| `{}` | no |\n",
        "So:\n\n````text\n{}\n````\nbut I must not.",
    )
    close = format_.reasoning.close.strip() if format_.reasoning else ""
    closes = close != "" and close in call  # then only one line quotes it: a fence may be left open
    text = chance.choice(quotes[3:] if "`" in call else quotes[: 3 if closes else 4]).replace("{}", call)
    kept = tuple(re.findall("I must not|never write| no |or there", text))
    if format_.reasoning is None or chance.random() < 0.5:
        turn = Turn("", (text.replace(close, "").replace("`\n", "`") if closes else text,))
        output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
        return Slip("quoted in content", family, output, (), kept, prefix=prefix)
    opened: Literal["", "open"] = "" if format_.reasoning.implicit else chance.choice(("", "open"))
    turn = Turn("", ("So be it.",), text, opened)
    output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
    return Slip("quoted in reasoning", family, output, (), (*kept, "So be it."), prefix=prefix)


INLINE = ("It is `{}` but I must not.", "It is ``x {}``, but I must not.")


def shown_turn(family: str, format_: Format, chance: random.Random) -> Slip:
    """A turn that a text shows in code: in reasoning from its closing mark on, in an answer all of it."""
    if format_.reasoning is None or not (format_.tools or format_.channels):
        return no_call(family)
    call, close = Call("wipe", '{"to": "all"}'), format_.reasoning.close.strip()
    late = chance.random() < 0.1  # then the mark acts, and only the call is shown
    parts = chance.choice(((call,), (call,), ("Fine.", call))) if not late else (("Fine. " * 60).strip(), call)
    if not late and chance.random() < 0.3:
        shown = writer.written(Turn("", parts, "I go."), format_).strip()
        text = around(chance.choice(("fence", "longer fence", "tildes", "nested")), shown)
        turn = Turn("", (text,))
        output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
        return Slip("turn shown in content", family, output, (), ("I must not", shown), prefix=prefix)
    rest = writer.written(Turn("", parts), format_).strip()
    shown = close + chance.choice(("\n", "\n\n", "")) + rest
    shapes = [shape for shape in SHOWN if fits(shape, shown) and not (late and not shape.endswith(("fence", "tildes")))]
    if not shapes:
        return no_call(family)
    shape = chance.choice(shapes)
    text = around(shape, shown)
    if not late and "\n\n" not in shown and "`" not in shown and chance.random() < 0.3:
        mention = f"I close with `{close}` and then `{rest}`, but I must not."
        several = format_.channels is not None or close == format_.content[1].strip()
        text = chance.choice((*INLINE, INLINE[0] if several else mention)).replace("{}", shown)
    opened: Literal["", "open"] = "" if format_.reasoning.implicit else chance.choice(("", "open"))
    turn = Turn("", ("So be it.",), text, opened)
    output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
    if rest in output and not late and chance.random() < 0.2:
        end = output.index(rest) + len(rest)
        cut = output[: chance.randrange(end, output.index("I must not"))]
        return Slip("turn shown, cut", family, cut, (), ("all",), prefix=prefix, finish="length")
    if late:
        return Slip("turn shown late", family, output, (), ("I must not", "So be it.", "all"), prefix=prefix)
    kept = ("I must not", "So be it.", *(part for part in (shown, close, rest) if part in text))
    return Slip("turn shown in reasoning", family, output, (), kept, prefix=prefix)


_ANSWERS = ("", "Fine.", "Fine:\n\n```py\nx = 2\n```\nSo.", "Fine:\n\n```\nx\n```\nSo.", "Fine. " * 60)


def left_open(family: str, format_: Format, chance: random.Random) -> Slip:
    """Reasoning that leaves code open, and then is over: a call behind it is meant, backticks in its arguments too."""
    to = chance.choice(_TO)
    call = Call("wipe", json.dumps({"to": to}))
    answer = chance.choice(_ANSWERS).strip()
    parts = tuple(part for part in (answer, chance.choice((call, None))) if part)
    turn = Turn("", parts or (call,), chance.choice([*BEFORE.values()]).strip())
    if format_.reasoning is None or not writer.applies(turn, format_):
        return no_call(family)
    calls, output = call in turn.parts, writer.written(turn, format_)
    meant = ((call.name, {"to": to}),) if calls else ()
    if calls and chance.random() < 0.3:
        begun, close = output.rindex("wipe"), format_.reasoning.close.strip()
        cut, kept = output[: begun + chance.randrange(1, 12)], ("x = 1",)
        return Slip("code left open, cut", family, cut, (), kept, finish="length", answer=answer, leaks=close)
    kept = ("x = 1", answer, *((f"{call.arguments}wipe",) if calls else ()))
    return Slip("code left open", family, output, meant, kept, runs=True, answer=answer)


KINDS = (quoted_call, shown_turn, left_open, call_in_code, call_behind_code, indented_call)
