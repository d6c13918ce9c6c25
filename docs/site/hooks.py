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
    """Put the version behind the site's name, and the addresses of the source and of the site, once there are any."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"{config.site_name} {project['version']}"
    if "OWNER" not in project["urls"]["Source"]:
        config.repo_url, config.site_url = project["urls"]["Source"], project["urls"]["Documentation"]
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


def on_nav(nav: Any, config: Any, files: Any) -> Any:  # noqa: ARG001 - mkdocs passes it by name
    """Remember the pages in their order, for `llms.txt`."""
    config.extra["pages"] = nav.pages
    return nav


def on_post_build(config: Any, **_: Any) -> None:
    """Write `llms.txt` (llmstxt.org): each page with its title and its first sentence, for programs that read."""
    pages = [page for page in config.extra["pages"] if not page.file.src_uri.startswith("reference/api/")]
    rows = [f"- [{page.title}]({config.site_url or ''}{page.url}): {_first_sentence(page.markdown)}" for page in pages]
    text = "\n".join([f"# {config.site_name}", "", f"> {config.site_description}", "", *rows, ""])
    Path(config.site_dir, "llms.txt").write_text(text, encoding="utf-8")


def _first_sentence(markdown: str) -> str:
    """Returns the first sentence of a page's paragraphs that introduces no block."""
    prose = re.sub(r"^(```.*?^```|#.*?$|[|<!>].*?$)", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    return next((each for each in re.split(r"(?<=[.:?]) ", text) if each.endswith(".")), "")
