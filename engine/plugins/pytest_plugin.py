"""The fixture `scripted_engine`, which pytest finds by itself where this package is installed."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from engine.testing.scripted import Reply, ScriptedEngine


@pytest.fixture
def scripted_engine() -> Generator["Callable[..., ScriptedEngine]"]:
    """Returns a function that makes a `ScriptedEngine`, with its arguments; the test's end closes it."""
    from engine.testing.scripted import ScriptedEngine

    with ExitStack() as opened:

        def make(
            replies: "Sequence[Reply] | Callable[[str], Reply]", family: str = "qwen3", **options: Any
        ) -> ScriptedEngine:
            return opened.enter_context(ScriptedEngine(replies, family, **options))

        yield make
