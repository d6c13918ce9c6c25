"""Typed questions about each row of a batch: what is asked, the line and the columns that the answers become."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.openai.decisions import answer_object, usage_of
from engine.support.errors import RequestError
from engine.turns.calibration import Calibration
from engine.turns.manner import texts_of, values_of
from engine.turns.questions import Questions, questions_of
from engine.types.decisions import Answer, Decision, Predicate, Question, Refusal, ScoreQuestion
from engine.types.messages import Message

Cells: TypeAlias = dict[str, Any]

_ERROR = "error"
_DIGITS = 4
"""Of a probability in a table; the lines beside it have all."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One row that is judged, not answered: the input of its decision."""

    messages: tuple[Message, ...]

    @property
    def model(self) -> str | None:
        """None: such a row names no model."""
        return None


@dataclass(frozen=True, slots=True)
class RowQuestions:
    """The questions about each row, and what calibrates their probabilities; the columns of their answers."""

    questions: Questions
    calibration: Calibration | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the batch adds: of each question its likeliest value, then its numbers; and the errors."""
        return (*(column for name, each in self._each() for column in _columns(name, each)), _ERROR)

    @property
    def plain(self) -> Cells:
        """What the answers depend on, as plain values."""
        asked = {
            name: [type(each).__name__, each.instructions, [] if isinstance(each, Predicate) else list(each.described)]
            for name, each in self._each()
        }
        fitted = None if self.calibration is None else self.calibration.model_dump(mode="json")
        return {"questions": asked, "calibration": fitted}

    def cells(self, line: Mapping[str, Any] | None, failure: str | None) -> Cells:
        """Returns the columns of a row: what its line says, or why it has none."""
        cells: Cells = dict.fromkeys(self.names)
        if failure is not None or line is None:
            return {**cells, _ERROR: failure}
        refused: list[str] = []
        for name, answer in line["decision"]["answers"].items():
            if answer["type"] == "refusal":
                refused.append(f"{name}: {answer['reason']}")
            else:
                cells |= _cells(name, answer)
        return {**cells, _ERROR: "; ".join(refused) or None}

    def _each(self) -> Iterator[tuple[str, Question]]:
        return ((name, typed.question) for name, typed in self.questions.asked.items())


def asked_of(questions: object, calibration: object) -> RowQuestions:
    """Returns what the options `decide` and `calibration` of a batch ask. Raises RequestError for what is no question,
    for two that would write one column, and for a calibration of other questions."""
    asked = questions_of(questions)
    if calibration is not None and not isinstance(calibration, Calibration):
        raise RequestError("calibration= takes what Calibration.fit or Calibration.load returned.")
    for name, fit in calibration.questions.items() if calibration is not None else ():
        if name not in asked.asked or values_of(asked.asked[name].question) != fit.options:
            raise RequestError(f"calibration= was fitted to a question {name!r} that decide= does not ask so.")
    found = RowQuestions(asked, calibration)
    names = found.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RequestError(f'Two questions of decide= would write a column "{twice[0]}"; rename one.')
    return found


def decision_object(decision: Decision[Any]) -> Cells:
    """Returns a row's decision as JSON: each answer as OpenAI's API has it, with its mass; of a refusal its reason."""
    return {
        "answers": {name: _answer(each) for name, each in decision.answers.items()},
        "usage": usage_of(decision.usage),
    }


def _answer(answer: Answer) -> Cells:
    plain = {name: value for name, value in answer_object(None, answer).items() if name != "name"}
    if isinstance(answer, Refusal):
        return {**plain, "reason": answer.reason, "mass": answer.mass}
    return {**plain, "value": answer.value, "mass": answer.mass}


def _columns(name: str, question: Question) -> tuple[str, ...]:
    if isinstance(question, Predicate):
        return name, f"{name}_probability"
    score = (f"{name}_score",) if isinstance(question, ScoreQuestion) else ()
    return (name, *score, f"{name}_confidence", f"{name}_probabilities")


def _cells(name: str, answer: Mapping[str, Any]) -> Cells:
    cells: Cells = {name: answer["value"]}
    cells |= {
        f"{name}_{number}": round(answer[number], _DIGITS)
        for number in ("probability", "score", "confidence")
        if number in answer
    }
    if (rows := answer.get("probabilities")) is not None:
        options = texts_of([row["label"] if "label" in row else row["value"] for row in rows])
        shares = [round(row["probability"], _DIGITS) for row in rows]
        cells[f"{name}_probabilities"] = json.dumps(dict(zip(options, shares, strict=True)), ensure_ascii=False)
    return cells
