"""The build hook: puts models.toml, the templates and the built-in model inside the wheel, under engine/_files/.

They lie at the repository's root because people read and edit them there; `engine/_data.py` finds them in both places.
The files are named one by one, since including a directory would ship whatever else lies in it.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAMED = ("models.toml", "examples/default_model/builtin-q8_0.gguf")
PATTERN = "templates/*.jinja"
TARGET = "engine/_files"


def data_files(root: Path) -> list[str]:
    """The data files of the wheel, relative to the root. Raises FileNotFoundError naming what is missing."""
    templates = sorted(path.relative_to(root).as_posix() for path in root.glob(PATTERN))
    missing = [name for name in NAMED if not (root / name).is_file()] + ([] if templates else [PATTERN])
    if missing:
        raise FileNotFoundError(f"{', '.join(missing)} not found in {root}: a wheel without them would not work.")
    return [*NAMED, *templates]


class DataFiles(BuildHookInterface[Any]):
    """Adds the data files to a real wheel; an editable install reads them at the repository's root."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a wheel is built; `version` is "editable" or "standard"."""
        if version == "editable":
            return
        root = Path(self.root)
        build_data["force_include"].update({str(root / name): f"{TARGET}/{name}" for name in data_files(root)})
