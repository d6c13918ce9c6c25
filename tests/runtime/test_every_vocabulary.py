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
