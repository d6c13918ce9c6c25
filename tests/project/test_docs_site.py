"""The site that is made of docs/: it builds without a warning, its links lead somewhere, it loads nothing from
elsewhere, and the messages that it explains are those that the engine prints."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
NO_LOAD = {"canonical", "prev", "next", "alternate"}


class Page(HTMLParser):
    """A built page: the ids that it has, where its links lead, and what a browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if LOADS.get(tag) in given and given.get("rel") not in NO_LOAD:
            self.loaded.append(given[LOADS[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = ["mkdocs", "build", "--strict", "--quiet", "-f", DOCS / "site" / "mkdocs.yml", "--site-dir", folder]
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_link_leads_somewhere(pages: dict[Path, Page], site: Path) -> None:
    assert len(pages) >= len(list(DOCS.rglob("*.md")))
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme in ("http", "https", "mailto"), f"{path.name}: {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.relative_to(site)}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids | {"__skip"}, f"{path.relative_to(site)}: {link}"


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page], site: Path) -> None:
    for path, page in pages.items():
        for address in page.loaded:
            assert not urlsplit(address).netloc, f"{path.relative_to(site)} loads {address}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?https?:|@import", path.read_text(encoding="utf-8")), path.name


def test_the_reference_shows_every_public_name(pages: dict[Path, Page]) -> None:
    """Or, of unions and other aliases, the records that they are made of."""
    import engine

    shown = {found.rpartition(".")[2] for page in pages.values() for found in page.ids if found.startswith("engine.")}
    left_out = {
        "CallError",
        "FinishReason",
        "Family",
        "Part",
        "Role",
        "ToolChoice",
        "ToolLike",
        "TurnRequest",
        "Service",
    }
    assert set(engine.__all__) - left_out <= shown
    assert "Family" in shown, "a name is left out that is there"


def test_the_links_of_the_readme_and_of_the_pages_work_on_github() -> None:
    for path in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.name}: {link}"


def test_every_page_that_is_named_is_there(repository: Path) -> None:
    """In code, scripts and messages too: a page that moves takes its names along."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True).stdout
    named: dict[str, str] = {}
    for name in filter(None, files.split("\0")):
        path = repository / name
        if path.suffix in (".md", ".py", ".toml", ".yml", ".yaml", ".jinja") or name.startswith(".ci/"):
            text = path.read_text(encoding="utf-8")
            named |= dict.fromkeys(re.findall(r"(?<![\w/.])docs/[\w./-]+\.md", text), name)
    assert len(named) > 20
    others = {"docs/json_schema.md"}  # llguidance's
    assert {page: where for page, where in named.items() if page not in others and not (ROOT / page).is_file()} == {}


def test_every_decision_has_a_page_with_its_number() -> None:
    """The index leads to each, under its own title; what cites a number finds it."""
    folder = DOCS / "about" / "decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^(\d+)\. \[(.+)\]\((.+)\)$", index, re.MULTILINE)
    assert [int(number) for number, _, _ in listed] == list(range(1, len(listed) + 1))
    assert {name for _, _, name in listed} == {path.name for path in folder.glob("[0-9]*.md")}
    for number, title, name in listed:
        page = (folder / name).read_text(encoding="utf-8")
        assert name.startswith(f"{int(number):02}-")
        assert page.startswith(f"# {number}. {title}\n\n")
    cited = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "engine").rglob("*.py"))
    assert {int(number) for number in re.findall(r"\bdecision (\d+)", cited)} <= set(range(1, len(listed) + 1))


def test_the_first_page_needs_two_commands() -> None:
    """From the first page to an own GGUF that answers: install, ask. The second is run by test_readme.py."""
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    section = page.partition("\n## What do you want")[0]
    commands = [
        line.removeprefix("$ ")
        for language, text in re.findall(r"^```(sh|console)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        for line in text.splitlines()
        if language == "sh" or line.startswith("$ ")
    ]
    assert commands[0] == 'CXXFLAGS="-fno-tree-dse -fno-dse" pip install .'
    assert commands[1].startswith("llama-engine run model.gguf ")
    assert len(commands) == 2


def test_what_tells_how_is_found_before_what_lists(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    counts = {entry["location"].partition("#")[0]: entry.get("boost", 1) for entry in index["docs"]}

    def of(begin: str) -> list[float]:
        return [by for page, by in counts.items() if page.startswith(begin)]

    assert min(of("guides/") + of("start/")) > max(of("about/")) > max(of("reference/api/") + of("changes"))


def test_no_frame_of_the_recording_is_empty() -> None:
    """What is to come shows dimly from the first frame on."""
    picture = (DOCS / "pictures" / "terminal.svg").read_text(encoding="utf-8")
    assert "animation-delay" in picture
    assert [float(by) for by in re.findall(r"opacity: ([\d.]+)", picture) if float(by) < 0.3] == []


def texts(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, whole: `…` where an f-string, or what is logged, has a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub("%[ds]", "…", node.value)
        elif isinstance(node, ast.JoinedStr):
            parts: list[Any] = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield "".join(parts)


def test_every_message_that_is_explained_is_one_of_the_engines() -> None:
    page = (DOCS / "start" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^> (.+)$", page, re.MULTILINE)
    printed = [
        text
        for path in (ROOT / "engine").rglob("*.py")
        for text in texts(ast.parse(path.read_text(encoding="utf-8")))
        if len(text) > 20
    ]
    assert len(quoted) > 25
    assert [message for message in quoted if not any(message in text for text in printed)] == []


def test_the_reference_shows_every_method_of_an_engine(pages: dict[Path, Page], site: Path) -> None:
    from engine import Engine

    page = pages[site / "reference" / "api" / "engine.html"]
    public = {name for name in dir(Engine) if not name.startswith("_")}
    assert {f"engine.Engine.{name}" for name in public} - page.ids == set()


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("vision", "guides/images-and-sound.html"),
        ("json mode", "guides/structured-output.html"),
        ("function calling", "guides/tools.html"),
        ("gpu layers", "reference/glossary.html"),
        ("thinking", "guides/reasoning.html"),
        ("(rag)", "guides/embeddings.html"),
        ("mcp", "guides/agents-and-mcp.html"),
        ("data frames", "guides/batches.html"),
        ("fastapi", "guides/web-servers.html"),
        ("docker", "guides/web-servers.html"),
        ("system prompt", "start/first-chat.html"),
        ("history", "start/first-chat.html"),
        ("quantization", "start/which-model.html"),
        ("log prompts", "guides/recipes.html"),
        ("opentelemetry", "guides/recipes.html"),
        ("transformers", "guides/migrate.html"),
        ("vllm", "guides/migrate.html"),
    ],
)
def test_the_search_finds_what_people_look_for(words: str, page: str, site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {
        entry["location"].partition("#")[0]
        for entry in index["docs"]
        if words in entry["text"].lower() + entry["title"].lower()
    }
    assert page in found


def test_programs_find_every_page_with_a_sentence(site: Path) -> None:
    rows = re.findall(r"^- \[(.+)\]\((\S+)\): (.+\.)$", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 35
    assert all((site / page).is_file() for _, page, _ in rows)
