"""What mkdocs does differently from GitHub, made the same; the version in the header, the changes as a page, and the
addresses that pages once had."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
MOVED = {
    "ARCHITECTURE": "about/architecture",
    "CONTRIBUTING": "about/contributing",
    "FAMILIES": "reference/families",
    "GUIDE": "start/first-chat",
    "PERFORMANCE": "about/performance",
    "SECURITY": "about/security",
    "STRUCTURED": "guides/structured-output",
    "adapters": "guides/adapters",
    "agents": "guides/agents-and-mcp",
    "batches": "guides/batches",
    "chat": "start/first-chat",
    "cli": "guides/command-line",
    "comparison": "about/compared",
    "conversations": "guides/many-conversations",
    "embeddings": "guides/embeddings",
    "faster": "about/performance",
    "frameworks": "guides/frameworks",
    "glossary": "reference/glossary",
    "images": "guides/images-and-sound",
    "installing": "start/install",
    "models": "start/which-model",
    "moving": "guides/migrate",
    "notebooks": "guides/notebooks",
    "openai": "guides/openai-client",
    "reasoning": "guides/reasoning",
    "recipes": "guides/recipes",
    "servers": "guides/other-servers",
    "several-models": "guides/several-models",
    "strengths": "about/compared",
    "supply-chain": "about/supply-chain",
    "testing": "guides/testing",
    "tools": "guides/tools",
    "troubleshooting": "start/troubleshooting",
    "web-servers": "guides/web-servers",
}
"""Where the page is that had this address. Those of the reference went to a folder: NOW_API."""
NOW_API = ("agents", "batch", "engine", "errors", "events", "openai", "records", "servers", "testing")
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
}
"""By how much a page's hits count in the search: what tells how to do something comes before what lists everything.
A hit in a title counts a thousand times as much as one in a text, hence so little for lists of names."""
REDIRECT = """<!doctype html>
<meta charset="utf-8">
<title>Moved</title>
<link rel="canonical" href="{address}">
<meta http-equiv="refresh" content="1; url={address}">
<script>location.replace("{address}" + location.hash)</script>
<p>This page is <a href="{address}">here</a> now.</p>
"""


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


def on_post_build(config: Any, **_: Any) -> None:
    """Write a page at each old address that leads to the new one, to the same heading there."""
    for old, new in [*MOVED.items(), *((f"reference/{name}", f"reference/api/{name}") for name in NOW_API)]:
        path = Path(config.site_dir, f"{old}.html")
        address = os.path.relpath(f"{new}.html", Path(old).parent)
        path.write_text(REDIRECT.format(address=Path(address).as_posix()), encoding="utf-8")
