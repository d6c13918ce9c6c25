"""Grammars tried in a child process before this process compiles them: a compile in a thread cannot be stopped, and
some grammars of fifty characters take minutes or gigabytes.

All constraints of this process share the children. A trial uses one at a time, so there is rarely more than one; it
starts on first use, stays, and is replaced when a grammar was too slow for it or made it crash.
"""

import json
import logging
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from io import FileIO
from typing import Any, BinaryIO, NamedTuple

from engine.runtime.guidance.vocabulary import Vocabulary
from engine.support import threads
from engine.support.child import Child, ChildGoneError, ChildNotStartedError, ends, read_frame, write_frame
from engine.support.deadlines import latest
from engine.support.errors import RequestError, shown
from engine.support.limits import limit_growth, limit_resources, resident_bytes
from engine.support.recent import characters, recent
from engine.support.repetitions import MOST_REPETITIONS, most_repetitions

SECONDS = 30.0
"""The longest time limit of a trial, in seconds; with a deadline it is half of the time left, since this process then
compiles the same again. The largest schemas in use take two on an idle machine."""
_LEAST_SECONDS = 0.25
"""The least time limit, in seconds: ordinary grammars finish within it, so a short deadline does not kill the child."""
_STARTING = 30.0
_MOST_CHILDREN = 4
_REMEMBERED = 1024
"""Verdicts that are cached; they are texts of a line."""
_LONGEST_ANSWER = 1 << 24
_MEMORY = 2 << 30
"""Bytes of address space of a child; it starts with half a gigabyte, most of it unused stacks of threads."""
_GROWTH = 192 << 20
"""Bytes that the grammars of one order may take, tokenizers not counted: an object of 1,500 optional members takes 13
MiB, and this process takes as many for what passes."""
_FORCED_STEPS = 4
"""Steps over forced tokens. What costs more further on is bounded by llguidance's own limits: of sixteen grammars made
to explode there, over 152,000 tokens, the slowest of 80 masks took 0.2 seconds."""
_MOST_VOCABULARIES = 4
_LONGEST_REASON = 1000
_STACK = 1 << 20
"""Bytes of stack for a compile: less than a caller's thread has, so that a grammar nested too deep ends the child, not
this process."""
_SIMPLE = '{"grammars": [{"lark_grammar": "start: /a/"}]}'
_log = logging.getLogger("engine.constraint")


@cache
def limits() -> Any:
    """Returns llguidance's limits for one parser.

    `step_max_items`: an object of 1,500 optional members needs 11,000 for a mask. `precompute_large_lexemes` would take
    seconds before the first token for what most turns never reach.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=20_000,
        step_max_items=15_000,
        max_lexer_states=100_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


class Verdict(NamedTuple):
    """What a trial found: why a grammar cannot be enforced (None if it can), and the bytes that it took compiled."""

    why: str | None
    size: int


def refusals(grammars: Sequence[str], vocabulary: Vocabulary | None = None) -> list[str | None]:
    """Returns for each grammar why it cannot be enforced; None if it can. Raises RequestError like `tried`."""
    return [verdict.why for verdict in tried(grammars, vocabulary)]


def tried(grammars: Sequence[str], vocabulary: Vocabulary | None = None) -> list[Verdict]:
    """Compile each grammar over a vocabulary (None: over bytes) in a child, and compute its first masks.

    Raises RequestError if that takes too long or too much memory.
    """
    for grammar in grammars:
        check_repetitions(grammar)
    vocabulary = vocabulary or _bytes()
    keys = [sha256(f"{vocabulary.name}\n{grammar}".encode(errors="surrogatepass")).digest() for grammar in grammars]
    unknown = {key: grammar for key, grammar in zip(keys, grammars, strict=True) if key not in _verdicts}
    found = {key: _verdicts[key] for key in keys if key in _verdicts}
    if unknown:
        found |= zip(unknown, _tried(list(unknown.values()), vocabulary), strict=True)
        _verdicts.update(found)
        while len(_verdicts) > _REMEMBERED:
            with suppress(KeyError):
                _verdicts.popitem(last=False)
    return [found[key] for key in keys]


def check_repetitions(grammar: str) -> None:
    """Raise RequestError for repetitions in repetitions that come to more than any answer holds."""
    if (count := most_repetitions(grammar)) > MOST_REPETITIONS:
        raise RequestError(
            f"The constraint repeats something up to {count:,} times, counting repetitions in repetitions; at most "
            f"{MOST_REPETITIONS:,} are possible. Write smaller counts, or `*` for any number."
        )


@cache
def _bytes() -> Vocabulary:
    return Vocabulary.of_bytes()


@dataclass(frozen=True, slots=True)
class _Trier:
    """A child, and the names of the vocabularies that it has."""

    child: Child
    known: set[str]


_verdicts: "OrderedDict[bytes, Verdict]" = OrderedDict()
_idle: deque[_Trier] = deque()
_slots = threading.BoundedSemaphore(_MOST_CHILDREN)


@threads.after_fork
def _after_fork() -> None:
    """Replace the lock, which threads of the parent may hold. (`Child` itself recognises children of the parent.)"""
    global _slots  # noqa: PLW0603 - a process has one
    _slots = threading.BoundedSemaphore(_MOST_CHILDREN)


def _tried(grammars: list[str], vocabulary: Vocabulary) -> list[Verdict]:
    now, end = time.monotonic(), latest()
    until = now + (SECONDS if end is None else min(SECONDS, (end - now) / 2))
    slots = _slots
    if not slots.acquire(timeout=max(until - time.monotonic(), _LEAST_SECONDS)):
        raise _stopped(grammars, "other constraints are being tried and take all of the time")
    try:
        trier = _trier(vocabulary)
        answer = _asked(trier.child, json.dumps([vocabulary.name, grammars]).encode(), grammars, until)
        _idle.append(trier)
        return answer
    except ChildNotStartedError as error:
        _warn_once(str(error))
        tokenizer = vocabulary.tokenizer()
        return [_verdict(tokenizer, grammar) for grammar in grammars]
    finally:
        slots.release()


def _asked(child: Child, order: bytes, grammars: Sequence[str], until: float) -> list[Verdict]:
    try:
        with child.within(max(until - time.monotonic(), _LEAST_SECONDS)):
            child.send(order)
            return [Verdict(*verdict) for verdict in json.loads(child.receive(_LONGEST_ANSWER))]
    except (ChildGoneError, ValueError, TypeError) as error:
        late = child.late
        child.kill()
        raise _stopped(grammars, str(error).removesuffix("."), late=late) from error
    except BaseException:
        child.kill()  # an interrupt; a late answer would be read as the answer to the next order
        raise


def _trier(vocabulary: Vocabulary) -> _Trier:
    """Returns a child that is ready and has the vocabulary. Raises ChildNotStartedError if none can be started."""
    trier: _Trier | None = None
    with suppress(IndexError):
        while trier is None:
            last = _idle.pop()
            if last.child.alive:
                trier = last
            else:
                last.child.kill()
    trier = trier or _Trier(
        Child(
            "engine.runtime.guidance.trial", "The process that tries constraints", "constraints are not tried", grace=0
        ),
        set(),
    )
    try:
        with trier.child.within(_STARTING):
            if not trier.child.greeted:
                trier.child.wait_for_greeting()
            if vocabulary.name not in trier.known:
                _make_room(trier.known)
                trier.child.send(vocabulary.packed)
                trier.child.receive(_LONGEST_ANSWER)
                trier.known.add(vocabulary.name)
    except ChildGoneError as error:
        trier.child.kill()
        raise ChildNotStartedError(str(error)) from error
    except BaseException:
        trier.child.kill()
        raise
    return trier


def _make_room(known: "set[str] | dict[str, Any]") -> None:
    """Forget all vocabularies before there are too many: both sides do it at the same time."""
    if len(known) >= _MOST_VOCABULARIES:
        known.clear()


def _stopped(grammars: Sequence[str], why: str, *, late: bool = True) -> RequestError:
    size = max(map(len, grammars))
    short = "could not be compiled in time" if late else f"takes more than {_GROWTH >> 20} MiB to compile, or is faulty"
    more = "; where the request set a short deadline, give it more time" if late else ""
    return RequestError(
        f"The constraint ({size:,} characters of grammar) {short}: {why}. Use a smaller or simpler schema or "
        f"grammar{more}."
    )


@recent(1 << 18, characters)
def _warn_once(why: str) -> None:
    _log.warning("Constraints are compiled without a trial, so one that takes minutes cannot be stopped: %s", why)


def main() -> int:
    """In the child: try the grammars of each order until the orders end; send back their verdicts."""
    _verdict(_bytes().tokenizer(), _SIMPLE)  # imports, in no time limit
    limit_resources(AS=_MEMORY, CORE=0)
    orders, answers = ends()
    threading.stack_size(_STACK)
    thread = threading.Thread(target=_serve, args=(orders, answers))
    thread.start()
    thread.join()
    return 0


def _serve(orders: BinaryIO, answers: FileIO) -> None:
    tokenizers: dict[str, Any] = {}
    while True:
        try:
            order = read_frame(orders)
        except EOFError:
            return
        if order.startswith(b"{"):  # a vocabulary
            limit_growth(None)
            _make_room(tokenizers)
            vocabulary = Vocabulary.unpacked(order)
            tokenizers[vocabulary.name] = vocabulary.tokenizer()
            write_frame(answers, b"null")
            continue
        name, grammars = json.loads(order)
        limit_growth(_GROWTH)
        write_frame(answers, json.dumps([_verdict(tokenizers[name], grammar) for grammar in grammars]).encode())


def _verdict(tokenizer: Any, grammar: str) -> Verdict:
    """Compile a grammar and compute its first masks, for some limits show only there."""
    from llguidance import LLMatcher

    before = resident_bytes()
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    for _ in range(_FORCED_STEPS):
        if matcher.is_error():
            break
        matcher.compute_bitmask()
        tokens = matcher.compute_ff_tokens()
        if not tokens or not matcher.consume_tokens(tokens):
            break
    why = reason(matcher.get_error())[:_LONGEST_REASON] if matcher.is_error() else None
    return Verdict(why, max(0, resident_bytes() - before))


def reason(error: str) -> str:
    """Returns why llguidance refuses a grammar: of a regular expression what is wrong there, and where in it; otherwise
    its first line, with the place in words."""
    if found := _OF_REGEX.search(error):
        return f"the pattern {shown(found['pattern'])} is wrong at character {len(found['before']) + 1}: {found['why']}"
    first = error.partition("\n")[0]
    return _PLACE.sub(r"line \1, column \2: ", first)


_OF_REGEX = re.compile(
    r"regex parse error:\n {4}(?P<pattern>[^\n]*)\n {4}(?P<before> *)\^+\n(?s:.*?)error: (?P<why>[^\n]*)"
)
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
