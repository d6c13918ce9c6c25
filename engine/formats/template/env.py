"""A chat template as this package renders it, in this process or in a child, and the variables that every template
gets.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

from engine.formats.template.renderer import RemoteTemplate
from engine.support.errors import TemplateError
from engine.types.parts import whole_characters

if TYPE_CHECKING:
    from engine.formats.template.sandbox import Compiled

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
"""What a template sees: plain JSON values."""
_PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of values that need no copy; subclasses of them do."""
_LONGEST = 1_000_000
"""Characters of a template's source."""


class Template:
    """A compiled chat template. It may be rendered from any thread.

    trusted: it is rendered in this process, without limits on memory and time; otherwise in a child process with
        limits. now: the clock that `strftime_now` reads.

    `variables` are the names that it reads without setting them. Raises TemplateError if the source is not a valid
    template, or is not trusted and no child process can be started.
    """

    def __init__(self, source: str, now: Callable[[], datetime] = datetime.now, *, trusted: bool = False) -> None:
        if len(source) > _LONGEST:
            raise TemplateError(
                f"The chat template has {len(source):,} characters; {_LONGEST:,} are allowed. Pass another with "
                "chat_template=."
            )
        self.source = source
        self.now = now
        self._until: float | None = None
        self._compiled = _LocalTemplate(source) if trusted else RemoteTemplate(source)
        self.variables = self._compiled.variables

    def hurried(self, seconds: float) -> Self:
        """Returns the same template with a time limit for all its renders together."""
        other = copy(self)
        other._until = time.monotonic() + seconds
        return other

    def render(
        self, values: Mapping[str, Any], escapes: Mapping[str, str] | None = None, until: float | None = None
    ) -> str:
        """Render with these variables: plain JSON values, which are copied. `escapes`: characters that stand for
        others, and their forms under HTML escaping. `until`: when to give up, on `time.monotonic`'s clock. Raises
        TemplateError with what the template complains about."""
        try:
            copies = {name: value if type(value) in _PLAIN else plain(value) for name, value in values.items()}
            text = self._compiled.render(copies, escapes or {}, self.now(), self._until if until is None else until)
        except RecursionError as error:
            raise TemplateError(
                "The conversation or its tools are nested too deeply for a chat template. Flatten them."
            ) from error
        except ValueError as error:  # a number of thousands of digits
            raise TemplateError(
                f"No chat template can show a value of the conversation or its tools: {error}."
            ) from error
        return whole_characters(text)  # arguments that a model wrote may contain a lone "\ud83d"


class _LocalTemplate:
    """A template that is rendered in this process."""

    def __init__(self, source: str) -> None:
        from engine.formats.template import sandbox

        self._complaint = sandbox.complaint
        try:
            self._compiled: Compiled = sandbox.compiled(source)
        except Exception as error:  # a template is a program: whatever it raises is its complaint
            raise TemplateError(sandbox.complaint(error)) from error
        self.variables = self._compiled.variables

    def render(self, values: dict[str, Any], escapes: Mapping[str, str], now: datetime, _until: float | None) -> str:
        try:
            return self._compiled.render(values, escapes, now)
        except Exception as error:  # as above
            raise TemplateError(self._complaint(error)) from error


def plain(value: Any) -> JSON:
    """Copy a value as plain JSON types. Raises TemplateError for other types: templates get no objects."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[object, Any]", value).items()
        return {str(key): item if type(item) in _PLAIN else plain(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [item if type(item) in _PLAIN else plain(item) for item in cast("list[Any]", value)]
    raise TemplateError(
        f"A chat template takes plain JSON values only; this is a {type(value).__name__}: convert it first."
    )


def values(
    template: Template,
    fixed: Mapping[str, str],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    generates: bool,
    documents: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Returns the variables with which `template` is rendered. `tools` None means no tools; some templates need `[]`
    instead.

    Firefunction's template reads `functions` (JSON text) and `datetime` in place of `tools`, SmolLM3's first one a list
    `xml_tools` of functions (source: their model cards).
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
    if "xml_tools" in template.variables and "tools" not in template.variables:
        given["xml_tools"] = [tool["function"] for tool in tools or ()] or None
    if "datetime" in template.variables:
        given["datetime"] = template.now().strftime("%Y-%m-%d %H:%M:%S")
    return given
