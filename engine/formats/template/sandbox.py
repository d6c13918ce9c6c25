"""Compiles and renders chat templates in a sandbox, byte for byte as Hugging Face's libraries do.

Everything that a template may use is listed: attributes by type, filters, global names; anything else is refused.
Deliberate differences from Hugging Face's: `list.append`, `insert` and `pop` work (templates use them, and see only
copies), `from_json` exists; `lipsum`, and the filters that no chat template needs, do not.
"""

import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, cast

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import SandboxedEnvironment
from jinja2.utils import Cycler, Namespace
from markupsafe import Markup, escape


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TEXT = _words("""
    capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii isdecimal
    isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition
    removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip
    swapcase title upper zfill
""")
_ATTRIBUTES: Mapping[type, frozenset[str]] = {
    Markup: _TEXT | {"striptags", "unescape"},
    str: _TEXT,
    list: _words("append copy count index insert pop"),
    tuple: _words("count index"),
    dict: _words("copy get items keys values"),
    float: _words("is_integer"),
    LoopContext: _words(
        "changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0"
    ),
    Macro: _words("arguments caller catch_kwargs catch_varargs name"),
    Cycler: _words("current next reset"),
}
"""The attributes of a value that a template may read; of a namespace, all but private ones."""
_FILTERS = _words("""
    abs batch capitalize center count d default dictsort filesizeformat first float forceescape format groupby indent
    int items join last length list lower map max min reject rejectattr replace reverse round select selectattr
    slice sort string striptags sum title trim truncate unique upper urlencode wordcount wordwrap
""")
_GLOBALS = ("cycler", "dict", "joiner", "range")


class _Raised(jinja2.TemplateError):
    """The template called raise_exception."""


class StoppedError(Exception):
    """A render was stopped because its text is too long."""


class _Generation(Extension):
    """`{% generation %}..{% endgeneration %}`: marks what the model wrote; its body has a scope of its own."""

    tags = {"generation"}  # noqa: RUF012 - an instance variable in jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller: Macro) -> str:
        return caller()


_escapes: ContextVar[Mapping[str, str]] = ContextVar("_escapes")
"""Characters that stand for others in the render that is going on, and their forms under HTML escaping."""
_now: ContextVar[datetime] = ContextVar("_now")
"""Its time, for `strftime_now`."""


class _Sandbox(SandboxedEnvironment):
    intercepted_binops = frozenset({"+"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        filters = {name: self.filters[name] for name in _FILTERS}
        self.filters = {**filters, "tojson": _tojson, "from_json": json.loads, "e": _escape, "escape": _escape}
        self.filters["safe"] = str  # nothing is escaped here, so that there is nothing to keep from it
        known: dict[str, Any] = {name: self.globals[name] for name in _GLOBALS}
        known.update(raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=Namespace)
        self.globals = known

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ARG002 - jinja2's signature
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        return any(attr in names for kind, names in _ATTRIBUTES.items() if isinstance(obj, kind))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _escapes.get():  # text that is marked `safe` escapes any text that is joined to it
            if isinstance(left, Markup):
                right = _escape(right)
            elif isinstance(right, Markup):
                left = _escape(left)
        return super().call_binop(context, operator, left, right)


@cache
def _sandbox() -> _Sandbox:
    return _Sandbox()


class Compiled:
    """A compiled template. Thread-safe. `variables` are the names that it reads without setting them. Raises the errors
    of jinja2 and of Python's compiler: see `complaint`."""

    def __init__(self, source: str) -> None:
        environment = _sandbox()
        tree = environment.parse(source)
        self.variables = frozenset(meta.find_undeclared_variables(tree))
        self._template = environment.from_string(tree)

    def render(
        self, values: dict[str, Any], escapes: Mapping[str, str], now: datetime, limit: int | None = None
    ) -> str:
        """Render with these variables, which must be plain JSON values that nothing else refers to. `escapes`:
        characters that stand for others, and their forms under HTML escaping; `now`: the time that the template sees.
        Raises whatever the template raises, and StoppedError for a text of more than `limit` characters."""
        parts: list[str] = []
        length = 0
        tokens = _escapes.set(escapes), _now.set(now)
        try:
            for part in self._template.generate(values):
                length += len(part)
                if limit is not None and length > limit:
                    raise StoppedError(f"it writes more than {limit:,} characters, which its input does not warrant")
                parts.append(part)
        finally:
            _escapes.reset(tokens[0])
            _now.reset(tokens[1])
        return "".join(parts)


@lru_cache(maxsize=16)
def compiled(source: str) -> Compiled:
    """Returns the template, which is compiled once for all engines of this process: that is half of loading a small
    model."""
    return Compiled(source)


_LANGUAGES = (
    ' Name the languages of plain text with template_kwargs={"source_lang_code": "de", "target_lang_code": "en"}.'
)


def complaint(error: BaseException) -> str:
    """Returns the message for the caller about an error of compiling or rendering."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return (
            f"The chat template has a syntax error at line {error.lineno}: {error.message}. Pass another with "
            "chat_template=, or name the model's family with family= to use ours."
        )
    if isinstance(error, _Raised):
        way = _LANGUAGES if "source_lang_code" in str(error) else ""
        return f"The chat template rejects these messages: {error}{way}"
    if isinstance(error, SecurityError | StoppedError | MemoryError):
        said = "it takes more memory than a template may" if isinstance(error, MemoryError) else str(error)
        return (
            f"The chat template was stopped: {said}. Do not trust this model file; pass another template with "
            "chat_template=."
        )
    if isinstance(error, RecursionError):
        return (
            "The chat template calls itself without end, or its input is nested too deeply. Flatten the input, or pass "
            "another template with chat_template=."
        )
    if isinstance(error, SyntaxError):  # Python's compiler refuses the code that jinja2 generated
        return (
            f"The chat template cannot be compiled ({type(error).__name__}: {error.msg}). Pass another with "
            "chat_template=."
        )
    return (
        f"The chat template failed on these messages: {type(error).__name__}: {error}. Check roles and order; "
        "pass chat_template= if the template itself is broken."
    )


def _escape(value: Any) -> Any:
    """Escape HTML's special characters, and the characters that stand for them."""
    escaped = escape(value)
    if not isinstance(value, str) or isinstance(value, Markup):
        return escaped
    text = str(escaped)
    for stand_in, shown in _escapes.get().items():
        text = text.replace(stand_in, shown)
    return Markup(text)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )


def _listed(value: object) -> list[object]:
    """Returns what a filter such as `map` yields, as llama.cpp's own renderer has it: a list."""
    if isinstance(value, Iterator):
        return list(cast("Iterator[object]", value))
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _raise_exception(message: str) -> None:
    raise _Raised(message)


def _strftime_now(form: str) -> str:
    return _now.get().strftime(form)
