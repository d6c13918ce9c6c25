"""Tries a file in a child process before llama.cpp sees it in this one, unless its header shows that it is safe, since
llama.cpp ends the process over what it takes for granted.
"""

import re
import warnings
from dataclasses import asdict, replace
from pathlib import Path

from engine.child import ChildNotStartedError
from engine.diagnose import preflight
from engine.diagnose.preflight import ChildFaultError, Verdict
from engine.errors import EngineError, EngineWarning, ModelLoadError
from engine.llama.footprint import cells_of, estimate
from engine.llama.gguf import GgufFile
from engine.runtime.config import ContextOptions, ModelOptions

TRIED = "ok"
"""The child's reply for a file that it has loaded and used."""
_SECONDS = 120.0
_READ = 20 << 20  # bytes per second: the slowest assumed speed of reading a file
_SMALL = 16 << 20  # bytes of weights up to which a second thread gains nothing
_ROOM = 4 << 30  # bytes that a child may take in addition to weights and context


def try_file(
    file: GgufFile,
    model: ModelOptions,
    context: ContextOptions,
    adapter: Path | None = None,
    *,
    head: bool = False,
    child: str | None = None,
    directory: Path | None = None,
) -> None:
    """Let a child load a file, tokenise and decode, unless it is verified; to be called before loading it here. With an
    `adapter` of the model, the child decodes with it; with `head`, also with the model's own head.

    Success, or the child's death by it, is remembered by the paths, sizes and times of the file's parts. The child does
    not see problems that occur only after 256 tokens. Raises ModelLoadError if the child died or did not answer; warns
    (`EngineWarning`) if no child can be started.
    """
    if file.is_verified and adapter is None and not head:
        return
    tried, parts = (file.path, file.parts) if adapter is None else (adapter, (*file.parts, adapter))
    reduced, small = preflight.reduced(model, context)
    model = replace(reduced, check_memory=model.check_memory)
    threads = None if file.weights > _SMALL else 1
    small = replace(small, n_threads=threads, n_threads_batch=None, check_memory=context.check_memory)
    stats: list[object] = [(str(part.resolve()), part.stat().st_size, part.stat().st_mtime_ns) for part in parts]
    if head:
        stats.append("head")
    path = (directory or preflight.cache_directory() / "preflight") / f"file-{preflight.key(model, small, stats)}.json"
    verdict = preflight.read(path)
    if verdict is None:
        try:
            verdict = _tried(file, model, small, adapter, child, head=head)
        except ChildNotStartedError as error:
            message = f"{tried} could not be tried in a child process first: {error} If it is damaged, llama.cpp"
            warnings.warn(f"{message} may end this process.", EngineWarning, stacklevel=2)
            return
        # An EngineError, such as one about memory, may not recur; this process will run into it itself.
        if verdict.outcome == "faulty" or verdict.reason == TRIED:
            preflight.write(path, verdict)
    if verdict.outcome != "sound":
        raise ModelLoadError(
            f"{tried} is not loaded. {verdict.reason} It was tried there first, since a file of its kind can end "
            "the process. Download or convert it again; if it is newer than the installed llama-cpp-python, "
            "upgrade that. preflight=False takes the risk."
        )


def _tried(
    file: GgufFile, model: ModelOptions, context: ContextOptions, adapter: Path | None, child: str | None, *, head: bool
) -> Verdict:
    cells = cells_of(context, context.n_ctx or 0, context.n_sequences or 1)
    room = 2 * file.weights + 2 * estimate(file, context, cells).total + _ROOM
    order = {
        "task": "try",
        "model": str(file.path),
        "load": asdict(model),
        "context": asdict(context),
        "adapter": None if adapter is None else str(adapter),
        "head": head,
        "room": 0 if model.n_gpu_layers else room,
    }
    try:
        return Verdict("sound", str(preflight.ask_child(order, child, _SECONDS + file.weights / _READ)))
    except ChildNotStartedError:
        raise
    except EngineError as error:
        reason = re.sub(r"[^\s(]*/", "", str(error))  # without paths
        return Verdict("faulty" if isinstance(error, ChildFaultError) else "unknown", reason)
