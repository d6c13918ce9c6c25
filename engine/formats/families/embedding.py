"""What embedding models want before queries and documents: the tables [embedding.<name>] of models.toml."""

import re
import tomllib
from functools import cache
from typing import NamedTuple

from engine.support import _data

_BETWEEN = re.compile(r"[\s_./:]+")


class Prefixes(NamedTuple):
    """The texts before a query and before a document."""

    query: str
    document: str


@cache
def _known() -> tuple[tuple[str, Prefixes], ...]:
    tables = tomllib.loads(_data.models_toml().read_text(encoding="utf-8"))["embedding"]
    return tuple(
        (name, Prefixes(table["query"], table["document"])) for table in tables.values() for name in table["names"]
    )


def prefixes(*names: str) -> Prefixes | None:
    """Returns the prefixes of the model with one of these names (as a file says it, or of the file); None if they are
    not known. The longest known name that is part of one decides."""
    spelt = [_BETWEEN.sub("-", name.lower()) for name in names]
    fitting = [(len(known), texts) for known, texts in _known() if any(known in name for name in spelt)]
    return max(fitting)[1] if fitting else None
