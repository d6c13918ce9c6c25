"""The child process that loads a library of the caller's own before this process does."""

from engine.child import ends, write_frame
from engine.errors import EngineError
from engine.llama import lib, own_library


def main() -> int:
    """Load the library that the environment names, and answer with the error's message, or ""."""
    _, answers = ends()
    told = ""
    try:
        if (own := own_library.chosen()) is not None:
            lib.load(own)
    except EngineError as error:
        told = str(error)
    write_frame(answers, told.encode())
    return 0
