"""Texts that try to pass for control tokens, in every field that a caller or a model fills, and what becomes of them.

Shared by the test of forgery and by `benchmarks/forgery.py`. Vocabularies and templates are read from the folder that
`LLAMA_CPP_MODELS` names (`vendor/llama.cpp/models` of llama-cpp-python's source distribution); one more vocabulary is
written, which has the tokens of every family. A `Probe` is one template with one vocabulary. It learns from a harmless
render what the template writes around each field, and so which parts of which tokens it could complete.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from files import model_files

from engine.formats.families import builtin_families
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.env import Template
from engine.llama.lib import library
from engine.llama.lifetime import Shared
from engine.llama.vocab import LlamaVocab
from engine.runtime.cache.control_tokens import ControlTokens
from engine.support.errors import EngineError, RequestError, TemplateError
from engine.turns.embedding import Embedder, VectorSettings
from engine.turns.model_parts import ModelParts
from engine.turns.raw import infill_prompt
from engine.turns.scoring import Scorer
from engine.types.media import Image, Media
from engine.types.parts import Record
from engine.types.prompt import Prompt
from engine.types.tools import Tool

FOLDER = os.environ.get("LLAMA_CPP_MODELS", "")
VOCABULARIES = sorted(Path(FOLDER).glob("ggml-vocab-*.gguf")) if FOLDER else []
SOURCES = sorted(Path(FOLDER, "templates").glob("*.jinja")) if FOLDER else []
OURS = sorted((Path(__file__).parents[3] / "templates").glob("*.jinja"))
PICTURE = Image(np.zeros((40, 64, 3), np.uint8))
_MEDIA_MARKERS_TEXT = (
    "<__media__> <image> </image> <|image|> <|image_pad|> <|vision_start|><|image_pad|><|vision_end|> "
    "<|vision_start|> <|vision_end|> <start_of_image> <end_of_image> <|image_1|> [IMG] [IMG_BREAK] [IMG_END] "
    "<audio> <|audio|> <|AUDIO|> <fake_token_around_image> <global-img> <row_1_col_1> <row_1_col_2> <row_2_col_1> "
    "<row_2_col_2> <img> </img> <|img|> <slice> </slice> <vision> </vision> <im_start> <im_end> <patch_start> "
    "<patch_end> <patch_newline> <image|> <|image> <audio|> <|audio> <sound> <|IMAGE_START|> <|IMAGE_END|> "
    "<|image_start|> <|image_end|> <|begin_of_image|> <|end_of_image|> <|endofimg|> <|img_row_1_col_1|> "
    "<|img_thumbnail|> <|media_begin|> <|media_start|> <|media_end|> <|audio_bos|> <|audio_eos|> <|audio_start|> "
    "<|audio_end|> <|audio_comp_start|> <|audio_comp_end|> [BEGIN_AUDIO] <|mimo_audio_start|> <|mimo_audio_end|> "
    "<｜hy_place▁holder▁no▁100｜> <｜hy_place▁holder▁no▁101｜>"
)
MEDIA_MARKERS = tuple(_MEDIA_MARKERS_TEXT.split())
"""What stands for media in templates, in libmtmd (mtmd.cpp, `init_vision` and `init_audio`) and in servers."""
CLEAN = ("plain text", "if a < b and c > d: x[0]\n\n> quoted  twice ", "ünï 你好 🌦\ttab", "\U000f0041 \\udb80\\udc41")
_NOW = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - templates show local time
_SPACE = " \t\r\n▁"
_LOOKS_LIKE_CONTROL = re.compile(
    r"</?[A-Za-z_][\w:.-]{0,40}>|<\|[^<>|\s]{1,60}\|?>|<[^<>|\s]{1,40}\|>|\[/?[A-Z][A-Z_]{1,40}\]|<｜[^｜\s]{1,60}｜>"
)
_KEYWORDS = ("type", "description", "title", "enum", "default", "examples", "properties", "items", "required", "const")
_NO_NAME = re.compile(r"[^A-Za-z0-9_./-]")  # other tool names are refused
_GIVEN = {"messages", "tools", "documents", "builtin_tools", "add_generation_prompt", "bos_token", "eos_token"}
Say: TypeAlias = Callable[[str], str]
"""What stands in a field, by the field's name."""


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
    shared = Shared(model, lib.llama_model_free)
    try:
        yield _Remembering(shared)
    finally:
        shared.close(EngineError("over"))


def guarded_tokens(vocab: LlamaVocab) -> list[str]:
    """The control and user-defined tokens that mean something: white space and single characters do not."""
    return sorted(text for text in vocab.control_tokens if len(text) > 1 and text.strip(_SPACE))


def families_tokens() -> list[str]:
    """What every template and every family marks structure with: texts that look like a control token, and the markers
    of models.toml."""
    sources = (path.read_text(encoding="utf-8") for path in (*SOURCES, *OURS))
    found = {text for source in sources for text in _LOOKS_LIKE_CONTROL.findall(source)}
    for name in builtin_families().names():
        found.update(text.strip() for text in _markers(builtin_families().get(name).format))
    found.update(MEDIA_MARKERS)
    return sorted(text for text in found if 1 < len(text) < 60 and "\n" not in text)


def _markers(record: Record) -> Iterator[str]:
    for name in type(record).model_fields:
        value: object = getattr(record, name)
        for item in cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,):
            if isinstance(item, Record):
                yield from _markers(item)
            elif isinstance(item, str) and _LOOKS_LIKE_CONTROL.fullmatch(item.strip()):
                yield item


def families_vocabulary(folder: Path) -> Path:
    """A vocabulary with the tokens of every family, every other of them user-defined."""
    has = {"<unk>", "<s>", "</s>"}  # every vocabulary that tests write
    keywords = {f"<{end}{word}>" for end in ("", "/") for word in _KEYWORDS}  # a template writes `<` + key + `>`
    tokens = sorted(set(families_tokens()) - has - keywords)
    return model_files.write(
        folder / "ggml-vocab-families.gguf",
        tensors=False,
        space_prefix=False,
        control=tuple(tokens[::2]),
        user_defined=tuple(tokens[1::2]),
    )


class Conversation(NamedTuple):
    """What `ChatTemplate.render` takes."""

    messages: list[dict[str, Any]]
    tools: list[Tool]
    documents: list[dict[str, Any]] | None
    variables: dict[str, Any]
    continues: bool = False


@dataclass(frozen=True)
class Features:
    """What a template can be given beside a plain tool loop. `variables`: names that it shows the values of."""

    malformed: bool = True
    documents: bool = True
    schema_keys: bool = True
    variables: tuple[str, ...] = ()


def escaped(text: str) -> str:
    """The text as a JSON string that has nothing but escapes in it."""
    units = text.encode("utf-16-be").hex()
    return '"' + "".join(f"\\u{units[index : index + 4]}" for index in range(0, len(units), 4)) + '"'


def conversation(say: Say, features: Features, shown: Media = PICTURE) -> Conversation:
    """Every field that a caller or a model fills, with a text of its own in each, and a picture or a sound thrice."""
    arguments = {
        say("argument"): say("value"),
        "city": {say("inner argument"): [say("inner value"), 1, None, True]},
    }
    escapes = f'{{{escaped(say("escaped argument"))}: {escaped(say("escaped value"))}, "n": 1.50}}'
    calls = [
        {"id": say("id"), "name": say("call"), "arguments": json.dumps(arguments, ensure_ascii=False)},
        {"id": say("id") + "2", "name": "look", "arguments": escapes},
    ]
    if features.malformed:
        calls.append({"id": say("id") + "3", "name": "look", "arguments": say("malformed")})
        calls.append({"id": say("id") + "4", "name": "look", "arguments": json.dumps(say("text argument"))})
    parts: list[Any] = [{"type": "text", "text": say(name)} for name in ("part", "part 2", "part 3")]
    results: list[Any] = [say(f"result {call['id'][len(say('id')) :]}") for call in calls]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [*parts[:2], shown, parts[2], shown]},
        {"role": "assistant", "content": say("answer"), "reasoning": say("reasoning")},
        {"role": "user", "content": say("question"), "name": say("user")},
        {"role": "assistant", "content": say("preamble"), "reasoning": say("call reasoning"), "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": call["id"], "content": content}
            for call, content in zip(calls, [[results[0], shown], *results[1:]], strict=True)
        ),
    ]
    document = {"title": say("title of document"), "text": say("document"), say("document key"): say("document value")}
    variables = {name: say(f"variable {name}") for name in features.variables}
    return Conversation(messages, tools(say, features), [document] if features.documents else None, variables)


def tools(say: Say, features: Features) -> list[Tool]:
    """Tools whose schemas say something in every place."""
    further = {say("schema key"): say("schema value"), "x": {say("inner key"): [say("inner schema value")]}}
    city = {
        "type": "string",
        "description": say("property description"),
        "title": say("title"),
        "enum": [say("enum"), say("enum 2")],
        "default": say("default"),
        "examples": [say("example")],
        **(further if features.schema_keys else {}),
    }
    nested = {
        "type": "object",
        "description": say("object description"),
        "properties": {say("inner property"): {"type": "array", "items": {"type": "string", "const": say("const")}}},
    }
    properties = {"city": city, say("property"): nested, say("property 2"): {"type": "integer", "default": 3}}
    schema = {"type": "object", "properties": properties, "required": ["city", say("property"), say("required")]}
    return [
        Tool(name="look", description=say("description"), parameters=schema),
        Tool(
            name=_NO_NAME.sub("", say("tool"))[:128],
            description=say("description 2"),
            parameters={"type": "object", "properties": {}},
        ),
    ]


def continued(say: Say, features: Features) -> list[Conversation]:
    """Answers that the model is to go on with: inside its content, and inside its reasoning."""
    question = {"role": "user", "content": say("question")}
    answers: list[dict[str, Any]] = [
        {"role": "assistant", "content": say("answer"), "reasoning": say("reasoning")},
        {"role": "assistant", "content": "", "reasoning": say("reasoning")},
    ]
    return [Conversation([question, answer], [], None, {}, continues=True) for answer in answers]


def few_of_a_row(tokens: Iterable[str]) -> list[str]:
    """The tokens, of a numbered row (`<|reserved_special_token_17|>`) the first and the last."""
    rows: dict[str, list[str]] = {}
    for token in tokens:
        rows.setdefault(re.sub(r"\d+", "0", token), []).append(token)
    return [token for row in rows.values() for token in dict.fromkeys((row[0], row[-1]))]


def forms(marker: str) -> list[str]:
    """The marker whole, nested in itself, doubled, beside white space that templates trim, and escaped for JSON and for
    HTML."""
    half = max(len(marker) // 2, 1)
    html = marker.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return [
        marker,
        marker[:half] + marker + marker[half:],
        marker * 2,
        f"\n{marker} ",
        escaped(marker)[1:-1],
        json.dumps(marker).replace("<", "\\u003c"),
        html,
    ]


class Tried(NamedTuple):
    """What became of one prompt: how many texts it had, control tokens that callers forged, those of the template's own
    that it lacks, whether it has the text of the unguarded one, whether its tokens spell that text; and a sentence
    about what is odd ("" for nothing)."""

    texts: int
    forged: int
    lost: int
    same_text: bool
    same_bytes: bool
    about: str


_HARMLESS = "Zq{:03}k"
_SHOWN = re.compile(r"zq(\d{3})k", re.IGNORECASE)
_AROUND = 64
"""Characters of the template's beside a field that are looked at: no token is longer."""


class Probe:
    """One template with one vocabulary.

    `takes` is None where the template refuses a harmless conversation. `kinds` are the conversations that it takes (0 a
    tool loop, 1 and 2 answers to go on with), with the control tokens of each.
    """

    def __init__(self, source: Path, vocab: LlamaVocab, shown: Media = PICTURE) -> None:
        self.name = source.stem
        self._shown = shown
        self.vocab = vocab
        self._control = ControlTokens(vocab)
        text = source.read_text(encoding="utf-8")
        self._template = ChatTemplate(text, "", "", now=lambda: _NOW, control_tokens=vocab.control_tokens)
        swallowing = [token for token in vocab.control_tokens if token.strip(_SPACE) and _swallows(vocab, token)]
        self._swallowing = re.compile(rf"({'|'.join(map(re.escape, swallowing))})\s+") if swallowing else None
        self._fields: dict[str, int] = {}
        self.takes = self._features()
        if self.takes is not None:
            expected = {kind: self._expected(kind) for kind in range(3)}
            self.kinds = {kind: tokens for kind, tokens in expected.items() if tokens is not None}

    def _harmless(self, field: str) -> str:
        return _HARMLESS.format(self._fields.setdefault(field, len(self._fields)))

    def _features(self) -> Features | None:
        """What the template takes; None where it does not even take a plain conversation."""
        nothing = Features(malformed=False, documents=False, schema_keys=False)
        if self._prompt(conversation(self._harmless, nothing, self._shown)) is None:
            return None
        takes = nothing
        further = sorted(Template(self._template.source).variables - _GIVEN)
        for change in (
            {"malformed": True},
            {"documents": True},
            {"schema_keys": True},
            *({"variables": name} for name in further),
        ):
            name, value = next(iter(change.items()))
            tried = replace(takes, **{name: (*takes.variables, value) if name == "variables" else value})
            prompt = self._prompt(conversation(self._harmless, tried, self._shown))
            shown = name != "variables" or (prompt and self._harmless(f"variable {value}") in prompt.text)
            takes = tried if prompt is not None and shown else takes
        return takes

    def _made(self, kind: int, say: Say) -> Conversation:
        """The conversations that are tried: a tool loop, and two answers to go on with."""
        assert self.takes is not None
        return conversation(say, self.takes, self._shown) if kind == 0 else continued(say, self.takes)[kind - 1]

    def _expected(self, kind: int) -> Counter[str] | None:
        prompt = self._prompt(self._made(kind, self._harmless))
        return None if prompt is None else self.counts(prompt)

    def counts(self, prompt: Prompt) -> Counter[str]:
        """The control tokens and pictures of a prompt."""
        return specials(self.vocab, self._tokens(prompt)) + Counter({"a picture": len(prompt.media)})

    def completions(self, tokens: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
        """What to put into which field (by kind of conversation) so that the template writes the rest of a token beside
        it: proper parts of tokens, whole in one field or split over two that are next to each other."""
        heads: dict[str, list[tuple[str, int]]] = {}
        for token in tokens:
            for length in range(len(token)):
                heads.setdefault(token[:length], []).append((token, length))
        for kind in self.kinds:
            prompt = self._prompt(self._made(kind, self._harmless))
            assert prompt is not None
            yield from ((kind, filled) for filled in _packed(_parts(prompt.text, heads, self._names())))

    def _names(self) -> list[str]:
        return list(self._fields)

    def whole(self, kind: int, tokens: Iterable[str], *, guard: bool = True) -> Tried:
        """What becomes of whole tokens in every field, beside the field's own harmless text: each as it is and in one
        of the other forms, another one in the next field."""
        ways = [forms(token) for token in tokens]

        def say(field: str) -> str:
            harmless, number = self._harmless(field), self._fields[field]
            texts = (text for form in ways for text in (form[0], form[1 + number % (len(form) - 1)]))
            return f"{harmless} {' '.join(texts)}"

        return self._tried(kind, say, 2 * len(ways), guard=guard)

    def filled(self, kind: int, texts: Mapping[str, str], *, guard: bool = True) -> Tried:
        """What becomes of a text in each of some fields, which have nothing else."""
        return self._tried(kind, lambda field: texts.get(field, self._harmless(field)), 0, guard=guard)._replace(
            texts=len(texts)
        )

    def _tried(self, kind: int, say: Say, texts: int, *, guard: bool) -> Tried:
        said: set[str] = set()

        def counting(field: str) -> str:
            said.add(field)
            return say(field)

        made = self._made(kind, counting)
        guarded, plain = self._prompt(made, guard=guard), self._prompt(made, guard=False)
        texts *= len(said)
        if guarded is None or plain is None:
            same = guarded is plain
            return Tried(texts, 0, 0, same, same_bytes=True, about="" if same else "refused one way only")
        tokens = self._tokens(guarded)
        if guard:
            self._control.check(guarded.texts, tokens)
        found, expected = self.counts(guarded), self.kinds[kind]
        more, fewer = found - expected, expected - found
        same_text = guarded.text == plain.text
        same_bytes = self._spells(tokens, "".join(piece.text for piece in guarded.texts))
        odd = {"forged": dict(more), "lost": dict(fewer), "another text": not same_text, "other bytes": not same_bytes}
        about = ", ".join(f"{what} {how}" for what, how in odd.items() if how)
        return Tried(texts, more.total(), fewer.total(), same_text, same_bytes, about)

    def clean(self, text: str) -> bool:
        """Whether a conversation with nothing to guard is token for token the unguarded one."""
        made = self._made(0, lambda field: f"{self._harmless(field)} {text}")
        guarded, plain = self._prompt(made), self._prompt(made, guard=False)
        return guarded is not None and plain is not None and self._tokens(guarded) == self._tokens(plain)

    def _prompt(self, made: Conversation, *, guard: bool = True) -> Prompt | None:
        try:
            return self._template.render(
                made.messages,
                made.tools,
                documents=made.documents,
                template_kwargs=made.variables,
                continue_final_message=made.continues,
                guard=guard,
            )
        except (TemplateError, RequestError):
            return None  # the template has no such messages

    def _tokens(self, prompt: Prompt) -> list[int]:
        return self.vocab.encode(prompt.texts, add_bos=False)

    def _spells(self, tokens: list[int], text: str) -> bool:
        """Whether the tokens spell the text.

        A vocabulary with a space prefix puts a space before the first token, and reads `▁` as a space. Where some
        tokens swallow the white space after them, that space is left out of the comparison. A vocabulary that changes
        texts (word pieces lose case, accents and spaces) is asked for what it makes of the same text as ordinary
        characters.
        """
        spelt = b"".join(map(self.vocab.token_bytes, tokens)).replace("▁".encode(), b" ")
        wanted = text.encode().replace("▁".encode(), b" ")
        if spelt in (wanted, b" " + wanted):
            return True
        if self._swallowing is not None:
            bare = (self._swallowing.sub(r"\1", each.lstrip(" ")) for each in (spelt.decode("utf-8", "replace"), text))
            if len(set(bare)) == 1:
                return True
        same = self.vocab.tokenize(text, special=False)
        return spelt.lstrip(b" ") == b"".join(map(self.vocab.token_bytes, same)).lstrip(b" ")


def specials(vocab: LlamaVocab, tokens: Iterable[int]) -> Counter[str]:
    """The control tokens of a prompt; white space counts as text, whoever wrote it."""
    texts = (vocab.text(token) for token in tokens if vocab.is_special(token))
    return Counter(text for text in texts if len(text) > 1 and text.strip(_SPACE))


class _Service:
    """What `Embedder` asks for vectors: remembers the tokens instead."""

    def __init__(self, vocab: LlamaVocab) -> None:
        self.vocab = vocab
        self.asked: list[Sequence[int]] = []

    def check_open(self) -> None:
        """It is never closed."""

    def embed(self, texts: Sequence[Sequence[int]], *_: int, **__: bool) -> None:
        self.asked += texts


class TextProbe:
    """One vocabulary, and what callers write where there is no chat template: texts to embed and to rank, prompts and
    continuations to score, gaps to fill in."""

    def __init__(self, vocab: LlamaVocab) -> None:
        self.vocab = vocab
        self._service: Any = _Service(vocab)
        marks = [text for text in guarded_tokens(vocab) if "{" not in text] or [""]
        self._around = marks[0], marks[-1]  # control tokens of a reranker's own template

    def whole(self, token: str) -> Iterator[tuple[str, Tried]]:
        """What becomes of a whole token in each of its forms, in every place. Yields the places' names, too."""
        for form in forms(token):
            yield from self._tried((form, f"{form} {token}"), ("plain", "words"), self._around)

    def halves(self, token: str) -> Iterator[tuple[str, Tried]]:
        """What becomes of the parts of a token in two places that meet, of which the first may be the application's."""
        for cut in range(1, len(token)):
            parts = token[:cut], token[cut:]
            yield from self._tried(parts, (parts[0], "words"), (parts[0], parts[1]))

    def _tried(
        self, texts: tuple[str, str], harmless: tuple[str, str], around: tuple[str, str]
    ) -> Iterator[tuple[str, Tried]]:
        expected = dict(self._asked(*harmless, around))
        for place, tokens in self._asked(*texts, around):
            found, own = specials(self.vocab, tokens), specials(self.vocab, expected[place])
            more, fewer = found - own, own - found
            about = f"{place}: {dict(more)} forged, {dict(fewer)} lost by {texts}" if more or fewer else ""
            yield place, Tried(2, more.total(), fewer.total(), same_text=True, same_bytes=True, about=about)

    def _asked(self, one: str, other: str, around: tuple[str, str]) -> Iterator[tuple[str, list[int]]]:
        """Yields the tokens of every place that the two texts can stand in."""
        service, no_turns = self._service, cast("Any", None)

        def lease() -> AbstractContextManager[ModelParts]:
            return nullcontext(ModelParts(service, no_turns, None))

        scorer, embedder = Scorer(lease), Embedder(lease)
        template = f"{around[0]}{{document}}{around[1]} {{query}}{around[0]}"
        calls: dict[str, Callable[[], object]] = {
            "embed": lambda: embedder.start([one, other], VectorSettings()),
            "embed, prefix": lambda: embedder.start([other], VectorSettings(prefix=one)),
            "rerank": lambda: embedder.start_rank(one, [other, one], VectorSettings()),
            "rerank, template": lambda: embedder.start_rank(other, [other, one], VectorSettings(template=template)),
        }
        for place, call in calls.items():
            service.asked.clear()
            call()
            yield place, [token for tokens in service.asked for token in tokens]
        for place, prompt, special in (
            ("score", one, False),
            ("score, special prompt", around[0], True),
            ("score, tokens", self.vocab.tokenize(one, special=False), False),
        ):
            pairs = scorer.pairs(prompt, [other, one], special=special)
            yield place, [token for pair in pairs for part in pair for token in part]
        if (fim := self.vocab.fim) is not None:
            files = {one: other} if fim.file >= 0 else {}
            yield "complete, suffix", list(infill_prompt(self.vocab, one, other, files)[1])


def _swallows(vocab: LlamaVocab, token: str) -> bool:
    """Whether a token takes the white space after it with it."""
    tokens = vocab.tokenize(f"{token}\na", special=True)
    return b"\n" not in b"".join(map(vocab.token_bytes, tokens))


def _parts(text: str, heads: Mapping[str, list[tuple[str, int]]], names: list[str]) -> Iterator[dict[str, str]]:
    """Every way to complete a token with what a template writes around its fields. `heads`: for each beginning of
    tokens, the tokens and its length."""
    places = [(match.start(), match.end(), names[int(match[1])]) for match in _SHOWN.finditer(text)]
    for number, (start, end, field) in enumerate(places):
        after = text[end : end + _AROUND]
        left = text[max(start - _AROUND, 0) : start]
        begun = [found for length in range(len(left) + 1) for found in heads.get(left[len(left) - length :], ())]
        following = places[number + 1] if number + 1 < len(places) else None
        for token, length in begun:
            for stop in range(length + 1, len(token) + 1):
                rest = token[stop:]
                if after.startswith(rest) and (length, stop) != (0, len(token)):
                    yield {field: token[length:stop]}
                if following is None or following[2] == field:
                    continue
                between, beyond = text[end : following[0]], text[following[1] : following[1] + _AROUND]
                if rest.startswith(between):
                    inner = rest[len(between) :]
                    for cut in range(1, len(inner) + 1):
                        if beyond.startswith(inner[cut:]):
                            yield {field: token[length:stop], following[2]: inner[:cut]}


def _packed(parts: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """The same in as few conversations as it takes, each field having one text in each."""
    packed: list[dict[str, str]] = []
    first: dict[str, int] = {}
    for part in dict.fromkeys(tuple(sorted(part.items())) for part in parts):
        at = max(first.get(field, 0) for field, _ in part)
        while at < len(packed) and any(field in packed[at] for field, _ in part):
            at += 1
        if at == len(packed):
            packed.append({})
        packed[at].update(part)
        first.update({field: at + 1 for field, _ in part})
    return packed
