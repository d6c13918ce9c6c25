"""Who waits for whom in the loop, and who does not."""

import pytest
from fakes.doubles import Bench, echo, plain

from engine.runtime.loop.backend import Row
from engine.runtime.loop.request import Request
from engine.support.errors import DecodeError


@pytest.mark.parametrize(("priority", "first"), [(1, True), (0, False)])
def test_the_urgent_do_not_wait_for_a_prefix_that_the_less_urgent_evaluate(priority: int, first: bool) -> None:
    bench = Bench(lambda _: "ok", n_sequences=3, n_batch=64, n_ctx=8192)
    system = "What several conversations have in common, at some length. " * 2
    bench.submit("a long prompt " * 200)
    bench.submit(f"{system} slow")
    bench.step(2)
    urgent = bench.submit(f"{system} fast", priority=priority)
    bench.step(6)
    assert bench.completion(urgent).content == "ok" if first else urgent not in bench.replies


@pytest.mark.parametrize("failures", [1, 2])
def test_a_request_alone_may_fail_once(failures: int) -> None:
    """Whether nobody ran beside it, or it was evaluated apart."""
    faults = iter([DecodeError("hiccup")] * failures)

    def moody(rows: list[Row]) -> None:
        for fault in faults:
            raise fault

    bench = Bench(echo, before_decode=moody)
    id_ = bench.submit("one")
    bench.run()
    if failures == 1:
        assert bench.completion(id_).content == "re: one"
    else:
        assert "hiccup" in str(bench.error(id_))


@pytest.mark.parametrize("draft_max", [0, 8])
def test_a_pin_holds_its_own_tokens_and_no_guesses(draft_max: int) -> None:
    bench = Bench(lambda _: "ok", n_sequences=4, draft_max=draft_max)
    text = "the quick brown fox jumps over the quick brown fox jumps over the quick"
    bench.submit(text)
    bench.run()
    tokens = tuple(text.encode())
    bench.loop.submit(Request(7, tokens, plain, pin=True))  # one token of it is left to evaluate
    bench.run()
    assert tokens in {tuple(bench.loop.cache.held(sequence)) for sequence in range(4)}
    assert len(tokens) in {bench.backend.positions(sequence) for sequence in range(4)}
    assert max(bench.backend.positions(sequence) for sequence in range(4)) <= len(tokens) + len("ok")
