"""What the tests of benchmarks.check share: one engine."""

from collections.abc import Generator

import pytest

from engine import Engine


@pytest.fixture(scope="session")
def llm() -> Generator[Engine]:
    with Engine.load() as llm:
        yield llm
