"""What an engine is made of, for tests that look inside."""

from engine import Engine
from engine.api.source import Loaded


def parts(llm: Engine) -> Loaded:
    """The parts of an engine of its own."""
    assert isinstance(llm.source, Loaded)
    return llm.source
