"""What is fuzzed: everything that reads what strangers, servers, files or a model wrote."""

import json
import random
import re
import struct
import tempfile
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from attacks import gguf_mutants, parsing_fuzz
from attacks.attacking import attack, hurry
from attacks.fuzzing import Target, Try, always, changed_bytes, changed_json, changed_text
from attacks.hostile_templates import ATTACKS, SOUND, late
from cases.canonical import Call, Turn
from cases.parsing_cases import FAMILIES
from cases.walking import as_text, byte_compiler, grammar_of, unread, walk
from cases.writer import applies, written
from fakes.openai_clients import ASK, PING, scripted
from files import model_zoo
from files.gguf_bytes import Document, decoded

from engine.agent.mcp import intake
from engine.agent.mcp.content import outcome_of
from engine.agent.mcp.server import MCP
from engine.batch import rows
from engine.formats.families import builtin_families
from engine.formats.grammar.json_schema import prepared
from engine.formats.grammar.lark import GrammarText
from engine.formats.grammar.response import response_of
from engine.formats.template.generic import with_generic_tools
from engine.llama.gguf.adapter_file import read_adapter
from engine.llama.gguf.gguf import read_gguf
from engine.llama.gguf.gguf_header import read_header, read_header_by_ranges
from engine.llama.gguf.gguf_rules import verified
from engine.llama.gguf.projector_file import read_projector
from engine.runtime.adapters.adapters import Adapters
from engine.runtime.cache.state_file import Origin, SavedState, read_head, read_state, write_state
from engine.runtime.guidance import matcher, trial
from engine.support.errors import EngineError, EngineWarning, ModelLoadError, RequestError
from engine.tools import as_tool
from engine.tools.check import schema_check
from engine.types.answer_formats import JsonSchema

_ROOT = Path(__file__).resolve().parents[3]


# Schemas, and the grammars made of them.

_ODD_SCHEMAS: list[Any] = [
    *(True, False, None, 0, -1, 1e308, 2**70, 0.1, "", "x", "#", "#/$defs/a", [], {}, ["x", 1, None], {"": {}}),
    *(
        "string",
        "integer",
        "number",
        "object",
        "array",
        "null",
        "boolean",
        ["string", "null"],
        "^[a-c]{1,3}$",
        "(",
        "a|",
    ),
    *({"type": "string", "maxLength": 3}, {"enum": ["a", 1, None]}, {"const": {"a": [1]}}, {"not": {}}, {"$ref": "#"}),
    *({"type": "integer", "minimum": 0, "maximum": 9}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}),
    *({"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 2}]}, {"type": "string", "format": "date"}),
    {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False},
]
_KEYWORDS_TEXT = (
    "type enum const properties required additionalProperties patternProperties propertyNames minProperties "
    "maxProperties items prefixItems minItems maxItems uniqueItems contains minLength maxLength pattern format minimum "
    "maximum exclusiveMinimum exclusiveMaximum multipleOf anyOf oneOf allOf not if then else $ref $defs $id $anchor "
    "$schema title description default dependentRequired dependentSchemas unevaluatedProperties unevaluatedItems"
)
_KEYWORDS = _KEYWORDS_TEXT.split()
_EVERY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "s": {"type": "string", "enum": ["a b", "c"]},
        "f": {"type": "number", "minimum": -1, "maximum": 1},
        "n": {"type": ["null", "string"], "maxLength": 4},
        "a": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3},
        "o": {
            "type": "object",
            "properties": {"k": {"enum": [1, 2]}},
            "required": ["k"],
            "additionalProperties": False,
        },
        "u": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 99}, {"$ref": "#/$defs/d"}]},
        "p": {"type": "string", "pattern": "^[a-z]{1,3}-[0-9]$"},
    },
    "required": ["s", "o"],
    "$defs": {"d": {"type": "string", "format": "date"}},
}
_SOME = {"s": "c", "f": 0.5, "n": None, "a": ["x"], "o": {"k": 1}, "u": 7, "p": "ab-1"}


def _schema_seeds() -> Iterator[bytes]:
    yield json.dumps({"schema": _EVERY, "value": _SOME}).encode()
    for schema in _ODD_SCHEMAS:
        yield json.dumps({"schema": schema, "value": {"a": "x"}}).encode()
        yield json.dumps({"schema": {"oneOf": [schema, _EVERY], "if": schema}, "value": "x"}).encode()
    for keyword in _KEYWORDS:
        yield json.dumps({"schema": {keyword: {"type": "string"}}, "value": [1]}).encode()


def _schema_changed(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    made = json.loads(changed_json(data, chance, pool, _ODD_SCHEMAS))
    schema = made.get("schema")
    if isinstance(schema, dict) and chance.random() < 0.3:
        schema[chance.choice(_KEYWORDS)] = chance.choice(_ODD_SCHEMAS)
    return json.dumps({"schema": schema, "value": made.get("value")}).encode()


def _try_schema(data: bytes) -> None:
    """A schema is refused by name, or checks values; where a grammar can be made of it, the reader takes what the
    grammar allows."""
    given = json.loads(data)
    schema = given["schema"]
    with suppress(RequestError):
        said = schema_check("The fields", schema)(given["value"])
        assert said is None or said.endswith("."), "a reason is a sentence"
    with suppress(RequestError):
        as_tool({"name": "f", "parameters": schema})
    try:
        response = response_of(JsonSchema(schema), matcher)
        _, checked = prepared(schema, matcher.refusal, "The schema", close=False)
    except RequestError:
        return
    assert response is not None
    text = _walked(GrammarText(as_text).text(response.answer.node, {}), data)
    if text is None or checked:
        return
    try:
        response.read(text)
    except ValueError as error:
        raise AssertionError(f"the grammar allows what the reader refuses: {text!r}: {error}") from error


def _walked(grammar: str, data: bytes) -> str | None:
    """A text that a grammar allows; None where it grew too long, or where nothing can follow."""
    try:
        return walk(grammar, random.Random(zlib.crc32(data)), 600)
    except (RequestError, AssertionError):
        return None


@contextmanager
def _held(attempt: Try) -> Generator[Try]:
    """Grammars that take long are given up sooner, and patterns that cannot be checked need no warning."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(trial, "SECONDS", 5.0)
        warnings.simplefilter("ignore", EngineWarning)
        yield attempt


# Grammars of calls against parsers.

_REWRITTEN = frozenset({"gemma-4", "function-gemma", "apriel-1.5", "muse-glimmer"})
"""Families whose calls the writer spells in another way than their grammar, see tests/formats/grammar/test_calls.py."""


def _call_seeds() -> Iterator[bytes]:
    for family in FAMILIES:
        yield json.dumps({"family": family, "parameters": _EVERY, "arguments": _SOME}).encode()


def _call_changed(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    made = json.loads(changed_json(data, chance, pool, _ODD_SCHEMAS))
    parameters = made.get("parameters")
    if not isinstance(parameters, dict) or chance.random() < 0.1:
        parameters = json.loads(json.dumps(_EVERY))
    properties: Any = cast("dict[str, Any]", parameters).setdefault("properties", {})
    if isinstance(properties, dict) and chance.random() < 0.5:
        properties[chance.choice("sfnaoup")] = chance.choice(_ODD_SCHEMAS)
    parameters["type"] = "object"
    family = made.get("family")
    if family not in FAMILIES or chance.random() < 0.3:
        family = chance.choice(FAMILIES)
    arguments = made.get("arguments")
    return json.dumps({"family": family, "parameters": parameters, "arguments": arguments}).encode()


def _try_call(data: bytes) -> None:
    """What the grammar of a tool allows is read back as valid calls; a valid call, as the family's models write it, is
    allowed."""
    given = json.loads(data)
    family = given["family"]
    format_ = with_generic_tools(builtin_families().get(family).format)
    try:
        tool = as_tool({"name": "every", "parameters": given["parameters"]})
        schema, checked = prepared(tool.parameters, matcher.refusal, "The schema", close=True)
    except RequestError:
        return
    held = tool.model_copy(update={"parameters": dict(schema)})
    grammar = grammar_of(format_, (held,), 2)
    text = _walked(grammar, data)
    if text is not None and not checked:
        why = unread(family, (tool,), text)
        assert why is None, f"{family}: {why}: {text!r}"
    _try_written(family, grammar, held, given["arguments"])


def _try_written(family: str, grammar: str, held: Any, given: Any) -> None:
    """A valid call is allowed in the writer's spelling, if its arguments come in the order of the schema."""
    format_ = builtin_families().get(family).format
    check = as_tool({"name": "every", "parameters": held.parameters}).check
    if not isinstance(given, dict) or family in _REWRITTEN or format_.tools is None or check is None:
        return
    arguments = cast("dict[str, Any]", given)
    if not all(map(_is_plain, held.parameters.get("properties", {}).values())):
        return
    if check(arguments) is not None:
        return
    order = list(held.parameters.get("properties", {}))
    if [name for name in order if name in arguments] != list(arguments):
        return
    turn = Turn("fuzzed", (Call("every", json.dumps(arguments, ensure_ascii=False)),))
    if not applies(turn, format_) or _is_ambiguous(arguments):
        return
    output = written(turn, format_)
    position = byte_compiler().compiled(grammar)
    for number, byte in enumerate(output.lstrip().encode()):
        assert position.consume(byte), f"{family}: a valid call is not allowed at {number}: {output!r}"


_PLAIN = frozenset(
    ["type", "enum", "const", "properties", "required", "items", "minItems", "maxItems", "minimum"]
).union(["maximum", "minLength", "maxLength"])
_KNOWN_KEYWORDS = frozenset(_KEYWORDS) - {"title", "description", "default"}


def _is_plain(schema: Any) -> bool:
    """Whether a schema says nothing that a notation of calls may leave to JSON."""
    if not isinstance(schema, dict) or schema.keys() & _KNOWN_KEYWORDS - _PLAIN:
        return False
    known = cast("dict[str, Any]", schema)
    inner: list[Any] = [*known.get("properties", {}).values(), *([known["items"]] if "items" in known else [])]
    stated = isinstance(known.get("type"), str) or not known.keys() & (_PLAIN - {"enum", "const"})
    return stated and all(map(_is_plain, inner))


def _is_ambiguous(arguments: Mapping[str, Any]) -> bool:
    """Whether the writer's plain spelling would be read as something else: it escapes nothing."""
    return not re.fullmatch(r'[\w\s{}\[\]:,."-]*', json.dumps(arguments, ensure_ascii=False))


# Chat templates.


def _template_seeds() -> Iterator[bytes]:
    for path in sorted((_ROOT / "templates").glob("*.jinja")):
        yield path.read_bytes()
    yield SOUND.encode()
    for number, source in enumerate(ATTACKS.values()):
        if number % 12 == 0:
            yield late(source).encode()


_JINJA = (
    "{% endif %}",
    "{% endfor %}",
    "{{ m.content }}",
    "{% if tools %}",
    "{{ messages[0] }}",
    "| tojson",
    "{%-",
    "-}}",
)


def _template_changed(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    text = data.decode("utf-8", "replace")
    for _ in range(chance.choice((1, 1, 2, 4))):
        if chance.random() < 0.4:
            other = chance.choice(pool).decode("utf-8", "replace")
            parts = re.findall(r"\{[%{].*?[%}]\}|[^{]+", other, re.DOTALL) or [""]
            at = chance.choice([0, *(found.start() for found in re.finditer(r"\{[%{]", text))])
            text = text[:at] + chance.choice(parts) + text[at:]
        else:
            text = changed_text(text, chance, _JINJA)
    return text.encode("utf-8", "replace")


def _try_template(data: bytes) -> None:
    """A template renders, or raises TemplateError; it brings nothing out, and costs this process little."""
    cost = attack(data.decode("utf-8", "replace"))
    assert not cost.raw, cost.raw
    assert not cost.loot, f"it brought out {cost.loot!r}"
    assert cost.bytes < 200 << 20, "memory of this process"


@contextmanager
def _hurried() -> Generator[Try]:
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch, 1.0)
        yield _try_template


# Files: models, projectors, adapters, states.


def _emptied(document: Document) -> bytes:
    """A file without its weights' numbers, which its header does not tell, and without most of its vocabulary."""
    tensors = tuple(tensor._replace(data=bytes(len(tensor.data))) for tensor in document.tensors)
    return zlib.compress(Document(document.pairs, tensors).encoded(), 9)


def _gguf_seeds() -> Iterator[bytes]:
    for kind in model_zoo.KINDS:
        yield _emptied(model_zoo.model(kind))
    for words in ("gpt-4o", "gemma4", "wpm", "ugm", "rwkv", "plamo2"):
        yield _emptied(model_zoo.model("llama", words))


@lru_cache(maxsize=64)
def _mutations(data: bytes) -> Sequence[gguf_mutants.Mutation]:
    return list(gguf_mutants.mutations(decoded(data)))


def _gguf_changed(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    whole = zlib.decompress(data)
    with suppress(AssertionError, LookupError, ValueError, StopIteration, TypeError, struct.error, MemoryError):
        if chance.random() < 0.7:
            mutation = chance.choice(_mutations(whole))
            made = mutation.apply(decoded(whole))
            return zlib.compress(made if isinstance(made, bytes) else made.encoded(), 9)
    header = whole[:6000]
    changed = changed_bytes(header, chance, [zlib.decompress(chance.choice(pool))[:6000]])
    return zlib.compress(changed + whole[6000:], 9)


def _try_gguf(folder: Path, data: bytes) -> None:
    """A file is read or refused by name, and from a server as from the disk."""
    path = folder / "model.gguf"
    path.write_bytes(whole := zlib.decompress(data))
    for read in (read_gguf, read_projector, read_adapter):
        with suppress(ModelLoadError):
            read(path)
    said: list[str] = []
    for source in (partial(read_header, path), partial(read_header_by_ranges, path, len(whole), _ranges(whole))):
        try:
            verified([source()])
            said.append("")
        except ModelLoadError as error:
            said.append(str(error))
    assert said[0] == said[1], f"from the disk {said[0]!r}, from a server {said[1]!r}"


def _ranges(whole: bytes) -> Callable[[int, int], bytes]:
    return lambda start, length: whole[start : start + length]


@contextmanager
def _in_a_folder(attempt: Callable[[Path, bytes], None]) -> Generator[Try]:
    with tempfile.TemporaryDirectory() as folder:
        yield partial(attempt, Path(folder))


_ORIGIN = Origin("a", "b", "f16", "f16", "off", "", False, 1)


def _state_seeds() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.state")
        for adapters in (Adapters(), Adapters((("ab", 0.5),), 3)):
            write_state(path, _ORIGIN, SavedState(tuple(range(20)), b"state" * 9, adapters))
            yield path.read_bytes()[:-32]


_STATE_PARTS: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1e308,
    "",
    "x",
    [],
    {},
    [[]],
    [["ab", 1]],
    [[["ab", "nan"]], 0],
    "1",
]


def _state_changed(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    """Half of the time the JSON of the head is changed, under its right length."""
    start = data.find(b"{")
    if chance.random() < 0.5 and start > 4:
        length = int.from_bytes(data[start - 4 : start], "little")
        with suppress(ValueError, RecursionError):
            head = changed_json(data[start : start + length], chance, [data[start : start + length]], _STATE_PARTS)
            return data[: start - 4] + len(head).to_bytes(4, "little") + head + data[start + length :]
    return changed_bytes(data, chance, pool)


def _try_state(folder: Path, data: bytes) -> None:
    """A state file is read or refused by name, with a right digest and without; its head says what the whole says."""
    from hashlib import sha256

    path = folder / "a.state"
    for content in (data, data + sha256(data).digest()):
        path.write_bytes(content)
        with suppress(RequestError):
            head = read_head(path, _ORIGIN)
            saved = read_state(path, _ORIGIN)
            assert head == (saved.tokens, saved.adapters), "the head says something else"


# Requests, lines of batches, messages of servers.

_ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 10**20, 0.5, 1e308, "", "auto", "required", "\ud800", "<|im_end|>", "x" * 50),
    *([], [None], [[]], [3], [""], ["a", "b"], [{}], {}, {"type": None}, {"1": 5}, {"": {}}, [PING], [PING, PING]),
    *([{"role": "user"}], {"type": "json_schema"}, {"type": "json_object"}, {"type": "function", "name": "ping"}),
    {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "#/x"}}},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "ping"}]},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    [{"type": "function_call", "call_id": "c", "name": "ping", "arguments": "{}"}],
    [{"type": "function_call_output", "call_id": "c", "output": "r"}],
    [{"type": "reasoning", "summary": [{}], "content": [{"type": "reasoning_text", "text": "t"}]}],
    [{"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "input_text", "text": "v"}]}],
]
_CALL = {"id": "c1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
_TALK: list[Any] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "u"}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning_content": "r"},
    {"role": "tool", "tool_call_id": "c1", "content": "r"},
]
_BODIES: dict[str, list[dict[str, Any]]] = {
    "/chat/completions": [
        {"messages": ASK, "max_tokens": 4, "tools": [PING], "tool_choice": "auto"},
        {"messages": _TALK, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "n": 2},
        {"messages": ASK, "response_format": {"type": "json_object"}, "stop": ["x"], "seed": 1, "temperature": 0.5},
    ],
    "/responses": [
        {"input": "u", "max_output_tokens": 4, "instructions": "i", "reasoning": {"effort": "low"}},
        {"input": [*ASK, *_ODD[-3], *_ODD[-4]], "stream": True, "text": {"format": {"type": "text"}}, "store": True},
    ],
    "/completions": [{"prompt": ["a", "b"], "max_tokens": 4, "logprobs": 2, "suffix": "z"}],
    "/embeddings": [{"input": ["a", [1, 2]], "dimensions": 3, "encoding_format": "base64"}],
}


def _request_seeds() -> Iterator[bytes]:
    for path, bodies in _BODIES.items():
        for body in bodies:
            yield json.dumps({"path": path, "body": {"model": "m", **body}}).encode()
            yield from (json.dumps({"path": path, "body": {"model": "m", **body, name: 3}}).encode() for name in body)


def _request_changed(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    made = json.loads(changed_json(data, chance, pool, _ODD))
    path = made.get("path")
    if not isinstance(path, str) or path not in _BODIES or chance.random() < 0.05:
        path = chance.choice(list(_BODIES))
    return json.dumps({"path": path, "body": made.get("body")}).encode()


@contextmanager
def _served() -> Generator[Try]:
    """A request is answered, or refused with 400 or 404 and a message; what is streamed is an answer too."""
    library = import_module("httpx2" if int(import_module("openai").__version__.split(".")[0]) >= 3 else "httpx")
    transport = import_module("engine.openai").transport
    with scripted(lambda _: "So.", n_ctx=4096, rewrite=True) as llm, warnings.catch_warnings():
        warnings.simplefilter("ignore", EngineWarning)
        with library.Client(transport=transport(llm), base_url="http://x/v1") as client:

            def attempt(data: bytes) -> None:
                given = json.loads(data)
                response = client.post(given["path"], content=json.dumps(given["body"]).encode())
                assert response.status_code in (200, 400, 404), f"{response.status_code} {response.text[:200]}"
                if response.status_code != 200:
                    assert response.json()["error"]["message"], "no message"
                elif response.headers["content-type"].startswith("text/event-stream"):
                    assert '"error": {' not in response.text, "an error in a stream"
                else:
                    assert response.json()["object"], "no object"

            yield attempt


def _row_seeds() -> Iterator[bytes]:
    for path, bodies in _BODIES.items():
        if path == "/completions":
            continue
        for body in bodies:
            row = {"custom_id": "r", "method": "POST", "url": f"/v1{path}", "body": body}
            yield json.dumps(row).encode()
    yield json.dumps({"prompt": "u", "tag": [1, {"a": None}]}).encode()
    yield json.dumps({"messages": _TALK, "custom_id": "é"}).encode()
    yield from (b"", b"{", b"\xff", b'"x"', b'{"a":NaN}', b"[" * 2000, b"\xef\xbb\xbf{}", b"9" * 3000)


def _row_changed(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    if chance.random() < 0.85:
        with suppress(ValueError, RecursionError):
            return changed_json(data, chance, [each for each in pool if each[:1] == b"{" and each[-1:] == b"}"], _ODD)
    return changed_bytes(data, chance, pool)


def _try_row(data: bytes) -> None:
    """A line is a row or a bad one; what is written about it is one line, which is recognised again."""
    error = RequestError("It failed.")
    try:
        row = rows.parse_row(data, 1, rows.Defaults({}))
    except rows.BadRowError as bad:
        columns = {name: value for name, value in bad.columns.items() if name != "custom_id"}
        key = rows.bad_key(data, 1)
        lines = [rows.bad_line(key, kind, bad.name, columns, str(bad)) for kind in ("openai", "simple")]
        name = bad.name
    else:
        assert len(rows.sort_key(row.request)) == 27, "a key of another length"
        key, name, lines = row.key, row.name, [rows.failure_line(row, error)]
    for line in lines:
        assert line.count(b"\n") == 1, "several lines"
        assert rows.identity(line) == (key, name), f"it is not recognised: {line!r}"
        assert not rows.is_torn_line(line), "a whole line counts as torn"
        json.loads(line, parse_constant=_no_constant)
    rows.identity(data)
    rows.is_torn_line(data)


def _no_constant(text: str) -> float:
    raise AssertionError(f"{text} in an output")


_TOOL: dict[str, Any] = {
    "name": "hit",
    "title": "t",
    "description": "d",
    "inputSchema": {"type": "object", "properties": {"a": {}}},
}
_RESULTS: list[Any] = [
    {"tools": [_TOOL, {**_TOOL, "name": "b"}], "nextCursor": "more"},
    {"content": [{"type": "text", "text": "x", "annotations": {"audience": ["user"]}}], "isError": True},
    {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}], "structuredContent": {"a": [1]}},
    {"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}, {"type": "text", "text": "y"}]},
    {"content": [{"type": "resource_link", "name": "n", "uri": "file:///a", "mimeType": "text/plain"}]},
    {"content": [{"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "t"}}]},
    {"content": [{"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}]},
]


def _message_seeds() -> Iterator[bytes]:
    for result in _RESULTS:
        yield json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()
    yield json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "m"}}).encode()
    yield json.dumps({"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": [1]}}).encode()
    yield json.dumps({"jsonrpc": "2.0", "id": 2, "method": "sampling/createMessage", "params": {}}).encode()
    yield from (b"", b"log\n", b'{"jsonrpc', b"\xff\xfe", b'["jsonrpc"' * 250)


def _message_changed(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    if chance.random() < 0.7:
        with suppress(ValueError, RecursionError):
            return changed_json(data, chance, [each for each in pool if each[:1] == b"{" and each[-1:] == b"}"], _ODD)
    return changed_bytes(data, chance, pool)


def _try_message(data: bytes) -> None:
    """Bytes of a server are counted alike at any cut; a message is read or refused; what it holds becomes tools or a
    result, or an error of the protocol's own reader."""
    chance = random.Random(zlib.crc32(data))
    refused: list[Exception] = []
    lines = intake.Lines(intake.Intake(refused.append))
    assert _fed(intake.Meter().feed, data, None) == _fed(intake.Meter().feed, data, chance), "counted otherwise"
    assert _fed(intake.Events().feed, data, None) == _fed(intake.Events().feed, data, chance), "events otherwise"
    complete = b""
    with suppress(intake.Refused):
        complete = bytes(lines.feed(data + b"\n"))
    for line in complete.splitlines():
        _try_json_rpc(line)


def _fed(feed: Callable[[bytes], object], data: bytes, chance: random.Random | None) -> str:
    at = 0
    try:
        while at < len(data):
            length = chance.randrange(1, 9) if chance else len(data)
            feed(data[at : at + length])
            at += length
    except intake.Refused as refused:
        return str(refused)
    return ""


def _try_json_rpc(line: bytes) -> None:
    from mcp.shared.message import SessionMessage
    from mcp.types import CallToolResult, JSONRPCMessage, JSONRPCResponse, ListToolsResult
    from pydantic import TypeAdapter, ValidationError

    adapter: TypeAdapter[Any] = TypeAdapter(JSONRPCMessage)
    refused: list[Exception] = []
    taken = intake.Intake(refused.append)
    try:
        item: Any = SessionMessage(adapter.validate_json(line))
    except ValidationError as error:
        taken.checked(error)
        assert refused, "what cannot be read is refused"
        return
    held = taken.checked(item)
    assert isinstance(held, SessionMessage), "a message that was read stays one"
    message = held.message
    if not isinstance(message, JSONRPCResponse):
        return
    with suppress(ValidationError):
        outcome_of(CallToolResult.model_validate(message.result), 50)
    with suppress(ValidationError, EngineError), warnings.catch_warnings():
        warnings.simplefilter("ignore", EngineWarning)
        listed = ListToolsResult.model_validate(message.result).tools
        MCP("server")._tools_of(listed, float("inf"), first=True)  # pyright: ignore[reportPrivateUsage]


TARGETS = {
    target.name: target
    for target in (
        Target(
            "parser",
            ("formats/parsing",),
            ".json",
            parsing_fuzz.seeds,
            parsing_fuzz.changed,
            always(parsing_fuzz.attempt),
        ),
        Target(
            "grammar",
            ("formats/grammar", "formats/parsing/shapes"),
            ".json",
            _call_seeds,
            _call_changed,
            partial(_held, _try_call),
        ),
        Target(
            "schema",
            ("tools/check.py", "tools/subschemas.py", "formats/grammar/json_schema.py", "formats/grammar/lark.py"),
            ".json",
            _schema_seeds,
            _schema_changed,
            partial(_held, _try_schema),
        ),
        Target("template", ("formats/template",), ".jinja", _template_seeds, _template_changed, _hurried),
        Target(
            "gguf",
            ("llama/gguf",),
            ".z",
            _gguf_seeds,
            _gguf_changed,
            partial(_in_a_folder, _try_gguf),
        ),
        Target("request", ("openai",), ".json", _request_seeds, _request_changed, _served),
        Target(
            "mcp",
            ("agent/mcp/intake.py", "agent/mcp/content.py"),
            ".bin",
            _message_seeds,
            _message_changed,
            always(_try_message),
        ),
        Target(
            "state",
            ("runtime/cache/state_file.py",),
            ".state",
            _state_seeds,
            _state_changed,
            partial(_in_a_folder, _try_state),
        ),
        Target("batch", ("batch/rows.py", "batch/bodies.py"), ".bin", _row_seeds, _row_changed, always(_try_row)),
    )
}
"""All of them by name."""
