"""Tries a file in a child process before llama.cpp sees it in this one, unless its header shows that it is safe, since
llama.cpp ends the process over what it takes for granted.
"""

import re
from dataclasses import asdict, replace
from pathlib import Path

from engine.isolated import preflight
from engine.isolated.preflight import ChildFaultError, Verdict
from engine.llama.gguf.gguf import GgufFile
from engine.llama.gguf.gguf_header import reading
from engine.llama.gguf.projector_file import ProjectorFile
from engine.llama.plan.footprint import cells_of, estimate
from engine.llama.plan.machine import ONE_THREAD
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support.child import ChildNotStartedError
from engine.support.errors import EngineError, ModelLoadError
from engine.support.warning import warn

_REFUSED = "RequestError: "
"""The beginning of the child's reply about a projector that cannot read for this model, which a load does not show."""
TRIED = "ok"
"""The child's reply for a file that it has loaded and used."""
NOT_NUMBERS = "not numbers"
"""Its reply for an adapter with which the logits are not numbers."""
_SECONDS = 120.0
_READ = 20 << 20  # bytes per second: the slowest assumed speed of reading a file
_MEDIA_TOKENS = 2048  # of the context in which a picture is evaluated
_ROOM = 4 << 30  # bytes that a child may take in addition to weights and context


def try_file(
    file: GgufFile,
    model: ModelOptions,
    context: ContextOptions,
    adapter: Path | None = None,
    *,
    projector: ProjectorFile | None = None,
    head: bool = False,
    child: str | None = None,
    directory: Path | None = None,
) -> None:
    """Let a child load a file, tokenise and decode, unless it is verified; to be called before loading it here. With an
    `adapter` of the model, the child decodes with it; with a `projector`, it evaluates a picture or a sound; with
    `head`, it decodes with the model's own head, too.

    Success, or the child's death by it, is remembered by the paths, sizes and times of the file's parts. The child does
    not see problems that occur only after 256 tokens. Raises ModelLoadError if the child died or did not answer, or if
    logits with the adapter are not numbers; warns (`EngineWarning`) if no child can be started.
    """
    beside = adapter if projector is None else projector.path
    if file.is_verified and beside is None and not head:
        return
    reduced, small = preflight.reduced(model, context)
    if projector is not None:
        small = _for_media(file, small, projector)
    model = replace(reduced, check_memory=model.check_memory)
    threads = None if file.weights > ONE_THREAD else 1
    small = replace(small, n_threads=threads, n_threads_batch=None, check_memory=context.check_memory)
    more = ([repr(projector.options)] if projector is not None else []) + (["head"] if head else [])
    key = preflight.key(model, small, [*_stats(file, beside), *more])
    path = (directory or preflight.cache_directory() / "preflight") / f"file-{key}.json"
    tried, verdict = beside or file.path, preflight.read(path)
    if verdict is None:
        try:
            verdict = _tried(file, model, small, adapter, projector, child, head=head)
        except ChildNotStartedError as error:
            message = f"{tried} could not be tried in a child process first: {error} If it is damaged, llama.cpp"
            warn(f"{message} may end this process.")
            return
        # An EngineError, such as one about memory, may not recur; this process will run into it itself.
        if verdict.outcome == "faulty" or verdict.reason in (TRIED, NOT_NUMBERS):
            preflight.write(path, verdict)
    _refuse(tried, verdict)


def _stats(file: GgufFile, beside: Path | None) -> list[object]:
    """Returns what tells whether a file's parts, and the file beside them, are those that were tried."""
    parts = file.parts if beside is None else (*file.parts, beside)
    with reading(beside or file.path):
        return [(str(part.resolve()), part.stat().st_size, part.stat().st_mtime_ns) for part in parts]


def _refuse(tried: Path, verdict: Verdict) -> None:
    """Raise ModelLoadError for a file that a child could not use."""
    if verdict.reason.startswith(_REFUSED):
        raise ModelLoadError(f"{tried} is not loaded. {verdict.reason.removeprefix(_REFUSED)}")
    if verdict.reason == NOT_NUMBERS:
        raise ModelLoadError(
            f"{tried} is not loaded: with it the model computes NaN or infinity. The adapter is damaged, or was made "
            "for another model: download or convert it again."
        )
    if verdict.outcome != "sound":
        raise ModelLoadError(
            f"{tried} is not loaded. {verdict.reason} It was tried there first, since a file of its kind can end "
            "the process. Download or convert it again; if it is newer than the installed llama-cpp-python, "
            "upgrade that. preflight=False takes the risk."
        )


def _for_media(file: GgufFile, context: ContextOptions, projector: ProjectorFile) -> ContextOptions:
    """Returns the options of one conversation that holds a picture of common size."""
    n_ctx = min(_MEDIA_TOKENS, file.shape.n_positions or _MEDIA_TOKENS)
    return projector.widened(replace(context, n_ctx=n_ctx, n_sequences=1, kv_unified=False, kv_tokens=None))


def _tried(
    file: GgufFile,
    model: ModelOptions,
    context: ContextOptions,
    adapter: Path | None,
    projector: ProjectorFile | None,
    child: str | None,
    *,
    head: bool,
) -> Verdict:
    cells = cells_of(context, context.n_ctx or 0, context.n_sequences or 1)
    room = 2 * file.weights + 2 * estimate(file, context, cells).total + _ROOM
    size = file.weights
    if projector is not None:
        room, size = room + 2 * projector.size_bytes, size + projector.size_bytes
    order = {
        "task": "try",
        "model": str(file.path),
        "load": asdict(model),
        "context": asdict(context),
        "adapter": None if adapter is None else str(adapter),
        "projector": None if projector is None else str(projector.path),
        "media": None if projector is None else asdict(projector.options),
        "head": head,
        "room": 0 if model.n_gpu_layers else room,
    }
    try:
        return Verdict("sound", str(preflight.ask_child(order, child, _SECONDS + size / _READ)))
    except ChildNotStartedError:
        raise
    except EngineError as error:
        reason = re.sub(r"[^\s(]*/", "", str(error))  # without paths
        return Verdict("faulty" if isinstance(error, ChildFaultError) else "unknown", reason)
