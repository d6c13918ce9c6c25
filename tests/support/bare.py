"""A minimal decoding loop over llama.cpp's C functions, as a baseline for benchmarks.

No text, no events, no cancelling: tokens in, tokens out. Contexts have the engine's batch size and KV layout, sequences
the sampler chain that llama.cpp's own tools build from the same parameters.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from engine.errors import DecodeError
from engine.llama import lib as llama_lib
from engine.llama.gguf import read_gguf
from engine.llama.params import on_cpu
from engine.runtime.config import FLASH_ATTENTION, ContextOptions


@dataclass(frozen=True)
class Drawing:
    """How tokens are sampled; temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def options(self) -> dict[str, Any]:
        """The same as the engine's options, all of them given, so that no family's default applies."""
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "min_p": 0.0}


GREEDY = Drawing()
NUCLEUS = Drawing(0.6, 20, 0.95)


class Bare:
    """One model and one context for `sequences` sequences; free it with `close`.

    Attention and micro-batch are those of `asked`, or else what the engine would choose.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_ctx: int,
        sequences: int,
        threads: int,
        unified: bool = True,
        asked: ContextOptions | None = None,
        gpu_layers: int = 0,
    ) -> None:
        options = replace(asked or ContextOptions(), kv_unified=unified)
        options = on_cpu(read_gguf(path), options, n_ctx, sequences)
        self._lib: Any = llama_lib.library()
        lib = self._lib
        weights = lib.llama_model_default_params()
        weights.n_gpu_layers = gpu_layers
        self._model = lib.llama_model_load_from_file(str(path).encode(), weights)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, 2048, options.rows_at_once
        params.flash_attn_type = FLASH_ATTENTION[options.flash_attn]
        params.n_seq_max, params.n_outputs_max = sequences, max(16, sequences)
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = unified
        params.no_perf = True
        self._unified = unified
        self._context = lib.llama_init_from_model(self._model, params)
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(2048, 0, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def tokens(self, text: str) -> list[int]:
        """Returns the tokens of a rendered prompt."""
        vocab, data = self._lib.llama_model_get_vocab(self._model), text.encode()
        buffer = (ctypes.c_int32 * (len(data) + 8))()
        count = self._lib.llama_tokenize(vocab, data, len(data), buffer, len(buffer), False, True)
        return list(buffer[:count])

    def generate(self, prompts: Sequence[Sequence[int]], steps: int, drawing: Drawing, *, shared: int = 0) -> int:
        """Decode all prompts together, `steps` tokens each, from an empty memory. Returns the number of generated
        tokens.

        `shared`: the number of leading tokens that all prompts share, evaluated once and copied to the others.
        """
        lib = self._lib
        self.clear()
        chains = [self.chain(drawing, seed) for seed in range(len(prompts))]
        if shared:
            self._prefill(prompts[0][:shared], 0, 0)
            for sequence in range(1, len(prompts)):
                lib.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
        drawn = [0] * len(prompts)
        for sequence, prompt in enumerate(prompts):
            self._prefill(prompt[shared:], shared, sequence)
            drawn[sequence] = lib.llama_sampler_sample(chains[sequence], self._context, -1)
        made = len(prompts)
        lengths = [len(prompt) for prompt in prompts]
        for step in range(steps - 1):
            self._step(lengths, step, drawn, chains)
            made += len(prompts)
        for chain in chains:
            lib.llama_sampler_free(chain)
        return made

    def _step(self, lengths: Sequence[int], step: int, drawn: list[int], chains: Sequence[Any]) -> None:
        """Decode one more token for each sequence."""
        for sequence, length in enumerate(lengths):
            self._row(sequence, drawn[sequence], length + step, sequence, output=True)
        self._decode(len(lengths))
        for sequence, chain in enumerate(chains):
            drawn[sequence] = self._lib.llama_sampler_sample(chain, self._context, sequence)

    def clear(self) -> None:
        """Clear the memory of all sequences."""
        self._lib.llama_memory_clear(self._memory, True)

    def trim(self, sequence: int, position: int) -> None:
        """Remove a sequence's tokens from `position` on."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, position, -1)

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the beginning of a sequence to another."""
        lib = self._lib
        if self._unified:
            lib.llama_memory_seq_cp(self._memory, source, target, 0, positions)
        else:
            lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            lib.llama_memory_seq_rm(self._memory, target, positions, -1)

    def evaluate(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        """Evaluate one batch of rows: (token, position, sequence, whether its logits are needed)."""
        for index, (token, position, sequence, output) in enumerate(rows):
            self._row(index, token, position, sequence, output=output)
        self._decode(len(rows))

    def draw(self, chain: Any, row: int) -> int:
        """Draw a token for this row of the last batch."""
        return self._lib.llama_sampler_sample(chain, self._context, row)

    def free(self, chain: Any) -> None:
        self._lib.llama_sampler_free(chain)

    def _prefill(self, tokens: Sequence[int], start: int, sequence: int) -> None:
        for at in range(0, len(tokens), 2048):
            chunk = tokens[at : at + 2048]
            for index, token in enumerate(chunk):
                self._row(index, token, start + at + index, sequence, output=index == len(chunk) - 1)
            self._decode(len(chunk))

    def _row(self, index: int, token: int, position: int, sequence: int, *, output: bool) -> None:
        batch = self._batch
        batch.token[index] = token
        batch.pos[index] = position
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = sequence
        batch.logits[index] = output

    def _decode(self, rows: int) -> None:
        self._batch.n_tokens = rows
        code = self._lib.llama_decode(self._context, self._batch)
        if code:
            raise DecodeError(f"llama_decode returned {code} for a batch of {rows} tokens.")

    def chain(self, drawing: Drawing, seed: int) -> Any:
        """Returns a new sampler chain; free it with `free`."""
        lib = self._lib
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        links: list[Any] = []
        if drawing.temperature == 0:
            links.append(lib.llama_sampler_init_greedy())
        else:
            if drawing.top_k:
                links.append(lib.llama_sampler_init_top_k(drawing.top_k))
            if drawing.top_p < 1:
                links.append(lib.llama_sampler_init_top_p(drawing.top_p, 1))
            links += [lib.llama_sampler_init_temp(drawing.temperature), lib.llama_sampler_init_dist(seed)]
        for link in links:
            lib.llama_sampler_chain_add(chain, link)
        return chain
