"""What writing a grammar asks of the library that will enforce it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.types.answer_formats import GBNF, Lark, Regex


class Enforcer(Protocol):
    """Says what grammars can hold; `engine.runtime.guidance.matcher` is one."""

    def refusal(self, schemas: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Returns for each JSON Schema why no grammar can be made of it; None if one can."""
        ...

    def regex_refusal(self, pattern: str) -> str | None:
        """Returns why a regular expression cannot be enforced; None if it can."""
        ...

    def grammar_of(self, given: Regex | Lark | GBNF) -> str:
        """Returns a caller's grammar in llguidance's Lark. Raises RequestError for one that cannot be read."""
        ...

    def accepts(self, lark: str, text: str) -> bool:
        """Whether a grammar, which has been checked, matches the whole text."""
        ...
