"""How a model is loaded and how its context is made: two plain records, checked when they are built.

Knows: names, ranges, and llama.cpp's enumerations of them. Does not know: ctypes, files, memory. Raises RequestError
for a value that makes no sense, before anything is loaded.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.errors import RequestError

SplitMode: TypeAlias = Literal["none", "layer", "row", "tensor"]
FlashAttention: TypeAlias = Literal["auto", "on", "off"]
CacheType: TypeAlias = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

# The values of enum ggml_type (ggml.h), and the bytes that one element takes, for the types a KV cache may have.
CACHE_TYPES: dict[str, tuple[int, float]] = {
    "f32": (0, 4.0),
    "f16": (1, 2.0),
    "bf16": (30, 2.0),
    "q4_0": (2, 18 / 32),
    "q4_1": (3, 20 / 32),
    "q5_0": (6, 22 / 32),
    "q5_1": (7, 24 / 32),
    "q8_0": (8, 34 / 32),
    "iq4_nl": (20, 18 / 32),
}
SPLIT_MODES: tuple[SplitMode, ...] = ("none", "layer", "row", "tensor")
FLASH_ATTENTION: dict[str, int] = {"auto": -1, "off": 0, "on": 1}
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ of llama.cpp
_ROWS_AT_ONCE = 512  # llama.cpp's default n_ubatch


def _at_least(minimum: float, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and value < minimum:
            raise RequestError(f"{name}={value!r} makes no sense; it must be at least {minimum}.")


def _one_of(choices: Iterable[str], **values: str) -> None:
    allowed = tuple(choices)
    for name, value in values.items():
        if value not in allowed:
            raise RequestError(f"{name}={value!r} is unknown; choose one of {', '.join(allowed)}.")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How the weights are loaded.

    `n_gpu_layers`: layers to offload, -1 for all. `tensor_split`: shares per device. `use_extra_bufts`: repack
    weights for this CPU (faster; the remedy for one known fault is to switch it off). `check_memory`: refuse weights
    larger than the memory that is available, instead of leaving it to the kernel.
    """

    n_gpu_layers: int = 0
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    use_mmap: bool = True
    use_mlock: bool = False
    use_extra_bufts: bool = True
    check_tensors: bool = False
    check_memory: bool = True

    def __post_init__(self) -> None:
        _at_least(-1, n_gpu_layers=self.n_gpu_layers)
        _at_least(0, main_gpu=self.main_gpu, tensor_split=min(self.tensor_split, default=0))
        _one_of(SPLIT_MODES, split_mode=self.split_mode)


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """How a context is made.

    `n_ctx`: KV cells over all sequences, in tokens; None is the smaller of the training length (and 8192 for each
    further sequence; all of it with `kv_unified=False`) and what fits into memory. `n_batch` rows go into one decode,
    computed `n_ubatch` at a time (None: 512; 256 on the CPU, fewer in a long context without flash attention), with
    logits for at most `n_outputs` of them: `outputs_per_sequence` bounds the memory that a large vocabulary takes.
    `n_threads`: None is one per physical core this process may use. `n_threads_batch`, for prefill and for decodes of
    several sequences: None is `n_threads` where that is given, else one per logical CPU.
    `flash_attn`: "auto" is llama.cpp's choice on a GPU. On the CPU it is "off", with which answers behind long prompts
    come faster and the prompts slower, but "on" where sequences share a buffer, values are quantised or memory is
    short; the log says which.
    `kv_unified`: all sequences share one buffer, so that prefixes are shared without copying and one may grow where
    another is short; False is a buffer of the same size for each, whose attention looks at no other's cells: faster
    for many long prompts that have nothing in common. None is False where `n_ctx` is None too and each then still gets
    the training length, and True otherwise; on the CPU the engine changes from that to buffers apart while its requests
    say that they fit into them (`engine.runtime.layout`). The log says which.
    `swa_full`: sliding-window layers keep every cell, without which a sequence cannot be trimmed far. `rope_freq_*`:
    0 is the model's own. `device_sampling`: tokens are drawn where the output layer computes, for parameters that need
    no look at all the logits; no more than one output of a sequence goes into one decode then. `check_memory`: refuse
    what would not fit into memory.
    """

    n_ctx: int | None = None
    n_batch: int = 2048
    n_ubatch: int | None = None
    n_sequences: int = 1
    outputs_per_sequence: int = 16
    n_threads: int | None = None
    n_threads_batch: int | None = None
    flash_attn: FlashAttention = "auto"
    type_k: CacheType = "f16"
    type_v: CacheType = "f16"
    kv_unified: bool | None = None
    offload_kqv: bool = True
    op_offload: bool = True
    swa_full: bool = True
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    device_sampling: bool = False
    check_memory: bool = True

    def __post_init__(self) -> None:
        _at_least(1, n_ctx=self.n_ctx, n_batch=self.n_batch, n_ubatch=self.n_ubatch, n_sequences=self.n_sequences)
        _at_least(1, outputs_per_sequence=self.outputs_per_sequence)
        _at_least(1, n_threads=self.n_threads, n_threads_batch=self.n_threads_batch)
        _at_least(0, rope_freq_base=self.rope_freq_base, rope_freq_scale=self.rope_freq_scale)
        _one_of(FLASH_ATTENTION, flash_attn=self.flash_attn)
        _one_of(CACHE_TYPES, type_k=self.type_k, type_v=self.type_v)
        if self.n_sequences > MAX_SEQUENCES:
            raise RequestError(f"n_sequences={self.n_sequences} is above llama.cpp's limit of {MAX_SEQUENCES}.")
        if self.flash_attn == "off" and CACHE_TYPES[self.type_v][1] < 2:
            raise RequestError(f'type_v="{self.type_v}" needs flash attention; use flash_attn="auto" or type_v="f16".')
        if self.n_batch < self.n_sequences:
            raise RequestError(
                f"n_batch={self.n_batch} must be at least n_sequences={self.n_sequences}: each decodes a row."
            )

    @property
    def rows_at_once(self) -> int:
        """Rows of one micro-batch."""
        return min(_ROWS_AT_ONCE if self.n_ubatch is None else self.n_ubatch, self.n_batch)

    @property
    def n_outputs(self) -> int:
        """Rows of one batch that may have logits."""
        return min(self.n_batch, self.n_sequences * self.outputs_per_sequence)

    @property
    def is_unified(self) -> bool:
        """Whether the sequences share one buffer; a single sequence always does. True while that is left open."""
        return self.kv_unified is not False or self.n_sequences == 1
