"""Constraints over real vocabularies: each text without control tokens can be demanded, is allowed, and reads back.

Vocabularies: those of llama.cpp's tree (`LLAMA_CPP_MODELS`), that of SmolLM2 if its package is installed, and one that
is written with Gemma 3's user-defined tokens for line breaks, tabs, blanks and tags.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from attacks.forging import VOCABULARIES, vocabulary
from files import model_files

from engine.formats.parsing.parser import Parser
from engine.llama.vocab import LlamaVocab
from engine.runtime.guidance.json_text import JsonPlace
from engine.runtime.guidance.matcher import Compiler, Matcher, grammar_of, masks
from engine.runtime.loop.generation import Generation, Limits, TokenTable
from engine.support.packaged import PACKAGED
from engine.types.answer_formats import Regex
from engine.types.events import ContentDelta

BLANKS = [mark * count for mark in ("\n", "\t", " ") for count in (*range(1, 9), 31)]
TAGS = ("<table>", "</td>", "<b>", "[multimodal]")
EMBEDDING = ("bert", "bge")
"""Of vocabularies that no text can be generated with: WordPiece has no white space."""
PACKAGED_FILE = PACKAGED["smollm2"].path
FILES = [
    *(path for path in VOCABULARIES if not any(word in path.stem for word in EMBEDDING)),
    *([] if PACKAGED_FILE is None else [PACKAGED_FILE]),
]


@pytest.fixture(scope="module", params=["written", *FILES], ids=lambda each: getattr(each, "stem", each))
def vocab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaVocab]:
    path: Path | str = request.param
    if isinstance(path, str):
        marks = tuple(mark for mark in BLANKS if mark != " ")
        path = model_files.write(
            tmp_path_factory.mktemp("vocab") / "m.gguf",
            tensors=False,
            space_prefix=False,
            user_defined=(*marks, "ø", *TAGS),
        )
    with vocabulary(path) as found:
        yield found


@pytest.fixture(scope="module")
def compiler(vocab: LlamaVocab) -> Compiler:
    return Compiler(vocab)


def texts(vocab: LlamaVocab, count: int) -> list[str]:
    """Texts of words, blanks, signs and the vocabulary's own tokens, control tokens not among them."""
    chance = random.Random(7)
    own = [data.decode() for data in vocab.all_token_bytes() if _is_text(data)]
    parts = ["word", "naïve ø", "東京", "🙂", '{"a": [', "]}", "- ", "12.5", "|", "<", *BLANKS, *BLANKS]
    made = ["".join(chance.choice((chance.choice(parts), chance.choice(own))) for _ in range(8)) for _ in range(count)]
    fixed = ['{\n  "a": 1,\n\t"b": []\n}', "a\n\nb", "\n", " \n\t", *BLANKS, "one <table> </td> [multimodal] more"]
    return [text for text in (*fixed, *made) if all(char.isprintable() or char in "\n\t" for char in text)]


def _is_text(data: bytes) -> bool:
    try:
        return bool(data.decode())
    except UnicodeDecodeError:
        return False


def matcher_of(compiler: Compiler, pattern: str) -> Matcher:
    return compiler.compiled(json.dumps({"grammars": [{"lark_grammar": grammar_of(Regex(pattern))}]}))


def allowed(matcher: Matcher) -> "set[int]":
    (row,) = masks([matcher])
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def read_back(vocab: LlamaVocab, tokens: Sequence[int]) -> str:
    generation = Generation(TokenTable(vocab), Parser("content-only", control_tokens=vocab.control_tokens), Limits())
    events = [event for token in tokens for event in generation.advance(token).events]
    return "".join(event.text for event in (*events, *generation.close("stop")) if isinstance(event, ContentDelta))


def test_each_token_that_is_text_is_allowed_where_any_text_is(vocab: LlamaVocab, compiler: Compiler) -> None:
    """And no control token."""
    found = allowed(matcher_of(compiler, r"(?s:.*)"))
    data = vocab.all_token_bytes()
    expected = {
        token for token in range(vocab.size) if not vocab.is_special(token) and _is_text(data[token])
    } | vocab.end_tokens
    assert expected - found == set()
    assert {token for token in found if vocab.is_special(token)} <= vocab.end_tokens


def test_the_models_own_tokens_of_a_text_are_allowed(vocab: LlamaVocab, compiler: Compiler) -> None:
    for text in texts(vocab, 30):
        tokens = vocab.tokenize(text, special=False)
        matcher = matcher_of(compiler, re.escape(text).replace("\\\n", "\n").replace("\\\t", "\t"))
        assert not any(map(vocab.is_special, tokens)), text
        for token in tokens:
            assert matcher.consume(token), (text, tokens, token)
        assert matcher.accepts, text


def test_a_text_that_is_demanded_is_written_and_reads_back(vocab: LlamaVocab, compiler: Compiler) -> None:
    """Forced tokens are taken; between them any allowed token is drawn."""
    chance = random.Random(3)
    for text in texts(vocab, 30):
        matcher = matcher_of(compiler, re.escape(text).replace("\\\n", "\n").replace("\\\t", "\t"))
        tokens: list[int] = []
        while not matcher.is_over:
            tokens += matcher.forced()
            if matcher.is_over:
                break
            token = chance.choice(sorted(allowed(matcher) - vocab.end_tokens))
            assert matcher.consume(token)
            tokens.append(token)
        assert b"".join(map(vocab.token_bytes, tokens)).decode() == text
        assert read_back(vocab, tokens) == text


ENDS = ("", "}", "0}", ":0}", '"}')
"""None of them ends a key."""


def twice(text: str) -> bool:
    """Whether a key stands twice in an object of numbers or texts that begins with this text, as far as one end more
    makes JSON of it."""
    doubled: list[str] = []

    def looked(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        doubled.extend(name for name in names if names.count(name) > 1)

    for end in ENDS:
        try:
            json.loads(text + end, object_pairs_hook=looked)
        except ValueError:
            continue
    return bool(doubled)


def test_no_token_gives_an_object_a_key_twice(vocab: LlamaVocab, compiler: Compiler) -> None:
    """Wherever in the object it begins, and wherever in the token the key stands."""
    values = [{"type": "integer"}, {"type": "string"}]
    schema = {"type": "object", "additionalProperties": {"anyOf": values}}
    start = compiler.compiled(json.dumps({"grammars": [{"json_schema": schema}]}))
    quoting = {token: data for token, data in enumerate(vocab.all_token_bytes()) if b'"' in data and _is_text(data)}
    whole = [data[1:-1].decode() for data in quoting.values() if re.fullmatch(rb'"[!-~]+"', data)]
    tried = 0
    for key in ["", "a", *sorted({text for text in whole if not set(text) & set('"\\\\')})[:6]]:
        for text in ("{%s:1,", '{%s:"', "{%s:1", '{%s:"b"', '{%s:1,"', "{%s:1,\n "):
            begun = text % f'"{key}"'
            matcher = start.copy()
            matcher.json = JsonPlace()
            if not matcher.consume_text(begun):
                continue
            wrong = [
                data for token in allowed(matcher) & quoting.keys() if twice(begun + (data := quoting[token].decode()))
            ]
            assert not wrong, (begun, wrong)
            tried += 1
    assert tried >= 8


def test_a_text_opens_with_its_quote_alone(vocab: LlamaVocab, compiler: Compiler) -> None:
    """Which is what is written where the model would write nothing that begins a text."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    white = {"x-guidance": {"whitespace_flexible": False, "key_separator": ": "}}
    matcher = compiler.compiled(json.dumps({"grammars": [{"json_schema": schema | white}]}))
    matcher.json = JsonPlace()
    assert matcher.opening is None, "how an answer begins chooses its layout"
    assert matcher.consume_text('{"a": ')
    assert matcher.opening is not None
    assert vocab.token_bytes(matcher.opening) == b'"'
    assert matcher.opening in allowed(matcher)
    assert matcher.consume(matcher.opening)
    assert matcher.opening is None, "any text may follow"
