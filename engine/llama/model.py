"""A model's weights in this process: loading them, what they are, and contexts over them.

Knows: the llama_model handle and who must be freed before it; the memory of this machine. Does not know: requests,
templates, sampling. A file is checked by `gguf_file` before llama.cpp sees it.
"""

import logging
import os
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

from engine.errors import ContextOverflowError, EngineError, ModelLoadError
from engine.llama.context import LlamaBackend
from engine.llama.gguf import GgufFile, NamedTemplate, read_gguf, sample_digest
from engine.llama.lib import Device, devices, forget_errors, last_errors, library, made_apart
from engine.llama.memory import (
    RESERVE,
    anonymous_memory,
    available_memory,
    copy_cost,
    estimate,
    largest_context,
    longest_sequence,
    padded,
    shares,
)
from engine.llama.params import LoadProgress, check, chosen, leanest, model_params, within_positions
from engine.llama.vocab import LlamaVocab
from engine.runtime.options import ContextOptions, ModelOptions

_log = logging.getLogger("engine.llama")
_MIB = 1 << 20
_ORDINARY_CONTEXT = 8192
_FALLBACK_CONTEXT = 4096  # for a file that does not tell its training length
_LOADING = re.compile(
    r"\b\w+: (?=error loading|failed to)|error loading model: |failed to load model|(?<=: )\w+: (?=tensor)"
)
"""What llama.cpp's errors say of its own functions, and that there is an error."""
_LEAST_SHARE = 512
"""Tokens of a conversation that is worth a buffer of its own."""

_Layout: TypeAlias = tuple[ContextOptions, int]  # the options that say it, and the cells


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a loaded model is. `size_bytes` is its weights, `n_ctx_train` tokens (0: the file does not say)."""

    path: Path
    architecture: str
    name: str
    quantization: str
    parameters: int
    size_bytes: int
    n_ctx_train: int
    chat_template: str | None
    named_templates: tuple[NamedTemplate, ...]
    bos_text: str
    eos_text: str
    add_bos: bool
    is_recurrent: bool
    is_hybrid: bool


class Model:
    """Weights, loaded. A context manager. Made by `Model.load`, which owns the llama_model, or by `Model.adopt`.

    `held`: bytes of the weights that are in this process's memory already (the rest is mapped, and counted as taken
    when a context is sized). `owner`: the llama_cpp.Llama whose model this is.
    """

    def __init__(self, file: GgufFile, options: ModelOptions, handle: int, *, held: int, owner: Any = None) -> None:
        lib = library()
        self._file = file
        self._options = options
        self._handle: int | None = handle
        self._owner = owner
        self._digest: str | None = None
        self._free = weakref.finalize(self, lib.llama_model_free if owner is None else int, handle)
        self._mapped = max(0, file.weights - held)
        self._backends: weakref.WeakSet[LlamaBackend] = weakref.WeakSet()
        reference: weakref.ref[Model] = weakref.ref(self)
        self._vocab = LlamaVocab(lambda: lib.llama_model_get_vocab(_alive(reference)))
        self._info = self._describe(lib)

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: ModelOptions | None = None,
        *,
        progress: Callable[[float], bool | None] | None = None,
    ) -> Self:
        """Load a GGUF. `progress` is called with 0.0 to 1.0, in another thread, and stops the loading by answering
        False, or by an error, which is raised here.

        Raises ModelLoadError for a file that is not a chat model, is damaged, does not fit into memory, or that this
        build of llama.cpp cannot load.
        """
        options = options or ModelOptions()
        file = read_gguf(path)
        lib = library()
        _check_memory(file, options, available_memory())
        before = anonymous_memory() if options.use_mmap else None
        forget_errors()
        watch = LoadProgress(progress)
        params, _kept = model_params(lib, options, watch)
        handle = made_apart(
            lambda: lib.llama_model_load_from_file(os.fsencode(file.path), params), lib.llama_model_free, watch.stop
        )
        if not handle:
            raise watch.fault or ModelLoadError(_load_failure(file, stopped=watch.stopped))
        after = anonymous_memory()
        held = after - before if before is not None and after is not None else file.weights
        model = cls(file, options, handle, held=held)
        model._refuse_what_cannot_chat()
        return model

    @classmethod
    def adopt(cls, llama: Any) -> Self:
        """The model of an existing `llama_cpp.Llama`, which keeps it: its weights are shared, contexts are made anew.

        Closing the Model leaves the Llama as it is; closing the Llama closes the Model too. Raises ModelLoadError for
        what is no open Llama.
        """
        try:
            path, handle, params = llama.model_path, llama.model, llama.model_params
        except AttributeError as error:
            raise ModelLoadError(f"{llama!r} is no open llama_cpp.Llama; pass one, or load the file.") from error
        if not handle:
            raise ModelLoadError("This llama_cpp.Llama is closed; adopt it before it is closed, or load the file.")
        file = read_gguf(path)
        options = ModelOptions(n_gpu_layers=max(-1, params.n_gpu_layers), use_extra_bufts=params.use_extra_bufts)
        model = cls(file, options, handle, held=file.weights, owner=llama)
        model._refuse_what_cannot_chat()
        return model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def file(self) -> GgufFile:
        return self._file

    @property
    def options(self) -> ModelOptions:
        return self._options

    @property
    def vocab(self) -> LlamaVocab:
        return self._vocab

    @property
    def handle(self) -> int:
        """The llama_model pointer. Raises ModelLoadError once closed."""
        if self._handle is None or (self._owner is not None and self._owner.model is None):
            raise ModelLoadError(f"The model {self._file.name} is closed; load it again.")
        return self._handle

    @property
    def digest(self) -> str:
        """SHA-256 over samples of the file, spread all over it: another model's, or another quantisation's, differs."""
        if self._digest is None:
            self._digest = sample_digest(self._file)
        return self._digest

    def backend(self, options: ContextOptions | None = None) -> LlamaBackend:
        """A context over this model. Raises ContextOverflowError, with the numbers, when it would not fit into
        memory."""
        options = within_positions(self._file, options or ContextOptions())
        _ = self.handle
        check(self._file, options)
        attends_here = not (options.offload_kqv and self._options.n_gpu_layers and _gpus())
        lean = attends_here and (options.n_ctx is None or options.flash_attn == "off")
        n_ctx = self._context_length(leanest(self._file, options) if lean else options)
        layouts = self._layouts(options, n_ctx, attends_here=attends_here)
        return self._context(layouts, attends_here=attends_here)

    def _context(self, layouts: Sequence[_Layout], *, attends_here: bool) -> LlamaBackend:
        """A context in the first of these layouts, which can change to the second and back."""
        (options, n_ctx), *others = layouts
        backend = LlamaBackend(
            self,
            options,
            n_ctx,
            is_stateful=self._info.is_recurrent or self._info.is_hybrid,
            window=self._file.sliding_window,
            attends_here=attends_here,
            copy_cost=copy_cost(self._file, options, n_ctx),
            n_ctx_other=longest_sequence(*others[0]) if others else 0,
            other=(lambda: self._other_context(layouts, attends_here=attends_here)) if others else None,
        )
        self._backends.add(backend)
        shape = "one buffer for all" if options.is_unified else f"a buffer of {backend.n_ctx_sequence} for each"
        _log.info("KV cache of %d cells for %d sequence(s): %s", n_ctx, options.n_sequences, shape)
        _log.info("flash attention %s, %d rows at once", options.flash_attn, options.rows_at_once)
        return backend

    def _other_context(self, layouts: Sequence[_Layout], *, attends_here: bool) -> LlamaBackend:
        """A context in the second layout; if that cannot be made, in the first again, for good. Raises EngineError
        where neither can."""
        first, *others = layouts
        try:
            return self._context((*others, first), attends_here=attends_here)
        except EngineError as error:
            _log.warning("the cells stay as they are laid out, as there is no other context to be had: %s", error)
        return self._context((first,), attends_here=attends_here)

    def close(self) -> None:
        """Free the contexts, then the weights; twice is fine."""
        if self._handle is None:
            return
        for backend in list(self._backends):
            backend.close()
        self._handle = None
        self._free()

    def _describe(self, lib: Any) -> ModelInfo:
        file, handle, vocab = self._file, self.handle, self._vocab
        pointer = vocab.handle
        return ModelInfo(
            path=file.path,
            architecture=file.architecture,
            name=file.name,
            quantization=file.quantization,
            parameters=file.parameters,
            size_bytes=file.weights,
            n_ctx_train=file.n_ctx_train,
            chat_template=file.chat_template,
            named_templates=file.named_templates,
            bos_text=vocab.text(int(lib.llama_vocab_bos(pointer))),
            eos_text=vocab.text(int(lib.llama_vocab_eos(pointer))),
            add_bos=vocab.adds_bos,
            is_recurrent=bool(lib.llama_model_is_recurrent(handle)),
            is_hybrid=bool(lib.llama_model_is_hybrid(handle)),
        )

    def _refuse_what_cannot_chat(self) -> None:
        lib, what = library(), None
        if lib.llama_model_has_encoder(self.handle):
            what = "an encoder-decoder model"
        elif lib.llama_model_is_diffusion(self.handle):
            what = "a diffusion model"
        if what:
            self.close()
            raise ModelLoadError(
                f"{self._file.path} is {what}, which this engine does not run; pass a decoder-only chat model."
            )

    def _layouts(self, options: ContextOptions, n_ctx: int, *, attends_here: bool) -> list[_Layout]:
        """How the cells are laid out at first, and how else they may be, where that is left to the work."""
        layouts = [(options, n_ctx)]
        if options.kv_unified is None:
            apart = replace(options, kv_unified=False)
            if self._can_split(options, n_ctx):
                layouts = [(apart, n_ctx)]
            else:
                layouts = [(replace(options, kv_unified=True), n_ctx)]
                if attends_here and self._may_part(options, n_ctx):
                    layouts.append((apart, shares(n_ctx, options.n_sequences)))
        if not attends_here:
            return layouts
        room = self._room() if options.check_memory else None
        first, *others = [(chosen(self._file, each, cells, room), cells) for each, cells in layouts]
        return [first, *(each for each in others if room is None or estimate(self._file, *each).total <= room)]

    def _can_split(self, options: ContextOptions, n_ctx: int) -> bool:
        """Whether buffers of their own take nothing from any sequence: nobody asked for a length, and each has the
        training length; they need no more memory; and there is attention that they make cheaper."""
        stretched = options.rope_freq_base or options.rope_freq_scale
        if options.n_ctx is not None or stretched or self._info.is_recurrent:
            return False
        apart = replace(options, kv_unified=False)
        if not n_ctx // options.n_sequences >= self._file.n_ctx_train > 0 or padded(n_ctx, apart) != n_ctx:
            return False
        return estimate(self._file, apart, n_ctx).total <= estimate(self._file, options, n_ctx).total

    def _may_part(self, options: ContextOptions, n_ctx: int) -> bool:
        """Whether buffers of their own may serve where all conversations are short: they can be begun anew, and their
        length does not decide how positions are encoded."""
        share = shares(n_ctx, options.n_sequences) // options.n_sequences
        if options.n_sequences == 1 or share < _LEAST_SHARE or self._info.is_recurrent or self._info.is_hybrid:
            return False
        return not self._file.turns_by_length

    def _context_length(self, options: ContextOptions) -> int:
        """Cells to make: as asked for if it fits, else the default, which is said in the log."""
        trained = self._file.n_ctx_train
        room = self._room()
        if options.n_ctx is not None:
            return self._asked_context(options, options.n_ctx, trained, room)
        wanted = padded(_default_cells(trained or _FALLBACK_CONTEXT, options), options)
        n_ctx = (
            wanted if room is None or not options.check_memory else largest_context(self._file, options, wanted, room)
        )
        if n_ctx == 0:
            raise ContextOverflowError(self._no_room(options, padded(1, options), room or 0))
        why = "by the training length" if n_ctx == wanted else f"what fits into {(room or 0) / _MIB:,.0f} MiB"
        _log.info("context of %d tokens for %d sequence(s): %s", n_ctx, options.n_sequences, why)
        return n_ctx

    def _asked_context(self, options: ContextOptions, asked: int, trained: int, room: int | None) -> int:
        n_ctx = padded(asked, options)
        if options.check_memory and room is not None and estimate(self._file, options, n_ctx).total > room:
            raise ContextOverflowError(self._no_room(options, n_ctx, room))
        longest = asked if options.is_unified else asked // options.n_sequences
        if trained and longest > trained * (options.n_sequences if options.is_unified else 1):
            _log.warning(
                "n_ctx=%d is above the training length of %d tokens; beyond it answers get worse", asked, trained
            )
        return n_ctx

    def _no_room(self, options: ContextOptions, n_ctx: int, room: int) -> str:
        need = estimate(self._file, options, n_ctx)
        fits = largest_context(self._file, options, n_ctx, room)
        advice = (
            f"the largest that fits is n_ctx={fits:,}"
            if fits
            else "not even the smallest fits: free memory, or use a smaller model"
        )
        return (
            f"n_ctx={n_ctx:,} needs about {need.total / _MIB:,.0f} MiB (KV cache {need.cache / _MIB:,.0f}, compute "
            f"{need.compute / _MIB:,.0f}), and {room / _MIB:,.0f} MiB are available; {advice}. "
            'A quantised cache (type_k="q8_0", type_v="q8_0") halves it.'
        )

    def _room(self) -> int | None:
        """Memory for a context: on the device when everything is offloaded there, else of this machine less the
        weights that are mapped but not read yet. None when nothing tells."""
        gpus = _gpus() if self._options.n_gpu_layers else []
        if gpus and _offloads_all(self._file, self._options):
            return int(sum(device.memory_free for device in gpus) * (1 - RESERVE))
        available = available_memory()
        if available is None:
            return None
        return max(0, int(available * (1 - RESERVE)) - (0 if gpus else self._mapped))


def _gpus() -> list[Device]:
    return [device for device in devices() if device.is_gpu]


def _alive(reference: "weakref.ref[Model]") -> int:
    model = reference()
    if model is None:
        raise ModelLoadError("The model of this vocabulary is gone; keep the Model while its vocabulary is used.")
    return model.handle


def _default_cells(trained: int, options: ContextOptions) -> int:
    """Room for a conversation of the training length, and beside it for others of ordinary length; every sequence has
    the training length where each has a buffer of its own."""
    if not options.is_unified:
        return trained * options.n_sequences
    return trained + (options.n_sequences - 1) * min(trained, _ORDINARY_CONTEXT)


def _offloads_all(file: GgufFile, options: ModelOptions) -> bool:
    return options.n_gpu_layers < 0 or options.n_gpu_layers >= len(file.layers)


def _check_memory(file: GgufFile, options: ModelOptions, available: int | None) -> None:
    if not options.check_memory or available is None or file.weights <= available:
        return
    if options.n_gpu_layers and library().llama_supports_gpu_offload():
        return  # llama.cpp itself reports a device that is too small
    raise ModelLoadError(
        f"{file.path} needs {file.weights / _MIB:,.0f} MiB for its weights, and {available / _MIB:,.0f} MiB are "
        "available; use a smaller quantisation, free memory, or offload layers (n_gpu_layers). check_memory=False "
        "tries all the same."
    )


def _load_failure(file: GgufFile, *, stopped: bool) -> str:
    if stopped:
        return f"Loading {file.path} was stopped by its progress callback."
    said = _LOADING.sub("", last_errors()).strip("; ") or "it gave no reason"
    return (
        f"llama.cpp could not load {file.path} (architecture {file.architecture}, {file.quantization}): {said}. "
        "The file may be damaged, or newer than the installed llama-cpp-python."
    )
