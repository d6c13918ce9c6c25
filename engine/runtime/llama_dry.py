"""llama.cpp's DRY sampler, made once for each setting and then copied.

Knows: that finding a breaker in all tokens of a large vocabulary takes tens of milliseconds, which every running
request would wait for. Does not know: chains.
"""

import ctypes
import weakref
from typing import Any, NamedTuple

from engine.runtime.llama_lib import library
from engine.runtime.llama_vocab import LlamaVocab
from engine.types import SamplingParams

_KEPT = 16  # settings; more are not used at a time


class _Setting(NamedTuple):
    multiplier: float
    base: float
    allowed_length: int
    last_n: int
    breakers: tuple[str, ...]


class DrySamplers:
    """Makes DRY samplers for one vocabulary; owns the originals that they are copied from."""

    def __init__(self, vocab: LlamaVocab) -> None:
        self._vocab = vocab
        self._originals: dict[_Setting, Any] = {}
        self._free = weakref.finalize(self, _free, self._originals)

    def make(self, params: SamplingParams) -> Any:
        """A sampler that has seen no token; whoever takes it frees it."""
        setting = _Setting(
            params.dry_multiplier or 0.0,
            params.dry_base,
            params.dry_allowed_length,
            params.dry_last_n,
            params.dry_breakers,
        )
        original = self._originals.get(setting)
        if original is None:
            if len(self._originals) >= _KEPT:
                _free(self._originals)
            original = self._originals[setting] = self._original(setting)
        return library().llama_sampler_clone(original)

    def close(self) -> None:
        """Free the originals; the copies live on."""
        self._free()

    def _original(self, setting: _Setting) -> Any:
        texts = [text.encode() for text in setting.breakers]
        breakers = (ctypes.c_char_p * len(texts))(*texts)
        return library().llama_sampler_init_dry(
            self._vocab.handle,
            setting.multiplier,
            setting.base,
            setting.allowed_length,
            setting.last_n,
            ctypes.cast(breakers, ctypes.POINTER(ctypes.c_char_p)),
            len(texts),
        )


def _free(originals: dict[_Setting, Any]) -> None:
    for original in originals.values():
        library().llama_sampler_free(original)
    originals.clear()
