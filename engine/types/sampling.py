"""How tokens are drawn, how a turn may reason, why it ended, and the log-probabilities of what was drawn."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import ConfigDict, Field, field_validator

from engine.support.display import short, tokens_html
from engine.types.parts import Record

Limit: TypeAlias = Literal["max_tokens", "context", "repetition"]


FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "cancelled", "deadline", "error"]


ReasoningFormat: TypeAlias = Literal["deepseek", "deepseek-legacy", "none", "exclude"]
DEFAULT_REASONING_FORMAT: ReasoningFormat = "deepseek"


Reasoning: TypeAlias = bool | Literal["low", "medium", "high"]


SamplerName: TypeAlias = Literal[
    "penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature"
]


BadWord: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]


Progress: TypeAlias = Callable[[int, int], bool | None]
"""Called with the number of a prompt's tokens evaluated so far and their total; stops the turn by returning False."""


JsonLayout: TypeAlias = Literal["compact", "indented"]
Overflow: TypeAlias = Literal["error", "truncate_oldest", "shorten_results", "summarise"]


# Changes the logits in place; they are a float32 array of the vocabulary's size. The tokens are the prompt's, then
# those drawn or forced since.
LogitsProcessor: TypeAlias = Callable[[Sequence[int], Any], None]


_COLD = 1e-6


class SamplingParams(Record):
    """How the next token is drawn, and when to stop.

    `temperature=0` is greedy, and so is a value below 1e-6. `None` takes the model's default (`Engine.sampling`): its
    file's, its repository's, its family's, or llama.cpp's. In this record alone it means that a filter is off, and
    temperature 1.

    - `dynatemp_range` (0: off): the temperature is lower by as much where the model is sure, and higher where it is not
      (by the entropy of what the filters left, through the greatest possible, to the power `dynatemp_exponent`; at
      temperature 0 it does nothing).
    - `top_k` (0: off), `top_p`, `min_p`, `typical_p`, `top_n_sigma` cut the tail off; `xtc_probability` is how often
      all but the least likely of the tokens above `xtc_threshold` are left out.
    - `repeat_penalty` (1: off), `frequency_penalty` and `presence_penalty` (0: off) apply to the last `penalty_last_n`
      tokens, including the prompt's, as in llama.cpp's own server; `dry_multiplier` (0: off) penalises a token that
      would continue a repetition longer than `dry_allowed_length` within the last `dry_last_n` tokens, by multiplier *
      base ** (excess); a repetition does not extend across a breaker.
    - `logit_bias` maps a token id to a number that is added to its logit. `logits_processors` run after it, in order.
    - `samplers`: the filters' order; those left out are off. `None` is penalties, dry, top_n_sigma, top_k, typical_p,
      top_p, min_p, xtc, temperature.
    - `logprobs`: the number of alternatives to report with each token's log-probability; 0: only the token's own.
    - `stop`: texts that end the turn when they occur in the content, which is cut before them. `stop_tokens`
      end it wherever they are drawn, and add no text.
    - `max_tokens`: the most tokens; None: up to the end of the context. `ignore_eos`: the model's end tokens do not end
      the turn; the caller's stops still do. `min_tokens`: before as many, no end token and none of `stop_tokens` is
      drawn, unless a constraint decides where the answer ends.
    - `repetition_limit` (0: off, else 64 or more): a text that stands four times in a row or more, word for word, and
      fills so many tokens ends the turn, with the finish reason "length"; it is one of at most as many tokens, written
      in this turn. Where a constraint is in force, and with `ignore_eos`, nothing ends so.
    - `bad_words`: texts that are not written, also inside longer words; a constraint's own literals are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    temperature: float | None = Field(default=None, ge=0, le=100)
    dynatemp_range: float | None = Field(default=None, ge=0, le=100)
    dynatemp_exponent: float = Field(default=1.0, gt=0, le=100)
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    typical_p: float | None = Field(default=None, gt=0, le=1)
    top_n_sigma: float | None = Field(default=None, gt=0)
    xtc_probability: float | None = Field(default=None, ge=0, le=1)
    xtc_threshold: float = Field(default=0.1, ge=0, le=1)
    repeat_penalty: float | None = Field(default=None, gt=0, le=10)
    frequency_penalty: float | None = Field(default=None, ge=-10, le=10)
    presence_penalty: float | None = Field(default=None, ge=-10, le=10)
    penalty_last_n: int = Field(default=64, ge=1, le=2**20)
    dry_multiplier: float | None = Field(default=None, ge=0)
    dry_base: float = Field(default=1.75, ge=1)
    dry_allowed_length: int = Field(default=2, ge=1, lt=2**31)
    dry_last_n: int = Field(default=1024, ge=1, le=2**20)
    dry_breakers: Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(fail_fast=True)] = Field(
        default=("\n", ":", '"', "*"), max_length=100
    )
    logit_bias: Annotated[tuple[tuple[int, float], ...], Field(fail_fast=True)] = ()
    logits_processors: tuple[LogitsProcessor, ...] = Field(default=(), repr=False)
    samplers: Annotated[tuple[SamplerName, ...], Field(max_length=32, fail_fast=True)] | None = None
    logprobs: int | None = Field(default=None, ge=0, le=100)
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    stop: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=100_000)], ...], Field(fail_fast=True)] = Field(
        default=(), max_length=100
    )
    stop_tokens: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(fail_fast=True)] = ()
    ignore_eos: bool = False
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int | None = Field(default=None, ge=0)
    repetition_limit: Literal[0] | Annotated[int, Field(ge=64, lt=2**31)] = 2048
    bad_words: Annotated[tuple[BadWord, ...], Field(fail_fast=True)] = Field(default=(), max_length=100)

    @field_validator("temperature")
    @classmethod
    def _cold(cls, value: float | None) -> float | None:
        """Treat a tiny temperature as 0, since dividing logits by it would overflow."""
        return 0.0 if value is not None and value < _COLD else value

    @field_validator("stop", "dry_breakers", "bad_words", mode="before")
    @classmethod
    def _one_text(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        return tuple(cast("Mapping[Any, Any]", value).items()) if isinstance(value, Mapping) else value

    @property
    def penalises(self) -> bool:
        """Whether a repetition penalty is on."""
        return (self.repeat_penalty or 1.0) != 1 or bool(self.frequency_penalty) or bool(self.presence_penalty)

    def of_choice(self, number: int) -> "SamplingParams":
        """Returns the sampling of one of several answers: if there is a seed, each answer gets its own."""
        seed = None if self.seed is None else (self.seed + number) % 2**32
        return self if seed == self.seed else self.model_copy(update={"seed": seed})

    @property
    def looks_back(self) -> bool:
        """Whether earlier tokens affect sampling, so that the sampler needs the prompt's."""
        return self.penalises or bool(self.dry_multiplier)


class TokenLogprob(Record):
    """A token and the natural logarithm of its probability under the model: before any filter, bias or temperature.

    `text` has U+FFFD if the token is an incomplete character; `bytes` has its exact bytes. `top` are the likeliest
    tokens at this position, best first (the drawn one may be among them); they have no `top` themselves.
    """

    token: int
    text: str
    bytes: tuple[int, ...]
    logprob: float
    top: tuple["TokenLogprob", ...] = ()

    def _told(self) -> Iterator[tuple[str, object]]:
        whole = self.text.encode() == bytes(self.bytes)
        return (each for each in super()._told() if not (whole and each[0] == "bytes"))


class Logprobs(tuple[TokenLogprob, ...]):
    """Tokens with their log-probabilities; a notebook shows them as a text in which unlikely tokens stand out."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return logprobs_html(self)


def logprobs_html(tokens: Iterable[TokenLogprob]) -> str:
    return tokens_html((each.text, each.logprob, _alternatives(each)) for each in tokens)


def _alternatives(token: TokenLogprob) -> str:
    return ", ".join(f"{short(other.text)!r} {math.exp(other.logprob):.1%}" for other in token.top)
