"""engine.runtime.scheduler: budgets, order, fairness; no model and no thread."""

from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.scheduler import Chunk, Job, Scheduler


def started(scheduler: Scheduler, length: int, sequence: int, evaluated: int = 0, priority: int = 0) -> Job:
    job = Job(list(range(length)), priority)
    scheduler.add(job)
    scheduler.start(job, sequence, evaluated)
    return job


def done(chunks: list[Chunk]) -> None:
    for chunk in chunks:
        chunk.job.evaluated = chunk.stop


def test_nothing_to_do() -> None:
    scheduler = Scheduler(8)
    assert scheduler.plan() == []
    scheduler.add(Job([1]))
    assert scheduler.plan() == []
    assert scheduler.victim() is None


def test_a_long_prompt_is_cut_into_chunks_with_output_at_its_end_only() -> None:
    scheduler = Scheduler(4)
    job = started(scheduler, 10, sequence=2)
    seen: list[tuple[int, int, bool]] = []
    while job.pending:
        (chunk,) = scheduler.plan()
        seen.append((chunk.start, chunk.stop, chunk.output))
        done([chunk])
    assert seen == [(0, 4, False), (4, 8, False), (8, 10, True)]


def test_rows() -> None:
    job = Job([7, 8, 9], sequence=3)
    assert Chunk(job, 1, 3).rows() == [(8, 1, 3, False), (9, 2, 3, True)]
    assert Chunk(job, 0, 2).rows() == [(7, 0, 3, False), (8, 1, 3, False)]


def test_decodes_go_on_beside_a_long_prompt() -> None:
    scheduler = Scheduler(6)
    long = started(scheduler, 100, 0)
    stream = started(scheduler, 5, 1, evaluated=4)
    chunks = scheduler.plan()
    assert chunks == [Chunk(stream, 4, 5), Chunk(long, 0, 5)]
    done(chunks)
    stream.tokens.append(5)
    assert scheduler.plan() == [Chunk(stream, 5, 6), Chunk(long, 5, 10)]


def test_prefill_limit_bounds_the_prefill_and_never_stops_it() -> None:
    scheduler = Scheduler(8)
    first, second = started(scheduler, 6, 0), started(scheduler, 6, 1)
    stream = started(scheduler, 1, 2)
    scheduler.prefill_limit = 3
    assert scheduler.plan() == [Chunk(stream, 0, 1), Chunk(first, 0, 3)]
    scheduler.prefill_limit = 0
    assert scheduler.plan() == [Chunk(stream, 0, 1), Chunk(first, 0, 1)]
    scheduler.prefill_limit = 8
    assert scheduler.plan() == [Chunk(stream, 0, 1), Chunk(first, 0, 6), Chunk(second, 0, 1)]


def test_first_come_first_served_within_a_priority() -> None:
    scheduler = Scheduler(4)
    jobs = [Job([1], priority) for priority in (0, 0, 5, 0, 5)]
    for job in jobs:
        scheduler.add(job)
    assert scheduler.waiting == (jobs[2], jobs[4], jobs[0], jobs[1], jobs[3])


def test_preempted_keeps_its_place_and_starts_over() -> None:
    scheduler = Scheduler(4)
    early, late = started(scheduler, 3, 0), started(scheduler, 3, 1)
    newcomer = Job([1])
    scheduler.add(newcomer)
    done(scheduler.plan())
    assert scheduler.victim() is late
    scheduler.preempt(late)
    assert (late.sequence, late.evaluated) == (-1, 0)
    assert scheduler.waiting == (late, newcomer)
    assert scheduler.running == (early,)


def test_the_victim_is_the_least_urgent_then_the_youngest() -> None:
    scheduler = Scheduler(4)
    started(scheduler, 1, 0, priority=1)
    low = started(scheduler, 1, 1)
    started(scheduler, 1, 2, priority=1)
    assert scheduler.victim() is low


def test_remove_waiting_and_running() -> None:
    scheduler = Scheduler(4)
    running, waiting = started(scheduler, 3, 0), Job([1])
    scheduler.add(waiting)
    scheduler.remove(waiting)
    scheduler.remove(running)
    assert scheduler.waiting == scheduler.running == ()


def test_more_decodes_than_rows_take_turns() -> None:
    scheduler = Scheduler(3)
    jobs = [started(scheduler, 1, sequence) for sequence in range(7)]
    served = dict.fromkeys(range(7), 0)
    for _ in range(70):
        chunks = scheduler.plan()
        assert len(chunks) == 3
        for chunk in chunks:
            served[jobs.index(chunk.job)] += 1
    assert set(served.values()) == {30}


def test_the_end_of_a_prompt_is_not_left_for_a_pass_of_its_own() -> None:
    scheduler = Scheduler(512)
    scheduler.prefill_limit = 64
    job = started(scheduler, 128 + 32, 0)
    other = started(scheduler, 200, 1)
    first = scheduler.plan()
    assert first == [Chunk(job, 0, 64)]
    done(first)
    second = scheduler.plan()
    assert second == [Chunk(job, 64, 160)], "32 rows more than the limit, rather than a step for them"
    done(second)
    job.tokens.append(160)
    assert scheduler.plan() == [Chunk(job, 160, 161), Chunk(other, 0, 64)]


def test_no_tile_is_begun_for_a_fragment_behind_another_prompt() -> None:
    scheduler = Scheduler(512)
    scheduler.prefill_limit = 128
    first, second = started(scheduler, 70, 0), started(scheduler, 200, 1)
    assert scheduler.plan() == [Chunk(first, 0, 70)], "58 rows would fit, and would be in the way"
    scheduler.prefill_limit = 192
    assert scheduler.plan() == [Chunk(first, 0, 70), Chunk(second, 0, 122)]


def test_prompts_fill_tiles_together_where_they_may_share_batches() -> None:
    scheduler = Scheduler(512)
    scheduler.prefill_limit = 64
    scheduler.packs = True
    first, second, third = (started(scheduler, length, sequence) for sequence, length in enumerate((70, 10, 90)))
    chunks = scheduler.plan()
    assert chunks == [Chunk(first, 0, 64)], "its last rows will not be alone"
    assert scheduler.prompts == 3
    done(chunks)
    chunks = scheduler.plan()
    assert chunks == [Chunk(first, 64, 70), Chunk(second, 0, 10), Chunk(third, 0, 48)]
    done(chunks)
    for job in (first, second):
        scheduler.remove(job)
    chunks = scheduler.plan()
    assert chunks == [Chunk(third, 48, 90)]
    assert scheduler.prompts == 1
    scheduler.remove(third)
    fourth = started(scheduler, 80, 3)
    assert scheduler.plan() == [Chunk(fourth, 0, 80)], "nobody's rows are behind its last"


def test_one_row_of_a_prompt_is_no_stream() -> None:
    scheduler = Scheduler(512)
    scheduler.prefill_limit = 64
    scheduler.packs = True
    started(scheduler, 63, 0)
    started(scheduler, 90, 1)
    chunks = scheduler.plan()
    assert [(chunk.size, chunk.single) for chunk in chunks] == [(63, False), (1, False)]
    assert scheduler.apart(chunks, 63) == [chunks]
    assert started(scheduler, 9, 2, evaluated=8) is scheduler.plan()[0].job
    assert scheduler.plan()[0].single


def test_prompts_come_before_answers_that_nobody_reads_along() -> None:
    scheduler = Scheduler(8)
    answers = [started(scheduler, 5, sequence, evaluated=4) for sequence in range(2)]
    prompt = started(scheduler, 10, 2)
    answers[0].patient = True
    assert [chunk.job for chunk in scheduler.plan()] == [*answers, prompt], "somebody reads the second"
    answers[1].patient = True
    assert scheduler.plan() == [Chunk(prompt, 0, 8)]
    done(scheduler.plan())
    assert scheduler.plan() == [Chunk(prompt, 8, 10)]
    done(scheduler.plan())
    scheduler.remove(prompt)
    assert [chunk.job for chunk in scheduler.plan()] == answers


def test_patient_answers_are_taken_along_now_and_then_however_many_prompts_come() -> None:
    scheduler = Scheduler(8)
    answer = started(scheduler, 2000, 0, evaluated=1999)
    answer.patient = True
    along = 0
    for _ in range(320):
        if not [job for job in scheduler.running if job is not answer]:
            started(scheduler, 20, 1)
        chunks = scheduler.plan()
        along += chunks[0].job is answer
        for chunk in chunks[-1:]:
            chunk.job.evaluated = chunk.stop
            if chunk.output:
                scheduler.remove(chunk.job)
    assert along == 20


def test_a_patient_answer_does_not_wait_for_a_less_urgent_prompt() -> None:
    scheduler = Scheduler(8)
    answer = started(scheduler, 5, 0, evaluated=4, priority=1)
    answer.patient = True
    prompt = started(scheduler, 10, 1)
    assert [chunk.job for chunk in scheduler.plan()] == [answer, prompt]


def test_short_prompts_share_a_batch() -> None:
    scheduler = Scheduler(512)
    scheduler.prefill_limit = 64
    jobs = [started(scheduler, 20, sequence) for sequence in range(4)]
    assert scheduler.plan() == [Chunk(job, 0, 20) for job in jobs[:3]]


def test_single_tokens_and_prefill_are_evaluated_apart_where_many_rows_mix_badly() -> None:
    scheduler = Scheduler(512)
    late, early = started(scheduler, 5, 2, evaluated=4), started(scheduler, 5, 1, evaluated=4)
    long = started(scheduler, 70, 0)
    tokens, prefill = [Chunk(early, 4, 5), Chunk(late, 4, 5)], [Chunk(long, 0, 70)]
    assert scheduler.plan() == [*reversed(tokens), *prefill]
    assert scheduler.apart(scheduler.plan(), 72) == [[*prefill, *tokens]], "in the order of the sequences"
    assert scheduler.apart(scheduler.plan(), 71) == [tokens, prefill]
    assert scheduler.apart(scheduler.plan(), 0) == [tokens, prefill]
    assert scheduler.apart([], 71) == scheduler.apart([], 0) == []


def test_so_many_single_tokens_are_evaluated_in_several_batches() -> None:
    scheduler = Scheduler(512)
    jobs = [started(scheduler, 1, sequence) for sequence in range(5)]
    jobs[1].draft = (7, 8)
    batches = scheduler.apart(scheduler.plan(), 3)
    assert [[chunk.job.sequence for chunk in batch] for batch in batches] == [[0], [1], [2, 3, 4]]
    assert scheduler.apart(scheduler.plan(), 7) == [scheduler.plan()]


def test_guesses_leave_a_prompt_half_of_a_small_batch() -> None:
    scheduler = Scheduler(16)
    streams = [started(scheduler, 5, sequence, evaluated=4) for sequence in (0, 1)]
    for stream in streams:
        stream.draft = tuple(range(7))
    prompt = started(scheduler, 100, 2)
    chunks = scheduler.plan()
    assert [chunk.size for chunk in chunks] == [7, 1, 8]
    assert chunks[-1].job is prompt
    scheduler.remove(prompt)
    assert [chunk.size for chunk in scheduler.plan()] == [8, 8]


@given(
    n_batch=st.integers(1, 12),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    limit=st.integers(1, 12),
)
def test_everything_is_evaluated_once_in_order_within_the_budget(n_batch: int, lengths: list[int], limit: int) -> None:
    scheduler = Scheduler(n_batch)
    scheduler.prefill_limit = limit
    jobs = [started(scheduler, length, index) for index, length in enumerate(lengths)]
    finished: list[Job] = []
    steps = 0
    while scheduler.running:
        chunks = scheduler.plan()
        steps += 1
        rows = [row for chunk in chunks for row in chunk.rows()]
        assert 0 < len(rows) <= n_batch
        assert len({chunk.job.sequence for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            assert chunk.start == chunk.job.evaluated
        done(chunks)
        for job in [job for job in scheduler.running if not job.pending]:
            scheduler.remove(job)
            finished.append(job)
    assert set(finished) == set(jobs)
    assert steps <= sum(lengths)
