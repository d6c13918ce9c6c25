"""The house's own rules: rooms and floors, the three nevers, one door per third-party package, sizes, words."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

MAX_ROOMS = 18
MAX_FLOORS = 10
MAX_FUNCTION_LINES = 58
MAX_METHODS = 33
MANY_METHODS = {
    "LlamaBackend": "one llama_context behind the protocol `Backend`, which alone has 25 methods",
    "ScriptedBackend": "the same protocol without a model, and the books that tests compare with",
    "Engine": "the face: each method calls the room that does it, and a user finds all of them in one place",
}
"""Classes that have more methods, and why. No number is a goal: a class is cut where it has two ideas."""
NEVER = {
    "formats": {"runtime", "llama"},  # formats know no tokens
    "runtime": {"formats"},  # the runtime knows no markers
    "agent": {"formats", "runtime", "llama"},  # the agent knows no model
}
"""What the two pillars, and the agent, never import."""
OLD_WORDS = (
    "spelling.py", "projection.py", "servers.py", "companion.py", "ledger.py", "loaded_adapters.py", "measures.py",
    "many.py", "class Home", "class Shelf", "class Book", "class Ledger", "class Owed", "class Parcel", "class Claim",
    "class Reading", "class Unit", "class Placed", "class Asked", "def starter", "def stepper", "def answer_place",
)  # fmt: skip
"""Files, classes and functions that have better names now."""
EVERYWHERE = frozenset({"pydantic", "pydantic_core"})  # public records are pydantic models, whoever defines them
NUMPY_ROOMS = frozenset({"runtime", "llama", "turns", "api", "types"})
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
    "opentelemetry",
)
NOT_FOR_A_CHAT = frozenset({
    "asyncio", "huggingface_hub", "openai", "rich", "engine.agent.run", "engine.agent.transcript", "engine.api.explain",
    "engine.api.inspect", "engine.batch", "engine.hub", "engine.openai", "engine.remote", "engine.turns.conversation",
})  # fmt: skip
"""What a program that loads a model and chats never imports: each module is time before its first token."""
TEXT = {".py", ".toml", ".md", ".jinja", ".sh", ".ipynb", ".yml", ".json", ".txt", ""}


class Import(NamedTuple):
    """One imported module, where."""

    path: Path
    line: int
    module: str


@pytest.fixture(scope="module")
def package(repository: Path) -> Path:
    return repository / "engine"


@pytest.fixture(scope="module")
def doors(repository: Path) -> dict[str, set[str]]:
    """The rooms of the table in docs/about/architecture.md, with the third-party packages that only they import."""
    text = (repository / "docs" / "about" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) > 10, "the table of rooms is gone from docs/about/architecture.md, or its form changed"
    found: dict[str, set[str]] = {}
    for room, about in rows:
        told = re.search(r"only importer of (`\w+`(?:, `\w+`)*)", about)
        found[room] = set(re.findall(r"\w+", told[1])) if told else set()
    return found


def sources(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def place(package: Path, path: Path) -> str:
    """The room of a file; the names of engine/ itself are the package's own."""
    parts = path.relative_to(package).parts
    return parts[0] if len(parts) > 1 else "engine"


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


def room_of(module: str) -> str:
    """The room of an imported module of ours."""
    _, _, rest = module.partition(".")
    return rest.partition(".")[0] or "engine"


@cache
def arrows(package: Path) -> dict[str, set[str]]:
    """For each room, the rooms that it imports."""
    found: dict[str, set[str]] = {}
    for path in sources(package):
        here = place(package, path)
        there = {room_of(each.module) for each in imports(path) if each.module.split(".")[0] == "engine"}
        found.setdefault(here, set()).update(there - {here})
    return found


def floors(graph: dict[str, set[str]]) -> list[list[str]]:
    """The nodes of a graph in layers, each importing from lower ones only. Raises CycleError for a circle."""
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    layers: list[list[str]] = []
    while sorter.is_active():
        layers.append(sorted(sorter.get_ready()))
        sorter.done(*layers[-1])
    return layers


def test_every_room_has_its_row(package: Path, doors: dict[str, set[str]]) -> None:
    there = {path.name for path in package.iterdir() if (path / "__init__.py").is_file()}
    assert there == set(doors), "docs/about/architecture.md and engine/ disagree"
    assert {path.name for path in package.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_the_rooms_stand_on_few_floors_without_a_circle(package: Path) -> None:
    graph = {room: there for room, there in arrows(package).items() if room != "engine"}
    layers = floors(graph)  # a circle raises
    assert len(graph) <= MAX_ROOMS, sorted(graph)
    assert len(layers) <= MAX_FLOORS, layers


def test_the_three_nevers(package: Path) -> None:
    graph = arrows(package)
    assert {room: graph[room] & never for room, never in NEVER.items() if graph[room] & never} == {}


def test_no_circle_between_modules(package: Path) -> None:
    def name(path: Path) -> str:
        return ".".join(("engine", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")

    names = {name(path) for path in sources(package)}
    modules = names - packages(names)
    graph: dict[str, set[str]] = {}
    for path in sources(package):
        if path.name == "__init__.py":
            continue  # it gathers what its folder offers
        used = {each.module for each in imports(path)}
        graph[name(path)] = (used & modules) - {name(path)}
    _ = floors(graph)


def packages(names: set[str]) -> set[str]:
    return {module for module in names if any(other.startswith(f"{module}.") for other in names)}


def test_each_package_has_one_door(package: Path, doors: dict[str, set[str]]) -> None:
    door = {name: room for room, names in doors.items() for name in names}
    assert {"llama_cpp", "jinja2"} <= set(door)
    wrong: list[str] = []
    used: set[str] = set()
    for path in sources(package):
        here = place(package, path)
        for found in imports(path):
            top = found.module.split(".")[0]
            if top == "engine" or top in sys.stdlib_module_names or top in EVERYWHERE:
                continue
            used.add(top)
            if door.get(top) != here and not (top == "numpy" and here in NUMPY_ROOMS):
                wrong.append(f"{path.relative_to(package)}:{found.line}: {top} has its door in {door.get(top)}")
    assert not wrong, "\n".join(wrong)
    assert used - {"numpy"} == set(door), "a door that nobody uses"


def test_llama_cpp_has_one_door_within_its_room_too(package: Path) -> None:
    users = {path.name for path in sources(package) for found in imports(path) if found.module.startswith("llama_cpp")}
    assert users == {"lib.py"}


def test_the_parser_is_sans_io(package: Path) -> None:
    allowed = {
        "abc", "ast", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "itertools", "json",
        "re", "typing",
    }  # fmt: skip
    ours = ("engine.formats.parsing", "engine.formats.families", "engine.types", "engine.tools", "engine.support")
    nodes = ("nodes", "object_schemas", "schemas")  # in which a shape states the grammar of its calls
    ours += tuple(f"engine.formats.grammar.{name}" for name in nodes)
    for path in sources(package / "formats" / "parsing"):
        for found in imports(path):
            top = found.module.split(".")[0]
            if top == "engine":
                assert found.module.startswith(ours), found
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


def test_a_chat_imports_only_what_it_needs() -> None:
    code = """
import json, sys
from engine import Engine
with Engine.load(n_ctx=256, preflight=False) as llm:
    loaded = set(sys.modules)
    llm.chat("Hi", max_tokens=1)
print(json.dumps([sorted(sys.modules), sorted(set(sys.modules) - loaded)]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    used, late = map(set, json.loads(done.stdout))
    assert not NOT_FOR_A_CHAT & used, f"a program that only chats loads {sorted(NOT_FOR_A_CHAT & used)}"
    assert "numpy" not in late, "numpy is imported while a user waits for the first token, not beside the weights"


def test_formats_need_no_native_library(package: Path) -> None:
    names = [
        ".".join(("engine", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        for room in ("formats", "types", "tools", "agent")
        for path in sources(package / room)
        if "mcp" not in path.parts
    ]
    code = f"import sys, {', '.join(names)}; assert 'llama_cpp' not in sys.modules and 'llguidance' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_functions_are_short(package: Path) -> None:
    wrong: list[str] = []
    for path in sources(package):
        for node in functions(parsed(path)):
            docstring = node.body[0] if ast.get_docstring(node) else None
            told = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
            size = (node.end_lineno or 0) - node.lineno + 1 - told  # what a docstring teaches is not code to follow
            if size > MAX_FUNCTION_LINES:
                wrong.append(f"{path.relative_to(package)}:{node.lineno}: {node.name} has {size} lines")
    assert not wrong, "\n".join(wrong)


def test_classes_have_few_methods(package: Path) -> None:
    sizes: dict[str, int] = {}
    for path in sources(package):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
                sizes[node.name] = max(len(methods), sizes.get(node.name, 0))
    largest = sorted(sizes.items(), key=lambda each: -each[1])
    print("the five largest classes:", ", ".join(f"{name} {size}" for name, size in largest[:5]))  # noqa: T201 - pytest -s shows it
    many = {name for name, size in largest if size > MAX_METHODS}
    assert many == set(MANY_METHODS), f"above {MAX_METHODS} without a reason, or no longer: {many ^ set(MANY_METHODS)}"


def test_the_old_words_are_gone(package: Path) -> None:
    names = {path.name for path in sources(package)}
    told = {f"{kind} {name}" for path in sources(package) for kind, name in defined(parsed(path))}
    assert set(OLD_WORDS) & (names | told) == set()


def defined(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield "class", node.name
        elif isinstance(node, ast.FunctionDef):
            yield "def", node.name


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
