"""Completions, OpenAI's older endpoint: reads a body with raw prompts, and writes their continuations as chunks or as
one object. Source: OpenAI API reference, "Create completion"."""

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias, cast

from engine.errors import EngineError
from engine.events import ContentDelta, Event, Finished
from engine.openai.completions import FINISH, MOST_CHOICES, biases, include_usage, usage_object
from engine.openai.fields import COMPLETIONS_FIELDS, engine_options, given_fields
from engine.openai.parameters import Json, merged, read_response_format
from engine.openai.problems import Problem, bad, problem_of
from engine.openai.projection import FINGERPRINT, EngineLike, TurnStream, cancel
from engine.openai.servers import server_options
from engine.types import Completion, TokenLogprob, Usage

RawPrompt: TypeAlias = str | Sequence[int]
DEFAULT_TOKENS = 16
"""The most tokens of an answer where the request states none, as in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A body that was read. `options` are the engine's options, `names` the request field that each came from."""

    model: str | None
    prompts: list[RawPrompt]
    n: int
    echo: bool
    options: Json
    names: dict[str, str]
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]


def read_text(body: Json) -> TextRequest:
    """Read a body of `POST /completions`. Raises Problem for what is missing, not valid, or not supported."""
    given = given_fields(COMPLETIONS_FIELDS, body)
    values = given.values
    prompts, n = _prompts(values.get("prompt")), values.get("n", 1)
    if n < 1 or n * len(prompts) > MOST_CHOICES:
        raise bad(f"{len(prompts)} prompts and n={n} are not valid; ask for 1 to {MOST_CHOICES} answers in all.", "n")
    echo = bool(values.get("echo"))
    if echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise bad("echo repeats prompts that are texts; this request has tokens.", "echo", "unsupported_parameter")
    stream = bool(values.get("stream"))
    options, names = merged((*_of_openai(values), *server_options(values), *_of_engine(values)))
    if "max_tokens" not in names and values.get("max_tokens") != -1 and body.get("n_predict") != -1:
        options["max_tokens"] = DEFAULT_TOKENS
    return TextRequest(
        model=values.get("model"),
        prompts=prompts,
        n=n,
        echo=echo,
        options=options,
        names={"prompt": "prompt", **names},
        stream=stream,
        include_usage=include_usage(values.get("stream_options"), stream=stream),
        ignored=given.ignored,
    )


def _prompts(given: Any) -> list[RawPrompt]:
    """Returns the prompts, each a text or tokens."""
    if given is None or given == []:
        raise bad(
            "prompt is missing; pass a text, tokens, or a list of either.", "prompt", "missing_required_parameter"
        )
    if isinstance(given, str):
        return [given]
    items = cast("list[Any]", given)
    return [items] if isinstance(items[0], int) else items


def _of_openai(values: Json) -> Iterator[tuple[str, str, object]]:
    """Yields an engine option, the OpenAI field that gave it, and its value."""
    if values.get("max_tokens", -1) != -1:
        yield "max_tokens", "max_tokens", values["max_tokens"]
    if "logit_bias" in values:
        yield "logit_bias", "logit_bias", biases(values["logit_bias"])
    if (format_ := read_response_format(values.get("response_format"), "response_format")) is not None:
        yield "response_format", "response_format", format_


def _of_engine(values: Json) -> Iterator[tuple[str, str, object]]:
    """Yields the same for the engine's options under their own names."""
    for option, value in engine_options(values, dict.fromkeys(("max_tokens", "logit_bias", "response_format"))).items():
        yield option, option, value


@dataclass(frozen=True, slots=True)
class TextAsk:
    """Raw prompts, each with `n` answers: the arguments of the engine's `stream_complete`."""

    engine: EngineLike
    request: TextRequest
    notes: Sequence[str]

    def begin(self) -> Sequence[TurnStream]:
        """Start the turns. Raises Problem for what the engine refuses."""
        started: list[TurnStream] = []
        try:
            for prompt, number in product(self.request.prompts, range(self.request.n)):
                started.append(self.engine.stream_complete(prompt, **self._options(number)))
        except EngineError as error:
            cancel(started)
            raise self.problem(error) from error
        return started

    def _options(self, number: int) -> Mapping[str, Any]:
        """Returns the options of a prompt's answer: the first has the request's seed, the next the next number, as in
        `Engine.choices`."""
        options = self.request.options
        seed = options.get("seed")
        if number == 0 or not isinstance(seed, int):
            return options if number == 0 else {**options, "seed": secrets.randbits(32)}
        return {**options, "seed": (seed + number) % 2**32}

    def problem(self, error: EngineError) -> Problem:
        problem = problem_of(error, {"messages": "prompt", **self.request.names})
        if problem.status == 400 and problem.param is None:  # what is wrong, if no option is, is the prompt
            problem.param = "prompt"
        return problem


class TextAnswer:
    """The projection of one request: turns as chunks, or as one object. `model`: the name in the response."""

    def __init__(self, request: TextRequest, model: str) -> None:
        self._request = request
        self._head: Json = {
            "id": f"cmpl-{secrets.token_hex(14)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }
        self._usages: list[Usage | None] = [None] * (len(request.prompts) * request.n)

    def opening(self) -> Iterator[bytes]:
        if self._request.echo:
            for number in range(len(self._usages)):
                yield self._chunk(number, self._echo(number), None)

    def event(self, choice: int, event: Event, logprobs: Sequence[TokenLogprob]) -> Iterator[bytes]:
        del logprobs
        match event:
            case ContentDelta(text) if text:
                yield self._chunk(choice, text, None)
            case Finished(reason, usage):
                self._usages[choice] = usage
                yield self._chunk(choice, "", FINISH[reason])
            case _:
                pass

    def closing(self) -> Iterator[bytes]:
        if self._request.include_usage:
            yield self._line({**self._head, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def failed(self, problem: Problem) -> Iterator[bytes]:
        yield self._line(problem.body())

    def whole(self, completions: Sequence[Completion]) -> Json:
        self._usages = [completion.usage for completion in completions]
        choices = [
            _choice(number, self._echo(number) + completion.content, FINISH[completion.finish_reason])
            for number, completion in enumerate(completions)
        ]
        return {**self._head, "choices": choices, "usage": self._usage()}

    def _echo(self, choice: int) -> str:
        """Returns the text of an answer's prompt if the request wants it repeated."""
        prompt = self._request.prompts[choice // self._request.n] if self._request.echo else ""
        return prompt if isinstance(prompt, str) else ""

    def _usage(self) -> Json:
        """Returns the usage of all answers; a prompt counts once, however many answers it has."""
        n = self._request.n
        each = [usage_object(self._usages[start : start + n]) for start in range(0, len(self._usages), n)]
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        return {name: sum(usage[name] for usage in each) for name in names}

    def _chunk(self, choice: int, text: str, finish: str | None) -> bytes:
        usage: Json = {"usage": None} if self._request.include_usage else {}
        return self._line({**self._head, "choices": [_choice(choice, text, finish)], **usage})

    @staticmethod
    def _line(data: Json) -> bytes:
        return f"data: {json.dumps(data)}\n\n".encode()


def _choice(index: int, text: str, finish: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
