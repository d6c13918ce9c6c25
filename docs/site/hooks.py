"""What mkdocs does differently from GitHub, made the same; the version in the header, and the changes as a page."""

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
PLACED = {"CONTRIBUTING.md": "about/contributing.html", "SECURITY.md": "about/security.html"}
"""Where the site has the pages that GitHub looks for in docs/ itself."""
FIRST_FOUND = {
    "start/": 8,
    "guides/": 8,
    "reference/glossary": 4,
    "reference/families": 0.02,
    "reference/options": 0.02,
    "reference/api/": 0.01,
    "changes": 0.001,
    "about/decisions/": 0.001,
}
"""By how much a page's hits count in the search: what tells how to do something comes before what lists everything.
A hit in a title counts a thousand times as much as one in a text, hence so little for lists of names."""


def on_config(config: Any, **_: Any) -> Any:
    """Put the version behind the site's name, and a link to the source into the header once there is an address."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"{config.site_name} {project['version']}"
    config.repo_url = project.get("urls", {}).get("Source")
    return config


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add CHANGELOG.md, which lies beside docs/, with its links as they are from there; and place PLACED."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changes.md", content=text))
    for source, address in PLACED.items():
        files.get_file_from_path(source).dest_uri = address
    return files


def on_page_markdown(_markdown: str, page: Any, **_: Any) -> None:
    """Settings of single pages, which GitHub would show as a table if they stood in them."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    boost = next((by for begin, by in FIRST_FOUND.items() if page.file.src_uri.startswith(begin)), 1)
    page.meta["search"] = {"boost": boost}


def on_page_content(html: str, **_: Any) -> str:
    """In code in a table `\\|` is a bar: GitHub takes the backslash away, Python-Markdown leaves it."""
    return re.sub(r"<td>.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)
