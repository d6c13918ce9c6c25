"""Which orders are sent when, and which are sent again after a death."""

from engine.isolated.pending import PendingRequest, PendingRequests


def ledger_of(*ids: int) -> PendingRequests:
    ledger = PendingRequests()
    for id_ in ids:
        ledger.add(PendingRequest(id_, f"order {id_}"))
    return ledger


def due(ledger: PendingRequests) -> list[int]:
    return [owed.id for owed in ledger.due()]


def test_orders_are_sent_at_once() -> None:
    ledger = ledger_of(1, 2)
    assert due(ledger) == [1, 2]
    ledger.add(PendingRequest(3, "order 3"))
    assert due(ledger) == [3]
    assert due(ledger) == []


def test_after_a_death_each_waits_for_the_one_before() -> None:
    ledger = ledger_of(1, 2, 3)
    due(ledger)
    assert list(ledger.death()) == []
    ledger.add(PendingRequest(4, "order 4"))
    for id_ in (1, 2, 3):
        assert due(ledger) == [id_]
        assert due(ledger) == []
        ledger.end(id_)
    ledger.add(PendingRequest(5, "order 5"))
    assert due(ledger) == [4, 5], "together again"


def test_what_was_shown_or_cancelled_is_not_sent_again() -> None:
    ledger = ledger_of(1, 2, 3)
    for owed, name in zip(ledger.due(), ("is_shown", "is_cancelled", "told"), strict=True):
        setattr(owed, name, True)
    assert [owed.id for owed in ledger.death()] == [1, 2]
    assert due(ledger) == [3]
    assert ledger.get(1) is None


def test_one_that_kills_alone_is_not_sent_a_third_time() -> None:
    ledger = ledger_of(1, 2)
    due(ledger)
    ledger.death()
    assert due(ledger) == [1]
    assert [owed.id for owed in ledger.death()] == [1]
    assert due(ledger) == [2]
    ledger.end(2)
    assert len(ledger) == 0


def test_deaths_keep_the_order() -> None:
    ledger = ledger_of(1, 2, 3)
    due(ledger)
    ledger.death()
    ledger.add(PendingRequest(4, "order 4"))
    ledger.death()  # before anything was sent again
    assert due(ledger) == [1]
    ledger.end(1)
    assert due(ledger) == [2]


def test_cancelled_orders_that_wait_are_withdrawn() -> None:
    ledger = ledger_of(1, 2)
    due(ledger)
    ledger.death()
    due(ledger)
    ledger.add(PendingRequest(3, "order 3"))
    for id_ in (1, 2, 3):
        owed = ledger.get(id_)
        assert owed is not None
        owed.is_cancelled = True
    assert [owed.id for owed in ledger.withdrawn()] == [2, 3]
    assert [owed.id for owed in ledger.clear()] == [1]
    assert len(ledger) == 0
