"""Property: what a grammar demands is what the family's own template writes. A call that a template renders is allowed
by the grammar of its tool, wakes it under "auto", and is read back. The whole is `benchmarks/constraints.py calls`.

Templates of llama.cpp's tree are read where `LLAMA_CPP_TEMPLATES` names `vendor/llama.cpp/models/templates` of
llama-cpp-python's source distribution; without it, only our own.
"""

import random
from pathlib import Path

import pytest
from cases.template_calls import SOURCES, drawn, held, writes

from engine.tools import as_tools

CASES = 3


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_template_s_own_calls_are_what_the_grammar_allows(path: Path) -> None:
    if not writes(path):
        pytest.skip("it writes no calls of its own")
    rng = random.Random(path.stem)
    for number in range(CASES):
        why = held(path, drawn(rng), "required" if number % 2 else "auto")
        assert not why, why


@pytest.mark.parametrize("name", ["ns/tool", "a.b-c/2", "run.call", "größe", "-7", "x" * 128])
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_name_that_a_tool_may_have_can_be_called(path: Path, name: str) -> None:
    if not writes(path):
        pytest.skip("it writes no calls of its own")
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    (tool,) = as_tools([{"name": name, "description": "Does it.", "parameters": parameters}])
    for choice in ("required", "auto"):
        why = held(path, (tool, {"city": "Rome"}), choice)
        assert not why, why
