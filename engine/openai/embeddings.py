"""Embeddings: reads a body with texts or tokens, and writes their vectors. Source: OpenAI API reference, "Create
embeddings"."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from engine.errors import EngineError
from engine.openai.fields import EMBEDDINGS_FIELDS, given_fields
from engine.openai.parameters import Json
from engine.openai.problems import Problem, bad, problem_of
from engine.openai.projection import EngineLike
from engine.runtime.service import PendingVectors
from engine.runtime.vectors import Vectors
from engine.vectors import matrix

_OPTIONS = ("dimensions", "input_type", "normalize", "prefix", "truncate")
_NAMES = {name: name for name in _OPTIONS}


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """A body that was read. `options` are those of `Engine.embed`; `base64`: vectors are wanted as text."""

    model: str | None
    texts: Sequence[str | Sequence[int]]
    options: Mapping[str, Any]
    base64: bool
    ignored: tuple[str, ...]


def read_embeddings(body: Json) -> EmbeddingsRequest:
    """Read a body of `POST /embeddings`. Raises Problem for what is missing, not valid, or not supported."""
    fields = given_fields(EMBEDDINGS_FIELDS, body)
    values = fields.values
    return EmbeddingsRequest(
        model=values.get("model"),
        texts=_texts(values.get("input")),
        options={name: values[name] for name in _OPTIONS if name in values},
        base64=values.get("encoding_format") == "base64",
        ignored=fields.ignored,
    )


def _texts(value: Any) -> Sequence[str | Sequence[int]]:
    if value is None or value == []:
        raise bad("input is missing; pass a text, tokens, or a list of either.", "input", "missing_required_parameter")
    if isinstance(value, str):
        return [value]
    items = cast("list[Any]", value)
    return [items] if isinstance(items[0], int) else items


@dataclass(frozen=True, slots=True)
class EmbeddingsAsk:
    """A request to one engine, which is served under this name."""

    engine: EngineLike
    request: EmbeddingsRequest
    name: str

    def begin(self) -> PendingVectors:
        """Ask for the vectors. Raises Problem for what the engine refuses."""
        try:
            return self.engine.embedder.start(self.request.texts, self.request.options)
        except EngineError as error:
            raise self.problem(error) from error

    def problem(self, error: EngineError) -> Problem:
        problem = problem_of(error, {"messages": "input", **_NAMES})
        if problem.status == 400 and problem.param is None:  # what is wrong, if no option is, is the input
            problem.param = "input"
        return problem

    def body(self, vectors: Vectors) -> Json:
        """Returns the response. Raises Problem for more dimensions than there are."""
        try:
            numbers = matrix(vectors, cast("Any", self.request.options))
        except EngineError as error:
            raise self.problem(error) from error
        rows = [self._written(row) for row in numbers]
        data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
        count = sum(vectors.tokens)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": self.name, "usage": usage}

    def _written(self, row: Any) -> str | list[float]:
        return base64.b64encode(row.astype("<f4").tobytes()).decode() if self.request.base64 else row.tolist()
