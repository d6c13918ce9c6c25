"""Completions, OpenAI's older endpoint: reads a body with raw prompts, and writes their continuations as chunks or as
one object. Source: OpenAI API reference, "Create completion"."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeAlias, cast

from engine.errors import EngineError
from engine.events import ContentDelta, Finished
from engine.openai.choices import FINISH, MOST_CHOICES, ChoicesAnswer, Usages, answer_id, usage_object
from engine.openai.fields import COMPLETIONS_FIELDS
from engine.openai.parameters import Json
from engine.openai.problems import bad
from engine.openai.projection import ClientEvent, EngineLike, TurnStream, cancel
from engine.openai.request import Request, read_request
from engine.types import Completion, TokenLogprob

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
    if values.get("echo") and not all(isinstance(prompt, str) for prompt in prompts):
        raise bad("echo repeats prompts that are texts; this request has tokens.", "echo", "unsupported_parameter")
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
    `Engine.choices`."""
    if number == 0:
        return options
    seed = options.get("seed")
    return {**options, "seed": (seed + number) % 2**32 if isinstance(seed, int) else secrets.randbits(32)}


def text_answer(request: Request, model: str) -> ChoicesAnswer:
    """Returns the projection of one request. `model`: the name in the response."""
    fields = {"id": answer_id("cmpl"), "model": model}
    prompts = [prompt for prompt in prompts_of(request.values) for _ in range(request.n)]
    echoes = [prompt if request.values.get("echo") and isinstance(prompt, str) else None for prompt in prompts]
    choices = [_Choice(number, echo) for number, echo in enumerate(echoes)]
    return ChoicesAnswer(request, choices, partial(_usage, request.n), "text_completion", fields)


def _usage(n: int, usages: Usages) -> Json:
    """Returns the usage of all answers; a prompt counts once, however many answers it has."""
    each = [usage_object(usages[start : start + n]) for start in range(0, len(usages), n)]
    return {name: sum(one[name] for one in each) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


class _Choice:
    """One answer. `echo`: the prompt, where the request wants it repeated."""

    def __init__(self, index: int, echo: str | None) -> None:
        self._index = index
        self._echo = echo

    def opening(self) -> Json | None:
        return None if self._echo is None else self._object(self._echo)

    def event(self, event: ClientEvent, logprobs: Sequence[TokenLogprob]) -> Json | None:
        del logprobs
        match event:
            case ContentDelta(text) if text:
                return self._object(text)
            case Finished(reason):
                return self._object("", FINISH[reason])
            case _:
                return None

    def whole(self, completion: Completion) -> Json:
        return self._object((self._echo or "") + completion.content, FINISH[completion.finish_reason])

    def _object(self, text: str, finish: str | None = None) -> Json:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": finish}
