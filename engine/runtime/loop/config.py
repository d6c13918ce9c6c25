"""How a model is loaded, how its context is made, how media are read, and how the loop serves requests: four records,
checked when built.

Raises RequestError for a value that is not valid, before anything is loaded.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

from pydantic import ConfigDict, Field, ValidationError
from pydantic_core import SchemaValidator

from engine.runtime.cache.state_store import StateStore
from engine.support.errors import RequestError, shown
from engine.support.hints import value_hint
from engine.support.printed import Printed
from engine.support.validation import validator
from engine.types.media import MediaUrls

SplitMode: TypeAlias = Literal["none", "layer", "row", "tensor"]
FlashAttention: TypeAlias = Literal["auto", "on", "off"]
Pooling: TypeAlias = Literal["mean", "cls", "last"]
"""How the vectors of a text's tokens become one: their mean, the first token's, or the last token's."""
RopeScaling: TypeAlias = Literal["none", "linear", "yarn"]
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
MAX_DEVICES = 16  # llama_max_devices()
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ of llama.cpp
# With room for fewer, llama.cpp's prefill without flash attention takes 15 % longer (0.2 B, 1 to 8 beside 12 and 16).
_LEAST_OUTPUTS = 16
ANSWER = 512
"""Tokens of a shared pool that an answer is expected to take from here on, at most."""
MOST_CHECKPOINTS = 8
"""The most checkpoints of one conversation, in a memory that cannot be cut."""
KEPT_STATES = 256 << 20
"""Bytes for the states of idle conversations, without a store of the caller's."""
AMX_VARIABLE = "LLAMA_ENGINE_AMX"
MAX_THREADS = 512  # GGML_MAX_N_THREADS of ggml.h

Count: TypeAlias = Annotated[int, Field(ge=1, lt=2**31)]
Threads: TypeAlias = Annotated[int, Field(ge=1, le=MAX_THREADS)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1e9)]
Positive: TypeAlias = Annotated[float, Field(ge=1e-6, le=1e9)]

_NUMERAL = re.compile(r"\s*[-+]?\d{1,19}(\.\d{0,19})?(e[-+]?\d{1,3})?\s*", re.ASCII | re.IGNORECASE)
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def refusal(name: str, value: object, error: ValidationError) -> RequestError:
    """Returns the error for an option that is not valid."""
    found = dict.fromkeys(each["msg"].replace("Input should", "it should") for each in error.errors(include_url=False))
    return RequestError(f"{name}={shown(value)} is not valid: {', or '.join(found)}{value_hint(name)}.")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _validator(kind: Any, name: str) -> SchemaValidator:
    return validator(_hints(kind)[name], _STRICT)


def check_value(kind: type, name: str, value: object) -> Any:
    """Returns the value; a number that is written in quotes, as environments and forms have it, as a number. Raises
    RequestError if it does not fit a class's annotation of that field (a dataclass or a TypedDict)."""
    check = _validator(kind, name)
    try:
        check.validate_python(value)
    except ValidationError as error:
        if not isinstance(value, str) or not _NUMERAL.fullmatch(value):
            raise refusal(name, value, error) from error
    else:
        return value
    number = float(value) if set(value) & set(".eE") else int(value)
    try:
        check.validate_python(number)
    except ValidationError as error:
        raise refusal(name, value, error) from error
    return number


def check_fields(record: Any, names: Iterable[str] = ()) -> None:
    """Raise RequestError for a field of a dataclass that does not fit its annotation: one of `names`, or any if none
    are given. What is the default fits; a number in quotes becomes one."""
    defaults = {field.name: field.default for field in fields(record)}
    for name in names or defaults:
        if (value := getattr(record, name)) is not defaults[name]:
            object.__setattr__(record, name, check_value(record.__class__, name, value))


def amx_wanted() -> bool:
    """Whether this process may use AMX: `LLAMA_ENGINE_AMX` is not 0."""
    return os.environ.get(AMX_VARIABLE) != "0"


@dataclass(frozen=True)
class _WeightDetails:
    split_mode: SplitMode = "layer"
    main_gpu: Annotated[int, Field(ge=0, lt=2**31)] = 0
    tensor_split: Annotated[tuple[Share, ...], Field(max_length=MAX_DEVICES)] = ()


@dataclass(frozen=True)
class _ContextDetails:
    offload_kqv: bool = True
    swa_full: bool = True
    checkpoint_mib: Annotated[int, Field(ge=0, lt=2**31)] = 256
    rope_freq_base: Share = 0.0
    rope_freq_scale: Share = 0.0
    rope_scaling_type: RopeScaling | None = None
    yarn_ext_factor: Annotated[float, Field(ge=0, le=1)] | None = None
    yarn_attn_factor: Positive | None = None
    yarn_beta_fast: Positive | None = None
    yarn_beta_slow: Positive | None = None
    yarn_orig_ctx: Count | None = None


@dataclass(frozen=True, repr=False)
class LlamaOptions(Printed, _WeightDetails, _ContextDetails):
    """What llama.cpp lets a program choose and few have to: `Engine.load(.., llama=LlamaOptions(swa_full=False))`.

    - `split_mode`: how several GPUs share a model; `main_gpu`: the one for what is not split; `tensor_split`: the share
      of each.
    - `offload_kqv`: the KV cache is on the GPU.
    - `swa_full`: sliding-window layers keep every cell; without it a sequence cannot be trimmed far, and prefixes are
      reused less.
    - `checkpoint_mib`: MiB for checkpoints of recurrent and hybrid models, with which a prompt that was edited or is
      sent again need not be evaluated from its beginning; 0 for none.
    - `rope_scaling_type`: how rotary positions are stretched; None is the model's own. With "yarn" and an `n_ctx` above
      the training length, `yarn_orig_ctx` (the length before stretching) and `rope_freq_scale` (that length through
      `n_ctx`) are filled in. `rope_freq_base`, `rope_freq_scale`: 0 is the model's own.
    - `yarn_*`: YaRN's parameters; None is the model's own. `yarn_ext_factor`: the share of extrapolation; with 0, and
      only then, `yarn_attn_factor` scales attention, which llama.cpp otherwise takes from the factor. `yarn_beta_fast`,
      `yarn_beta_slow`: rotations in the original length above which a dimension is kept, and below which it is
      stretched whole.

    Raises RequestError for a value that is not valid.
    """

    def __post_init__(self) -> None:
        if isinstance(self.tensor_split, list):
            object.__setattr__(self, "tensor_split", tuple(self.tensor_split))
        check_fields(self)

    @property
    def of_weights(self) -> tuple[str, ...]:
        """The names of the options of weights that are not the defaults."""
        names = (field.name for field in fields(_WeightDetails))
        return tuple(name for name in names if getattr(self, name) != getattr(_WeightDetails, name))


@dataclass(frozen=True)
class ModelOptions(_WeightDetails):
    """How the weights are loaded: `split_mode`, `main_gpu` and `tensor_split` of `LlamaOptions`, and:

    `n_gpu_layers`: layers to offload, -1 for all. None: as many as fit into the free memory of the devices (0 if
    nothing was planned). `check_memory`: refuse weights larger than the available memory, instead of leaving that to
    the kernel. `use_extra_bufts` and `amx`, which the preflight sets: repack weights for this CPU, and use AMX if it
    has it (faster; without avoids faults). Once `amx` is False, all that this process loads goes without; that is the
    default if `LLAMA_ENGINE_AMX` is 0.
    """

    n_gpu_layers: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    use_mmap: bool = True
    use_mlock: bool = False
    check_memory: bool = True
    use_extra_bufts: bool = True
    amx: bool = field(default_factory=amx_wanted)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class ContextOptions(_ContextDetails):
    """How a context is made: the others of `LlamaOptions`, and:

    - `n_ctx`: maximum number of tokens in one conversation, its answers included. None: 8,192 or the training length,
      whichever is less, or still less if memory is short; the log says how many.
    - `n_sequences`: conversations that are decoded at once. None: four, or as many as fit into half of the free memory,
      but at least one; the log says how many.
    - `kv_unified`: True: one pool of `kv_tokens` cells that all conversations share; False: a buffer of `n_ctx` cells
      for each. None: a pool, but buffers for models without attention or with LongRoPE. In a pool prefixes are shared
      without copying; on the CPU attention passes over the cells of all conversations.
    - `kv_tokens`: the size of the pool. None: `n_ctx`, but at least 8,192 and 512 for each conversation, as far as they
      can use that.
    - `n_batch`: maximum number of rows in one decode.
    - `n_threads`: None is one for each physical core, and one for a very small model; fewer while other programs hold
      the processors. `n_threads_batch`, for prefill and for decodes of several sequences: None is as
      many as `n_threads`, or one for each logical processor if that is None too.
    - `flash_attn`: "auto" leaves the choice to llama.cpp on a GPU. On the CPU it means "off", which makes answers after
      long prompts faster and prefill slower, but "on" for a shared pool and for quantised values.
    - `check_memory`: refuse what would not fit into memory.
    - `pooling`: how `embed` makes one vector of those of a text's tokens; None: as the file says, else their mean.
    - `control_vectors`: paths of control vectors with their scales, whose sum is added to what the layers compute.
    - `n_ubatch`, which the plan sets: the rows that are computed at once, 512, or 256 on the CPU; all of `n_batch` if
      the model has sliding windows. `outputs_per_sequence`, which follows from the drafts, bounds the rows that have
      logits, and so the memory that a large vocabulary takes.
    """

    n_ctx: Count | None = None
    n_sequences: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = None
    kv_unified: bool | None = None
    kv_tokens: Count | None = None
    n_batch: Count = 2048
    n_threads: Threads | None = None
    n_threads_batch: Threads | None = None
    flash_attn: FlashAttention = "auto"
    type_k: CacheType = "f16"
    type_v: CacheType = "f16"
    check_memory: bool = True
    pooling: Pooling | None = None
    control_vectors: tuple[tuple[str, float], ...] = ()
    n_ubatch: Count | None = None
    outputs_per_sequence: Count = 16

    def __post_init__(self) -> None:
        check_fields(self)
        if self.flash_attn == "off" and CACHE_TYPES[self.type_v][1] < 2:
            raise RequestError(f'type_v="{self.type_v}" needs flash attention; use flash_attn="auto" or type_v="f16".')
        if self.n_sequences is not None and self.n_batch < self.n_sequences:
            raise RequestError(
                f"n_batch={self.n_batch} must be at least n_sequences={self.n_sequences}: each sequence takes a row."
            )
        if self.kv_tokens is None:
            return
        if self.kv_unified is False:
            raise RequestError(
                f"kv_tokens={self.kv_tokens} is the size of a shared pool; leave kv_unified=False out, or set n_ctx, "
                "the size of each conversation, instead."
            )
        if self.n_ctx is not None and self.n_ctx > self.kv_tokens:
            raise RequestError(
                f"n_ctx={self.n_ctx} is larger than the shared pool, kv_tokens={self.kv_tokens}; lower n_ctx, or raise "
                "kv_tokens."
            )

    @property
    def rows_at_once(self) -> int:
        """Rows of one micro-batch; llama.cpp's default if `n_ubatch` is None."""
        return min(512 if self.n_ubatch is None else self.n_ubatch, self.n_batch)

    def n_outputs(self, n_sequences: int) -> int:
        """Returns how many rows of one batch may have logits."""
        return min(self.n_batch, max(_LEAST_OUTPUTS, n_sequences * self.outputs_per_sequence))


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """How pictures and sounds are read.

    `image_min_tokens`, `image_max_tokens`: how many rows one picture may take, for projectors that scale with its size;
    None: as the projector's file says. `media_cache_mib`: MiB of rows that are kept, so that a picture that comes again
    is not encoded again.
    """

    image_min_tokens: Count | None = None
    image_max_tokens: Count | None = None
    media_cache_mib: Annotated[int, Field(ge=0, lt=2**31)] = 256

    def __post_init__(self) -> None:
        check_fields(self)
        least, most = self.image_min_tokens, self.image_max_tokens
        if least is not None and most is not None and least > most:
            raise RequestError(f"image_min_tokens={least} is more than image_max_tokens={most}; lower it.")


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How requests are served.

    `draft_max`: maximum number of tokens guessed at once for a conversation and verified in one decode; 0 for none. A
    draft model or the model's own head guesses, if the loop has one, else they are copied from the conversation so far.
    `max_waiting`: maximum number of requests that wait for a sequence; further ones are refused. `prefill_seconds`:
    about how long the prompt rows of one step may take, during which running answers and cancellations wait; five times
    as long while no answer is written. `states`: where the states of conversations are kept that the cache forgets, and
    found again; None: in memory, at most 256 MiB, until the engine is closed. `media_urls`: that pictures at http(s)
    links are fetched, and within which limits.
    """

    draft_max: Annotated[int, Field(ge=0, lt=2**31)] = 0
    max_waiting: Annotated[int, Field(ge=0, lt=2**63)] = 1024
    prefill_seconds: Annotated[float, Field(gt=0, le=3600)] = 0.1
    states: StateStore | None = None
    media_urls: MediaUrls | None = None

    def __post_init__(self) -> None:
        check_fields(self)
