"""A model's weights in this process: loading them, facts about them, and contexts over them.

`gguf` checks a file before llama.cpp sees it.
"""

import ctypes
import logging
import os
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from engine.llama.amx import leave_out_amx
from engine.llama.context import LlamaBackend
from engine.llama.gguf.gguf import GgufFile, NamedTemplate, read_gguf, sample_digest
from engine.llama.gguf.projector_file import ProjectorFile
from engine.llama.gguf.rope import beyond, positions
from engine.llama.head import LlamaHead
from engine.llama.lib import forget_errors, init_error, last_errors, library, may_have_used_amx
from engine.llama.lifetime import Shared, freeing, made_in_thread
from engine.llama.params import LoadProgress, context_params, model_params
from engine.llama.plan.footprint import checkpoint_bytes, copy_cost
from engine.llama.plan.machine import anonymous_memory, batch_threads, return_freed_memory
from engine.llama.plan.plan import Machine, Plan, check_weights, plan, this_machine
from engine.llama.pooling import LlamaVectors, pool, vector_info, vector_options
from engine.llama.projector import LlamaProjector
from engine.llama.thread_rule import ContextThreads
from engine.llama.vocab import LlamaVocab
from engine.runtime.loop.backend import ContextInfo
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support.errors import EngineError, ModelLoadError
from engine.support.nothing import nothing

_log = logging.getLogger("engine.llama")
_LOADING = re.compile(
    r"\b\w+: (?=error loading|failed to)|error loading model: |failed to load model|(?<=: )\w+: (?=tensor)"
)
"""The parts of llama.cpp's errors that only name its functions, or that there is an error."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a loaded model. `size_bytes` is the size of its weights, `n_ctx_train` is in tokens (0: the file does
    not say)."""

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
    """Loaded weights. A context manager. Made by `Model.load`, which owns the llama_model, or by `Model.adopt`.

    `held`: the bytes of the weights that are already in this process's memory (the rest is mapped, and counted as used
    when a context is sized). `owner`: the llama_cpp.Llama whose model this is. `shared`: holds the weights, if another
    Model does too. `machine` returns the memory and devices for which a context is sized.
    """

    def __init__(
        self,
        file: GgufFile,
        options: ModelOptions,
        handle: int,
        *,
        held: int,
        owner: Any = None,
        shared: Shared | None = None,
        machine: Callable[[], Machine] = this_machine,
    ) -> None:
        lib = library()
        self.file = file
        self.options = options
        self._handle: int | None = handle
        self._owner = owner
        self._digest: str | None = None
        self._shared = shared or Shared(handle, lib.llama_model_free if owner is None else nothing)
        self._held = held
        self._machine = machine
        self._backends: weakref.WeakSet[LlamaBackend] = weakref.WeakSet()
        self._owned: list[Model] = []
        # At interpreter exit finalizers run newest first, so a service's, which joins the engine's thread and frees its
        # context, runs before this one.
        self._end = weakref.finalize(self, _free, self._shared, self._backends)
        self.vocab = LlamaVocab(self._shared)
        self.info = self._describe(lib)

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: ModelOptions | None = None,
        *,
        progress: Callable[[float], bool | None] | None = None,
        machine: Callable[[], Machine] = this_machine,
        head: bool = False,
        file: GgufFile | None = None,
    ) -> Self:
        """Load a GGUF. `progress` is called with 0.0 to 1.0, in another thread, and stops the load by returning False,
        or by raising an error, which is raised here. `machine` returns the available memory and devices. `head`: load
        the model's own head for the next tokens too. `file`: what was read of it already.

        Raises ModelLoadError for a file that is not a chat model, is damaged, does not fit into memory, or that this
        build of llama.cpp cannot load.
        """
        options = options or ModelOptions()
        file = file or read_gguf(path)
        lib = library()
        if not options.amx:
            leave_out_amx(lib._lib)
        check_weights(file, options, machine())
        before = anonymous_memory() if options.use_mmap else None
        forget_errors()
        watch = LoadProgress(progress)
        params, _kept = model_params(lib, options, watch, head=head)
        handle = made_in_thread(
            lambda: lib.llama_model_load_from_file(os.fsencode(file.path), params), lib.llama_model_free, watch.stop
        )
        if not handle:
            raise watch.fault or ModelLoadError(_load_failure(file, stopped=watch.stopped))
        after = anonymous_memory()
        held = after - before if before is not None and after is not None else file.weights
        model = cls(file, options, handle, held=held, machine=machine)
        model._refuse_what_cannot_chat()
        return model

    @classmethod
    def adopt(cls, llama: Any) -> Self:
        """Use the model of an existing `llama_cpp.Llama`, which keeps owning it: its weights are shared, contexts are
        new.

        Closing the Model does not affect the Llama; closing the Llama also closes the Model. Raises ModelLoadError for
        anything but an open Llama.
        """
        try:
            path, handle, params = llama.model_path, llama.model, llama.model_params
        except AttributeError as error:
            raise ModelLoadError(f"{llama!r} is not an open llama_cpp.Llama; pass one, or load the file.") from error
        if not handle:
            raise ModelLoadError("This llama_cpp.Llama is closed; adopt it before it is closed, or load the file.")
        file = read_gguf(path)
        options = ModelOptions(
            n_gpu_layers=max(-1, params.n_gpu_layers), use_extra_bufts=params.use_extra_bufts, amx=may_have_used_amx()
        )
        model = cls(file, options, handle, held=1 << 62, owner=llama)
        model._refuse_what_cannot_chat()
        return model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def handle(self) -> int:
        """The llama_model pointer. Raises EngineError once closed."""
        if self._handle is None or (self._owner is not None and self._owner.model is None):
            raise self._closed()
        return self._handle

    def _closed(self) -> EngineError:
        return EngineError(f"The model {self.file.name} is closed; load it again.")

    @property
    def digest(self) -> str:
        """A SHA-256 over samples from all over the file, which differs for other models and quantisations."""
        if self._digest is None:
            self._digest = sample_digest(self.file)
        return self._digest

    def backend(self, options: ContextOptions | None = None, projector: ProjectorFile | None = None) -> LlamaBackend:
        """Make a context over this model, which reads pictures and sounds if it is given a projector. Raises
        ContextOverflowError, with the numbers, if it would not fit into memory; ModelLoadError for a projector of
        another model."""
        options = options or ContextOptions()
        handle = self.handle
        if projector is not None:
            options = projector.widened(options)
        if self.file.embeds:
            options = vector_options(self.file, options)
        machine = self._machine().without(0 if projector is None else projector.memory)
        layers = replace(self.options, n_gpu_layers=self.options.n_gpu_layers or 0)  # where they are now
        made = plan(self.file, layers, options, machine, held=self._held)
        ready, cells = made.context, made.cells
        if warning := beyond(self.file, ready, made.n_ctx):
            _log.warning("%s", warning)
        _log.debug("%s", made.summary)
        vectors = vector_info(library(), handle, self.file, vector_options(self.file, ready))
        attends_here = not (options.offload_kqv and layers.n_gpu_layers and machine.gpus)
        info = replace(self._context_info(made, attends_here=attends_here), vectors=vectors)
        made_for = vectors if self.file.embeds else None
        window, causal = self.file.shape.sliding_window, self.file.shape.is_causal
        reader = None if projector is None else self._projector(projector, ready)
        if reader is not None:
            info = replace(info, media=tuple(sorted(reader.kinds)))
        try:
            backend = LlamaBackend(
                self, ready, cells, info, window=window, vectors=made_for, causal=causal, projector=reader
            )
        except BaseException:
            if reader is not None:
                reader.close()
            raise
        self._backends.add(backend)
        return backend

    def _context_info(self, made: Plan, *, attends_here: bool) -> ContextInfo:
        """Returns what a planned context can do. `attends_here`: the processor computes the attention."""
        ready, cells, n_sequences = made.context, made.cells, made.cells.sequences
        is_stateful = self.info.is_recurrent or self.info.is_hybrid
        return ContextInfo(
            n_ctx=made.n_ctx,
            n_sequences=n_sequences,
            kv_tokens=cells.total if ready.kv_unified else 0,
            n_batch=min(ready.n_batch, cells.total),
            n_outputs=ready.n_outputs(n_sequences),
            separate_prefill=attends_here and n_sequences > 1,
            can_share=not is_stateful,
            copy_cost=copy_cost(self.file, ready, cells),
            cut_states=0 if is_stateful else self.file.shape.sliding_window or None,
            passes_idle=attends_here and n_sequences > 1 and bool(ready.kv_unified) and not is_stateful,
            checkpoint_bytes=checkpoint_bytes(self.file, ready, n_sequences) if is_stateful else 0,
            generates=not self.file.embeds,
            positions=positions(self.file, ready),
        )

    def _projector(self, file: ProjectorFile, context: ContextOptions) -> LlamaProjector:
        return LlamaProjector(
            file,
            self._shared,
            tokens=self.vocab.size,
            use_gpu=bool(self.options.n_gpu_layers),
            n_threads=context.n_threads_batch or context.n_threads or batch_threads(),
        )

    def head(self, trunk: LlamaBackend) -> LlamaHead:
        """Make the context of the model's own head, which must be loaded, beside `trunk`, a context of this model.
        Raises RequestError if llama.cpp cannot make it."""
        head = LlamaHead(self, trunk, self.file.shape.sliding_window)
        self._backends.add(head)
        return head

    def lend(self) -> "Model":
        """Returns another Model over the same weights, which are freed when both are closed. Raises ModelLoadError if
        this one is closed."""
        return Model(self.file, self.options, self.handle, held=1 << 62, owner=self._owner, shared=self._shared.lend())

    def own(self, other: "Model") -> None:
        """Close another model together with this one."""
        self._owned.append(other)

    def vectors(self, options: ContextOptions) -> LlamaVectors:
        """Make a context for vectors beside one with these options. Raises ContextOverflowError, with the numbers, if
        it would not fit into memory."""
        lib, handle, file = library(), self.handle, self.file
        wanted = vector_options(file, options)
        layers = replace(self.options, n_gpu_layers=self.options.n_gpu_layers or 0)
        made = plan(file, layers, wanted, self._machine(), held=self._held, vectors=True)
        info = vector_info(lib, handle, file, made.context)
        abort = ctypes.create_string_buffer(2)
        params = pool(context_params(lib, made.context, made.cells, abort), info)
        forget_errors()
        context = made_in_thread(lambda: lib.llama_init_from_model(handle, params), lib.llama_free)
        if not context:
            raise init_error(made.n_ctx)

        free = freeing(self, lib.llama_free, context)
        rows = min(made.context.n_batch, made.cells.total)
        threads = ContextThreads(lib, context, made.context, params)
        return LlamaVectors(
            lib, context, info, causal=file.shape.is_causal, n_batch=rows, abort=abort, threads=threads, free=free
        )

    def close(self) -> None:
        """Free the contexts, then the weights, and give their memory back to the system. Can be called more than
        once."""
        if self._handle is None:
            return
        self._shared.close(self._closed())
        for backend in list(self._backends):
            backend.close()
        self._handle = None
        self._end()
        for other in self._owned:
            other.close()
        return_freed_memory()

    def _describe(self, lib: Any) -> ModelInfo:
        file, handle, vocab = self.file, self.handle, self.vocab
        pointer = vocab.handle
        return ModelInfo(
            path=file.path,
            architecture=file.architecture,
            name=file.name,
            quantization=file.quantization,
            parameters=file.parameters,
            size_bytes=file.weights,
            n_ctx_train=file.shape.n_ctx_train,
            chat_template=file.tokens.chat_template,
            named_templates=file.tokens.named_templates,
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
                f"{self.file.path} is {what}, which this engine does not run; pass a decoder-only chat model."
            )


def _free(shared: Shared, backends: "weakref.WeakSet[LlamaBackend]") -> None:
    for backend in list(backends) if shared.is_here else ():
        backend.close()
    shared.close(ModelLoadError("The model of this vocabulary is gone; keep the Model while its vocabulary is used."))


def _load_failure(file: GgufFile, *, stopped: bool) -> str:
    if stopped:
        return f"Loading {file.path} was stopped by its progress callback."
    said = _LOADING.sub("", last_errors()).strip("; ") or "it gave no reason"
    return (
        f"llama.cpp could not load {file.path} (architecture {file.architecture}, {file.quantization}): {said}. "
        "The file may be damaged, or newer than the installed llama-cpp-python."
    )
