"""Typed questions about one input, and their answers: a probability for every option, nothing generated.

The kinds and their fields are those of OpenAI's Decisions API (predicate, choice, score, refusal).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, cast

from typing_extensions import TypeVar

from engine.support.display import short, table_html
from engine.support.errors import RequestError, shown
from engine.support.printed import Printed
from engine.types.completion import Usage

MOST_OPTIONS = 255
"""Of one question, as in OpenAI's API; the least is 2."""
MOST_QUESTIONS = 400
"""About one input, as in OpenAI's API."""

Value: TypeAlias = str | bool
"""What a choice chooses: a text, or a truth value. The text "True" and the value True are two options."""
Options: TypeAlias = Sequence[Any] | Mapping[Any, str]
"""Options in order, or with a description of each."""
Parsed = TypeVar("Parsed", default=Any)


@dataclass(frozen=True, slots=True, repr=False)
class Predicate(Printed):
    """A statement about the input: how likely is it true? `Predicate("The customer is angry.")`"""

    instructions: str

    def __post_init__(self) -> None:
        _check_text(self, "instructions", self.instructions)


@dataclass(frozen=True, slots=True, repr=False)
class ChoiceQuestion(Printed):
    """One of 2 to 255 options: `ChoiceQuestion("Which queue?", ["billing", "access"])`, or with what each means,
    `{"billing": "invoices, refunds", "access": "logging in"}`. An option is a text or a truth value."""

    instructions: str
    choices: Options

    def __post_init__(self) -> None:
        _check_text(self, "instructions", self.instructions)
        _check_options(self, "choices", self.choices, str | bool)

    @property
    def described(self) -> tuple[tuple[Value, str], ...]:
        """The options with their descriptions, "" for none."""
        return _described(self.choices)


@dataclass(frozen=True, slots=True, repr=False)
class ScoreQuestion(Printed):
    """One of 2 to 255 levels, the lowest first: `ScoreQuestion("How severe?", ["low", "medium", "high"])`, or with what
    each means, `{"low": "a wish", "high": "nobody can work"}`."""

    instructions: str
    levels: Options

    def __post_init__(self) -> None:
        _check_text(self, "instructions", self.instructions)
        _check_options(self, "levels", self.levels, str)

    @property
    def described(self) -> tuple[tuple[str, str], ...]:
        """The levels with their descriptions, "" for none."""
        return _described(self.levels)


Question: TypeAlias = Predicate | ChoiceQuestion | ScoreQuestion


@dataclass(frozen=True, slots=True, repr=False)
class PredicateAnswer(Printed):
    """`probability`: that the statement is true. `mass`: how much of the model's own probability was on the options at
    all; little mass means that it would rather have answered something else."""

    probability: float
    mass: float = 1.0

    @property
    def value(self) -> bool:
        """Whether the statement is more likely true."""
        return self.probability >= 0.5

    @property
    def confidence(self) -> float:
        """The probability of `value`."""
        return max(self.probability, 1 - self.probability)

    @property
    def rows(self) -> tuple[tuple[Value, float], ...]:
        """The options, each with its probability."""
        return (True, self.probability), (False, 1 - self.probability)


@dataclass(frozen=True, slots=True, repr=False)
class ChoiceAnswer(Printed):
    """The likeliest option `choice`, its probability `confidence`, and all options with theirs, which add up to 1."""

    choice: Value
    confidence: float
    probabilities: tuple[tuple[Value, float], ...]
    mass: float = 1.0

    @property
    def value(self) -> Value:
        """The choice."""
        return self.choice

    @property
    def rows(self) -> tuple[tuple[Value, float], ...]:
        """The options, each with its probability."""
        return self.probabilities


@dataclass(frozen=True, slots=True, repr=False)
class ScoreAnswer(Printed):
    """The expected level `score`, from 0 for the lowest: the sum of each level's place times its probability. `level`
    is the likeliest level, `confidence` its probability, and `probabilities` has all, which add up to 1."""

    score: float
    level: str
    confidence: float
    probabilities: tuple[tuple[str, float], ...]
    mass: float = 1.0

    @property
    def value(self) -> str:
        """The likeliest level."""
        return self.level

    @property
    def rows(self) -> tuple[tuple[Value, float], ...]:
        """The levels, each with its probability."""
        return self.probabilities


@dataclass(frozen=True, slots=True, repr=False)
class Refusal(Printed):
    """A question that cannot be answered, and why. `mass`: how much probability was on its options."""

    reason: str
    mass: float = 0.0

    value = None
    confidence = 0.0
    rows = ()


Answer: TypeAlias = PredicateAnswer | ChoiceAnswer | ScoreAnswer | Refusal


@dataclass(frozen=True, slots=True, repr=False)
class Decision(Printed, Generic[Parsed]):
    """The answers to the questions about one input, by name; `decision["angry"].probability`.

    - `answers`: by the questions' names, in their order; a list of questions has the names "0", "1", ...
    - `parsed`: the likeliest values in the form in which was asked: a truth value, an option or a level for one
      question, an object for a type with fields, else a dictionary or a list. None stands for a refusal.
    - `usage`: tokens of the prompts, evaluated or found in the cache; nothing is generated.
    """

    answers: Mapping[str, Answer]
    parsed: Parsed
    usage: Usage = field(default_factory=Usage)

    def __getitem__(self, name: str) -> Answer:
        """Returns the answer of this name. Raises KeyError if no question has it."""
        return self.answers[name]

    def certain(self, threshold: float) -> bool:
        """Whether each answer is at least so likely: act above it, ask a person below it. `Calibration.threshold` finds
        one."""
        return all(answer.confidence >= threshold for answer in self.answers.values())

    def _told(self) -> Iterator[tuple[str, object]]:
        return (each for each in Printed._told(self) if each[0] != "usage")

    def _repr_html_(self) -> str:
        return table_html((short(name), _bars(answer)) for name, answer in self.answers.items())


def _bars(answer: Answer) -> str:
    if isinstance(answer, Refusal):
        return f"refused: {answer.reason}"
    likeliest = sorted(answer.rows, key=lambda row: -row[1])[:_SHOWN]
    return "\n".join(f"{'█' * round(20 * p) or '▏'} {p:.1%} {short(str(value))}" for value, p in likeliest)


_SHOWN = 8  # options of one answer in a notebook


def _check_text(record: object, name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{type(record).__name__}.{name} is a text; got {shown(value)}.")


def _check_options(record: object, name: str, value: object, kind: Any) -> None:
    kinds = "texts" if kind is str else "texts or truth values"
    where = f"{type(record).__name__}.{name}"
    if isinstance(value, str) or not isinstance(value, Sequence | Mapping):
        raise RequestError(f"{where} takes a list of {kinds}, or a dictionary of them with descriptions.")
    options = list(cast("Sequence[object]", value))
    if not 2 <= len(options) <= MOST_OPTIONS:
        raise RequestError(f"{where} has {len(options):,} options; give 2 to {MOST_OPTIONS}.")
    if wrong := [
        each for each in options if not isinstance(each, kind) or (isinstance(each, str) and not each.strip())
    ]:
        raise RequestError(f"{where} has {shown(wrong[0])}; an option is one of {kinds}.")
    if len({(type(each), each) for each in options}) != len(options):
        raise RequestError(f"{where} has an option twice; each must be another.")
    if isinstance(value, Mapping):
        about = cast("Mapping[object, object]", value).values()
        if wrong := [each for each in about if not isinstance(each, str)]:
            raise RequestError(f"{where} has the description {shown(wrong[0])}; give a text.")


def _described(options: Options) -> tuple[tuple[Any, str], ...]:
    return tuple(options.items()) if isinstance(options, Mapping) else tuple((each, "") for each in options)
