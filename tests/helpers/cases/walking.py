"""Random walks through a grammar: texts that it accepts, drawn token by token as a model that knows nothing would, and
how such calls are read back."""

import math
import random
import re
from collections.abc import Sequence
from functools import cache

import numpy as np

from engine.formats.families import Format, builtin_families
from engine.formats.grammar.lark import GrammarText
from engine.formats.grammar.nodes import Rules
from engine.formats.grammar.turn_grammar import calls
from engine.formats.parsing import Parser
from engine.formats.template.generic import with_generic_tools
from engine.runtime.guidance.matcher import Compiler, Matcher, masks
from engine.types.completion import Completion
from engine.types.events import fold
from engine.types.tools import Tool

END = 256


class Bytes:
    """The vocabulary of all bytes, and an end token: markers are plain text in it."""

    size = 257

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return b"<end>" if token == END else bytes([token])

    def all_token_bytes(self) -> list[bytes]:
        return [self.token_bytes(token) for token in range(self.size)]

    def is_special(self, token: int) -> bool:
        return token == END

    is_end = is_special


@cache
def byte_compiler() -> Compiler:
    return Compiler(Bytes())


def as_text(marker: str) -> Sequence[str | int]:
    """Cuts markup for a vocabulary without control tokens."""
    return [marker] if marker else []


def allowed(matcher: Matcher) -> list[int]:
    """The tokens that the grammar allows next."""
    bits = np.unpackbits(masks([matcher])[0].view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def walk(grammar: str, rng: random.Random, longest: int = 4000) -> str | None:
    """One text that the grammar accepts; None where it grew too long."""
    matcher = byte_compiler().compiled(grammar)
    written: list[int] = []
    while len(written) < longest:
        written += matcher.forced()
        if matcher.is_over:
            return bytes(written).decode()
        choices = allowed(matcher)
        assert choices, matcher.error
        token = rng.choice(choices)
        if END in choices and (token == END or rng.random() < 0.3):
            return bytes(written).decode()
        assert matcher.consume(token), matcher.error
        written.append(token)
    return None


def grammar_of(format_: Format, tools: tuple[Tool, ...], most: int | None) -> str:
    """The grammar of at most so many calls of these tools."""
    rules = Rules()
    return GrammarText(as_text).text(calls(format_, tools, rules, most), rules.bodies)


def read_back(family: str, tools: tuple[Tool, ...], text: str) -> Completion:
    """What the parser reads in a text that must be calls."""
    format_ = with_generic_tools(builtin_families().get(family).format)
    parser = Parser(format_, tools=tools, tool_choice="required")
    return fold([*parser.feed(text), *parser.close()])


def unread(family: str, tools: tuple[Tool, ...], text: str) -> str | None:
    """Why a text that the grammar accepts is not read back as valid calls and nothing else; None if it is."""
    read = read_back(family, tools, text)
    if not read.tool_calls or read.content.strip() or read.reasoning:
        return f"calls {read.tool_calls}, content {read.content!r}, reasoning {read.reasoning!r}"
    return next(
        (f"{call.error}: {call.arguments}" for call in read.tool_calls if call.error and not overflows(call.arguments)),
        None,
    )


def overflows(arguments: str) -> bool:
    """Whether a number that no schema bounds, in arguments nobody declared, is too large for any tool to take."""
    return any(math.isinf(float(number)) for number in re.findall(r"\d[\d.]*[eE]\+?\d+", arguments))
