"""Adapters in the loop: which of them compute a token, what is reused, and when one may be freed."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fakes.doubles import Bench, echo, plain, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.adapters.adapters import BASE, AdapterInfo, AdapterNames, Adapters, AdaptersLike, LoadAdapter
from engine.runtime.loop.backend import Row
from engine.runtime.loop.generation import Limits
from engine.runtime.loop.request import TurnRequest
from engine.runtime.stream.service import Service
from engine.runtime.stream.stream import Stream
from engine.support.errors import DecodeError, EngineError, ModelLoadError, RequestError
from engine.testing.scripted import ScriptedBackend
from engine.types.turn_settings import TurnSettings

A, B, HALF = Adapters((("a", 1.0),)), Adapters((("b", 1.0),)), Adapters((("a", 0.5), ("b", 0.5)))


def late(start: int) -> Adapters:
    """An activated LoRA from this position on."""
    return Adapters((("c", 1.0),), start)


def bench(tmp_path: Path, **options: object) -> Bench:
    """A loop over a scripted backend with the adapters a, b and c."""
    made = Bench(**options)  # pyright: ignore[reportArgumentType]
    (tmp_path / "any").touch()
    for number, digest in enumerate("abc"):
        made.loop.change_adapters(LoadAdapter(-1 - number, digest, tmp_path / "any", number))
    made.collect()
    return made


def check(made: Bench) -> None:
    """Every token of every running request was computed by the adapters in force at its place."""
    for state in made.loop._scheduler.running:  # pyright: ignore[reportPrivateUsage]
        adapters, computed = state.request.adapters, made.backend.computed(state.sequence)
        assert computed == [adapters.at(place) for place in range(len(computed))]


def run(made: Bench) -> None:
    while made.loop.busy:
        made.step()
        check(made)


def cached(made: Bench, id_: int) -> int:
    usage = made.completion(id_).usage
    assert usage is not None
    return usage.cached_tokens


def test_what_is_computed_alike() -> None:
    assert A.alike(A) > 1 << 30
    assert BASE.alike(BASE) > 1 << 30
    assert A.alike(BASE) == A.alike(B) == A.alike(HALF) == 0
    assert late(7).alike(late(7)) > 1 << 30
    assert late(7).alike(BASE) == BASE.alike(late(7)) == late(7).alike(late(9)) == late(9).alike(late(7)) == 7
    assert late(7).alike(A) == 0
    assert [late(2).at(place) for place in range(3)] == [(), (), (("c", 1.0),)]


def test_nothing_is_reused_across_sets(tmp_path: Path) -> None:
    made = bench(tmp_path, n_sequences=9)
    text = "one text that everybody sends: "
    for adapters in (BASE, A, B, HALF):
        first = made.submit(f"{text}{adapters.scales}", adapters=adapters)
        run(made)
        assert cached(made, first) == 0
    for adapters in (BASE, A, B, HALF):
        again = made.submit(f"{text}{adapters.scales}", adapters=adapters)
        run(made)
        assert cached(made, again) == len(f"{text}{adapters.scales}") - 1


@pytest.mark.parametrize("trimmable", [True, False])
def test_an_activated_lora_continues_what_the_model_alone_computed(tmp_path: Path, *, trimmable: bool) -> None:
    made = bench(tmp_path, n_sequences=4, trimmable=trimmable)
    shared = "a long beginning of a conversation "
    made.submit(shared, Limits(max_tokens=1))
    run(made)
    id_ = made.submit(shared + "now it begins", adapters=late(len(shared)))
    run(made)
    assert cached(made, id_) == len(shared)
    # The next turn begins to apply it later, so what it computed after the first place is of no use.
    longer = shared + "now it begins, and goes on, and again"
    later = made.submit(longer, adapters=late(len(longer) - 5))
    run(made)
    assert cached(made, later) == len(shared)
    base = made.submit(longer)
    run(made)
    assert cached(made, base) == len(longer) - 5


def test_no_chunk_crosses_the_place_where_an_adapter_begins(tmp_path: Path) -> None:
    made = bench(tmp_path, n_batch=64)
    made.submit("x" * 100, Limits(max_tokens=2), adapters=late(30))
    run(made)
    assert made.backend.batches == [30, 64, 6, 1]
    assert made.backend.adapted == [(), *[late(30).scales] * 3]


def twenty(_: str) -> str:
    return "x" * 20


def test_a_step_decodes_once_for_each_set_and_changes_as_rarely_as_it_can(tmp_path: Path) -> None:
    made = bench(tmp_path, n_sequences=4, replies=twenty)
    for text, adapters in (("one", A), ("two", B), ("six", A), ("ten", B)):
        made.submit(text, Limits(max_tokens=10), adapters=adapters)
    run(made)
    assert made.backend.batches == [6, 6, *[2] * 18]
    assert len(made.backend.changes) == 1 + 10, "one change a step: the set in force goes first"


def test_a_change_is_made_only_where_the_set_changes(tmp_path: Path) -> None:
    made = bench(tmp_path)
    for _ in range(3):
        made.submit("text", adapters=A)
        run(made)
    assert made.backend.changes == [A.scales]


def test_chunks_that_are_tried_alone_are_computed_by_their_own_adapters(tmp_path: Path) -> None:
    made = bench(tmp_path, n_sequences=4)
    failures = iter([True, False, False] * 4)

    def fail(_: Sequence[Row]) -> None:
        if next(failures, False):
            raise DecodeError("no reason")

    made.backend.before_decode = fail
    ids = [made.submit(f"text {number}", adapters=each) for number, each in enumerate((A, A, B, late(3)))]
    run(made)
    assert [made.completion(id_).content for id_ in ids] == [f"re: text {number}" for number in range(4)]
    assert next(failures, None) is None, "fewer decodes than failures: this shows nothing"


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from((BASE, A, B, HALF)) | st.integers(1, 12).map(late),
            st.text("ab", min_size=1, max_size=12),
            st.integers(0, 3),
        ),
        min_size=2,
        max_size=12,
    ),
    st.booleans(),
    st.sampled_from((None, 60)),
    st.sampled_from((0, 3)),
)
def test_every_token_is_computed_by_its_requests_adapters(
    tmp_path_factory: pytest.TempPathFactory,
    turns: list[tuple[Adapters, str, int]],
    trimmable: bool,
    pool: int | None,
    drafts: int,
) -> None:
    made = bench(
        tmp_path_factory.mktemp("any"), n_sequences=3, trimmable=trimmable, kv_tokens=pool, draft_max=drafts, n_batch=8
    )
    ids: list[int] = []
    for adapters, text, steps in turns:
        adapters = adapters._replace(start=min(adapters.start, len(text) - 1))
        ids.append(made.submit(text, Limits(max_tokens=6), adapters=adapters, turns=(len(text) // 2,)))
        for _ in range(steps):
            made.step()
            check(made)
    run(made)
    for id_ in ids:
        made.completion(id_)


def info(name: str, digest: str, path: Path, invocation: tuple[int, ...] = ()) -> AdapterInfo:
    return AdapterInfo(name, path, digest, 1.0, "qwen3", 4, 100, invocation)


@pytest.fixture
def names(tmp_path: Path) -> AdapterNames:
    made = AdapterNames()
    adapters = (("one", "1", ()), ("two", "2", ()), ("late", "3", (7, 8)), ("same", "1", ()))
    for key, (name, digest, invocation) in enumerate(adapters):
        made.reserve(name, key)
        made.settle(info(name, digest, tmp_path, invocation), key)
    return made


def test_equal_sets_are_equal_keys(names: AdapterNames) -> None:
    tokens = [1, 2, 3]
    assert names.chosen(["one", "two"], tokens) == names.chosen({"two": 1, "one": 1.0}, tokens)
    assert hash(names.chosen(["one"], tokens)) == hash(names.chosen({"one": 1, "two": 0.0, "late": 0}, tokens))
    assert names.chosen({"one": 0}, tokens) == names.chosen([], tokens) == names.chosen(None, tokens) == BASE
    assert names.chosen({"one": 0.5, "same": 0.25}, tokens) == Adapters((("1", 0.75),))
    assert names.chosen({"one": 0.5, "same": -0.5}, tokens) == BASE


def test_an_activated_lora_begins_at_its_last_invocation(names: AdapterNames) -> None:
    assert names.chosen(["late"], [7, 8, 1, 7, 8, 7, 2]).start == 3
    assert names.chosen(["late"], [1, 7, 7, 8]).start == 2
    assert names.chosen(["late"], [7, 8]) == Adapters((("3", 1.0),), 0)
    assert names.chosen(["late"], [1, 7, 2, 8]) == BASE, "it is not invoked"
    with pytest.raises(RequestError, match=r"'late' is an activated LoRA.*used alone"):
        names.chosen(["one", "late"], [7, 8])


@pytest.mark.parametrize(
    ("named", "says"),
    [
        (["three"], "no adapter 'three'"),
        ({"one": float("nan")}, "scale of the adapter 'one' is nan"),
        ({"one": float("inf")}, "scale of the adapter 'one' is inf"),
        ({"one": 1000.5}, "scale of the adapter 'one' is 1000.5; it must be a number from -1,000 to 1,000"),
        ({"one": -1001}, "scale of the adapter 'one' is -1001"),
        ({"one": 1e39}, "scale of the adapter 'one'"),
        ({"one": 10**400}, "scale of the adapter 'one'"),
        ({"one": True}, "scale of the adapter 'one' is True"),
        ({"one": "1"}, "scale of the adapter 'one' is '1'"),
        ([1], "no adapter 1"),
        ([["one"]], r"no adapter \['one'\]"),
        ("one", r"adapters='one' is not valid; write \[\"name\"\]"),
        (1, "adapters=1 is not valid"),
    ],
)
def test_what_is_no_set_of_adapters_names_those_that_are_loaded(
    names: AdapterNames, named: AdaptersLike, says: str
) -> None:
    with pytest.raises(RequestError, match=rf"{says}.*Loaded are: 'late', 'one', 'same', 'two'\."):
        names.chosen(named, [1])


def test_a_name_is_taken_once(names: AdapterNames) -> None:
    with pytest.raises(RequestError, match="There is an adapter 'one' already"):
        names.reserve("one", 10)
    names.reserve("new", 11)
    with pytest.raises(RequestError, match="'new' already"):
        names.reserve("new", 12)
    names.remove("new", 12)
    with pytest.raises(RequestError, match="'new' already"):
        names.reserve("new", 12)
    names.remove("new", 11)
    names.reserve("new", 12)


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(echo, n_sequences=4)


@pytest.fixture
def service(backend: ScriptedBackend, tmp_path: Path) -> Iterator[Service]:
    with Service(backend) as made:
        (tmp_path / "f").touch()
        for name in ("one", "two"):
            made.load_adapter(info(name, name, tmp_path / "f"))
        yield made


def turn(service: Service, text: str, *named: str) -> Stream:
    return service.submit(TurnRequest(prompt(text), plain, TurnSettings(adapters=named)))


def test_a_drop_waits_for_the_requests_that_use_the_adapter(service: Service, backend: ScriptedBackend) -> None:
    held, reached = threading.Event(), threading.Event()

    def hold(_: Sequence[Row]) -> None:
        reached.set()
        held.wait(20)

    backend.before_decode = hold
    used, other = turn(service, "using it", "one", "two"), turn(service, "not using it", "two")
    assert reached.wait(20)
    dropping = threading.Thread(target=service.drop_adapter, args=("one",))
    dropping.start()
    while "one" in service.adapters:
        time.sleep(0.001)
    with pytest.raises(RequestError, match=r"There is no adapter 'one'\. Loaded are: 'two'"):
        turn(service, "too late", "one")
    dropping.join(0.2)
    assert dropping.is_alive()
    assert "one" in backend.adapters
    held.set()
    assert used.result().finish_reason == "stop"
    dropping.join(20)
    assert not dropping.is_alive()
    assert backend.adapters == {"two"}
    assert other.result().finish_reason == "stop"
    assert turn(service, "x", "two").result().finish_reason == "stop"


def test_what_is_freed_is_in_force_no_longer(service: Service, backend: ScriptedBackend) -> None:
    turn(service, "x", "one").result()
    assert backend.changes == [(("one", 1.0),)]
    service.drop_adapter("one")  # the backend raises if it is in force
    assert backend.changes == [(("one", 1.0),), ()]
    assert turn(service, "x").result().finish_reason == "stop"


def test_a_name_gets_another_file(service: Service, tmp_path: Path) -> None:
    text = "what is said twice"
    assert _cached(service, text, "one") == 0
    assert _cached(service, text, "one") == len(text) - 1
    service.drop_adapter("one")
    service.load_adapter(info("one", "another", tmp_path / "f"))
    assert _cached(service, text, "one") == 0
    service.drop_adapter("one")
    service.load_adapter(info("one", "one", tmp_path / "f"))
    assert _cached(service, text, "one") == len(text) - 1, "the file that computed it is back"


def _cached(service: Service, text: str, *named: str) -> int:
    usage = turn(service, text, *named).result().usage
    assert usage is not None
    return usage.cached_tokens


def test_a_file_with_two_names_stays_until_both_are_dropped(
    service: Service, backend: ScriptedBackend, tmp_path: Path
) -> None:
    service.load_adapter(info("again", "one", tmp_path / "f"))
    service.drop_adapter("one")
    assert "one" in backend.adapters
    assert turn(service, "x", "again").result().finish_reason == "stop"
    service.drop_adapter("again")
    assert "one" not in backend.adapters


def test_a_file_that_cannot_be_loaded_leaves_its_name_free(service: Service, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="There is no file"):
        service.load_adapter(info("three", "three", tmp_path / "missing"))
    assert sorted(service.adapters) == ["one", "two"]
    service.load_adapter(info("three", "three", tmp_path / "f"))
    with pytest.raises(RequestError, match="There is no adapter 'four'"):
        service.drop_adapter("four")


def test_loads_drops_and_turns_at_once(service: Service, backend: ScriptedBackend, tmp_path: Path) -> None:
    wrong: list[BaseException] = []

    def change(name: str) -> None:
        try:
            for number in range(20):
                service.load_adapter(info(name, f"{name}{number % 2}", tmp_path / "f"))
                service.drop_adapter(name)
        except BaseException as error:  # noqa: BLE001 - shown below
            wrong.append(error)

    def talk(name: str) -> None:
        for number in range(60):
            try:
                turn(service, f"text {number}", name, "two").result()
            except RequestError as error:
                if "no adapter" not in str(error) and "was dropped" not in str(error):
                    wrong.append(error)
            except BaseException as error:  # noqa: BLE001 - shown below
                wrong.append(error)

    jobs = [threading.Thread(target=work, args=(name,)) for name in ("p", "q") for work in (change, talk, talk)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    assert not wrong
    assert backend.adapters == {"one", "two"}


def test_a_request_that_was_overtaken_by_a_drop_is_refused(tmp_path: Path) -> None:
    made = bench(tmp_path)
    id_ = made.submit("x", adapters=Adapters((("gone", 1.0),)))
    made.run()
    assert "was dropped before" in str(made.error(id_))


def test_closing_ends_a_drop_that_waits(backend: ScriptedBackend, tmp_path: Path) -> None:
    service = Service(backend)
    (tmp_path / "f").touch()
    service.load_adapter(info("one", "one", tmp_path / "f"))
    backend.delay = 0.05
    stream = service.submit(TurnRequest(prompt("x" * 200), plain, TurnSettings(adapters=["one"])))
    ended = threading.Event()

    def drop() -> None:
        with contextlib.suppress(EngineError):
            service.drop_adapter("one")
        ended.set()

    threading.Thread(target=drop).start()
    while service.adapters:
        time.sleep(0.001)
    service.close()
    assert ended.wait(20)
    assert stream.result().finish_reason == "cancelled"


def test_a_broken_loop_ends_a_drop_that_waits(backend: ScriptedBackend, tmp_path: Path) -> None:
    service = Service(backend)
    (tmp_path / "f").touch()
    service.load_adapter(info("one", "one", tmp_path / "f"))
    going = threading.Event()

    def fail(_: Sequence[Row]) -> None:
        going.wait(20)
        raise SystemExit("broken")

    backend.before_decode = fail
    stream = service.submit(TurnRequest(prompt("x"), plain, TurnSettings(adapters=["one"])))
    errors: list[BaseException] = []

    def drop() -> None:
        try:
            service.drop_adapter("one")
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=drop)
    thread.start()
    while service.adapters:
        time.sleep(0.001)
    time.sleep(0.05)
    going.set()
    thread.join(20)
    assert len(errors) == 1
    assert "loop broke" in str(errors[0])
    with pytest.raises(EngineError, match="loop broke"):
        stream.result()


def test_a_pinned_prefix_is_for_its_adapters(service: Service) -> None:
    text = "a prefix that many share: "
    with service.pin(service.tokens(prompt(text)), TurnSettings(adapters=["one"])):
        assert _cached(service, text + "x", "one") == len(text)
        assert _cached(service, text + "y", "two") == 0
        assert _cached(service, text + "z") == 0


def test_a_score_is_computed_by_its_adapters(service: Service, backend: ScriptedBackend) -> None:
    tokens = tuple(b"before")
    assert service.score(tokens, tuple(b"after"), TurnSettings(adapters=["two"])).result().finish_reason == "stop"
    assert set(backend.adapted) == {(("two", 1.0),)}
    with pytest.raises(RequestError, match="There is no adapter 'x'"):
        service.score(tokens, tuple(b"after"), TurnSettings(adapters=["x"]))
