"""What pydantic writes of a type's values may be written under the type's constraint: in an answer, and in a demanded
call of every shape."""

import ipaddress
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypeAlias
from uuid import UUID

import pytest
from cases.held import SHAPES, answers, calls, held, takes, unwritable
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AnyUrl, AwareDatetime, BaseModel, Field, JsonValue, NaiveDatetime, TypeAdapter, create_model
from typing_extensions import TypeAliasType, TypedDict

from engine import RequestError, as_tool
from engine.formats.grammar.response import Response, response_of
from engine.runtime.guidance import matcher
from engine.runtime.guidance.matcher import Matcher
from engine.types.tools import Tool


class Colour(Enum):
    RED = "red"
    BLUE = "deep blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 20


class Point(NamedTuple):
    x: int
    y: float = 0.5


class Entry(TypedDict):
    key: str
    seen: date


@dataclass
class Pair:
    left: int
    right: str | None


class Event(BaseModel):
    at: datetime
    price: Decimal
    tags: list[str]
    place: Pair


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Branch(BaseModel):
    size: int
    parts: list["Branch"]


Strategy: TypeAlias = st.SearchStrategy[Any]
WORDS = st.text(st.sampled_from("abzÄ世 .,-_"), max_size=9)
WHOLE = st.integers(-(10**18), 10**18)
FLOATS = st.floats(-1e90, 1e90, allow_subnormal=False).filter(lambda number: number == 0 or abs(number) > 1e-90)
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))) | st.just(UTC)
NAIVE = st.datetimes()
AWARE = st.datetimes(timezones=OFFSETS)
TIMES = st.times() | st.times(timezones=OFFSETS)
DECIMALS = st.decimals(Decimal(-(10**9)), Decimal(10**9), places=4)
JSON = st.recursive(st.none() | st.booleans() | WHOLE | WORDS, lambda each: st.lists(each, max_size=3), max_leaves=5)
BRANCHES = st.recursive(
    st.builds(Branch, size=WHOLE, parts=st.just([])),
    lambda each: st.builds(Branch, size=WHOLE, parts=st.lists(each, max_size=2)),
    max_leaves=4,
)


def keyed(keys: list[Any], values: Strategy) -> Strategy:
    """Dictionaries of some of these keys, in their order."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(keys, values)).map(
        lambda found: {key: found[key] for key in keys if key in found}
    )


TYPES: dict[str, tuple[Any, Strategy]] = {
    "str": (str, WORDS),
    "int": (int, WHOLE),
    "float": (float, FLOATS),
    "bool": (bool, st.booleans()),
    "None": (None | int, st.none() | WHOLE),
    "Literal": (Literal["a", "b c", 3, None, True], st.sampled_from(["a", "b c", 3, None, True])),
    "Enum": (Colour, st.sampled_from(Colour)),
    "IntEnum": (Level, st.sampled_from(Level)),
    "date": (date, st.dates()),
    "datetime": (datetime, NAIVE | AWARE),
    "NaiveDatetime": (NaiveDatetime, NAIVE),
    "AwareDatetime": (AwareDatetime, AWARE),
    "time": (time, TIMES),
    "timedelta": (timedelta, st.timedeltas(timedelta(days=-(10**8)), timedelta(days=10**8))),
    "Decimal": (Decimal, DECIMALS),
    "Decimal of two places": (Annotated[Decimal, Field(decimal_places=2)], st.decimals(-(10**9), 10**9, places=2)),
    "multiples": (Annotated[float, Field(multiple_of=0.01)], st.integers(-(10**8), 10**8).map(lambda n: n / 100)),
    "bounded": (Annotated[int, Field(ge=-5, lt=500)], st.integers(-5, 499)),
    "pattern": (Annotated[str, Field(pattern="^[a-f]{2,4}$")], st.from_regex("[a-f]{2,4}", fullmatch=True)),
    "length": (Annotated[str, Field(min_length=2, max_length=5)], st.text("xyz", min_size=2, max_size=5)),
    "UUID": (UUID, st.uuids()),
    "IPv4": (ipaddress.IPv4Address, st.ip_addresses(v=4)),
    "IPv6": (ipaddress.IPv6Address, st.ip_addresses(v=6)),
    "network": (
        ipaddress.IPv4Network,
        st.ip_addresses(v=4).map(lambda address: ipaddress.IPv4Network(f"{address}/32")),
    ),
    "path": (PurePosixPath, WORDS.map(PurePosixPath)),
    "bytes": (bytes, WORDS.map(str.encode)),
    "url": (AnyUrl, st.sampled_from(["https://example.org/ü?q=a b", "mailto:a@b.c", "file:///x"]).map(AnyUrl)),
    "regex": (re.Pattern[str], st.sampled_from(["a+", "[x-z]{2}"]).map(re.compile)),
    "list": (list[datetime], st.lists(NAIVE, max_size=3)),
    "nested list": (list[list[int]], st.lists(st.lists(WHOLE, min_size=1, max_size=2), max_size=2)),
    "set": (set[int], st.sets(WHOLE, max_size=3)),
    "tuple": (tuple[int, str], st.tuples(WHOLE, WORDS)),
    "tuple of any length": (tuple[date, ...], st.lists(st.dates(), max_size=3).map(tuple)),
    "NamedTuple": (Point, st.builds(Point, x=WHOLE, y=FLOATS)),
    "TypedDict": (Entry, st.tuples(WORDS, st.dates()).map(lambda each: Entry(key=each[0], seen=each[1]))),
    "dataclass": (Pair, st.builds(Pair, left=WHOLE, right=st.none() | WORDS)),
    "model": (
        Event,
        st.builds(
            Event,
            at=NAIVE | AWARE,
            price=DECIMALS,
            tags=st.lists(WORDS, max_size=2),
            place=st.builds(Pair, left=WHOLE, right=st.none() | WORDS),
        ),
    ),
    "recursive model": (Branch, BRANCHES),
    "union": (int | list[str] | None, st.none() | WHOLE | st.lists(WORDS, max_size=2)),
    "tagged union": (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        st.builds(Cat, kind=st.just("cat"), lives=WHOLE) | st.builds(Dog, kind=st.just("dog"), name=WORDS),
    ),
    "dict": (dict[str, int], st.dictionaries(st.text("abc", min_size=1, max_size=4), WHOLE, max_size=3)),
    "dict of int keys": (dict[int, bool], st.dictionaries(st.integers(0, 999), st.booleans(), max_size=3)),
    "dict of dates": (dict[date, int], st.dictionaries(st.dates(), WHOLE, max_size=2)),
    "dict of Literal": (dict[Literal["a", "b c", "d"], int], keyed(["a", "b c", "d"], WHOLE)),
    "dict of Enum": (dict[Colour, date], keyed(list(Colour), st.dates())),
    "dict of IntEnum": (dict[Level, int], keyed(list(Level), WHOLE)),
    "JsonValue": (JsonValue, JSON),
}


@cache
def response(name: str) -> Response:
    made = response_of(TYPES[name][0], matcher)
    assert made is not None
    return made


@cache
def answer(name: str) -> Matcher:
    return answers(response(name))


@cache
def tool(name: str) -> Tool:
    fields: Any = {"value": (TYPES[name][0], ...)}
    return as_tool(create_model("note", **fields))


@cache
def held_tool(name: str) -> Tool:
    return held(tool(name))


@cache
def call(family: str, name: str) -> Matcher:
    return calls(family, held_tool(name))


ELSEWHERE = {
    "dictionary": {"tuple", "NamedTuple", "TypedDict", "model", "recursive model", "dict of Enum", "dict of IntEnum"},
    "nested": {"Literal", "union", "JsonValue", "dataclass", "model", "tuple", "NamedTuple", "TypedDict"},
}
"""What a shape writes in another way than its families' models are made to write here: members sorted and keys quoted;
or elements without a type, which cannot tell null, or a number, from a text where both are allowed."""


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=25)
@given(st.data())
def test_whatever_a_type_writes_may_be_written(name: str, data: st.DataObject) -> None:
    kind, values = TYPES[name]
    value = data.draw(values)
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    text = adapter.dump_json(value).decode()
    assert adapter.validate_json(text) == value
    assert takes(answer(name), text), text
    assert response(name).read(text) == value
    shape = data.draw(st.sampled_from([each for each in SHAPES if name not in ELSEWHERE.get(each, ())]))
    family = SHAPES[shape]

    def meant(arguments: dict[str, Any]) -> Any:
        return adapter.validate_json(json.dumps(arguments["value"]))

    assert unwritable(family, call(family, name), tool(name), {"value": json.loads(text)}, meant) is None


ALIAS = TypeAliasType("ALIAS", dict[str, int] | None)
USER = NewType("USER", int)
TAKEN: list[tuple[Any, str, Any]] = [
    (JsonValue, '{"a":[1,null]}', {"a": [1, None]}),
    (ALIAS, '{"a":1}', {"a": 1}),
    (USER, "7", 7),
    (Any, '"x"', "x"),
    (object, "[true]", [True]),
    (int | None, "null", None),
    (Literal["a"], '"a"', "a"),
]


@pytest.mark.parametrize(("kind", "text", "value"), TAKEN)
def test_whatever_pydantic_takes_is_a_type(kind: Any, text: str, value: Any) -> None:
    made = response_of(kind, matcher)
    assert made is not None
    assert takes(answers(made), text)
    assert made.read(text) == value


@pytest.mark.parametrize("kind", ["int", 7, {1}, print, lambda: 1, object(), re])
def test_what_is_no_type_is_refused(kind: Any) -> None:
    with pytest.raises(RequestError, match="has no JSON Schema"):
        response_of(kind, matcher)
