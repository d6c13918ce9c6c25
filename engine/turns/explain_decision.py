"""What a decision was read from: the prompt, the tokens of each option, and what the model would rather have said."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.support.report import RowReport
from engine.turns.manner import Way
from engine.types.decisions import Answer, Value


class OptionRead(NamedTuple):
    """One option: its `spellings`, each as the texts of its tokens; its `share` of the options' probability behind the
    input, and `prior`, the share behind nothing, if that counts against it; and its `probability` in the answer."""

    value: Value
    spellings: tuple[tuple[str, ...], ...]
    share: float
    prior: float | None
    probability: float


@dataclass(frozen=True, slots=True)
class DecisionExplanation(RowReport):
    """How one question was put and read.

    - `way`: whether the options were shown; `losses`: the log loss of both ways on questions with known answers, by
      which it was settled; None where it was not measured.
    - `prompt`: the text after which the answer would begin; `tokens`: its tokens.
    - `options`: what was read of each; `mass`: the probability of their first tokens together.
    - `outside`: the likeliest first tokens that begin no option, each with its probability.
    """

    answer: Answer
    way: Way
    losses: tuple[float, float] | None
    prompt: str
    tokens: tuple[int, ...]
    options: tuple[OptionRead, ...]
    mass: float
    outside: tuple[tuple[str, float], ...]

    def rows(self) -> Iterator[tuple[str, str]]:
        yield "answer", f"{self.answer.value!r}, {self.answer.confidence:.1%}"
        yield "asked", _WAYS[self.way]
        if self.losses is not None:
            shown, bare = self.losses
            yield "", f"log loss on ten questions with known answers: {shown:.2f} with the options, {bare:.2f} without"
        yield "prompt", repr(self.prompt)
        for each in self.options:
            prior = "" if each.prior is None else f", to nothing {each.prior:.2%}"
            yield repr(each.value), f"{each.probability:.1%} (read {each.share:.2%}{prior}): {_spelled(each.spellings)}"
        yield "mass", f"{self.mass:.3%} of the probability is on the options"
        yield "outside", ", ".join(f"{text!r} {p:.1%}" for text, p in self.outside)


_WAYS: dict[Way, str] = {
    "shown": "with the options shown",
    "bare": "without the options, relative to what is answered to an input that says nothing",
}


def _spelled(spellings: Sequence[Sequence[str]]) -> str:
    return ", ".join(" + ".join(map(repr, tokens)) for tokens in spellings)
