"""A projector of the Hub, by the name of its file, or found; and one beside a file."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.hub_server import Hub
from files.projector_files import KINDS, write_projector
from huggingface_hub import constants

from engine import Engine, Engines, Image
from engine.cli import main
from engine.cli.quantisations import Wanted, fits
from engine.hub import located
from engine.llama.gguf.projector_file import ProjectorFile, read_projector
from engine.llama.plan.plan import Machine
from engine.support.errors import ModelLoadError, RequestError

QUESTION: Any = [{"role": "user", "content": [Image(np.zeros((8, 8, 3), np.uint8)), "What is this?"]}]
GB = 10**9


@pytest.fixture(scope="module")
def projector(tmp_path_factory: pytest.TempPathFactory) -> ProjectorFile:
    return read_projector(write_projector(tmp_path_factory.mktemp("projector") / "mmproj.gguf", KINDS["llava"]))


@pytest.fixture
def repository(hub: Hub, builtin_model_path: Path, projector: ProjectorFile) -> Hub:
    """A model with two projectors, of which one is damaged."""
    data = projector.path.read_bytes()
    files = {"m-Q8_0.gguf": builtin_model_path.read_bytes(), "mmproj-F16.gguf": data, "mmproj-F32.gguf": data[:-9000]}
    hub.add("own/repo", files)
    return hub


def answered(**options: Any) -> bool:
    with Engine.load(family="qwen3", n_ctx=512, preflight=False, **options) as llm:
        return llm.chat(QUESTION, max_tokens=2, ignore_eos=True).finish_reason == "length"


def test_a_projector_is_named_by_its_file(repository: Hub) -> None:
    assert answered(model="own/repo", projector="own/repo/mmproj-F16.gguf")


def test_a_projector_is_found_in_the_model_s_repository_once(repository: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(model="own/repo:Q8_0", projector="auto")
    assert len(repository.content_starts()) == 2
    assert answered(model="own/repo:Q8_0", projector="auto")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert answered(model="own/repo:Q8_0", projector="auto")
    assert len(repository.content_starts()) == 2, "all is in the cache"


def test_it_is_that_of_the_model_s_own_commit(repository: Hub) -> None:
    old = repository.repos["own/repo"].branches["main"]
    repository.repos["own/repo"].commit({"m-Q8_0.gguf": b"new", "mmproj-F16.gguf": b"new"})
    assert answered(model="own/repo:Q8_0", revision=old, projector="auto")


def test_without_a_projector_nothing_is_downloaded_unasked(repository: Hub) -> None:
    with Engine.load("own/repo", family="qwen3") as llm, pytest.raises(RequestError, match='projector="auto"'):
        llm.chat(QUESTION)
    assert len(repository.content_starts()) == 1


def test_what_cannot_be_found(hub: Hub, repository: Hub, builtin_model_path: Path) -> None:
    hub.add("own/plain", {"m-Q8_0.gguf": builtin_model_path.read_bytes()})
    with pytest.raises(ModelLoadError, match=r"own/plain has no projector \(mmproj-\*\.gguf\) for m-Q8_0\.gguf"):
        Engine.load("own/plain", projector="auto")
    with pytest.raises(ModelLoadError, match="has no projector"):
        Engine.load(projector="auto")
    path = located("own/plain")
    hub.statuses += [503] * 20
    with pytest.raises(ModelLoadError, match=r"status 503|cannot be reached"):
        Engine.load(path, projector="auto")


def test_one_beside_a_file(builtin_model_path: Path, projector: ProjectorFile, tmp_path: Path) -> None:
    model = Path(shutil.copy(builtin_model_path, tmp_path / "tiny-Q8_0.gguf"))
    shutil.copy(projector.path, tmp_path / "mmproj-tiny-f16.gguf")
    shutil.copy(builtin_model_path, tmp_path / "mmproj-other-f16.gguf")
    assert answered(model=model, projector="auto")
    renamed = model.rename(tmp_path / "third.gguf")
    with pytest.raises(ModelLoadError, match=r"several projectors: mmproj-other-f16.*mmproj-tiny-f16"):
        Engine.load(renamed, projector="auto")
    (tmp_path / "mmproj-other-f16.gguf").unlink()
    assert answered(model=renamed, projector="auto")


def test_models_fit_counts_it_before_any_download(
    repository: Hub, projector: ProjectorFile, builtin_model_path: Path, tmp_path: Path
) -> None:
    machine = Machine(GB)
    (alone,) = fits("own/repo", None, Wanted(), machine)
    for name in ("auto", "own/repo/mmproj-F16.gguf", str(projector.path)):
        (both,) = fits("own/repo", None, Wanted(projector=name), machine)
        assert both.memory - alone.memory == projector.memory
        assert projector.memory > (256 << 20) + projector.size_bytes, "with the cache, and buffers to encode"
        assert "MiB (weights" in both.projector
    size = len(projector.path.read_bytes())
    assert alone.not_counted.startswith(f"mmproj-F16.gguf, {size / 1000:.0f} kB")
    assert both.not_counted == ""
    local = shutil.copy(builtin_model_path, tmp_path / "m.gguf")
    shutil.copy(projector.path, tmp_path / "mmproj.gguf")
    (here,) = fits(str(local), None, Wanted(projector="auto"), machine)
    assert here.memory - here.size == both.memory - both.size


def test_the_command_line(
    repository: Hub, capsys: pytest.CaptureFixture[str], tmp_path: Path, projector: ProjectorFile
) -> None:
    assert main(["models", "fit", "own/repo", "--projector", "auto"]) == 0
    assert "It includes the projector mmproj-F16.gguf: " in capsys.readouterr().out
    assert main(["models", "fit", "own/repo"]) == 0
    assert "is not counted;\n--projector auto counts it." in capsys.readouterr().out
    (tmp_path / "a.png").write_bytes(QUESTION[0]["content"][0].png())
    more = ["--ctx", "512", "--max-tokens", "2", "--family", "qwen3"]
    assert main(["run", "own/repo", "What?", "--image", str(tmp_path / "a.png"), *more]) == 0
    assert main(["run", "own/repo", "What?", "--projector", "auto", *more]) == 0


def test_several_models_under_a_budget_count_it(repository: Hub, projector: ProjectorFile) -> None:
    options: dict[str, Any] = {"model": "own/repo:Q8_0", "n_ctx": 512, "family": "qwen3", "preflight": False}
    with Engines({"blind": options, "sees": {**options, "projector": "auto"}}, budget=2 * GB) as engines:
        engines["blind"].complete("a", max_tokens=1)
        blind = engines.used
        engines["blind"].close()
        assert engines["sees"].chat(QUESTION, max_tokens=2, ignore_eos=True).finish_reason == "length"
        assert engines.used.host - blind.host == projector.memory
