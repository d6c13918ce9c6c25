"""Model families as data: models.toml as frozen records, and which family a model belongs to.

`schema` has the records, `table` reads files of them, `detect` recognises a model's family.
"""

from engine.families.detect import Detection, Families, FamilyLike, builtin_families, for_vocabulary
from engine.families.schema import (
    ChannelSyntax,
    Detect,
    Family,
    Format,
    Gate,
    History,
    ReasoningSyntax,
    Shape,
    ToolSyntax,
)

__all__ = [
    "ChannelSyntax",
    "Detect",
    "Detection",
    "Families",
    "Family",
    "FamilyLike",
    "Format",
    "Gate",
    "History",
    "ReasoningSyntax",
    "Shape",
    "ToolSyntax",
    "builtin_families",
    "for_vocabulary",
]
