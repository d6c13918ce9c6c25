"""What a server counted and timed, as `Usage`.

Knows: the `usage` object (OpenAI API reference, "The chat completion object"; DeepSeek's `prompt_cache_hit_tokens`) and
the `timings` of llama.cpp's server (README of tools/server). Does not know: how servers count.
"""

from collections.abc import Mapping
from typing import Any, cast

from engine.openai.wire import Chunk, Diagnostics
from engine.types import Usage


def usage_of(chunk: Chunk, known: Usage | None, diagnostics: Diagnostics) -> Usage | None:
    """What is known after this chunk; its numbers win, since servers that report at each chunk report totals."""
    usage = _record(chunk, "usage", diagnostics)
    timings = _record(chunk, "timings", diagnostics)
    if not usage and not timings:
        return known
    found = {**_of_timings(timings), **_of_usage(usage)}
    numbers: dict[str, int | float] = {}
    for name, value in found.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            diagnostics.report(f"{name} that is not a count", value)
        else:
            numbers[name] = value / 1000 if name.endswith("seconds") else int(value)
    return (known or Usage()).model_copy(update=numbers)


def _of_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt, answer = _inner(usage, "prompt_tokens_details"), _inner(usage, "completion_tokens_details")
    told = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": prompt.get("cached_tokens", usage.get("prompt_cache_hit_tokens")),
        "reasoning_tokens": answer.get("reasoning_tokens"),
    }
    accepted, rejected = answer.get("accepted_prediction_tokens"), answer.get("rejected_prediction_tokens")
    if isinstance(accepted, int) and isinstance(rejected, int) and accepted + rejected:
        told |= {"accepted_tokens": accepted, "drafted_tokens": accepted + rejected}
    return {name: value for name, value in told.items() if value is not None}


def _of_timings(timings: Mapping[str, Any]) -> dict[str, Any]:
    """Times are milliseconds here. The prompt's tokens are those evaluated and those found in the cache."""
    cached, evaluated = timings.get("cache_n"), timings.get("prompt_n")
    both = cached + evaluated if isinstance(cached, int) and isinstance(evaluated, int) else evaluated
    return {
        "prompt_tokens": both,
        "cached_tokens": cached,
        "completion_tokens": timings.get("predicted_n"),
        "prefill_seconds": timings.get("prompt_ms"),
        "decode_seconds": timings.get("predicted_ms"),
        "drafted_tokens": timings.get("draft_n"),
        "accepted_tokens": timings.get("draft_n_accepted"),
    }


def _record(chunk: Chunk, name: str, diagnostics: Diagnostics) -> Mapping[str, Any]:
    value: object = chunk.get(name)
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if value is not None:
        diagnostics.report(f"{name} that is not an object", value)
    return {}


def _inner(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value: object = usage.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
