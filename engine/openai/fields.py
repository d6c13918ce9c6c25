"""Which fields of a request are honoured, ignored or refused: one table for each endpoint, as data."""

import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from engine.errors import did_you_mean
from engine.openai.parameters import Effort
from engine.openai.problems import bad
from engine.openai.servers import SERVER_FIELDS
from engine.options import RawOptions, TurnOptions

Rule: TypeAlias = Literal["honoured", "ignored", "refused"]
Json: TypeAlias = dict[str, Any]
Metadata: TypeAlias = dict[str, str]


class Field(NamedTuple):
    """One field. `kind`: the type of its values. `note`: what it does, or why it has no effect. `neutral`: values that
    request nothing, which are neither refused nor reported as ignored (None always is one)."""

    name: str
    rule: Rule
    kind: Any
    note: str
    neutral: tuple[object, ...] = ()


Table: TypeAlias = Mapping[str, Field]


class Given(NamedTuple):
    """The honoured fields of one request, and the names of its ignored fields."""

    values: Json
    ignored: tuple[str, ...]


_OF_CHAT = (
    Field("messages", "honoured", list[Json], "the conversation; text only"),
    Field("model", "honoured", str, "one engine accepts any name; several are chosen by name, otherwise 404"),
    Field("frequency_penalty", "honoured", float, "as the engine's option"),
    Field("logit_bias", "honoured", dict[str, float], "token numbers, and what to add to their logits"),
    Field("logprobs", "honoured", bool, "of every token drawn: reasoning, markers and the end token too"),
    Field("max_completion_tokens", "honoured", int, "maximum tokens drawn, reasoning included"),
    Field("max_tokens", "honoured", int, "the older name of `max_completion_tokens`"),
    Field("n", "honoured", int, "1 to 128 choices, computed together"),
    Field("parallel_tool_calls", "honoured", bool, "false: one call a turn", (True,)),
    Field("presence_penalty", "honoured", float, "as the engine's option"),
    Field(
        "reasoning_effort",
        "honoured",
        Effort,
        "the engine's `reasoning`: none is False, minimal low, xhigh and max high; on, for a model without efforts",
    ),
    Field("response_format", "honoured", Json, "json_object (with a `schema` too), json_schema"),
    Field("seed", "honoured", int, "0 to 2**32 - 1"),
    Field("stop", "honoured", str | list[str], "texts that end the content"),
    Field("stream", "honoured", bool, "server-sent events"),
    Field("stream_options", "honoured", Json, "`include_usage`; `include_obfuscation` does nothing"),
    Field("temperature", "honoured", float, "as the engine's option; the model's family has a default"),
    Field("tool_choice", "honoured", str | Json, "auto, none, required, a function, allowed_tools"),
    Field("tools", "honoured", list[Json], "functions only; `strict` holds calls to their schema"),
    Field("top_logprobs", "honoured", int, "0 to 20, with `logprobs`"),
    Field("top_p", "honoured", float, "above 0"),
    Field("metadata", "ignored", Metadata, "nothing is stored", ({},)),
    Field("prediction", "ignored", Json, "load with `draft_max` to guess ahead"),
    Field("prompt_cache_key", "ignored", str, "prefixes are found by their tokens"),
    Field("prompt_cache_options", "ignored", Json, "prefixes are kept while there is room"),
    Field("prompt_cache_retention", "ignored", str, "prefixes are kept while there is room"),
    Field("safety_identifier", "ignored", str, "there is one user"),
    Field("service_tier", "ignored", str, "use the engine's `priority`", ("auto", "default")),
    Field("store", "ignored", bool, "nothing is stored", (False,)),
    Field("user", "ignored", str, "there is one user"),
    Field("verbosity", "ignored", str, "ask for it in the prompt", ("medium",)),
    Field("audio", "refused", Json, "text models only"),
    Field("function_call", "refused", str | Json, "write `tool_choice`"),
    Field("functions", "refused", list[Json], "write `tools`", ([],)),
    Field("modalities", "refused", list[str], "text models only", (["text"],)),
    Field("moderation", "refused", Json, "there is no moderation model"),
    Field("web_search_options", "refused", Json, "there is no web search; give a tool"),
)
_TEMPLATE = Field(
    "chat_template_kwargs", "honoured", Json, "variables for the chat template; `enable_thinking` is `reasoning`"
)
_RESTORE = Field(
    "restore_reasoning",
    "honoured",
    bool,
    "false: reasoning of earlier turns that the client did not send back stays out of the prompt",
)
_OWN = (
    _TEMPLATE,
    Field(
        "reasoning_field",
        "honoured",
        Literal["reasoning_content", "reasoning"],
        "the field in which reasoning is returned",
    ),
    _RESTORE,
)
_OF_SERVERS = tuple(
    Field(row.name, "honoured" if row.option else "ignored", Any, row.note, row.neutral)
    for row in SERVER_FIELDS.values()
)
_NOT_IN_JSON = frozenset({"logits_processors", "progress", "template_kwargs"})


_OF_RESPONSES = (
    Field("input", "honoured", str | list[Json], "messages, reasoning, function_call, function_call_output; text only"),
    Field("model", "honoured", str, "one engine accepts any name; several are chosen by name, otherwise 404"),
    Field("include", "honoured", list[str], "`reasoning.encrypted_content`; everything else is refused", ([],)),
    Field("instructions", "honoured", str, "a system message before the input; not kept for the next response"),
    Field("max_output_tokens", "honoured", int, "maximum tokens drawn, reasoning included"),
    Field("metadata", "honoured", Metadata, "kept with the response"),
    Field("parallel_tool_calls", "honoured", bool, "false: one call a turn", (True,)),
    Field("previous_response_id", "honoured", str, "404 if it is not stored, or not any more"),
    Field("reasoning", "honoured", Json, "`effort` as in Chat Completions; there are no summaries"),
    Field("store", "honoured", bool, "true by default: kept in this process, 1,000 responses or 64 MiB of them"),
    Field("stream", "honoured", bool, "server-sent events"),
    Field("stream_options", "honoured", Json, "`include_obfuscation` does nothing"),
    Field("temperature", "honoured", float, "as the engine's option; the model's family has a default"),
    Field("text", "honoured", Json, "`format`"),
    Field("tool_choice", "honoured", str | Json, "auto, none, required, a function, allowed_tools"),
    Field("tools", "honoured", list[Json], "functions only"),
    Field("top_p", "honoured", float, "above 0"),
    Field("truncation", "honoured", Literal["auto", "disabled"], "auto leaves out the oldest turns"),
    Field("max_tool_calls", "ignored", int, "it limits OpenAI's own tools, of which there are none here"),
    Field("prompt_cache_key", "ignored", str, "prefixes are found by their tokens"),
    Field("prompt_cache_options", "ignored", Json, "prefixes are kept while there is room"),
    Field("prompt_cache_retention", "ignored", str, "prefixes are kept while there is room"),
    Field("safety_identifier", "ignored", str, "there is one user"),
    Field("service_tier", "ignored", str, "use the engine's `priority`", ("auto", "default")),
    Field("user", "ignored", str, "there is one user"),
    Field("access_programs", "refused", Json, "there are none"),
    Field("background", "refused", bool, "a response is only made while its client waits", (False,)),
    Field("background_options", "refused", Json, "a response is only made while its client waits"),
    Field("context_management", "refused", list[Json], "nothing is compacted", ([],)),
    Field("conversation", "refused", str | Json, "use `previous_response_id`"),
    Field("image", "refused", Json, "text models only"),
    Field("moderation", "refused", Json, "there is no moderation model"),
    Field("prompt", "refused", Json, "no prompts are stored; send the messages"),
    Field("top_logprobs", "refused", int, "use Chat Completions for log-probabilities", (0,)),
)


_NOT_RAW = ("enable_thinking", "think", "thinking_budget")
_OF_COMPLETIONS = (
    Field("prompt", "honoured", str | list[str] | list[int] | list[list[int]], "a text, tokens, or a list of either"),
    Field("model", "honoured", str, "one engine accepts any name; several are chosen by name, otherwise 404"),
    Field("echo", "honoured", bool, "the prompt's text before each answer", (False,)),
    Field("frequency_penalty", "honoured", float, "as the engine's option"),
    Field("logit_bias", "honoured", dict[str, float], "token numbers, and what to add to their logits"),
    Field("max_tokens", "honoured", int, "16 by default, as in OpenAI's API; -1: up to the end of the context"),
    Field("n", "honoured", int, "1 to 128 choices for each prompt"),
    Field("presence_penalty", "honoured", float, "as the engine's option"),
    Field("response_format", "honoured", Json, "json_object (with a `schema` too), json_schema"),
    Field("seed", "honoured", int, "0 to 2**32 - 1"),
    Field("stop", "honoured", str | list[str], "texts that end the answer"),
    Field("stream", "honoured", bool, "server-sent events"),
    Field("stream_options", "honoured", Json, "`include_usage`; `include_obfuscation` does nothing"),
    Field("temperature", "honoured", float, "as the engine's option; the model's family has a default"),
    Field("top_p", "honoured", float, "above 0"),
    Field("user", "ignored", str, "there is one user"),
    Field("best_of", "refused", int, "use `n`, and choose", (1,)),
    Field("logprobs", "refused", int, "use Chat Completions for log-probabilities", (0,)),
    Field("n_probs", "refused", int, "use Chat Completions for log-probabilities", (0,)),
    Field("suffix", "honoured", str, "the text after a gap that the model fills in"),
    Field("chat_template_kwargs", "refused", Json, "a prompt is not rendered; use Chat Completions", ({},)),
)


_OF_EMBEDDINGS = (
    Field("input", "honoured", str | list[str] | list[int] | list[list[int]], "a text, tokens, or a list of either"),
    Field("model", "honoured", str, "one engine accepts any name; several are chosen by name, otherwise 404"),
    Field("dimensions", "honoured", int, "the first numbers of each vector"),
    Field("encoding_format", "honoured", Literal["float", "base64"], "base64: float32, little-endian"),
    Field("input_type", "honoured", Literal["query", "document"], "the engine's option"),
    Field("normalize", "honoured", bool, "the engine's option"),
    Field("prefix", "honoured", str, "the engine's option"),
    Field("truncate", "honoured", bool, "the engine's option"),
    Field("user", "ignored", str, "there is one user"),
)


def _table(*rows: Field, without: Collection[str] = (), of: Any = TurnOptions) -> Table:
    """Returns the rows, and a row for each engine option under its own name."""
    table = {row.name: row for row in rows}
    for name in sorted(of.__optional_keys__ - table.keys() - _NOT_IN_JSON - {*without}):
        table[name] = Field(name, "honoured", Any, "the engine's option")
    return table


EMBEDDINGS_FIELDS: Table = {row.name: row for row in _OF_EMBEDDINGS}
CHAT_FIELDS: Table = _table(*_OF_CHAT, *_OWN, *_OF_SERVERS)
RESPONSES_FIELDS: Table = _table(
    *_OF_RESPONSES,
    _TEMPLATE,
    _RESTORE,
    *(row for row in _OF_SERVERS if row.name != "n_probs"),
    without=("logit_bias", "logprobs", "max_tokens", "response_format"),
)
COMPLETIONS_FIELDS: Table = _table(
    *(row for row in _OF_SERVERS if row.name not in _NOT_RAW), *_OF_COMPLETIONS, of=RawOptions
)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=ConfigDict(strict=True))


def read_body(content: bytes) -> Json:
    """Returns a request's body. Raises Problem if it is not a JSON object."""
    try:
        body: Any = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise bad(f"The body of the request is not JSON: {error}.", code="invalid_json") from error
    if not isinstance(body, dict):
        raise bad(f"The body of a request must be a JSON object, not a {type(body).__name__}.", code="invalid_json")
    return cast("Json", body)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def given_fields(table: Table, body: Json) -> Given:
    """Returns the body's fields, sorted by the endpoint's table. Raises Problem for a field that is unknown, refused,
    or of a wrong type."""
    values: Json = {}
    ignored: list[str] = []
    for name, value in body.items():
        row = _row(table, name)
        if value is None or value in row.neutral:
            continue
        _check(row, value)
        if row.rule == "refused":
            raise bad(f"{name} is not supported: {row.note}.", name, "unsupported_parameter")
        if row.rule == "ignored":
            ignored.append(name)
        else:
            values[name] = value
    return Given(values, tuple(ignored))


def _row(table: Table, name: str) -> Field:
    if (row := table.get(name)) is not None:
        return row
    hint = did_you_mean(name, table, "see the table in docs/openai.md for those there are.")
    raise bad(f"There is no field {name!r}; {hint}", name, "unknown_parameter")


def _check(row: Field, value: object) -> None:
    try:
        _adapter(row.kind).validate_python(value)
    except ValidationError as error:
        first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))  # the nearest of a union
        place = next((f"[{step}]" for step in first["loc"] if isinstance(step, int)), "")
        message = f"{row.name}{place} is not valid: {first['msg'][:1].lower()}{first['msg'][1:]}."
        raise bad(message, f"{row.name}{place}", "invalid_type") from error


def engine_options(values: Json, taken: Mapping[str, object]) -> Json:
    """Returns the fields that are engine options under the same name, except those in `taken`."""
    names = TurnOptions.__optional_keys__ - _NOT_IN_JSON
    return {
        name: value
        for name, value in values.items()
        if name in names and name not in taken and name not in SERVER_FIELDS
    }
