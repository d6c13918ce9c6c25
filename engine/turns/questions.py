"""Python types as typed questions: `bool` is a predicate, `Literal` and `Enum` are choices, ordered numbers are scores;
a type with fields asks one question for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum, IntEnum
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from engine.support.errors import RequestError, shown
from engine.types.decisions import (
    MOST_QUESTIONS,
    Answer,
    ChoiceQuestion,
    Predicate,
    Question,
    Refusal,
    ScoreQuestion,
    Value,
)

QuestionLike: TypeAlias = "Question | str | type | object"
"""A question, a statement as a text, or a type: `bool`, a `Literal`, an `Enum`."""
QuestionsLike: TypeAlias = "QuestionLike | Mapping[str, QuestionLike] | Sequence[QuestionLike]"
"""One question, several by name or in a list, or a type with fields: a pydantic model, a dataclass, a TypedDict."""

_ONE = "answer"


@dataclass(frozen=True, slots=True)
class Typed:
    """A question, and how its answer becomes the value that the caller's type has."""

    question: Question
    value: Callable[[Value], Any]

    def read(self, answer: Answer) -> Any:
        """Returns the value of an answer; None for a refusal."""
        return None if isinstance(answer, Refusal) else self.value(answer.value)


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions by name, and what makes the caller's form of their values."""

    asked: Mapping[str, Typed]
    form: Callable[[Mapping[str, Any]], Any]

    def parsed(self, answers: Mapping[str, Answer]) -> Any:
        """Returns the values in the form in which was asked."""
        return self.form({name: asked.read(answers[name]) for name, asked in self.asked.items()})


def questions_of(questions: object) -> Questions:
    """Returns what was asked. Raises RequestError for what is no question."""
    if isinstance(questions, Questions):
        return questions
    if isinstance(questions, Mapping):
        named = cast("Mapping[object, object]", questions)
        if wrong := [name for name in named if not isinstance(name, str)]:
            raise RequestError(f"A question's name is a text; got {shown(wrong[0])}.")
        return _several({str(name): _asked(each, str(name)) for name, each in named.items()}, dict)
    if isinstance(questions, Sequence) and not isinstance(questions, str):
        listed = cast("Sequence[object]", questions)
        return _several({str(n): _asked(each, "") for n, each in enumerate(listed)}, lambda found: [*found.values()])
    if isinstance(questions, type) and (fields := _fields(cast("type[Any]", questions))) is not None:
        asked = {name: _asked(kind, name, about) for name, (kind, about) in fields.items()}
        return _several(asked, partial(_object, TypeAdapter(questions)))
    return Questions({_ONE: _asked(questions, "")}, lambda found: found[_ONE])


def _several(asked: dict[str, Typed], form: Callable[[Mapping[str, Any]], Any]) -> Questions:
    if not 1 <= len(asked) <= MOST_QUESTIONS:
        raise RequestError(f"decide() takes 1 to {MOST_QUESTIONS} questions about one input; got {len(asked):,}.")
    return Questions(asked, form)


def _object(adapter: TypeAdapter[Any], values: Mapping[str, Any]) -> Any:
    """Returns the object with these values; None if a question that it needs was refused."""
    try:
        return adapter.validate_python({name: value for name, value in values.items() if value is not None})
    except ValidationError:
        if None in values.values():
            return None
        raise


def _fields(kind: type[Any]) -> dict[str, tuple[object, str]] | None:
    """Returns the types and descriptions of a type's fields; None for a type that has none."""
    if issubclass(kind, BaseModel):
        return {name: (each.annotation, each.description or "") for name, each in kind.model_fields.items()}
    if is_dataclass(kind) or is_typeddict(kind):
        return {name: (each, "") for name, each in get_type_hints(kind, include_extras=True).items()}
    return None


def _asked(question: object, name: str, about: str = "") -> Typed:
    if isinstance(question, Predicate | ChoiceQuestion | ScoreQuestion):
        return Typed(question, _itself)
    if isinstance(question, str):
        return Typed(Predicate(question), _itself)
    if get_origin(question) is Annotated:
        question, *notes = get_args(question)
        described = [note.description for note in notes if isinstance(note, FieldInfo) and note.description]
        return _asked(question, name, about or next(iter([*described, *(n for n in notes if isinstance(n, str))]), ""))
    asked = about or name.replace("_", " ").strip()
    if question is bool:
        if not asked:
            raise RequestError('bool needs a statement: decide(input, "The customer is angry."), or a name for it.')
        return Typed(Predicate(asked), _itself)
    if get_origin(question) is Literal:
        return _literal(get_args(question), asked)
    if isinstance(question, type) and issubclass(question, Enum):
        return _enum(question, asked)
    named: object = cast("object", question)
    raise RequestError(
        f"{shown(named)} is no question{f' ({name})' if name else ''}; ask a Predicate, ChoiceQuestion "
        "or ScoreQuestion, a statement as a text, or a type: bool, Literal[...], an Enum, or a model with such fields."
    )


def _literal(options: tuple[Any, ...], asked: str) -> Typed:
    if all(isinstance(each, int) and not isinstance(each, bool) for each in options):
        levels = {str(each): each for each in sorted(options)}
        return Typed(ScoreQuestion(asked or "How much?", list(levels)), levels.__getitem__)  # pyright: ignore[reportArgumentType]
    return Typed(ChoiceQuestion(asked or "Which of these fits?", list(options)), _itself)


def _enum(kind: type[Enum], asked: str) -> Typed:
    members: dict[Any, Enum]
    if issubclass(kind, IntEnum):
        members = {each.name.lower().replace("_", " "): each for each in sorted(kind)}
        return Typed(ScoreQuestion(asked or _words(kind), list(members)), members.__getitem__)
    members = {each.value if isinstance(each.value, str | bool) else each.name: each for each in kind}
    return Typed(ChoiceQuestion(asked or _words(kind), list(members)), members.__getitem__)


def _words(kind: type) -> str:
    return f"{kind.__name__}?"


def _itself(value: Value) -> Any:
    return value
