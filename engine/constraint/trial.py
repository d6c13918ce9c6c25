"""Compiles large grammars in a child process first: a compile in a thread cannot be stopped, and some take minutes.

Knows: for which sizes, how long a compile may take, what the child replies. Does not know: schemas, vocabularies.
"""

import json

from engine.child import Child, ChildGoneError, ChildNotStartedError, ends, read_frame, write_frame
from engine.errors import RequestError

LARGE = 32_000
"""The longest grammar, in characters, that is compiled without a trial; one of this size takes 0.1 seconds."""
SECONDS = 2.0
_STARTING = 30.0
_LONGEST_ANSWER = 1 << 20


def tried(grammar: str) -> str | None:
    """Returns why a grammar cannot be compiled; None if it can. Raises RequestError if compiling takes too long, or too
    much memory."""
    try:
        child = Child("engine.constraint.trial", "The trial of a large constraint", "use a smaller schema")
    except ChildNotStartedError as error:
        raise RequestError(
            f"A constraint of {len(grammar):,} characters must be compiled in a child process first, but: {error} "
            f"Use a schema of less than {LARGE:,} characters here."
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
    """Compile one grammar and send back the error, or null."""
    compile_error('{"grammars": [{"lark_grammar": "start: /a/"}]}')  # so that the time limit does not include imports
    orders, answers = ends()
    write_frame(answers, json.dumps(compile_error(read_frame(orders).decode())).encode())
    return 0


def compile_error(grammar: str) -> str | None:
    """Returns why a grammar cannot be compiled for a vocabulary of bytes; None if it can."""
    from llguidance import LLMatcher, LLTokenizer

    made = LLMatcher(LLTokenizer("byte"), grammar)
    return made.get_error().partition("\n")[0] if made.is_error() else None
