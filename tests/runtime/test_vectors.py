"""Requests for vectors in the engine's thread: order, failures, cancellation, closing; without weights."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fakes.inside import parts

from engine import ChatTemplate, Engine, off_loop
from engine.formats.families.embedding import prefixes
from engine.runtime.stream.embed_queue import Embed, VectorInfo, VectorQueue, Vectors
from engine.support.errors import DecodeError, EngineError, QueueFullError, RequestError
from engine.testing.scripted import ScriptedBackend
from engine.turns.embedding import VectorSettings

INFO = VectorInfo("mean", 1, longest=8, rows=8, sequences=3)


class Recorded:
    """A context that notes the lengths of the texts of each decode; `fails` says which texts cannot be decoded."""

    def __init__(self, fails: Sequence[int] = (), reason: Any = "failed") -> None:
        self.info = INFO
        self.decodes: list[list[int]] = []
        self.fails = set(fails)
        self.reason: Any = reason

    def embed(self, texts: Sequence[Sequence[int]]) -> list[bytes]:
        self.decodes.append([len(text) for text in texts])
        if self.fails.intersection(text[0] for text in texts):
            raise DecodeError("no", self.reason)
        return [np.float32(text[0]).tobytes() for text in texts]

    def abort(self) -> None: ...


def request(id_: int, *lengths: int, **options: Any) -> Embed:
    return Embed(id_, tuple((id_,) * length for length in lengths), **options)


def made(queue: VectorQueue, context: Recorded) -> dict[int, Vectors | Exception]:
    ended: dict[int, Vectors | Exception] = {}
    while queue.jobs:
        ended.update(queue.step(context))
    return ended


def test_one_decode_takes_texts_of_several_requests_as_far_as_they_fit() -> None:
    queue, context = VectorQueue(), Recorded()
    for number, lengths in enumerate([(3, 3), (2,), (8,), (1, 1, 1, 1)], 1):
        queue.add(request(number, *lengths), INFO)
    ended = made(queue, context)
    assert context.decodes == [[3, 3, 2], [8], [1, 1, 1], [1]]
    assert [len(vectors.tokens) for vectors in ended.values() if isinstance(vectors, Vectors)] == [2, 1, 1, 4]
    first = ended[1]
    assert isinstance(first, Vectors)
    assert np.frombuffer(first.data, "<f4").tolist() == [1.0, 1.0]


def test_a_failed_decode_ends_the_request_at_fault_alone() -> None:
    queue, context = VectorQueue(), Recorded(fails=[2])
    for number in (1, 2, 3):
        queue.add(request(number, 2), INFO)
    ended = made(queue, context)
    assert isinstance(ended[2], DecodeError)
    assert isinstance(ended[1], Vectors)
    assert isinstance(ended[3], Vectors)


def test_an_aborted_decode_is_done_again_for_those_that_remain() -> None:
    queue, context = VectorQueue(), Recorded(fails=[1], reason="aborted")
    queue.add(request(1, 2), INFO)
    queue.add(request(2, 2), INFO)
    assert list(queue.step(context)) == []
    assert queue.cancel(1)
    assert list(made(queue, context)) == [2]


def test_a_text_that_is_too_long_loses_its_end_but_not_what_closes_it() -> None:
    queue = VectorQueue()
    with pytest.raises(RequestError, match="Text 1 has 9 tokens, and one text may have 8"):
        queue.add(Embed(1, ((1,), tuple(range(9))), tail=1), INFO)
    assert not queue.jobs
    seen: list[Sequence[int]] = []
    context = Recorded()
    context.embed = lambda texts: [seen.append(text) or b"\0\0\0\0" for text in texts]  # type: ignore[method-assign]
    queue.add(Embed(1, (tuple(range(20)),), tail=2, truncate=True), INFO)
    (ended,) = queue.step(context)
    assert seen == [(0, 1, 2, 3, 4, 5, 18, 19)]
    assert isinstance(ended[1], Vectors)
    assert ended[1].tokens == (8,)


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(["fine"] * 10, n_ctx=64, dimensions=64)


@pytest.fixture
def llm(backend: ScriptedBackend) -> Iterator[Engine]:
    with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm:
        yield llm


def test_texts_that_share_words_are_near_on_a_scripted_model(llm: Engine, backend: ScriptedBackend) -> None:
    query, near, far = llm.embed(["red apple", "a red apple", "blue sea"])
    assert query @ near > 0.8 > 0.1 > query @ far
    assert backend.vectors().texts == ["red apple", "a red apple", "blue sea"]


def test_what_is_no_text_is_refused_by_name(llm: Engine) -> None:
    with pytest.raises(RequestError, match="no texts"):
        llm.embed([])
    with pytest.raises(RequestError, match="something in it is none"):
        llm.embed(["a", 3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(RequestError, match="takes texts"):
        llm.embed(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RequestError, match="Text 1 is empty"):
        llm.embed(["a", ""])
    with pytest.raises(RequestError, match="no reranker"):
        llm.rerank("a", ["b"])
    with pytest.raises(RequestError, match="There is no option 'dimension'"):
        llm.embed("a", dimension=3)  # pyright: ignore[reportCallIssue]


def test_prefixes_that_a_model_wants_are_data() -> None:
    assert prefixes("nomic-embed-text-v1.5.Q8_0.gguf") == ("search_query: ", "search_document: ")
    assert prefixes("", "Snowflake Arctic Embed L v2.0") == ("query: ", "")
    assert prefixes("snowflake-arctic-embed-m") == ("Represent this sentence for searching relevant passages: ", "")
    assert prefixes("multilingual-e5-large-instruct-q8") != prefixes("multilingual-e5-large-q8")
    assert prefixes("llama") is None


def test_a_prefix_is_put_before_each_text(llm: Engine, backend: ScriptedBackend) -> None:
    llm.embed(["a", "b"], prefix="query: ")
    assert backend.vectors().texts == ["query: a", "query: b"]
    with pytest.raises(RequestError, match="input_type='query' is not known for this model"):
        llm.embed("a", input_type="query")
    with pytest.raises(RequestError, match="pass one of them"):
        llm.embed("a", input_type="query", prefix="")


def test_cancelling_the_task_cancels_its_request(llm: Engine, backend: ScriptedBackend) -> None:
    vectors, begun, go = backend.vectors(), threading.Event(), threading.Event()
    embed = vectors.embed

    def slowly(texts: Sequence[Sequence[int]]) -> list[bytes]:
        begun.set()
        go.wait(10)
        return embed(texts)

    vectors.embed = slowly  # type: ignore[method-assign]
    runner: Any = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
    cancel, told = runner.cancel, threading.Event()

    def noted(id_: int) -> None:
        cancel(id_)
        told.set()

    runner.cancel = noted

    async def ask() -> None:
        task = asyncio.create_task(off_loop(llm.embed, ["text"] * 500))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(told.wait, 10)  # the worker thread, which still starts it, tells
        go.set()

    asyncio.run(ask())
    assert llm.embed("other").shape == (64,)
    assert len(vectors.texts) < 500


def test_closing_ends_what_waits_for_vectors(backend: ScriptedBackend) -> None:
    llm = Engine.over(backend, ChatTemplate(None, family="qwen3"))
    vectors, begun, go = backend.vectors(), threading.Event(), threading.Event()

    def never(texts: Sequence[Sequence[int]]) -> list[bytes]:
        begun.set()
        go.wait(10)
        raise DecodeError("aborted", "aborted")

    vectors.embed = never  # type: ignore[method-assign]
    errors: list[Exception] = []

    def wait() -> None:
        try:
            llm.embed(["text"] * 3)
        except EngineError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait(10)
    threading.Timer(0.1, go.set).start()
    llm.close()
    waiting.join(10)
    assert len(errors) == 1
    assert "closed" in str(errors[0])
    with pytest.raises(EngineError, match="closed"):
        llm.embed("more")


def test_vectors_and_scores_count_among_the_requests_that_may_wait(backend: ScriptedBackend) -> None:
    from engine.runtime.loop.config import LoopOptions

    with Engine.over(backend, ChatTemplate(None, family="qwen3"), options=LoopOptions(max_waiting=0)) as llm:
        hold = threading.Event()
        backend.vectors().embed = lambda texts: (hold.wait(10), [b"\0" * 256 for _ in texts])[1]  # type: ignore[method-assign]
        pending = [llm.embedder.start("a", VectorSettings()) for _ in range(4)]
        with pytest.raises(QueueFullError):
            llm.embed("b")
        hold.set()
        assert all(one.result().size == 64 for one in pending)


def test_a_short_request_does_not_wait_for_a_long_one() -> None:
    queue, context = VectorQueue(), Recorded()
    queue.add(request(1, *[8] * 20), INFO)
    queue.add(request(2, 3), INFO)
    ends: list[int] = []
    while queue.jobs:
        ends += [id_ for id_, _ in queue.step(context)]
    assert ends == [2, 1]
    assert context.decodes.index([3]) <= 1


def test_whatever_a_decode_raises_ends_no_other_request() -> None:
    queue, context = VectorQueue(), Recorded()
    embed = context.embed

    def breaks(texts: Sequence[Sequence[int]]) -> list[bytes]:
        if texts[0][0] == 1 or texts[-1][0] == 1:
            raise MemoryError("no memory")
        return embed(texts)

    context.embed = breaks  # type: ignore[method-assign]
    queue.add(request(1, 2), INFO)
    queue.add(request(2, 2), INFO)
    ended = made(queue, context)
    assert isinstance(ended[1], MemoryError)
    assert isinstance(ended[2], Vectors)


@pytest.mark.parametrize("texts", [[[5.0, 6.0]], [["a"]], [b"abc"], b"abc", [[10**9]], [[-1]]])
def test_tokens_that_are_none_are_refused_before_the_engines_thread(llm: Engine, texts: Any) -> None:
    with pytest.raises(RequestError):
        llm.embed(texts)
    assert llm.embed("still open").shape == (64,)


def test_a_result_can_be_asked_for_twice(llm: Engine) -> None:
    pending = llm.embedder.start("a", VectorSettings())
    assert pending.result() == pending.result()


def test_a_score_is_no_turn_that_later_prompts_continue() -> None:
    with Engine.over(ScriptedBackend(["fine"] * 3), ChatTemplate(None, family="qwen3")) as llm:
        llm.score("a secret of someone else", ["hello world"])
        done = llm.complete("hello world, again", max_tokens=1)
    assert done.usage
    assert (done.usage.prompt_tokens, done.usage.cached_tokens) == (len("hello world, again"), 0)
