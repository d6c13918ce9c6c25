"""The page of the supply chain: the licence of everything that pyproject.toml asks for, and how licences are read."""

import re
import tomllib
from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
from licences import BEGIN, END, licence, listed, normal, table

FOR_DEVELOPERS = {"dev", "docs"}


class Stated(Distribution):
    """An installed package that states these fields."""

    def __init__(self, *fields: tuple[str, str]) -> None:
        self.fields = Message()
        for name, value in fields:
            self.fields[name] = value

    @property
    def metadata(self) -> Any:
        return self.fields

    def read_text(self, filename: str) -> None:
        return None

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


def test_each_package_that_a_user_may_install_is_listed(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    groups = [project["dependencies"], *(extras[name] for name in extras.keys() - FOR_DEVELOPERS)]
    wanted = {normal(re.split(r"[^\w.-]", each)[0]) for group in groups for each in group}
    page = listed((repository / "docs" / "about" / "supply-chain.md").read_text(encoding="utf-8"))
    assert len(wanted) > 20
    assert wanted <= page.keys()
    assert "not stated" not in {page[name] for name in wanted}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("License-Expression", "MIT AND Zlib"), ("License", "other")], "MIT AND Zlib"),
        ([("License", "Apache 2.0")], "Apache-2.0"),
        ([("License", "UNKNOWN"), ("Classifier", "License :: OSI Approved :: MIT License")], "MIT"),
        (
            [("License", "words " * 30), ("Classifier", "License :: OSI Approved :: BSD License")],
            "BSD, which is not stated",
        ),
        ([("Classifier", "License :: A :: One"), ("Classifier", "License :: A :: Other")], "One or Other"),
        ([("License", "MIT License\n\nCopyright" + " x" * 60)], "MIT"),
        ([("Classifier", "Typing :: Typed")], "not stated"),
    ],
)
def test_a_licence_is_read_where_a_package_states_it(fields: list[tuple[str, str]], expected: str) -> None:
    assert licence(Stated(*fields)) == expected


def test_a_table_is_read_as_it_was_written() -> None:
    packages = [
        Stated(("Name", name), ("License", stated))
        for name, stated in (("b_c", "MIT"), ("A", "MIT"), ("d", "ISC"), ("llama-engine", "MIT"))
    ]
    written = table(packages)
    assert "| MIT | a, b-c |\n| ISC | d |\n" in written
    assert listed(f"text\n{BEGIN}{written}{END}text") == {"a": "MIT", "b-c": "MIT", "d": "ISC"}


def test_what_builds_a_release_cannot_be_exchanged(repository: Path) -> None:
    """Each action is named by the hash of its commit, and the comment says of which version."""
    for path in (repository / ".github" / "workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
        assert used
        for each in used:
            assert re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), (path.name, each)
