"""What mkdocs does differently from GitHub, made the same; the version in the header, and the changes as a page."""

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]


def on_config(config: Any, **_: Any) -> Any:
    """Put the version behind the site's name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"{config.site_name} {project['version']}"
    return config


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add CHANGELOG.md, which lies beside docs/, with its links as they are from there."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changes.md", content=text))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """In code in a table `\\|` is a bar: GitHub takes the backslash away, Python-Markdown leaves it."""
    return re.sub(r"<td>.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)
