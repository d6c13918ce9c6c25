"""Draft models over llama.cpp itself: the same answers, whoever guesses; and which models are refused."""

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.doubles import guess_always
from files import model_files
from numpy.typing import NDArray

from engine import Completion, ContextOverflowError, Engine, EngineError, ModelLoadError, RequestError
from engine.llama.draft import check_draft
from engine.llama.gguf.gguf import read_gguf
from engine.llama.model import Model
from engine.llama.plan.plan import RESERVE, DraftFile, Machine, draft_context, plan
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.types.answer_formats import JsonSchema

ASKED = ("Hello! Who are you?", "What is 17 + 25?", "Say blue", "Thank you.", "Tell me about the sea.")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"],
}


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory, builtin_model_path: Path) -> Path:
    """The built-in model with six of its seven layers."""
    return model_files.copied(builtin_model_path, tmp_path_factory.mktemp("draft") / "six.gguf", layers=6)


@pytest.fixture(scope="module")
def bare() -> Iterator[Engine]:
    with Engine.load(n_ctx=1024, n_sequences=4, kv_unified=False) as llm:
        yield llm


WISHES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.9, "top_k": 40, "seed": 11},
    "penalties": {"temperature": 0.9, "repeat_penalty": 1.1, "seed": 12},
    "schema": {"temperature": 0.8, "seed": 13, "response_format": JsonSchema(SCHEMA)},
    "tool": {"temperature": 0.8, "seed": 14, "tools": [get_weather], "tool_choice": "required"},
    "logprobs": {"temperature": 0, "logprobs": 2},
}


MOST = 36


@pytest.fixture(scope="module")
def expected(bare: Engine) -> dict[str, list[Completion]]:
    """What is answered without guesses, one question at a time."""
    answers: dict[str, list[Completion]] = {}
    for name, wish in WISHES.items():
        options: dict[str, Any] = {"max_tokens": MOST, **wish}
        answers[name] = [bare.chat(text, **options) for text in ASKED]
    return answers


@pytest.mark.parametrize("kind", ["ngram", "model", "engine", "child"])
def test_answers_are_the_same_whoever_guesses(
    monkeypatch: pytest.MonkeyPatch, six: Path, bare: Engine, expected: dict[str, list[Completion]], kind: str
) -> None:
    guess_always(monkeypatch)  # except in the child
    draft = "ngram" if kind == "ngram" else bare if kind == "engine" else six
    options: dict[str, Any] = {"n_ctx": 1024, "n_sequences": 4, "kv_unified": False, "preflight": False}
    with Engine.load(draft=draft, isolated=kind == "child", **options) as llm:
        for name, wish in WISHES.items():
            asked: dict[str, Any] = {"max_tokens": MOST, **wish}
            streams = [llm.stream(text, **asked) for text in ASKED]  # together, and more than there are sequences
            for plain, stream in zip(expected[name], streams, strict=True):
                drafted: Completion = stream.result()
                assert (drafted.parts, drafted.finish_reason) == (plain.parts, plain.finish_reason)
                for one, other in zip(drafted.logprobs or (), plain.logprobs or (), strict=True):
                    assert one.token == other.token
                    assert one.logprob == pytest.approx(other.logprob, abs=0.05)
        assert llm.metrics.accepted_tokens > 0


def test_choices_and_logits_processors_are_guessed_for(
    monkeypatch: pytest.MonkeyPatch, bare: Engine, six: Path
) -> None:
    def odd(_tokens: Sequence[int], logits: NDArray[np.float32]) -> None:
        logits[::2] -= 1

    guess_always(monkeypatch)
    options: dict[str, Any] = {"logits_processors": [odd], "seed": 3, "max_tokens": 40}
    with Engine.load(n_ctx=1024, n_sequences=4, kv_unified=False, draft=six, preflight=False) as llm:
        drafted = [stream.result() for stream in llm.choices(ASKED[0], 3, **options)]
        assert llm.metrics.accepted_tokens > 0
    assert [each.parts for each in drafted] == [
        stream.result().parts for stream in bare.choices(ASKED[0], 3, **options)
    ]


def test_a_model_of_most_layers_is_mostly_right(monkeypatch: pytest.MonkeyPatch, six: Path) -> None:
    guess_always(monkeypatch)
    with Engine.load(n_ctx=1024, draft=six, draft_max=4, preflight=False) as llm:
        for text in ASKED:
            llm.chat(text, temperature=0, max_tokens=60)
        metrics = llm.metrics
    assert metrics.accepted_tokens > 0.6 * metrics.drafted_tokens > 0
    assert "llama_engine_accepted_tokens_total" in metrics.prometheus()


def test_where_guesses_do_not_pay_there_are_few(builtin_model_path: Path) -> None:
    """A draft model as slow as the model itself, which is always right."""
    with Engine.load(n_ctx=1024, draft=builtin_model_path) as llm:
        for text in ASKED * 3:
            llm.chat(text, temperature=0, max_tokens=60, ignore_eos=True)
        metrics = llm.metrics
    assert metrics.accepted_tokens == metrics.drafted_tokens
    assert metrics.undrafted_tokens > 0.6 * metrics.completion_tokens
    assert "llama_engine_undrafted_tokens_total" in metrics.prometheus()


def test_an_engine_that_lent_its_weights_may_be_closed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    guess_always(monkeypatch)
    lender = Engine.load(n_ctx=512)
    expected = lender.chat(ASKED[0], temperature=0, max_tokens=40)
    with Engine.load(n_ctx=512, draft=lender) as llm:
        lender.close()
        del lender
        gc.collect()
        answer = llm.chat(ASKED[0], temperature=0, max_tokens=40)
    assert answer.parts == expected.parts
    assert answer.usage
    assert answer.usage.accepted_tokens > 0


def test_what_cannot_guess_is_refused_by_name(six: Path, builtin_model_path: Path) -> None:
    load: Any = Engine.load
    closed = Engine.load(n_ctx=512)
    closed.close()
    with pytest.raises(EngineError, match="is closed"):
        load(draft=closed)
    for draft in (5, b"x", closed, object()):
        with pytest.raises(RequestError, match="cannot guess here"):
            load(draft=draft, isolated=draft is closed)
    with pytest.raises(ModelLoadError, match="no file"):
        load(draft=six.with_name("gone.gguf"))
    with pytest.raises(RequestError, match="draft_max=-1 is not valid"):
        load(draft=six, draft_max=-1)
    with Engine.load(n_ctx=512, draft=six, draft_max=0) as llm:
        llm.chat("Hello", max_tokens=8)
        assert llm.metrics.drafted_tokens == llm.metrics.undrafted_tokens == 0


def test_a_vocabulary_must_mean_the_same_bytes(tmp_path: Path, builtin_model_path: Path) -> None:
    with Model.load(builtin_model_path) as model:
        odd = model_files.copied(builtin_model_path, tmp_path / "odd.gguf", layers=1, tokens={300: "zebra"})
        with Model.load(odd) as draft, pytest.raises(ModelLoadError, match=r"token 300 is b'.*' there and b'zebra'"):
            check_draft(model, draft)
        with pytest.raises(ModelLoadError, match="token 300"):
            Engine.load(n_ctx=512, draft=odd)
        with pytest.raises(ModelLoadError, match="token 300"):
            Engine.load(n_ctx=512, draft=odd, isolated=True)


def test_padding_at_the_end_of_a_vocabulary_does_not_count(tmp_path: Path) -> None:
    plain, padded, longer = (
        model_files.write(tmp_path / f"{number}.gguf", words=(*model_files.WORDS, *more))
        for number, more in enumerate(((), ("[PAD286]", "[PAD287]"), ("[PAD286]", "zebra")))
    )
    with Model.load(plain) as model, Model.load(padded) as draft, Model.load(longer) as other:
        check_draft(model, draft)
        check_draft(draft, model)
        with pytest.raises(ModelLoadError, match="only the draft model has token 287"):
            check_draft(model, other)
        with pytest.raises(ModelLoadError, match="only the model has token 287"):
            check_draft(other, model)


@pytest.mark.parametrize("architecture", ["mamba", "lfm2"])
def test_recurrent_memories_are_refused(tmp_path: Path, architecture: str) -> None:
    recurrent = model_files.write(tmp_path / "r.gguf", architecture)
    plain = model_files.write(tmp_path / "p.gguf")
    for model, draft in ((recurrent, plain), (plain, recurrent)):
        with pytest.raises(ModelLoadError, match="recurrent memory, from which wrong guesses cannot be cut off"):
            Engine.load(model, draft=draft, family="qwen3", n_ctx=256, preflight=False)


def test_the_plan_counts_the_draft_model(builtin_model_path: Path, six: Path) -> None:
    file, beside = read_gguf(builtin_model_path), DraftFile(read_gguf(six))
    options, model = ContextOptions(n_sequences=4), ModelOptions()

    def having(room: int) -> Machine:
        return Machine(int(room / (1 - RESERVE)) + 1)

    alone, both = (plan(file, model, options, having(1 << 40), draft=draft) for draft in (None, beside))
    assert alone.n_ctx == both.n_ctx
    own = plan(beside.file, model, draft_context(options, both.n_ctx, 4), having(1 << 40))
    assert both.need.host == alone.need.host + own.need.host
    assert ", drafts " in both.summary
    assert plan(file, model, options, having(both.need.host), draft=beside).n_ctx == both.n_ctx
    assert plan(file, model, options, having(both.need.host - 2), draft=beside).n_ctx < both.n_ctx
    with pytest.raises(ContextOverflowError):
        plan(file, model, ContextOptions(n_ctx=4096, n_sequences=4), having(alone.need.host), draft=beside)
    with pytest.raises(ModelLoadError, match="for its weights"):
        plan(file, model, options, having(alone.need.weights.total), draft=beside)
    shared = plan(file, model, options, having(1 << 40), draft=DraftFile(beside.file, 1 << 62))
    assert shared.need.draft < both.need.draft, "weights that are loaded take nothing more"
