"""A model's weights in this process: loading them, what they are, and contexts over them.

Knows: the llama_model handle and who must be freed before it; the memory of this machine. Does not know: requests,
templates, sampling. A file is checked by `gguf_file` before llama.cpp sees it.
"""

import logging
import os
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from engine.errors import ContextOverflowError, ModelLoadError
from engine.llama.context import LlamaBackend
from engine.llama.gguf import GgufFile, NamedTemplate, read_gguf, sample_digest
from engine.llama.lib import Device, devices, forget_errors, last_errors, library
from engine.llama.lifetime import Shared, made_apart
from engine.llama.memory import (
    RESERVE,
    anonymous_memory,
    available_memory,
    cells_of,
    checkpoint_bytes,
    copy_cost,
    estimate,
    largest_context,
)
from engine.llama.params import LoadProgress, check, model_params, on_cpu, position_limit
from engine.llama.vocab import LlamaVocab
from engine.runtime.backend import ContextInfo
from engine.runtime.options import ContextOptions, ModelOptions

_log = logging.getLogger("engine.llama")
_MIB = 1 << 20
_MODEST_CONTEXT = 8192  # of one conversation, where nobody asked for a length
_FALLBACK_CONTEXT = 4096  # for a file that does not tell its training length
_SEQUENCES = 4  # where nobody said how many, and memory allows
_LOADING = re.compile(
    r"\b\w+: (?=error loading|failed to)|error loading model: |failed to load model|(?<=: )\w+: (?=tensor)"
)
"""What llama.cpp's errors say of its own functions, and that there is an error."""


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
        self._shared = Shared(handle, lib.llama_model_free if owner is None else int)
        self._mapped = max(0, file.weights - held)
        self._backends: weakref.WeakSet[LlamaBackend] = weakref.WeakSet()
        # Finalizers run newest first at the interpreter's end: a service's, which joins the engine's thread and frees
        # its context, before this one.
        self._end = weakref.finalize(self, _free, self._shared, self._backends)
        self._vocab = LlamaVocab(self._shared)
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
            raise self._closed()
        return self._handle

    def _closed(self) -> ModelLoadError:
        return ModelLoadError(f"The model {self._file.name} is closed; load it again.")

    @property
    def digest(self) -> str:
        """SHA-256 over samples of the file, spread all over it: another model's, or another quantisation's, differs."""
        if self._digest is None:
            self._digest = sample_digest(self._file)
        return self._digest

    def backend(self, options: ContextOptions | None = None) -> LlamaBackend:
        """A context over this model. Raises ContextOverflowError, with the numbers, when it would not fit into
        memory."""
        options = options or ContextOptions()
        _ = self.handle
        check(self._file, options)
        attends_here = not (options.offload_kqv and self._options.n_gpu_layers and _gpus())
        ready, n_ctx = self._sized(options, attends_here=attends_here)
        n_sequences = ready.n_sequences or 1
        cells = cells_of(ready, n_ctx, n_sequences)
        is_stateful = self._info.is_recurrent or self._info.is_hybrid
        info = ContextInfo(
            n_ctx=n_ctx,
            n_sequences=n_sequences,
            kv_tokens=cells.total if ready.kv_unified else 0,
            n_batch=min(ready.n_batch, cells.total),
            n_outputs=ready.n_outputs(n_sequences),
            separate_prefill=attends_here and n_sequences > 1,
            can_share=not is_stateful,
            copy_cost=copy_cost(self._file, ready, cells),
            checkpoint_bytes=checkpoint_bytes(self._file, ready, n_sequences) if is_stateful else 0,
        )
        backend = LlamaBackend(self, ready, cells, info, window=self._file.sliding_window)
        self._backends.add(backend)
        return backend

    def close(self) -> None:
        """Free the contexts, then the weights; twice is fine."""
        if self._handle is None:
            return
        self._shared.close(self._closed())
        for backend in list(self._backends):
            backend.close()
        self._handle = None
        self._end()

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

    def _sized(self, options: ContextOptions, *, attends_here: bool) -> tuple[ContextOptions, int]:
        """The options with `n_sequences` and attention decided, and `n_ctx`: as asked for if that fits into memory, the
        default where nobody asked. The log says which."""
        file, room = self._file, self._room() if options.check_memory else None
        trained = file.n_ctx_train
        limits = (trained or _FALLBACK_CONTEXT, position_limit(file, options), options.kv_tokens)
        wanted = options.n_ctx or min(limit or _MODEST_CONTEXT for limit in (*limits, _MODEST_CONTEXT))

        def ready(n_sequences: int) -> ContextOptions:
            some = replace(options, n_sequences=n_sequences)
            return on_cpu(file, some, wanted, n_sequences) if attends_here else some

        def fits(n_sequences: int, room: float | None) -> bool:
            need = estimate(file, ready(n_sequences), cells_of(options, wanted, n_sequences))
            return room is None or need.total <= room

        half = None if room is None else room / 2
        most = min(_SEQUENCES, options.n_batch)
        n_sequences = options.n_sequences or next((n for n in range(most, 1, -1) if fits(n, half)), 1)
        n_ctx = wanted
        if room is not None and not fits(n_sequences, room):
            n_ctx = 0 if options.n_ctx else largest_context(file, ready(n_sequences), n_sequences, wanted, room)
            if n_ctx == 0:
                raise ContextOverflowError(_no_room(file, ready(n_sequences), wanted, room))
        if trained and n_ctx > trained:
            _log.warning(
                "n_ctx=%d is above the training length of %d tokens; beyond it answers get worse", n_ctx, trained
            )
        self._tell(options, ready(n_sequences), n_ctx, wanted)
        return ready(n_sequences), n_ctx

    @staticmethod
    def _tell(asked: ContextOptions, ready: ContextOptions, n_ctx: int, wanted: int) -> None:
        """What was decided, and by whom."""
        length = "as asked for" if asked.n_ctx else "the default" if n_ctx == wanted else "what fits into memory"
        count = "as asked for" if asked.n_sequences else "the default, as far as memory allows"
        layout = "one pool for all" if ready.kv_unified else "a KV buffer for each"
        _log.info("n_ctx=%d tokens a conversation (%s; n_ctx= says otherwise)", n_ctx, length)
        _log.info("n_sequences=%s (%s; n_sequences= says otherwise), %s", ready.n_sequences, count, layout)
        _log.info("flash attention %s, %d rows at once", ready.flash_attn, ready.rows_at_once)

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


def _free(shared: Shared, backends: "weakref.WeakSet[LlamaBackend]") -> None:
    for backend in list(backends):
        backend.close()
    shared.close(ModelLoadError("The model of this vocabulary is gone; keep the Model while its vocabulary is used."))


def _no_room(file: GgufFile, options: ContextOptions, n_ctx: int, room: int) -> str:
    n_sequences = options.n_sequences or 1
    need = estimate(file, options, cells_of(options, n_ctx, n_sequences))
    free = replace(options, kv_tokens=None)
    fits = largest_context(file, free, n_sequences, options.kv_tokens or n_ctx, room)
    name = "kv_tokens" if options.kv_tokens else "n_ctx"
    fewer = f" with n_sequences={n_sequences}" if n_sequences > 1 and not options.kv_unified else ""
    advice = (
        f"the largest that fits is {name}={fits:,}{fewer}"
        if fits
        else f"not even the smallest fits{fewer}: free memory, or use a smaller model"
    )
    return (
        f"{name}={options.kv_tokens or n_ctx:,}{fewer} needs about {need.total / _MIB:,.0f} MiB (KV cache "
        f"{need.cache / _MIB:,.0f}, compute {need.compute / _MIB:,.0f}), and {room / _MIB:,.0f} MiB are available; "
        f'{advice}. A quantised cache (type_k="q8_0", type_v="q8_0") halves it.'
    )


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
