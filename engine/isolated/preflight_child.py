"""The preflight's child process: decodes on the built-in model, tries a file, or returns facts about the library.

A native fault here ends only the child.
"""

import ctypes
import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from engine.isolated.file_trial import NOT_NUMBERS
from engine.llama import lib
from engine.llama.context import LlamaBackend
from engine.llama.gguf.projector_file import ProjectorFile, read_projector
from engine.llama.model import Model
from engine.llama.projector import sample
from engine.llama.vocab import LlamaVocab
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import AMX_VARIABLE, ContextOptions, MediaOptions, ModelOptions
from engine.runtime.media.media import MediaChunk, Projector
from engine.support.child import ends, read_frame, write_frame
from engine.support.errors import EngineError
from engine.types.media import MediaKind
from engine.types.sampling import SamplingParams

Order: TypeAlias = dict[str, Any]
"""What to do: a "task", and its parameters."""

BATCH = 64  # rows: the known fault shows from 8 rows on, never with one
SINGLES = 4
LONGEST = 13  # maximum tokens of each prompt but the first; small, since a shared pool holds all of them
TRIED = 16  # rows of a file's first batch: few, since the weights may be of any size


def _loaded(order: Order) -> Model:
    load: dict[str, Any] = order["load"]
    load["tensor_split"] = tuple(load["tensor_split"])
    return Model.load(Path(order["model"]), ModelOptions(**load), head=order.get("head", False))


def _context(order: Order) -> ContextOptions:
    context: dict[str, Any] = order["context"]
    context["control_vectors"] = ()  # which need no trial
    return ContextOptions(**context)


def decode(order: Order) -> Any:
    """Load the model, decode one batch of 64 tokens, single tokens, prompts of different lengths in all sequences, and
    tokens of all sequences at once. Returns "ok" if the process survives."""
    context = _loaded(order).backend(_context(order))
    context.decode([Row(token + 1, token, 0, token == BATCH - 1) for token in range(BATCH)])
    for position in range(BATCH, BATCH + SINGLES):
        context.decode([Row(position + 1, position, 0, True)])
    _decode_several(context)
    return "ok"


def _decode_several(context: LlamaBackend) -> None:
    """Decode prompts of different lengths in all sequences, then tokens of all of them at once."""
    count, size = context.info.n_sequences, context.info.n_batch
    samplers = [context.sampler(SamplingParams(temperature=0)) for _ in range(count)]
    lengths = [0, *(1 + 7 * sequence % LONGEST for sequence in range(1, count))]
    rows = [
        Row(position + 1, position, sequence, position == length - 1)
        for sequence, length in enumerate(lengths)
        for position in range(length)
    ]
    for start in range(0, len(rows), size):
        context.decode(rows[start : start + size])
    lengths[0] = BATCH + SINGLES
    tokens = [1] * count
    for more in range(SINGLES):
        context.decode(
            [Row(tokens[sequence], length + more, sequence, True) for sequence, length in enumerate(lengths)]
        )
        tokens = [context.sample(sampler, row) for row, sampler in enumerate(samplers)]


def try_file(order: Order) -> Any:
    """Load a file; tokenise each character once, detokenise all tokens, decode a batch and a single token, with the
    "adapter" and the "head" if there is one, and a picture and a sound if there is a "projector" for them. Returns
    "ok", `NOT_NUMBERS`, or an EngineError as text, which the parent will run into itself."""
    _limit_memory(order["room"])
    try:
        model = _loaded(order)
        _spell_all(model.vocab)
        context = model.backend(_context(order), _projector(order))
        size, last = model.vocab.size, TRIED - 1
        if not context.info.generates:
            vectors = context.vectors()
            text = [position % size for position in range(min(TRIED, vectors.info.longest))]
            vectors.embed([text])
            if vectors.info.sequences > 1 and 2 * len(text) <= vectors.info.rows:
                vectors.embed([text, text])
            return "ok"
        if adapter := order.get("adapter"):
            context.load_adapter(adapter, Path(adapter))
            context.adapt(((adapter, 1.0),))
        head = model.head(context) if order.get("head") else None
        rows = [Row(position % size, position, 0, position == last) for position in range(TRIED)]
        context.decode(rows)
        if head is not None:
            head.read(rows, head.hidden(0, TRIED))
            head.read([Row(0, TRIED, 0, True)], [head.own_hidden(last)])
        sure = context.likeliest(last)[1]
        context.decode([Row(0, TRIED, 0, True)])
        if adapter and not (sure and context.likeliest(0)[1]):
            return NOT_NUMBERS
        if context.projector is not None:
            for kind in sorted(context.projector.kinds):
                _evaluate_media(context, context.projector, kind)
    except EngineError as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def _projector(order: Order) -> ProjectorFile | None:
    path: str | None = order.get("projector")
    return None if path is None else read_projector(path, MediaOptions(**order["media"]))


def _evaluate_media(context: LlamaBackend, projector: Projector, kind: MediaKind) -> None:
    """Encode a small picture or a short sound, and decode what fits."""
    context.trim(0, 0)
    place = 0
    for part in projector.read(sample(kind)):
        if isinstance(part, MediaChunk):
            rows = projector.encode(part)
            if place + part.rows <= context.info.n_ctx:
                context.decode_media(part, 0, place, rows)
                place += part.rows
        else:
            context.decode([Row(token, place + at, 0, True) for at, token in enumerate(part)])
            place += len(part)


def _spell_all(vocab: LlamaVocab) -> None:
    everything = "".join(map(chr, (*range(1, 0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 0x1000))))
    for special in (False, True):
        vocab.tokenize(everything, special=special)
    tokens, size = (ctypes.c_int32 * vocab.size)(*range(vocab.size)), 64
    while size > 0:
        buffer = ctypes.create_string_buffer(size)
        size = -lib.library().llama_detokenize(vocab.handle, tokens, vocab.size, buffer, size, False, True)


def carry_out(order: Order) -> Any:
    """Carry out an order. Returns JSON values, or paths."""
    match order["task"]:
        case "decode":
            return decode(order)
        case "try":
            return try_file(order)
        case "tell":
            return asdict(lib.facts())
        case task:
            raise AssertionError(task)


def main() -> int:
    """Carry out one order; an ordinary error prints a traceback on standard error, with exit code 1."""
    orders, answers = ends()
    os.environ.pop(AMX_VARIABLE, None)  # an order says whether AMX is tried
    _no_core_dump()
    # The last line of standard error is the reason that the parent gives: llama.cpp's, if it ends this process.
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    lib.LOGGER.addHandler(handler)
    write_frame(answers, json.dumps(carry_out(json.loads(read_frame(orders))), default=str).encode())
    return 0


def _limit_memory(size: int) -> None:
    """Limit this process's memory, so that a file which makes llama.cpp take all memory ends only this process. 0 is no
    limit."""
    if size and sys.platform == "linux":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most in (-1, resource.RLIM_INFINITY) or size < most:
            resource.setrlimit(resource.RLIMIT_DATA, (size, most))


def _no_core_dump() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
