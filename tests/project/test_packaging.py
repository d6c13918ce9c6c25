"""What a wheel, a source distribution and an editable install carry: the data files, and nothing that lies about.

Built without isolation and installed without dependencies or network, in a copy of the project with junk strewn over
it.
"""

import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import zipfile
from pathlib import Path
from shutil import copy2

import pytest

from engine.llama.own_library import TESTED_VERSION
from hatch_build import readme

BUILTIN = "examples/default_model/builtin-q8_0.gguf"
JUNK = (
    "engine/junk.bak",
    "engine/formats/parsing/notes.txt",
    "templates/old.txt",
    "examples/default_model/checkpoint.pt",
    "stray.gguf",
)

# Run outside the checkout; prints where each data file was found, after using it.
USES_ALL_THREE = """
    from engine.support import _data
    from engine.formats.families import builtin_families
    from engine.llama.model import Model

    assert "qwen3" in builtin_families().names()
    source = _data.template_source("qwen3")
    assert source and "<|im_start|>" in source
    with Model.load(_data.builtin_model()) as model:
        assert model.vocab.size > 256
    print(_data.root())
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(project: Path, out: Path, *arguments: str) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", *arguments, "--outdir", out, ".", cwd=project)
    (built,) = out.iterdir()
    return built


def install(wheel: Path, target: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    run(*pip, "--disable-pip-version-check", "--target", target, wheel, cwd=target.parent)
    return target


def used_from(site: Path) -> Path:
    """Use the three data files with `site` as the site directory; where they were found. Other installs come later."""
    first = f"import site; site.addsitedir({str(site)!r}); site.addsitedir({sysconfig.get_paths()['purelib']!r})\n"
    code = first + textwrap.dedent(USES_ALL_THREE)
    return Path(run(sys.executable, "-I", "-S", "-c", code, cwd=site).strip())


def test_the_pinned_version_is_the_one_tested(repository: Path) -> None:
    dependencies = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert f"llama-cpp-python=={TESTED_VERSION}" in dependencies


@pytest.fixture(scope="module")
def project(repository: Path, tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project's files, with junk."""
    copy = tmp_path_factory.mktemp("project")
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        copy2(repository / name, copy / name)
    for name in JUNK:
        (copy / name).write_text("junk", encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(project, tmp_path_factory.mktemp("wheel"), "--wheel")


@pytest.fixture(scope="module")
def sdist(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(project, tmp_path_factory.mktemp("sdist"), "--sdist")


@pytest.fixture(scope="module")
def wheel_of_sdist(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that an installer builds from the source distribution alone."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.11.2, which Debian 12 has
        archive.extractall(unpacked)
    (source,) = unpacked.iterdir()
    return build(source, tmp_path_factory.mktemp("wheel_of_sdist"), "--wheel")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def expected(tracked: list[str]) -> set[str]:
    endings = (".py", "/foreign.toml", "/py.typed")
    code = {name for name in tracked if name.startswith("engine/") and name.endswith(endings)}
    templates = {name for name in tracked if name.startswith("templates/") and name.endswith(".jinja")}
    return code | {f"engine/_files/{name}" for name in ("models.toml", BUILTIN, *templates)}


def test_the_wheel_has_the_code_the_data_and_nothing_else(wheel: Path, tracked: list[str]) -> None:
    names = set(contents(wheel))
    metadata = {name for name in names if ".dist-info/" in name}
    assert names - metadata == expected(tracked)
    assert {name.split("/", 1)[1] for name in metadata} >= {
        "METADATA",
        "RECORD",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_bill_of_materials_names_what_the_wheel_holds_and_asks_for(wheel: Path, repository: Path) -> None:
    files = contents(wheel)
    (written,) = (text for name, text in files.items() if ".dist-info/sboms/" in name)
    bill = json.loads(written)
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.7")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/llama-engine@{project['version']}"
    held = {
        f"engine/_files/{part['name']}": part["hashes"] for part in bill["components"] if not part.get("isExternal")
    }
    assert held == {
        name: [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]
        for name, data in files.items()
        if name.startswith("engine/_files/")
    }
    needed = [part for part in bill["components"] if part.get("isExternal")]
    required = [part["name"] for part in needed if part["scope"] == "required"]
    assert sorted(required) == sorted(each.partition(">")[0].partition("=")[0] for each in project["dependencies"])
    ranges = {part["name"]: (part["scope"], part["versionRange"]) for part in needed}
    assert ranges["llama-cpp-python"] == ("required", f"vers:pypi/{TESTED_VERSION}")
    assert ranges["ray"][0] == "optional"
    assert "pytest" not in ranges
    (package,) = bill["dependencies"]
    assert package["dependsOn"] == [part["bom-ref"] for part in bill["components"]]


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, wheel_of_sdist: Path) -> None:
    """The same bytes, though it was built at another time in another folder."""
    assert contents(wheel_of_sdist) == contents(wheel)
    assert wheel_of_sdist.read_bytes() == wheel.read_bytes()


def test_the_source_distribution_has_no_junk(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert names.isdisjoint(JUNK)
    assert BUILTIN in names


def test_a_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = install(wheel, tmp_path / "site")
    assert used_from(site) == site / "engine" / "_files"


def test_an_editable_install_finds_the_files_at_the_root(project: Path, tmp_path: Path) -> None:
    code = f"import hatchling.build; print(hatchling.build.build_editable({str(tmp_path)!r}))"
    wheel = tmp_path / run(sys.executable, "-c", code, cwd=project).strip().splitlines()[-1]
    assert not [name for name in contents(wheel) if name.startswith("engine/")]
    site = install(wheel, tmp_path / "site")
    assert used_from(site) == project


def test_a_wheel_without_the_model_is_refused(project: Path, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "models.toml", "engine/__init__.py"):
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        copy2(project / name, partial / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path / "out"), "."]
    done = subprocess.run(command, cwd=partial, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "builtin-q8_0.gguf" in done.stdout + done.stderr


def test_the_console_command_and_the_module_are_the_same_program(wheel: Path) -> None:
    files = contents(wheel)
    (points,) = (text for name, text in files.items() if name.endswith("entry_points.txt"))
    assert b"llama-engine = engine.cli:main" in points
    assert "engine/__main__.py" in files


def test_an_index_shows_the_readme_with_whole_addresses(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = readme((repository / "README.md").read_text(encoding="utf-8"), project["urls"]["Source"], "1.2")
    addresses = re.findall(r"\]\(([^)]*)\)", text)
    assert f"{project['urls']['Source']}/raw/v1.2/docs/pictures/terminal.svg" in addresses
    assert f"{project['urls']['Source']}/blob/v1.2/docs/index.md" in addresses
    assert all(each.startswith("https://") for each in addresses)
