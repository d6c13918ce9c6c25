"""engine.runtime.loop.scheduler: budgets, order, fairness; no model and no thread."""

import pytest
from fakes.doubles import plain
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.loop.backend import ContextInfo
from engine.runtime.loop.generation import Generation, Limits, TokenTable
from engine.runtime.loop.request import Request
from engine.runtime.loop.scheduler import Chunk, PrefillBudget, Scheduler, UnitPart
from engine.runtime.loop.sequence import SequenceState
from engine.runtime.media.media import ChunkAt, MediaChunk, row_tokens
from engine.testing.scripted import ByteVocab

VOCAB = ByteVocab()
TOKENS = TokenTable(VOCAB)


def scheduler_of(n_batch: int, *, rows: int | None = None, separate: bool = False) -> Scheduler:
    """`rows`: prompt rows of a step, for good."""
    info = ContextInfo(1000, n_batch=n_batch, n_outputs=n_batch, separate_prefill=separate)
    scheduler = Scheduler(info, 0.1)
    scheduler.budget.rows = scheduler.budget.alone = n_batch if rows is None else rows
    return scheduler


def waiting(length: int = 1, priority: int = 0, *, offline: bool = False) -> SequenceState:
    tokens = tuple(range(length))
    request = Request(0, tokens, plain, priority=priority, offline=offline)
    return SequenceState(request, Generation(TOKENS, plain(), Limits()), list(tokens))


def started(
    scheduler: Scheduler, length: int, sequence: int, evaluated: int = 0, priority: int = 0, *, offline: bool = False
) -> SequenceState:
    state = waiting(length, priority, offline=offline)
    scheduler.add(state)
    scheduler.start(state, sequence, evaluated)
    return state


def planned(scheduler: Scheduler) -> list[Chunk]:
    """The only batch of the next step."""
    batches = scheduler.plan()
    assert len(batches) <= 1
    return batches[0] if batches else []


def done(chunks: list[Chunk]) -> None:
    for chunk in chunks:
        chunk.state.evaluated = chunk.stop


def test_a_unit_that_was_begun_goes_on_first() -> None:
    """Its rows are in the memory, and counted as needed until it is there as a whole."""
    scheduler = scheduler_of(8, rows=8)
    unit = MediaChunk(bytes(32), 20, 20, True)
    request = Request(0, (1, *row_tokens(unit), 2), plain, media=(ChunkAt(1, unit),))
    state = SequenceState(request, Generation(TOKENS, plain(), Limits()), list(request.tokens), rows=[0])
    scheduler.add(state)
    scheduler.start(state, 0, 1)
    (chunk,) = planned(scheduler)
    assert (chunk.start, chunk.stop, chunk.part) == (1, 21, UnitPart(unit, 0, 8))
    state.begun = 8
    urgent = started(scheduler, 30, 1, priority=9)
    (chunk,) = planned(scheduler)
    assert chunk.part == UnitPart(unit, 8, 16)
    state.begun = 16
    texts, (chunk,) = scheduler.plan()
    assert [(each.state, each.stop) for each in texts] == [(urgent, 4)]
    assert chunk.part == UnitPart(unit, 16, 20)
    scheduler.preempt(state)
    assert state.begun == 0
    scheduler.start(state, 0, 1)
    state.rows = None
    assert [each.state for each in planned(scheduler)] == [urgent]
    assert not scheduler.waits
    scheduler.preempt(urgent)
    assert scheduler.waits
    assert planned(scheduler) == []


def test_nothing_to_do() -> None:
    scheduler = scheduler_of(8)
    assert planned(scheduler) == []
    scheduler.add(waiting())
    assert planned(scheduler) == []
    assert scheduler.victim() is None


def test_a_long_prompt_is_cut_into_chunks_with_output_at_its_end_only() -> None:
    scheduler = scheduler_of(4)
    state = started(scheduler, 10, sequence=2)
    seen: list[tuple[int, int, bool]] = []
    while state.pending:
        (chunk,) = planned(scheduler)
        seen.append((chunk.start, chunk.stop, chunk.output))
        done([chunk])
    assert seen == [(0, 4, False), (4, 8, False), (8, 10, True)]


def test_rows() -> None:
    state = started(scheduler_of(8), 3, 3)
    state.tokens[:] = [7, 8, 9]
    assert Chunk(state, 1, 3).rows() == [(8, 1, 3, False), (9, 2, 3, True)]
    assert Chunk(state, 0, 2).rows() == [(7, 0, 3, False), (8, 1, 3, False)]


def test_decodes_go_on_beside_a_long_prompt() -> None:
    scheduler = scheduler_of(6)
    long = started(scheduler, 100, 1)
    stream = started(scheduler, 5, 0, evaluated=4)
    chunks = planned(scheduler)
    assert chunks == [Chunk(stream, 4, 5), Chunk(long, 0, 5)]
    done(chunks)
    stream.tokens.append(5)
    assert planned(scheduler) == [Chunk(stream, 5, 6), Chunk(long, 5, 10)]


def test_the_budget_bounds_the_prefill() -> None:
    scheduler = scheduler_of(8)
    first, second = started(scheduler, 6, 1), started(scheduler, 6, 2)
    stream = started(scheduler, 1, 0)
    scheduler.budget.rows = 3
    assert planned(scheduler) == [Chunk(stream, 0, 1), Chunk(first, 0, 3)]
    scheduler.budget.rows = 8
    assert planned(scheduler) == [Chunk(stream, 0, 1), Chunk(first, 0, 6), Chunk(second, 0, 1)]


def test_while_no_answer_is_written_prompts_have_a_budget_of_their_own() -> None:
    scheduler = scheduler_of(64, rows=8)
    scheduler.budget.alone = 40
    prompt = started(scheduler, 60, 1)
    assert planned(scheduler) == [Chunk(prompt, 0, 40)]
    answer = started(scheduler, 5, 0, evaluated=4)
    assert planned(scheduler) == [Chunk(answer, 4, 5), Chunk(prompt, 0, 8)]


def test_first_come_first_served_within_a_priority() -> None:
    scheduler = scheduler_of(4)
    states = [waiting(1, priority) for priority in (0, 0, 5, 0, 5)]
    for state in states:
        scheduler.add(state)
    assert scheduler.waiting == (states[2], states[4], states[0], states[1], states[3])


def test_preempted_keeps_its_place_and_starts_over() -> None:
    scheduler = scheduler_of(4)
    early, late = started(scheduler, 3, 0), started(scheduler, 3, 1)
    newcomer = waiting()
    scheduler.add(newcomer)
    done(planned(scheduler))
    assert scheduler.victim() is late
    scheduler.preempt(late)
    assert (late.sequence, late.evaluated) == (-1, 0)
    assert scheduler.waiting == (late, newcomer)
    assert scheduler.running == (early,)


def test_the_victim_is_the_least_urgent_then_the_youngest() -> None:
    scheduler = scheduler_of(4)
    started(scheduler, 1, 0, priority=1)
    low = started(scheduler, 1, 1)
    started(scheduler, 1, 2, priority=1)
    assert scheduler.victim() is low


def test_remove_waiting_and_running() -> None:
    scheduler = scheduler_of(4)
    running, late = started(scheduler, 3, 0), waiting()
    scheduler.add(late)
    scheduler.remove(late)
    scheduler.remove(running)
    assert scheduler.waiting == scheduler.running == ()


def test_more_decodes_than_rows_take_turns() -> None:
    scheduler = scheduler_of(3)
    states = [started(scheduler, 1, sequence) for sequence in range(7)]
    served = dict.fromkeys(range(7), 0)
    for _ in range(70):
        chunks = planned(scheduler)
        assert len(chunks) == 3
        for chunk in chunks:
            served[states.index(chunk.state)] += 1
    assert set(served.values()) == {30}


def test_prompts_come_before_answers_that_nobody_reads_along() -> None:
    scheduler = scheduler_of(8)
    answers = [started(scheduler, 5, sequence, evaluated=4, offline=True) for sequence in range(2)]
    read = started(scheduler, 5, 2, evaluated=4)
    prompt = started(scheduler, 10, 3)
    assert [chunk.state for chunk in planned(scheduler)] == [*answers, read, prompt], "somebody reads the third"
    scheduler.remove(read)
    assert planned(scheduler) == [Chunk(prompt, 0, 8)]
    done(planned(scheduler))
    assert planned(scheduler) == [Chunk(prompt, 8, 10)]
    done(planned(scheduler))
    scheduler.remove(prompt)
    assert [chunk.state for chunk in planned(scheduler)] == answers


def test_offline_answers_are_taken_along_now_and_then_however_many_prompts_come() -> None:
    scheduler = scheduler_of(8)
    answer = started(scheduler, 2000, 0, evaluated=1999, offline=True)
    along = 0
    for _ in range(320):
        if not [state for state in scheduler.running if state is not answer]:
            started(scheduler, 20, 1)
        chunks = planned(scheduler)
        along += chunks[0].state is answer
        for chunk in chunks[-1:]:
            chunk.state.evaluated = chunk.stop
            if chunk.output:
                scheduler.remove(chunk.state)
    assert along == 20


def test_an_offline_answer_does_not_wait_for_a_less_urgent_prompt() -> None:
    scheduler = scheduler_of(8)
    answer = started(scheduler, 5, 0, evaluated=4, priority=1, offline=True)
    prompt = started(scheduler, 10, 1)
    assert [chunk.state for chunk in planned(scheduler)] == [answer, prompt]


def test_short_prompts_share_a_batch() -> None:
    scheduler = scheduler_of(512)
    scheduler.budget.rows = scheduler.budget.alone = 64
    states = [started(scheduler, 20, sequence) for sequence in range(4)]
    assert planned(scheduler) == [*(Chunk(state, 0, 20) for state in states[:3]), Chunk(states[3], 0, 4)]


def test_guesses_leave_a_prompt_half_of_a_small_batch() -> None:
    scheduler = scheduler_of(16)
    streams = [started(scheduler, 5, sequence, evaluated=4) for sequence in (0, 1)]
    for stream in streams:
        stream.draft = tuple(range(7))
    prompt = started(scheduler, 100, 2)
    chunks = planned(scheduler)
    assert [chunk.size for chunk in chunks] == [7, 1, 8]
    assert chunks[-1].state is prompt
    scheduler.remove(prompt)
    assert [chunk.size for chunk in planned(scheduler)] == [8, 8]


def test_sequences_stand_in_ascending_order() -> None:
    scheduler = scheduler_of(512)
    late, early = started(scheduler, 5, 2, evaluated=4), started(scheduler, 5, 1, evaluated=4)
    long = started(scheduler, 70, 0)
    assert scheduler.plan() == [[Chunk(long, 0, 70), Chunk(early, 4, 5), Chunk(late, 4, 5)]]


def test_prompts_have_a_batch_of_their_own_where_the_backend_wants_it() -> None:
    scheduler = scheduler_of(512, separate=True)
    late, early = started(scheduler, 5, 2, evaluated=4), started(scheduler, 5, 1, evaluated=4)
    assert scheduler.plan() == [[Chunk(early, 4, 5), Chunk(late, 4, 5)]]
    long = started(scheduler, 70, 0)
    assert scheduler.plan() == [[Chunk(early, 4, 5), Chunk(late, 4, 5)], [Chunk(long, 0, 70)]]
    scheduler.remove(late)
    scheduler.remove(early)
    assert scheduler.plan() == [[Chunk(long, 0, 70)]]


def test_no_chunk_crosses_a_mark() -> None:
    scheduler = scheduler_of(64)
    state = started(scheduler, 50, 0, evaluated=5)
    state.marks = (5, 20, 21)
    seen: list[int] = []
    while state.pending:
        (chunk,) = planned(scheduler)
        seen.append(chunk.stop)
        done([chunk])
    assert seen == [20, 21, 50]


@pytest.mark.parametrize(("seconds", "rate"), [(0.1, 2000.0), (0.1, 100.0), (0.5, 2000.0), (10.0, 9000.0)])
def test_the_budget_is_what_takes_so_long_in_whole_tiles(seconds: float, rate: float) -> None:
    budget = PrefillBudget(2048, seconds)
    assert budget.rows == 64
    for _ in range(12):
        budget.took(budget.rows, budget.rows / rate)
    assert budget.rows == max(min(int(seconds * rate) // 64 * 64, 2048), 64)
    assert budget.alone == max(min(int(5 * seconds * rate) // 64 * 64, 2048), 64)


def test_the_budget_grows_twofold_at_most_and_one_slow_batch_does_not_undo_it() -> None:
    budget = PrefillBudget(2048, 0.1)
    seen: list[int] = []
    for _ in range(5):
        budget.took(budget.rows, budget.rows / 5000)
        seen.append(budget.rows)
    assert seen == [128, 256, 448, 448, 448]
    budget.took(448, 1.0)
    assert budget.rows == 256
    budget.took(20, 9.0)
    assert budget.rows == 256, "few rows tell nothing"
    assert PrefillBudget(16, 0.1).rows == 16


@given(
    n_batch=st.integers(1, 12),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    limit=st.integers(1, 12),
)
def test_everything_is_evaluated_once_in_order_within_the_budget(n_batch: int, lengths: list[int], limit: int) -> None:
    scheduler = scheduler_of(n_batch)
    scheduler.budget.rows = scheduler.budget.alone = limit
    states = [started(scheduler, length, index) for index, length in enumerate(lengths)]
    finished: list[SequenceState] = []
    steps = 0
    while scheduler.running:
        chunks = planned(scheduler)
        steps += 1
        rows = [row for chunk in chunks for row in chunk.rows()]
        assert 0 < len(rows) <= n_batch
        assert len({chunk.state.sequence for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            assert chunk.start == chunk.state.evaluated
        done(chunks)
        for state in [state for state in scheduler.running if not state.pending]:
            scheduler.remove(state)
            finished.append(state)
    assert set(finished) == set(states)
    assert steps <= sum(lengths)
