"""Vectors and ranks of texts: the prompts that models want, tokens, and numbers made of what the thread returns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import exp
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar, cast

from engine.formats.families.embedding import Prefixes, prefixes
from engine.llama.model import ModelInfo
from engine.runtime.loop.backend import Vocab
from engine.runtime.stream.embed_queue import Vectors
from engine.runtime.stream.pending import PendingVectors
from engine.runtime.stream.raw import tokens_of
from engine.support.deadlines import check_time
from engine.support.errors import RequestError, shown
from engine.support.printed import Printed
from engine.turns.model_parts import Lease, ModelParts
from engine.turns.options import checked
from engine.types.prompt import Piece

if TYPE_CHECKING:
    from numpy.typing import NDArray

Text = TypeVar("Text", bound="str | Sequence[int]")
_QUERY, _DOCUMENT = "{query}", "{document}"


@dataclass(frozen=True, slots=True, repr=False)
class Ranked(Printed):
    """A document that a reranker has read: its place in the list that was given, and its score, 0 to 1 unless
    `normalize=False`."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class VectorFacts:
    """On what an engine's vectors or ranks depend beside its weights. `dimensions`: numbers of one vector, or classes
    of a reranker; `longest`: the most tokens of one text; `positions`: what those are for; `query`, `document`: what
    `input_type` puts before a text, None if that is not known."""

    pooling: Literal["mean", "cls", "last", "rank"]
    dimensions: int
    longest: int
    positions: str
    query: str | None
    document: str | None

    def text(self) -> str:
        """Returns the facts as one line of text."""
        if self.pooling == "rank":
            return f"none: a reranker, for query and document in {self.longest:,} tokens"
        size = f"{self.dimensions:,} numbers of a text of up to {self.longest:,} tokens, pooling {self.pooling}"
        if self.query is None:
            return size
        return f"{size}; before a query {self.query!r}, before a document {self.document!r}"


@dataclass(frozen=True, slots=True)
class VectorSettings:
    """`EmbedOptions` or `RerankOptions`, checked, with the default of each option."""

    input_type: Literal["query", "document"] | None = None
    prefix: str | None = None
    dimensions: int | None = None
    top_n: int | None = None
    template: str | None = None
    normalize: bool = True
    truncate: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], kind: type[Mapping[str, Any]]) -> Self:
        """Returns the options. Raises RequestError for one that is not of this kind, and for a value that is not
        valid."""
        return cls(**checked(options, kind))


class _Pairs(NamedTuple):
    """Texts as tokens; a text that is cut keeps its first `head` and its last `tail`."""

    texts: list[tuple[int, ...]]
    head: int
    tail: int


def vector_facts(parts: ModelParts) -> VectorFacts | None:
    """Returns how a model's vectors are made; None for a backend that makes none."""
    info = parts.service.info.vectors
    if info is None:
        return None
    query, document = _prefixes(parts.info) or (None, None)
    return VectorFacts(info.pooling, info.size, info.longest, parts.service.info.positions, query, document)


def _prefixes(info: ModelInfo | None) -> Prefixes | None:
    """Returns what a model wants before queries and documents; None if that is not known."""
    return None if info is None else prefixes(info.name, info.path.name)


class Embedder:
    """Makes the vectors of one engine's model. `lease`: with its context for vectors."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def facts(self) -> VectorFacts | None:
        """How vectors are made; None for a backend that makes none."""
        with self._lease() as parts:
            return vector_facts(parts)

    def start(self, texts: str | Iterable[str | Sequence[int]], settings: VectorSettings) -> PendingVectors:
        """Ask for the vectors of texts; tokens in place of a text are used unchanged. Raises RequestError for texts
        that are not valid."""
        with self._lease() as parts:
            service = parts.service
            service.check_open()
            prefix, vocab = _prefix(settings, parts.info), service.vocab
            if isinstance(texts, Mapping):
                raise RequestError("embed() takes a text, or a list of texts; this is a dictionary.")
            several = [texts] if isinstance(texts, str) else _listed(texts, "embed")
            tokens: list[tuple[int, ...]] = []
            for index, text in enumerate(several):
                check_time()
                if isinstance(text, str):
                    tokens.append((*vocab.encode([Piece(prefix + text)], add_bos=True), *vocab.closing))
                else:
                    tokens.append(tokens_of(vocab, text))
                if not tokens[-1]:
                    raise RequestError(
                        f"Text {index} is empty, and this model's vocabulary adds no tokens to it; leave it out."
                    )
            return service.embed(tokens, len(vocab.closing), truncate=settings.truncate, ranks=False)

    def start_rank(self, query: str, documents: Iterable[str], settings: VectorSettings) -> PendingVectors:
        """Ask for the scores of documents. Raises RequestError for texts that are not valid."""
        with self._lease() as parts:
            service = parts.service
            service.check_open()
            if not isinstance(cast("object", query), str):
                raise RequestError(f"The query of rerank() is a text; this is a {type(query).__name__}.")
            template = settings.template or _template(parts.info)
            pairs = _pairs(service.vocab, query, _listed(documents, "rerank"), template)
            return service.embed(pairs.texts, pairs.tail, pairs.head, truncate=settings.truncate, ranks=True)


def _template(info: ModelInfo | None) -> str | None:
    """Returns the text around a query and a document, of a reranker whose file has one."""
    named = () if info is None else info.named_templates
    return next((each.source for each in named if each.name == "rerank"), None)


def _prefix(settings: VectorSettings, info: ModelInfo | None) -> str:
    kind, prefix = settings.input_type, settings.prefix
    if prefix is not None:
        if kind is not None:
            raise RequestError("Both input_type and prefix say what stands before a text; pass one of them.")
        return prefix
    if kind is None:
        return ""
    if (known := _prefixes(info)) is None:
        raise RequestError(
            f"input_type={shown(kind)} is not known for this model; pass what its model card puts before a {kind} as "
            'prefix= (prefix="" for nothing).'
        )
    return known.query if kind == "query" else known.document


def _pairs(vocab: Vocab, query: str, documents: Sequence[str], template: str | None) -> _Pairs:
    """Returns each document with the query: in the model's own template, else with its vocabulary's separators."""
    if template is None:
        head = (*vocab.encode([Piece(query)], add_bos=True), *vocab.between)
        tails = [(*vocab.encode([Piece(document)], add_bos=False), *vocab.closing) for document in documents]
        return _Pairs([(*head, *tail) for tail in tails], len(head), len(vocab.closing))
    if template.count(_QUERY) != 1 or template.count(_DOCUMENT) != 1:
        raise RequestError(f"A template for rerank() holds {_QUERY} and {_DOCUMENT} once each.")
    before, after = template.split(_DOCUMENT)
    texts = [
        (*vocab.encode([*_filled(before, query), Piece(document), *_filled(after, query)], add_bos=True),
         *vocab.closing)
        for document in documents
    ]  # fmt: skip
    head, tail = (vocab.encode(_filled(part, query), add_bos=part is before) for part in (before, after))
    return _Pairs(texts, len(head), len(tail) + len(vocab.closing))


def _filled(template: str, query: str) -> list[Piece]:
    before, found, after = template.partition(_QUERY)
    return [Piece(before, trusted=True), *([Piece(query)] if found else []), Piece(after, trusted=True)]


def _listed(texts: Iterable[Text], what: str) -> list[Text]:
    """Returns the texts as a list. Raises RequestError if they are not texts (or tokens, for vectors), or none."""
    kinds = (str, Sequence) if what == "embed" else (str,)
    try:
        several = list(texts)
    except TypeError as error:
        raise RequestError(f"{what}() takes texts; this is a {type(texts).__name__}.") from error
    if isinstance(texts, str) or not all(isinstance(cast("object", text), kinds) for text in several):
        raise RequestError(f"{what}() takes a list of texts; something in it is none.")
    if not several:
        raise RequestError(f"{what}() got no texts; pass one at least.")
    return several


def matrix(vectors: Vectors, settings: VectorSettings, *, one: bool = False) -> "NDArray[Any]":
    """Returns the vectors, shape (texts, numbers), float32, or only the first: their first `dimensions`, of length 1
    unless `normalize` is False. Raises RequestError for more dimensions than there are."""
    import numpy as np

    numbers = np.frombuffer(vectors.data, dtype="<f4").reshape(-1, vectors.size).astype(np.float32)
    if (dimensions := settings.dimensions) is not None:
        if dimensions > vectors.size:
            raise RequestError(f"dimensions={dimensions} is more than this model's vectors have: {vectors.size}.")
        numbers = numbers[:, :dimensions].copy()
    if settings.normalize:
        lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
        numbers /= np.where(lengths == 0, 1, lengths)
    return numbers[0] if one else numbers


def numpy_file(numbers: "NDArray[Any]") -> bytes:
    """Returns the content of a NumPy file (.npy)."""
    import numpy as np

    file = BytesIO()
    np.save(file, numbers, allow_pickle=False)
    return file.getvalue()


def ranking(vectors: Vectors, settings: VectorSettings) -> list[Ranked]:
    """Returns the documents, the best first, `top_n` at most. Raises RequestError for a classifier of other classes."""
    import numpy as np

    numbers = np.frombuffer(vectors.data, dtype="<f4").reshape(-1, vectors.size).astype(np.float64)
    column = vectors.labels.index("yes") if "yes" in vectors.labels else 0
    if vectors.size > 1 and "yes" not in vectors.labels:
        names = ", ".join(filter(None, vectors.labels)) or f"{vectors.size} without names"
        raise RequestError(f"This classifier has several classes ({names}), so it does not rank; load a reranker.")
    if vectors.size > 1 and settings.normalize and not np.allclose(numbers.sum(axis=1), 1, atol=1e-3):
        numbers = np.exp(numbers - numbers.max(axis=1, keepdims=True))  # llama.cpp makes probabilities for Qwen3 only
        numbers /= numbers.sum(axis=1, keepdims=True)
    scores = [float(score) for score in numbers[:, column]]
    if vectors.size == 1 and settings.normalize:
        scores = [_logistic(score) for score in scores]
    best = sorted((Ranked(index, score) for index, score in enumerate(scores)), key=lambda each: -each.score)
    return best[: settings.top_n]


def _logistic(value: float) -> float:
    """Returns 1 / (1 + exp(-value)), without an overflow."""
    return 1 / (1 + exp(-value)) if value >= 0 else exp(value) / (1 + exp(value))
