"""JSON Schemas made ready for the grammar: what it can hold, what is checked afterwards, what is refused.

Knows: the keywords of JSON Schema and which of them llguidance holds. Does not know: llguidance's own calls, tools.
"""

from collections.abc import Mapping
from typing import Any

GUIDANCE: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""White space in the arguments of calls: one blank at most, behind a comma or a colon, so that most text is forced."""


def with_root(schema: Mapping[str, Any], root: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The schema with the definitions that its references mean."""
    if root is None or root is schema:
        return schema
    return {**{key: root[key] for key in ("$defs", "definitions") if key in root}, **schema}
