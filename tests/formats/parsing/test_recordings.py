"""The parser's promises on real outputs of the built-in model (tests/recordings.json), whatever they say."""

import random
from itertools import pairwise

import pytest
from cases.parsing_cases import check_order
from cases.recordings import FAMILIES, TOOLS, Recording, load

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.formats.template.prompt import joined
from engine.types.events import Event, fold
from engine.types.prompt import Piece

RECORDINGS = load()
each = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda item: f"{item['family']}: {item['question']}")


def _parser(recording: Recording, *, trace: bool = False) -> Parser:
    control = frozenset(builtin_families().get(recording["family"]).format.control)
    prefix = [Piece(*piece) for piece in recording["prefix"]]
    tools = TOOLS if recording["tools"] else None
    return Parser(recording["family"], prefix, tools=tools, control_tokens=control, trace=trace)


def _events(parser: Parser, pieces: list[Piece]) -> list[Event]:
    return [*(event for piece in pieces for event in parser.feed(piece.text, piece.special)), *parser.close()]


def test_every_format_was_recorded() -> None:
    assert {recording["family"] for recording in RECORDINGS} == set(FAMILIES)
    called = {recording["family"] for recording in RECORDINGS if fold(_recorded(recording)).tool_calls}
    assert called == set(FAMILIES)


def _recorded(recording: Recording) -> list[Event]:
    return _events(_parser(recording), [Piece(*piece) for piece in recording["pieces"]])


@each
def test_any_chunking_gives_the_same_and_nothing_is_lost_or_retracted(recording: Recording) -> None:
    pieces = [Piece(*piece) for piece in recording["pieces"]]
    expected = _recorded(recording)
    check_order(expected)
    for seed in range(6):
        parser = _parser(recording, trace=True)
        events = _events(parser, _rechunked(pieces, seed))
        check_order(events)
        assert fold(events) == fold(expected)
        assert "".join(segment.text for segment in parser.trace) == "".join(piece.text for piece in pieces)
        assert all(a.kind != b.kind for a, b in pairwise(parser.trace))


@each
def test_no_marker_that_acted_is_shown(recording: Recording) -> None:
    completion = fold(_recorded(recording))
    for marker in builtin_families().get(recording["family"]).format.control:
        assert marker not in completion.content
        assert marker not in completion.reasoning


def _rechunked(pieces: list[Piece], seed: int) -> list[Piece]:
    """The same text in other pieces: ordinary text joined (seed 0), a character each (1), cut at random; control tokens
    stay whole."""
    source = random.Random(seed)
    chunks: list[Piece] = []
    for text, special, _ in joined(pieces):
        size = len(text) if special or seed == 0 else 1
        at = 0
        while at < len(text):
            step = size if seed < 2 or special else source.randint(1, 9)
            chunks.append(Piece(text[at : at + step], special))
            at += step
    return chunks
