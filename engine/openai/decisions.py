"""Decisions: reads a body with typed questions about one input, and writes their answers. Source: OpenAI's Decisions
API, as the types of the `openai` package have it (`types/decision*.py`)."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from engine.openai.fields import DECISIONS_FIELDS
from engine.openai.input_call import InputCall
from engine.openai.parameters import Json, fields_of
from engine.openai.problems import Problem, bad
from engine.openai.request import Options, Request, read_request
from engine.openai.response_items import messages_of, stored_items
from engine.support.errors import RequestError, shown
from engine.turns.decisions import DecisionState
from engine.types.completion import Usage
from engine.types.decisions import (
    MOST_QUESTIONS,
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    Decision,
    Predicate,
    PredicateAnswer,
    Question,
    ScoreAnswer,
    ScoreQuestion,
)
from engine.types.messages import Message

_FIELDS = {
    "predicate": frozenset({"type", "name", "instructions"}),
    "choice": frozenset({"type", "name", "instructions", "choices"}),
    "score": frozenset({"type", "name", "instructions", "levels"}),
}


def read_decisions(body: Json) -> Request:
    """Read a body of `POST /decisions`. Raises Problem for what is missing, not valid, or not supported."""
    return read_request(DECISIONS_FIELDS, body, partial(check_asked, "input"))


def check_asked(subject: str, values: Json) -> Options:
    """Check that a body has what is judged, its field `subject`, and questions about it. Raises Problem."""
    for name in (subject, "questions"):
        if not values.get(name):
            raise bad(f"{name} is missing.", name, "missing_required_parameter")
    if len(values["questions"]) > MOST_QUESTIONS:
        raise bad(f"There are {len(values['questions']):,} questions; ask 1 to {MOST_QUESTIONS}.", "questions")
    return ()


def check_known(fields: Json, known: Collection[str], param: str, why: str = "") -> None:
    """Raise Problem for a field of `param` that is none of these."""
    if unknown := sorted(fields.keys() - known):
        name, there = unknown[0], ", ".join(sorted(known))
        text = f"{param} has no field {name!r}{why}; its fields are {there}."
        raise bad(text, f"{param}.{name}", "unknown_parameter")


class DecisionCall(InputCall):
    """A request for decisions."""

    __slots__ = ()

    def whole(self) -> Json:
        """Returns the response, once all is read. Raises Problem for what is no question or message, and what
        `Engine.decide` raises."""
        values = self.request.values
        questions = [question_of(item, f"questions[{n}]") for n, item in enumerate(values["questions"])]
        messages = _messages(values["input"])
        decided = self.decided(messages, questions)
        names = [item.get("name") for item in values["questions"]]
        answers = [answer_object(name, each) for name, each in zip(names, decided.answers.values(), strict=True)]
        return {"answers": answers, "model": self.model, "usage": usage_of(decided.usage)}

    def decided(self, state: DecisionState, questions: object) -> Decision[Any]:
        """Returns the answers to these questions about one input. Raises what `Engine.decide` raises."""
        return next(iter(self.engine.decider.decisions([state], questions, self.request.options)))


def named_questions(items: object) -> dict[str, Question]:
    """Returns questions by name, of a list in which each has one. Raises RequestError for what is none."""
    if not isinstance(items, list):
        raise RequestError('they are a list: [{"type": "predicate", "name": "angry", "instructions": ...}, ...].')
    named: dict[str, Question] = {}
    for number, item in enumerate(cast("list[Any]", items)):
        try:
            question = question_of(item, f"[{number}]")
        except Problem as problem:
            raise RequestError(problem.message) from problem
        name = item.get("name")
        if not name or name in named:
            raise RequestError(f"[{number}].name is {shown(name)}; each has a name, another than the others.")
        named[name] = question
    return named


def _messages(value: str | Sequence[Json]) -> list[Message]:
    items = value if isinstance(value, str) else [_plain(item, f"input[{n}]") for n, item in enumerate(value)]
    return messages_of((), stored_items(items), None)


def _plain(item: Json, param: str) -> Json:
    """Returns an item in the words of the Responses API: JSON as its text, custom tools as functions of one text."""
    match item.get("type"):
        case "custom_tool_call":
            if not isinstance(item.get("input"), str):
                raise bad(f"{param}.input must be a string.", f"{param}.input", "invalid_type")
            return {**item, "type": "function_call", "arguments": json.dumps({"input": item["input"]})}
        case "custom_tool_call_output" | "function_call_output":
            return {**item, "type": "function_call_output", "output": _parts(item.get("output"), f"{param}.output")}
        case "message" | None:
            return {**item, "content": _parts(item.get("content"), f"{param}.content")}
        case _:
            return item


def _parts(content: Any, param: str) -> Any:
    if not isinstance(content, list):
        return content
    return [_json_text(part, f"{param}[{n}]") for n, part in enumerate(cast("list[Any]", content))]


def _json_text(part: Any, param: str) -> Any:
    if not isinstance(part, dict) or (fields := cast("Json", part)).get("type") != "input_json":
        return cast("object", part)
    data = fields.get("data")
    if not isinstance(data, dict | list):
        raise bad(f"{param}.data must be an object, or an array of objects.", f"{param}.data", "invalid_type")
    return {"type": "input_text", "text": json.dumps(data, ensure_ascii=False, indent=1)}


def question_of(item: object, param: str) -> Question:
    """Returns a question of a body. Raises Problem for one that is not valid, with its place."""
    fields = fields_of(item, param)
    kind = fields.get("type")
    known = _FIELDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise bad(f"{param}.type must be predicate, choice or score, not {kind!r}.", f"{param}.type")
    check_known(fields, known, param)
    if not isinstance(fields.get("name"), str | None):
        raise bad(f"{param}.name must be a string.", f"{param}.name", "invalid_type")
    asked = instructions_of(fields.get("instructions"), f"{param}.instructions")
    try:
        if kind == "predicate":
            return Predicate(asked)
        if kind == "choice":
            return ChoiceQuestion(asked, _options(fields.get("choices"), "value", f"{param}.choices"))
        return ScoreQuestion(asked, _options(fields.get("levels"), "label", f"{param}.levels"))
    except RequestError as error:
        raise bad(f"{param}: {error}", param) from error


def instructions_of(value: object, param: str) -> str:
    """Returns what is asked: a text, or text and JSON parts. Raises Problem for anything else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise bad(f"{param} must be a string, or a list of text and JSON parts.", param, "invalid_type")
    texts: list[str] = []
    for number, part in enumerate(cast("list[Any]", value)):
        match _json_text(part, f"{param}[{number}]"):
            case {"type": "input_text", "text": str(text)}:
                texts.append(text)
            case _:
                message = f"{param}[{number}] is neither text nor JSON; put pictures into the input."
                raise bad(message, f"{param}[{number}]", "unsupported_parameter")
    return "\n".join(texts)


def _options(value: object, key: str, param: str) -> Any:
    """Returns options with their descriptions; a list of them, if two are alike, which the question then refuses."""
    if not isinstance(value, list):
        raise bad(f"{param} must be a list of objects.", param, "invalid_type")
    pairs: list[tuple[object, str]] = []
    for number, item in enumerate(cast("list[Any]", value)):
        fields = fields_of(item, f"{param}[{number}]")
        check_known(fields, {key, "description"}, f"{param}[{number}]")
        option = fields.get(key)
        if not isinstance(option, str | bool):
            raise bad(f"{param}[{number}].{key} must be a string.", f"{param}[{number}].{key}", "invalid_type")
        pairs.append((option, fields.get("description") or ""))
    return dict(pairs) if len(dict(pairs)) == len(pairs) else [option for option, _ in pairs]


def answer_object(name: str | None, answer: Answer) -> Json:
    """Returns an answer of a response."""
    match answer:
        case PredicateAnswer():
            return {"type": "predicate", "name": name, "probability": answer.probability}
        case ChoiceAnswer():
            rows = [{"value": value, "probability": p} for value, p in answer.probabilities]
            told = {"choice": answer.choice, "confidence": answer.confidence, "probabilities": rows}
            return {"type": "choice", "name": name, **told}
        case ScoreAnswer():
            rows = [{"label": label, "probability": p, "value": n} for n, (label, p) in enumerate(answer.probabilities)]
            told = {"score": answer.score, "confidence": answer.confidence, "probabilities": rows}
            return {"type": "score", "name": name, **told}
        case _:
            return {"type": "refusal", "name": name}


def usage_of(usage: Usage) -> Mapping[str, Any]:
    """Returns the usage of a response: nothing is generated."""
    fresh = usage.prompt_tokens - usage.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": fresh},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens,
    }
