"""What an engine has done so far, in numbers: sums over its finished requests, and their Prometheus text."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from engine.support.display import record_html
from engine.support.printed import Printed
from engine.types.completion import Usage
from engine.types.sampling import FinishReason

_COUNTERS = (
    ("prompt_tokens", "Tokens of prompts."),
    ("cached_tokens", "Tokens of prompts that were reused from the prefix cache."),
    ("completion_tokens", "Tokens generated."),
    ("reasoning_tokens", "Tokens generated as reasoning."),
    ("drafted_tokens", "Tokens guessed ahead."),
    ("accepted_tokens", "Tokens guessed ahead that came true."),
    ("undrafted_tokens", "Tokens drawn without a guess, because guesses did not pay."),
    ("weighed_tokens", "Tokens tried where a form leaves a few texts, to choose one as a whole."),
    ("prefill_seconds", "Seconds from a request's start to its first token, summed over requests."),
    ("decode_seconds", "Seconds from a request's first token to its end, summed over requests."),
)


@dataclass(frozen=True, slots=True, repr=False)
class Metrics(Printed):
    """Sums over the requests that are over; `running` counts the others. Times are in seconds, summed over requests
    that overlap.

    `first_tokens` requests drew a first token; their times to it sum up to `time_to_first_token`. `checkpoints` and
    `checkpoint_bytes`: number and size of the checkpoints of recurrent memories when the last request ended.
    `n_threads` and `n_threads_batch`: the threads that decode now, for a token and for a batch, fewer while other
    programs hold the processors; 0 before the first decode. `restarts`: how often the process of an isolated model died
    and was started again.
    """

    finished: Mapping[FinishReason, int] = field(default_factory=dict[FinishReason, int])
    running: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    undrafted_tokens: int = 0
    weighed_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    time_to_first_token: float = 0.0
    first_tokens: int = 0
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    n_threads: int = 0
    n_threads_batch: int = 0
    restarts: int = 0

    def _repr_html_(self) -> str:
        ends = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.finished.items()))
        counts = {each.name: getattr(self, each.name) for each in fields(self)}
        counts["finished"] = ends
        if first := counts.pop("first_tokens"):
            counts["time_to_first_token"] /= first
        return record_html(counts.items())

    def prometheus(self, prefix: str = "llama_engine") -> str:
        """Returns the metrics in the Prometheus text format, version 0.0.4; every name begins with `prefix`."""
        lines: list[str] = []

        def family(name: str, kind: str, about: str, *samples: tuple[str, float]) -> None:
            lines.extend((f"# HELP {prefix}_{name} {about}", f"# TYPE {prefix}_{name} {kind}"))
            lines.extend(f"{prefix}_{name}{label} {value}" for label, value in samples)

        ends = [(f'{{reason="{reason}"}}', count) for reason, count in sorted(self.finished.items())]
        family("requests_total", "counter", "Requests that are over, by how they ended.", *ends)
        family("requests_running", "gauge", "Requests that wait or run.", ("", self.running))
        family("checkpoints", "gauge", "Checkpoints of recurrent memories.", ("", self.checkpoints))
        family("checkpoint_bytes", "gauge", "Bytes that they take.", ("", self.checkpoint_bytes))
        family("threads", "gauge", "Threads that decode a token now.", ("", self.n_threads))
        family("threads_batch", "gauge", "Threads that decode a batch now.", ("", self.n_threads_batch))
        family("restarts_total", "counter", "Processes of the model that died and were replaced.", ("", self.restarts))
        for name, about in _COUNTERS:
            family(f"{name}_total", "counter", about, ("", getattr(self, name)))
        seconds = (("_sum", self.time_to_first_token), ("_count", self.first_tokens))
        family("time_to_first_token_seconds", "summary", "From submission to the first token.", *seconds)
        return "\n".join(lines) + "\n"


class Tally:
    """Adds up finished requests. One thread adds; any thread may read the sums."""

    def __init__(self) -> None:
        self._sums = Metrics()

    def add(self, reason: FinishReason, usage: Usage | None) -> None:
        """Add a request that is over; one that never started has no usage."""
        old, usage = self._sums, Usage() if usage is None else usage
        first = usage.time_to_first_token
        # A new record each time, so that a reader never sees half of an addition.
        self._sums = Metrics(
            finished={**old.finished, reason: old.finished.get(reason, 0) + 1},
            time_to_first_token=old.time_to_first_token + (first or 0.0),
            first_tokens=old.first_tokens + (first is not None),
            **{name: getattr(old, name) + getattr(usage, name) for name, _ in _COUNTERS},
        )

    @property
    def sums(self) -> Metrics:
        return self._sums
