"""Answers typed questions about an input: reads the options' probabilities where the answer would begin, and generates
nothing. The input is read once, as the prefix that all of its questions share."""

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from math import exp, log
from threading import Lock
from time import monotonic
from typing import Annotated, Any, TypeAlias, TypedDict, Unpack, cast

from pydantic import Field

from engine.runtime.adapters.adapters import AdaptersLike
from engine.runtime.cache.slots import common_prefix
from engine.runtime.loop.backend import Vocab
from engine.runtime.media.media import TokensAndMedia
from engine.runtime.stream.stream import Stream
from engine.support.errors import ContextOverflowError, RequestError, shown
from engine.turns.calibration import Calibration, with_probabilities
from engine.turns.explain_decision import DecisionExplanation, OptionRead
from engine.turns.manner import CHOICES, STATEMENTS, Form, Way, form_of, measured, values_of
from engine.turns.model_parts import Lease, ModelParts
from engine.turns.option_tree import OptionTree, Tokens
from engine.turns.options import turn_settings, until
from engine.turns.questions import Questions, questions_of
from engine.turns.reads import Reads
from engine.types.completion import Usage
from engine.types.conversation import conversation_of
from engine.types.decisions import (
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    Decision,
    Predicate,
    PredicateAnswer,
    Question,
    Refusal,
    ScoreAnswer,
    Value,
)
from engine.types.messages import Message, MessagesLike
from engine.types.parts import TextPart
from engine.types.prompt import Piece
from engine.types.turn_settings import PLAIN

DecisionState: TypeAlias = "MessagesLike | Mapping[str, Any] | Sequence[Any]"
"""What is judged: a text, messages, or any other JSON, which the model sees as text."""
SMALL = 700_000_000
"""Bytes of weights below which it is measured how a model is asked best."""
NOTHING = "..."
"""The input that says nothing: what is answered to it counts against an answer."""
_OUTSIDE = 6
"""How many tokens that begin no option an explanation tells."""
_NOTHING = 1e-12
"""So little probability on all options together says nothing about them."""
_PRIORS = 4096
"""Questions whose answers without an input are remembered: ten inputs' most."""


class DecideOptions(TypedDict, total=False):
    """How questions are answered.

    - `calibration`: what `Calibration.fit` made of known answers. Default: the model's own probabilities.
    - `deadline`: seconds, after which TimeoutError is raised. Default: none.
    - `adapters`, `cache_salt`: as in `TurnOptions`.
    """

    calibration: Calibration | None
    deadline: Annotated[float, Field(gt=0)] | None
    adapters: AdaptersLike | None
    cache_salt: str | None


@dataclass(slots=True)
class _Put:
    """A question as it is put to a model: its tree of options, and, if its answer without an input counts against it,
    what is known of that."""

    form: Form
    spelled: Sequence[Sequence[Tokens]]
    tree: OptionTree
    prior: "_Prior | None" = None


@dataclass(slots=True)
class _Prior:
    """What a model answers to a question without an input: known, or being read."""

    key: bytes
    known: Sequence[float] | None = None
    reading: "_Reading | None" = None


@dataclass(slots=True)
class _Reading:
    """A question about one input: a stream for each branch of its options, or why there is none."""

    put: _Put
    streams: dict[Tokens, Stream] = field(default_factory=dict[Tokens, Stream])
    error: ContextOverflowError | None = None


@dataclass(slots=True)
class _Row:
    """One input: the reading of each question."""

    readings: dict[str, _Reading]
    usage: Usage = field(default_factory=Usage)


class Decider:
    """Answers questions with one engine's model."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._ways: dict[str, Way] = {}
        self.losses: dict[str, tuple[float, float]] = {}
        """By kind of question: the log loss on the ten that settled the way, with the options shown and without."""
        self._priors: OrderedDict[bytes, Sequence[float]] = OrderedDict()
        self._measuring = Lock()

    def decisions(self, inputs: Iterable[Any], questions: object, options: DecideOptions) -> Iterator[Decision[Any]]:
        """Yields the decisions about many inputs, in order; some are read while earlier ones are handed out. Raises
        what `Engine.decide` raises, where its turn comes; leaving the loop cancels what is being read."""
        asked, settings = questions_of(questions), turn_settings(options, DecideOptions)
        by = until(settings.deadline)
        puts: dict[str, _Put] = {}
        reads = Reads(settings, by)
        started: deque[_Row] = deque()
        try:
            for given in inputs:
                with self._lease() as parts:
                    if not puts:
                        forms = {name: self._form(parts, each.question, by) for name, each in asked.asked.items()}
                        puts = {name: self._put(parts, reads, form) for name, form in forms.items()}
                    started.append(self._started(parts, reads, _messages(given), puts))
                    most = parts.service.info.n_sequences
                if len(started) > most:
                    yield self._decision(reads, started.popleft(), asked, options)
            while started:
                yield self._decision(reads, started.popleft(), asked, options)
        finally:
            reads.cancel()

    def _form(self, parts: ModelParts, question: Question, by: float | None = None) -> Form:
        return form_of(question, self._way(parts, question, by))

    def _way(self, parts: ModelParts, question: Question, by: float | None) -> Way:
        """Returns how questions of this kind are put to this model: a small one is measured when the first is asked, on
        ten others; larger ones are asked as others ask them."""
        kind = "statements" if isinstance(question, Predicate) else "choices"
        if parts.info is None or parts.info.size_bytes >= SMALL:
            return "shown"
        if kind not in self._ways:
            left = -1 if by is None else max(0.0, by - monotonic())
            if not self._measuring.acquire(timeout=left):
                raise TimeoutError("How the model is asked best was not measured before the decision's deadline.")
            try:
                if kind not in self._ways:
                    self._measure(parts, kind, by)
            finally:
                self._measuring.release()
        return self._ways[kind]

    def _measure(self, parts: ModelParts, kind: str, by: float | None) -> None:
        reads = Reads(PLAIN, by)
        try:
            way, losses = measured(
                STATEMENTS if kind == "statements" else CHOICES,
                lambda asked: [self._probed(parts, reads, text, form) for text, form in asked],
            )
        finally:
            reads.cancel()
        self.losses[kind] = losses
        self._ways[kind] = way

    def explain(self, state: DecisionState, question: object, **options: Unpack[DecideOptions]) -> DecisionExplanation:
        """Returns how one question about an input is put to this model, and what is read; with a calibration, the
        answer and the options' probabilities are calibrated. Raises what `Engine.decide` raises."""
        asked, settings = questions_of(question), turn_settings(options, DecideOptions)
        if len(asked.asked) != 1:
            raise RequestError(f"explain() takes one question; got {len(asked.asked):,}.")
        [(name, typed)], messages, by = asked.asked.items(), _messages(state), until(settings.deadline)
        reads = Reads(settings, by)
        try:
            with self._lease() as parts:
                put = self._put(parts, reads, self._form(parts, typed.question, by))
                tokens, media = _prompt(parts, messages, put.form.text)
                row = self._started(parts, reads, messages, {"": put})
                first = put.tree.branches[0].children
                outside = reads.start(parts.service, (tokens, media), (), first, top=len(first) + _OUTSIDE)
                texts = partial(_texts, parts.service.vocab)
            reading = row.readings[""]
            shares, mass = self._read(reads, row, reading)
            answer = _calibrated(name, self._answer(reads, row, reading, typed.question), options)
            top = [(each.text, exp(each.logprob)) for each in reads.top(outside) if each.token not in first]
        finally:
            reads.cancel()
        kind = "statements" if isinstance(typed.question, Predicate) else "choices"
        return DecisionExplanation(
            answer=answer,
            way="bare" if put.form.relative else "shown",
            losses=self.losses.get(kind),
            prompt="".join(texts(tokens)),
            tokens=tokens,
            options=tuple(_options_read(put, values_of(typed.question), texts, shares, answer)),
            mass=mass,
            outside=tuple(top[:_OUTSIDE]),
        )

    def _probed(self, parts: ModelParts, reads: Reads, text: str, form: Form) -> Sequence[float]:
        row = self._started(parts, reads, _messages(text), {"": self._put(parts, reads, form)})
        return self._probabilities(reads, row, row.readings[""])[0]

    def _put(self, parts: ModelParts, reads: Reads, form: Form) -> _Put:
        """Returns how a question is put, and starts to read what is answered without an input, if that matters and is
        not remembered."""
        tokenize = partial(parts.service.vocab.tokenize, special=False)
        spelled = [[tuple(tokenize(each)) for each in spellings] for spellings in form.spellings]
        put = _Put(form, spelled, OptionTree(spelled))
        if form.relative:
            key = sha256(repr((form, reads.whose)).encode(errors="surrogatepass")).digest()
            prior = _Prior(key, self._priors.get(key))
            if prior.known is None:
                prior.reading = self._started(parts, reads, _messages(NOTHING), {"": put}).readings[""]
            put.prior = prior
        return put

    def _started(self, parts: ModelParts, reads: Reads, messages: Sequence[Message], puts: Mapping[str, _Put]) -> _Row:
        """Start to read all questions about one input."""
        prompts = [_prompt(parts, messages, put.form.text) for put in puts.values()]
        shared = len(prompts[0][0])
        for tokens, _ in prompts[1:]:
            shared = common_prefix(prompts[0][0], tokens, shared)
        row = _Row({})
        for (name, put), prompt in zip(puts.items(), prompts, strict=True):
            reading = row.readings[name] = _Reading(put)
            try:
                for branch in put.tree.branches:
                    reading.streams[branch.path] = reads.start(
                        parts.service, prompt, branch.path, branch.children, shared
                    )
            except ContextOverflowError as error:
                reading.error = error
        return row

    def _decision(self, reads: Reads, row: _Row, asked: Questions, options: DecideOptions) -> Decision[Any]:
        answers: dict[str, Answer] = {}
        for name, reading in row.readings.items():
            answer = self._answer(reads, row, reading, asked.asked[name].question)
            answers[name] = _calibrated(name, answer, options)
        if all(reading.error is not None for reading in row.readings.values()):
            raise next(reading.error for reading in row.readings.values() if reading.error is not None)
        return Decision(answers, asked.parsed(answers), row.usage)

    def _answer(self, reads: Reads, row: _Row, reading: _Reading, question: Question) -> Answer:
        try:
            probabilities, mass = self._probabilities(reads, row, reading)
        except ContextOverflowError as error:  # this question's own, or what is read of it without an input
            reading.error = error
            return Refusal(str(error))
        if mass < _NOTHING:
            return Refusal(f"The model gives all options together a probability of {mass:.1e}.", mass)
        return _answered(question, probabilities, mass)

    def _probabilities(self, reads: Reads, row: _Row, reading: _Reading) -> tuple[Sequence[float], float]:
        probabilities, mass = self._read(reads, row, reading)
        if (prior := reading.put.prior) is not None:
            if prior.known is None:
                prior.known = self._remembered(reads, row, prior)
            probabilities = _relative(probabilities, prior.known)
        return probabilities, mass

    def _read(self, reads: Reads, row: _Row, reading: _Reading) -> tuple[Sequence[float], float]:
        if reading.error is not None:
            raise reading.error
        found: dict[Tokens, Mapping[int, float]] = {}
        for path, stream in reading.streams.items():
            found[path], used = reads.chances(stream)
            row.usage = _sum(row.usage, used)
        return reading.put.tree.probabilities(found)

    def _remembered(self, reads: Reads, row: _Row, prior: _Prior) -> Sequence[float]:
        assert prior.reading is not None, "it is read where it is not known"
        known, _ = self._read(reads, row, prior.reading)
        self._priors[prior.key] = known
        while len(self._priors) > _PRIORS:
            self._priors.popitem(last=False)
        return known


def _prompt(parts: ModelParts, messages: Sequence[Message], text: str) -> TokensAndMedia:
    """Returns the tokens after which the answer begins: of a base model those of a plain text."""
    asked = with_question(messages, text)
    if parts.turns.known_template is not None:
        return parts.turns.answer_prefix(asked, None, PLAIN)
    if any(message.media for message in asked):
        raise RequestError("A base model reads no pictures and sounds here; load a chat model with its projector.")
    plain = "\n\n".join(message.content or "" for message in asked)
    return tuple(parts.service.vocab.encode([Piece(f"{plain}\nAnswer:")], add_bos=True)), ()


def _messages(given: Any) -> tuple[Message, ...]:
    """Returns an input as messages: JSON that is none becomes a text."""
    listed = cast("list[object]", given) if isinstance(given, list | tuple) else [given]
    if isinstance(given, str) or (listed and all(map(_is_message, listed))):
        return conversation_of(cast("Any", given))
    try:
        return conversation_of(json.dumps(given, ensure_ascii=False, indent=1))
    except (TypeError, ValueError) as error:
        raise RequestError(f"decide() takes a text, messages or JSON; got {shown(cast('object', given))}.") from error


def _is_message(item: object) -> bool:
    return "role" in cast("Mapping[object, object]", item) if isinstance(item, Mapping) else hasattr(item, "role")


def with_question(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Returns the messages with a question behind them: in the last message, if the user wrote it, so that roles take
    turns, as some templates want it."""
    last = messages[-1]
    if last.role != "user":
        return (*messages, Message(role="user", content=text))
    if last.media:
        asked = Message(role="user", parts=(*last.parts, TextPart(text=f"\n\n{text}")))
    else:
        asked = Message(role="user", content=f"{last.content}\n\n{text}" if last.content else text)
    return (*messages[:-1], asked)


def _calibrated(name: str, answer: Answer, options: DecideOptions) -> Answer:
    calibration = options.get("calibration")
    return answer if calibration is None else calibration.applied(name, answer)


def _answered(question: Question, probabilities: Sequence[float], mass: float) -> Answer:
    values = values_of(question)
    if isinstance(question, Predicate):
        return PredicateAnswer(probabilities[0], mass)
    if isinstance(question, ChoiceQuestion):
        return with_probabilities(
            ChoiceAnswer(values[0], 0.0, tuple((each, 0.0) for each in values), mass), probabilities
        )
    levels = tuple((str(each), 0.0) for each in values)
    return with_probabilities(ScoreAnswer(0.0, levels[0][0], 0.0, levels, mass), probabilities)


def _texts(vocab: Vocab, tokens: Sequence[int]) -> tuple[str, ...]:
    return tuple(vocab.token_bytes(token).decode("utf-8", "replace") for token in tokens if token >= 0)


def _options_read(
    put: _Put,
    values: Sequence[Value],
    texts: Callable[[Tokens], tuple[str, ...]],
    shares: Sequence[float],
    answer: Answer,
) -> Iterator[OptionRead]:
    """Yields what was read of each option; a refusal has no probabilities."""
    found = [0.0] * len(values) if isinstance(answer, Refusal) else [p for _, p in answer.rows]
    known = None if put.prior is None else put.prior.known
    for place, value in enumerate(values):
        prior = None if known is None else known[place]
        spelled = tuple(texts(tokens) for tokens in put.spelled[place])
        yield OptionRead(value, spelled, shares[place], prior, found[place])


def _relative(probabilities: Sequence[float], prior: Sequence[float]) -> list[float]:
    """Returns the probabilities divided by those without an input, among one another."""
    logs = [log(max(p, 1e-30)) - log(max(q, 1e-30)) for p, q in zip(probabilities, prior, strict=True)]
    most = max(logs)
    weights = [exp(each - most) for each in logs]
    return [each / sum(weights) for each in weights]


def _sum(usage: Usage, more: Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens + more.prompt_tokens,
        cached_tokens=usage.cached_tokens + more.cached_tokens,
        prefill_seconds=usage.prefill_seconds + more.prefill_seconds,
    )
