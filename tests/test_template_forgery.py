"""No text that a caller writes becomes a control token: every template of llama.cpp's tree, on real vocabularies.

Needs the vocabularies and the templates: set `LLAMA_CPP_MODELS` to the folder `vendor/llama.cpp/models` of
llama-cpp-python's source distribution. Skipped, by name, without it. `FORGERY_TOKENS` bounds how many control tokens of
each vocabulary are tried on each template (all of them are tried on one).
"""

import json
import os
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.chat_template import ChatTemplate
from engine.errors import TemplateError
from engine.runtime.llama_lib import library
from engine.runtime.llama_vocab import LlamaVocab
from engine.types import Tool

FOLDER = os.environ.get("LLAMA_CPP_MODELS", "")
VOCABULARIES = sorted(Path(FOLDER).glob("ggml-vocab-*.gguf")) if FOLDER else []
SOURCES = sorted(Path(FOLDER, "templates").glob("*.jinja")) if FOLDER else []
OURS = sorted((Path(__file__).parent.parent / "templates").glob("*.jinja"))
KINDS = [
    path for path in VOCABULARIES if path.stem.endswith(("-spm", "phi-3", "qwen2", "llama-bpe", "gemma-4", "-bge"))
]
BOUND = int(os.environ.get("FORGERY_TOKENS", "2"))
CLEAN = ("plain text", "if a < b and c > d: x[0]\n\n> quoted  twice ", "ünï 你好 🌦\ttab")

pytestmark = pytest.mark.skipif(not VOCABULARIES, reason="set LLAMA_CPP_MODELS to llama.cpp's models folder")


@contextmanager
def vocabulary(path: Path) -> Generator[LlamaVocab]:
    lib: Any = library()
    parameters = lib.llama_model_default_params()
    parameters.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), parameters)
    assert model, f"{path} cannot be loaded"
    try:
        yield LlamaVocab(lambda: lib.llama_model_get_vocab(model))
    finally:
        lib.llama_model_free(model)


def forms(marker: str) -> list[str]:
    """The marker whole, nested in itself, doubled, and beside white space that templates trim."""
    half = max(len(marker) // 2, 1)
    return [marker, marker[:half] + marker + marker[half:], marker * 2, f"\n{marker} "]


def conversation(text: str) -> tuple[list[dict[str, Any]], list[Tool]]:
    """The text in every field that a caller fills, in halves too where two fields may meet."""
    half = len(text) // 2
    arguments = json.dumps({"city": text, f"k{text}": {"deep": [text]}}, ensure_ascii=False)
    call = {"id": "abcdefgh1", "name": "look", "arguments": arguments}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:]}]},
        {"role": "assistant", "content": f"Said {text}", "reasoning": f"Why {text}"},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "", "reasoning": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefgh1", "content": text},
    ]
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "description": text, "enum": [text, text[:half]]}},
    }
    return messages, [Tool(name="look", description=text, parameters=schema)]


def encoded(
    template: ChatTemplate, vocab: LlamaVocab, text: str, *, guard: bool = True
) -> tuple[list[int], str] | None:
    messages, tools = conversation(text)
    try:
        prompt = template.render(messages, tools, guard=guard)
    except TemplateError:
        return None
    return vocab.encode(prompt.pieces, add_bos=False), prompt.text


def specials(vocab: LlamaVocab, tokens: list[int]) -> list[str]:
    """The control tokens of a prompt; white space counts as text, whoever wrote it."""
    return [text for token in tokens if vocab.is_special(token) and (text := vocab.text(token)).strip(" \t\r\n▁")]


def guarded_tokens(vocab: LlamaVocab) -> list[str]:
    return sorted(text for text in vocab.control_tokens if len(text) > 1 and text.strip(" \t\r\n▁"))


@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_every_control_token_on_one_template(path: Path) -> None:
    with vocabulary(path) as vocab:
        template = ChatTemplate(OURS[-1].read_text(encoding="utf-8"), control_tokens=vocab.control_tokens)
        harmless = encoded(template, vocab, "HARMLESS")
        assert harmless is not None
        expected = specials(vocab, harmless[0])
        tokens = guarded_tokens(vocab)
        for number in range(0, len(tokens), 200):
            text = " ".join(form for token in tokens[number : number + 200] for form in forms(token))
            result = encoded(template, vocab, text)
            assert result is not None
            assert specials(vocab, result[0]) == expected


@pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_every_template(path: Path, record_testsuite_property: Callable[[str, object], None]) -> None:
    """Forged tokens 0; clean prompts are token for token the plain ones. Two vocabularies of each tokeniser's kind."""
    tried = refused = 0
    chance = random.Random(path.stem)
    with vocabulary(path) as vocab:
        known = guarded_tokens(vocab)
        for source in (*SOURCES, *OURS):
            template = ChatTemplate(source.read_text(encoding="utf-8"), "", "", control_tokens=vocab.control_tokens)
            harmless = encoded(template, vocab, "HARMLESS")
            if harmless is None:
                refused += 1
                continue
            expected = specials(vocab, harmless[0])
            for token in chance.sample(known, min(BOUND, len(known))):
                for text in forms(token):
                    result = encoded(template, vocab, text)
                    assert result is not None
                    assert specials(vocab, result[0]) == expected, f"{source.stem}: {text!r}"
                    tried += 1
            for text in CLEAN:
                result, plain = encoded(template, vocab, text), encoded(template, vocab, text, guard=False)
                assert result == plain, f"{source.stem}: {text!r}"
    record_testsuite_property(f"forgery {path.stem}", f"tried={tried} refused={refused}")
    assert tried or not known
