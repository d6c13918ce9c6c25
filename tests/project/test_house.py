"""The house's own rules: who may import whom (by docs/ARCHITECTURE.md), one door per third-party package, sizes."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 58
EVERYWHERE = frozenset({"pydantic", "pydantic_core"})  # public records are pydantic models, whoever defines them
NUMPY_ROOMS = frozenset({"runtime/", "llama/", "constraint/", "vectors.py", "measures.py", "media/"})
"""Logits, masks, vectors, pixels and samples are arrays."""
LATE = (
    "PIL",
    "soundfile",
    "llama_cpp",
    "huggingface_hub",
    "jinja2",
    "llguidance",
    "rich",
    "numpy",
    "openai",
    "llm",
    "asyncio",
)
MAX_ROOM_LINES = {
    "agent/": 1_275,
    "batch/": 2_610,
    "check/": 770,
    "cli/": 3_300,
    "constraint/": 1_670,
    "diagnose/": 2_120,
    "families/": 1_660,
    "hub/": 1_690,
    "isolated/": 1_365,
    "llama/": 5_820,
    "media/": 1_090,
    "mcp/": 1_305,
    "notebook/": 210,
    "openai/": 2_690,
    "parsing/": 5_440,
    "remote/": 1_290,
    "runtime/": 6_300,
    "template/": 5_090,
    "tools/": 1_500,
    "modules outside rooms": 8_090,
}
"""What each room may have. A room that is cut gets less; one that needs more says why in docs/ARCHITECTURE.md."""
TEXT = {".py", ".toml", ".md", ".jinja", ".sh", ".ipynb", ".yml", ".json", ".txt", ""}


class Floor(NamedTuple):
    """A row of the table: a module (`types.py`) or a room (`parsing/`), its number, the packages it is the door of."""

    module: str
    number: int
    doors: frozenset[str]


class Import(NamedTuple):
    """One imported module, where."""

    path: Path
    line: int
    module: str


@pytest.fixture(scope="module")
def package(repository: Path) -> Path:
    return repository / "engine"


@pytest.fixture(scope="module")
def floors(repository: Path) -> dict[str, Floor]:
    """The table of floors in docs/ARCHITECTURE.md."""
    text = (repository / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `([\w/.]+)` \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) > 10, "the table of floors is gone from docs/ARCHITECTURE.md, or its form changed"
    table: dict[str, Floor] = {}
    for number, module, about in rows:
        told = re.search(r"only importer of (`\w+`(?:, `\w+`)*)", about)
        doors = re.findall(r"\w+", told[1]) if told else []
        table[module] = Floor(module, int(number), frozenset(doors))
    return table


def sources(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def place(package: Path, path: Path) -> str:
    """The row that a file belongs to: its own name, or its room's."""
    parts = path.relative_to(package).parts
    return parts[0] if len(parts) == 1 else f"{parts[0]}/"


def is_ours(package: str, name: str) -> bool:
    """Whether `from package import name` names a module of ours."""
    if package.partition(".")[0] != "engine":
        return False
    folder = Path(__file__).parents[2] / package.replace(".", "/")
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> list[Import]:
    """Every import of a file, those inside functions and under TYPE_CHECKING too."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute in this package"
            module = node.module or ""
            for name in node.names:
                yield Import(path, node.lineno, f"{module}.{name.name}" if is_ours(module, name.name) else module)


def target(package: Path, module: str) -> str:
    """The row that an imported module of ours belongs to."""
    name = module.split(".")[1] if "." in module else "__init__"
    return f"{name}/" if (package / name).is_dir() else f"{name}.py"


def test_every_module_has_its_floor_and_every_floor_its_module(package: Path, floors: dict[str, Floor]) -> None:
    there = {place(package, path) for path in sources(package)}
    assert there == set(floors), "docs/ARCHITECTURE.md and engine/ disagree"


@pytest.fixture(scope="module")
def rooms(repository: Path) -> dict[str, list[str]]:
    """The modules of each room, in the order of its list in docs/ARCHITECTURE.md."""
    text = (repository / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    lists = re.findall(r"^\*\*(\w+)/\*\*: (.+?)\.$", text, re.MULTILINE | re.DOTALL)
    assert len(lists) > 10, "the lists of modules are gone from docs/ARCHITECTURE.md, or their form changed"
    return {room: re.findall(r"`([\w/]+)`", names) for room, names in lists}


def test_every_room_lists_its_modules(package: Path, rooms: dict[str, list[str]]) -> None:
    listed = {f"{room}/{name}" for room, names in rooms.items() for name in names}
    modules = {path.relative_to(package).with_suffix("").as_posix() for path in sources(package)}
    assert listed == {name for name in modules if "/" in name and not name.endswith("/__init__")}


def rank(names: list[str], module: str) -> int:
    """Where a module stands in its room; a package stands where its last module does."""
    within = [number for number, name in enumerate(names) if name == module or name.startswith(f"{module}/")]
    return max(within, default=len(names))


def test_inside_a_room_imports_go_back_in_its_list_only(package: Path, rooms: dict[str, list[str]]) -> None:
    wrong: list[str] = []
    for room, names in rooms.items():
        for path in sources(package / room):
            here = path.relative_to(package / room).with_suffix("").as_posix()
            if here.endswith("__init__"):
                continue
            for found in imports(path):
                top, *rest = found.module.split(".")
                if top == "engine" and rest[0] == room and rank(names, "/".join(rest[1:])) >= rank(names, here):
                    wrong.append(f"{room}/{here}:{found.line} imports {found.module}, which its list has further on")
    assert not wrong, "\n".join(wrong)


def test_imports_go_down_only(package: Path, floors: dict[str, Floor]) -> None:
    wrong: list[str] = []
    for path in sources(package):
        here = floors[place(package, path)]
        for found in imports(path):
            if found.module.split(".")[0] != "engine":
                continue
            there = floors.get(target(package, found.module))
            assert there, f"{found}: no module of ours"
            inside = here == there and here.module.endswith("/")
            if not inside and there.number >= here.number:
                name = path.relative_to(package)
                wrong.append(f"{name}:{found.line}: floor {here.number} imports {found.module} of floor {there.number}")
    assert not wrong, "\n".join(wrong)


def test_each_package_has_one_door(package: Path, floors: dict[str, Floor]) -> None:
    doors = {name: floor.module for floor in floors.values() for name in floor.doors}
    assert {"llama_cpp", "jinja2"} <= set(doors)
    wrong: list[str] = []
    used: set[str] = set()
    for path in sources(package):
        here = place(package, path)
        for found in imports(path):
            top = found.module.split(".")[0]
            if top == "engine" or top in sys.stdlib_module_names or top in EVERYWHERE:
                continue
            used.add(top)
            if doors.get(top) != here and not (top == "numpy" and here in NUMPY_ROOMS):
                wrong.append(f"{path.relative_to(package)}:{found.line}: {top} has its door in {doors.get(top)}")
    assert not wrong, "\n".join(wrong)
    assert used - {"numpy"} == set(doors), "a door that nobody uses"


def test_llama_cpp_has_one_door_within_its_room_too(package: Path) -> None:
    users = {path.name for path in sources(package) for found in imports(path) if found.module.startswith("llama_cpp")}
    assert users == {"lib.py"}


def test_the_parser_is_sans_io(package: Path, floors: dict[str, Floor]) -> None:
    parsing = floors["parsing/"]
    lower = {floor.module for floor in floors.values() if floor.number < parsing.number} | {"parsing/"}
    allowed = {
        "ast",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "hashlib",
        "itertools",
        "json",
        "re",
        "typing",
    }
    for path in sources(package / "parsing"):
        for found in imports(path):
            top = found.module.split(".")[0]
            if top == "engine":
                assert target(package, found.module) in lower, found
            else:
                assert top in allowed, f"{found} reaches outside: a parser has no clock, thread, file or package"


def exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(item, ast.Name) and item.id == "__all__" for item in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            return list(ast.literal_eval(node.value))
    return None


def test_public_names_are_listed_sorted_and_there(package: Path) -> None:
    found = {path: exported(parsed(path)) for path in sources(package)}
    assert found[package / "__init__.py"], "engine/__init__.py lists the public names"
    for path, names in found.items():
        if names is not None:
            in_order = sorted(set(names), key=lambda name: (not name.isupper(), name))  # as ruff sorts them
            assert names == in_order, f"{path}: __all__ is not sorted, or names something twice"
    import engine

    assert [name for name in found[package / "__init__.py"] or () if not hasattr(engine, name)] == []


def test_importing_the_package_is_light() -> None:
    code = "import sys, json, engine; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert loaded.isdisjoint(LATE), f"import engine loads {sorted(loaded & set(LATE))}"


@pytest.mark.parametrize(
    "module",
    [
        "engine.types.types",
        "engine.types.events",
        "engine.formats.parsing",
        "engine.formats.families",
        "engine.isolated.preflight",
    ],
)
def test_the_lower_floors_need_no_native_library(module: str) -> None:
    code = f"import sys, {module}; assert 'llama_cpp' not in sys.modules and 'jinja2' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sizes(package: Path) -> None:
    wrong: list[str] = []
    for path in sources(package):
        text = path.read_text(encoding="utf-8")
        name, lines = path.relative_to(package), text.count("\n")
        if lines >= MAX_FILE_LINES:
            wrong.append(f"{name}: {lines} lines; a module this long holds two things")
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                docstring = node.body[0] if ast.get_docstring(node) else None
                told = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
                size = node.end_lineno - node.lineno + 1 - told  # what a docstring teaches is not code to follow
                if size > MAX_FUNCTION_LINES:
                    wrong.append(f"{name}:{node.lineno}: {node.name} has {size} lines")
    assert not wrong, "\n".join(wrong)


def test_rooms_do_not_grow_unasked(package: Path) -> None:
    lines = dict.fromkeys(MAX_ROOM_LINES, 0)
    for path in sources(package):
        room = place(package, path)
        lines[room if room.endswith("/") else "modules outside rooms"] += len(path.read_text("utf-8").splitlines())
    assert {room: most for room, most in lines.items() if most > MAX_ROOM_LINES[room]} == {}


def test_every_module_says_what_it_knows(package: Path) -> None:
    silent = [
        str(path.relative_to(package))
        for path in sources(package)
        if path.name != "__init__.py" and not ast.get_docstring(parsed(path))
    ]
    assert not silent, f"no docstring: {silent}"


def test_no_error_is_swallowed(package: Path) -> None:
    silent = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in sources(package)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ExceptHandler) and len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
    ]
    assert not silent, f"an exception ends without a word at {silent}"


def test_no_path_of_one_machine_is_written_down(repository: Path, tracked: list[str]) -> None:
    machine = re.compile("|".join(["/" + "work/", "/" + "root/", "/" + r"home/(?!ann\b)", "C:" + r"\\Users"]))
    wrong: list[str] = []
    for name in tracked:
        path = repository / name
        if path.suffix not in TEXT or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if machine.search(line):
                wrong.append(f"{name}:{number}: {line.strip()[:80]}")
    assert not wrong, "\n".join(wrong)
