"""What a person's own answers say about a model's probabilities: a temperature and a weight for each option, fitted on
some fifty decisions with known answers, and the threshold above which to act."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from engine.support.errors import RequestError, shown
from engine.support.output_file import write_file
from engine.types.decisions import Answer, ChoiceAnswer, Decision, PredicateAnswer, Refusal, ScoreAnswer, Value
from engine.types.parts import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LEAST = 1e-9  # a probability whose logarithm is taken
_STEPS = 300
_RATE = 0.2
_HOLD, _HOLD_HEAT = 0.02, 0.1
"""How strongly weights are held at none, and the temperature at 1, as a share of a row's loss: few rows say little.
Measured on rows that fits to 26 to 40 others had not seen: weights gain answers, and a free temperature is too sure."""


class Threshold(NamedTuple):
    """`confidence`: act on answers at least so likely. `error`: the share of them that was wrong among the fitted rows,
    and `share`: how many of all rows they are."""

    confidence: float
    error: float
    share: float


class QuestionFit(Record):
    """One question's fit: `options` in order, the `weights` added to their log-probabilities, which are first divided
    by `temperature`; and of each fitted row the confidence afterwards, and whether the answer was right."""

    options: tuple[str | bool, ...]
    temperature: float
    weights: tuple[float, ...]
    rows: tuple[tuple[float, bool], ...] = ()


class Calibration(Record):
    """A fit for each question, by name; `Calibration.fit` makes one, `llm.decide(..., calibration=...)` applies it."""

    questions: dict[str, QuestionFit]

    @classmethod
    def fit(cls, decisions: Sequence[Decision[Any]], answers: Sequence[Mapping[str, Value]]) -> Self:
        """Returns the fit to decisions (made without a calibration) whose right answers are known: for each decision
        the options by question name, of a predicate True or False. A question that a row leaves out, or that was
        refused, does not count there. Raises RequestError for an answer that is no option, and where fewer than ten
        rows are left for a question."""
        if len(decisions) != len(answers):
            raise RequestError(
                f"There are {len(decisions):,} decisions and {len(answers):,} answers; give one for each."
            )
        names = sorted({name for row in answers for name in row})
        return cls(questions={name: _fitted(name, decisions, answers) for name in names})

    def applied(self, name: str, answer: Answer) -> Answer:
        """Returns the answer with calibrated probabilities; as it is if this question was not fitted. Raises
        RequestError if its options are others than those that were fitted."""
        fit = self.questions.get(name)
        if fit is None or isinstance(answer, Refusal):
            return answer
        import numpy as np

        options = tuple(option for option, _ in answer.rows)
        if options != fit.options:
            raise RequestError(f"calibration was fitted to other options of {shown(name)}: {shown(fit.options)}.")
        logs = np.log(np.maximum([p for _, p in answer.rows], _LEAST)) / fit.temperature + fit.weights
        return with_probabilities(answer, tuple(_softmax(logs[None, :])[0].tolist()))

    def threshold(self, question: str, most_wrong: float = 0.05) -> Threshold:
        """Returns from which confidence on at most this share of the fitted rows was wrong. Raises RequestError for a
        question that was not fitted. Where no threshold is so good, it is the one that no row reaches: 1, 0, 0."""
        if question not in self.questions:
            raise RequestError(
                f"There is no fit for {shown(question)}; there is one for {shown(list(self.questions))}."
            )
        rows = sorted(self.questions[question].rows, reverse=True)
        best, wrong = Threshold(1.0, 0.0, 0.0), 0
        for count, (confidence, right) in enumerate(rows, 1):
            wrong += not right
            last = count == len(rows) or rows[count][0] < confidence
            if last and wrong / count <= most_wrong:
                best = Threshold(confidence, wrong / count, count / len(rows))
        return best

    def save(self, path: str | Path) -> None:
        """Write the record as JSON."""
        write_file(Path(path), self.model_dump_json(indent=1).encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Returns what `save` wrote. Raises RequestError for a file that is none."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise RequestError(f"{shown(str(path))} is no calibration that Calibration.save wrote: {error}") from error


def with_probabilities(answer: Answer, probabilities: Sequence[float]) -> Answer:
    """Returns an answer with these probabilities of its options, in their order."""
    if isinstance(answer, Refusal):
        return answer
    if isinstance(answer, PredicateAnswer):
        return PredicateAnswer(probabilities[0], answer.mass)
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    if isinstance(answer, ChoiceAnswer):
        pairs = tuple(zip((option for option, _ in answer.rows), probabilities, strict=True))
        return ChoiceAnswer(pairs[best][0], probabilities[best], pairs, answer.mass)
    levels = tuple(zip((level for level, _ in answer.probabilities), probabilities, strict=True))
    expected = sum(place * p for place, p in enumerate(probabilities))
    return ScoreAnswer(expected, levels[best][0], probabilities[best], levels, answer.mass)


def _fitted(name: str, decisions: Sequence[Decision[Any]], answers: Sequence[Mapping[str, Value]]) -> QuestionFit:
    import numpy as np

    known = [(d.answers[name], row[name]) for d, row in zip(decisions, answers, strict=True) if name in row]
    rows = [(answer, value) for answer, value in known if not isinstance(answer, Refusal)]
    if len(rows) < 10:
        raise RequestError(f"calibration needs ten rows or more with an answer to {shown(name)}; {len(rows)} have one.")
    options = tuple(option for option, _ in rows[0][0].rows)
    for answer, value in rows:
        if tuple(option for option, _ in answer.rows) != options or not _is_option(value, options):
            raise RequestError(f"{shown(value)} is no option of {shown(name)}: {shown(options)}.")
    logs: NDArray[np.float64] = np.log(np.maximum([[p for _, p in answer.rows] for answer, _ in rows], _LEAST))
    right = np.array([_place(value, options) for _, value in rows])
    temperature, weights = _least_loss(logs, right)
    after = _softmax(logs / temperature + weights)
    confident, chosen = after.max(axis=1), after.argmax(axis=1)
    told = tuple(zip(confident.tolist(), (chosen == right).tolist(), strict=True))
    return QuestionFit(options=options, temperature=temperature, weights=tuple(weights.tolist()), rows=told)


def _is_option(value: object, options: Sequence[Value]) -> bool:
    return any(type(value) is type(option) and value == option for option in options)


def _place(value: Value, options: Sequence[Value]) -> int:
    return next(n for n, option in enumerate(options) if type(value) is type(option) and value == option)


def _least_loss(logs: "NDArray[np.float64]", right: "NDArray[Any]") -> "tuple[float, NDArray[np.float64]]":
    """Returns the temperature and the weights of least log loss, held a little at 1 and 0, by gradient descent with
    momentum on few parameters."""
    import numpy as np

    scale, weights = 0.0, np.zeros(logs.shape[1])  # the temperature is exp(-scale), so that it stays above 0
    hot = np.eye(logs.shape[1])[right]
    pace, paces = 0.0, np.zeros_like(weights)
    for _ in range(_STEPS):
        wrong = _softmax(logs * np.exp(scale) + weights) - hot
        slope = float((wrong * logs).sum(axis=1).mean() * np.exp(scale) + _HOLD_HEAT * scale)
        slopes = wrong.mean(axis=0) + _HOLD * weights
        pace, paces = 0.9 * pace - _RATE * float(np.clip(slope, -1, 1)), 0.9 * paces - _RATE * slopes
        scale, weights = float(np.clip(scale + pace, -4, 3)), weights + paces
    return float(np.exp(-scale)), cast("NDArray[np.float64]", weights)


def _softmax(logs: "NDArray[np.float64]") -> "NDArray[np.float64]":
    import numpy as np

    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
