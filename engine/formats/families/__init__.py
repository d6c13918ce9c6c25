"""Model families as data: models.toml as frozen records, and which family a model belongs to.

`schema` has the records, `table` reads files of them, `detect` recognises a family, `response_template` converts what a
model's author states.
"""

from engine.formats.families.detect import Detection, Families, FamilyLike, builtin_families, for_vocabulary
from engine.formats.families.response_template import ResponseTemplate, ResponseTemplateLike
from engine.formats.families.schema import (
    REASONING_FIELDS,
    ChannelSyntax,
    Detect,
    DictionarySyntax,
    Family,
    Format,
    Gate,
    History,
    JsonSyntax,
    MarkedSyntax,
    NestedSyntax,
    PythonicSyntax,
    ReasoningSyntax,
    Shape,
    TaggedArgumentsSyntax,
    TaggedJsonSyntax,
    ToolSyntax,
    WholeSyntax,
)

__all__ = [
    "REASONING_FIELDS",
    "ChannelSyntax",
    "Detect",
    "Detection",
    "DictionarySyntax",
    "Families",
    "Family",
    "FamilyLike",
    "Format",
    "Gate",
    "History",
    "JsonSyntax",
    "MarkedSyntax",
    "NestedSyntax",
    "PythonicSyntax",
    "ReasoningSyntax",
    "ResponseTemplate",
    "ResponseTemplateLike",
    "Shape",
    "TaggedArgumentsSyntax",
    "TaggedJsonSyntax",
    "ToolSyntax",
    "WholeSyntax",
    "builtin_families",
    "for_vocabulary",
]
