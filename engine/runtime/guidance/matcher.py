"""Enforces grammars: the vocabulary's table, compiled grammars, matchers. The only importer of llguidance."""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, partial
from time import thread_time
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from engine.runtime.guidance.json_text import JsonPlace
from engine.runtime.guidance.numbers import Digits
from engine.runtime.guidance.trial import Verdict, check_repetitions, limits, refusals, tried
from engine.runtime.guidance.vocabulary import Vocabulary, VocabularyTokens, llguidance
from engine.support.errors import RequestError
from engine.types.answer_formats import GBNF, Lark, Regex

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Mask: TypeAlias = NDArray[np.int32]
    TokenIds: TypeAlias = NDArray[np.intp]
else:
    Mask: TypeAlias = Any
    TokenIds: TypeAlias = Any
"""One bit per token, whether it may come next; token 0 is the lowest bit of the first number."""
_EMPTY_ROOT = re.compile(r"^[ \t]*root\s*::=(?:\s|#[^\n]*)*(?:[\w-]+\s*::=|\Z)", re.MULTILINE)
_GBNF_WORD = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|[\w-]+', re.DOTALL)
"""A text, a set of characters, a comment or a name in GBNF. The rule `start` is renamed, for Lark begins there."""
_GBNF_ESCAPE = re.compile(r"\\(?:(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|.)", re.DOTALL)
_TO_QUOTE = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL)
_KEY = re.compile(rb'[ \t\r\n]*"((?:[^"\\]|\\.)*)"', re.DOTALL)
_KEY_BEHIND_COMMA = re.compile(rb"," + _KEY.pattern, re.DOTALL)
MOST_VALUES = 32
"""Of more texts that a schema leaves none is weighed as a whole."""
_SLOW = 0.05
"""Seconds of this thread's processor time that a token may take; the largest schemas take a thousandth of a second. A
mask takes up to ten times as long as its token."""
_SLOW_TOKENS = 3
"""In a row, before a grammar counts as too ambiguous: one alone is a machine that was busy."""
MOST_GRAMMARS = 64
MOST_BYTES = 256 << 20
"""The most compiled grammars that are cached for one vocabulary, and the most bytes that they take together."""
_EACH_CHARACTER = 300
"""Bytes that a character of a grammar takes compiled, at most: so much is counted for one that no trial measured."""


class Tokens(VocabularyTokens, Protocol):
    """What constraints need of a model's tokens."""

    def tokenize(self, text: str, *, special: bool) -> list[int]: ...
    def token_bytes(self, token: int) -> bytes: ...


class Matcher:
    """One turn's position in a grammar. Used by one thread at a time."""

    __slots__ = ("_digits", "_inner", "_place", "_slow", "_table", "json")

    def __init__(self, inner: Any, table: "Table", digits: Digits | None = None) -> None:
        self._inner = inner
        self._table = table
        self._slow = 0
        self._digits = digits
        self._place: JsonPlace | None = None  # of what was consumed, once something was
        self.json: JsonPlace | None = None
        """Set for an answer that is one JSON text: its place there, so that no key is written twice."""

    def consume(self, token: int) -> bool:
        """Advance by a token. Returns False, and changes nothing, if the grammar does not allow it. Raises RequestError
        if that takes too long: in an ambiguous grammar each token takes longer than the one before."""
        began = thread_time()
        taken = self._inner.try_consume_tokens([token]) == 1
        self._slow = self._slow + 1 if thread_time() - began > _SLOW else 0
        if self._slow == _SLOW_TOKENS:
            raise RequestError(
                "The constraint cannot be held any further: its grammar is so ambiguous that a token takes over "
                f"{_SLOW * 1e3:.0f} ms. Simplify it."
            )
        if taken:
            self._took([token])
        return taken

    def _took(self, tokens: Sequence[int]) -> None:
        if self._digits is None:
            return
        for token in tokens:
            data = self._table.bytes[token]
            self._digits.feed(data)
            if token not in self._table.marks.numbers:
                self._place = self._place or JsonPlace()
                self._place.feed(data)
                if self.json is not None:
                    self.json.feed(data)

    def consume_text(self, text: str) -> bool:
        """Advance by plain text, however it is tokenized. Returns False, and changes nothing, if the grammar does not
        allow it."""
        tokens = self._table.tokens(text)
        if self._inner.validate_tokens(tokens) < len(tokens):
            return False
        self._took(tokens)
        return not tokens or self._inner.consume_tokens(tokens)

    def allowed(self, tokens: Sequence[int]) -> Sequence[int]:
        """Returns the first of these tokens, as far as they may follow one another. Changes nothing."""
        return tokens[: self._inner.validate_tokens(list(tokens))]

    def forced(self) -> list[int]:
        """Consume and return the tokens that must follow, as far as the same text has no other tokenization."""
        tokens: list[int] = self._inner.compute_ff_tokens()
        if self.error or (tokens and not self._inner.consume_tokens(tokens)):
            raise RequestError(f"The constraint cannot be held any further: {self.error}. Simplify it.")
        self._took(tokens)
        return tokens

    @property
    def number_must_end(self) -> bool:
        """Whether a number in JSON has as many digits here as it may have, and could end. Not so for digits in a text,
        which a quote may follow."""
        if self._digits is None or not self._digits.are_many:
            return False
        follows, table = self._inner.validate_tokens, self._table
        return not follows(table.quote) and (self.accepts or any(map(follows, table.behind_number)))

    @property
    def ends(self) -> "TokenIds | None":
        """The tokens that end the text or the number at hand in a JSON answer, allowed or not; None elsewhere."""
        if self.json is None or self._digits is None:
            return None
        if self.json.in_string:
            return None if self.json.escaped else self._table.behind_text
        return self._table.behind_digit if self._digits.follows_digit else None

    @property
    def opening(self) -> int | None:
        """The token that writes only what must follow here, or its beginning: no more, as a token that goes on in its
        own way. None where nothing must, and where a JSON answer begins: its first token chooses its layout."""
        if self.json is not None and not self.json.is_open:
            return None
        return next(iter(self._table.inner.tokenize_bytes(self._inner.compute_ff_bytes())), None)

    @property
    def opens_text(self) -> bool:
        """Whether the last byte opened a text of JSON that is no key."""
        return self._place is not None and self._place.begins_text

    @property
    def values(self) -> list[list[int]]:
        """The few texts that a schema leaves where a text opens, each as its tokens with the quote behind it: an enum,
        a tool's name. Empty elsewhere, and where there are more than a few."""
        if not self.opens_text:
            return []
        found, todo = list[bytes](), [(self.copy(), b"")]
        while todo:
            at, text = todo.pop()
            forced = at.inner.compute_ff_bytes()
            if (end := _TO_QUOTE.match(forced)) is not None:
                found.append(text + end[0])
                continue
            if forced and not at.inner.consume_tokens(self._table.inner.tokenize_bytes(forced)):
                return []
            follows = [token for token in self._table.single_bytes if at.allowed([token])]
            if not follows or len(found) + len(todo) + len(follows) > MOST_VALUES:
                return []
            for token in follows:
                then = at.copy()
                data = self._table.bytes[token]
                if data == b'"':
                    found.append(text + forced + data)
                elif then.inner.consume_tokens([token]):
                    todo.append((then, text + forced + data))
        return [self._table.inner.tokenize_bytes(text) for text in found] if len(found) > 1 else []

    @property
    def accepts(self) -> bool:
        """Whether the text so far is complete."""
        return self._inner.is_accepting()

    @property
    def is_over(self) -> bool:
        """Whether the text is complete, and nothing can follow. Raises RequestError like `check`."""
        self.check()
        return self._inner.is_stopped()

    def check(self) -> None:
        """Raise RequestError if nothing can follow although the text is not complete."""
        if self._inner.is_stopped() and (self.error or not self.accepts):
            why = self.error or "its grammar allows nothing after the text so far, which is not complete"
            raise RequestError(f"The constraint cannot be held any further: {why}. Simplify its schema or grammar.")

    @property
    def error(self) -> str:
        """Why it cannot continue (the grammar is too complex); "" if it can."""
        return self._inner.get_error().partition("\n")[0] if self._inner.is_error() else ""

    def copy(self) -> "Matcher":
        """Returns an independent matcher at the same position."""
        other = Matcher(self._inner.deep_copy(), self._table, self._digits and self._digits.copy())
        other._place = self._place and self._place.copy()
        other.json = self.json and self.json.copy()
        return other

    @property
    def doubling(self) -> list[int]:
        """The tokens that would end a key as one that its object has already."""
        place, table = self.json, self._table
        if place is None:
            return []
        found = [token for end in place.taken() for token in table.quoted.get(end, ())]
        found += (token for key in place.known for token in table.keys.get(key, ()))
        return found + [token for token in table.behind_comma if place.doubles(table.bytes[token])]

    @property
    def table(self) -> "Table":
        """The vocabulary's table."""
        return self._table

    @property
    def inner(self) -> Any:
        """llguidance's own object."""
        return self._inner


class Table:
    """A vocabulary as llguidance needs it.

    Making one takes a second for 150,000 tokens, during which no other Python thread runs; so it is made once per
    model, for the first constraint.
    """

    def __init__(self, tokens: Tokens) -> None:
        vocabulary = Vocabulary.of(tokens)
        self.size = tokens.size
        self.bytes = vocabulary.tokens
        self.ends = [token for token in range(tokens.size) if tokens.is_end(token)]
        self.marks = Marks(tokens)
        self.inner = vocabulary.tokenizer(partial(tokens.tokenize, special=False))

    def tokens(self, text: str) -> list[int]:
        """Tokenize plain text."""
        return self.inner.tokenize_bytes(text.encode("utf-8", "replace"))

    def marked(self, text: str) -> list[int]:
        """Tokenize a text, with the texts of control tokens as control tokens."""
        parts = self.marks.cut(text)
        return [token for part in parts for token in ([part] if isinstance(part, int) else self.tokens(part))]

    @cached_property
    def end_bits(self) -> "NDArray[np.int32]":
        """The end tokens as a row of bits."""
        import numpy as np

        bits = np.zeros(self.words * 32, dtype=np.uint8)
        bits[self.ends] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    @cached_property
    def quote(self) -> list[int]:
        """The token that ends a text in JSON."""
        return self.tokens('"')

    @cached_property
    def quoted(self) -> dict[bytes, list[int]]:
        """The tokens that hold a quote, by their bytes up to it."""
        found: dict[bytes, list[int]] = {}
        for token, data in enumerate(self.bytes):
            if match := _TO_QUOTE.match(data):
                found.setdefault(match[0], []).append(token)
        return found

    @cached_property
    def keys(self) -> dict[bytes, list[int]]:
        """The tokens that begin with a whole key, by that key."""
        found: dict[bytes, list[int]] = {}
        for token, data in enumerate(self.bytes):
            if match := _KEY.match(data):
                found.setdefault(match[1], []).append(token)
        return found

    @cached_property
    def behind_comma(self) -> list[int]:
        """The tokens that hold a whole key behind a comma."""
        return [token for token, data in enumerate(self.bytes) if _KEY_BEHIND_COMMA.search(data)]

    @cached_property
    def single_bytes(self) -> list[int]:
        """The tokens of one byte, letters first: what may stand in most texts."""
        marked = self.marks.numbers
        single = [token for token, data in enumerate(self.bytes) if len(data) == 1 and token not in marked]
        return sorted(single, key=lambda token: (not self.bytes[token].isalnum(), self.bytes[token]))

    @cached_property
    def behind_text(self) -> "TokenIds":
        """The tokens that begin with the quote that ends a text in JSON."""
        return self._beginning(b'"')

    @cached_property
    def behind_digit(self) -> "TokenIds":
        """The tokens that begin with what may stand behind a number in JSON."""
        return self._beginning(b",]} \t\r\n")

    def _beginning(self, first: bytes) -> "TokenIds":
        import numpy as np

        marked = self.marks.numbers
        found = (token for token, data in enumerate(self.bytes) if data and data[0] in first and token not in marked)
        return np.fromiter(found, dtype=np.intp)

    @cached_property
    def behind_number(self) -> list[list[int]]:
        """Tokens that may follow a number in JSON."""
        return [self.tokens(text) for text in (",", "}", "]", "\n", " ")]

    @cached_property
    def no_digit_bits(self) -> "NDArray[np.int32]":
        """The tokens that do not begin with a digit as a row of bits."""
        import numpy as np

        bits = np.zeros(self.words * 32, dtype=np.uint8)
        bits[[number for number, data in enumerate(self.bytes) if not data[:1].isdigit()]] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    @property
    def words(self) -> int:
        """The number of 32-bit integers in a row of one bit per token."""
        return (self.size + 31) // 32


class Marks:
    """The control tokens of a vocabulary, by their texts."""

    def __init__(self, tokens: Tokens) -> None:
        self.numbers = frozenset(filter(tokens.is_special, range(tokens.size)))
        self.tokens: dict[str, int] = {}
        for token in sorted(self.numbers):
            self.tokens.setdefault(tokens.token_bytes(token).decode(errors="replace"), token)
        longest_first = sorted(self.tokens, key=len, reverse=True)
        self._pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None

    def cut(self, text: str) -> list[str | int]:
        """Cut a text into plain parts and these tokens."""
        parts = self._pattern.split(text) if self._pattern is not None else [text]
        return [self.tokens.get(part, part) for part in parts if part]


class Compiler:
    """Compiles grammars for one vocabulary and caches the most recently used. Thread-safe."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Matcher, int]] = OrderedDict()
        self._room = MOST_BYTES

    @cached_property
    def table(self) -> Table:
        """The vocabulary's table."""
        return Table(self._tokens)

    def compiled(self, grammar: str, size: int = 0) -> Matcher:
        """Returns a matcher at the beginning of a grammar. `size`: the bytes that it takes, as its trial found. Raises
        RequestError if the grammar cannot be enforced."""
        with self._lock:
            known = self._kept.get(grammar)
            if known is not None:
                self._kept.move_to_end(grammar)
                return known[0].copy()
            table = self.table
        made = _compiled(table, grammar)
        with self._lock:
            if grammar not in self._kept:
                taken = (size or _EACH_CHARACTER * len(grammar)) + len(grammar)
                self._kept[grammar] = made, taken
                self._room -= taken
            while len(self._kept) > MOST_GRAMMARS or (self._room < 0 and len(self._kept) > 1):
                self._room += self._kept.popitem(last=False)[1][1]
            return made.copy()


def _compiled(table: Table, grammar: str) -> Matcher:
    from llguidance import LLMatcher

    digits = Digits() if '"json_schema"' in grammar else None
    made = Matcher(LLMatcher(table.inner, grammar, log_level=0, limits=limits()), table, digits)
    first = made.copy()
    if not made.error:
        first.inner.compute_bitmask()  # some limits show only at the first token
    if why := made.error or first.error:
        raise _unheld(why)
    return made


def check(grammars: Sequence[str], vocabulary: Vocabulary) -> list[Verdict]:
    """Returns what trials found of grammars that can be enforced. Raises RequestError for one that cannot, or that is
    not compiled in time."""
    verdicts = tried(grammars, vocabulary)
    for verdict in verdicts:
        if verdict.why is not None:
            raise _unheld(verdict.why)
    return verdicts


def _unheld(why: str) -> RequestError:
    is_misspelt = why.startswith(("the pattern ", "line ", "no start rule"))
    remedy = "Correct it there" if is_misspelt else "Simplify its schema or grammar"
    return RequestError(f"The constraint cannot be enforced: {why}. {remedy}.")


def refusal(schemas: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Returns for each JSON Schema why no grammar can be made of it; None if one can. Raises RequestError if that takes
    too long."""
    return refusals([json.dumps({"grammars": [{"json_schema": dict(schema)}]}) for schema in schemas])


def regex_refusal(pattern: str) -> str | None:
    """Returns why a regular expression cannot be enforced; None if it can."""
    return refusals([llguidance().LLMatcher.grammar_from_regex(pattern)])[0]


def grammar_of(given: Regex | Lark | GBNF) -> str:
    """Returns a caller's grammar in llguidance's Lark. Raises RequestError for a GBNF grammar that cannot be read."""
    matcher = llguidance().LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    check_repetitions(given.pattern if isinstance(given, Regex) else given.grammar)
    match given:
        case Lark(grammar):
            return grammar
        case Regex(pattern):
            (made,) = json.loads(matcher.grammar_from_regex(pattern))["grammars"]
            return made["lark_grammar"]
        case GBNF(grammar):
            if _EMPTY_ROOT.search(grammar):
                raise RequestError(
                    "The GBNF grammar's rule `root` is empty, so no answer fits it. Write what it allows."
                )
            try:
                return gbnf_to_lark(_GBNF_WORD.sub(_gbnf_word, grammar))
            except Exception as error:
                why = str(error).partition("\n")[0]
                raise RequestError(f"The GBNF grammar cannot be read: {why}. Correct it there.") from error


def _gbnf_word(word: re.Match[str]) -> str:
    """Returns a word of GBNF as Lark has it: no rule of the name `start`, and llama.cpp's escapes as characters."""
    if word[0] == "start":
        return "start-0"
    quote = word[0][0]
    return _GBNF_ESCAPE.sub(lambda escape: _escaped(escape, quote), word[0]) if quote in '"[' else word[0]


def _escaped(escape: re.Match[str], quote: str) -> str:
    """Returns an escape in a text, or in a set of characters, as a character, escaped where it would mean something."""
    if escape[1]:
        char = chr(int(escape[1][1:], 16))
        short = {"\n": "n", "\r": "r", "\t": "t"}.get(char, char)
        if quote == "[" and char in "\\]^-[":
            return f"\\x{ord(char):02x}"
        return f"\\{short}" if short != char or (quote == '"' and char in '"\\') else char
    return escape[0][1] if quote == '"' and escape[0][1] in "[]" else escape[0]


def accepts(lark: str, text: str) -> bool:
    """Whether a grammar, which has been checked, matches the whole text. A grammar that names control tokens matches
    any, since a text holds none."""
    from llguidance import LLMatcher

    matcher = LLMatcher(_bytes(), LLMatcher.grammar_from_lark(lark), log_level=0, limits=limits())
    if matcher.is_error():
        return True
    tokens = _bytes().tokenize_bytes(text.encode("utf-8", "surrogatepass"))
    return (not tokens or matcher.consume_tokens(tokens)) and matcher.is_accepting()


@cache
def _bytes() -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def masks(matchers: Sequence[Matcher]) -> "Sequence[Mask]":
    """Returns for each matcher a row of bits: the tokens allowed next, including end tokens if its text is complete.

    Computed without the GIL, all in one call.
    """
    import numpy as np
    from llguidance.numpy import fill_next_token_bitmask_par

    table = matchers[0].table
    rows = np.zeros((len(matchers), table.words), dtype=np.int32)
    numbered = [(matcher.inner, number) for number, matcher in enumerate(matchers)]
    fill_next_token_bitmask_par(_executor(), numbered, rows)
    for number, matcher in enumerate(matchers):
        if matcher.accepts:
            rows[number] |= table.end_bits
        if matcher.number_must_end:
            rows[number] &= table.no_digit_bits
        if doubling := matcher.doubling:
            rows[number] = _without(rows[number], doubling)
    return list(rows)


def _without(row: "Mask", tokens: Sequence[int]) -> "Mask":
    """Returns the row without these tokens; as it was if nothing would be left."""
    import numpy as np

    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    bits[list(tokens)] = 0
    return np.packbits(bits, bitorder="little").view(np.int32) if bits.any() else row


_executors: list[Any] = []


def _executor() -> Any:
    from llguidance import LLExecutor

    if not _executors:
        _executors.append(LLExecutor())
    return _executors[0]
