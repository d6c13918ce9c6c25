"""pydantic's errors for a row, in the terms of the file: the key, its value, and what to write."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from engine.formats.families.schema import SYNTAXES

Place = tuple[str, ...]
_TOOLS: Place = ("format", "tools")


class Complaint(NamedTuple):
    """What is wrong with a field, and what to write. `contradicts`: the field is wrong only in combination with
    others."""

    place: Place
    text: str
    contradicts: bool = False


def complaints(error: ValidationError, record: type[BaseModel]) -> Iterator[Complaint]:
    """Yields each mistake in a row."""
    for found in error.errors(include_url=False):
        place, shape = _located(found)
        if found["type"] == "contradiction":
            for field, text in found.get("ctx", {})["found"]:
                yield Complaint((*place, field), text, contradicts=True)
        else:
            yield Complaint(place, _complaint(found["type"], place, found, record, shape))


def _located(found: Any) -> tuple[Place, str]:
    """Returns the place of an error in the file, and the shape of calls whose record it is in ("" if in none): pydantic
    names the shape behind `tools`."""
    place = tuple(item for item in found["loc"] if isinstance(item, str))
    if found["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return (*place, "shape"), ""
    if place[:2] == _TOOLS and len(place) > 2:
        return (*_TOOLS, *place[3:]), place[2]
    return place, ""


def _complaint(kind: str, place: Place, found: Any, record: type[BaseModel], shape: str) -> str:
    key, value = place[-1], found["input"]
    match kind:
        case "extra_forbidden" if shape:
            known = sorted(SYNTAXES[shape].model_fields)
            return f"shape {shape} has no `{key}`. {_meant(key, known)}It has {', '.join(known)}"
        case "union_tag_invalid":
            *others, last = found["ctx"]["expected_tags"].split(", ")
            return f"{found['ctx']['tag']!r} is not known for `shape`. Write {', '.join(others)} or {last}"
        case "extra_forbidden":
            return _unknown(key, _keys(record, place[:-1]))
        case "missing" | "union_tag_not_found":
            return f"`{key}` is missing. Write {key} = .. there"
        case "tuple_type":
            return f"{value!r} is not a list of texts. Write {key} = {_listed(value)}"
        case "string_type":
            return f"{value!r} is not a text. Write it between quotes"
        case "literal_error":
            return f"{value!r} is not known for `{key}`. Write {found['ctx']['expected']}"
        case "model_type" | "model_attributes_type" | "dict_type" | "mapping_type":
            return f"{value!r} is not a table. Write [family.<name>.{'.'.join(place)}] and its keys"
        case "too_short" | "too_long" | "missing_argument":
            return f"{value!r} has {found['ctx']['actual_length']} texts. Write a list of as many as `{key}` has"
        case _:
            return f"{found['msg']} (the value is {value!r}). Correct it there"


def _listed(value: object) -> str:
    return f'["{value}"]' if isinstance(value, str) else '["..", ".."]'


def _unknown(key: str, known: list[str]) -> str:
    return f"there is no key `{key}`. {_meant(key, known)}The keys of this table are {', '.join(known)}"


def _meant(key: str, known: list[str]) -> str:
    near = get_close_matches(key, known, n=1)
    return f"Did you mean `{near[0]}`? " if near else ""


def _keys(record: type[BaseModel], place: Place) -> list[str]:
    """Returns the keys that a table may have, including those that only the file has (`like`, `respell`)."""
    node: type[BaseModel] | None = record
    for name in place:
        field = node.model_fields.get(name) if node is not None else None
        node = next((each for each in _records(field.annotation) if field), None) if field else None
    keys = list(node.model_fields) if node is not None else []
    return ["like", "respell", *(key for key in keys if key != "name")] if not place else keys


def _records(annotation: object) -> Iterator[type[BaseModel]]:
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield each
