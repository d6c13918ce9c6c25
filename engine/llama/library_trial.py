"""The child process that loads a library of the caller's own before this process does.

Knows: what it loads, which is what `lib.load` would load here, and how its answer reads. Does not know: what a model
does with the library; that is the preflight's matter.
"""

from engine.child import ends, write_frame
from engine.errors import EngineError
from engine.llama import lib, own_library


def main() -> int:
    """Load what the environment names; the answer is the error's message, or nothing."""
    _, answers = ends()
    told = ""
    try:
        if (own := own_library.chosen()) is not None:
            lib.load(own)
    except EngineError as error:
        told = str(error)
    write_frame(answers, told.encode())
    return 0
