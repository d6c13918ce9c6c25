"""Tools: what may be given as one, the schema that a model sees, and running a call that a model wrote."""

import asyncio
import datetime as dt
import enum
import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel

from engine.support.errors import EngineWarning, RequestError
from engine.tools import ToolOutcome, as_tool, as_tools, is_async, run, run_async
from engine.tools.describe import read_docstring
from engine.types.tools import Tool


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Place(BaseModel):
    """Somewhere."""

    title: str
    latitude: float = Field(ge=-90, le=90)


class Tree(BaseModel):
    """A tree of values."""

    value: int
    children: list["Tree"] = []


def forecast(
    city: str,
    days: Annotated[int, Field(ge=1, le=7, description="how many days")] = 3,
    unit: Unit = Unit.CELSIUS,
    note: str | None = None,
    near: Place | None = None,
    sky: Literal["clear", "cloudy"] = "clear",
) -> dict[str, Any]:
    """The weather to come.

    From a table.

    Args:
        city (str): The city,
            and its country.
        days: never shown, the annotation wins.
        note (Optional[str]): A remark: anything.

    Returns:
        A dictionary.
    """
    return {"city": city, "days": days, "unit": unit, "note": note, "near": near, "sky": sky}


def test_function_becomes_schema() -> None:
    tool = as_tool(forecast)
    assert (tool.name, tool.description) == ("forecast", "The weather to come.\n\nFrom a table.")
    assert tool.function is forecast
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city, and its country."},
            "days": {"type": "integer", "description": "how many days", "minimum": 1, "maximum": 7, "default": 3},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            "note": {"type": "string", "description": "A remark: anything."},
            "near": {
                "type": "object",
                "description": "Somewhere.",
                "properties": {
                    "title": {"type": "string"},
                    "latitude": {"type": "number", "minimum": -90, "maximum": 90},
                },
                "required": ["title", "latitude"],
            },
            "sky": {"type": "string", "enum": ["clear", "cloudy"], "default": "clear"},
        },
        "required": ["city"],
    }


def test_keys_come_in_the_order_models_know() -> None:
    parameters = as_tool(forecast).parameters
    assert list(parameters) == ["type", "properties", "required"]
    assert list(parameters["properties"]["city"]) == ["type", "description"]


def test_arguments_are_coerced_and_defaults_are_the_functions_own() -> None:
    marker = object()

    def probe(when: dt.date, pair: tuple[int, str], /, *, loose: Any = marker) -> str:
        return f"{when.year} {pair} {loose is marker}"

    outcome = run(as_tool(probe), '{"when": "2026-03-01", "pair": ["4", "x"]}')
    assert outcome == ToolOutcome("2026 (4, 'x') True", False)


def test_parameters_named_like_pydantic_attributes() -> None:
    def odd(schema: int, model_config: str, copy: bool = False) -> str:
        return f"{schema} {model_config} {copy}"

    tool = as_tool(odd)
    assert list(tool.parameters["properties"]) == ["schema", "model_config", "copy"]
    assert run(tool, '{"schema": 1, "model_config": "m", "copy": true}').content == "1 m True"


def test_a_field_as_default_value() -> None:
    def dice(sides: int = Field(6, ge=2, description="how many"), count: int = Field(ge=1)) -> int:
        return sides * count

    tool = as_tool(dice)
    assert tool.parameters["required"] == ["count"]
    assert tool.parameters["properties"]["sides"]["default"] == 6
    assert tool.parameters["properties"]["sides"]["minimum"] == 2
    assert run(tool, '{"sides": 8, "count": 2}').content == "16"
    assert run(tool, '{"sides": 1, "count": 2}').error


def test_description_as_a_plain_string() -> None:
    def echo(text: Annotated[str, "what to say"]) -> str:
        return text

    assert as_tool(echo).parameters["properties"]["text"]["description"] == "what to say"


def test_a_nullable_parameter_is_shown_without_null_and_takes_it() -> None:
    def f(a: int | str | None = None, b: int | None = 4) -> str:
        return f"{a} {b}"

    tool = as_tool(f)
    assert tool.parameters["properties"]["a"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert {"type": "null"} in tool.parameters["properties"]["b"]["anyOf"]
    assert run(tool, '{"a": null}').content == "None 4"


def test_model_class_yields_its_instance() -> None:
    tool = as_tool(Place)
    assert (tool.name, tool.description) == ("Place", "Somewhere.")
    assert "description" not in tool.parameters
    assert list(tool.parameters["properties"]) == ["title", "latitude"]
    assert json.loads(run(tool, '{"title": "Rome", "latitude": "41.9"}').content) == {"title": "Rome", "latitude": 41.9}


def test_recursive_model_keeps_its_definition() -> None:
    tool = as_tool(Tree)
    assert tool.parameters["type"] == "object"
    assert tool.parameters["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert "title" not in json.dumps(tool.parameters)
    assert run(tool, '{"value": 1, "children": [{"value": "x"}]}').error


def test_mutually_recursive_definitions_inside_a_function() -> None:
    def plant(tree: Tree, other: Tree | None = None) -> int:
        return tree.value

    assert sorted(as_tool(Husband).parameters["$defs"]) == ["Husband", "Wife"]
    parameters = as_tool(plant).parameters
    assert parameters["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert list(parameters["$defs"]) == ["Tree"]


def test_openai_dictionaries() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    inner = {"name": "count", "description": "Counts.", "parameters": parameters, "strict": True}
    for item in ({"type": "function", "function": inner}, inner, {"type": "function", **inner}):
        tool = as_tool(item)
        assert (tool.name, tool.description, tool.parameters) == ("count", "Counts.", parameters)
        assert tool.function is None
        assert tool.check is not None
        assert tool.check({"n": 3}) is None
        assert tool.check({"n": 0}) == "'n': 0 is less than the minimum of 1."
        assert tool.check({}) == "'n' is a required property."
    assert as_tool({"name": "now"}).parameters == {"type": "object", "properties": {}}


def test_a_schema_may_refer_to_itself() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    check = as_tool({"name": "chain", "parameters": schema}).check
    assert check is not None
    assert check({"next": {"next": {}}}) is None
    assert check({"next": {"last": {}}}) is not None


def test_a_tool_passes_through() -> None:
    tool = as_tool(forecast)
    assert as_tool(tool) is tool

    def add(a: int, b: int = 1) -> int:
        return a + b

    bare = Tool(name="add", parameters={"type": "object", "required": ["a"]}, function=add)
    made = as_tool(bare)
    assert run(made, '{"a": 2}') == ToolOutcome("3", False)
    assert run(made, "{}").error
    assert run(bare, '{"a": 2, "b": 2}') == ToolOutcome("4", False)


def no_schema(handler: Any) -> None:
    """An annotation that is no type."""


def unknown_annotation(value: Any) -> None:
    """An annotation that is not defined."""


no_schema.__annotations__["handler"] = print
unknown_annotation.__annotations__["value"] = "Missing"


class Opaque:
    """Not a type that JSON carries."""


def opaque(value: Opaque) -> None:
    """Takes what no JSON gives."""


class Number(RootModel[int]):
    """A model that is no object."""


class Held(BaseModel):
    """Holds what JSON cannot."""

    call: Callable[[], int]


class Husband(BaseModel):
    wife: "Wife | None" = None


class Wife(BaseModel):
    husband: Husband | None = None


def variadic(*values: int) -> None:
    """Takes any number."""


def open_ended(**options: int) -> None:
    """Takes anything."""


NO_TOOLS: list[tuple[Any, str]] = [
    (3, "is not a tool"),
    (lambda: None, "write a def"),
    (int, "not a pydantic model"),
    (no_schema, "do not make a JSON Schema"),
    (Number, "are not an object"),
    (Held, "do not make a JSON Schema"),
    (opaque, "do not make a JSON Schema"),
    (unknown_annotation, "'Missing' is not defined"),
    (variadic, "takes *values"),
    (open_ended, "takes **options"),
    ({"type": "web_search"}, "is not a tool"),
    ({"function": "f"}, "is not a tool"),
    ({"name": "f", "parameter": {}}, "unknown keys ['parameter']"),
    ({"name": "f", "return": "text"}, "it must be the schema of what it returns"),
    ({"name": "two words"}, "cannot be used"),
    ({"name": "f", "parameters": {"type": "string"}}, "not a schema of type object"),
    ({"name": "f", "parameters": ["a"]}, "not a schema of type object"),
    ({"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "text"}}}}, "$.properties.a.type"),
    ({"name": "f", "parameters": {"type": "object", "required": "a"}}, "$.required"),
    ({"name": "f", "parameters": {"type": "object", "properties": {"a": {"pattern": "("}}}}, "regex"),
    ({"name": "f", "parameters": {"type": "object", "$ref": "#/$defs/a"}}, "'#/$defs/a'"),
    ({"name": "f", "parameters": {"type": "object", "$ref": "http://example.com/s"}}, "which is not in them"),
    (Tool(name="f", parameters={"type": "objects"}), "not a schema of type object"),
]


@pytest.mark.parametrize(("item", "words"), NO_TOOLS)
def test_what_is_no_tool_is_refused(item: Any, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        as_tool(item)
    assert words in str(caught.value)


def test_callable_without_a_name_is_refused() -> None:
    class Adder:
        def __call__(self, a: int) -> int:
            return a

    with pytest.raises(RequestError, match="wrap it in a def"):
        as_tool(Adder())


def test_two_tools_of_one_name() -> None:
    with pytest.raises(RequestError, match="Two tools are called 'forecast'"):
        as_tools([forecast, {"name": "forecast"}])


@pytest.mark.parametrize("items", [forecast, "forecast", {"name": "f"}])
def test_tools_are_a_list(items: Any) -> None:
    with pytest.raises(RequestError, match=r"put .*it.* in a list"):
        as_tools(items)


def test_no_tools() -> None:
    assert as_tools(None) == () == as_tools([])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"city": 3}', "'city': Input should be a valid string (not 3)"),
        ('{"city": "Rome", "days": 9}', "'days': Input should be less than or equal to 7 (not 9)"),
        ("{}", "'city' is missing"),
        ('{"city": "Rome", "town": "x"}', "'town' is not an argument of this tool"),
        ('{"city": "Rome", "near": {"title": "x", "latitude": 100}}', "'near.latitude'"),
        ('{"city": "Ro', "JSON"),
        ("[1]", "Input should be an object"),
    ],
)
def test_unfit_arguments_are_said_to_the_model(arguments: str, words: str) -> None:
    outcome = run(as_tool(forecast), arguments)
    assert outcome.error
    assert outcome.content.startswith("Error: the arguments do not fit: ")
    assert words in outcome.content


def test_check_agrees_with_the_call() -> None:
    def at(when: dt.datetime, tags: set[str]) -> str:
        return "ok"

    tool = as_tool(at)
    assert tool.check is not None
    cases: list[Any] = [{"when": "2026-01-01T00:00:00", "tags": ["a"]}, {"when": "never", "tags": []}, {"when": None}]
    for arguments in cases:
        assert (tool.check(arguments) is None) == (not run(tool, json.dumps(arguments)).error)


def test_unfit_arguments_for_a_hand_made_tool() -> None:
    tool = Tool(name="f", parameters={"type": "object"}, function=lambda: "ran")
    assert run(tool, "{").content.startswith("Error: the arguments do not fit: they are not JSON")
    assert run(tool, "[]").content == "Error: the arguments do not fit: they must be a JSON object."
    assert run(tool, "[" * 100_000).error
    assert run(tool, "{}") == ToolOutcome("ran", False)


def test_deep_nesting_is_an_answer_not_a_crash() -> None:
    deep: Any = {}
    for _ in range(50_000):
        deep = {"next": deep}
    for item in (Tree, {"name": "chain", "parameters": {"type": "object", "properties": {"next": {"$ref": "#"}}}}):
        check = as_tool(item).check
        assert check is not None
        assert check(deep) == "they nest too deep."


def test_a_tool_that_raises() -> None:
    def fails(how: str) -> str:
        raise {"value": ValueError("no such city"), "empty": KeyError()}[how]

    tool = as_tool(fails)
    assert run(tool, '{"how": "value"}') == ToolOutcome("Error: ValueError: no such city", True)
    assert run(tool, '{"how": "empty"}') == ToolOutcome("Error: KeyError", True)


def test_results_as_text() -> None:
    def get(result: Any) -> Any:
        return result

    results: list[Any] = [
        "as it is",
        None,
        3.5,
        {"when": dt.date(2026, 1, 2)},
        Place(title="x", latitude=1),
        Opaque(),
    ]
    tools = [Tool(name="f", parameters={"type": "object"}, function=partial(get, result)) for result in results]
    with pytest.warns(EngineWarning, match="an object of the class Opaque"):
        texts = [run(tool, "{}").content for tool in tools]
    assert texts[:5] == ["as it is", "null", "3.5", '{"when": "2026-01-02"}', '{"title": "x", "latitude": 1.0}']
    assert texts[5] == '"<Opaque>"'


def test_half_characters_are_replaced() -> None:
    def cut(raises: bool) -> str:
        if raises:
            raise ValueError("half an emoji: \ud83d")
        return "half an emoji: \ud83d"

    assert run(as_tool(cut), '{"raises": false}').content == "half an emoji: \ufffd"
    assert run(as_tool(cut), '{"raises": true}').content == "Error: ValueError: half an emoji: \ufffd"


def test_result_that_json_cannot_carry() -> None:
    loop: list[Any] = []
    loop.append(loop)
    outcome = run(Tool(name="f", parameters={"type": "object"}, function=lambda: loop), "{}")
    assert outcome.error
    assert outcome.content.startswith("Error: ValueError")


def test_no_function_is_the_callers_mistake() -> None:
    with pytest.raises(RequestError, match="has no function"):
        run(as_tool({"name": "f"}), "{}")


async def later(text: str) -> str:
    """Answers later."""
    await asyncio.sleep(0)
    if text == "fail":
        raise ValueError(text)
    return f"later {text}"


def test_async_function_from_sync_code() -> None:
    tool = as_tool(later)
    assert is_async(tool)
    assert run(tool, '{"text": "x"}') == ToolOutcome("later x", False)
    assert run(tool, '{"text": "fail"}') == ToolOutcome("Error: ValueError: fail", True)


async def test_async_function_from_sync_code_inside_a_loop() -> None:
    tool = as_tool(later)
    assert run(tool, '{"text": "x"}') == ToolOutcome("later x", False)
    assert run(tool, '{"text": "fail"}') == ToolOutcome("Error: ValueError: fail", True)


async def test_run_async() -> None:
    import threading

    def where(a: int = 0) -> str:
        return threading.current_thread().name

    assert await run_async(as_tool(later), '{"text": "x"}') == ToolOutcome("later x", False)
    assert await run_async(as_tool(later), '{"text": "fail"}') == ToolOutcome("Error: ValueError: fail", True)
    assert (await run_async(as_tool(later), '{"text": 1}')).error
    assert (await run_async(as_tool(where), "{}")).content != threading.current_thread().name


def test_docstring_styles() -> None:
    google = "Sum.\n\nArgs:\n    a: the first\n    *b (int): the\n        second\n\nMore text.\n\nReturns:\n    it\n"
    numpy = "Sum.\n\nMore text.\n\nParameters\n----------\na : int\n    the first\nb, c\n    the\n    second\n\n"
    numpy += "Returns\n-------\nint\n"
    sphinx = "Sum.\n\nMore text.\n\n:param a: the first\n:param int b: the\n    second\n:returns: it\n:type a: int\n"
    for text in (google, numpy, sphinx):
        doc = read_docstring(text)
        assert doc.description.split() == ["Sum.", "More", "text."]
        assert doc.parameters["a"] == "the first"
        assert doc.parameters["b"] == "the second"


def test_docstring_without_sections() -> None:
    assert read_docstring(None) == ("", {})
    assert read_docstring("One line.") == ("One line.", {})
    assert read_docstring("Ratio: a:b\n\nnote: it rounds") == ("Ratio: a:b\n\nnote: it rounds", {})
    assert read_docstring("\nArgs:\n    (nothing of the kind)\n        deeper\n    a:\n") == ("", {})


def test_a_function_that_is_edited_in_place_is_read_again() -> None:
    def old(city: str = "Rome") -> str:
        """Old words."""
        return city

    def new(place: int = 3) -> int:
        """New words."""
        return place

    assert (as_tool(old).description, list(as_tool(old).parameters["properties"])) == ("Old words.", ["city"])
    old.__doc__ = "Other words."
    assert as_tool(old).description == "Other words."
    old.__defaults__ = ("Oslo",)
    assert as_tool(old).parameters["properties"]["city"]["default"] == "Oslo"
    old.__code__, old.__annotations__ = new.__code__, new.__annotations__
    assert list(as_tool(old).parameters["properties"]) == ["place"]


def test_what_a_tool_returns_may_be_annotated_with_anything() -> None:
    def look(city: "str") -> str:
        """Look."""
        return city

    look.__annotations__["return"] = "Nowhere[int]"
    assert as_tool(look).parameters["properties"] == {"city": {"type": "string"}}
