"""Scores of given texts on real contexts, against one decode of each whole text by llama.cpp's calls alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.inside import parts
from files import model_files
from files.vector_files import ScoredAlone

from engine import Engine
from engine.support.errors import ContextOverflowError, DecodeError, RequestError

PROMPT = "The weather result: 21 degrees and"
TEXTS = [
    " sunny in Paris",
    " rainy",
    " x",
    " sunny in Oslo and in all the other cities of this list",
]


@pytest.fixture(scope="module", params=["builtin", "mamba", "lfm2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, builtin_model_path: Path) -> Path:
    """The built-in model; one whose memory cannot be cut; one with both kinds of layers."""
    if request.param == "builtin":
        return builtin_model_path
    return model_files.write(tmp_path_factory.mktemp("scores") / f"{request.param}.gguf", request.param)


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[Engine]:
    with Engine.load(model, n_ctx=512, n_sequences=4, kv_unified=False) as llm:
        yield llm


def test_scores_are_those_of_one_decode_of_each_text(llm: Engine, model: Path) -> None:
    alone = ScoredAlone(model)
    prompt = llm.tokenize(PROMPT, special=False, add_bos=True)
    texts = [llm.tokenize(text, special=False) for text in TEXTS]
    scores = llm.score(prompt, texts)
    for score, text in zip(scores, texts, strict=True):
        expected = alone.logprobs([*prompt, *text])[len(prompt) - 1 :]
        assert [token.token for token in score.tokens] == text
        assert [token.logprob for token in score.tokens] == pytest.approx(expected, abs=2e-2)
        assert score.logprob == pytest.approx(sum(expected), abs=2e-2 * len(expected))
    alone.close()


def test_a_long_text_is_scored_from_its_second_token_on(llm: Engine, model: Path) -> None:
    alone = ScoredAlone(model)
    tokens = [(7 * number) % 250 + 3 for number in range(400)]
    (score,) = llm.score(tokens[:1], [tokens[1:]])
    assert len(score.tokens) == 399
    assert score.logprob == pytest.approx(sum(alone.logprobs(tokens)), rel=1e-3)
    alone.close()


def test_logits_that_are_not_numbers_are_no_score(tmp_path: Path) -> None:
    path = model_files.write(tmp_path / "mamba.gguf", "mamba", model_files.Shape(decays=False))
    with (
        Engine.load(path, family="content-only", preflight=False) as llm,
        pytest.raises(DecodeError, match="not numbers"),
    ):
        llm.score([3], [[(7 * number) % 250 + 3 for number in range(400)]])


def test_more_continuations_than_may_wait_are_all_scored(builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path, n_sequences=2, max_waiting=3) as llm:
        scores = llm.score(PROMPT, [f" {number}" for number in range(20)])
        assert len(scores) == 20
        again = llm.score(PROMPT, [" 7"])
        assert again[0].logprob == pytest.approx(scores[7].logprob, abs=2e-2)


def test_turns_and_scores_run_side_by_side(builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path) as llm:
        answer = llm.chat("Hello! Who are you?", temperature=0).content
        alone = llm.score(PROMPT, TEXTS)
        with llm.stream("Hello! Who are you?", temperature=0) as stream:
            scores = llm.score(PROMPT, TEXTS)
            assert stream.result().content == answer
        assert [score.logprob for score in scores] == pytest.approx([score.logprob for score in alone], abs=0.1)


def test_what_the_model_would_write_is_greedy(builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path) as llm:
        written = llm.complete(PROMPT, temperature=0, max_tokens=5)
        tokens = llm.tokenize(written.content, special=False)
        greedy, other = llm.score(llm.tokenize(PROMPT, special=False, add_bos=True), [tokens, tokens[::-1]])
        assert greedy.greedy
        assert not other.greedy
        assert greedy.logprob > other.logprob


@pytest.mark.parametrize(
    ("prompt", "continuations", "problem"),
    [
        (PROMPT, [], "one at least"),
        (PROMPT, "text", "list of continuations"),
        (PROMPT, [""], "a token to score"),
        ([], [[3]], "one before it"),
        ([3], [[10**9]], "There is no token"),
        ([3], [5], "Tokens must be a list"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(
    builtin_model_path: Path, prompt: Any, continuations: Any, problem: str
) -> None:
    with Engine.load(builtin_model_path, n_ctx=256) as llm, pytest.raises(RequestError, match=problem):
        llm.score(prompt, continuations)


def test_a_text_longer_than_a_conversation_is_refused_with_the_numbers(builtin_model_path: Path) -> None:
    with (
        Engine.load(builtin_model_path, n_ctx=256) as llm,
        pytest.raises(ContextOverflowError, match=r"300 .*n_ctx=256"),
    ):
        llm.score([3], [[4] * 300])


def test_control_token_text_is_text_unless_asked(builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path) as llm:
        control = next(iter(sorted(parts(llm).service.vocab.control_tokens)))  # pyright: ignore[reportPrivateUsage]
        scorer = llm.scorer
        ((plain, _),) = scorer.pairs(f"a{control}", ["b"], special=False)
        ((special, scored),) = scorer.pairs(f"a{control}", [f"b{control}"], special=True)
        vocab = parts(llm).service.vocab  # pyright: ignore[reportPrivateUsage]
        assert not any(vocab.is_special(token) for token in plain[1:])
        assert vocab.is_special(special[-1])
        assert not any(vocab.is_special(token) for token in scored)


@pytest.mark.parametrize(
    ("prompt", "continuations", "special"), [(b"ab", ["c"], False), ("a", [b"c"], False), ("a", ["c"], "no")]
)
def test_bytes_are_no_tokens_and_a_word_is_no_switch(
    builtin_model_path: Path, prompt: Any, continuations: Any, special: Any
) -> None:
    with Engine.load(builtin_model_path) as llm, pytest.raises(RequestError):
        llm.score(prompt, continuations, special=special)
