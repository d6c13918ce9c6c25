"""The span of one turn, by OpenTelemetry's conventions: what was asked for, and how it ended."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from engine.runtime.loop.request import TurnRequest
from engine.support import tracing
from engine.types.completion import Usage
from engine.types.events import Finished

T = TypeVar("T")


def traced(submit: Callable[[TurnRequest], T], turn: TurnRequest, model: str, operation: str = "chat") -> T:
    """Submit a turn within a span, which ends with the turn. Raises what `submit` raises."""
    asked = turn.settings.sampling
    span = tracing.begin(
        operation,
        model,
        {
            "gen_ai.provider.name": "llama-engine",
            "gen_ai.request.model": model,
            "gen_ai.request.temperature": asked.temperature,
            "gen_ai.request.top_k": asked.top_k,
            "gen_ai.request.top_p": asked.top_p,
            "gen_ai.request.frequency_penalty": asked.frequency_penalty,
            "gen_ai.request.presence_penalty": asked.presence_penalty,
            "gen_ai.request.max_tokens": asked.max_tokens,
            "gen_ai.request.seed": asked.seed,
            "gen_ai.request.stop_sequences": asked.stop or None,
        },
    )

    def over(finished: Finished, error: Exception | None) -> None:
        used = finished.usage or Usage()
        ended: tracing.Attributes = {
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": [finished.reason],
            "gen_ai.usage.input_tokens": used.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": used.cached_tokens,
            "gen_ai.usage.output_tokens": used.completion_tokens,
            "gen_ai.usage.reasoning.output_tokens": used.reasoning_tokens,
        }
        failed = "" if finished.reason != "error" else type(error).__name__ if error is not None else "error"
        span.end(ended, failed)

    try:
        return submit(replace(turn, over=over))
    except BaseException as error:
        span.end(failed=type(error).__name__)
        raise
