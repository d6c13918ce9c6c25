"""What a chat template may cost: a budget of steps, and a bound on every text or list that it makes.

Knows: which operations can make much out of little in one call (`*`, `**`, `%`, `+`, replace, center, join), and how
to tell their result's size before they run: one such call inside C can take seconds and cannot be interrupted. Does not
know: jinja2. Templates come with model files from strangers, so `engine.template.env` asks here before each of them.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, cast

STEPS = 500_000
"""Steps of one render, before the inputs' size is added."""
LENGTH = 4_000_000
"""Characters or items that one value may have before the inputs' size is added."""
BITS = 4096
"""Bits of the largest whole number."""
WIDTH = 4096
"""The widest indent, field or precision."""
_CHARACTERS_PER_STEP = 256
_STEPS_PER_PART = 2
_PERCENT_WIDTHS = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")
_BRACE_WIDTHS = re.compile(r"\{[^{}]*:[^{}]*?(\d{4,}|\{)")


class LimitError(Exception):
    """A template asked for more than a render may cost."""


class Meter:
    """The budget of one render. `spend` and `allow` raise LimitError when it is used up."""

    __slots__ = ("_length", "_steps")

    def __init__(self, input_size: int = 0) -> None:
        self._steps = STEPS + 4 * input_size
        self._length = LENGTH + 8 * input_size

    def spend(self, characters: int = 0) -> None:
        """One step, and the share of handling so many characters."""
        self._steps -= 1 + characters // _CHARACTERS_PER_STEP
        if self._steps < 0:
            raise LimitError("it takes too many steps: a loop without end, or far more work than its input warrants")

    def bound(self, length: int) -> None:
        """Whether a text or list may become this long."""
        if length > self._length:
            raise LimitError(f"it makes a value of {length:,} characters or items; {self._length:,} are allowed here")

    def allow(self, length: int) -> None:
        """Ask before making a text or list of this length, and pay for it."""
        self.bound(length)
        self.spend(length)

    def allow_width(self, width: object) -> None:
        """Ask before padding or indenting so far."""
        if isinstance(width, int) and abs(width) > WIDTH:
            raise LimitError(f"it asks for a width of {width:,}; {WIDTH:,} are allowed")

    def allow_text(self, value: object) -> None:
        """Ask before turning a value into text: nested values may share parts, and their text be exponentially long."""
        if isinstance(value, str):
            self.allow(len(value))
        elif isinstance(value, list | tuple | set | frozenset | dict):
            self._allow_parts(cast("Iterable[object]", value))

    def _allow_parts(self, value: Iterable[object]) -> None:
        length = 0
        waiting = [value]
        while waiting:
            part = waiting.pop()
            self._steps -= _STEPS_PER_PART
            items = cast("dict[object, object]", part).values() if isinstance(part, dict) else ()
            for item in chain(cast("Iterable[object]", part), items):
                length += len(item) + 4 if isinstance(item, str) else 8
                if isinstance(item, list | tuple | set | frozenset | dict):
                    waiting.append(cast("Iterable[object]", item))
            self.bound(length)
            self.spend()
        self.spend(length)


def size(value: object) -> int:
    """The characters of all texts inside a value, plus one for each thing in it: the measure of a template's input."""
    if isinstance(value, str):
        return 1 + len(value)
    if isinstance(value, Mapping):
        return 1 + sum(size(key) + size(item) for key, item in cast("Mapping[object, object]", value).items())
    if isinstance(value, list | tuple):
        return 1 + sum(size(item) for item in cast("Sequence[object]", value))
    return 1


def _length(value: object) -> int | None:
    """How long a text, a list or a mapping is; None for what has no length, or makes its items as it goes."""
    if isinstance(value, str | list | tuple | dict | set):
        return len(cast("Sequence[object]", value))
    return None


def check_operator(meter: Meter, operator: str, left: Any, right: Any) -> None:
    """Ask before `left operator right`, for the operators `*`, `**`, `%` and `+`."""
    meter.spend()
    if operator == "+":
        if (first := _length(left)) is not None and (second := _length(right)) is not None:
            meter.allow(first + second)
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if (length := _length(many)) is not None and isinstance(times, int):
                meter.allow(length * max(times, 0))
        _allow_bits(left, right, lambda a, b: a.bit_length() + b.bit_length())
    elif operator == "**":
        _allow_bits(left, right, lambda a, b: a.bit_length() * max(b, 0))
    elif operator == "%" and isinstance(left, str):
        check_percent(meter, left, right)


def _allow_bits(left: object, right: object, bits: Callable[[int, int], int]) -> None:
    if isinstance(left, int) and isinstance(right, int) and (count := bits(left, right)) > BITS:
        raise LimitError(f"it computes a number of {count:,} bits; {BITS:,} are allowed")


def check_percent(meter: Meter, form: str, values: object) -> None:
    """Ask before `form % values`."""
    for width, precision in _PERCENT_WIDTHS.findall(form):
        if "*" in (width, precision) or max(len(width), len(precision)) > 4:
            raise LimitError("a width in its %-format is computed, or too large")
        meter.allow_width(int(width or 0))
        meter.allow_width(int(precision or 0))
    fields = form.count("%")
    meter.allow(len(form) + fields * WIDTH)
    many = isinstance(values, Mapping)
    for _ in range(fields if many else 1):
        meter.allow_text(values)


def check_method(meter: Meter, name: str, owner: object, args: Sequence[Any]) -> None:
    """Ask before `owner.name(*args)`, for the methods of texts and lists."""
    if isinstance(owner, str):
        _check_text_method(meter, name, owner, args)
    elif (length := _length(owner)) is not None:
        meter.spend(length)


def _check_text_method(meter: Meter, name: str, text: str, args: Sequence[Any]) -> None:
    meter.spend(len(text))
    if name in ("center", "ljust", "rjust", "zfill"):
        meter.allow_width(args[0] if args else 0)
    elif name == "expandtabs":
        meter.allow_width(args[0] if args else 0)
        meter.allow(len(text) + text.count("\t") * (args[0] if args and isinstance(args[0], int) else 8))
    elif name == "replace" and len(args) > 1:
        check_replace(meter, text, args[0], args[1])
    elif name == "join" and args:
        check_join(meter, args[0], text)
    elif name in ("format", "format_map"):
        if _BRACE_WIDTHS.search(text):
            raise LimitError("a width in its format is computed, or too large")
        for _ in range(text.count("{")):
            meter.allow_text(args)
    elif name == "translate":
        raise LimitError("it uses translate(), which no chat template needs")


def check_replace(meter: Meter, text: object, old: object, new: object) -> None:
    """Ask before replacing every `old` in `text` by `new`."""
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        meter.allow(len(text) + text.count(old) * len(new))


def check_join(meter: Meter, items: object, separator: object) -> None:
    """Ask before joining. A generator is weighed by the separator alone: making it takes steps of its own."""
    gaps = len(separator) if isinstance(separator, str) else 0
    if (length := _length(items)) is None:
        meter.allow_width(gaps)
    else:
        meter.allow(gaps * length)
        meter.allow_text(items)


def check_concat(meter: Meter, items: Sequence[object]) -> None:
    """Ask before joining the few operands of `~`."""
    length = 0
    for item in items:
        if isinstance(item, str):
            length += len(item)
        else:
            meter.allow_text(item)
    meter.allow(length)


Check: TypeAlias = Callable[[Meter, Any, Sequence[Any], Mapping[str, Any]], None]
"""Asks before `value | filter(*args, **named)`."""


def _whole(meter: Meter, value: Any, _args: Sequence[Any], _named: Mapping[str, Any]) -> None:
    meter.allow_text(value)


def _widths(meter: Meter, value: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    meter.spend(_length(value) or 0)
    for item in (*args, *named.values()):
        meter.allow_width(item)


def _tojson(meter: Meter, value: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    _widths(meter, None, args, named)
    meter.allow_text(value)


def _indent(meter: Meter, value: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    _widths(meter, value, args, named)
    if isinstance(value, str):
        given = (*args, *named.values())
        widths = [item if isinstance(item, int) else len(item) for item in given if isinstance(item, int | str)]
        meter.allow(len(value) + value.count("\n") * max([4, *widths]))


def _replace(meter: Meter, value: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    given = [*args, *(named[name] for name in ("old", "new") if name in named)]
    if len(given) > 1:
        check_replace(meter, value, given[0], given[1])


def _join(meter: Meter, value: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    check_join(meter, value, args[0] if args else named.get("d", ""))


def _format(meter: Meter, value: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    check_percent(meter, str(value), args or named)


def _concat(meter: Meter, value: Any, _args: Sequence[Any], _named: Mapping[str, Any]) -> None:
    check_concat(meter, value)


def _plain(meter: Meter, value: Any, _args: Sequence[Any], _named: Mapping[str, Any]) -> None:
    meter.spend(_length(value) or 0)


_CHECKS: Mapping[str, Check] = {
    "tojson": _tojson,
    "indent": _indent,
    "replace": _replace,
    "join": _join,
    "format": _format,
    "_concat": _concat,
    **dict.fromkeys(("center", "batch", "slice", "round", "wordwrap", "int", "truncate"), _widths),
    **dict.fromkeys(("string", "pprint", "urlencode", "xmlattr", "escape", "e", "forceescape", "safe"), _whole),
    **dict.fromkeys(("sort", "dictsort", "unique", "groupby", "min", "max", "sum", "_compared"), _whole),
}


def filter_check(name: str) -> Check:
    """What asks before a filter runs: for those that walk through a value its parts, for the others a step."""
    return _CHECKS.get(name, _plain)
