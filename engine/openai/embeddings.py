"""Embeddings: reads a body with texts or tokens, and writes their vectors. Source: OpenAI API reference, "Create
embeddings"."""

import base64
from typing import Any

from engine.openai.fields import EMBEDDINGS_FIELDS
from engine.openai.input_call import InputCall
from engine.openai.parameters import Json
from engine.openai.problems import bad
from engine.openai.request import Options, Request, read_request
from engine.runtime.stream.embed_queue import Vectors
from engine.runtime.stream.pending import PendingVectors
from engine.turns.embedding import VectorSettings, matrix
from engine.turns.options import EmbedOptions

MOST_TEXTS = 2048
"""Of one request, as in OpenAI's API."""


def read_embeddings(body: Json) -> Request:
    """Read a body of `POST /embeddings`. Raises Problem for what is missing, not valid, or not supported."""
    return read_request(EMBEDDINGS_FIELDS, body, _check_input)


def _check_input(values: Json) -> Options:
    if values.get("input") in (None, []):
        raise bad("input is missing; pass a text, tokens, or a list of either.", "input", "missing_required_parameter")
    given: Any = values["input"]
    if not isinstance(given, str) and not isinstance(given[0], int) and len(given) > MOST_TEXTS:
        raise bad(f"input has {len(given):,} texts; a request may have {MOST_TEXTS:,}: send several.", "input")
    return ()


class Embedding(InputCall):
    """A request for vectors."""

    __slots__ = ()

    def begin(self) -> PendingVectors:
        """Ask for the vectors. Raises what `Embedder.start` raises."""
        given: Any = self.request.values["input"]
        one = isinstance(given, str) or isinstance(given[0], int)
        return self.engine.embedder.start([given] if one else given, self._settings)

    @property
    def _settings(self) -> VectorSettings:
        return VectorSettings.of(self.request.options, EmbedOptions)

    def whole(self, vectors: Vectors) -> Json:
        """Returns the response. Raises RequestError for more dimensions than there are."""
        rows = [self._written(row) for row in matrix(vectors, self._settings)]
        data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
        count = sum(vectors.tokens)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": self.model, "usage": usage}

    def _written(self, row: Any) -> str | list[float]:
        if self.request.values.get("encoding_format") == "base64":
            return base64.b64encode(row.astype("<f4").tobytes()).decode()
        return row.tolist()
