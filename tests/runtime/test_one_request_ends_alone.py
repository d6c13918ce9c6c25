"""Whatever one request brings or raises, a SystemExit too, ends that request; everybody else's goes on."""

import hashlib
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from attacks import forged_states
from fakes.doubles import Bench, echo, plain, prompt
from files import model_zoo

from engine import Engine, StateStore
from engine.formats.parsing import Parser
from engine.formats.template.chat_template import ChatTemplate
from engine.runtime.cache.state_file import Origin, SavedState, read_state, write_state
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import LoopOptions
from engine.runtime.loop.request import TurnRequest
from engine.runtime.stream.service import Service
from engine.support.errors import QueueFullError, RequestError
from engine.testing.scripted import ScriptedBackend
from engine.types.completion import Completion
from engine.types.events import Event
from engine.types.sampling import FinishReason
from engine.types.turn_settings import TurnSettings


class Quit(BaseException):
    """What no `except Exception` catches."""


RAISED = (SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Quit("mine"), MemoryError(), RecursionError("deep"))


@pytest.fixture(params=RAISED, ids=lambda raised: type(raised).__name__)
def raised(request: pytest.FixtureRequest) -> BaseException:
    return request.param


def told(error: BaseException, raised: BaseException) -> bool:
    """Whether the reader's error is what was raised, or says so; never one that ends a thread."""
    assert isinstance(error, Exception)
    return error is raised or (type(raised).__name__ in str(error) and error.__cause__ is raised)


class Breaking(Parser):
    """Raises in one of its methods."""

    def __init__(self, where: str, raised: BaseException) -> None:
        super().__init__("content-only")
        self._where, self._raised = where, raised

    def feed(self, text: str, special: bool = False) -> list[Event]:
        if self._where == "feed":
            raise self._raised
        return super().feed(text, special)

    def close(self, finish_reason: FinishReason = "stop") -> list[Event]:
        if self._where == "close":
            raise self._raised
        return super().close(finish_reason)


@pytest.mark.parametrize("where", ["make", "feed", "close"])
def test_a_parser(where: str, raised: BaseException) -> None:
    def make() -> Parser:
        if where == "make":
            raise raised
        return Breaking(where, raised)

    bench = Bench(echo, n_sequences=3)
    fine = [bench.submit("one"), bench.submit("two")]
    bench.step()
    broken = bench.submit("bad", parser=make)
    bench.run()
    assert told(bench.error(broken), raised)
    assert [bench.completion(id_).content for id_ in fine] == ["re: one", "re: two"]


@pytest.mark.parametrize("method", ["sampler", "sample"])
def test_what_the_backend_makes_of_its_options(
    method: str, raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(echo, n_sequences=3)
    fine = bench.submit("one")
    bench.step()
    usual: Callable[..., Any] = getattr(bench.backend, method)
    failing = iter([raised])

    def once(*args: Any, **options: Any) -> Any:
        if args[:1] != (0,) and (error := next(failing, None)) is not None:
            raise error
        return usual(*args, **options)

    monkeypatch.setattr(bench.backend, method, once)
    broken = bench.submit("bad")
    bench.run()
    ended = {id_: bench.replies[id_][-1].error for id_ in (fine, broken)}
    assert sum(error is not None and told(error, raised) for error in ended.values()) == 1
    again = bench.submit("again")
    bench.run()
    assert bench.completion(again).content == "re: again"


def test_progress_and_what_follows_a_turn(raised: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    def stop(*_: object) -> None:
        raise raised

    with Service(ScriptedBackend(echo, n_batch=4, n_sequences=3)) as service:
        fine = service.submit(TurnRequest(prompt("f" * 30), plain))
        broken = service.submit(TurnRequest(prompt("b" * 30), plain, TurnSettings(progress=stop)))
        followed = service.submit(TurnRequest(prompt("c"), plain, ended=stop))
        with pytest.raises(Exception, match=r".*") as caught:
            broken.result(timeout=30)
        assert told(caught.value, raised)
        assert fine.result(timeout=30).content == f"re: {'f' * 30}"
        assert followed.result(timeout=30).content == "re: c"
    assert "the turn itself is complete" in caplog.text


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.load(n_ctx=512, n_sequences=3, n_threads=1, preflight=False) as llm:
        yield llm


def test_a_logits_processor(llm: Engine, raised: BaseException) -> None:
    def stop(tokens: Sequence[int], _logits: object) -> None:
        if tokens[-1:]:
            raise raised

    fine = llm.stream("Hello!", temperature=0)
    broken = llm.stream("Who are you?", logits_processors=[stop])
    with pytest.raises(RequestError, match=type(raised).__name__) as caught:
        broken.result(timeout=60)
    assert caught.value.__cause__ is raised
    assert fine.result(timeout=60).content == "Hello! How can I help?"
    assert llm.chat("Hello!", temperature=0).content == "Hello! How can I help?"


def leave(_tokens: Sequence[int], _logits: object) -> None:
    raise SystemExit(3)


def test_a_logits_processor_in_a_child() -> None:
    with Engine.load(n_ctx=256, n_sequences=2, n_threads=1, preflight=False, isolated=True) as llm:
        with pytest.raises(RequestError, match="SystemExit"):
            llm.chat("x", logits_processors=[leave])
        assert llm.chat("Hello!", temperature=0).content == "Hello! How can I help?"


SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 10}
ASKED = [SYSTEM, {"role": "user", "content": "Hello!"}]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The file of a state that a store keeps, in `tmp_path`."""
    assert answered(tmp_path) == 0
    (path,) = tmp_path.glob("*/*.state")
    return path


def answered(folder: Path) -> int:
    """Ask with the states in a folder, beside another request; returns how much of the prompt came from there."""
    states = StateStore(0, folder, 1 << 30)
    options: dict[str, Any] = {"n_ctx": 512, "n_sequences": 3, "n_threads": 1, "preflight": False}
    with Engine.load(kv_unified=False, states=states, **options) as llm:  # a pool would share the first token
        running = llm.stream("Hello!", temperature=0)
        answer = llm.chat(ASKED, temperature=0)
        assert running.result(timeout=60).content == "Hello! How can I help?"
        assert answer.content == "Hello! How can I help?"
        assert answer.usage is not None
        return answer.usage.cached_tokens


def parts(path: Path) -> tuple[int, dict[str, Any], bytes]:
    """Where the head of a state file begins, the head, and the state."""
    data = path.read_bytes()
    start = data.index(b"\n") + 1
    length = int.from_bytes(data[start : start + 4], "little")
    return start, json.loads(data[start + 4 : start + 4 + length]), data[start + 4 + length : -32]


def test_a_state_whose_tokens_are_not_its_own(kept: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole, (_, head, state) = kept.read_bytes(), parts(kept)
    tokens, origin = tuple(head["tokens"]), Origin(**head["origin"])
    for changed in (tokens[:-1], (*tokens, 5), tokens * 3):
        alone(kept, tmp_path)
        caplog.clear()
        write_state(kept, origin, SavedState(changed, state))
        assert answered(tmp_path) == 0
        assert f"holds {len(tokens)} positions, but its file lists {len(changed)} tokens" in caplog.text
    for changed in ((-1,) * len(tokens), (10**9,) * len(tokens), ()):
        alone(kept, tmp_path)
        write_state(kept, origin, SavedState(changed, state))
        assert answered(tmp_path) == 0
    alone(kept, tmp_path)
    kept.write_bytes(whole)
    assert answered(tmp_path) > 64


def alone(path: Path, folder: Path) -> None:
    """Leave one file of the states in a folder."""
    for other in folder.glob("*/*.state"):
        if other != path:
            other.unlink()


def test_a_state_file_that_was_written_by_somebody_else(tmp_path: Path) -> None:
    """Heads of any JSON under a right digest, and states of any bytes: named errors."""
    path, origin = tmp_path / "state", Origin("model", "0", "f16", "f16", "auto", "", True, 1)
    write_state(path, origin, SavedState(tuple(range(100)), b"state" * 100))
    data = path.read_bytes()[:-32]
    magic, head, state = parts(path)
    rng = random.Random(1)
    heads: list[Any] = [
        {},
        [],
        5,
        None,
        {"origin": head["origin"]},
        {"tokens": head["tokens"]},
        {**head, "tokens": None},
        {**head, "tokens": ["x"]},
        {**head, "tokens": [[5]]},
        {**head, "tokens": [1.5]},
        {**head, "tokens": {"a": 1}},
        {**head, "origin": None},
        {**head, "origin": {}},
        {**head, "origin": {**head["origin"], "more": 1}},
        {**head, "origin": {**head["origin"], "model": 5}},
    ]
    bodies = [json.dumps(each).encode() for each in heads] + [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 10_000]
    written = [data[:magic] + len(body).to_bytes(4, "little") + body + state for body in bodies]
    written += [data[:magic] + at.to_bytes(4, "little") + data[magic + 4 :] for at in (0, 2**32 - 1, len(data))]
    files = [whole + hashlib.sha256(whole).digest() for whole in written]
    files += [data[:cut] + bytes(rng.randrange(256) for _ in range(40)) for cut in (0, 5, len(data) // 2)]
    for whole in files:
        path.write_bytes(whole)
        with pytest.raises(RequestError):
            read_state(path, origin)


@pytest.mark.parametrize("cut", [1, 33, 200])
def test_a_damaged_state_file(kept: Path, tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    """Cut off, lengthened, or with a byte changed anywhere: refused by name before llama.cpp sees it."""
    data = kept.read_bytes()
    rng = random.Random(cut)
    at = rng.randrange(len(data))
    for changed in (data[:-cut], data + bytes(cut), data[:at] + bytes([data[at] ^ cut]) + data[at + 1 :]):
        alone(kept, tmp_path)
        caplog.clear()
        kept.write_bytes(changed)
        assert answered(tmp_path) == 0
        assert "A state is not used" in caplog.text


@pytest.mark.parametrize("kind", ["llama", "gemma2", "falcon-h1"])
def test_a_forged_state_takes_no_process(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model_zoo.model(kind).encoded())
    found = forged_states.attack(path, seed=1, count=40)
    assert not found.died
    assert not found.wrong, "\n".join(found.wrong)
    assert found.refused + found.restored == 40
    assert found.refused > 5


def test_no_more_wait_than_may() -> None:
    hold = threading.Event()

    def wait(_: object) -> None:
        hold.wait(30)

    backend = ScriptedBackend(echo, n_sequences=2, before_decode=wait)
    with Service(backend, LoopOptions(max_waiting=3)) as service:
        streams = [service.submit(TurnRequest(prompt(f"p{number}"), plain)) for number in range(5)]
        with pytest.raises(QueueFullError, match=r"5 requests run or wait already, and max_waiting=3 .*max_waiting="):
            service.submit(TurnRequest(prompt("p5"), plain))
        hold.set()
        assert [stream.result(timeout=30).content for stream in streams] == [f"re: p{n}" for n in range(5)]
        assert service.submit(TurnRequest(prompt("later"), plain)).result(timeout=30).content == "re: later"


def test_generate_keeps_within_what_may_wait() -> None:
    """Also beside others, who take two of the three places."""
    hold = threading.Event()

    def wait(_rows: Sequence[Row]) -> None:
        hold.wait(20)

    backend = ScriptedBackend(lambda text: text.rsplit("number ", 1)[1][:3], n_sequences=2, before_decode=wait)
    rows = [f"number {number:03}" for number in range(20)]
    with Engine.over(backend, ChatTemplate(None, family="qwen3"), options=LoopOptions(max_waiting=1)) as llm:
        others = llm.choices("number 777", 2, reasoning=False)
        threading.Timer(0.3, hold.set).start()
        answers = llm.generate(rows, reasoning=False)
        kept = llm.generate(rows, on_error="return", reasoning=False)
        assert [other.result().content for other in others] == ["777", "777"]
    for found in (answers, kept):
        assert [answer.content for answer in found if isinstance(answer, Completion)] == [row[7:] for row in rows]
