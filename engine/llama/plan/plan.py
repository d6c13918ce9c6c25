"""Plans what fits into memory, before anything is read: the layers on devices, the conversations and their length.

All sizes are bytes.

The caller's options are kept, or refused with the numbers. The others are chosen in this order: layers on devices, as
many as fit into their free memory; the number of conversations, four or as many as fit into half of what is free
besides the weights; their length, up to 8,192 tokens or the training length, or as much as fits.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.llama.gguf.gguf import GgufFile
from engine.llama.gguf.rope import positions, reach, rope_options
from engine.llama.lib import Device, devices, repacked_types
from engine.llama.params import at_once, check, on_cpu, position_limit
from engine.llama.plan.footprint import (
    CELLS,
    Cells,
    Footprint,
    Weights,
    cells_of,
    estimate,
    layer_caches,
    shares,
    weights,
)
from engine.llama.plan.machine import address_space, available_memory
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support.errors import ContextOverflowError, ModelLoadError

RESERVE = 0.1
"""The share of the memory that is left free, for other processes and the estimate's error."""
MODEST_CONTEXT = 8192
"""The most tokens of one conversation by default."""
_FALLBACK_CONTEXT = 4096  # for a file without a training length
_SEQUENCES = 4  # the default, if memory allows
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which to load a model. `available`: the memory that may be used, None if unknown. `repacked`: the
    tensor types that llama.cpp repacks for this CPU. `gpus`: devices to which layers can be offloaded. `address_space`:
    the address space left, None if it is not limited. `reserve`: the share of the memory that is left free."""

    available: int | None
    repacked: frozenset[str] = frozenset()
    gpus: tuple[Device, ...] = ()
    address_space: int | None = None
    reserve: float = RESERVE

    @property
    def room(self) -> int | None:
        return None if self.available is None else int(self.available * (1 - self.reserve))

    @property
    def device_room(self) -> int:
        return int(sum(device.memory_free for device in self.gpus) * (1 - self.reserve))

    def without(self, size: int) -> "Machine":
        """Returns the machine with `size` bytes less, in its memory and on its devices: where an adapter lies depends
        on the layers that it adapts."""
        free = sum(device.memory_free for device in self.gpus) or 1
        left = max(0.0, 1 - size / free)
        return replace(
            self,
            available=None if self.available is None else max(0, self.available - size),
            gpus=tuple(replace(device, memory_free=int(device.memory_free * left)) for device in self.gpus),
            address_space=None if self.address_space is None else max(0, self.address_space - size),
        )


def this_machine() -> Machine:
    """Returns the current state of this machine. Loads llama.cpp."""
    return Machine(
        available_memory(), repacked_types(), tuple(device for device in devices() if device.is_gpu), address_space()
    )


@dataclass(frozen=True, slots=True)
class Need:
    """The `host` and `device` memory that a model and one context need; the two together include the context's `cache`
    and `compute`, and `draft`, what a draft model needs."""

    weights: Weights
    context: Footprint
    host: int
    device: int
    draft: int = 0

    @property
    def peak(self) -> int:
        """The most resident memory of this process without a device, including pages that the kernel can reclaim."""
        return self.weights.total + self.weights.copies + self.context.total


@dataclass(frozen=True, slots=True)
class Plan:
    """What to load and make. In the options, only the threads may still be open."""

    model: ModelOptions
    context: ContextOptions
    need: Need
    summary: str

    @property
    def n_ctx(self) -> int:
        return self.context.n_ctx or 0

    @property
    def cells(self) -> Cells:
        return cells_of(self.context, self.n_ctx, self.context.n_sequences or 1)


class DraftFile(NamedTuple):
    """A draft model to be loaded too: its file, and the bytes of its weights that are already loaded (None: none)."""

    file: GgufFile
    held: int | None = None


def draft_context(options: ContextOptions, n_ctx: int | None, n_sequences: int | None) -> ContextOptions:
    """Returns the options of a draft model's context beside one with these options and sizes: as many conversations of
    the same length, of which each has one row of logits."""
    return replace(
        ContextOptions(),
        n_ctx=n_ctx,
        n_sequences=n_sequences,
        kv_unified=options.kv_unified,
        kv_tokens=options.kv_tokens,
        n_batch=options.n_batch,
        outputs_per_sequence=1,
        n_threads=options.n_threads,
        n_threads_batch=options.n_threads_batch,
        offload_kqv=options.offload_kqv,
        checkpoint_mib=0,
        check_memory=options.check_memory,
    )


def plan(
    file: GgufFile,
    model: ModelOptions,
    context: ContextOptions,
    machine: Machine,
    *,
    held: int | None = None,
    draft: DraftFile | None = None,
    vectors: bool = False,
) -> Plan:
    """Plan the load of a model on this machine. `held`: the bytes of the weights that are already loaded, and so no
    longer part of the available memory; None before the load. `draft`: a draft model that must fit beside it.
    `vectors`: for a context that makes vectors.

    Raises ModelLoadError for weights that do not fit, ContextOverflowError if only the context does not fit,
    RequestError for options that this model does not support; all before anything is read.
    """
    check(file, context)
    return _Planner(file, model, rope_options(file, context), machine, held, draft, vectors=vectors).plan()


def longest(file: GgufFile, model: ModelOptions, context: ContextOptions, limit: int, machine: Machine) -> int:
    """Returns the length of the longest conversations up to `limit` tokens that fit; 0 if not even the shortest fit."""
    return _Planner(file, model, context, machine, None).longest(context.n_sequences or 1, limit)


def check_weights(file: GgufFile, model: ModelOptions, machine: Machine) -> None:
    """Raise ModelLoadError for weights that do not fit, whatever the context."""
    _Planner(file, model, ContextOptions(check_memory=model.check_memory), machine, None).check_weights()


def default_context(file: GgufFile, options: ContextOptions) -> int:
    """Returns the default length of a conversation, regardless of memory."""
    trained = reach(file, options) or _FALLBACK_CONTEXT
    limits = (trained, position_limit(file, options), options.kv_tokens, MODEST_CONTEXT)
    return min(limit or sys.maxsize for limit in limits)


class _Planner:
    """Plans one model on one machine."""

    def __init__(
        self,
        file: GgufFile,
        model: ModelOptions,
        context: ContextOptions,
        machine: Machine,
        held: int | None,
        draft: DraftFile | None = None,
        *,
        vectors: bool = False,
    ) -> None:
        self._file, self._model, self._context, self._machine, self._held = file, model, context, machine, held
        self._vectors = vectors
        repacked = machine.repacked if model.use_extra_bufts else frozenset[str]()
        self._weights = weights(file, repacked, mapped=model.use_mmap)
        self._most = len(file.shape.layers) + 1 if machine.gpus else 0  # the output matrix counts as a layer
        rooms = [machine.room]
        if machine.address_space is not None:  # which also counts pages that can be reclaimed
            rooms.append(max(0, machine.address_space - self._weights.copies))
        known = [room for room in rooms if room is not None]
        self._room = min(known) if known and context.check_memory else None
        self._beside = draft
        self._draft: _Planner | None = None
        if draft is not None:
            beside = draft_context(context, context.n_ctx, context.n_sequences)
            self._draft = _Planner(draft.file, model, beside, machine, draft.held)

    def plan(self) -> Plan:
        options = self._context
        wanted = options.n_ctx or default_context(self._file, options)
        self.check_weights()
        n_sequences = options.n_sequences or self._count(wanted)
        n_ctx = wanted
        if not self._fits(wanted, n_sequences):
            n_ctx = 0 if options.n_ctx else self.longest(n_sequences, wanted)
            if n_ctx == 0:
                raise ContextOverflowError(self._refusal(wanted, n_sequences))
        layers, need = self._need(n_ctx, n_sequences)
        ready = replace(self._ready(n_ctx, n_sequences, layers), n_ctx=n_ctx)
        summary = self._summary(ready, need, layers, wanted)
        return Plan(replace(self._model, n_gpu_layers=layers), ready, need, summary)

    def longest(self, n_sequences: int, limit: int) -> int:
        return _largest(limit, lambda n_ctx: self._fits(n_ctx, n_sequences))

    def check_weights(self) -> None:
        if self._room is None or self._held is not None or not self._model.check_memory:
            return
        size = self._weights.total + (self._draft.to_come if self._draft is not None else 0)
        given = self._model.n_gpu_layers
        device = self._machine.device_room if self._most and given != 0 else 0
        if size > self._room + device:
            there = f" and {device / _MIB:,.0f} MiB on devices" if device else ""
            raise ModelLoadError(
                f"{self._file.path} needs {size / _MIB:,.0f} MiB for its weights, but only {self._room / _MIB:,.0f} "
                f"MiB of memory{there} can be used; use a smaller quantisation, free memory, or offload layers "
                "(n_gpu_layers). check_memory=False tries it anyway."
            )

    def _count(self, wanted: int) -> int:
        most = min(_SEQUENCES, self._context.n_batch)
        return next((n for n in range(most, 1, -1) if self._fits(wanted, n, share=0.5)), 1)

    def _ready(self, n_ctx: int, n_sequences: int, layers: int) -> ContextOptions:
        pool = shares(self._file, self._context, n_sequences)
        some = replace(self._context, n_sequences=n_sequences, kv_unified=pool)
        attends_here = not (some.offload_kqv and layers and self._machine.gpus)
        ready = on_cpu(self._file, some, n_ctx, n_sequences) if attends_here else some
        return at_once(ready, n_sequences) if self._file.shape.sliding_window else ready

    def _fits(self, n_ctx: int, n_sequences: int, share: float = 1.0) -> bool:
        """Whether a context fits; `share`: into this share of what is free besides the weights."""
        if self._room is None:
            return True
        layers, need = self._need(n_ctx, n_sequences)
        if need.device > self._machine.device_room:
            return False
        if share == 1.0:
            return need.host <= self._room
        device = self._machine.device_room if layers else 0
        free = self._room + device - self.to_come
        return need.host <= self._room and need.context.total + need.draft <= free * share

    def _need(self, n_ctx: int, n_sequences: int) -> tuple[int, Need]:
        """Returns the layers on devices, as given or as many as fit, and the memory needed in total."""
        given = self._model.n_gpu_layers
        if not self._most:
            return given or 0, self._at(n_ctx, n_sequences, 0)
        if given is not None:
            layers = self._most if given < 0 else min(given, self._most)
            return given, self._at(n_ctx, n_sequences, layers)
        low, high = 0, self._most
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._at(n_ctx, n_sequences, middle).device <= self._machine.device_room
            low, high = (middle, high) if fits else (low, middle - 1)
        return low, self._at(n_ctx, n_sequences, low)

    def _at(self, n_ctx: int, n_sequences: int, layers: int) -> Need:
        """Returns the memory needed with `layers` layers on devices. A draft model, which is small, has all of its
        layers there unless none are asked for."""
        need = self._alone(n_ctx, n_sequences, layers)
        if self._draft is None:
            return need
        draft = self._draft._alone(n_ctx, n_sequences, self._draft._most if self._model.n_gpu_layers != 0 else 0)
        host, device = need.host + draft.host, need.device + draft.device
        return replace(need, host=host, device=device, draft=draft.host + draft.device)

    def _alone(self, n_ctx: int, n_sequences: int, layers: int) -> Need:
        """Returns the memory needed without a draft model: on devices are the last layers, the output matrix first
        (llama-model.cpp, `load_tensors`)."""
        file, options = self._file, self._ready(n_ctx, n_sequences, layers)
        cells = cells_of(options, n_ctx, n_sequences)
        context = estimate(file, options, cells, vectors=self._vectors)
        if not layers:
            return Need(self._weights, context, self.to_come + context.total, 0)
        moved = file.shape.layers[len(file.shape.layers) + 1 - layers :]
        device_weights = sum(layer.weights for layer in moved) + file.shape.output
        caches = layer_caches(file, options, cells)
        device_cache = sum(caches[len(caches) - len(moved) :]) if options.offload_kqv and moved else 0
        # An output matrix that is also the embedding matrix stays on the host too, where embeddings are looked up.
        here = self._weights.total - device_weights + file.shape.tied
        host = self._to_come(max(0, here)) + context.total - device_cache
        there = device_weights if self._held is None else 0
        return Need(self._weights, context, host, there + device_cache + context.compute)

    @property
    def to_come(self) -> int:
        """The bytes of the weights that are not loaded yet."""
        return self._to_come(self._weights.total)

    def _to_come(self, size: int) -> int:
        return size if self._held is None else max(0, size - self._held)

    def _refusal(self, n_ctx: int, n_sequences: int) -> str:
        options = self._context
        _, need = self._need(n_ctx, n_sequences)
        fits = _largest(options.kv_tokens or n_ctx, lambda size: self._sized(size)._fits(size, n_sequences))
        name = "kv_tokens" if options.kv_tokens and not (self._vectors or self._file.embeds) else "n_ctx"
        fewer = f" with n_sequences={n_sequences}" if n_sequences > 1 and not options.kv_tokens else ""
        advice = (
            f"the largest that fits is {name}={fits:,}{fewer}"
            if fits
            else f"not even the smallest fits{fewer}: free memory, or use a smaller model"
        )
        room = max(0, (self._room or 0) - (need.host - need.context.total))
        if need.device > self._machine.device_room:
            room = max(0, self._machine.device_room - (need.device - need.context.total))
        return (
            f"{name}={options.kv_tokens or n_ctx:,}{fewer} needs about {need.context.total / _MIB:,.0f} MiB (KV cache "
            f"{need.context.cache / _MIB:,.0f}, compute {need.context.compute / _MIB:,.0f}), but {room / _MIB:,.0f} "
            f'MiB are available besides the weights; {advice}. A quantised cache (type_k="q8_0", '
            'type_v="q8_0") halves it.'
        )

    def _sized(self, size: int) -> "_Planner":
        """Returns the planner of a pool of `size` cells, if the caller chose its size."""
        if not self._context.kv_tokens:
            return self
        context = replace(self._context, n_ctx=None, kv_tokens=size)
        beside, vectors = self._beside, self._vectors
        return _Planner(self._file, self._model, context, self._machine, self._held, beside, vectors=vectors)

    def _summary(self, ready: ContextOptions, need: Need, layers: int, wanted: int) -> str:
        """Returns one line on what was chosen, and by whom, with the numbers."""
        asked = self._context
        length = "as asked for" if asked.n_ctx else "the default" if ready.n_ctx == wanted else "what fits"
        count = "as asked for" if asked.n_sequences else "the default, as far as memory allows"
        room = "memory not known" if self._room is None else f"of {self._room / _MIB:,.0f} MiB"
        drafting = f", drafts {need.draft / _MIB:,.0f}" if need.draft else ""
        devices = ""
        if self._machine.gpus:
            chosen = "as asked for" if self._model.n_gpu_layers is not None else "what fits"
            devices = (
                f", n_gpu_layers={layers} of {self._most} ({chosen}), {need.device / _MIB:,.0f} of "
                f"{self._machine.device_room / _MIB:,.0f} MiB of devices"
            )
        return (
            f"n_ctx={ready.n_ctx:,} tokens a conversation ({length}), n_sequences={ready.n_sequences} ({count}), "
            f"{'one pool for all' if ready.kv_unified else 'a KV buffer for each'}: {need.host / _MIB:,.0f} MiB "
            f"{room} (weights {need.weights.total / _MIB:,.0f}, KV cache {need.context.cache / _MIB:,.0f}, compute "
            f"{need.context.compute / _MIB:,.0f}{drafting}){devices}; flash attention {ready.flash_attn}, "
            f"{ready.rows_at_once} rows at once; positions {positions(self._file, ready) or 'without a length'}"
        )


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """Returns the most tokens up to `limit` that fit, in steps of 256."""
    low, high = 0, -(-limit // CELLS)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * CELLS) else (low, middle - 1)
    return min(low * CELLS, limit)
