"""A minimal llama.cpp loop for the evaluation: text in, text out, control tokens kept."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np


def _quiet(level: int, text: bytes, data: Any) -> None:
    """Drop llama.cpp's log."""


_LOG = llama_cpp.llama_log_callback(_quiet)


class Runtime:
    """One model, one sequence; what two prompts in a row share stays in the cache."""

    def __init__(self, path: Path, context: int = 4096, threads: int = 1) -> None:
        llama_cpp.llama_log_set(_LOG, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if self.model is None:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = context
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.limit = context
        self.cached: list[int] = []

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        room = len(raw) + 8
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), ids, room, False, True)
        return list(ids[:count])

    def piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        length = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, 256, 0, True)
        return buffer.raw[:length]

    def decode(self, tokens: list[int]) -> None:
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(ids, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")
        self.cached += tokens

    def complete(self, prompt: str, stops: tuple[str, ...], temperature: float, rng: np.random.Generator) -> str:
        """What the model writes after `prompt`, its stop token included."""
        ids = self.tokenize(prompt)
        shared = 0
        while shared < min(len(ids) - 1, len(self.cached)) and ids[shared] == self.cached[shared]:
            shared += 1
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), 0, shared, -1)
        del self.cached[shared:]
        self.decode(ids[shared:])
        ends = {self.tokenize(stop)[0] for stop in stops}
        written = b""
        for _ in range(min(600, self.limit - len(ids) - 1)):
            token = self._pick(temperature, rng)
            written += self.piece(token)
            if token in ends:
                break
            self.decode([token])
        return written.decode(errors="replace")

    def _pick(self, temperature: float, rng: np.random.Generator) -> int:
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), shape=(self.size,))
        if temperature <= 0:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / temperature
        chances = np.exp(scaled - scaled.max())
        return int(rng.choice(self.size, p=chances / chances.sum()))
