"""The first call of each kind below an engine with real weights fails, while many requests run; all places:
benchmarks/torture_calls.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from failures import failing_engine

from engine import Engine

Prepared = tuple[Engine, dict[str, object]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder: Path = tmp_path_factory.mktemp("projector")
    with failing_engine.opened(folder) as llm:
        yield llm, failing_engine.expected(llm)


@pytest.mark.parametrize("kind", failing_engine.KINDS)
def test_one_call_fails(prepared: Prepared, kind: str) -> None:
    failed = failing_engine.failing(*prepared, failing_engine.KINDS[kind], 1)
    assert failed.reached
    assert not failed.faults, "\n".join(failed.faults[:5])
