"""What a suite found out about one case."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Suite: TypeAlias = Literal["forgery", "forms"]
Verdict: TypeAlias = Literal["text", "control token", "removed", "ok", "failed", "refused", "unknown"]

VERDICTS: Mapping[Suite, tuple[Verdict, ...]] = {
    "forgery": ("text", "control token", "removed", "refused", "unknown"),
    "forms": ("ok", "failed", "refused", "unknown"),
}
"""The verdicts of each suite, in the order of its table."""


@dataclass(frozen=True, slots=True)
class Record:
    """One case and its verdict. `case`: what was asked, by name; `why`: the reason in a sentence, if there is one to
    give."""

    suite: Suite
    case: Mapping[str, str]
    verdict: Verdict
    why: str = ""

    @property
    def failed(self) -> bool:
        """Whether the server is at fault. System text is the application's own, so its control tokens are only told."""
        forged = self.verdict == "control token" and self.case.get("place") != "system"
        return forged or self.verdict == "failed"

    def data(self) -> dict[str, Any]:
        """Returns the record as one flat JSON object."""
        return {"suite": self.suite, **self.case, "verdict": self.verdict, "why": self.why}
