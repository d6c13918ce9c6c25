"""Where a form leaves a few texts, each is as likely as the whole of it is, not as its first token."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import exp, log
from typing import Any

import pytest

from engine import Engine, JsonSchema
from engine.llama.context import LlamaBackend
from engine.runtime.guidance.json_text import JsonPlace
from engine.runtime.guidance.matcher import Compiler
from engine.runtime.loop.weighing import _together  # pyright: ignore[reportPrivateUsage]
from engine.support.errors import DecodeError
from engine.testing import ByteVocab

CASES: list[tuple[str, tuple[str, ...]]] = [
    ("I call is", ("words", "The user wants", "to the user")),
    ("What is", ("to the user", "result", "wonder")),
    ("I call is", ("name", "wonder")),
    ("The user is", ("add", "Paris is", "sunny", "to the user", "result")),
    ("Paris is", ("multiply", "the result", "3", "I have")),
    ("wants is", ("multiply", "Rome", "weather", "Paris is", "to the user")),
    ("add is", ("wonder", "The user wants", "Paris is", "I have", "weather")),
    ("Paris is", ("Rome", "3")),
]
"""In the first seven but one the likeliest first token begins another text than the likeliest one."""


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.load(n_ctx=512, n_sequences=4, n_threads=1, preflight=False) as engine:
        yield engine


def enum(*texts: str) -> Any:
    return JsonSchema({"enum": list(texts)})


def whole(llm: Engine, prompt: str, texts: Sequence[str]) -> dict[str, float]:
    """How likely each text is behind a prompt and a quote, with the quote that ends it."""
    scores = llm.score([*llm.tokenize(prompt), *llm.tokenize('"')], [f'{text}"' for text in texts])
    return {text: score.logprob for text, score in zip(texts, scores, strict=True)}


def answer(llm: Engine, prompt: str, texts: tuple[str, ...], **options: Any) -> Any:
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 40, **options}
    engine: Any = llm
    return engine.complete(prompt, response_format=enum(*texts), **given).parsed


def test_the_likeliest_whole_text_is_taken(llm: Engine) -> None:
    scores = [whole(llm, *case) for case in CASES]
    likeliest = [max(each, key=each.__getitem__) for each in scores]
    assert [answer(llm, *case) for case in CASES] == likeliest
    with ThreadPoolExecutor(8) as pool:
        together = [each.result() for each in [pool.submit(answer, llm, *case) for case in CASES]]
    assert together == likeliest, "several that choose in one step"
    said = llm.complete("Paris is", response_format=enum(*CASES[4][1]), temperature=0, logprobs=1, max_tokens=40)
    assert said.parsed == likeliest[4]
    assert said.usage.weighed_tokens > 0
    assert llm.metrics.weighed_tokens > 0


def test_texts_are_drawn_as_often_as_they_are_likely(llm: Engine) -> None:
    prompt, texts = "Paris is", ("words", "weather", "sunny")
    count = 200
    flat: dict[str, Any] = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
    scores = {text: exp(score) for text, score in whole(llm, prompt, texts).items()}
    drawn = Counter(answer(llm, prompt, texts, seed=seed, **flat) for seed in range(count))
    for text in texts:
        assert drawn[text] / count == pytest.approx(scores[text] / sum(scores.values()), abs=0.12), (drawn, scores)


def test_texts_that_are_hardly_likely_at_all_are_weighed() -> None:
    assert _together([-800.0, -801.0]) == pytest.approx(-800 + log(1 + exp(-1)))
    assert _together([-1.0]) == -1


def test_what_cannot_be_forgotten_is_not_tried_again(llm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    trim, asked = LlamaBackend.trim, list[int]()

    def kept(self: LlamaBackend, sequence: int, position: int) -> bool:
        if not asked and position > 3:
            asked.append(position)
            return False
        return trim(self, sequence, position)

    monkeypatch.setattr(LlamaBackend, "trim", kept)
    prompt, texts = CASES[0]
    said = llm.complete(prompt, response_format=enum(*texts), temperature=0, max_tokens=40)
    assert said.parsed in texts
    assert len(asked) == 1
    assert 0 < said.usage.weighed_tokens < 5, "of the first text only"


def test_an_aborted_trial_is_made_again(llm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    likeliest = answer(llm, *CASES[2])
    decode, failed = LlamaBackend.decode, list[int]()

    def aborted(self: LlamaBackend, rows: Any) -> None:
        if not failed and len(rows) > 1 and all(row.output for row in rows):
            failed.append(len(rows))
            raise DecodeError("aborted", "aborted")
        decode(self, rows)

    monkeypatch.setattr(LlamaBackend, "decode", aborted)
    assert answer(llm, *CASES[2]) == likeliest
    assert failed


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"enum": ["ab", "abc", "b"]}, [b'ab"', b'abc"', b'b"']),
        ({"enum": ["x"]}, []),
        ({"type": "string"}, []),
        ({"type": "string", "maxLength": 1}, []),
        ({"type": "string", "pattern": "^[ab]{2}$"}, [b'aa"', b'ab"', b'ba"', b'bb"']),
        ({"enum": [str(number) for number in range(100, 140)]}, []),
    ],
)
def test_the_few_texts_that_a_schema_leaves(schema: Any, texts: list[bytes]) -> None:
    grammar = {"properties": {"k": schema}, "required": ["k"], "type": "object"}
    vocab = ByteVocab(["<|end|>"])
    matcher = Compiler(vocab).compiled(json.dumps({"grammars": [{"json_schema": grammar}]}))
    matcher.json = JsonPlace()
    for text, found in (('{"', []), ('k":', []), ('"', texts)):
        assert matcher.consume_text(text)
        assert sorted(b"".join(map(vocab.token_bytes, tokens)) for tokens in matcher.values) == found
