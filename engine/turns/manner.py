"""How a model is asked best: with its options shown, as a large model expects, or without them and less what it would
answer to no input at all, which small models need. It is measured, on questions whose answers are known."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import log
from typing import Literal, NamedTuple, TypeAlias

from engine.types.decisions import ChoiceQuestion, Predicate, Question, ScoreQuestion, Value

Way: TypeAlias = Literal["shown", "bare"]
"""Options shown, and probabilities as they are; or not shown, and probabilities relative to those without an input."""


class Form(NamedTuple):
    """A question as it is put: the text behind the input, the spellings of each option, and whether the answer without
    an input counts against it."""

    text: str
    spellings: tuple[tuple[str, ...], ...]
    relative: bool


def form_of(question: Question, way: Way) -> Form:
    """Returns how a question is put."""
    return (_shown if way == "shown" else _bare)(question)


def values_of(question: Question) -> tuple[Value, ...]:
    """Returns the options in the order of their probabilities; of a statement first that it is true."""
    if isinstance(question, Predicate):
        return True, False
    return tuple(value for value, _ in question.described)


def _shown(question: Question) -> Form:
    if isinstance(question, Predicate):
        text = f"Statement: {question.instructions}\nIs the statement true? Answer yes or no."
        return Form(text, (_spelled("yes"), _spelled("no")), relative=False)
    listed = [f"- {_text(value)}{f': {about}' if about else ''}" for value, about in question.described]
    if isinstance(question, ChoiceQuestion):
        listed.sort()  # so that the order in which a caller has them changes nothing
    lines = "\n".join(listed)
    order = " The lowest level comes first." if isinstance(question, ScoreQuestion) else ""
    text = f"{question.instructions} Answer with one of these, and nothing else.{order}\n{lines}"
    return Form(text, _spellings(question), relative=False)


def _bare(question: Question) -> Form:
    if isinstance(question, Predicate):
        return Form(f"True or false: {question.instructions}", (_spelled("true"), _spelled("false")), relative=True)
    described = zip(_spellings(question), _descriptions(question), strict=True)
    return Form(question.instructions, tuple(names + about for names, about in described), relative=True)


def _spellings(question: ChoiceQuestion | ScoreQuestion) -> tuple[tuple[str, ...], ...]:
    """Returns the spellings of each option. One that two options share belongs to the one that is written so."""
    texts = texts_of([value for value, _ in question.described])
    exact = {blank + text for text in texts for blank in ("", " ")}
    return tuple(
        tuple(each for each in _spelled(text) if each in (text, f" {text}") or each not in exact) for text in texts
    )


def _descriptions(question: ChoiceQuestion | ScoreQuestion) -> list[tuple[str, ...]]:
    """Returns the spellings of each option's description, which the model may say in place of the option: none of one
    that another option has too."""
    abouts = [about.strip() for _, about in question.described]
    taken = Counter(each.lower() for each in [*texts_of([value for value, _ in question.described]), *abouts])
    return [_spelled(about) if about and taken[about.lower()] == 1 else () for about in abouts]


def texts_of(values: Sequence[Value]) -> list[str]:
    """Returns options as texts, each another: a truth value says so where a text reads like it."""
    texts = [_text(value) for value in values]
    if len(set(texts)) == len(texts):
        return texts
    return [
        f"{text} (truth value)" if isinstance(value, bool) else text for text, value in zip(texts, values, strict=True)
    ]


def _spelled(text: str) -> tuple[str, ...]:
    """Returns a text as it is and with a capital, behind a blank or none: templates and vocabularies differ in where a
    blank belongs."""
    capital = text[:1].upper() + text[1:]
    return tuple(dict.fromkeys((text, f" {text}", capital, f" {capital}")))


def _text(value: Value) -> str:
    return value if isinstance(value, str) else str(value).lower()


class Probe(NamedTuple):
    """A text, a question about it, and the place of the right option."""

    text: str
    question: Question
    right: int


def _probes(question: Question, *texts: Sequence[str]) -> tuple[Probe, ...]:
    """Returns the probes of a question: for each option, in order, the texts for which it is right."""
    return tuple(Probe(text, question, option) for option, several in enumerate(texts) for text in several)


_THING = ChoiceQuestion("Which kind of thing is this?", ["animal", "fruit", "tool", "vehicle"])
_FEELING = ChoiceQuestion("How does this person feel?", ["sad", "angry", "proud"])
_PLACE = ChoiceQuestion("Where does this happen?", ["kitchen", "school", "hospital"])
CHOICES: tuple[Probe, ...] = (
    *_probes(_THING, ["a lion"], ["a ripe banana"], ["a hammer"], ["an old bus"]),
    *_probes(
        _FEELING, ["My dog died, and I cannot stop crying."], ["How dare they! I could shout!"], ["Look, I built this!"]
    ),
    *_probes(
        _PLACE, ["She stirs the pot and adds salt."], ["The pupils open their books."], ["The nurse checks his pulse."]
    ),
)
STATEMENTS: tuple[Probe, ...] = (
    *_probes(Predicate("It is cold."), ["Snow fell, and the lake is frozen."], ["Everybody sweats in the hot sun."]),
    *_probes(Predicate("The text mentions an animal."), ["The horse ran over the hill."], ["The price of oil rose."]),
    *_probes(
        Predicate("The speaker agrees."), ["Yes, exactly, you are right."], ["No, that is wrong, I do not think so."]
    ),
    *_probes(Predicate("The shop is open."), ["Come in, we are open until nine!"], ["The shop is closed today."]),
    *_probes(Predicate("Anna is at home."), ["Anna stayed at home all day."], ["Anna is abroad until Friday."]),
)

Ask: TypeAlias = Callable[[Sequence[tuple[str, Form]]], Sequence[Sequence[float]]]
"""Returns the probabilities of the options of each text's question."""

_BETTER = 0.1
"""By how much less surprised a model must be at the right answers, in nats, to be asked otherwise than is usual."""


def measured(probes: Sequence[Probe], ask: Ask) -> tuple[Way, tuple[float, float]]:
    """Returns the way in which this model is asked best, and the log loss of its answers to the probes (the mean
    surprise at what is right, in nats), shown and bare."""
    shown, bare = (_loss(probes, ask, way) for way in ("shown", "bare"))
    return "bare" if bare < shown - _BETTER else "shown", (shown, bare)


def _loss(probes: Sequence[Probe], ask: Ask, way: Way) -> float:
    found = ask([(probe.text, form_of(probe.question, way)) for probe in probes])
    return -sum(log(max(each[probe.right], 1e-9)) for each, probe in zip(found, probes, strict=True)) / len(probes)
