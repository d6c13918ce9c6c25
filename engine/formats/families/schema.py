"""models.toml as frozen records: what each model family writes, and the rule that recognises its models.

Knows: the schema of a family table and its checks. Does not know: how a format is parsed, rendered or constrained; the
packages for that read these records. Markers are literals written with the whitespace that the family's template puts
around them: "\n</think>\n\n" is the marker `</think>` with one newline before it and two after.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, cast

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from engine.types.parts import Record
from engine.types.sampling import SamplingParams

History: TypeAlias = Literal["none", "last_user", "last_answer", "all", "unknown"]
Shape: TypeAlias = Literal["json", "tagged_json", "tagged_args", "pythonic", "dictionary", "nested"]


class Gate(Record):
    """The template variable that switches reasoning: its name, and the value for each of its positions.

    A position without a value does not exist (gpt-oss cannot be switched off). `default` is what the template does when
    the variable is not given ("model": the model decides). `place`: some models read words in a message instead of a
    variable, at the beginning of the system message or at the end of the last user message; then there is no `kwarg`,
    and the values are the words ("" for none).
    """

    kwarg: str = ""
    place: Literal["variable", "system", "user"] = "variable"
    on: Any = None
    off: Any = None
    low: Any = None
    medium: Any = None
    high: Any = None
    default: Literal["on", "off", "model"] = "on"

    @model_validator(mode="after")
    def _named(self) -> Self:
        if bool(self.kwarg) is not (self.place == "variable"):
            raise _contradictions([("kwarg", "a gate has either a kwarg, or a place for its words")])
        return self


class ReasoningSyntax(Record):
    """How a family marks reasoning, and what later prompts do with it.

    `also_open` and `also_close` are other spellings that models write. `implicit`: a turn begins inside reasoning,
    without an opening marker, unless the prompt shows otherwise. `forced_open`: the template usually opens reasoning
    itself; the parser relies on the rendered prompt's tail instead. `history`: earlier reasoning is dropped ("none"),
    kept after the last user message ("last_user"), since the last final answer ("last_answer"), always ("all"), or the
    template does not handle it ("unknown"). `fields` are the message fields from which the template reads it ("" as an
    entry: tags inside `content`). `ends_on_call`: tool markup inside open reasoning ends it (else it is quoted text).
    `where`: reasoning opens only at the start of a turn's segment (start of the turn, after a call, after other
    reasoning); there, at the start of a line, and wherever its opening marker comes as one token of the vocabulary
    ("line"); or anywhere. `when_closed`: how to treat an opening marker that a model writes although the prompt closed
    reasoning: "separate" the reasoning as usual, or "drop" only the marker. `off`: how reasoning is turned off: by the
    gate, by closing the block in the prompt, by doing "nothing" because the model reasons only when asked, or such a
    request is refused. `after_result`: what the template's prompt does after a tool result while reasoning is on:
    reasoning is "opened", the model is "free" to open it, or there is "no prompt" and the turn goes on. `assumed`: the
    template shows no reasoning; text between the marks that most models write is separated all the same, but no grammar
    offers it.
    """

    open: str
    close: str
    also_open: tuple[str, ...] = ()
    also_close: tuple[str, ...] = ()
    implicit: bool = False
    forced_open: bool = False
    gate: Gate | None = None
    history: History = "unknown"
    fields: tuple[str, ...] = ()
    ends_on_call: bool = False
    where: Literal["start", "line", "anywhere"] = "line"
    when_closed: Literal["separate", "drop"] = "separate"
    off: Literal["gate", "close", "nothing", "refuse"] = "close"
    after_result: Literal["opened", "free", "no prompt"] = "free"
    assumed: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        gated = self.gate is not None and self.gate.off is not None
        found = [
            (name, f"`{name}` is empty: reasoning without that marker is content")
            for name in ("open", "close")
            if not getattr(self, name).strip()
        ]
        if gated is not (self.off == "gate") and "off" in self.model_fields_set:
            found.append(("off", 'off = "gate" and a gate with a value for `off` belong together'))
        if self.gate and self.gate.default == "off" and self.gate.on is None:
            found.append(("gate", "a gate that is off by default needs a value for `on`"))
        if self.open == self.close != "":
            found.append(("close", "`open` and `close` are the same text"))
        if self.forced_open and self.implicit:
            found.append(("implicit", "`forced_open` and `implicit` exclude each other"))
        if self.history in ("last_user", "last_answer", "all") and not self.fields:
            found.append(("history", f'history = "{self.history}" needs `fields` to feed reasoning back through'))
        if self.history == "unknown" and self.fields:
            found.append(("fields", 'with history = "unknown" the template reads no field'))
        return _consistent(self, found)


class CallSyntax(Record):
    """What every syntax of tool calls states: the section that holds calls, how several stand in it, and what history
    requires.

    `section_also` are other spellings of the section's opening marker. `code` are the marks around raw code for a tool
    called `python`. Several calls: each in a section of its own ("sections", the default of `json`), one after the
    other in one section ("together", the default of the others), or as a list in one; `between` is the text between two
    calls if it is not the white space of their markers. `arguments_as`, `id_length` and `parallel` are what the
    family's template requires of history.
    """

    section: tuple[str, str] = ("", "")
    section_also: tuple[str, ...] = ()
    code: tuple[str, str] = ("", "")
    several: Literal["sections", "together", "list"] | None = None
    between: str | None = None
    arguments_as: Literal["object", "string"] = "object"
    id_length: int | None = None
    parallel: bool = True

    @property
    def call_marks(self) -> tuple[str, str]:
        """The marks around each call, where it has some."""
        return "", ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        return _consistent(self, list(self._lacking()))

    def _lacking(self) -> Iterator[tuple[str, str]]:
        """Yields each field without which no call is found, and why."""
        return iter(())


class WholeSyntax(CallSyntax):
    """Calls that are the whole text of their section: JSON or Python calls.

    `bare`: a JSON object (or a pythonic list) at the start of the answer is a call when it names a declared tool.
    """

    bare: bool = False

    def _lacking(self) -> Iterator[tuple[str, str]]:
        if not (self.section[0] or self.bare):
            yield "section", f"shape {_shape(self)} needs section = [open, close], or bare = true"


class JsonSyntax(WholeSyntax):
    """The section holds a JSON object, an array of objects, or several objects.

    `name_fields`, `arguments_fields`, `id_fields` are the keys (several spellings allowed, the first is the family's
    own); `name_is_key`: the name is the key itself; `id_last`: the id comes after the arguments; `indented`: a list of
    calls spreads over lines. `whole_objects`: a JSON object anywhere in the answer is a call when the whole of it names
    a declared tool and fits its schema. `answers`: a bare `{"response": ..}` holds the answer (the generic form).
    `name_end` and `id_open`: a call may also be `name name_end {json}`, with an id.
    """

    shape: Literal["json"]
    whole_objects: bool = False
    answers: bool = False
    name_fields: tuple[str, ...] = ("name",)
    arguments_fields: tuple[str, ...] = ("arguments", "parameters")
    id_fields: tuple[str, ...] = ()
    name_is_key: bool = False
    id_last: bool = False
    indented: bool = False
    name_end: str = ""
    id_open: str = ""


class PythonicSyntax(WholeSyntax):
    """`name(key=value, ..)`, in a list or a line each, Python or JSON literals."""

    shape: Literal["pythonic"]


class MarkedSyntax(CallSyntax):
    """Calls with marks of their own around them, and the name in the markup.

    `call_also` are other spellings of a call's opening marker; `section_optional`: calls are found without the
    section's markers too; `section_tag` are the beginnings of the section's markers if models write them under varying
    names; `heading`: the marks around the tool's name in a heading that must come first, else call markup is text;
    `name_end` ends the name.
    """

    section_optional: bool = False
    section_tag: tuple[str, str] = ("", "")
    heading: tuple[str, str] = ("", "")
    call: tuple[str, str] = ("", "")
    call_also: tuple[str, ...] = ()
    name_end: str = ""

    @property
    def call_marks(self) -> tuple[str, str]:
        return self.call

    def _lacking(self) -> Iterator[tuple[str, str]]:
        if not self.call[0]:
            yield "call", f"shape {_shape(self)} needs call = [open, close]"
        for field in _NEEDED[_shape(self)]:
            stated: str | tuple[str, ...] = getattr(self, field)
            if not (stated if isinstance(stated, str) else any(part.strip() for part in stated)):
                yield field, f"shape {_shape(self)} needs {field}: without it no complete call is found"


class TaggedJsonSyntax(MarkedSyntax):
    """`call[0] name name_end {json} arguments_end call[1]`.

    `name_prefix` is not part of the name; `name_is_id`: prefix, name and counter together form the id; `id_end` ends an
    id written before the name, `id_open` begins an id written after it; `server_end` ends the name of the tool's
    server, written first, and begins the tool's. `names_declared`: the call marker counts only before the name of a
    declared tool. `whole_objects`: a JSON object anywhere in the answer is a call when the whole of it names a declared
    tool and fits its schema.
    """

    shape: Literal["tagged_json"]
    whole_objects: bool = False
    name_prefix: str = ""
    names_declared: bool = False
    name_is_id: bool = False
    id_end: str = ""
    id_open: str = ""
    server_end: tuple[str, str] = ("", "")
    arguments_end: str = ""


class TaggedArgumentsSyntax(MarkedSyntax):
    """`call[0] name name_end (argument[0] key key_end value argument[1])* call[1]`.

    `attributes_end` ends what follows the name; `call_empty` ends the name of a call without arguments, and the call.
    `value_open` stands between key and value; `type_end` ends a type written after the key, `text_types` are the types
    whose values are text; `untyped_text`: a value is text unless the tool's schema names another type; `cdata`: values
    may be CDATA sections; `json_block` are the marks around arguments that come as one JSON text; `escaped`: names and
    keys are written with HTML's escapes.
    """

    shape: Literal["tagged_args"]
    attributes_end: str = ""
    call_empty: str = ""
    argument: tuple[str, str] = ("", "")
    key_end: str = ""
    value_open: str = ""
    type_end: str = ""
    text_types: tuple[str, ...] = ()
    untyped_text: bool = False
    cdata: bool = False
    json_block: tuple[str, str] = ("", "")
    escaped: bool = False


class DictionarySyntax(MarkedSyntax):
    """`call[0] name{key:value, ..} call[1]`, keys bare, strings between `quote` marks."""

    shape: Literal["dictionary"]
    quote: str = ""


class NestedSyntax(MarkedSyntax):
    """`call[0] name name_end`, then an element for each argument, `tag[0] key tag[1]` .. `tag[2] key tag[1]`."""

    shape: Literal["nested"]
    tag: tuple[str, str, str] = ("", "", "")


ToolSyntax: TypeAlias = Annotated[
    JsonSyntax | PythonicSyntax | TaggedJsonSyntax | TaggedArgumentsSyntax | DictionarySyntax | NestedSyntax,
    Field(discriminator="shape"),
]
"""The syntax of tool calls: a record for each shape."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message under which programs and templates keep reasoning, the usual ones first."""
SYNTAXES: Mapping[str, type[CallSyntax]] = {
    "json": JsonSyntax,
    "pythonic": PythonicSyntax,
    "tagged_json": TaggedJsonSyntax,
    "tagged_args": TaggedArgumentsSyntax,
    "dictionary": DictionarySyntax,
    "nested": NestedSyntax,
}
"""The records by their shapes."""

_NEEDED: Mapping[Shape, tuple[str, ...]] = {
    "tagged_json": ("name_end",),
    "tagged_args": ("argument", "key_end"),
    "dictionary": ("quote",),
    "nested": ("tag",),
}
"""The fields that a shape requires. An end may be white space: the end of a line may end a name."""


def _shape(syntax: CallSyntax) -> Shape:
    return cast("ToolSyntax", syntax).shape


class ChannelSyntax(Record):
    """Messages with a header: `start role channel-marker channel message-marker body end`, a recipient in the header.

    Source of what each field means: the harmony response format of gpt-oss.
    """

    start: str
    role: str
    channel: str
    constrain: str
    message: str
    ends: tuple[str, ...]
    call_end: str
    recipient: str = "to="
    namespace: str = "functions."
    reasoning: tuple[str, ...]
    content: tuple[str, ...]


class Format(Record):
    """Everything the parser needs: the turn's start, its markers, and which of them exist only as control tokens.

    `content` are the marks around the answer (`content_repeats`: around each of its parts, and other text may stand
    before them); `header` the marks around a heading that is not part of the content;
    `ends` what a model writes, as text, at the end of its turn. Without `tools` and `channels`, tools use the generic
    form. `continued_end`: the token that ends a turn, and what replaces it once the turn is history.
    """

    start: str = ""
    stops: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    reasoning: ReasoningSyntax | None = None
    tools: ToolSyntax | None = None
    channels: ChannelSyntax | None = None
    content: tuple[str, str] = ("", "")
    content_repeats: bool = False
    header: tuple[str, str] = ("", "")
    ends: tuple[str, ...] = ()
    continued_end: tuple[str, str] | None = None

    @property
    def final_stops(self) -> tuple[str, ...]:
        """The stops that certainly end the turn: all but those that also begin a section of calls (as GigaChat 3's
        does)."""
        openers = (self.tools.section[0], *self.tools.section_also) if self.tools else ()
        return tuple(stop for stop in self.stops if not any(opener.startswith(stop) for opener in openers))

    def __hash__(self) -> int:
        """Formats are keys of caches; a gate may hold values without a hash."""
        return hash((self.start, self.stops, self.control, self.content, self.tools, self.channels))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        found: list[tuple[str, str]] = []
        if self.channels and self.tools:
            found.append(("tools", "channels and tools exclude each other: a channel format carries its calls itself"))
        if self.continued_end and self.continued_end[0] not in self.stops:
            found.append(("continued_end", f"{self.continued_end[0]!r} is not one of the stops"))
        markers = "\n".join(_texts(self.model_dump(exclude={"control"}))) if self.control else ""
        if unused := [text for text in self.control if text not in markers]:
            found.append(("control", f"no marker holds {quoted(unused)}"))
        return _consistent(self, found)


class Detect(Record):
    """The rule that recognises a model. `template`: all of these texts occur in the chat template; `template_not`: none
    does. `architectures` and `names` (case-insensitive parts of the model's name) apply to a GGUF without a
    template."""

    template: tuple[str, ...] = ()
    template_not: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class Family(Record):
    """One row of the truth table."""

    name: str
    title: str
    verified: str = Field(description="the official template this row was checked against")
    detect: Detect = Detect()
    format: Format
    sampling: Mapping[str, float] = {}
    sampling_source: str = ""
    shows_schema: Literal["", "schema", "text", "openai", "cohere"] = Field(
        default="", description="how the chat template takes the schema of the answer; empty: it does not show one"
    )
    suffixed: str = Field(
        default="", description="a marker whose end shows the suffix that a vocabulary may add to all: <think:6124c78e>"
    )

    @model_validator(mode="after")
    def _sourced(self) -> Self:
        found: list[tuple[str, str]] = []
        if bool(self.sampling) is not bool(self.sampling_source):
            found.append(("sampling", "`sampling` and `sampling_source` belong together"))
        if unknown := sorted(set(self.sampling) - set(SamplingParams.model_fields)):
            found.append(("sampling", f"there is no sampling parameter {quoted(unknown)}"))
        return _consistent(self, found)


R = TypeVar("R", bound=Record)


def _consistent(record: R, found: Sequence[tuple[str, str]]) -> R:
    """Returns the record if nothing is wrong with its fields, else raise."""
    if found:
        raise _contradictions(found)
    return record


def _contradictions(found: Sequence[tuple[str, str]]) -> PydanticCustomError:
    """Returns an error for the record as a whole, with each wrong field and what is wrong with it."""
    text = "; ".join(complaint for _, complaint in found)
    return PydanticCustomError("contradiction", "{text}", {"text": text, "found": tuple(found)})


def _texts(node: object) -> list[str]:
    """Returns all texts in a record's data."""
    if isinstance(node, str):
        return [node]
    inner: list[object] = []
    if isinstance(node, Mapping):
        inner = list(cast("Mapping[str, object]", node).values())
    elif isinstance(node, tuple):
        inner = list(cast("tuple[object, ...]", node))
    return [text for item in inner for text in _texts(item)]


def quoted(texts: Sequence[str]) -> str:
    """Returns texts as error messages quote them."""
    return " and ".join(repr(text) for text in texts)
