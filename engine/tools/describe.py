"""Makes `Tool` records of functions, pydantic models and dictionaries."""

import inspect
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, cast, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, create_model
from pydantic.fields import FieldInfo

from engine.support.deadlines import check_time
from engine.support.errors import RequestError, shown
from engine.tools.check import ModelArguments, schema_arguments, schema_of
from engine.tools.context import is_context
from engine.tools.json_values import MOST_PARTS, size
from engine.tools.schema import model_schema
from engine.types.tools import IN_NAME, Tool

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
    """The lines read so far. `inside` is the section of the current line, `names` are the parameters that it
    describes."""

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
        """Whether the line is a heading or a Sphinx field, and so begins another section."""
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


ToolLike: TypeAlias = Callable[..., Any] | type[BaseModel] | Mapping[str, Any] | Tool

_NAME = re.compile(rf"{IN_NAME}{{1,128}}")
MOST_TOOLS = 1024
"""Of one request: no context holds as many, and each costs a millisecond of preparation."""


def as_tools(items: Iterable[ToolLike] | None) -> tuple[Tool, ...]:
    """Returns every item as a `Tool`, in order. Raises RequestError for an item that is not a tool, for duplicate
    names, for more than `MOST_TOOLS` and for schemas of more than `MOST_PARTS` values together."""
    if isinstance(items, str | bytes | Mapping | BaseModel) or callable(items):
        raise RequestError(
            f"tools must be a list of tools, not {shown(cast('object', items))}; {_listed(cast('object', items))}."
        )
    if not items:
        return ()
    given = [*islice(items, MOST_TOOLS + 1)]
    if len(given) > MOST_TOOLS:
        raise RequestError(
            f"There are more than {MOST_TOOLS:,} tools; leave out those that this request does not need."
        )
    tools: list[Tool] = []
    parts = 0
    for item in given:
        check_time()
        tools.append(as_tool(item))
        parts += size(tools[-1].parameters) if len(given) > 1 else 0  # the size of one is bounded already
        if parts > MOST_PARTS:
            raise RequestError(
                f"The schemas of the tools have more than {MOST_PARTS:,} parts together; leave out tools, or simplify "
                "them."
            )
    twice = [name for name, count in Counter(tool.name for tool in tools).items() if count > 1]
    if twice:
        raise RequestError(
            f"Two tools are called {twice[0]!r}; a model tells tools apart by their names: rename one of them."
        )
    return tuple(tools)


def _listed(items: object) -> str:
    """Returns how to write what was given in place of a list of tools."""
    if isinstance(items, str | bytes):
        return "put the function itself in a list: tools=[get_weather]"
    if isinstance(items, Mapping) and not {"function", "name"} & cast("Mapping[str, object]", items).keys():
        return "give its functions: tools=list(functions.values())"
    if type(cast("object", items)).__name__ == "SamplingParams":
        return "options are given by their names: temperature=0"
    return "put it in a list: tools=[...]"


def as_tool(item: ToolLike, *, repeats: bool | None = None) -> Tool:
    """Make a `Tool` of anything that describes one.

    - A function, sync or async: its name, its docstring (Google, NumPy or Sphinx style), its annotations. A parameter
      with a default is not required; `Annotated[int, Field(description=..., ge=1)]` and `Annotated[int, "what it is"]`
      are understood. `X | None = None` is shown to the model as an optional X, since leaving it out means None. A
      parameter annotated `ToolContext` is not shown: the agent loop fills it in.
    - A pydantic model class: the fields are the arguments; calling it yields the instance.
    - An OpenAI dictionary, `{"type": "function", "function": {...}}` or only the inner one. It has no function: the
      agent loop returns its calls to the caller. `strict`: a grammar holds its calls to the schema while they are
      written.
    - A `Tool`, unchanged (its schema becomes its check if it has none).

    `repeats`: True lets an agent call it again and again with the same arguments, though its result stays the same
    (polling, dice); None: as the `Tool` says. Raises RequestError if the description is wrong.
    """
    if isinstance(item, Tool):
        own = item.check or schema_arguments(item.name, item.parameters)
        tool = item if own is item.check else item.model_copy(update={"check": own})
    elif isinstance(item, Mapping):
        tool = _from_dictionary(cast("Mapping[str, Any]", item))
    elif isinstance(item, type):
        tool = _from_model(item)
    elif callable(item):
        tool = _from_function(item)
    elif hasattr(item, "begin_use"):  # `engine.tools.sources.ToolSource`
        raise RequestError(
            f"{shown(item)} is a source of tools, which only a run connects (llm.run). For single turns, open it "
            "with `with server:` and give tools=server.tools()."
        )
    else:
        raise RequestError(
            f"{shown(item)} is not a tool; give a function (itself, not called), a pydantic model class or an OpenAI "
            "dictionary."
        )
    if not _NAME.fullmatch(tool.name):
        raise RequestError(
            f"The tool name {shown(tool.name)} cannot be used: it takes 1 to 128 letters, digits, and _ . / -. Rename "
            "it (a lambda has no name of its own: write a def)."
        )
    return tool if repeats in (None, tool.repeats) else tool.model_copy(update={"repeats": repeats})


_READ: WeakKeyDictionary[Callable[..., Any], tuple[Sequence[object], Tool]] = WeakKeyDictionary()
"""A cache: each function's `Tool`, without the function, and what it was made of, which reloading a notebook's module
changes in place. Making one takes milliseconds, and every request needs it."""
_MADE_OF = ("__name__", "__doc__", "__code__", "__defaults__", "__kwdefaults__")


def _from_function(function: Callable[..., Any]) -> Tool:
    made_of = [getattr(function, name, None) for name in _MADE_OF]
    try:
        before, known = _READ.get(function, ((), None))
    except TypeError:  # a callable object that cannot be hashed or weakly referenced
        return _described(function)
    if known is None or not all(map(operator.is_, before, made_of)):
        known = _described(function).model_copy(update={"function": None})
        _READ[function] = made_of, known
    return known.model_copy(update={"function": function})


def _described(function: Callable[..., Any]) -> Tool:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise RequestError(f"{shown(function)} has no name of its own, as a tool needs; wrap it in a def.")
    doc = read_docstring(function.__doc__)
    arguments = _arguments_of(function, name, doc.parameters)
    parameters = _schema_of(arguments.model, name)
    return Tool(name=name, description=doc.description, parameters=parameters, function=function, check=arguments)


def _arguments_of(function: Callable[..., Any], name: str, about: Mapping[str, str]) -> ModelArguments:
    try:
        signature = inspect.signature(function)
        hints = _hints(inspect.unwrap(function))
    except (TypeError, ValueError, NameError) as error:
        raise RequestError(
            f"The signature of tool {shown(name)} cannot be read: {error}. Define what it is annotated with at module "
            "level."
        ) from error
    fields: dict[str, Any] = {}
    positional: list[str] = []
    keywords: list[tuple[str, str]] = []
    contexts: list[str] = []
    if next(iter(signature.parameters), "") == "self" and "self" not in hints:
        raise RequestError(
            f"Tool {shown(name)} is a method of a class, and nothing gives its `self`: give the method of an object, "
            f"tools=[thing.{name}]."
        )
    for number, parameter in enumerate(signature.parameters.values()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RequestError(
                f"Tool {shown(name)} takes {parameter}, which no schema can describe; name its parameters (a list is "
                "fine)."
            )
        if is_context(hints.get(parameter.name)):
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise RequestError(f"Tool {shown(name)} takes its ToolContext by position only; move it after the `/`.")
            contexts.append(parameter.name)
            continue
        # Fields get names of our own, since a parameter's name may clash with an attribute of pydantic's models.
        key = f"p{number}"
        fields[key] = _field(parameter, hints.get(parameter.name, Any), about.get(parameter.name))
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(key)
        else:
            keywords.append((parameter.name, key))
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticUserError, NameError, TypeError) as error:
        raise _no_schema(name, error) from error
    return ModelArguments(model, tuple(positional), tuple(keywords), tuple(contexts))


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the annotations of a function's parameters. What it returns may be annotated with anything."""
    annotations: object = getattr(function, "__annotations__", None)
    if not isinstance(annotations, dict) or "return" not in annotations:
        return get_type_hints(function, include_extras=True)
    known = cast("dict[str, object]", annotations)
    own = SimpleNamespace(__annotations__={name: kind for name, kind in known.items() if name != "return"})
    return get_type_hints(own, getattr(function, "__globals__", {}), include_extras=True)


def _field(parameter: inspect.Parameter, annotation: Any, about: str | None) -> tuple[Any, Any]:
    """The pydantic field of one parameter. A description in the annotation overrides the docstring's."""
    default: Any = ... if parameter.default is parameter.empty else parameter.default
    if isinstance(default, FieldInfo):
        annotation = Annotated[annotation, default]
        default = ... if default.is_required() else default.get_default(call_default_factory=True, validated_data={})
    extras: Sequence[Any] = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    found = [extra.description for extra in extras if isinstance(extra, FieldInfo) and extra.description]
    found += [extra for extra in extras if isinstance(extra, str)]
    description = found[0] if found else about
    options: dict[str, Any] = {"description": description} if description else {}
    return annotation, Field(default, alias=parameter.name, **options)


def _from_model(item: type) -> Tool:
    if not issubclass(item, BaseModel):
        raise RequestError(
            f"The class {item.__name__} is not a pydantic model; derive it from pydantic.BaseModel, or give a function."
        )
    parameters = _schema_of(item, item.__name__)
    parameters.pop("description", None)
    return Tool(
        name=item.__name__,
        description=inspect.cleandoc(item.__dict__.get("__doc__") or ""),
        parameters=parameters,
        function=item,
        check=ModelArguments(item),
    )


def _schema_of(model: type[BaseModel], name: str) -> dict[str, Any]:
    try:
        parameters = model_schema(model)
    except (PydanticUserError, NameError) as error:
        raise _no_schema(name, error) from error
    if parameters.get("type") != "object":
        raise RequestError(
            f"The arguments of tool {shown(name)} are not an object but {shown(parameters)}; name its fields."
        )
    return parameters


def _no_schema(name: str, error: Exception) -> RequestError:
    first = str(error).strip().splitlines()[0].rstrip(".")
    return RequestError(
        f"The annotations of tool {shown(name)} do not make a JSON Schema: {first}. Use types that JSON can carry "
        "(str, int, float, bool, list, dict, Literal, Enum, dates, pydantic models)."
    )


def _from_dictionary(item: Mapping[str, Any]) -> Tool:
    inner = cast("Mapping[str, Any]", item.get("function", item))
    name: Any = inner.get("name") if isinstance(cast("Any", inner), Mapping) else None
    if not isinstance(name, str) or item.get("type", "function") != "function":
        raise RequestError(
            f"{shown(item)} is not a tool; write "
            '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}.'
        )
    if unknown := sorted(set(inner) - {"type", "name", "description", "parameters", "strict", "return"}):
        schema = (
            " (the schema of its arguments)" if set(unknown) & {"input_schema", "inputSchema", "args_schema"} else ""
        )
        raise RequestError(
            f"Tool {shown(name)} has unknown keys {shown(unknown)}; it takes name, description, parameters{schema}, "
            "strict, return."
        )
    description: Any = inner.get("description")
    if not isinstance(description, str | None):
        raise RequestError(f"Tool {shown(name)} has the description {shown(description)}; it must be a text.")
    parameters = schema_of(name, inner.get("parameters") or {"type": "object", "properties": {}})
    check = schema_arguments(name, parameters)
    strict = bool(inner.get("strict"))
    returns: Any = inner.get("return")
    if returns is not None and not isinstance(returns, Mapping):
        raise RequestError(
            f"Tool {shown(name)} has {shown(returns)} as its return; it must be the schema of what it returns."
        )
    described: dict[str, Any] = {"description": description or "", "strict": strict, "returns": returns}
    return Tool(name=name, parameters=parameters, check=check, **described)
