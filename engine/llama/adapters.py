"""The adapters of one context: loaded over its model, put in force, freed."""

import ctypes
import os
import re
from pathlib import Path
from typing import Any

from engine.llama.gguf.adapter_file import read_control_vectors
from engine.llama.lib import forget_errors, last_errors
from engine.runtime.adapters.adapters import Scales
from engine.support.errors import EngineError, ModelLoadError, RequestError

_NAMES = re.compile(r"\b\w+: (?=failed to)|failed to apply lora adapter: ")
"""The parts of llama.cpp's errors that only name its functions, or that there is an error."""


class LlamaAdapters:
    """LoRA adapters by the digests of their files. Only the thread that decodes may use it."""

    def __init__(self, lib: Any, model: int, context: int) -> None:
        self._lib, self._model, self._context = lib, model, context
        self._handles: dict[str, Any] = {}

    def load(self, digest: str, path: Path) -> None:
        """Load a file. Raises ModelLoadError with llama.cpp's reason if it refuses it."""
        forget_errors()
        handle = self._lib.llama_adapter_lora_init(self._model, os.fsencode(path))
        if not handle:
            said = _NAMES.sub("", last_errors()).strip() or "it gave no reason"
            raise ModelLoadError(
                f"llama.cpp could not load the adapter {path}: {said}. It must be made for this very model, and "
                "converted by llama.cpp's convert_lora_to_gguf.py."
            )
        self._handles[digest] = handle

    def use(self, scales: Scales) -> None:
        """Compute the next decodes with these adapters and no others. Raises EngineError if llama.cpp refuses them."""
        handles = (self._lib.llama_adapter_lora_p_ctypes * len(scales))(*(self._handles[each] for each, _ in scales))
        numbers = (ctypes.c_float * len(scales))(*(scale for _, scale in scales))
        if code := int(self._lib.llama_set_adapters_lora(self._context, handles, len(scales), numbers)):
            raise EngineError(f"llama.cpp did not put the adapters in force (code {code}); load them again.")

    def free(self, digest: str) -> None:
        """Free a loaded adapter, which is not in force."""
        self._lib.llama_adapter_lora_free(self._handles.pop(digest))

    def close(self) -> None:
        """Free all, after the context and before the model."""
        for digest in list(self._handles):
            self.free(digest)


def steer(lib: Any, model: int, context: int, vectors: tuple[tuple[str, float], ...]) -> bytes:
    """Set the sum of these control vectors on a context, for all that it computes; returns their numbers. Raises
    ModelLoadError for a file that is not for this model, RequestError if llama.cpp refuses them."""
    n_embd, n_layers = int(lib.llama_model_n_embd(model)), int(lib.llama_model_n_layer(model))
    data = read_control_vectors(vectors, n_embd, n_layers)
    if data is None:
        return b""
    numbers = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    forget_errors()
    if lib.llama_set_adapter_cvec(context, numbers, data.size, n_embd, 1, n_layers):
        raise RequestError(f"llama.cpp could not set the control vectors ({last_errors() or 'it gave no reason'}).")
    return data.tobytes()
