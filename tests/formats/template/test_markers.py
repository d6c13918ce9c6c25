"""Where markers stand, and what of a text could become part of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.formats.template.markers import Markers, merged, overlaps
from engine.types.prompt import Span

KNOWN = ("<ab>", "<a", "ab>", "[b]", "a b", "<<")
TEXTS = st.text(alphabet="<ab>[] ", max_size=8)


def covered(spans: list[Span]) -> set[int]:
    return {position for span in spans for position in range(*span)}


def completable(text: str) -> set[int]:
    """The positions that some marker covers when it is laid anywhere over the text, or over the text less the white
    space around it, and agrees with it wherever they overlap: the slow way."""
    found: set[int] = set()
    bare = text.strip()
    for part, start in ((text, 0), (bare, len(text) - len(text.lstrip()))):
        for marker in KNOWN:
            for offset in range(1 - len(marker), len(part)):
                over = range(max(offset, 0), min(offset + len(marker), len(part)))
                if all(part[position] == marker[position - offset] for position in over):
                    found.update(start + position for position in over)
    return found


@given(TEXTS)
def test_what_a_template_could_complete(text: str) -> None:
    assert covered(Markers(KNOWN).reach(text)) == completable(text)


@given(TEXTS)
def test_every_way_of_completing_is_a_span_of_its_own(text: str) -> None:
    """Whoever spares some characters of one must see what else could have been completed."""
    parts = {text[start:end] for start, end in Markers(KNOWN).reach(text)}
    for marker in KNOWN:
        for length in range(1, len(marker)):
            if text.endswith(marker[:length]) or text.strip().endswith(marker[:length]):
                assert marker[:length] in parts
            if text.startswith(marker[length:]) or text.strip().startswith(marker[length:]):
                assert marker[length:] in parts


def test_the_longest_stands_where_several_do() -> None:
    markers = Markers(["<a>", "<a", "<a>>", ">>"])
    assert markers.spans("x<a>><a") == [Span(1, 5), Span(3, 5), Span(5, 7)]
    assert markers.counted("<a>><a<a", [Span(4, 6)]) == {"<a>>": 1, ">>": 1, "<a": 1}
    assert Markers(["<a", "<ab"]).spans("<a") == [Span(0, 2)], "no marker reaches beyond the text"


def test_white_space_and_single_characters_are_no_markers() -> None:
    assert Markers(["\n\n", "<", "▁", ""]).spans("<\n\n▁<") == []
    assert Markers(()).reach("<a>") == []


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("<|eot_id|> [/INST] <｜User｜> if a < b: x[0]", [Span(0, 10), Span(11, 18), Span(19, 27)]),
        ("<b> [1] [a] <\n> <" + "x" * 90 + ">", [Span(0, 3)]),
    ],
)
def test_without_a_vocabulary_looks_decide(text: str, spans: list[Span]) -> None:
    assert Markers(None).spans(text) == spans


def test_spans() -> None:
    assert merged([Span(4, 6), Span(0, 2), Span(2, 3), Span(5, 9)]) == [Span(0, 3), Span(4, 9)]
    others = [Span(2, 4), Span(6, 8)]
    found = [overlaps(Span(start, start + 1), others) for start in range(10)]
    assert found == [start in (2, 3, 6, 7) for start in range(10)]
    assert not overlaps(Span(0, 5), [])
