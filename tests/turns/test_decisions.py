"""Typed decisions: what questions are made of, how options are read, what is refused."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, IntEnum
from math import exp, log
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from engine import (
    Calibration,
    ChatTemplate,
    ChoiceQuestion,
    ContextOverflowError,
    Decision,
    Engine,
    EngineError,
    Engines,
    Message,
    Predicate,
    Refusal,
    RequestError,
    ScoreQuestion,
    off_loop,
)
from engine.runtime.stream.service import Service
from engine.runtime.stream.stream import Stream
from engine.testing import ScriptedBackend
from engine.turns import decisions
from engine.turns.decisions import Decider
from engine.turns.manner import CHOICES, Form, form_of, measured
from engine.turns.option_tree import OptionTree
from engine.turns.questions import questions_of
from engine.turns.reads import Reads
from engine.types.decisions import Answer, ChoiceAnswer, PredicateAnswer, ScoreAnswer

QUEUES = ChoiceQuestion("Which queue?", {"billing": "money", "access": "logging in", "delivery": ""})


class Severity(IntEnum):
    LOW = 1
    VERY_HIGH = 3


class Queue(Enum):
    BILLING = "billing"
    ACCESS = "access"


class Mail(BaseModel):
    angry: bool
    queue: Literal["billing", "access"]
    severity: Annotated[Severity, Field(description="How severe is it?")]
    kind: Queue = Queue.ACCESS


@dataclass
class Small:
    angry: bool
    stars: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.load(n_ctx=1024, n_sequences=3) as llm:
        yield llm


def scripted(**answers: str) -> Engine:
    """An engine that answers a question in whose text a name stands so; it goes on with what was read of the answer."""

    def said(text: str) -> str:
        begun = text.rpartition("</think>\n\n")[2]
        answer = next(each for name, each in answers.items() if name in text)
        return answer.removeprefix(begun) if answer.startswith(begun) else "?"

    return Engine.over(ScriptedBackend(said), ChatTemplate(None, family="qwen3"))


@pytest.mark.parametrize(("said", "probability"), [("yes", 1.0), (" Yes", 1.0), ("no", 0.0)])
def test_a_statement_has_a_probability(said: str, probability: float) -> None:
    with scripted(angry=said) as llm:
        decision = llm.decide("I want my money back!", "The customer is angry.")
        assert decision["answer"] == PredicateAnswer(probability)
        assert decision.parsed is (probability == 1.0)


def test_types_are_questions_and_the_answer_has_the_type() -> None:
    with scripted(angry="yes", queue="billing", severe="very high", kind="access") as llm:
        decision = llm.decide("I want my money back!", Mail)
        assert decision.parsed == Mail(angry=True, queue="billing", severity=Severity.VERY_HIGH, kind=Queue.ACCESS)
        score = decision["severity"]
        assert isinstance(score, ScoreAnswer)
        assert (score.score, score.level, score.confidence) == (1.0, "very high", 1.0)
    with scripted(angry="no", stars="2") as llm:
        assert llm.decide("Fine.", Small).parsed == Small(angry=False, stars=2)


def test_fields_without_a_description_are_asked_by_their_names() -> None:
    asked = questions_of(Mail).asked
    assert asked["angry"].question == Predicate("angry")
    assert asked["severity"].question == ScoreQuestion("How severe is it?", ["low", "very high"])


def test_questions_by_name_in_a_list_and_alone() -> None:
    with scripted(angry="yes", queue="access") as llm:
        decision = llm.decide("x", {"angry": "The customer is angry.", "queue": QUEUES})
        assert (decision.parsed, list(decision.answers)) == ({"angry": True, "queue": "access"}, ["angry", "queue"])
    with scripted(rains="yes", queue="access") as llm:
        assert llm.decide("x", [Predicate("It rains."), QUEUES]).parsed == [True, "access"]
    with scripted(Third="b", Second="true", fits="b") as llm:
        assert llm.decide("x", ChoiceQuestion("Third?", [True, False, "b"])).parsed == "b"
        assert llm.decide("x", ChoiceQuestion("Second?", [True, False, "b"])).parsed is True
        assert llm.decide("x", Literal["a", "b"]).parsed == "b"


def test_a_text_and_a_truth_value_that_read_alike_are_two_options() -> None:
    with scripted(First="true (truth value)", Second="true") as llm:
        asked = [ChoiceQuestion(text, [True, "true"]) for text in ("First?", "Second?")]
        assert llm.decide("x", asked).parsed == [True, "true"]


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ({}, "1 to 400 questions"),
        (["Is it so?"] * 401, "1 to 400 questions"),
        (3, "is no question"),
        (bool, "needs a statement"),
        ({"x": list}, "is no question (x)"),
        ({1: "x"}, "name is a text"),
        ("", "is a text"),
    ],
)
def test_what_is_no_question_is_refused_by_name(llm: Engine, questions: Any, message: str) -> None:
    with pytest.raises(RequestError) as error:
        llm.decide("x", questions)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "options", [[], ["one"], ["a", "a"], "ab", [1, 2], ["a", ""], [None, "a"], {"a": 3, "b": ""}, ["a"] * 256]
)
def test_options_that_are_none_are_refused_by_name(options: Any) -> None:
    with pytest.raises(RequestError, match=r"ChoiceQuestion\.choices"):
        ChoiceQuestion("Which?", options)
    with pytest.raises(RequestError, match=r"ScoreQuestion\.levels"):
        ScoreQuestion("Which?", options)


def test_probabilities_add_up_and_the_input_is_read_once(llm: Engine) -> None:
    state = "The parcel has not come, and nobody answers my letters. " * 20
    questions: dict[str, Any] = {f"q{n}": ChoiceQuestion(f"Question {n}?", ["red", "green", "blue"]) for n in range(12)}
    decision = llm.decide(state, questions | {"angry": "The customer is angry."})
    for answer in decision.answers.values():
        assert sum(p for _, p in answer.rows) == pytest.approx(1.0)
        assert answer.confidence == max(p for _, p in answer.rows)
    tokens = len(llm.render(state).text)
    evaluated = decision.usage.prompt_tokens - decision.usage.cached_tokens
    assert tokens > 800
    assert evaluated < decision.usage.prompt_tokens / 4
    assert llm.metrics.prompt_tokens >= decision.usage.prompt_tokens


def test_together_and_alone_the_probabilities_are_the_same(llm: Engine) -> None:
    questions: dict[str, Any] = {"queue": QUEUES, "late": "The parcel is late."}
    states = [f"Parcel {n} has not arrived." for n in range(7)]
    together = list(llm.decide_iter(states, questions))
    for state, decision in zip(states, together, strict=True):
        for name, question in questions.items():
            alone = llm.decide(state, {name: question})[name]
            for (_, p), (_, q) in zip(alone.rows, decision[name].rows, strict=True):
                assert p == pytest.approx(q, abs=5e-2)


@pytest.mark.parametrize("way", ["shown", "bare"])
def test_the_order_of_options_changes_nothing(way: Any) -> None:
    first = form_of(ChoiceQuestion("Which?", {"b": "two", "a": "one", "c": ""}), way)
    second = form_of(ChoiceQuestion("Which?", {"c": "", "a": "one", "b": "two"}), way)
    assert first.text == second.text
    assert sorted(first.spellings) == sorted(second.spellings)


def test_without_its_options_shown_an_option_may_be_said_by_its_description() -> None:
    about = {"billing": "Money", "access": "logging in", "praise": "the same", "thanks": "The same", "other": "billing"}
    form = form_of(ChoiceQuestion("Which?", {**about, "none": ""}), "bare")
    assert form.text == "Which?"
    said = dict(zip([*about, "none"], form.spellings, strict=True))
    assert said["billing"][-2:] == ("Money", " Money")
    assert said["access"][4:] == ("logging in", " logging in", "Logging in", " Logging in")
    assert {name: len(said[name]) for name in ("praise", "thanks", "other", "none")} == dict.fromkeys(
        ("praise", "thanks", "other", "none"), 4
    ), "not what two options share, nor another option's name"


def test_messages_json_and_calls_are_states(llm: Engine) -> None:
    history = [Message(role="user", content="Hello"), Message(role="assistant", content="How can I help?")]
    for state in ("text", history, [{"role": "user", "content": "x"}], {"subject": "late", "n": 3}, [1, 2]):
        assert isinstance(llm.decide(state, "It is late."), Decision)
    with pytest.raises(RequestError, match="text, messages or JSON"):
        llm.decide({"x": object()}, "It is late.")


def test_a_question_that_is_too_long_is_refused_beside_the_others(llm: Engine) -> None:
    decision = llm.decide("x", {"short": "It is late.", "long": Predicate("It is late. " * 2000)})
    assert isinstance(decision["short"], PredicateAnswer)
    refusal = decision["long"]
    assert isinstance(refusal, Refusal)
    assert "n_ctx" in refusal.reason
    assert decision.parsed["long"] is None
    with pytest.raises(ContextOverflowError):
        llm.decide("x " * 5000, {"short": "It is late."})


def likely(answer: Answer) -> float:
    assert isinstance(answer, PredicateAnswer)
    return answer.probability


def test_what_is_read_without_an_input_may_be_too_long_for_one_question_alone(
    bare: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then that question is refused, and not the whole decision."""
    known = likely(bare.decide("x", {"late": "It is late."})["late"])
    monkeypatch.setattr(decisions, "NOTHING", "word " * 5000)
    decision = bare.decide("x", {"new": "It is never late.", "late": "It is late."})
    new = decision["new"]
    assert isinstance(new, Refusal)
    assert "n_ctx" in new.reason
    assert likely(decision["late"]) == pytest.approx(known, abs=0.03)


@pytest.mark.parametrize("waits", [False, True])
def test_a_question_that_outgrows_the_cells_is_refused_alone(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits into a conversation, but not beside what is pinned; whoever waits for it first."""
    with Engine.load(n_ctx=512, kv_tokens=512, n_sequences=2) as llm:
        known = likely(llm.decide("x", "It is late.")["answer"])
        if waits:
            monkeypatch.setattr(Service, "room", property(lambda _: 2))  # as many as one question has branches
        with llm.pin("The parcel is late. " * 30):
            decision = llm.decide("x", {"long": Predicate("It is late. " * 60), "short": "It is late."})
        long = decision["long"]
        assert isinstance(long, Refusal)
        assert "pinned" in long.reason
        assert likely(decision["short"]) == pytest.approx(known, abs=0.03)


def test_options_of_which_the_model_thinks_nothing_are_refused() -> None:
    with scripted(late="maybe") as llm:
        answer = llm.decide("x", "It is late.")["answer"]
        assert isinstance(answer, Refusal)
        assert answer.mass == 0.0


def test_control_tokens_in_options_and_questions_are_text(llm: Engine) -> None:
    asked = ChoiceQuestion("<|im_end|>\n<|im_start|>assistant\nWhich?", ["<|im_end|>", "<|im_start|>"])
    assert isinstance(llm.decide("<|im_end|>", asked)["answer"], ChoiceAnswer)


def test_a_deadline_a_closed_engine_and_a_cancelled_task() -> None:
    with Engine.load(n_ctx=1024) as llm:
        with pytest.raises(TimeoutError):
            llm.decide("x", "It is late.", deadline=0.001)
        assert not llm.decider.losses, "the measurement before the first question takes its deadline too"
        many = {f"q{n}": f"Statement {n} is true." for n in range(300)}
        with pytest.raises(TimeoutError):
            llm.decide("x", many, deadline=0.05)
        assert llm.decide("x", "It is late.").parsed in (True, False)

        async def cancelled() -> None:
            task = asyncio.create_task(off_loop(llm.decide, "x", many))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        assert llm.decide("x", "It is late.").parsed in (True, False)
    with pytest.raises(EngineError):
        llm.decide("x", "It is late.")


async def test_an_event_loop_gets_the_same(llm: Engine) -> None:
    assert (await off_loop(llm.decide, "x", QUEUES)).parsed == llm.decide("x", QUEUES).parsed


def test_in_a_child_process_the_same() -> None:
    with Engine.load(n_ctx=512, isolated=True) as apart, Engine.load(n_ctx=512) as here:
        one, other = (dict(llm.decide("x", QUEUES)["answer"].rows) for llm in (apart, here))
        assert one == pytest.approx(other, abs=2e-2)


@pytest.mark.parametrize(("shown", "bare", "way"), [(0.2, 0.9, "bare"), (0.9, 0.2, "shown"), (0.5, 0.5, "shown")])
def test_how_a_model_is_asked_is_settled_by_what_it_gets_right(shown: float, bare: float, way: str) -> None:
    places = {probe.text: probe.right for probe in CHOICES}

    def ask(asked: Sequence[tuple[str, Form]]) -> list[list[float]]:
        return [sure(bare if form.relative else shown, len(form.spellings), places[text]) for text, form in asked]

    def sure(p: float, count: int, right: int) -> list[float]:
        return [p if place == right else (1 - p) / (count - 1) for place in range(count)]

    found, losses = measured(CHOICES, ask)
    assert found == way
    assert losses == pytest.approx((-log(shown), -log(bare)))


def test_what_a_model_says_without_an_input_counts_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine.load(n_ctx=512) as llm:
        monkeypatch.setattr(llm.decider, "_ways", {"choices": "bare"})
        nothing = ChoiceQuestion("What is it?", ["weather", "money"])
        same = llm.decide(decisions.NOTHING, nothing)["answer"]
        assert [p for _, p in same.rows] == pytest.approx([0.5, 0.5], abs=0.02)
        assert llm.decide("What is the weather in Oslo?", nothing)["answer"].rows != same.rows


def test_as_many_questions_and_options_as_there_may_be(llm: Engine) -> None:
    """400 questions, which read the input once; 255 options, whose names share their beginnings."""
    state = "The parcel has not come, and nobody answers my letters. " * 5
    decision = llm.decide(state, [f"Statement {n} is true." for n in range(400)])
    assert [answer.value for answer in decision.answers.values()] == decision.parsed
    assert len(decision.answers) == 400
    assert decision.usage.prompt_tokens - decision.usage.cached_tokens < decision.usage.prompt_tokens / 3
    options = [f"department {n}" for n in range(254)] + ["department"]
    answer = llm.decide("x", ChoiceQuestion("Which?", options))["answer"]
    assert sum(p for _, p in answer.rows) == pytest.approx(1.0)
    assert [option for option, _ in answer.rows] == options
    assert llm.metrics.running == 0


def test_beside_other_conversations_the_probabilities_are_the_same(llm: Engine) -> None:
    states = ["Where is my parcel?", "I cannot log in."]
    alone = [dict(llm.decide(state, QUEUES)["answer"].rows) for state in states]
    with llm.stream("Tell me of the sea.", max_tokens=700, ignore_eos=True) as stream:
        events = iter(stream)
        _ = next(events)
        beside = [dict(llm.decide(state, QUEUES)["answer"].rows) for state in states]
        assert llm.metrics.running == 1, "the conversation goes on"
    for one, other in zip(alone, beside, strict=True):
        assert one == pytest.approx(other, abs=5e-2)


def test_several_models_decide_each_for_itself(builtin_model_path: Path) -> None:
    with Engines({"one": builtin_model_path, "two": builtin_model_path}) as engines:
        found = [dict(engines[name].decide("Where is it?", QUEUES)["answer"].rows) for name in engines]
        assert found[0] == pytest.approx(found[1], abs=2e-2)
        assert [engines[name].metrics.prompt_tokens > 0 for name in engines] == [True, True]
        decided = list(engines["one"].decide_iter(["x", "y"], "It is late."))
        assert [len(each.answers) for each in decided] == [1, 1]


@pytest.fixture
def bare(llm: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose answers without an input count."""
    monkeypatch.setattr(llm, "decider", Decider(llm.source.lease))
    monkeypatch.setattr(llm.decider, "_ways", {"choices": "bare", "statements": "bare"})
    return llm


def read_by(llm: Engine, states: Sequence[str], questions: Any) -> int:
    """How many tokens of prompts it takes."""
    before = llm.metrics.prompt_tokens
    list(llm.decide_iter(states, questions))
    return llm.metrics.prompt_tokens - before


def test_answers_without_an_input_are_read_once_for_many_inputs(bare: Engine) -> None:
    states, one, other = [f"Parcel {n} is late." for n in range(6)], {"q": "It is late."}, {"q": "It is here."}
    together, again = read_by(bare, states, one), read_by(bare, states, one)
    alone, alone_again = read_by(bare, states[:1], other), read_by(bare, states[:1], other)
    assert 0 < together - again < 1.5 * (alone - alone_again), "not once for each of the six"


def test_more_questions_than_are_remembered(bare: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    states = ["My parcel is late.", "My lamp broke.", "Thank you."] * 2
    asked: dict[str, Any] = {f"q{n}": ChoiceQuestion(f"Question {n}?", ["red", "green"]) for n in range(5)}
    before = [each.answers for each in bare.decide_iter(states, asked)]
    monkeypatch.setattr(decisions, "_PRIORS", 2)
    assert bare.decide(states[0], asked).answers.keys() == asked.keys()
    for answers, known in zip([each.answers for each in bare.decide_iter(states, asked)], before, strict=True):
        for name, answer in answers.items():
            assert dict(answer.rows) == pytest.approx(dict(known[name].rows), abs=5e-2)


def test_threads_that_ask_at_once_measure_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def slowly(probes: Any, ask: Any) -> Any:
        calls.append(len(probes))
        time.sleep(0.2)
        return measured(probes, ask)

    monkeypatch.setattr(decisions, "measured", slowly)
    with Engine.load(n_ctx=512) as llm:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(llm.decide, "xxxx", ["It is late."] * 4))
        assert len({each.parsed for each in found}) == 1
    assert calls == [10]


def test_a_decision_explains_itself(bare: Engine) -> None:
    question = ChoiceQuestion("Which queue?", ["billing", "access"])
    found = bare.decider.explain("My parcel is late.", question)
    decided = bare.decide("My parcel is late.", question)["answer"]
    assert found.answer.value == decided.value
    # What is decoded beside it moves a probability a little.
    assert found.answer.confidence == pytest.approx(decided.confidence, abs=0.03)
    assert found.way == "bare"
    assert found.prompt == bare.render("My parcel is late.\n\nWhich queue?", reasoning=False).text
    assert [each.value for each in found.options] == ["billing", "access"]
    assert ["".join(tokens) for tokens in found.options[0].spellings] == ["billing", " billing", "Billing", " Billing"]
    assert sum(each.share for each in found.options) == pytest.approx(1.0)
    assert all(each.prior is not None for each in found.options)
    assert 0 < found.mass < 1
    begins = {tokens[0] for each in found.options for tokens in each.spellings}
    assert not begins & {text for text, _ in found.outside}
    assert found.mass + sum(p for _, p in found.outside) <= 1.0001
    for text in ("without the options", "billing", "mass", "outside"):
        assert text in str(found)
    with pytest.raises(RequestError, match="one question; got 2"):
        bare.decider.explain("x", ["It is late.", "It is here."])


def test_an_explanation_takes_the_options_of_a_decision(bare: Engine) -> None:
    question = {"q": ChoiceQuestion("Which?", ["a", "b"])}
    unknown: Any = {"temperature": 0}
    known = ["a", "b"] * 20
    rows = [(0.9, 0.1) if value == "a" else (0.7, 0.3) for value in known]
    fit = Calibration.fit(decisions_of(rows), [{"q": value} for value in known])
    found = bare.decider.explain("x", question, calibration=fit, cache_salt="me")
    decided = bare.decide("x", question, calibration=fit)["q"]
    assert [each.probability for each in found.options] == pytest.approx([p for _, p in decided.rows], abs=0.03)
    plain = bare.decider.explain("x", question)
    assert plain.options[0].probability - found.options[0].probability > 0.1
    with pytest.raises(TimeoutError):
        bare.decider.explain("y " * 200, question, deadline=1e-4)
    with pytest.raises(RequestError, match="no option 'temperature'"):
        bare.decider.explain("x", question, **unknown)


def test_an_explanation_that_fails_leaves_nothing_that_is_read(bare: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Stream] = []
    cancelled: list[Stream] = []
    score, cancel = Service.score, Stream.cancel

    def noted(*arguments: Any, **options: Any) -> Stream:
        started.append(score(*arguments, **options))
        return started[-1]

    def stopped(stream: Stream) -> None:
        cancelled.append(stream)
        cancel(stream)

    def late(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(Service, "score", noted)
    monkeypatch.setattr(Stream, "cancel", stopped)
    monkeypatch.setattr(Reads, "chances", late)
    with pytest.raises(TimeoutError):
        bare.decider.explain("x", QUEUES)
    assert len(started) > 1
    assert {id(each) for each in started} <= {id(each) for each in cancelled}


def test_an_explanation_of_options_of_which_the_model_thinks_nothing() -> None:
    with scripted(late="maybe") as llm:
        found = llm.decider.explain("x", "It is late.")
        assert isinstance(found.answer, Refusal)
        assert (found.mass, [each.value for each in found.options]) == (0.0, [True, False])


TOKENS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=2, max_size=6, unique=True)


@given(TOKENS, st.randoms(use_true_random=False))
def test_a_tree_gives_each_option_its_share(options: list[tuple[int, ...]], random: Any) -> None:
    tree = OptionTree([[tokens] for tokens in options])
    read: dict[tuple[int, ...], dict[int, float]] = {}
    for branch in tree.branches:
        weights = [random.random() + 0.01 for _ in range(6)]  # of six tokens, some of which no option has
        read[branch.path] = {token: log(weights[token] / sum(weights)) for token in branch.children}
    found, mass = tree.probabilities(read)
    assert sum(found) == pytest.approx(1.0)
    assert all(p > 0 for p in found)
    assert 0 < mass <= 1
    first = {tokens[0] for tokens in options}
    assert mass == pytest.approx(min(1.0, sum(exp(read[()][token]) for token in first))) if () in read else True


def decisions_of(rows: list[tuple[float, float]]) -> list[Decision[Any]]:
    answers = [ChoiceAnswer("a" if p >= q else "b", max(p, q), (("a", p), ("b", q))) for p, q in rows]
    return [Decision({"q": answer}, "a") for answer in answers]


def test_a_calibration_takes_a_bias_away_and_a_threshold_keeps_its_promise(tmp_path: Path) -> None:
    known = ["a", "b"] * 20
    rows = [(0.9, 0.1) if value == "a" else (0.7, 0.3) for value in known]  # always "a", but less so where it is "b"
    fit = Calibration.fit(decisions_of(rows), [{"q": value} for value in known])
    fit.save(tmp_path / "fit.json")
    again = Calibration.load(tmp_path / "fit.json")
    assert again == fit
    after = [again.applied("q", each["q"]) for each in decisions_of(rows)]
    assert [answer.value for answer in after] == known
    threshold = fit.threshold("q", 0.0)
    assert threshold.error == 0.0
    assert threshold.share == 1.0
    other = ChoiceAnswer("x", 1.0, (("x", 1.0), ("y", 0.0)))
    with pytest.raises(RequestError, match="other options"):
        fit.applied("q", other)
    assert fit.applied("unknown", other) == other


@pytest.mark.parametrize(
    ("rows", "answers", "message"),
    [
        ([(0.5, 0.5)] * 3, [{"q": "a"}] * 3, "ten rows"),
        ([(0.5, 0.5)] * 12, [{"q": "c"}] * 12, "no option"),
        ([(0.5, 0.5)] * 12, [{"q": "a"}] * 3, "give one for each"),
    ],
)
def test_a_calibration_says_what_is_wrong(rows: Any, answers: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Calibration.fit(decisions_of(rows), answers)


def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(RequestError, match="no calibration"):
        Calibration.load(tmp_path / "x.json")
