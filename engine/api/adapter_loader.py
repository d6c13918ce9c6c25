"""LoRA adapters of one engine: their files read and tried, then loaded under a name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from engine.llama.gguf.adapter_file import AdapterFile, read_adapter
from engine.llama.gguf.gguf import GgufFile
from engine.runtime.adapters.adapters import AdapterInfo, scale_of
from engine.runtime.stream.service import Service
from engine.support.errors import ContextOverflowError, ModelLoadError, RequestError, shown
from engine.support.warning import warn

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """Reads the files of adapters for one model; None, if there is none, as under a scripted backend. `trial` decodes
    with a file in a child process; `room` returns the bytes that may be taken, None if that is not known. `first` are
    those to load with the engine, which are tried already."""

    model: GgufFile | None = None
    trial: Callable[[Path], None] | None = None
    room: Callable[[], int | None] | None = None
    first: Mapping[str, AdapterFile] = field(default_factory=dict[str, AdapterFile])

    def read(self, path: str | Path) -> AdapterFile:
        """Returns an adapter's file. Raises ModelLoadError if it is none, or not for this model; warns
        (`EngineWarning`) if llama.cpp would not apply all of it."""
        if not isinstance(cast("object", path), str | Path):
            raise RequestError(f"The path of an adapter must be a str or Path; this is a {type(path).__name__}.")
        file = read_adapter(path)
        if self.model is None:
            return file
        if file.architecture != self.model.architecture:
            raise ModelLoadError(
                f"The adapter {file.path} is for models of the architecture {file.architecture!r}, but "
                f"{self.model.path.name} is {self.model.architecture!r}; an adapter fits only the model that it was "
                "trained on."
            )
        if file.flipped and self.model.shape.tied:
            raise ModelLoadError(
                f"The adapter {file.path} adapts the embedding matrix, which {self.model.path.name} uses for the "
                "output too; llama.cpp would end the process there. Train or convert it without that matrix."
            )
        if file.ignored:
            what = f"{len(file.ignored)} of the tensors in {file.path} ({file.ignored[0]} ..)"
            warn(f"llama.cpp does not apply {what}: it ignores norms.")
        return file

    def named(self, adapters: Mapping[str, str | Path] | None) -> dict[str, AdapterFile]:
        """Returns the files of adapters by name. Raises RequestError for what is not a dictionary of names and paths,
        and what `read` raises."""
        if not isinstance(given := cast("object", adapters or {}), Mapping):
            raise RequestError(f'adapters={shown(given)} is not valid; write {{"name": "path"}}.')
        for name in cast("Mapping[object, object]", given):
            _check_name(name)
        return {name: self.read(path) for name, path in (adapters or {}).items()}

    def tried(self, path: str | Path) -> AdapterFile:
        """Returns an adapter's file, after a child process has decoded with it. Raises what `read` raises,
        ContextOverflowError if it does not fit into memory, ModelLoadError if the child died."""
        file = self.read(path)
        room = None if self.room is None else self.room()
        if room is not None and file.size_bytes > room:
            raise ContextOverflowError(
                f"The adapter {file.path} needs {file.size_bytes / _MIB:,.0f} MiB, but only {room / _MIB:,.0f} MiB of "
                "memory can be used; free memory, or drop another. check_memory=False tries it anyway."
            )
        if self.trial is not None:
            self.trial(file.path)
        return file


class AdapterLoader:
    """Loads the adapters of one engine, from any thread."""

    def __init__(self, service: Service, source: AdapterSource | None) -> None:
        self._service = service
        self._source = source or AdapterSource()

    def load_first(self) -> None:
        """Load those that its source has `first`; raises what `load` raises."""
        for name, file in self._source.first.items():
            self._add(name, file, 1.0)

    def load(self, name: str, path: str | Path, scale: float) -> AdapterInfo:
        """Load an adapter under a name; raises what `Engine.load_adapter` raises."""
        self._service.check_open()
        _check_name(name)
        return self._add(name, self._source.tried(path), scale_of(name, scale))

    def _add(self, name: str, file: AdapterFile, scale: float) -> AdapterInfo:
        info = AdapterInfo(
            name, file.path, file.digest, scale, file.architecture, file.rank, file.size_bytes, file.invocation
        )
        self._service.load_adapter(info)
        return info


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise RequestError(f"The name of an adapter must be a text; this is {shown(name)}.")
