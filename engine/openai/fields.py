"""Which fields of a request are honoured, ignored or refused: one table for each endpoint, as data."""

from collections.abc import Collection
from typing import Any, Literal, TypeAlias

from engine.openai.extra_fields import SERVER_FIELDS, read_off
from engine.openai.parameters import Effort, Json, Tier, read_biases, read_effort, read_response_format, read_tier
from engine.openai.request import TEMPLATE_FIELD, Field, Reader, Table
from engine.turns.options import RawOptions, TurnOptions

_Metadata: TypeAlias = dict[str, str]
_ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning"]
_OWN_NOTE = "the engine's option"


def _option(
    name: str, kind: Any, note: str, option: str = "", read: Reader | None = None, neutral: tuple[object, ...] = ()
) -> Field:
    """Returns a row for a field that is one option of the engine, by default of the same name."""
    return Field(name, "honoured", kind, note, neutral, option or name, read)


_MODEL = Field("model", "honoured", str, "one engine accepts any name; several are chosen by name, otherwise 404")
_STREAM = Field("stream", "honoured", bool, "server-sent events")
_SAMPLING = (
    _option("temperature", float, "as the engine's option; the model's family has a default"),
    _option("top_p", float, "above 0"),
)
_CHUNKS = Field("stream_options", "honoured", Json, "`include_usage`; `include_obfuscation` does nothing")
_PENALTIES = (
    _option("frequency_penalty", float, "as the engine's option"),
    _option("logit_bias", dict[str, float], "token numbers, and what to add to their logits", read=read_biases),
    _option("presence_penalty", float, "as the engine's option"),
    _option("seed", int, "0 to 2**32 - 1"),
)
_FORM = _option("response_format", Json, "json_object (with a `schema` too), json_schema", read=read_response_format)
_CALLS = (
    Field("parallel_tool_calls", "honoured", bool, "false: one call a turn; true: any number where calls are demanded"),
    Field("tool_choice", "honoured", str | Json, "auto, none, required, a function, allowed_tools"),
    Field("tools", "honoured", list[Json], "functions only; `strict` holds calls to their schema"),
)
_USER = Field("user", "ignored", str, "there is one user")
_MOST = "maximum tokens drawn, reasoning included; -1: to the end of the context"
_UNNEEDED = (
    Field("prompt_cache_key", "ignored", str, "prefixes are found by their tokens"),
    Field("prompt_cache_options", "ignored", Json, "prefixes are kept while there is room"),
    Field("prompt_cache_retention", "ignored", str, "prefixes are kept while there is room"),
    Field("safety_identifier", "ignored", str, "there is one user"),
    _option(
        "service_tier",
        Tier,
        "flex: after the others; priority: before them",
        "priority",
        read_tier,
        ("auto", "default"),
    ),
    _USER,
)
_MODERATION = Field("moderation", "refused", Json, "there is no moderation model")
_TEMPLATE = (
    Field(TEMPLATE_FIELD, "honoured", Json, "variables for the chat template; `enable_thinking` is `reasoning`"),
    _option(
        "restore_reasoning",
        bool,
        "false: reasoning of earlier turns that the client did not send back stays out of the prompt",
    ),
)

_OF_CHAT = (
    Field(
        "messages",
        "honoured",
        list[Json],
        "the conversation; images and sound as data: URLs, images as links if allowed",
    ),
    _MODEL,
    *_SAMPLING,
    *_PENALTIES,
    Field("logprobs", "honoured", bool, "of every token: reasoning, forced ones, markers and the end token too"),
    _option("max_tokens", int, "the older name of `max_completion_tokens`", neutral=(-1,)),
    _option("max_completion_tokens", int, _MOST, "max_tokens", neutral=(-1,)),
    Field("n", "honoured", int, "1 to 128 choices, computed together"),
    _option(
        "reasoning_effort",
        Effort,
        "the engine's `reasoning`: none is False, minimal low, xhigh and max high; on, for a model without efforts",
        "reasoning",
        read_effort,
    ),
    _FORM,
    _option("stop", str | list[str], "texts that end the content"),
    _STREAM,
    _CHUNKS,
    *_CALLS,
    Field("top_logprobs", "honoured", int, "0 to 20, with `logprobs`"),
    Field("metadata", "ignored", _Metadata, "nothing is stored", ({},)),
    Field("prediction", "ignored", Json, 'load with `draft="ngram"` to guess ahead'),
    *_UNNEEDED,
    Field("store", "ignored", bool, "nothing is stored", (False,)),
    Field("verbosity", "ignored", str, "ask for it in the prompt", ("medium",)),
    Field("audio", "refused", Json, "only text comes out"),
    Field("function_call", "refused", str | Json, "write `tool_choice`"),
    Field("functions", "refused", list[Json], "write `tools`", ([],)),
    Field("modalities", "refused", list[str], "only text comes out", (["text"],)),
    _MODERATION,
    Field("web_search_options", "refused", Json, "there is no web search; give a tool"),
    *_TEMPLATE,
    Field("reasoning_field", "honoured", _ReasoningField, "the field in which reasoning is returned"),
)

_OF_RESPONSES = (
    Field(
        "input",
        "honoured",
        str | list[Json],
        "messages, reasoning, function_call, function_call_output; images as data: URLs, or links if allowed",
    ),
    _MODEL,
    *_SAMPLING,
    Field("include", "honoured", list[str], "`reasoning.encrypted_content`; everything else is refused", ([],)),
    Field("instructions", "honoured", str, "a system message before the input; not kept for the next response"),
    _option("max_output_tokens", int, _MOST, "max_tokens", neutral=(-1,)),
    Field("metadata", "honoured", _Metadata, "kept with the response"),
    Field("previous_response_id", "honoured", str, "404 if it is not stored, or not any more"),
    Field("reasoning", "honoured", Json, "`effort` as in Chat Completions; there are no summaries"),
    Field("store", "honoured", bool, "true by default: kept in this process, 1,000 responses or 64 MiB of them"),
    _STREAM,
    Field("stream_options", "honoured", Json, "`include_obfuscation` does nothing"),
    Field("text", "honoured", Json, "`format`"),
    *_CALLS,
    Field("truncation", "honoured", Literal["auto", "disabled"], "auto leaves out the oldest turns"),
    Field("max_tool_calls", "ignored", int, "it limits OpenAI's own tools, of which there are none here"),
    *_UNNEEDED,
    Field("access_programs", "refused", Json, "there are none"),
    Field("background", "refused", bool, "a response is only made while its client waits", (False,)),
    Field("background_options", "refused", Json, "a response is only made while its client waits"),
    Field(
        "context_management",
        "refused",
        list[Json],
        'nothing is compacted at a threshold; `overflow` "summarise" (extra_body) summarises what does not fit',
        ([],),
    ),
    Field("conversation", "refused", str | Json, "use `previous_response_id`"),
    Field("image", "refused", Json, "put pictures into chat messages"),
    _MODERATION,
    Field("prompt", "refused", Json, "no prompts are stored; send the messages"),
    Field("top_logprobs", "refused", int, "use Chat Completions for log-probabilities", (0,)),
    *_TEMPLATE,
)

_OF_COMPLETIONS = (
    Field("prompt", "honoured", str | list[str] | list[int] | list[list[int]], "a text, tokens, or a list of either"),
    _MODEL,
    *_SAMPLING,
    *_PENALTIES,
    _option("logprobs", int, "0 to 20 alternatives to each token; the end token has its place too"),
    _option("max_tokens", int, "16 by default; -1: to the end of the context", neutral=(-1,)),
    Field("n", "honoured", int, "1 to 128 choices for each prompt"),
    _FORM,
    _option("stop", str | list[str], "texts that end the answer"),
    _STREAM,
    _CHUNKS,
    _USER,
    Field("best_of", "refused", int, "use `n`, and choose", (1,)),
    Field(
        "echo",
        "refused",
        bool,
        "write your prompt before the answer; `llm.score` tells the log-probabilities of a given text",
        (False,),
    ),
    Field("n_probs", "refused", int, "write `logprobs`", (0,)),
    _option("suffix", str, "the text after a gap that the model fills in"),
    Field(TEMPLATE_FIELD, "refused", Json, "a prompt is not rendered; use Chat Completions", ({},)),
)
_OF_EMBEDDINGS = (
    Field(
        "input",
        "honoured",
        str | list[str] | list[int] | list[list[int]],
        "a text, tokens, or a list of either, 2,048 at most",
    ),
    _MODEL,
    _option("dimensions", int, "the first numbers of each vector"),
    Field("encoding_format", "honoured", Literal["float", "base64"], "base64: float32, little-endian"),
    _option("input_type", Literal["query", "document"], _OWN_NOTE),
    _option("normalize", bool, _OWN_NOTE),
    _option("prefix", str, _OWN_NOTE),
    _option("truncate", bool, _OWN_NOTE),
    _USER,
)
_OF_DECISIONS = (
    Field("input", "honoured", str | list[Json], "a text, or messages, function and custom calls and their outputs"),
    _MODEL,
    Field("questions", "honoured", list[Json], "1 to 400: predicate, choice, score"),
    _option("prompt_cache_key", str, "what is cached is shared among equal keys only", "cache_salt"),
    Field("prompt_cache_options", "ignored", Json, "prefixes are kept while there is room"),
    Field("safety_identifier", "ignored", str, "there is one user"),
    _option("adapters", list[str] | dict[str, float], _OWN_NOTE),
    _option("deadline", float, _OWN_NOTE),
)
_OF_SYSTEM_ONE = (
    _MODEL,
    Field("state", "honoured", str | Json | list[Any], "a text, or any JSON, which the model sees as text"),
    Field("questions", "honoured", Json, "1 to 400, by name: noul, choice, score"),
    Field("images", "refused", list[str], "put pictures into the messages of POST /decisions"),
    Field("keep_alive", "ignored", Any, "the caller opens and closes the engine"),
    _option("cache_salt", str, _OWN_NOTE),
    _option("adapters", list[str] | dict[str, float], _OWN_NOTE),
    _option("deadline", float, _OWN_NOTE),
)
_NOT_RAW = ("enable_thinking", "n_probs", "think", "thinking_budget")
_NOT_IN_JSON = frozenset({"logits_processors", "progress", "template_kwargs"})


def _table(*rows: Field, not_theirs: Collection[str] = (), not_ours: Collection[str] = (), ours: Any) -> Table:
    """Returns the rows, those of other servers' fields, and a row for each engine option under its own name."""
    servers = (row for row in SERVER_FIELDS.values() if row.name not in not_theirs)
    table = {row.name: row for row in (*rows, *servers)}
    for name in sorted(ours.__optional_keys__ - table.keys() - _NOT_IN_JSON - {*not_ours}):
        table[name] = _option(name, Any, _OWN_NOTE, read=read_off if name == "top_k" else None)
    return table


EMBEDDINGS_FIELDS: Table = {row.name: row for row in _OF_EMBEDDINGS}
SYSTEM_ONE_FIELDS: Table = {row.name: row for row in _OF_SYSTEM_ONE}
DECISIONS_FIELDS: Table = {row.name: row for row in _OF_DECISIONS}
CHAT_FIELDS = _table(*_OF_CHAT, ours=TurnOptions)
RESPONSES_FIELDS = _table(
    *_OF_RESPONSES,
    not_theirs=("n_probs",),
    not_ours=("logit_bias", "logprobs", "max_tokens", "response_format"),
    ours=TurnOptions,
)
COMPLETIONS_FIELDS = _table(*_OF_COMPLETIONS, not_theirs=_NOT_RAW, ours=RawOptions)
