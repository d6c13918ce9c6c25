"""The build hook: puts models.toml, the templates and the built-in model inside the wheel, under engine/_files/, and a
bill of materials beside the wheel's metadata (PEP 770). The metadata hook: README.md as an index of packages shows it.

The data lie at the repository's root because people read and edit them there; `engine/support/_data.py` finds them
in both places. The files are named one by one, since including a directory would ship whatever else lies in it.
"""

import hashlib
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.version import Version

NAMED = ("models.toml", "examples/default_model/builtin-q8_0.gguf")
PATTERN = "templates/*.jinja"
TARGET = "engine/_files"
SBOM = "llama-engine.cdx.json"
FOR_DEVELOPERS = ("dev", "docs")
"""The extras whose packages no user needs."""


def data_files(root: Path) -> list[str]:
    """The data files of the wheel, relative to the root. Raises FileNotFoundError naming what is missing."""
    templates = sorted(path.relative_to(root).as_posix() for path in root.glob(PATTERN))
    missing = [name for name in NAMED if not (root / name).is_file()] + ([] if templates else [PATTERN])
    if missing:
        raise FileNotFoundError(f"{', '.join(missing)} not found in {root}: a wheel without them would not work.")
    return [*NAMED, *templates]


def bill_of_materials(root: Path, project: Any) -> dict[str, Any]:
    """A CycloneDX 1.7 document (ECMA-424) of the wheel: each data file with its SHA-256, and each package that the
    wheel asks for, as an external component with its range of versions. It has no time and no random number, so the
    same sources give the same bytes. `project` is hatchling's metadata of the project."""
    held = [
        {
            "type": "machine-learning-model" if name.endswith(".gguf") else "data",
            "bom-ref": name,
            "name": name,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256((root / name).read_bytes()).hexdigest()}],
        }
        for name in data_files(root)
    ]
    extras = project.optional_dependencies_complex
    users = [extras[name] for name in sorted(extras) if name not in FOR_DEVELOPERS]
    needed: dict[str, dict[str, Any]] = {}
    for scope, requirements in (("required", project.dependencies_complex), *(("optional", extra) for extra in users)):
        for requirement in requirements.values():
            purl = f"pkg:pypi/{requirement.name}"
            package = {"type": "library", "bom-ref": purl, "name": requirement.name, "purl": purl, "scope": scope}
            needed.setdefault(purl, {**package, "isExternal": True, "versionRange": _vers(requirement)})
    own = f"pkg:pypi/{project.name}@{project.version}"
    wheel = {"type": "library", "bom-ref": own, "name": project.name, "version": project.version, "purl": own}
    components = [*held, *needed.values()]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "version": 1,
        "metadata": {"component": {**wheel, "licenses": [{"license": {"id": project.license_expression}}]}},
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [each["bom-ref"] for each in components]}],
    }


def _vers(requirement: Any) -> str:
    """A requirement's versions in the vers notation of package URLs, which writes an exact version without `==`."""
    limits = sorted(requirement.specifier, key=lambda limit: Version(limit.version))
    return "vers:pypi/" + "|".join(limit.operator.removeprefix("==") + limit.version for limit in limits)


def readme(text: str, source: str, version: str) -> str:
    """README.md with whole addresses, of this version: links between files lead nowhere on an index of packages."""
    text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{source}/raw/v{version}/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{source}/blob/v{version}/", text)


class Readme(MetadataHookInterface):
    """Makes the description of README.md."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling when it reads pyproject.toml."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = readme(text, metadata["urls"]["Source"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class WheelFiles(BuildHookInterface[Any]):
    """Adds the data files and the bill of materials to a real wheel; an editable install reads the former at the
    repository's root."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a wheel is built; `version` is "editable" or "standard"."""
        if version == "editable":
            return
        root = Path(self.root)
        build_data["force_include"].update({str(root / name): f"{TARGET}/{name}" for name in data_files(root)})
        self._folder = tempfile.mkdtemp()
        written = Path(self._folder, SBOM)
        project: Any = self.metadata.core  # pyright: ignore[reportUnknownMemberType]
        document = bill_of_materials(root, project)
        written.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8", newline="\n")
        build_data["sbom_files"].append(str(written))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Called by hatchling when the wheel is written."""
        if version != "editable":
            shutil.rmtree(self._folder)
