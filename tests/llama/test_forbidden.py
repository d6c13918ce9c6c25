"""`min_tokens` and `bad_words`, and several raw prompts or texts in one call, on the built-in model."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Engine, RequestError
from engine.types.answer_formats import Choice, Regex

QUESTION = "Hello! Who are you?"


@pytest.fixture(scope="module")
def llm(builtin_model_path: Path) -> Iterator[Engine]:
    options: dict[str, Any] = {
        "n_ctx": 512,
        "n_sequences": 4,
        "n_threads": 1,
        "seed": 5,
    }  # answers are compared, in buffers
    with Engine.load(builtin_model_path, **options, kv_unified=False, preflight=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def answer(llm: Engine) -> str:
    return llm.chat(QUESTION, temperature=0).content


@settings(max_examples=25)
@given(st.data())
def test_a_bad_word_is_not_written_however_its_tokens_are_cut(llm: Engine, answer: str, data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.integers(0, len(answer) - 9), min_size=1, max_size=3))
    words = [answer[start : start + data.draw(st.integers(1, 8))] for start in starts]
    options: dict[str, Any] = data.draw(
        st.sampled_from([{"temperature": 0}, {"temperature": 1, "seed": 3}, {"top_k": 5}])
    )
    found = llm.chat(QUESTION, max_tokens=24, bad_words=words, **options)
    written = re.sub("<[^<>]*>", "\0", found.content)  # a stray control token is shown, and is no text
    assert not [word for word in words if word in written]
    assert llm.chat(QUESTION, temperature=0).content == answer, "another turn is not concerned"


@pytest.mark.parametrize("least", [1, 30, 60])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_no_turn_ends_before_its_least_tokens(llm: Engine, least: int, temperature: float) -> None:
    usage = llm.chat(QUESTION, temperature=temperature, min_tokens=least, max_tokens=80).usage
    assert usage is not None
    assert usage.completion_tokens >= least
    stop = llm.complete("one", temperature=0, max_tokens=1, logprobs=0).logprobs[0].token
    assert llm.complete("one", temperature=0, max_tokens=9, stop_tokens=[stop]).content == ""
    assert llm.complete("one", temperature=0, max_tokens=9, stop_tokens=[stop], min_tokens=2).content != ""


def test_under_a_constraint_the_grammar_decides_where_an_answer_ends(llm: Engine) -> None:
    form: Any = Choice(["yes", "no"])
    assert llm.chat("Is it?", response_format=form, min_tokens=50, temperature=0).parsed in ("yes", "no")
    letters = Regex("[a-z ]{0,300}")
    free: str = llm.chat("Is it?", response_format=letters, temperature=0).content
    assert len(free) < 300, "the model ends it"
    assert llm.chat("Is it?", response_format=letters, min_tokens=200, temperature=0).content == free
    assert llm.chat("Is it?", response_format=form, bad_words=["yes"], temperature=0).parsed == "no"


def test_wrong_values_are_refused_by_name(llm: Engine) -> None:
    for options in ({"min_tokens": -1}, {"bad_words": [""]}, {"bad_words": [7]}):
        wrong: Any = options
        with pytest.raises(RequestError, match=next(iter(options))):
            llm.chat("Hi", **wrong)


def test_several_raw_prompts_are_the_same_as_one_by_one(llm: Engine) -> None:
    prompts = ["one two", "three", "four five six"]
    alone = [llm.complete(prompt, temperature=0, max_tokens=6).content for prompt in prompts]
    assert [each.content for each in llm.complete(prompts, temperature=0, max_tokens=6)] == alone
    tokens = [llm.tokenize(prompt, add_bos=True) for prompt in prompts]
    assert [each.content for each in llm.complete(tokens, temperature=0, max_tokens=6)] == alone
    hot: Any = {"temperature": 4, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 6}
    twice = llm.complete(prompts, n=2, **hot)
    assert len(twice) == 6
    once: Callable[..., Any] = llm.complete
    seeds = [once("one two", seed=5 + number, **hot).content for number in range(2)]
    assert [each.content for each in twice[:2]] == seeds
    assert seeds[0] != seeds[1]
    assert len(llm.complete("one", n=3, max_tokens=2)) == 3
    with pytest.raises(RequestError, match="n="):
        llm.complete("one", n=0)
