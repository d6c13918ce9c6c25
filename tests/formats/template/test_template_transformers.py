"""Our rendering against Hugging Face's own, over the chat templates of llama.cpp's tree and a matrix of conversations.

Needs `transformers` (any recent version, no torch) and the templates: set `LLAMA_CPP_TEMPLATES` to the folder
`vendor/llama.cpp/models/templates` of llama-cpp-python's source distribution. Skipped, by name, without either.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.formats.template.env import Template
from engine.support.errors import TemplateError

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
SOURCES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
OURS = sorted((Path(__file__).parents[3] / "templates").glob("*.jinja"))

pytestmark = [
    pytest.mark.skipif(not SOURCES, reason="set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates"),
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="pip install transformers"),
    pytest.mark.filterwarnings("ignore"),  # transformers' own
]

Entry = dict[str, Any]


def tool(name: str, **properties: Any) -> Entry:
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {
        "type": "function",
        "function": {"name": name, "description": f"About {name}: <b>é</b> & 'x'.", "parameters": schema},
    }


WEATHER = tool(
    "get_weather", city={"type": "string", "description": 'The "city"'}, unit={"enum": ["C", "F"], "type": "string"}
)
NESTED = tool(
    "book", where={"type": "object", "properties": {"lat": {"type": "number"}}}, tags={"type": "array", "items": {}}
)
EMPTY = tool("ping")
TOOLS: dict[str, list[Entry] | None] = {"none": None, "empty": [], "one": [WEATHER], "three": [WEATHER, NESTED, EMPTY]}


def calls(*arguments: Any, content: str | None = "", **more: Any) -> Entry:
    listed = [
        {"id": f"abcdefgh{number}", "type": "function", "function": {"name": "get_weather", "arguments": each}}
        for number, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": listed, **more}


def result(text: str, number: int = 0) -> Entry:
    return {"role": "tool", "tool_call_id": f"abcdefgh{number}", "name": "get_weather", "content": text}


def says(role: str, content: Any, **more: Any) -> Entry:
    return {"role": role, "content": content, **more}


USER = says("user", " Weather in Łódź? <br> 你好 🌦 \n")
TYPED: Any = [{"type": "text", "text": "First."}, {"type": "text", "text": "Second."}]
ANSWER = says("assistant", "Four degrees.")
ONE_CALL = [USER, calls({"city": "Oslo", "n": 1.5, "deep": {"a": [True, None, 'x\n"y"']}}), result('{"t": 4}')]
CONVERSATIONS: dict[str, list[Entry]] = {
    "user": [USER],
    "turns": [USER, ANSWER, says("user", "And now?")],
    "typed content": [says("user", TYPED)],
    "one call": ONE_CALL,
    "answered": [*ONE_CALL, ANSWER],
    "asked again": [*ONE_CALL, ANSWER, says("user", "And Rome?")],
    "two rounds": [*ONE_CALL, calls({"city": "Rome"}), result("sunny")],
    "parallel": [USER, calls({"city": "Oslo"}, {"city": "Rome"}), result("cold"), result("warm", 1)],
    "arguments as text": [USER, calls('{"city": "Oslo"}'), result("cold")],
    "null content": [USER, calls({"city": "Oslo"}, content=None), result("cold")],
    "content beside a call": [USER, calls({"city": "Oslo"}, content="Let me see."), result("cold")],
    "reasoning before a call": [
        USER,
        calls({"city": "Oslo"}, reasoning_content="Hm.\n", thinking="Hm.\n"),
        result("cold"),
    ],
    "reasoning in turns": [
        USER,
        says("assistant", "Yes.", reasoning_content="Why?", thinking="Why?"),
        says("user", "So?"),
    ],
    "tags in turns": [USER, says("assistant", "<think>\nWhy?\n</think>\n\nYes."), says("user", "So?")],
}
SYSTEMS: dict[str, list[Entry]] = {
    "": [],
    "system, ": [says("system", "Be brief.\n")],
    "developer, ": [says("developer", "Be brief.")],
}
OPTIONS: list[Entry] = [
    {},
    {"enable_thinking": False},
    {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"},
]


@dataclass(slots=True)
class Tally:
    same: int = 0
    both_refuse: int = 0
    only_we_render: int = 0


def cases() -> Iterator[tuple[str, Entry]]:
    for system, first in SYSTEMS.items():
        for name, messages in CONVERSATIONS.items():
            for label, tools in TOOLS.items():
                for number, options in enumerate(OPTIONS):
                    if number and label not in ("none", "one"):
                        continue
                    for generates in (True, False):
                        values = {
                            "messages": [*first, *messages],
                            "tools": tools,
                            "add_generation_prompt": generates,
                            **options,
                        }
                        yield f"{system}{name}/{label}/{number}/{generates}", values


def theirs() -> Callable[..., str]:
    module: Any = importlib.import_module("transformers.utils.chat_template_utils")

    def render(source: str, values: Entry) -> str:
        given = dict(values)
        return module.render_jinja_template([given.pop("messages")], chat_template=source, **given)[0][0]

    return render


@pytest.mark.parametrize("path", [*SOURCES, *OURS], ids=lambda path: path.stem)
def test_same_bytes_as_hugging_face(path: Path, record_testsuite_property: Callable[[str, object], None]) -> None:
    """Every text is theirs, byte for byte; we refuse what they refuse, `list.append` apart (their sandbox forbids
    it)."""
    source = path.read_text(encoding="utf-8")
    render, template, tally = theirs(), Template(source), Tally()
    for name, values in cases():
        given = {"bos_token": "<s>", "eos_token": "</s>", **values}
        try:
            expected: str | Exception = render(source, given)
        except Exception as error:  # noqa: BLE001 - whatever a template raises
            expected = error
        try:
            got: str | None = template.render({"documents": None, **given})
        except TemplateError:
            got = None
        if isinstance(expected, Exception) and got is not None:
            assert any(word in str(expected) for word in ("append", "from_json")), (
                f"{name}: they refuse ({expected!r}), we do not"
            )
            tally.only_we_render += 1
        elif isinstance(expected, Exception):
            tally.both_refuse += 1
        else:
            assert got == expected, name
            tally.same += 1
    record_testsuite_property(f"renders {path.stem}", repr(tally))
    assert tally.same or "firefunction" in path.stem
