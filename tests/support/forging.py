"""Texts that try to pass for control tokens, in every field that a caller fills, and what becomes of them.

Shared by the test of forgery and by `tests/bench/forgery.py`. Vocabularies and templates are read from the folder that
`LLAMA_CPP_MODELS` names (`vendor/llama.cpp/models` of llama-cpp-python's source distribution).
"""

import json
import os
import re
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import RequestError, TemplateError
from engine.llama.lib import library
from engine.llama.vocab import LlamaVocab
from engine.template.chat_template import ChatTemplate
from engine.template.prompt import Prompt
from engine.types import Tool

FOLDER = os.environ.get("LLAMA_CPP_MODELS", "")
VOCABULARIES = sorted(Path(FOLDER).glob("ggml-vocab-*.gguf")) if FOLDER else []
SOURCES = sorted(Path(FOLDER, "templates").glob("*.jinja")) if FOLDER else []
OURS = sorted((Path(__file__).parents[2] / "templates").glob("*.jinja"))
CLEAN = ("plain text", "if a < b and c > d: x[0]\n\n> quoted  twice ", "ünï 你好 🌦\ttab")
_NOW = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - templates show local time
_SPACE = " \t\r\n▁"


class _Remembering(LlamaVocab):
    """A vocabulary that tokenises a short text once: the same ones come in every field of every template."""

    def _raw(self, text: str, *, special: bool) -> list[int]:
        if len(text) > 200:
            return super()._raw(text, special=special)
        known = self.__dict__.setdefault("known", {})
        if (tokens := known.get((text, special))) is None:
            tokens = known[text, special] = super()._raw(text, special=special)
        return list(tokens)


@contextmanager
def vocabulary(path: Path) -> Generator[LlamaVocab]:
    """The vocabulary of a file, for as long as it is needed."""
    lib: Any = library()
    parameters = lib.llama_model_default_params()
    parameters.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), parameters)
    assert model, f"{path} cannot be loaded"
    try:
        yield _Remembering(lambda: lib.llama_model_get_vocab(model))
    finally:
        lib.llama_model_free(model)


def guarded_tokens(vocab: LlamaVocab) -> list[str]:
    """The control and user-defined tokens that mean something: white space and single characters do not."""
    return sorted(text for text in vocab.control_tokens if len(text) > 1 and text.strip(_SPACE))


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


def _swallows(vocab: LlamaVocab, token: str) -> bool:
    """Whether a token takes the white space after it with it."""
    tokens = vocab.tokenize(f"{token}\na", special=True)
    return b"\n" not in b"".join(map(vocab.token_bytes, tokens))


class Tried(NamedTuple):
    """What became of one prompt: control tokens too many, whether the guard left its text alone, whether its tokens
    spell that text; and a sentence about what is odd ("" for nothing)."""

    forged: int
    same_text: bool
    same_bytes: bool
    about: str


class Probe:
    """One template with one vocabulary. `expected`: the control tokens of a harmless conversation; None where the
    template refuses it."""

    def __init__(self, source: Path, vocab: LlamaVocab) -> None:
        self.name = source.stem
        self._vocab = vocab
        text = source.read_text(encoding="utf-8")
        self._template = ChatTemplate(text, "", "", now=lambda: _NOW, control_tokens=vocab.control_tokens)
        swallowing = [token for token in vocab.control_tokens if token.strip(_SPACE) and _swallows(vocab, token)]
        self._swallowing = re.compile(rf"({'|'.join(map(re.escape, swallowing))})\s+") if swallowing else None
        self._documents = True
        if (harmless := self._prompt("HARMLESS")) is None:
            self._documents = False  # a template without a place for them
            harmless = self._prompt("HARMLESS")
        self.expected = None if harmless is None else self._specials(self._tokens(harmless))

    def tried(self, text: str, *, guard: bool = True) -> Tried:
        """The text in every field."""
        guarded, plain = self._prompt(text, guard=guard), self._prompt(text, guard=False)
        assert guarded is not None, f"{self.name} refuses {text[:80]!r} and takes harmless text"
        tokens = self._tokens(guarded)
        more = self._specials(tokens)
        more.subtract(self.expected or {})
        forged = {token: count for token, count in more.items() if count}
        same_text = plain is not None and guarded.text == plain.text
        same_bytes = plain is not None and self._spells(tokens, plain.text)
        about = f"forged {forged}" if forged else "" if same_text else "another text"
        return Tried(sum(map(abs, forged.values())), same_text, same_bytes, about or ("" if same_bytes else "bytes"))

    def clean(self, text: str) -> bool:
        """Whether a conversation with nothing to guard is token for token the unguarded one."""
        guarded, plain = self._prompt(text), self._prompt(text, guard=False)
        return guarded is not None and plain is not None and self._tokens(guarded) == self._tokens(plain)

    def _prompt(self, text: str, *, guard: bool = True) -> Prompt | None:
        messages, tools = conversation(text)
        documents = [{"title": text, "text": text}] if self._documents else None
        try:
            return self._template.render(messages, tools, guard=guard, documents=documents)
        except (TemplateError, RequestError):
            return None  # the template has no such messages; `expected` says so

    def _tokens(self, prompt: Prompt) -> list[int]:
        return self._vocab.encode(prompt.pieces, add_bos=False)

    def _specials(self, tokens: list[int]) -> Counter[str]:
        """The control tokens of a prompt; white space counts as text, whoever wrote it."""
        texts = (self._vocab.text(token) for token in tokens if self._vocab.is_special(token))
        return Counter(text for text in texts if len(text) > 1 and text.strip(_SPACE))

    def _spells(self, tokens: list[int], text: str) -> bool:
        """Whether the tokens spell the text.

        A vocabulary with a space prefix puts a space before the first token. Where some tokens swallow the white space
        after them, that space is left out of the comparison. A vocabulary that changes texts (word pieces lose case,
        accents and spaces) is asked for what it makes of the same text as ordinary characters.
        """
        spelt = b"".join(map(self._vocab.token_bytes, tokens))
        wanted = text.encode()
        if spelt in (wanted, b" " + wanted):
            return True
        if self._swallowing is not None:
            bare = (self._swallowing.sub(r"\1", each.lstrip(" ")) for each in (spelt.decode("utf-8", "replace"), text))
            if len(set(bare)) == 1:
                return True
        same = self._vocab.tokenize(text, special=False)
        return spelt.lstrip(b" ") == b"".join(map(self._vocab.token_bytes, same)).lstrip(b" ")
