"""The texts that models take for control tokens, from what is known of the families and from what a server tells."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import cast

from engine.formats.families import Family, builtin_families
from engine.formats.template.markers import Markers

_USUAL = 24
_BY_LOOKS = Markers(None)


def family_markers() -> Counter[str]:
    """Returns the markers of all families, each with the number of families that have it."""
    families = builtin_families()
    return Counter(text for name in families.names() for text in _of(families.get(name)))


def markers_of(markup: str) -> tuple[str, ...]:
    """Returns the markers to try: those in a server's own template, those of its family, and the usual ones."""
    own = dict.fromkeys(_in(markup))
    family = builtin_families().detect(markup).family if markup else None
    usual = [text for text, _ in family_markers().most_common(_USUAL)]
    return tuple(dict.fromkeys([*own, *(sorted(_of(family)) if family else ()), *usual]))


def _of(family: Family) -> set[str]:
    return {marker for text in _texts(family.format.model_dump()) for marker in _in(text)}


def _in(text: str) -> Iterable[str]:
    """Yields the markers in a text. What a template computes, between braces, is none."""
    found = (text[span.start : span.end] for span in _BY_LOOKS.spans(text))
    return (marker for marker in found if not {"{", "}", "'", '"', " "} & set(marker))


def _texts(node: object) -> Iterable[str]:
    if isinstance(node, str):
        yield node
    inner: Iterable[object] = ()
    if isinstance(node, Mapping):
        inner = cast("Mapping[str, object]", node).values()
    elif isinstance(node, list | tuple):
        inner = cast("Iterable[object]", node)
    for each in inner:
        yield from _texts(each)
