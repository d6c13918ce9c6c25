"""Chat templates compiled and rendered as Hugging Face's libraries render them, byte for byte, within limits.

Knows: jinja2 (its only importer) and the surroundings that chat templates are written for: an immutable sandbox with
trim_blocks and lstrip_blocks, loop controls, `{% generation %}`, `tojson` without HTML escapes, `raise_exception`,
`strftime_now`, and the names that templates read beside the messages. Does not know: messages, families, what the text
means. Deliberate differences: `list.append`, `insert` and `pop` work (templates use them; all they see are copies of
their own), `from_json` exists, `lipsum` is gone.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, TypeAlias, cast

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup, escape

from engine.errors import TemplateError
from engine.template import limits
from engine.template.conversation import as_mapping
from engine.types import whole_characters

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
"""What a template sees: plain JSON values."""

_LIST_METHODS = frozenset({"append", "insert", "pop"})
_COMPARING_TESTS = (
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    ">=",
    "ge",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
    "in",
)


class _Raised(jinja2.TemplateError):
    """The template called raise_exception."""


class _Generation(Extension):
    """`{% generation %}..{% endgeneration %}`: marks what the model wrote; its body has a scope of its own."""

    tags = {"generation"}  # noqa: RUF012 - an instance variable in jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller: Macro) -> str:
        return caller()


class _Metered(NodeTransformer):
    """Rewrites a template so that each turn of a loop costs a step, and so that `~` and comparisons ask first."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - named by jinja2
        self.generic_visit(node)
        tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - named by jinja2
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "_concat", [], [], None, None, lineno=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - named by jinja2
        self.generic_visit(node)
        if not any(isinstance(side, nodes.Const) for side in (node.expr, *(operand.expr for operand in node.ops))):
            node.expr = nodes.Filter(node.expr, "_compared", [], [], None, None, lineno=node.lineno)
        return node

    def visit_NSRef(self, node: nodes.NSRef) -> nodes.Node:  # noqa: N802 - named by jinja2
        if node.attr.startswith("_"):
            raise SecurityError(f"namespace attributes must not begin with an underscore ({node.attr!r})")
        return node


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template. `meter` is the budget of the render under way, `escapes` what stands for other
    characters in it."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            finalize=self._finalize,
        )
        self.meter = limits.Meter()
        self.escapes: Mapping[str, str] = {}
        self.filters.update(tojson=_tojson, from_json=json.loads, _concat=str_join, _compared=_itself)
        self.filters.update(e=self._escape, escape=self._escape)
        self.filters = {name: self._metered(name, function) for name, function in self.filters.items()}
        for name in _COMPARING_TESTS:
            self.tests[name] = self._metered("_compared", self.tests[name])
        del self.globals["lipsum"]

        def strftime_now(form: str) -> str:
            return now().strftime(form)

        surroundings: dict[str, Any] = {
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
            "namespace": _namespace,
        }
        cast("dict[str, Any]", self.globals).update(surroundings)

    def _escape(self, value: Any) -> Any:
        """The value with HTML's characters escaped, and those that stand for them."""
        escaped = escape(value)
        if not isinstance(value, str) or isinstance(value, Markup):
            return escaped
        text = str(escaped)
        for stand_in, shown in self.escapes.items():
            text = text.replace(stand_in, shown)
        return Markup(text)

    def tick(self) -> None:
        """The step that `_Metered` puts into loops; `call` has already charged it."""

    def _finalize(self, value: object) -> object:
        self.meter.allow_text(value)
        return value

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        first = 1 if hasattr(function, "jinja_pass_arg") else 0
        check = limits.filter_check(name)

        @wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            check(self.meter, args[first] if len(args) > first else None, args[first + 1 :], named)
            return function(*args, **named)

        return run

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, list) and attr in _LIST_METHODS:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits.check_operator(self.meter, operator, left, right)
        if operator == "+" and self.escapes:  # a text that is marked `safe` escapes what it is joined with
            if isinstance(left, Markup):
                right = self._escape(right)
            elif isinstance(right, Markup):
                left = self._escape(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **named: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.meter.spend()
        method = getattr(obj, "__wrapped__", obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | list | dict | tuple):
            limits.check_method(self.meter, method.__name__, cast("object", owner), [*args, *named.values()])
        return super().call(context, obj, *args, **named)


class Template:
    """A compiled chat template. Rendering is serialised: it may be called from any thread.

    `variables` are the names that the template reads without setting them. Raises TemplateError when the source is no
    template.
    """

    def __init__(self, source: str, now: Callable[[], datetime] = datetime.now) -> None:
        self.source = source
        self.now = now
        self._lock = threading.Lock()
        self._env = _Sandbox(now)
        try:
            tree = self._env.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(tree))
            metered = cast("nodes.Template", _Metered().visit(tree)).set_environment(self._env)
            code = self._env.compile(cast("nodes.Template", metered))
            self._template = jinja2.Template.from_code(self._env, code, self._env.make_globals(None))
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"The chat template has a syntax error at line {error.lineno}: {error.message}. Pass another with "
                "chat_template=, or name the model's family with family= to use ours."
            ) from error
        except (jinja2.TemplateError, limits.LimitError, RecursionError) as error:
            raise _complaint(error) from error

    def render(self, values: Mapping[str, Any], escapes: Mapping[str, str] | None = None) -> str:
        """The text for these variables: plain JSON values; they are copied. `escapes`: characters that stand for
        others, and what HTML's escape makes of them. Raises TemplateError with the complaint."""
        copies = {name: plain(value) for name, value in values.items()}
        with self._lock:
            self._env.meter, self._env.escapes = limits.Meter(limits.size(copies)), escapes or {}
            try:
                return self._collect(copies)
            except Exception as error:  # a template is a program: whatever it raises is its complaint
                raise _complaint(error) from error

    def _collect(self, values: dict[str, Any]) -> str:
        parts: list[str] = []
        length = 0
        for part in self._template.generate(values):
            length += len(part)
            self._env.meter.bound(length)
            parts.append(part)
        return whole_characters("".join(parts))  # arguments that a model wrote may hold "\ud83d" alone


def _complaint(error: Exception) -> TemplateError:
    if isinstance(error, TemplateError):
        return error
    if isinstance(error, _Raised):
        return TemplateError(f"The chat template rejects these messages: {error}")
    if isinstance(error, SecurityError | limits.LimitError):
        return TemplateError(
            f"The chat template was stopped: {error}. Do not trust this model file; pass another template with "
            "chat_template=."
        )
    if isinstance(error, RecursionError):
        return TemplateError(
            "The chat template calls itself without end, or its input is nested too deeply. Flatten the input, or pass "
            "another template with chat_template=."
        )
    return TemplateError(
        f"The chat template failed on these messages: {type(error).__name__}: {error}. Check roles and order; "
        "pass chat_template= if the template itself is broken."
    )


def plain(value: Any) -> JSON:
    """A copy of a value in plain JSON types. Raises TemplateError for others: templates get no objects."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[object]", value)]
    raise TemplateError(
        f"A chat template takes plain JSON values only; this is a {type(value).__name__}: convert it first."
    )


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _itself(value: Any) -> Any:
    return value


def _raise_exception(message: str) -> None:
    raise _Raised(message)


def _namespace(*args: Any, **named: Any) -> Namespace:
    values = dict(*args, **named)
    for name in values:
        if str(name).startswith("_"):
            raise SecurityError(f"namespace attributes must not begin with an underscore ({name!r})")
    return Namespace(values)


# Keywords of JSON Schema that hold schemas by name, and those that hold one or a list of them.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf")


def values(
    template: Template,
    fixed: Mapping[str, str],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    generates: bool,
    documents: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What `template` is rendered with. `tools` None says that there are none; some templates want `[]` instead.

    Firefunction's template reads `functions` (JSON text) and `datetime` in place of `tools` (source: its model card).
    """
    given: dict[str, Any] = {
        **fixed,
        "messages": messages,
        "tools": tools,
        "documents": documents or None,
        "add_generation_prompt": generates,
    }
    if "functions" in template.variables and "tools" not in template.variables:
        given["functions"] = json.dumps([tool["function"] for tool in tools or ()], ensure_ascii=False, indent=4)
    if "datetime" in template.variables:
        given["datetime"] = template.now().strftime("%Y-%m-%d %H:%M:%S")
    return given


def described(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The tool with an empty description wherever it or a parameter has none, for templates that insist on one."""
    function: dict[str, Any] = {"description": "", **tool["function"]}
    return with_parameters({**tool, "function": function}, _described)


def with_parameters(tool: Mapping[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The tool with its parameters' schema changed."""
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": change(function["parameters"])}}


def _described(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = as_mapping(schema.get("properties")) or {}
    parts = {name: as_mapping(part) for name, part in properties.items()}
    filled = {
        name: properties[name] if part is None else {"description": "", **_described(part)}
        for name, part in parts.items()
    }
    return {**schema, **({"properties": filled} if filled else {})}


def without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the type "null" taken out wherever it stands, for templates that know no such type."""
    found = _mapped(schema, without_null)
    kinds = found.get("type")
    if kinds == "null":
        del found["type"]
    elif isinstance(kinds, list) and "null" in kinds:
        kept = [kind for kind in cast("list[Any]", kinds) if kind != "null"]
        found["type"] = kept[0] if len(kept) == 1 else kept
    return found


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with every object in it saying what JSON Schema means by silence: further properties are allowed."""

    def said(part: Mapping[str, Any]) -> dict[str, Any]:
        found = closed(part)
        return {"additionalProperties": {}, **found} if found.get("type") == "object" else found

    return _mapped(schema, said)


def _mapped(schema: Mapping[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A copy of the schema with the schemas in it changed."""
    found = dict(schema)
    for key, value in schema.items():
        if key in _NAMED and (named := as_mapping(value)) is not None:
            found[key] = {name: _changed(part, change) for name, part in named.items()}
        elif key in _SCHEMAS:
            found[key] = _changed(value, change)
    return found


def _changed(part: Any, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(part, list):
        return [_changed(item, change) for item in cast("list[Any]", part)]
    schema = as_mapping(part)
    return part if schema is None else change(schema)
