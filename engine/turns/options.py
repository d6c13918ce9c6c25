"""The options that callers may give by name: for loading, for sampling, for a turn."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar, Unpack, cast

from pydantic import Field, ValidationError

from engine.agent.limits import RunArguments
from engine.formats.families import FamilyLike, ResponseTemplateLike
from engine.runtime.cache.state_store import StateStore
from engine.runtime.loop.config import (
    CacheType,
    ContextOptions,
    FlashAttention,
    LlamaOptions,
    LoopOptions,
    MediaOptions,
    ModelOptions,
    Pooling,
    check_value,
    refusal,
    shown,
)
from engine.support.errors import RequestError
from engine.support.hints import unknown_option
from engine.types.media import MediaUrls
from engine.types.messages import DocumentLike
from engine.types.sampling import (
    JsonLayout,
    LogitsProcessor,
    Overflow,
    Progress,
    Reasoning,
    ReasoningFormat,
    SamplerName,
    SamplingParams,
)
from engine.types.tools import AllowedChoice, AllowedTools, ToolChoice, ToolName
from engine.types.turn_settings import AdaptersLike, TurnSettings

Options = TypeVar("Options", bound=Mapping[str, Any])


class ContextLoadOptions(TypedDict, total=False):
    """How a context is made, media are read and requests are served, beyond the everyday options; see `ContextOptions`,
    `MediaOptions`, `MediaUrls` and `LoopOptions`."""

    check_memory: bool
    n_batch: int
    n_sequences: int | None
    kv_unified: bool | None
    kv_tokens: int | None
    n_threads: int | None
    n_threads_batch: int | None
    flash_attn: FlashAttention
    type_k: CacheType
    type_v: CacheType
    pooling: Pooling | None
    control_vectors: Mapping[str, float] | Mapping[Path, float]
    image_min_tokens: int | None
    image_max_tokens: int | None
    media_cache_mib: int
    media_urls: MediaUrls | None
    draft_max: int | None
    max_waiting: int
    prefill_seconds: float
    states: StateStore | None
    llama: LlamaOptions | None


class LoadOptions(ContextLoadOptions, total=False):
    """How weights and context are made, beyond the everyday options; see `ModelOptions` and `ContextOptions`."""

    use_mmap: bool
    use_mlock: bool


class EmbedOptions(TypedDict, total=False):
    """How texts become vectors.

    - `input_type`: "query" or "document": put before each text what this model wants there (`[embedding]` in
      models.toml). `prefix`: put this text before each instead.
    - `dimensions`: only the first numbers of each vector, for models that were trained so (Matryoshka).
    - `normalize`: make each vector's length 1 (default).
    - `truncate`: read only the beginning of a text that is too long, instead of raising an error.
    """

    input_type: Literal["query", "document"] | None
    prefix: str | None
    dimensions: Annotated[int, Field(ge=1)] | None
    normalize: bool
    truncate: bool


class RerankOptions(TypedDict, total=False):
    """How documents are ranked.

    - `top_n`: the most documents to return. `truncate`: read only the beginning of a document that is too long.
    - `normalize`: scores from 0 to 1 (default); False: as the classifier gives them.
    - `template`: the text around `{query}` and `{document}`, instead of the file's own.
    """

    top_n: Annotated[int, Field(ge=1)] | None
    truncate: bool
    normalize: bool
    template: str | None


class ScoreOptions(TypedDict, total=False):
    """How texts are scored. `special`: control-token text in the prompt becomes control tokens. `adapters`,
    `cache_salt`: as in `TurnOptions`."""

    special: bool
    adapters: AdaptersLike | None
    cache_salt: str | None


class LoadArguments(TypedDict, total=False):
    """The named arguments of `Engine.load` and `Engine.from_llama` besides these options."""

    chat_template: str | Path | None
    family: FamilyLike | None
    response_template: ResponseTemplateLike | None
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None
    preflight: bool
    trust_template: bool
    isolated: bool
    progress: Callable[[float], bool | None] | None
    adapters: Mapping[str, str | Path] | None
    revision: str | None
    projector: str | Path | None


class SamplingOptions(TypedDict, total=False):
    """How tokens are sampled; see `SamplingParams`. An option that is left out, or None, takes the family's default."""

    temperature: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    top_n_sigma: float | None
    xtc_probability: float | None
    xtc_threshold: float
    repeat_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    penalty_last_n: int
    dry_multiplier: float | None
    dry_base: float
    dry_allowed_length: int
    dry_last_n: int
    dry_breakers: Sequence[str]
    logit_bias: Mapping[int, float]
    logits_processors: Sequence[LogitsProcessor]
    samplers: Sequence[SamplerName] | None
    logprobs: int | None
    seed: int | None
    stop: str | Sequence[str]
    stop_tokens: Sequence[int]
    ignore_eos: bool
    max_tokens: int | None
    min_tokens: int | None
    repetition_limit: int
    bad_words: str | Sequence[str]


class _CommonOptions(SamplingOptions, total=False):
    priority: int
    deadline: Annotated[float, Field(gt=0)] | None
    progress: Progress | None
    adapters: AdaptersLike | None
    cache_salt: str | None
    json_layout: JsonLayout | None


class FreeRawOptions(_CommonOptions, total=False):
    """`RawOptions` without `response_format`, for signatures that declare it themselves to type the answer."""

    suffix: str | None
    files: Mapping[str, str] | None


class RawOptions(FreeRawOptions, total=False):
    """The options for continuing a raw prompt, besides sampling; as in `TurnOptions`.

    - `suffix`: the text after a gap that begins where the prompt ends; the model fills the gap in. `files`: other files
      of the repository by name, which it reads first.
    """

    response_format: Any


class FreeTurnOptions(_CommonOptions, total=False):
    """`TurnOptions` without `response_format`."""

    reasoning: Reasoning | None
    restore_reasoning: bool
    reasoning_budget: Annotated[int, Field(ge=0)] | None
    reasoning_format: ReasoningFormat
    tool_choice: AllowedChoice
    template_kwargs: Mapping[str, Any] | None
    documents: Sequence[DocumentLike] | None
    builtin_tools: Annotated[Sequence[str], Field(max_length=100)]
    overflow: Overflow
    summary_tokens: Annotated[int, Field(ge=1)] | None
    continue_final_message: bool
    strict_tools: bool
    parallel_tool_calls: bool
    answer_reserve: Annotated[int, Field(ge=1)]
    close_at_limit: bool


class TurnOptions(FreeTurnOptions, total=False):
    """The options of every way of generating, besides sampling.

    - `reasoning`: None is the model's default; True, False, "low", "medium", "high" if its template supports them.
    - `restore_reasoning`: True, the default, restores the reasoning of earlier turns that the messages lack, if this
      engine generated them (`Prompt.restored` lists the messages' indices). False sends the messages unchanged.
    - `reasoning_budget`: the most reasoning tokens; then reasoning is closed and the answer follows.
    - `reasoning_format`: "deepseek" separates reasoning from the content, "none" leaves it in the content,
      "deepseek-legacy" does both, "exclude" drops it.
    - `tool_choice`: "auto"; "none" (tools are not shown; a call written all the same is left out, and counted in
      `usage.dropped_calls`); "required" (one is called, and a run goes back to "auto" after it);
      `ToolName(name=...)`; `AllowedTools(names=...)`; OpenAI's dictionaries of these.
    - `strict_tools`: constrain calls to their tools' schemas while they are written, under "auto" too.
      `parallel_tool_calls`: False is at most one call: the turn ends where a second would begin. True is any number.
      Left out, one where a call is demanded. A demanded call that equals an earlier one of its turn ends the turn and
      is left out.
    - `response_format`: what the answer must be, once reasoning has closed: a type that pydantic knows (the completion
      has the value as `parsed`), `JsonSchema({...})`, `Choice([...])`, `Regex(...)`, `Lark(...)`, `GBNF(...)`,
      `ResponseFormat(...)`, or OpenAI's dictionary. With tools: a call, or such an answer.
    - `answer_reserve`: tokens of `max_tokens` (at most half of them) that are reserved for a constrained answer:
      reasoning is closed when only these are left.
    - `json_layout`: "compact" writes a JSON answer on one line, "indented" one member a line; None, the default: as the
      model begins it. Small models answer better in the form that they know.
    - `close_at_limit`: True, the default, completes a JSON answer in the last of its tokens: what is open is closed,
      and what the schema requires and the model did not reach gets the shortest value. The completion then has
      `finish_reason` "length", and `parse_error` beside `parsed`.
    - `template_kwargs`: variables for the chat template, which override its others.
    - `documents`: texts or dictionaries for a template that takes documents. `builtin_tools`: names of tools that the
      model was trained with, declared by its template ("browser" and "python" of gpt-oss); give tools of these names to
      run the calls.
    - `priority`: higher goes first. `deadline`: seconds until the turn ends with reason "deadline".
    - `continue_final_message`: the last message is the assistant's, and the model continues it; the completion has only
      what the model adds (`Message.continued` joins both).
    - `overflow`: "error" refuses a prompt that is too long, and a full context ends the turn by "length".
      "truncate_oldest" drops whole turns, the oldest first, until `max_tokens` fit after the prompt (default: a quarter
      of the context; at most half of it); system messages, the last question and the newest exchange after it stay.
      "shorten_results" first cuts the results of tools to their beginnings, the oldest first, but not those that the
      model has not read; if that is not enough, it continues as "truncate_oldest". "summarise" drops as much, and puts
      in its place one message, which the model writes before the turn starts: once, not at each turn. Where that fails,
      it only drops. A `Summarised` event tells of both.
    - `summary_tokens`: the most tokens of such a summary. None: a sixteenth of the context, 64 to 512.
    - `adapters`: the LoRA adapters that compute the turn, `["name"]` or `{"name": 0.5}`; None: the model alone.
    - `cache_salt`: a text for each caller whose prompts the others must not guess: what the cache holds is found by
      requests with an equal one only. None: by all that give none.
    - `progress`: called with the number of the prompt's tokens evaluated so far and their total, in the engine's
      thread: it must be quick, and not wait for this engine. It stops the turn by returning False.
    """

    response_format: Any


class ChoicesArguments(TypedDict):
    """The arguments of `Engine.choices` besides the options of a turn."""

    n: Annotated[int, Field(ge=1, le=1_000_000)]
    offline: bool


class FreeAgentOptions(FreeTurnOptions, RunArguments, total=False):
    """`AgentOptions` without `response_format`."""


class AgentOptions(TurnOptions, RunArguments, total=False):
    """The options of the agent loop: those of its turns, and its own (`engine.agent.limits.RunOptions`)."""


def refuse_unknown(options: Mapping[str, Any], names: frozenset[str]) -> None:
    """Raise RequestError for an option that is not one of these."""
    if unknown := sorted(set(options) - names):
        loads = unknown[0] in _OF_LOADING
        raise RequestError(unknown_option(unknown[0], names, "it is one of Engine.load" if loads else ""))


def checked(options: Options, kind: type[Options]) -> Options:
    """Returns the options, checked against the types in `kind` (numbers in quotes as numbers); `SamplingParams` checks
    those of sampling. Raises RequestError for an unknown option, and for a value that is not valid."""
    refuse_unknown(options, frozenset(kind.__annotations__))
    known: dict[str, Any] = {**options}
    for name, value in options.items():
        # `turn_settings` checks tool_choice, and the engine adapters, whose names it knows.
        if name not in SamplingParams.model_fields and name not in ("tool_choice", "adapters"):
            known[name] = check_value(kind, name, value)
    return cast("Options", known)


def check_arguments(**arguments: Unpack[LoadArguments]) -> LoadArguments:
    """Returns the arguments, numbers in quotes as numbers. Raises RequestError for one of a wrong type."""
    known = {name: check_value(LoadArguments, name, value) for name, value in arguments.items()}
    return cast("LoadArguments", known)


def sampling_params(options: Mapping[str, Any], beneath: Mapping[str, Any] | None = None) -> SamplingParams:
    """Returns the sampling options as a record; None counts as not given. `beneath` are defaults. Raises RequestError
    for a value that is not valid."""
    names = SamplingParams.model_fields
    given = {name: value for name, value in options.items() if name in names and value is not None}
    for name in given.keys() & _MINUS_ONE.keys():
        if isinstance(given[name], int) and given[name] == -1:
            given[name] = _MINUS_ONE[name]
    try:
        return SamplingParams.model_validate({**(beneath or {}), **given})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise refusal(name, given.get(name), error) from error


_MINUS_ONE = {"max_tokens": None, "seed": None, "top_k": 0}
"""What -1 means in llama.cpp, ollama and vLLM: no limit, random, off."""


def turn_settings(
    options: Mapping[str, Any],
    kind: type[Mapping[str, Any]],
    beneath: Mapping[str, Any] | None = None,
    *,
    response_format: object = None,
) -> TurnSettings:
    """Returns the options of a turn, of a raw completion or of a score (`kind`), checked, as the record that all else
    is made of. `beneath` are defaults of sampling. Raises RequestError for an unknown option, and for a value that is
    not valid."""
    own: dict[str, Any] = {name: value for name, value in checked(options, kind).items() if name in _OF_TURN}
    if response_format is not None:
        own["response_format"] = response_format
    if "tool_choice" in own:
        own["tool_choice"] = tool_choice(own["tool_choice"])
    names = SamplingParams.model_fields
    drawing = {name: value for name, value in options.items() if name in names and value is not None}
    return TurnSettings(sampling_params(drawing, beneath), frozenset(drawing), **own)


def tool_choice(choice: object) -> AllowedChoice:
    """Returns a choice of tools from any of its spellings. Raises RequestError for an invalid one."""
    if isinstance(choice, ToolName | AllowedTools):
        return choice
    for word in _CHOICES:
        if isinstance(choice, str) and choice == word:
            return word
    match choice:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return ToolName(name=name)
        case {"type": "allowed_tools"}:
            given = cast("Mapping[str, Any]", choice)
            inner: Any = given.get("allowed_tools", given)
            with suppress(KeyError, TypeError, AttributeError, ValidationError, RequestError):
                names: list[Any] = [(tool.get("function") or tool)["name"] for tool in inner["tools"]]
                return AllowedTools(names=tuple(names), mode=inner.get("mode", "auto"))
        case _:
            pass
    raise RequestError(
        f'tool_choice={shown(choice)} is not valid; use "auto", "none", "required", ToolName(name="..."), '
        f'AllowedTools(names=["..."]) or one of OpenAI\'s dictionaries{_meant(choice)}.'
    )


def _meant(choice: object) -> str:
    """Returns what a choice of tools in another library's spelling is here, as the end of a sentence."""
    given = dict(cast("Mapping[str, object]", choice)) if isinstance(choice, Mapping) else {"name": choice}
    name: object = getattr(given.get("name"), "__name__", given.get("name"))
    if choice is True or "any" in [word for word in (name, given.get("type")) if isinstance(word, str)]:
        return '; that one must be called is "required"'
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isidentifier():
        return ""
    if get_close_matches(name, _CHOICES, n=1, cutoff=0.7):
        return ""
    return f'; a tool is named by ToolName(name="{name}")'


_CHOICES = ("auto", "none", "required")
_LONGEST_NAME = 100


def parser_choice(choice: AllowedChoice, *, calls: bool = True) -> ToolChoice:
    """Returns the choice for a parser, which does not distinguish allowed tools from others. `calls=False`: there can
    be no calls."""
    if not calls:
        return "none"
    return choice.mode if isinstance(choice, AllowedTools) else choice


def until(deadline: float | None) -> float | None:
    """Returns the deadline on `time.monotonic`'s clock. One that is not finite is none."""
    return time.monotonic() + deadline if deadline is not None and math.isfinite(deadline) else None


NGRAM, MTP, AUTO = "ngram", "mtp", "auto"
_NGRAM_TOKENS, _MODEL_TOKENS = 15, 8
"""The most tokens of a draft if the caller does not say: copied ones cost nothing, those of a model a decode each."""
HEAD_TOKENS = 3
"""The same for a model's own head, which is made for the first of them."""


_OUTPUTS = 16  # the default limit of rows per conversation that have logits in one decode
_OF_LOADING = frozenset(name for kind in (LoadArguments, LoadOptions) for name in kind.__annotations__) | {
    "n_ctx",
    "n_gpu_layers",
    "draft",
}
_OF_TURN = frozenset(field.name for field in fields(TurnSettings))


@dataclass(frozen=True, slots=True)
class Settings:
    """All options of loading, as the records in which they are used."""

    model: ModelOptions
    context: ContextOptions
    loop: LoopOptions
    media: MediaOptions


def _longest_draft(draft: object, draft_max: Any) -> Any:
    """Returns the most tokens of a draft; 0 for none. `draft_max` alone means guesses by n-grams."""
    if draft_max is not None:
        return draft_max
    if draft is None:
        return 0
    named = {NGRAM: _NGRAM_TOKENS, AUTO: _NGRAM_TOKENS, MTP: HEAD_TOKENS}
    return named.get(draft, _MODEL_TOKENS) if isinstance(draft, str) else _MODEL_TOKENS


def settings(options: Mapping[str, Any], draft: object = None) -> Settings:
    """Split the options over their records (`check_memory` is in two). `draft`: who guesses ahead. Raises RequestError
    for an unknown option, for a value that is not valid, and for options that exclude one another."""
    records = (ModelOptions, ContextOptions, LoopOptions, MediaOptions)
    names = [{field.name for field in fields(record)} for record in records]
    known = {"n_ctx", "n_gpu_layers", *LoadOptions.__annotations__}
    if unknown := sorted(set(options) - known):
        turns = unknown[0] in TurnOptions.__annotations__
        elsewhere = "it is one of each turn: llm.chat(...)" if turns else ""
        if unknown[0] in LlamaOptions.__dataclass_fields__:
            elsewhere = f"write llama=LlamaOptions({unknown[0]}=...), with engine.LlamaOptions"
        raise RequestError(unknown_option(unknown[0], known | LoadArguments.__annotations__.keys(), elsewhere))
    given: dict[str, Any] = {**options, "draft_max": _longest_draft(draft, options.get("draft_max"))}
    if isinstance(vectors := given.get("control_vectors"), Mapping):
        pairs = cast("Mapping[object, object]", vectors).items()
        given["control_vectors"] = tuple((str(path), scale) for path, scale in pairs)
    if (details := given.pop("llama", None)) is not None:
        _ = check_value(LoadOptions, "llama", details)
        given |= asdict(details)
    drafts = given["draft_max"] = check_value(LoopOptions, "draft_max", given["draft_max"])
    given["outputs_per_sequence"] = min(1 + drafts, _OUTPUTS)  # a row to sample from, and the drafts to verify with it
    made: list[Any] = [
        record(**{name: value for name, value in given.items() if name in own})
        for record, own in zip(records, names, strict=True)
    ]
    return Settings(*made)
