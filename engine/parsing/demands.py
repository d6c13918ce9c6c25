"""What the caller asked of a turn, as far as it changes how the output is read.

Knows: the choices. Does not know: their enforcement (constraints), which is another room's.
"""

from dataclasses import dataclass

from engine.types import ToolChoice


@dataclass(frozen=True, slots=True)
class Demands:
    """`choice` is the tool choice; `json`: the answer is to be JSON, so a code fence around it is no part of it."""

    choice: ToolChoice = "auto"
    json: bool = False

    @property
    def calls(self) -> bool:
        """Whether call markup is markup; else it is content."""
        return self.choice != "none"

    @property
    def demanded(self) -> bool:
        """Whether a call is the only answer left."""
        return self.choice not in ("auto", "none")
