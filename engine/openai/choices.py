"""Writes the answers of one request as chunks or as one object, for Chat Completions and Completions alike."""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from engine.openai.parameters import Json
from engine.openai.problems import Problem
from engine.openai.request import Request
from engine.openai.streaming import FINGERPRINT, ClientEvent
from engine.types.completion import Completion, Usage
from engine.types.events import Finished
from engine.types.sampling import FinishReason, TokenLogprob

MOST_CHOICES = 128
LEAST_LOGPROB = -9999.0
"""OpenAI's logarithm of a probability of 0; JSON has no infinity."""
MOST_ALTERNATIVES = 20
"""The most alternatives to a token whose log-probabilities are told."""
FINISH: Mapping[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "deadline": "length",
}
"""OpenAI's finish reasons; any other end of a turn is an error."""
Usages: TypeAlias = Sequence[Usage | None]


class Choice(Protocol):
    """How an endpoint writes one answer, with its state in a stream."""

    def opening(self) -> Json | None:
        """Returns what a stream sends of it before anything is generated."""
        ...

    def event(self, event: ClientEvent, logprobs: Sequence[TokenLogprob]) -> Json | None:
        """Returns what an event adds to the answer; None for nothing."""
        ...

    def whole(self, completion: Completion) -> Json: ...


class ChoicesAnswer:
    """The projection of one request. `usage`: writes the usage of all answers; `kind`: the name of a chunk, and without
    `.chunk` of the object that is not streamed; `fields`: more of both."""

    def __init__(
        self,
        request: Request,
        choices: Sequence[Choice],
        usage: Callable[[Usages], Json],
        kind: str,
        fields: Json,
    ) -> None:
        self._counts = request.include_usage
        self._kind = kind
        self._head = {**fields, "created": int(time.time()), "system_fingerprint": FINGERPRINT}
        self._choices = choices
        self._usage = usage
        self._usages: list[Usage | None] = [None] * len(choices)

    def opening(self) -> Iterator[bytes]:
        for choice in self._choices:
            yield from self._chunk(choice.opening())

    def event(self, choice: int, event: ClientEvent, logprobs: Sequence[TokenLogprob]) -> Iterator[bytes]:
        if isinstance(event, Finished):
            self._usages[choice] = event.usage
        yield from self._chunk(self._choices[choice].event(event, logprobs))

    def closing(self) -> Iterator[bytes]:
        if self._counts:
            yield _line(self._object(choices=[], usage=self._usage(self._usages)))
        yield b"data: [DONE]\n\n"

    def failed(self, problem: Problem) -> Iterator[bytes]:
        yield _line(problem.body())

    def whole(self, completions: Sequence[Completion]) -> Json:
        pairs = zip(self._choices, completions, strict=True)
        choices = [choice.whole(completion) for choice, completion in pairs]
        usage = self._usage([completion.usage for completion in completions])
        return {**self._object(choices=choices, usage=usage), "object": self._kind.removesuffix(".chunk")}

    def _chunk(self, choice: Json | None) -> Iterator[bytes]:
        if choice is not None:
            usage: Json = {"usage": None} if self._counts else {}
            yield _line(self._object(choices=[choice], **usage))

    def _object(self, **fields: object) -> Json:
        return {**self._head, "object": self._kind, **fields}


def _line(data: Json) -> bytes:
    # ASCII only: some clients split lines at every separator that Unicode has.
    return f"data: {json.dumps(data)}\n\n".encode()


def answer_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(14)}"


def usage_object(usages: Iterable[Usage | None]) -> Json:
    """Returns OpenAI's usage of all answers to one prompt; the prompt counts once."""
    counts = [usage for usage in usages if usage is not None]
    prompt = max((usage.prompt_tokens for usage in counts), default=0)
    drawn = sum(usage.completion_tokens for usage in counts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": counts[0].cached_tokens if counts else 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(usage.reasoning_tokens for usage in counts),
            "audio_tokens": 0,
            "accepted_prediction_tokens": sum(usage.accepted_tokens for usage in counts),
            "rejected_prediction_tokens": sum(usage.drafted_tokens - usage.accepted_tokens for usage in counts),
        },
    }
