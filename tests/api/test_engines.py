"""Several models under one budget: loaded when they are used, unloaded for others, but never while in use."""

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, cast

import numpy as np
import openai
import pytest
from files import model_files

from engine import (
    Completion,
    ContextOverflowError,
    Engine,
    EngineError,
    EngineHandle,
    Engines,
    ModelLoadError,
    RequestError,
    StateStore,
    Waiting,
    WaitTimeoutError,
    off_loop,
)
from engine.api.admission import Admission, Load, Ticket
from engine.api.budget import Size, budgeted
from engine.api.source import Loaded
from engine.llama.lib import Device
from engine.llama.plan.plan import Machine

OPTIONS: dict[str, Any] = {
    "kv_unified": False,  # answers are compared
    "family": "content-only",
    "trust_template": True,
    "preflight": False,
    "n_ctx": 256,
    "n_sequences": 2,
}
TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
NAMES = "abcde"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("engines")
    return {
        name: model_files.write(folder / f"{name}.gguf", shape=model_files.Shape(seed=seed, n_ff=96 + 32 * seed))
        for seed, name in enumerate(NAMES)
    }


@pytest.fixture
def several(files: dict[str, Path]) -> Iterator[Callable[..., Engines]]:
    """Makes engines over the files; a budget in models, not bytes, if it is below 100."""
    made: list[Engines] = []
    last = NAMES[-1]
    with Engines({last: {"model": files[last], **OPTIONS}}, states=StateStore(0)) as measured:
        measured.load(last)
        biggest = measured.used.host

    def make(names: str = NAMES, budget: Any = 2, models: dict[str, Any] | None = None, **options: Any) -> Engines:
        given = {name: {"model": files[name], **OPTIONS} for name in names}
        if isinstance(budget, int) and budget < 100:
            budget *= biggest
        options.setdefault("states", StateStore(0))
        made.append(Engines(given if models is None else {**given, **models}, budget=budget, **options))
        return made[-1]

    yield make
    for engines in made:
        engines.close()


class Gate:
    """A logits processor that stops a turn in the engine's thread until it is opened, or until the end of a `with`."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, tokens: Sequence[int], logits: Any) -> None:
        del tokens, logits
        self.reached.set()
        assert self.opened.wait(30), "the test did not open the gate"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.set()


def running(llm: Engine, gate: Gate) -> Any:
    """Start a turn that stops at the gate."""
    stream = llm.stream("hello", logits_processors=[gate], temperature=0, max_tokens=3)
    assert gate.reached.wait(30)
    return stream


def _set(event: threading.Event, _: Waiting) -> None:
    event.set()


def loaded(engines: Engines) -> str:
    return "".join(name for name in engines if engines.state(name).loaded)


def for_models(engines: Engines) -> Size:
    """What of the budget is left for models beside the states that are kept."""
    return engines._admission.budget  # pyright: ignore[reportPrivateUsage]


def test_models_are_loaded_on_demand_and_the_one_used_longest_ago_goes(several: Callable[..., Engines]) -> None:
    engines = several("abc")
    assert (loaded(engines), list(engines), len(engines)) == ("", ["a", "b", "c"], 3)
    for name, there in (("a", "a"), ("b", "ab"), ("a", "ab"), ("c", "ac"), ("c", "ac"), ("b", "bc")):
        assert engines[name].chat("hello", **TURN).finish_reason == "length"
        assert loaded(engines) == there
        assert engines.used.within(for_models(engines))
    assert [engines.state(name).loads for name in "abc"] == [1, 2, 1]


def test_answers_are_those_of_an_engine_of_ones_own(several: Callable[..., Engines], files: dict[str, Path]) -> None:
    texts = ["hello world", "a b ab", "<tool> s", "or"]
    alone: dict[tuple[str, str], str] = {}
    for name in NAMES:
        with Engine.load(files[name], **OPTIONS) as llm:
            alone |= {(name, text): llm.chat(text, **TURN).content for text in texts}
    assert len(set(alone.values())) > 10, "the models answer alike, so this shows nothing"
    engines = several()
    asked = list(itertools.product(NAMES, texts)) * 3
    over: list[Size] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.001):
            if not (used := engines.used).within(for_models(engines)):
                over.append(used)

    def ask(each: tuple[str, str]) -> Completion:
        return engines[each[0]].chat(each[1], **TURN)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, asked))
    finally:
        stop.set()
        watcher.join()
    assert [answer.content for answer in answers] == [alone[each] for each in asked]
    assert {answer.finish_reason for answer in answers} == {"length"}
    assert not over, f"over the budget of {engines.budget}"
    assert sum(engines.state(name).loads for name in NAMES) > 5


def test_a_model_in_use_stays_and_the_other_waits(several: Callable[..., Engines]) -> None:
    told: SimpleQueue[Waiting] = SimpleQueue()
    engines = several("ab", 1, on_wait=told.put)
    with ThreadPoolExecutor(1) as pool, Gate() as gate:
        stream = running(engines["a"], gate)
        other = pool.submit(lambda: engines["b"].chat("hello", **TURN))
        waiting = told.get(timeout=10)
        assert (waiting.model, waiting.behind, loaded(engines)) == ("b", ("a",), "a")
        assert str(waiting) == "'b' waits for 6 MiB; 0 MiB are free, behind a"
        gate.opened.set()
        assert other.result(30).finish_reason == "length"
    assert (stream.result().finish_reason, told.empty(), loaded(engines)) == ("length", True, "b")


def test_who_waits_is_not_overtaken_for_ever(several: Callable[..., Engines]) -> None:
    waits, order = threading.Event(), list[str]()
    engines = several("ab", 1, on_wait=partial(_set, waits))

    def ask(name: str) -> None:
        engines[name].chat("hello", **TURN)
        order.append(name)

    with ThreadPoolExecutor(2) as pool, Gate() as gate:
        stream = running(engines["a"], gate)
        first = pool.submit(ask, "b")
        assert waits.wait(30)
        second = pool.submit(ask, "a")
        time.sleep(0.1)
        assert order == [], "a request for `a` came before the one that waits for its end"
        gate.opened.set()
        first.result(30)
        second.result(30)
    assert (order, stream.result().finish_reason) == (["b", "a"], "length")


def test_a_block_holds_its_model_and_a_limit_ends_the_wait(several: Callable[..., Engines]) -> None:
    engines = several("ab", 1, timeout=0.05)
    with engines.use("a") as llm, ThreadPoolExecutor(1) as pool:
        with pytest.raises(WaitTimeoutError, match=r"'b' was not there in time: 'b' waits for 6 MiB.*behind a"):
            pool.submit(engines["b"].chat, "hello").result(30)
        assert isinstance(llm, Engine)
        assert engines["a"].chat("hello", **TURN).content == llm.chat("hello", **TURN).content
        assert loaded(engines) == "a"
    assert engines["b"].chat("hello", **TURN).finish_reason == "length"
    assert issubclass(WaitTimeoutError, TimeoutError)


def test_what_can_never_fit_is_refused_with_the_numbers(
    several: Callable[..., Engines], files: dict[str, Path]
) -> None:
    engines = several("ab", 1, models={"long": {"model": files["c"], **OPTIONS, "n_ctx": 200_000}})
    with pytest.raises(
        ContextOverflowError, match=r"'long', with the budget .* n_ctx=200,000.* needs about [\d,]+ MiB"
    ):
        engines["long"].chat("hello")
    engines.pin("a")
    assert engines.load("a").n_ctx == 256
    with pytest.raises(
        ModelLoadError, match=r"'b' needs 6 MiB, .* budget of 6 MiB beside 'a' \(6 MiB, pinned\); unpin"
    ):
        engines["b"].chat("hello")
    engines.unpin("a")
    assert engines["b"].chat("hello", **TURN).finish_reason == "length"
    with engines.use("b"), pytest.raises(ModelLoadError, match=r"beside 'b' \(6 MiB, held by the caller\)"):
        engines["a"].chat("hello")
    small = several("a", 1 << 20)
    with pytest.raises(ModelLoadError, match=r"'a', with the budget as this machine's memory: .* only 1 MiB of memory"):
        small.load("a")


def test_a_model_for_several_threads_is_loaded_once(several: Callable[..., Engines]) -> None:
    engines, all_ready = several("a"), threading.Barrier(8)

    def ask() -> str:
        all_ready.wait()
        return engines["a"].chat("hello", **TURN).content

    with ThreadPoolExecutor(8) as pool:
        answers = {future.result(30) for future in [pool.submit(ask) for _ in range(8)]}
    assert (len(answers), engines.state("a").loads) == (1, 1)


def test_a_pinned_prefix_keeps_its_model_until_it_is_released(several: Callable[..., Engines]) -> None:
    engines = several("ab", 1, timeout=0.05)
    with engines["a"].pin([{"role": "system", "content": "hello world"}]):
        with pytest.raises(WaitTimeoutError):
            engines["b"].chat("hello")
        assert engines["a"].chat("hello", **TURN).finish_reason == "length"
    assert engines["b"].chat("hello", **TURN).finish_reason == "length"
    kept = engines["a"].pin([{"role": "system", "content": "hello world"}])
    del kept
    gc.collect()
    engines.load("b")


def test_a_stream_that_nobody_reads_any_more_lets_go(several: Callable[..., Engines]) -> None:
    engines, gate = several("ab", 1, timeout=30), Gate()
    stream = running(engines["a"], gate)
    assert (engines.state("a").in_use, engines.unload("a")) == (True, False)
    del stream
    gate.opened.set()
    assert engines["b"].chat("hello", **TURN).finish_reason == "length"


def test_a_model_that_cannot_be_loaded_spoils_nothing(
    several: Callable[..., Engines], files: dict[str, Path], tmp_path: Path
) -> None:
    late, broken = tmp_path / "late.gguf", tmp_path / "broken.gguf"
    broken.write_bytes(files["a"].read_bytes()[:-5000])
    engines = several("a", 2, models={"late": {"model": late, **OPTIONS}, "broken": {"model": broken, **OPTIONS}})
    for name in ("late", "broken", "late"):
        with pytest.raises(ModelLoadError, match=rf"'{name}', with the budget.*{name}\.gguf"):
            engines[name].chat("hello")
    assert engines["a"].chat("hello", **TURN).finish_reason == "length"
    late.write_bytes(files["b"].read_bytes())
    assert engines["late"].chat("hello", **TURN).finish_reason == "length"
    with pytest.raises(RequestError, match=r"no model 'laet'; did you mean 'late'"):
        engines.pin("laet")
    with pytest.raises(KeyError, match="did you mean 'late'"):
        engines["laet"]
    assert "x" not in engines


def test_a_load_that_fails_later_leaves_its_memory(several: Callable[..., Engines], files: dict[str, Path]) -> None:
    shares = list[float]()

    def progress(share: float) -> bool:
        return bool(shares) and share >= 0

    engines = several("a", 1, models={"b": {"model": files["b"], **OPTIONS, "progress": progress}})
    with pytest.raises(ModelLoadError, match="stopped by its progress callback"):
        engines["b"].chat("hello")
    assert engines.used == Size(0)
    assert engines["a"].chat("hello", **TURN).finish_reason == "length"
    shares.append(1)
    assert engines["b"].chat("hello", **TURN).finish_reason == "length"


@pytest.mark.parametrize("isolated", [False, True])
def test_an_engine_that_is_gone_is_loaded_again(
    several: Callable[..., Engines], files: dict[str, Path], isolated: bool
) -> None:
    engines = several("b", 2, models={"a": {"model": files["a"], **OPTIONS, "isolated": isolated}})
    before = engines["a"].chat("hello", **TURN).content
    with engines.lease("a") as parts:
        if isolated:  # its process is started again without being asked
            cast("Any", parts).model._link.child.kill()
        else:
            parts.close()
        assert engines["a"].chat("hello", **TURN).content == before
    assert (engines.state("a").loads, loaded(engines), engines.state("a").in_use) == (2 - isolated, "a", False)


def test_closing_cancels_what_runs_and_what_waits(several: Callable[..., Engines]) -> None:
    waits = threading.Event()
    engines = several("ab", 1, on_wait=partial(_set, waits))
    with ThreadPoolExecutor(2) as pool, Gate() as gate:
        stream = running(engines["a"], gate)
        other = pool.submit(engines["b"].chat, "hello")
        assert waits.wait(30)
        closing = pool.submit(engines.close)
        with pytest.raises(EngineError, match="are closed; make them again"):
            other.result(30)
        gate.opened.set()
        closing.result(30)
    assert (stream.result().finish_reason, engines.closed, engines["a"].closed) == ("cancelled", True, True)
    assert engines.used == Size(0)
    engines.close()
    with pytest.raises(EngineError, match="are closed"):
        engines["a"].chat("hello")


def test_tasks_that_wait_keep_no_thread_from_who_has_the_memory(several: Callable[..., Engines]) -> None:
    engines, ticks = several("ab", 1), list[float]()

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def main() -> list[str]:
        ticking = asyncio.create_task(tick())
        async with engines.ause("a") as llm:
            others = [asyncio.create_task(engines["b"].achat("hello", **TURN)) for _ in range(40)]
            await asyncio.sleep(0.1)
            for _ in range(3):
                assert (await llm.achat("hello", **TURN)).finish_reason == "length"
            others.pop().cancel()
            assert loaded(engines) == "a"
        answers = [answer.content for answer in await asyncio.gather(*others)]
        ticking.cancel()
        return answers

    with asyncio.Runner() as runner:
        answers = runner.run(asyncio.wait_for(main(), 60))
    assert (len(answers), len(set(answers))) == (39, 1)
    assert max(np.diff(ticks)) < 1, "the event loop stood still"
    assert not engines.state("b").in_use


def test_every_method_leases_the_model_that_it_needs_once_a_turn(
    several: Callable[..., Engines], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, leases = several("a", 1 << 30), list[str]()
    llm, acquire = engines["a"], Engines._acquire  # pyright: ignore[reportPrivateUsage]

    def counted(self: Engines, ticket: Ticket[Loaded], *given: Any, **options: Any) -> Any:
        leases.append(ticket.name)
        return acquire(self, ticket, *given, **options)

    monkeypatch.setattr(Engines, "_acquire", counted)
    # The options of many turns are checked once, and how many there may be at a time is asked once.
    several_leases = {"generate": 4, "generate_iter": 4, "run": 3, "openai": 2, "coroutines": 8}

    async def waited() -> list[Any]:
        rows: list[Any] = await cast("Any", llm).agenerate(["hello"], **TURN)
        return [await llm.achat("hello", **TURN), await off_loop(llm.embed, "a"), await llm.arun("hello", **TURN), rows]

    def asked() -> Any:
        client: Any = llm.openai_client()
        return client.chat.completions.create(model="a", messages=[{"role": "user", "content": "hello"}], max_tokens=3)

    ways: dict[str, Callable[[], Any]] = {
        "chat": lambda: llm.chat("hello", **TURN),
        "stream": lambda: llm.stream("hello", **TURN).result(),
        "choices": lambda: [each.result() for each in llm.choices("hello", 2, **TURN)],
        "generate": lambda: cast("Any", llm).generate(["hello", "world"], **TURN),
        "generate_iter": lambda: list(llm.generate_iter(["hello", "world"], **TURN)),
        "complete": lambda: cast("Any", llm).complete("hello", **TURN),
        "embed": lambda: llm.embed(["hello"]),
        "score": lambda: llm.score("hello", ["world"]),
        "decide": lambda: llm.decide("hello", "It is so."),
        "decide_iter": lambda: list(llm.decide_iter(["hello"], "It is so.")),
        "tokenize": lambda: llm.tokenize("hello"),
        "detokenize": lambda: llm.detokenize([280, 281]),
        "run": lambda: llm.run("hello", **TURN),
        "render": lambda: llm.render("hello"),
        "explain": lambda: llm.explain("hello", output="world").text(),
        "inspect": lambda: llm.inspect().text(),
        "family": lambda: llm.family.name,
        "template": lambda: llm.template.source,
        "info": lambda: llm.info.path,
        "n_ctx": lambda: llm.n_ctx,
        "openai": asked,
        "coroutines": lambda: asyncio.run(waited()),
    }
    for name, way in ways.items():
        before = engines.state("a").loads
        leases.clear()
        assert way() is not None, name
        assert engines.state("a").loads == before + 1, name
        assert len(leases) == several_leases.get(name, 1), name
        llm.close()
        assert loaded(engines) == "", f"{name} left something in use"
    before = engines.state("a").loads
    assert llm.metrics.finished, "those of the last loading"
    assert (repr(llm), llm.closed, engines.state("a").loads) == ("<EngineHandle a, not loaded>", False, before)
    assert "not loaded" in llm._repr_html_()  # pyright: ignore[reportPrivateUsage]


def test_between_two_turns_another_model_may_have_the_memory() -> None:
    """In a tool of a run, in the loop over a batch's answers and over decisions, and between a conversation's turns."""
    few: dict[str, Any] = {"temperature": 0, "max_tokens": 4}
    with Engines({"a": None, "b": None}, budget="30MB", timeout=20) as engines:
        llm = engines["a"]

        def ask_other(question: str) -> str:
            """Ask the other model."""
            return engines["b"].chat(question, **few).finish_reason

        run = llm.run("Ask the other: hello", [ask_other], temperature=0, tool_choice="required")
        assert [len(step.completion.tool_calls) for step in run.steps] == [1, 0]
        answers = [answer for _, answer in llm.generate_iter(["a", "b", "c"] * 4, **few) if ask_other(str(answer))]
        assert [getattr(answer, "finish_reason", answer) for answer in answers] == ["length"] * 12
        decided = [each for each in llm.decide_iter(["x", "y"] * 4, "It is so.") if ask_other(str(each))]
        assert len(decided) == 8
        talk = llm.conversation()
        for question in "ab":
            assert talk.chat(question, **few).finish_reason == "length"
            ask_other(question)
        assert engines.state("a").loads > 4, "it gave way"


def test_reasoning_is_remembered_beyond_an_unloading(builtin_model_path: Path) -> None:
    with Engines({"a": None}, budget="1GB") as engines:
        question = [{"role": "user", "content": "What is 12 times 3?"}]
        answer = engines["a"].chat(question, temperature=0, max_tokens=300)
        assert answer.reasoning
        assert engines.unload("a")
        bare = {"role": "assistant", "content": answer.content}
        prompt = engines["a"].render([*question, bare, {"role": "user", "content": "And 5?"}])
        assert (prompt.restored, engines.state("a").loads) == ((1,), 2)


def test_a_context_for_vectors_counts(several: Callable[..., Engines]) -> None:
    engines = several("ab", 1 << 28)
    for name in "ab":
        engines.load(name)
    before = engines.used
    vector = engines["a"].embed("hello")
    more = engines.used.minus(before).host
    assert more > 1 << 19
    assert np.isfinite(vector).all()
    engines["a"].embed("world")
    assert engines.used.minus(before).host == more
    tight = several("ab", before.host + more // 2)
    for name in "ab":
        tight.load(name)
    tight["a"].embed("hello")
    assert loaded(tight) == "a", "the other one had to go for it"


def test_openai_clients_ask_for_models_by_name(several: Callable[..., Engines]) -> None:
    engines = several("abc", 1)
    client = engines.openai_client()
    assert ([model.id for model in client.models.list()], loaded(engines)) == (["a", "b", "c"], "")
    for name in "abca":
        question: Any = [{"role": "user", "content": "hello"}]
        chunks = list(client.chat.completions.create(model=name, messages=question, max_tokens=3, stream=True))
        assert chunks[-1].model == name
        assert loaded(engines) == name
    assert client.responses.create(model="b", input="hello", max_output_tokens=3).model == "b"
    with pytest.raises(openai.NotFoundError, match="the models here are 'a', 'b', 'c'"):
        client.responses.create(model="d", input="hello")
    with pytest.raises(openai.InternalServerError, match="can never fit"):  # with a context for vectors beside its own
        client.embeddings.create(model="c", input="hello")

    async def asked() -> list[str]:
        client = engines.async_openai_client()

        def ask(name: str) -> asyncio.Task[Any]:
            return asyncio.create_task(client.responses.create(model=name, input="hello", max_output_tokens=3))

        async with engines.ause("a"):
            waiting = ask("b")
            await asyncio.sleep(0.1)  # where it waits in the event loop, this block never ends
            assert loaded(engines) == "a"
        return [answer.model for answer in await asyncio.gather(waiting, *map(ask, "abcab"))]

    assert asyncio.run(asyncio.wait_for(asked(), 60)) == list("babcab")


def test_budgets() -> None:
    gpus = (Device("CUDA0", "", True, 1000, 1000), Device("CUDA1", "", True, 500, 500))
    machine = Machine(10_000, gpus=gpus)
    assert budgeted(None, machine)[1] == Size(9000, 1350)
    assert budgeted("2 kB", machine)[1] == Size(2000, 1350)
    planned, size = budgeted({"cpu": 5000, "cuda1": 300}, machine)
    assert (size, [gpu.name for gpu in planned.gpus], planned.device_room) == (Size(5000, 300), ["CUDA1"], 300)
    assert [budgeted(text, machine)[1].host for text in ("1.5GiB", "3 mb", "7", 7)] == [3 << 29, 3_000_000, 7, 7]
    with pytest.raises(RequestError, match=r"no device 'cuda2' for a budget; there is 'cpu' and 'cuda0', 'cuda1'"):
        budgeted({"cuda2": 1}, machine)
    for wrong in ("much", 0, -1, True, "12XB", "0"):
        with pytest.raises(RequestError, match="is no budget"):
            budgeted(wrong, machine)


def test_options_are_checked_before_anything_is_loaded(files: dict[str, Path]) -> None:
    with pytest.raises(RequestError, match="There are no models"):
        Engines({})
    with pytest.raises(RequestError, match="n_ctxx"):
        Engines({"a": {"model": files["a"], "n_ctxx": 5}})
    with pytest.raises(RequestError, match="isolated"):
        Engines({"a": {"model": files["a"], "isolated": "yes"}})
    with pytest.raises(RequestError, match="draft model or head is not counted in the budget"):
        Engines({"a": {"model": files["a"], "draft": files["b"]}})
    handle = Engines({"a": {"model": files["a"], "draft": "ngram"}})["a"]
    assert isinstance(handle, EngineHandle)
    assert handle.name == "a"


class Stub:
    """An engine of which only the state is known."""

    def __init__(self) -> None:
        self.closed = self.in_use = self.is_pinned = False


def admitted(admission: Admission[Stub], ticket: Ticket[Stub]) -> tuple[Load[Stub] | None, list[str]]:
    admission.queue.tickets[ticket] = None
    load = admission.admit(ticket, hold=False)
    if load is not None:
        load.engine = load.engine or Stub()
        del admission.queue.tickets[ticket]
    leaving = list(admission.leaving)
    for each in leaving:
        admission.gone(each)
    return load, [each.name for each in leaving]


def test_bytes_count_until_they_are_freed_and_devices_count_by_themselves() -> None:
    admission = Admission[Stub](Size(10, 5))
    user = Ticket[Stub]("a", Size(4, 5))
    first, _ = admitted(admission, user)
    assert first is not None
    waiting = Ticket[Stub]("b", Size(1, 1))
    assert admitted(admission, waiting) == (None, [])
    assert waiting.waiting == Waiting("b", Size(1, 1), Size(6, 0), ("a",))
    admission.release(user)
    admission.queue.tickets[waiting] = None
    assert admission.admit(waiting, hold=False) is None
    assert (list(admission.leaving), admission.used, admission.loads) == ([first], Size(4, 5), {})
    assert admission.admit(waiting, hold=False) is None, "its memory is not free yet"
    admission.gone(first)
    assert admission.admit(waiting, hold=False) is not None
    assert admission.used == Size(1, 1)


def test_a_request_that_waits_for_a_block_keeps_nobody_else_from_what_is_free() -> None:
    admission = Admission[Stub](Size(10))
    big, _ = admitted(admission, Ticket("big", Size(7)))
    assert big is not None
    big.users = dict.fromkeys(big.users, True)
    assert admitted(admission, Ticket("other", Size(6))) == (None, [])
    small, _ = admitted(admission, Ticket("small", Size(3)))
    assert small is not None
    assert admitted(admission, Ticket("big", Size(7)))[0] is big, "who holds it may use it"


def test_the_least_recently_used_of_those_that_nobody_uses_goes() -> None:
    admission = Admission[Stub](Size(3))
    tickets = {name: Ticket[Stub](name, Size(1)) for name in "abc"}
    loads = {name: admitted(admission, ticket)[0] for name, ticket in tickets.items()}
    for name in "bca":
        admission.release(tickets[name])
    again, _ = admitted(admission, Ticket("a", Size(1)))
    assert again is loads["a"]
    assert admitted(admission, Ticket("d", Size(1))) == (None, ["b"])


@pytest.mark.parametrize("isolated", [False, True])
def test_what_a_model_has_read_is_found_again_after_an_unload(
    several: Callable[..., Engines], files: dict[str, Path], tmp_path: Path, isolated: bool
) -> None:
    states = StateStore(0, tmp_path / "states", 1 << 26) if isolated else StateStore(1 << 24)
    names, turns = ("ab", 1) if isolated else ("abc", 2)  # each load of an isolated one starts a process
    models = {name: {"model": files[name], **OPTIONS, "isolated": isolated} for name in names}
    engines = several(names, "1GB", models, states=states)
    talks = {name: engines[name].conversation() for name in names}
    for talk in talks.values():
        talk.chat("hello world " * 12, **TURN)
    for turn in range(turns):
        for name, talk in talks.items():
            assert engines.unload(name)
            usage = talk.chat(f"ab {turn}", **TURN).usage
            assert usage is not None
            assert usage.prompt_tokens - usage.cached_tokens < 60, "only what is new"
            assert usage.cached_tokens > 64
    assert {engines.state(name).loads for name in names} == {turns + 1}
