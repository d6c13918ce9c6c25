"""The child process that loads a library of the caller's own before this process does.

Knows: what it loads, which is what `lib.load` would load here, and how its answer reads. Does not know: what a model
does with the library; that is the preflight's matter.
"""

from engine.child import Child, ChildGoneError, ChildNotStartedError, ends, write_frame
from engine.errors import EngineError
from engine.llama.own_library import OwnLibrary

_SECONDS = 60.0
_LONGEST_ANSWER = 1 << 16


def try_in_child(own: OwnLibrary) -> None:
    """Let a child load the library and compare its structures. Raises EngineError when it is not to be used, or the
    child died of it, ChildNotStartedError when no child can be started."""
    child = Child(__name__, "The child process that loaded it", "start Python from a program that it can be started by")
    try:
        with child.within(_SECONDS):
            answer = child.receive(_LONGEST_ANSWER).decode(errors="replace")
    except ChildNotStartedError:
        raise
    except ChildGoneError as error:
        raise own.refused(str(error).rstrip(".")) from error
    finally:
        child.close()
    if answer:
        raise EngineError(answer)


def main() -> int:
    """Load what the environment names; the answer is the error's message, or nothing."""
    from engine.llama import lib, own_library

    _, answers = ends()
    told = ""
    try:
        if (own := own_library.chosen()) is not None:
            lib.load(own)
    except EngineError as error:
        told = str(error)
    write_frame(answers, told.encode())
    return 0
