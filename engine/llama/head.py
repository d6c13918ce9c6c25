"""The context of a model's own head for the next tokens (MTP, NextN), which reads the hidden states of the model's
context. Implements `engine.runtime.draft.drafter.Head`.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.llama.batch import LlamaBatch
from engine.llama.context import LlamaBackend, Weights
from engine.llama.gguf.gguf import GgufFile
from engine.llama.lib import library, nextn
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions
from engine.support.errors import DecodeError

_MTP = 1  # enum llama_context_type (llama.h)
_ARCHITECTURES = frozenset(
    ("cohere2moe", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "hy_v3", "mimo2", "step35")
)  # fmt: skip
_RECURRENT = frozenset(("bailingmoe3", "deepseek4", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next"))
"""Architectures whose heads llama.cpp computes (src/models, LLM_GRAPH_TYPE_DECODER_MTP), and those of them with a
hybrid memory (llama-arch.cpp, `llm_arch_is_hybrid`)."""


def why_no_head(file: GgufFile) -> str | None:
    """Returns why a model cannot guess with a head of its own; None if it can."""
    if not file.shape.nextn_layers:
        return f"{file.path} has no head for the next tokens (MTP)"
    if file.architecture not in _ARCHITECTURES | _RECURRENT:
        return f"llama.cpp does not compute the heads of {file.architecture}"
    if file.architecture in _RECURRENT:
        return f"{file.path} keeps a recurrent memory, from which wrong guesses cannot be cut off"
    if nextn() is None:
        return "the installed llama-cpp-python does not give the hidden states that a head reads"
    return None


def head_file(file: GgufFile) -> GgufFile:
    """Returns the head of a model as a file of its own, for the plan of memory."""
    shape = file.shape
    return replace(file, shape=replace(shape, layers=shape.layers[-shape.nextn_layers :]))


def hidden_bytes(file: GgufFile, options: ContextOptions) -> int:
    """Returns the bytes in which a context keeps the hidden states of all rows of a decode."""
    return options.n_batch * file.shape.n_embd * 4


class LlamaHead(LlamaBackend):
    """Reads the hidden states of `trunk`, a context of the same model, which must be loaded with its head."""

    def __init__(self, model: Weights, trunk: LlamaBackend, window: int) -> None:
        options = replace(trunk.options, outputs_per_sequence=1, control_vectors=())
        info = replace(trunk.info, n_outputs=options.n_outputs(trunk.info.n_sequences))
        super().__init__(model, options, trunk.cells, info, window=window, context_type=_MTP)
        self._width = int(library().llama_model_n_embd_out(model.handle))
        self._batch = LlamaBatch(library(), info.n_batch, self._width)
        self._trunk = trunk
        self._nextn: Any = nextn()
        self._nextn.llama_set_embeddings_nextn(trunk.handle, True, False)  # of all rows
        self._nextn.llama_set_embeddings_nextn(self.handle, True, True)  # of rows with logits

    def hidden(self, start: int, stop: int) -> list[bytes]:
        """Returns the model's hidden states after rows `start` to `stop` of its last decode, `n_embd` float32 numbers
        each. Raises DecodeError if llama.cpp has none."""
        return self._states(self._trunk.handle, start, stop - start)

    def own_hidden(self, row: int) -> bytes:
        """Returns the head's own state after a row with output."""
        return self._states(self.handle, row, 1)[0]

    def _states(self, context: int, row: int, count: int) -> list[bytes]:
        pointer = self._nextn.llama_get_embeddings_nextn_ith(context, row)
        if not pointer:
            raise DecodeError(f"llama.cpp has no hidden state for row {row}.")
        first, size = ctypes.addressof(pointer.contents), 4 * self._width
        return [ctypes.string_at(first + size * number, size) for number in range(count)]

    def read(self, rows: Sequence[Row], hidden: Sequence[bytes | None]) -> None:
        """Evaluate the rows, each with the hidden state after the token before it; None counts as zeros, as before the
        first token. Raises DecodeError."""
        self._batch.states(hidden)
        self.decode(rows)
