"""Where a form leaves a few texts, each is as likely as the whole of it is, not as its first token."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import exp, log
from time import sleep
from typing import Any, NamedTuple

import pytest
from cases.walking import END, allowed, byte_compiler, grammar_of

from engine import GBNF, Engine, JsonSchema, Lark, Regex
from engine.formats.families import builtin_families
from engine.formats.template.generic import with_generic_tools
from engine.llama.context import LlamaBackend
from engine.runtime.guidance.json_text import JsonPlace
from engine.runtime.guidance.matcher import Compiler
from engine.runtime.loop.backend import Row
from engine.runtime.loop.weighing import _together  # pyright: ignore[reportPrivateUsage]
from engine.support.errors import DecodeError
from engine.testing import ByteVocab
from engine.tools import as_tools

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


def test_what_cannot_be_forgotten_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trim, asked = LlamaBackend.trim, list[int]()

    def kept(self: LlamaBackend, sequence: int, position: int) -> bool:
        asked.extend([position] if position == 3 else [])
        return (position != 3 or len(asked) != 2) and trim(self, sequence, position)

    monkeypatch.setattr(LlamaBackend, "trim", kept)
    prompt, texts = CASES[0]
    with Engine.load(n_ctx=512, n_threads=1, preflight=False) as llm:
        said = llm.complete(prompt, response_format=enum(*texts), temperature=0, max_tokens=40)
    assert said.parsed in texts
    assert len(asked) == 2, "once before each text: a third was not tried"
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


class Decode(NamedTuple):
    """The sequences of a decode, and those of them that have more outputs than one: texts are tried behind them."""

    sequences: set[int]
    tries: set[int]


def watch(patch: pytest.MonkeyPatch, then: Callable[[], object] = list) -> list[Decode]:
    """Returns a list to which each decode is added. `then`: called before one in which texts are tried."""
    decodes, decode = list[Decode](), LlamaBackend.decode

    def watched(backend: LlamaBackend, rows: Sequence[Row]) -> None:
        outputs = Counter(row.sequence for row in rows if row.output)
        tries = {sequence for sequence, count in outputs.items() if count > 1}
        decodes.append(Decode({row.sequence for row in rows}, tries))
        if tries:
            then()
        decode(backend, rows)

    patch.setattr(LlamaBackend, "decode", watched)
    return decodes


@pytest.mark.parametrize(("n_sequences", "others"), [(4, 1), (16, 15)])
def test_what_is_tried_takes_a_decode_at_most_of_what_runs_beside_it(
    n_sequences: int, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text is tried beside the others' tokens; where there is no room for all, in one batch more a step."""
    with Engine.load(n_ctx=512, n_sequences=n_sequences, n_threads=1, preflight=False, draft_max=0) as llm:
        answers = [answer(llm, *CASES[number % 7]) for number in range(others)]
        decodes = watch(monkeypatch)
        stream = llm.stream_complete("Paris", temperature=0, max_tokens=400, min_tokens=400, priority=1)
        reader = iter(stream)
        next(reader)
        ((own,), _) = decodes[-1]
        with ThreadPoolExecutor(others) as pool:
            asked = [pool.submit(answer, llm, *CASES[number % 7]) for number in range(others)]
            assert [each.result() for each in asked] == answers
        stream.cancel()
        monkeypatch.undo()
    beside = "".join("." if own in each.sequences else "x" for each in decodes)
    assert "xxx" not in beside, "only prompts' batch and that of texts come between two of its tokens"
    trying = [each for each in decodes if each.tries]
    assert trying
    assert any(own not in each.sequences for each in trying) == (others > 1), "apart only where there is no room"
    assert max(len(each.tries) for each in trying) > 1 or others == 1, "several are tried in one decode"


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
def test_a_request_that_tries_texts_ends_at_once(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, texts = CASES[3]
    with Engine.load(n_ctx=128, kv_tokens=128, n_sequences=2, n_threads=1, preflight=False) as llm:
        likeliest = answer(llm, prompt, texts)
        ends: Callable[[], object] = (lambda: stream.cancel()) if how == "cancelled" else (lambda: sleep(0.6))
        decodes = watch(monkeypatch, ends)
        deadline = 0.5 if how == "deadline" else None
        stream = llm.stream_complete(
            prompt, response_format=enum(*texts), temperature=0, max_tokens=40, deadline=deadline
        )
        said = stream.result()
        assert said.finish_reason == how
        assert sum(bool(each.tries) for each in decodes) == 1, "no further text was tried"
        monkeypatch.undo()
        assert answer(llm, prompt, texts) == likeliest
        assert llm.metrics.running == 0
        whole_context = llm.complete([5] * 126, temperature=0, max_tokens=1)
        assert whole_context.usage.prompt_tokens == 126, "nothing is held"


def test_texts_that_do_not_fit_are_not_tried(llm: Engine) -> None:
    """One is longer than a decode has outputs, or than what is left of the context."""
    long = ("the user wants " * 9, "to the user")
    assert answer(llm, "I call is", long) in long
    said = llm.complete("I call is", response_format=enum(*long), temperature=0, max_tokens=80)
    assert said.usage.weighed_tokens == 0


@pytest.mark.parametrize(
    "form",
    [
        Regex('"(words|to the user|The user wants)"'),
        Lark('start: "\\"" ("words" | "to the user" | "The user wants") "\\""'),
        GBNF('root ::= "\\"" ("words" | "to the user" | "The user wants") "\\""'),
        Regex('"json_schema" "(words|to the user)"'),
    ],
    ids=["regex", "lark", "gbnf", "regex that speaks of a schema"],
)
def test_other_grammars_are_not_weighed(llm: Engine, form: Any) -> None:
    said = llm.complete("I call is", response_format=form, temperature=0, max_tokens=60)
    assert said.finish_reason == "stop"
    assert said.usage.weighed_tokens == 0


def choosing(name: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {
            "mode": {"type": "object", "properties": {"of": {"enum": ["fast", "full"]}}, "required": ["of"]},
            "size": {"enum": ['5"pipe', '5"a"', '5"b"', "x"]},
        },
        "required": ["mode", "size"],
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_in_calls_of_every_family_the_texts_are_all_that_may_follow() -> None:
    """Also where a value stands in marks, and a quote in it is text."""
    tools, seen = as_tools([choosing(name) for name in ("cut", "cut_all", "weld")]), set[str]()
    for family in builtin_families().names():
        format_ = with_generic_tools(builtin_families().get(family).format)
        grammar = grammar_of(format_, tools, 1)
        for seed in range(3):
            matcher, rng = byte_compiler().compiled(grammar), random.Random(seed)
            for _ in range(200):
                matcher.forced()
                if matcher.is_over:
                    break
                may = allowed(matcher)
                if texts := matcher.values:
                    seen.add(family)
                    assert {text[0] for text in texts} == set(may), (family, texts)
                    assert all(matcher.allowed(text) == text for text in texts), (family, texts)
                token = rng.choice(may)
                if token == END:
                    break
                assert matcher.consume(token)
    assert len(seen) > 60


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
