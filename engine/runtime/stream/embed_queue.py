"""Vectors of texts: what the engine's thread needs to make them, and the queue of requests that it takes texts from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple, Protocol

from engine.support.errors import DecodeError, RequestError


@dataclass(frozen=True, slots=True)
class VectorInfo:
    """What a context for vectors makes of a text.

    - `pooling`: how the vectors of a text's tokens become one; "rank": the scores of a classifier. `labels`: the names
      of those scores, where the file has them.
    - `size`: the numbers of one vector. `longest`: the most tokens of one text.
    - `rows`, `sequences`: the most tokens and texts of one decode. A single text may have more tokens than `rows`.
    """

    pooling: Literal["mean", "cls", "last", "rank"]
    size: int
    longest: int
    rows: int
    sequences: int
    labels: tuple[str, ...] = ()


class VectorContext(Protocol):
    """A context that makes vectors. Only one thread may call it, except for `abort`."""

    @property
    def info(self) -> VectorInfo: ...

    def embed(self, texts: Sequence[Sequence[int]]) -> list[bytes]:
        """Returns the vector of each text, as float32 numbers. The texts fit into one decode. Raises DecodeError."""
        ...

    def abort(self) -> None:
        """Make the decode that is running stop with DecodeError, where that is possible. From any thread."""
        ...


@dataclass(frozen=True, slots=True)
class Embed:
    """Make the vectors of these texts, given as tokens. With `truncate` a text that is too long loses tokens between
    its first `head` and its last `tail`; without, it is an error. `ranks`: the scores of a classifier are wanted."""

    id: int
    texts: tuple[tuple[int, ...], ...]
    tail: int = 0
    truncate: bool = False
    ranks: bool = False
    head: int = 0


class Vectors(NamedTuple):
    """The vectors of a request's texts: `data` holds `size` float32 numbers for each, in order. `tokens`: how many
    tokens of each text were read."""

    data: bytes
    size: int
    tokens: tuple[int, ...]
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class _Job:
    """A request under way: its texts, and the vectors made so far."""

    id: int
    texts: Sequence[Sequence[int]]
    done: list[bytes] = field(default_factory=list[bytes])


class VectorQueue:
    """Requests for vectors in the order in which they came. One decode takes texts of several of them."""

    def __init__(self) -> None:
        self.jobs: dict[int, _Job] = {}
        """The requests under way, by id."""
        self._running: frozenset[int] = frozenset()
        self._alone = False

    @property
    def running(self) -> frozenset[int]:
        """The requests whose texts are being decoded. May be read from any thread."""
        return self._running

    def add(self, request: Embed, info: VectorInfo) -> None:
        """Accept a request. Raises RequestError for one that this context cannot serve."""
        if request.ranks != (info.pooling == "rank"):
            raise RequestError(
                "This model is no reranker: it has no classifier; load one, or compare the vectors of embed()."
                if request.ranks
                else "This model is a reranker, which has no vectors; use rerank(), or load an embedding model."
            )
        texts = [_shortened(request, index, info.longest) for index in range(len(request.texts))]
        self.jobs[request.id] = _Job(request.id, texts)

    def cancel(self, id_: int) -> bool:
        """Forget a request; returns whether there was one."""
        return self.jobs.pop(id_, None) is not None

    def clear(self) -> list[int]:
        """Forget all requests; returns their ids."""
        ids = list(self.jobs)
        self.jobs.clear()
        return ids

    def step(self, context: VectorContext, rows: int | None = None) -> Iterator[tuple[int, Vectors | Exception]]:
        """Decode the next texts, of `rows` tokens together at most (but one text at least); yields the requests that
        this ended. If a decode of several requests fails, each is decoded alone, so that only the one at fault ends."""
        parts = list(self._next(context.info, context.info.rows if rows is None else min(rows, context.info.rows)))
        self._running = frozenset(job.id for job, _ in parts)
        try:
            vectors = context.embed([text for _, texts in parts for text in texts])
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends no other request
            if isinstance(error, DecodeError) and error.reason == "aborted":  # by a cancellation: the others go on
                return
            if len(parts) == 1 and self.cancel(parts[0][0].id):
                yield parts[0][0].id, error
            self._alone = len(parts) > 1
            return
        finally:
            self._running = frozenset()
        start = 0
        for job, texts in parts:
            job.done += vectors[start : start + len(texts)]
            start += len(texts)
            if job.id in self.jobs:  # behind the others, so that a long list delays no short one
                self.jobs[job.id] = self.jobs.pop(job.id)
            if len(job.done) == len(job.texts) and self.cancel(job.id):
                yield job.id, _whole(job, context.info)
        self._alone = False

    def _next(self, info: VectorInfo, most: int) -> Iterator[tuple[_Job, list[Sequence[int]]]]:
        """Yields requests with the texts of theirs that the next decode holds together."""
        rows = sequences = 0
        for job in list(self.jobs.values()):
            texts: list[Sequence[int]] = []
            for text in islice(job.texts, len(job.done), len(job.done) + info.sequences):
                if sequences and (sequences == info.sequences or rows + len(text) > most):
                    break
                texts.append(text)
                rows, sequences = rows + len(text), sequences + 1
            if texts:
                yield job, texts
            if self._alone or len(job.done) + len(texts) < len(job.texts):
                return


def _whole(job: _Job, info: VectorInfo) -> Vectors | MemoryError:
    try:
        return Vectors(b"".join(job.done), info.size, tuple(map(len, job.texts)), info.labels)
    except MemoryError as error:
        return error


def _shortened(request: Embed, index: int, longest: int) -> Sequence[int]:
    text = request.texts[index]
    if len(text) <= longest:
        return text
    if not request.truncate:
        raise RequestError(
            f"Text {index} has {len(text):,} tokens, and one text may have {longest:,}; shorten it, split it, or pass "
            "truncate=True to read its beginning only."
        )
    around = request.head + request.tail
    if longest <= around:
        raise RequestError(
            f"One text may have {longest:,} tokens, and what stands around it takes {around:,}, so nothing of it would "
            "be read; shorten the query."
        )
    return (*text[: longest - request.tail], *text[len(text) - request.tail :])
