"""Large grammars are compiled in a child process first: a compile cannot be stopped in a thread, and some take minutes.

Knows: from which size on, how long a compile may take, what the child answers. Does not know: schemas, vocabularies.
"""

import json

from engine.child import Child, ChildGoneError, ChildNotStartedError, ends, read_frame, write_frame
from engine.errors import RequestError

LARGE = 32_000
"""Characters of a grammar that is compiled without a trial; this takes 0.1 seconds."""
SECONDS = 2.0
_STARTING = 30.0
_LONGEST_ANSWER = 1 << 20


def tried(grammar: str) -> str | None:
    """Why a grammar cannot be compiled; None where it can. Raises RequestError for one that takes too long, or too much
    memory."""
    try:
        child = Child("engine.constraint.trial", "The trial of a large constraint", "use a smaller schema")
    except ChildNotStartedError as error:
        raise RequestError(
            f"A constraint of {len(grammar):,} characters is compiled in a child process first, and {error} Use a "
            f"schema of less than {LARGE:,} characters here."
        ) from error
    try:
        with child.within(_STARTING):
            child.wait_for_greeting()
        with child.within(SECONDS):
            child.send(grammar.encode())
            said: str | None = json.loads(child.receive(_LONGEST_ANSWER))
    except (ChildGoneError, ValueError) as error:
        raise RequestError(
            f"The constraint ({len(grammar):,} characters of grammar) does not compile within {SECONDS:g} seconds "
            f"({error}). Use a smaller or simpler schema."
        ) from error
    finally:
        child.close()
    return said


def main() -> int:
    """Compile one grammar, and say why it cannot be."""
    compile_error('{"grammars": [{"lark_grammar": "start: /a/"}]}')  # so that imports are no part of the time
    orders, answers = ends()
    write_frame(answers, json.dumps(compile_error(read_frame(orders).decode())).encode())
    return 0


def compile_error(grammar: str) -> str | None:
    """Why a grammar cannot be compiled, for a vocabulary of bytes; None where it can."""
    from llguidance import LLMatcher, LLTokenizer

    made = LLMatcher(LLTokenizer("byte"), grammar)
    return made.get_error().partition("\n")[0] if made.is_error() else None
