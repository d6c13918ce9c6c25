"""Completions, OpenAI's older endpoint: reads a body with raw prompts, and writes their continuations as chunks or as
one object. Source: OpenAI API reference, "Create completion"."""

import secrets
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeAlias, cast

from engine.openai.choices import (
    FINISH,
    LEAST_LOGPROB,
    MOST_ALTERNATIVES,
    MOST_CHOICES,
    ChoicesAnswer,
    Usages,
    answer_id,
    usage_object,
)
from engine.openai.fields import COMPLETIONS_FIELDS
from engine.openai.parameters import Json
from engine.openai.problems import bad
from engine.openai.request import Request, read_request
from engine.openai.streaming import ClientEvent, EngineLike, TurnStream, cancel
from engine.support.errors import EngineError
from engine.types.completion import Completion
from engine.types.events import ContentDelta, Finished
from engine.types.sampling import TokenLogprob

RawPrompt: TypeAlias = str | Sequence[int]
_DEFAULT_TOKENS = 16
"""The most tokens of an answer where the request states none, as in OpenAI's API."""


def read_text(body: Json) -> Request:
    """Read a body of `POST /completions`. Raises Problem for what is missing, not valid, or not supported."""
    request = read_request(COMPLETIONS_FIELDS, body, _check)
    if "max_tokens" not in request.names and -1 not in (body.get("max_tokens"), body.get("n_predict")):
        request.options["max_tokens"] = _DEFAULT_TOKENS
    request.names.update(dict.fromkeys(("messages", "prompt"), "prompt"))
    return request


def _check(values: Json) -> Iterator[tuple[str, str, object]]:
    """Raise Problem for prompts that are missing or too many; yields no options."""
    if values.get("prompt") in (None, []):
        message = "prompt is missing; pass a text, tokens, or a list of either."
        raise bad(message, "prompt", "missing_required_parameter")
    prompts, n = prompts_of(values), values.get("n", 1)
    if n < 1 or n * len(prompts) > MOST_CHOICES:
        raise bad(f"{len(prompts)} prompts and n={n} are not valid; ask for 1 to {MOST_CHOICES} answers in all.", "n")
    if (top := values.get("logprobs")) is not None and not 0 <= top <= MOST_ALTERNATIVES:
        raise bad(f"logprobs={top} is not valid; ask for 0 to {MOST_ALTERNATIVES}.", "logprobs")
    if values.get("max_tokens") == 0:
        raise bad("max_tokens=0 is not valid: there would be nothing to return.", "max_tokens")
    yield from ()


def prompts_of(values: Json) -> list[RawPrompt]:
    """Returns the prompts, each a text or tokens."""
    prompt = values["prompt"]
    if isinstance(prompt, str):
        return [prompt]
    items = cast("list[Any]", prompt)
    return [items] if isinstance(items[0], int) else items


def start_text(engine: EngineLike, request: Request, options: Mapping[str, Any]) -> Sequence[TurnStream]:
    """Start the turns of all prompts. Raises EngineError for what the engine refuses."""
    started: list[TurnStream] = []
    try:
        for prompt, number in product(prompts_of(request.values), range(request.n)):
            started.append(engine.stream_complete(prompt, **_seeded(options, number)))
    except EngineError:
        cancel(started)
        raise
    return started


def _seeded(options: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Returns the options of a prompt's answer: the first has the request's seed, the next the next number, as in
    `Engine.choices`; without a seed, or with -1, which is none, each a random one."""
    if number == 0:
        return options
    match options:
        case {"seed": int(seed)} if seed != -1:
            return {**options, "seed": (seed + number) % 2**32}
        case _:
            return {**options, "seed": secrets.randbits(32)}


def text_answer(request: Request, model: str) -> ChoicesAnswer:
    """Returns the projection of one request. `model`: the name in the response."""
    fields = {"id": answer_id("cmpl"), "model": model}
    count = request.n * len(prompts_of(request.values))
    choices = [_Choice(number, request.values.get("logprobs")) for number in range(count)]
    return ChoicesAnswer(request, choices, partial(_usage, request.n), "text_completion", fields)


def _usage(n: int, usages: Usages) -> Json:
    """Returns the usage of all answers; a prompt counts once, however many answers it has."""
    each = [usage_object(usages[start : start + n]) for start in range(0, len(usages), n)]
    return {name: sum(one[name] for one in each) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


class _Choice:
    """One answer. `top`: the alternatives to each token that are told; None tells no log-probabilities."""

    def __init__(self, index: int, top: int | None) -> None:
        self._index = index
        self._top = top
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def opening(self) -> Json | None:
        return None

    def event(self, event: ClientEvent, logprobs: Sequence[TokenLogprob]) -> Json | None:
        text = event.text if isinstance(event, ContentDelta) else ""
        finish = FINISH[event.reason] if isinstance(event, Finished) else None
        return self._object(text, logprobs, finish) if text or logprobs or finish else None

    def whole(self, completion: Completion) -> Json:
        return self._object(completion.content, completion.logprobs or (), FINISH[completion.finish_reason])

    def _object(self, text: str, logprobs: Sequence[TokenLogprob], finish: str | None) -> Json:
        told = self._logprobs(logprobs) if self._top is not None and logprobs else None
        return {"index": self._index, "text": text, "logprobs": told, "finish_reason": finish}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Json:
        """Returns the older form of log-probabilities."""
        offsets: list[int] = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(bytes(entry.bytes)))
        return {
            "tokens": [_name(entry) for entry in entries],
            "token_logprobs": [_finite(entry) for entry in entries],
            "top_logprobs": [self._alternatives(entry) for entry in entries] if self._top else None,
            "text_offset": offsets,
        }

    def _alternatives(self, entry: TokenLogprob) -> Json:
        """Returns the likeliest tokens of a place by their texts, and the token that stands there."""
        told: dict[str, float] = {}
        for each in (*entry.top[: self._top], entry):
            told.setdefault(_name(each), _finite(each))
        return told


def _name(entry: TokenLogprob) -> str:
    """Returns a token's text; of an incomplete character its bytes, in OpenAI's form."""
    data = bytes(entry.bytes)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(entry: TokenLogprob) -> float:
    return max(entry.logprob, LEAST_LOGPROB)
