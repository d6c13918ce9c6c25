"""What callers may ask for, by name: of loading, of drawing tokens, of a turn.

Knows: the names and types that editors and type checkers show. Does not know: defaults and ranges; those stand with the
records that the names end up in (`engine.runtime.options`, `engine.types.SamplingParams`), of which those for drawing
are made here.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypedDict

from pydantic import ValidationError

from engine.errors import RequestError
from engine.runtime.options import CacheType, FlashAttention, SplitMode
from engine.template.fit import PromptOptions
from engine.types import (
    AllowedChoice,
    DocumentLike,
    LogitsProcessor,
    Overflow,
    Progress,
    Reasoning,
    ReasoningFormat,
    SamplerName,
    SamplingParams,
    StopIn,
)


class ContextLoadOptions(TypedDict, total=False):
    """How a context is made, beyond the everyday options; see `ContextOptions`.

    `n_sequences` conversations are decoded at once; an `n_ctx` that is asked for is what they share.
    """

    check_memory: bool
    n_batch: int
    n_ubatch: int | None
    n_sequences: int
    outputs_per_sequence: int
    n_threads: int
    n_threads_batch: int
    flash_attn: FlashAttention
    type_k: CacheType
    type_v: CacheType
    kv_unified: bool | None
    offload_kqv: bool
    op_offload: bool
    swa_full: bool
    rope_freq_base: float
    rope_freq_scale: float
    device_sampling: bool


class LoadOptions(ContextLoadOptions, total=False):
    """How weights and context are made, beyond the everyday options; see `ModelOptions` and `ContextOptions`."""

    split_mode: SplitMode
    main_gpu: int
    tensor_split: tuple[float, ...]
    use_mmap: bool
    use_mlock: bool
    use_extra_bufts: bool
    check_tensors: bool


class SamplingOptions(TypedDict, total=False):
    """How tokens are drawn; see `SamplingParams`. What is left out, or None, is the family's default."""

    temperature: float | None
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
    mirostat: Literal[0, 1, 2] | None
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: Mapping[int, float]
    logits_processors: Sequence[LogitsProcessor]
    samplers: Sequence[SamplerName] | None
    logprobs: int | None
    seed: int | None
    stop: str | Sequence[str]
    stop_in: StopIn
    stop_tokens: Sequence[int]
    ignore_eos: bool
    max_tokens: int | None


class RawOptions(SamplingOptions, total=False):
    """What the continuation of a raw prompt takes, beside the sampling; as in `TurnOptions`."""

    priority: int
    deadline: float | None
    progress: Progress | None


class TurnOptions(RawOptions, total=False):
    """What every way of generating takes, beside the sampling.

    - `reasoning`: None is the model's default; True, False, "low", "medium", "high" where its template can.
    - `reasoning_budget`: reasoning tokens at most; then reasoning is closed and the answer follows.
    - `reasoning_format`: "deepseek" keeps reasoning apart, "none" leaves it in the content, "deepseek-legacy" does
      both, "exclude" drops it.
    - `tool_choice`: "auto", or "none" (tools are not shown, and call markup stays text).
    - `template_kwargs`: variables for the chat template, which win.
    - `documents`: texts or dictionaries for a template that takes some. `builtin_tools`: names of tools that the model
      was trained with, declared by its template ("browser" and "python" of gpt-oss); give tools of these names to run
      the calls.
    - `priority`: higher goes first. `deadline`: seconds until the turn ends with reason "deadline".
    - `continue_final_message`: the last message is the assistant's, and the model goes on with it; the completion has
      what it adds (`Message.continued` joins both).
    - `overflow`: "error" refuses a prompt that is too long, and a full context ends the turn by "length".
      "truncate_oldest" leaves out the oldest turns, each whole, until `max_tokens` fit behind the prompt (a quarter of
      the context, if not said; half of it at most); system messages, the last question and what came of it last stay.
      "shift" gives up the older half of a full context, less its head (system messages and tools), and goes on: what
      the model wrote on it stays as it was.
    - `progress`: called with the prompt's tokens evaluated so far and all of them, in the engine's thread: it must be
      quick, and not wait for this engine. It stops the turn by answering False.
    """

    reasoning: Reasoning | None
    reasoning_budget: int | None
    reasoning_format: ReasoningFormat
    tool_choice: AllowedChoice
    template_kwargs: Mapping[str, Any] | None
    documents: Sequence[DocumentLike] | None
    builtin_tools: Sequence[str]
    overflow: Overflow
    continue_final_message: bool


def sampling_params(options: Mapping[str, Any], beneath: Mapping[str, Any] | None = None) -> SamplingParams:
    """The record of what the options say of drawing tokens; None counts as not said. `beneath` holds where they are
    silent. Raises RequestError for a value that makes no sense."""
    fields = SamplingParams.model_fields
    given = {name: value for name, value in options.items() if name in fields and value is not None}
    try:
        return SamplingParams.model_validate({**(beneath or {}), **given})
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestError(f"{first['loc'][0]}={first['input']!r} makes no sense: {first['msg']}.") from error


def prompt_options(options: "TurnOptions") -> PromptOptions:
    """Those options that concern the prompt. Raises RequestError for a choice of tools that cannot be enforced."""
    choice = options.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise RequestError(
            f'tool_choice={choice!r} cannot be enforced yet; use "auto" (say in the prompt which to call) or "none".'
        )
    given: dict[str, Any] = {name: value for name, value in options.items() if name in _OF_PROMPT}
    return PromptOptions(**given, until=_until(options.get("deadline")))


def _until(deadline: object) -> float | None:
    """The deadline on `time.monotonic`'s clock. One that is not valid is refused where the turn is submitted."""
    if not isinstance(deadline, int | float) or not math.isfinite(deadline):
        return None
    return time.monotonic() + deadline


_OF_PROMPT = frozenset(field.name for field in fields(PromptOptions))


def refuse_unknown(options: Mapping[str, Any], names: frozenset[str]) -> None:
    """Raises RequestError for an option that is none of these."""
    if unknown := sorted(set(options) - names):
        raise RequestError(f"There is no option {unknown[0]!r}; the options are {', '.join(sorted(names))}.")


def check_drafts(longest_draft: int, options: Mapping[str, Any]) -> None:
    """Raises RequestError for load options that cannot go with drafts of so many tokens, and for less than none."""
    if longest_draft < 0:
        raise RequestError(f"longest_draft={longest_draft} makes no sense; give tokens, 0 or more.")
    if longest_draft and options.get("device_sampling"):
        raise RequestError(
            "longest_draft verifies several tokens of a conversation in one decode, and device_sampling draws one; "
            "leave one of them out."
        )
