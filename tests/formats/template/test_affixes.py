"""Beginnings and endings of texts, as sets of them all would tell, in memory that grows with the texts."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from engine.formats.template.affixes import Beginnings, Endings
from engine.formats.template.markers import Markers
from engine.types.prompt import Span

TEXTS = st.lists(st.text(alphabet="<|ab>é", max_size=6), max_size=8)


@given(TEXTS, st.text(alphabet="<|ab>é", max_size=6))
def test_they_tell_what_sets_of_them_all_would(texts: list[str], text: str) -> None:
    beginnings = {each[:length] for each in texts for length in range(1, len(each))}
    endings = {each[length:] for each in texts for length in range(1, len(each))}
    for asked in (text, *beginnings, *endings, *texts):
        assert (asked in Beginnings(texts)) == (asked in beginnings)
        assert (asked in Endings(texts)) == (asked in endings)


def test_a_marker_of_60_kilobytes_takes_memory_in_proportion() -> None:
    """It took 3.5 GB."""
    tracemalloc.start()
    markers = Markers(["<|im_end|>", "<" + "x" * 60_000 + ">"])
    assert Span(7, 12) in markers.reach("and so <|im_")
    assert not markers.reach("and so on")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
