"""A few of the failures that `benchmarks/torture_calls.py --kind "the"` tries at every place."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from failures import failing_child

from engine import Engine

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
Case = tuple[Engine, Mapping[str, object]]


@pytest.fixture(scope="module")
def case(builtin_model_path: Path) -> Iterator[Case]:
    with Engine.load(builtin_model_path, isolated=True, **failing_child.OPTIONS) as llm:
        yield llm, failing_child.expected(llm)


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("kind", [kind for kind in failing_child.KINDS if kind != failing_child.STARTS])
def test_a_pipe_fails(case: Case, kind: str, number: int) -> None:
    failed = failing_child.failing(*case, failing_child.KINDS[kind], number)
    assert (failed.reached, failed.faults) == (True, [])


def test_the_next_process_does_not_start_at_first(case: Case) -> None:
    failed = failing_child.failing(*case, failing_child.KINDS[failing_child.STARTS], 3)
    assert (failed.reached, failed.faults) == (True, [])
