"""Grammars tried in a child process before this process compiles them: a compile in a thread cannot be stopped, and
some grammars of fifty characters take minutes or gigabytes.

All constraints of this process share the children. A trial uses one at a time, so there is rarely more than one; it
starts on first use, stays, and is replaced when a grammar was too slow for it or made it crash.
"""

import json
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from io import FileIO
from typing import Any, BinaryIO, Protocol

from engine.support import threads
from engine.support.child import Child, ChildGoneError, ChildNotStartedError, ends, read_frame, write_frame
from engine.support.deadlines import latest
from engine.support.errors import RequestError
from engine.support.limits import limit_resources

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
_STACK = 1 << 20
"""Bytes of stack for a compile: less than a caller's thread has, so that a grammar nested too deep ends the child, not
this process."""
_SIMPLE = '{"grammars": [{"lark_grammar": "start: /a/"}]}'
_log = logging.getLogger("engine.constraint")


@cache
def limits() -> Any:
    """Returns llguidance's limits for one parser.

    `step_max_items`: an object of 1,500 optional members needs 11,000 for a mask. `precompute_large_lexemes` would make
    a compile depend on the vocabulary, which a trial does not have.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=20_000,
        step_max_items=15_000,
        max_lexer_states=100_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


class ControlTokens(Protocol):
    """What a trial needs of a vocabulary."""

    @property
    def size(self) -> int: ...
    def token_bytes(self, token: int) -> bytes: ...
    def is_special(self, token: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Controls:
    """The part of a vocabulary that a grammar can name: the number of tokens, and the control tokens, as JSON."""

    text: str = json.dumps({"size": 512, "special": {"511": "<|end|>"}})

    @classmethod
    def of(cls, tokens: ControlTokens) -> "Controls":
        """Returns those of a vocabulary."""
        special = filter(tokens.is_special, range(tokens.size))
        texts = {str(token): tokens.token_bytes(token).decode("utf-8", "replace") for token in special}
        return cls(json.dumps({"size": tokens.size, "special": texts}))


def refusals(grammars: Sequence[str], controls: Controls | None = None) -> list[str | None]:
    """Returns for each grammar why it cannot be enforced with this vocabulary (None: with any), or None if it can.

    Raises RequestError if trying them takes too long or too much memory.
    """
    controls = controls or Controls()
    keys = [sha256(f"{controls.text}\n{grammar}".encode(errors="surrogatepass")).hexdigest() for grammar in grammars]
    unknown = {key: grammar for key, grammar in zip(keys, grammars, strict=True) if key not in _verdicts}
    found = {key: _verdicts[key] for key in keys if key in _verdicts}
    if unknown:
        found |= zip(unknown, _tried(list(unknown.values()), controls), strict=True)
        _verdicts.update(found)
        while len(_verdicts) > _REMEMBERED:
            with suppress(KeyError):
                _verdicts.popitem(last=False)
    return [found[key] for key in keys]


_verdicts: "OrderedDict[str, str | None]" = OrderedDict()
_idle: deque[Child] = deque()
_slots = threading.BoundedSemaphore(_MOST_CHILDREN)


@threads.after_fork
def _after_fork() -> None:
    """Replace the lock, which threads of the parent may hold. (`Child` itself recognises children of the parent.)"""
    global _slots  # noqa: PLW0603 - a process has one
    _slots = threading.BoundedSemaphore(_MOST_CHILDREN)


def _tried(grammars: list[str], controls: Controls) -> list[str | None]:
    now, end = time.monotonic(), latest()
    until = now + (SECONDS if end is None else min(SECONDS, (end - now) / 2))
    slots = _slots
    if not slots.acquire(timeout=max(until - time.monotonic(), _LEAST_SECONDS)):
        raise _stopped(grammars, "other constraints are being tried and take all of the time")
    try:
        child = _child()
        answer = _asked(child, json.dumps([controls.text, grammars]).encode(), grammars, until)
        _idle.append(child)
        return answer
    except ChildNotStartedError as error:
        _warn_once(str(error))
        return _errors([controls.text, grammars], {})
    finally:
        slots.release()


def _asked(child: Child, order: bytes, grammars: Sequence[str], until: float) -> list[str | None]:
    try:
        with child.within(max(until - time.monotonic(), _LEAST_SECONDS)):
            child.send(order)
            return json.loads(child.receive(_LONGEST_ANSWER))
    except (ChildGoneError, ValueError) as error:
        child.kill()
        raise _stopped(grammars, str(error).removesuffix(".")) from error
    except BaseException:
        child.kill()  # an interrupt; a late answer would be read as the answer to the next order
        raise


def _child() -> Child:
    """Returns a child that is ready. Raises ChildNotStartedError if none can be started."""
    with suppress(IndexError):
        while True:
            child = _idle.pop()
            if child.alive:
                return child
            child.kill()
    child = Child(
        "engine.runtime.guidance.trial", "The process that tries constraints", "constraints are not tried", grace=0
    )
    try:
        with child.within(_STARTING):
            child.wait_for_greeting()
    except ChildGoneError as error:
        child.kill()
        raise ChildNotStartedError(str(error)) from error
    except BaseException:
        child.kill()
        raise
    return child


def _stopped(grammars: Sequence[str], why: str) -> RequestError:
    size = max(map(len, grammars))
    return RequestError(
        f"The constraint ({size:,} characters of grammar) could not be compiled in time: {why}. Use a smaller or "
        "simpler schema or grammar; where the request set a short deadline, give it more time."
    )


@cache
def _warn_once(why: str) -> None:
    _log.warning("Constraints are compiled without a trial, so one that takes minutes cannot be stopped: %s", why)


def main() -> int:
    """In the child: try the grammars of each order until the orders end; send back a list of errors and nulls."""
    tokenizers: dict[str, Any] = {}
    _errors([Controls().text, [_SIMPLE]], tokenizers)  # imports, in no time limit
    limit_resources(AS=_MEMORY, CORE=0)
    orders, answers = ends()
    threading.stack_size(_STACK)
    thread = threading.Thread(target=_serve, args=(orders, answers, tokenizers))
    thread.start()
    thread.join()
    return 0


def _serve(orders: BinaryIO, answers: FileIO, tokenizers: dict[str, Any]) -> None:
    while True:
        try:
            order = json.loads(read_frame(orders))
        except EOFError:
            return
        write_frame(answers, json.dumps(_errors(order, tokenizers)).encode())


def _errors(order: Sequence[Any], tokenizers: dict[str, Any]) -> list[str | None]:
    controls, grammars = order
    if controls not in tokenizers:
        tokenizers[controls] = _tokenizer(**json.loads(controls))
    return [_error(tokenizers[controls], grammar) for grammar in grammars]


def _error(tokenizer: Any, grammar: str) -> str | None:
    """Compile a grammar and compute its first masks, for some limits show only there."""
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    for _ in range(4):
        if matcher.is_error():
            break
        matcher.compute_bitmask()
        tokens = matcher.compute_ff_tokens()
        if not tokens or not matcher.consume_tokens(tokens):
            break
    return matcher.get_error().partition("\n")[0] if matcher.is_error() else None


def _tokenizer(size: int, special: Mapping[str, str]) -> Any:
    """Returns a vocabulary of this size with these control tokens; the others are single bytes, or empty."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes(size, {int(token): text for token, text in special.items()})), size)


class _Bytes:
    def __init__(self, size: int, special: Mapping[int, str]) -> None:
        plain: Iterable[int] = (token for token in range(size) if token not in special)
        self._of_byte = [token for token, _ in zip(plain, range(256), strict=False)]
        self.tokens = [b""] * size
        for token, text in special.items():
            self.tokens[token] = text.encode()
        for byte, token in enumerate(self._of_byte):
            self.tokens[token] = bytes([byte])
        self.special_token_ids = list(special)
        self.bos_token_id = None
        self.eos_token_id = max(special, default=size - 1)

    def __call__(self, text: str | bytes) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [self._of_byte[byte] for byte in data if byte < len(self._of_byte)]
