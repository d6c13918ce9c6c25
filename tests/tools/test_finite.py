"""Infinity and NaN never reach a tool."""

import math
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from engine.tools import as_tool, run


class Inner(BaseModel):
    share: float = math.inf


@dataclass
class Plain:
    share: float = math.inf


def scale(by: float = math.inf, inner: Inner | None = None, plain: Plain | None = None, every: list[float] = []) -> str:  # noqa: B006
    """Scale."""
    return f"{by} {inner} {plain} {every}"


@pytest.mark.parametrize("value", ['"NaN"', '"inf"', '"-Infinity"', "1e309", "-1e309", "NaN", "Infinity"])
@pytest.mark.parametrize(
    "arguments", ['{"by": @}', '{"inner": {"share": @}}', '{"plain": {"share": @}}', '{"every": [1, @]}']
)
def test_no_argument_is_infinite_or_nan(value: str, arguments: str) -> None:
    outcome = run(as_tool(scale), arguments.replace("@", value))
    assert outcome.error
    assert outcome.content.startswith("Error: the arguments do not fit")


def test_defaults_are_the_caller_s_own() -> None:
    outcome = run(as_tool(scale), '{"inner": {}, "plain": {}, "every": [1.5]}')
    assert not outcome.error
    assert "share=inf" in outcome.content
