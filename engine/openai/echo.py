"""An answer of Completions with its prompt before it, whose tokens have log-probabilities too."""

from collections.abc import Callable, Generator, Sequence

from engine.openai.streaming import TurnStream
from engine.turns.scoring import ReadPrompt
from engine.types.completion import Completion, Usage
from engine.types.events import ContentDelta, Event, Finished
from engine.types.parts import TextPart
from engine.types.sampling import TokenLogprob


class Echoed:
    """A prompt and the turn that continues it, read like one turn. `answer`: None where nothing is to be generated."""

    def __init__(self, prompt: ReadPrompt, answer: TurnStream | None) -> None:
        self._prompt = prompt
        self._scores: TurnStream | None = prompt.scores
        self._answer = answer
        self._echoed = False
        self._ended = False

    def __await__(self) -> Generator[object, None, Completion]:
        scored = None if self._scores is None else (yield from self._scores.__await__())
        answer = self._nothing() if self._answer is None else (yield from self._answer.__await__())
        return self._whole(scored, answer)

    def result(self, timeout: float | None = None) -> Completion:
        scored = None if self._scores is None else self._scores.result(timeout)
        answer = self._nothing() if self._answer is None else self._answer.result(timeout)
        return self._whole(scored, answer)

    def _whole(self, scored: Completion | None, answer: Completion) -> Completion:
        if scored is not None and scored.finish_reason != "stop":  # cancelled, or the engine was closed
            return scored
        logprobs = (*self._prompt.logprobs, *(answer.logprobs or ()))
        parts = (TextPart(text=self._prompt.text), *answer.parts)
        return answer.model_copy(update={"parts": parts, "logprobs": logprobs})

    def _nothing(self) -> Completion:
        return Completion(finish_reason="length", usage=Usage(prompt_tokens=len(self._prompt.tokens)))

    def listen(self, arrived: Callable[[], None]) -> None:
        arrived()
        for stream in filter(None, (self._scores, self._answer)):
            stream.listen(arrived)

    def take(self) -> Sequence[Event] | None:
        """Returns the next events: the prompt as one, once it is scored, then those of the answer."""
        if not self._echoed:
            return self._take_echo()
        if self._answer is not None:
            return self._answer.take()
        if self._ended:
            return None
        self._ended = True
        return [Finished("length", usage=self._nothing().usage)]

    def _take_echo(self) -> Sequence[Event] | None:
        scores = self._scores
        while scores is not None and not scores.over:
            if (events := scores.take()) is None:
                return None
            for event in events:
                if isinstance(event, Finished) and event.reason != "stop":
                    return [event]
        self._echoed = True
        return [ContentDelta(self._prompt.text, 0)]

    @property
    def over(self) -> bool:
        return self._echoed and (self._ended if self._answer is None else self._answer.over)

    def logprobs_from(self, start: int) -> tuple[TokenLogprob, ...]:
        before = self._prompt.logprobs
        drawn = () if self._answer is None else self._answer.logprobs_from(max(0, start - len(before)))
        return (*before[start:], *drawn)

    @property
    def restored(self) -> Sequence[int]:
        return ()

    def cancel(self) -> None:
        for stream in filter(None, (self._scores, self._answer)):
            stream.cancel()
