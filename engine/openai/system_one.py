"""The System One form of decisions: a state and named questions, of which each is a choice, a score or a noul (whether
a statement is true). Source: the request and the answer of `POST /v1/systemone` in Ollama's API reference."""

import json
from functools import partial
from typing import Any, cast

from engine.openai.decisions import DecisionCall, check_asked, check_known, instructions_of, usage_of
from engine.openai.fields import SYSTEM_ONE_FIELDS
from engine.openai.parameters import Json, fields_of
from engine.openai.problems import bad
from engine.openai.request import Request, read_request
from engine.support.errors import RequestError
from engine.types.decisions import (
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    Predicate,
    PredicateAnswer,
    Question,
    ScoreAnswer,
    ScoreQuestion,
)

_FIELDS = frozenset({"type", "instructions", "criteria"})


def read_system_one(body: Json) -> Request:
    """Read a body of `POST /systemone`. Raises Problem for what is missing, not valid, or not supported."""
    return read_request(SYSTEM_ONE_FIELDS, body, partial(check_asked, "state"))


class SystemOneCall(DecisionCall):
    """A request for decisions in this form."""

    __slots__ = ()

    def whole(self) -> Json:
        """Returns the response: a question that was refused has no answer. Raises what `DecisionCall.whole` raises."""
        values = self.request.values
        questions = {name: _question(item, f"questions.{name}") for name, item in values["questions"].items()}
        state: Any = values["state"]
        text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False, indent=1)
        decided = self.decided(text, questions)
        answers = {name: told for name, each in decided.answers.items() if (told := _answer(each)) is not None}
        usage = usage_of(decided.usage)
        counts = {name: usage[name] for name in ("input_tokens", "output_tokens")}
        return {"model": self.model, "answers": answers, "usage": counts}


def _question(item: object, param: str) -> Question:
    fields = fields_of(item, param)
    check_known(fields, _FIELDS, param)
    kind, criteria = fields.get("type"), fields.get("criteria")
    if kind not in ("noul", "choice", "score"):
        raise bad(f"{param}.type must be noul, choice or score, not {kind!r}.", f"{param}.type")
    asked = _instructions(fields.get("instructions"), f"{param}.instructions")
    place = f"{param}.criteria"
    try:
        if kind == "score":
            if not isinstance(criteria, list):
                raise bad(f"{place} must be a list of levels, the lowest first.", place, "invalid_type")
            return ScoreQuestion(asked, cast("list[Any]", criteria))
        if criteria is None and kind == "noul":
            return Predicate(asked)
        described = {name: about or "" for name, about in fields_of(criteria, place).items()}
        if kind == "choice":
            return ChoiceQuestion(asked, described)
    except RequestError as error:
        raise bad(f"{param}: {error}", param) from error
    check_known(described, {"true", "false"}, place, ": it says what true and false mean")
    return Predicate("\n".join([asked, *(f"{name}: {about}" for name, about in described.items())]))


def _instructions(value: object, param: str) -> str:
    """Returns what is asked: a text, or other JSON as its text."""
    if isinstance(value, dict) and value:
        return json.dumps(cast("Json", value), ensure_ascii=False)
    return instructions_of(cast("object", value), param)


def _answer(answer: Answer) -> Json | None:
    match answer:
        case PredicateAnswer():
            return {"type": "noul", "noul": answer.probability}
        case ChoiceAnswer():
            shares = {str(option): p for option, p in answer.probabilities}
            confidence = _above_chance(answer.confidence, len(shares))
            return {"type": "choice", "choice": answer.choice, "confidence": confidence, "probabilities": shares}
        case ScoreAnswer():
            levels = [level for level, _ in answer.probabilities]
            return {
                "type": "score",
                "score": answer.score,
                "confidence": _above_chance(answer.confidence, len(levels)),
                "legend": {str(place): level for place, level in enumerate(levels)},
                "probabilities": {str(place): p for place, (_, p) in enumerate(answer.probabilities)},
            }
        case _:
            return None


def _above_chance(probability: float, options: int) -> float:
    """Returns this form's confidence: 0 where all options are alike, 1 where one has all."""
    return (options * probability - 1) / (options - 1)
