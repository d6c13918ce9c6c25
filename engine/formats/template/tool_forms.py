"""The form in which a template takes a tool: as it is, or with the least change without which the template refuses
it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias, cast

from engine.formats.template.env import Template, values
from engine.formats.template.renderer import TemplateStoppedError
from engine.support.errors import TemplateError
from engine.tools.subschemas import mapped
from engine.types.conversation import as_mapping
from engine.types.tools import Tool

Form: TypeAlias = Mapping[str, Any]
_Change: TypeAlias = Callable[[Form], dict[str, Any]]
_MOST_CHARACTERS = 500_000
"""Of the lists of tools of which the forms are remembered, as JSON; their forms take twenty times as many bytes."""

# Keywords of JSON Schema whose values are schemas by name, and those whose value is a schema or a list of schemas.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf")


class ToolForms:
    """The forms of one template's tools, found by rendering a question with them: templates differ in which parts of a
    schema they can do without, and which they know. `parts`: content must be a list of typed parts."""

    def __init__(self, template: Template, fixed: Mapping[str, str], *, parts: bool = False) -> None:
        self._template = template
        self._fixed = fixed
        self._question = {"role": "user", "content": [{"type": "text", "text": "Hello."}] if parts else "Hello."}
        self._known: dict[str, list[Form]] = {}

    def of(self, tools: Sequence[Tool], until: float | None = None) -> list[Form]:
        """Returns the tools as the template takes them. `until`: when to stop it, on `time.monotonic`'s clock.

        Raises TemplateError, with the tool's name, for one that it takes in no form.
        """
        given: list[Form] = [tool.openai() for tool in tools]
        if not given:
            return []
        key = json.dumps(given, default=repr)  # what is no JSON value, rendering refuses
        if (known := self._known.get(key)) is not None:
            return known
        taken = self._taken(given, until)
        if 4 * len(key) <= _MOST_CHARACTERS:
            if sum(map(len, self._known)) + len(key) > _MOST_CHARACTERS:
                self._known.clear()
            self._known[key] = taken
        return taken

    def _taken(self, given: list[Form], until: float | None) -> list[Form]:
        if self._refusal(given, until) is None or self._refusal([], until) is not None:
            return given  # it takes them all, or refuses the question itself
        return [self._form(tool, until) for tool in given]

    def _form(self, tool: Form, until: float | None) -> Form:
        refusal: TemplateError | None = None
        for form in _forms(tool):
            error = self._refusal([form], until)
            if error is None:
                return form
            refusal = refusal or error
        raise TemplateError(
            f"The chat template cannot show the tool {tool['function']['name']!r}, whose parameters are "
            f"{json.dumps(tool['function']['parameters'], ensure_ascii=False)[:300]}. Simplify them, or pass another "
            f"template with chat_template=. ({refusal})"
        ) from refusal

    def _refusal(self, tools: Sequence[Form], until: float | None) -> TemplateError | None:
        given = values(self._template, self._fixed, [self._question], tools, generates=True)
        try:
            self._template.render(given, until=until)
        except TemplateStoppedError:
            raise
        except TemplateError as error:
            return error
        return None


def _forms(tool: Form) -> Iterator[Form]:
    """Yields the tool as it is, then with each change, then with each two, and so on."""
    for count in range(len(_CHANGES) + 1):
        for changes in combinations(_CHANGES, count):
            form = tool
            for change in changes:
                form = change(form)
            if form != tool or not count:
                yield form


def _in_parameters(change: _Change) -> _Change:
    def changed(tool: Form) -> dict[str, Any]:
        function = tool["function"]
        return {**tool, "function": {**function, "parameters": change(function["parameters"])}}

    return changed


def _described(tool: Form) -> dict[str, Any]:
    """An empty description of the tool, if it has none."""
    function = tool["function"]
    return {**tool, "function": {"name": function["name"], "description": "", **function}}


def _parameters_described(schema: Form) -> dict[str, Any]:
    """An empty description of each parameter that has none."""
    changed = dict(schema)
    if properties := as_mapping(schema.get("properties")):
        parts = {name: as_mapping(part) for name, part in properties.items()}
        changed["properties"] = {
            name: properties[name]
            if part is None
            else {**_parameters_described(part), "description": part.get("description", "")}
            for name, part in parts.items()
        }
    return changed


def _with_properties(schema: Form) -> dict[str, Any]:
    """An empty list of properties in each object that has none."""
    changed = _mapped(schema, _with_properties)
    return {**changed, "properties": {}} if changed.get("type") == "object" and "properties" not in changed else changed


def _spelt_out(schema: Form) -> dict[str, Any]:
    """`{}` for the schema `true`, which means the same."""
    changed = dict(schema)
    for key, value in schema.items():
        if key in _SCHEMAS and value is True:
            changed[key] = {}
        elif key in _NAMED and (named := as_mapping(value)) is not None:
            changed[key] = {name: {} if part is True else part for name, part in named.items()}
    return _mapped(changed, _spelt_out)


def _without_null(schema: Form) -> dict[str, Any]:
    """No type "null"."""
    changed = _mapped(schema, _without_null)
    kinds = changed.get("type")
    if kinds == "null":
        del changed["type"]
    elif isinstance(kinds, list) and "null" in kinds:
        kept = [kind for kind in cast("list[Any]", kinds) if kind != "null"]
        changed["type"] = kept[0] if len(kept) == 1 else kept
    return changed


def _said_to_be_open(schema: Form) -> dict[str, Any]:
    """JSON Schema's default in each object: additional properties are allowed."""

    def opened(part: Form) -> dict[str, Any]:
        changed = _said_to_be_open(part)
        return {**changed, "additionalProperties": {}} if _is_silent(changed) else changed

    return _mapped(schema, opened)


def _is_silent(schema: Form) -> bool:
    return schema.get("type") == "object" and "additionalProperties" not in schema


def _without_additional(schema: Form) -> dict[str, Any]:
    """Nothing about additional properties; calls are checked against the whole schema all the same."""
    changed = _mapped(schema, _without_additional)
    changed.pop("additionalProperties", None)
    return changed


_CHANGES: tuple[_Change, ...] = (
    _described,
    *map(
        _in_parameters,
        (
            _spelt_out,
            _parameters_described,
            _with_properties,
            _without_null,
            _said_to_be_open,
            _without_additional,
        ),
    ),
)
"""The changes that templates need, in the order in which they are tried."""


def _mapped(schema: Form, change: _Change) -> dict[str, Any]:
    """Returns a copy with each direct subschema changed."""
    return mapped(schema, lambda _, part: change(part), "$")
