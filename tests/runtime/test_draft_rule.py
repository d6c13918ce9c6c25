"""engine.runtime.draft.draft_rule: as many guesses as promise the most tokens per second, none where none pay."""

import pytest

from engine.runtime.draft.draft_rule import DraftRecord, DraftRule, MeanCost

SIZES = range(1, 9)


def measured(
    rule: DraftRule, *, base: float = 1.0, row: float = 0.0, sequences: int = 1, guesses: int = 0
) -> DraftRule:
    """The rule, after decodes of one sequence set that took `base` seconds, and `row` more for each row."""
    for _ in range(5):
        rule.decoded(sequences, base + row * sequences)
    for _ in range(guesses):
        rule.decoded(sequences * 9, base + row * sequences * 9)
    return rule


def test_nothing_is_guessed_before_decodes_are_measured() -> None:
    rule, record = DraftRule(SIZES, 64), DraftRecord()
    for _ in range(4):
        assert rule.size(record, 8, 1, 0.0) == 0
        rule.decoded(1, 1.0)
    assert rule.size(record, 8, 1, 0.0) == 8
    assert record.undrafted == 0, "measuring is no pause"


def test_a_draft_is_as_long_as_there_is_room() -> None:
    rule = measured(DraftRule(SIZES, 64))
    assert [rule.size(DraftRecord(), room, 1, 0.0) for room in (-1, 0, 1, 5, 8, 100)] == [0, 0, 1, 5, 8, 8]
    assert measured(DraftRule([1, 3, 7], 64)).size(DraftRecord(), 6, 1, 0.0) == 3


@pytest.mark.parametrize(
    ("chance", "row", "cost", "size"),
    [
        (1.0, 0.0, 0.0, 8),  # right and free
        (1.0, 0.1, 0.1, 8),  # right and cheap
        (0.5, 0.0, 0.1, 2),  # each further guess is half as likely
        (0.5, 0.1, 0.3, 1),
        (1.0, 0.0, 1.1, 0),  # the draft model is as slow as the model
        (0.1, 0.1, 0.1, 0),  # mostly wrong
    ],
)
def test_the_size_weighs_what_guesses_yield_against_what_they_take(
    chance: float, row: float, cost: float, size: int
) -> None:
    rule, record = measured(DraftRule(SIZES, 64), row=row, guesses=5), DraftRecord()
    record.right, record.tested = 1000 * chance, 1000.0
    assert rule.size(record, 8, 1, cost) == size


def test_rows_of_many_sequences_count_together() -> None:
    alone, crowded = (measured(DraftRule(SIZES, 64), row=0.05, sequences=n, guesses=5) for n in (1, 16))
    record = DraftRecord()
    record.right, record.tested = 700.0, 1000.0
    assert alone.size(record, 8, 1, 0.0) > crowded.size(record, 8, 16, 0.0) > 0


def test_where_guesses_do_not_pay_pauses_grow_up_to_the_longest() -> None:
    rule, record = measured(DraftRule(SIZES, 16), row=0.2, guesses=5), DraftRecord()
    pauses: list[int] = []
    for _ in range(7):
        pause = 0
        while not (size := rule.size(record, 8, 1, 0.0)):
            pause += 1
        rule.judged(record, size, 0)
        pauses.append(pause)
    assert pauses == [0, 0, 4, 8, 16, 16, 16]
    assert record.accepted == 0
    assert record.undrafted == sum(pauses)


def test_a_try_that_is_right_ends_the_pauses() -> None:
    rule, record = measured(DraftRule(SIZES, 64), row=0.01, guesses=5), DraftRecord()
    for _ in range(20):
        if size := rule.size(record, 8, 1, 0.1):
            rule.judged(record, size, 0)
    assert rule.size(record, 8, 1, 0.1) == 0
    for _ in range(200):
        if size := rule.size(record, 8, 1, 0.1):
            rule.judged(record, size, size)
    assert rule.size(record, 8, 1, 0.1) == 8


def test_a_new_sequence_begins_with_what_others_came_to() -> None:
    rule, record = measured(DraftRule(SIZES, 1024), row=0.2, guesses=5), DraftRecord()
    for _ in range(400):
        if size := rule.size(record, 8, 1, 0.0):
            rule.judged(record, size, 0)
    new = DraftRecord()
    assert [rule.size(new, 8, 1, 0.0) for _ in range(100)] == [0] * 100


def test_a_row_is_measured_against_decodes_without_guesses_from_time_to_time() -> None:
    rule, record, drafted = measured(DraftRule(SIZES, 64)), DraftRecord(), 0
    for _ in range(1000):
        size = rule.size(record, 8, 1, 0.0)
        if size:
            rule.judged(record, size, size)
        drafted += bool(size)
        rule.decoded(1 + size, 1.0)
    assert 950 < drafted < 1000


def test_one_slow_decode_does_not_count_in_full() -> None:
    rule, cost = measured(DraftRule(SIZES, 64), row=0.01, guesses=5), MeanCost()
    record = DraftRecord()
    before = rule.size(record, 8, 1, 0.1)
    rule.decoded(9, 1000.0)
    assert abs(rule.size(record, 8, 1, 0.1) - before) <= 3
    for seconds in (1.0, 1.0, 1.0, 1000.0):
        cost.add(seconds)
    assert cost.seconds == pytest.approx(1.75)
