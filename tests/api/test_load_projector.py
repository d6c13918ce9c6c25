"""Engine.load with a projector: what is refused by name, and the trial in a child."""

from pathlib import Path

import pytest
from files.projector_files import KINDS, Kind, write_model, write_projector
from llama_cpp import Llama

from engine import Engine
from engine.isolated import preflight
from engine.support import _data
from engine.support.errors import ModelLoadError, RequestError


@pytest.fixture(scope="module")
def projector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_projector(tmp_path_factory.mktemp("projector") / "mmproj.gguf", KINDS["llava"])


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_tried_once_and_loaded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    model = write_model(tmp_path / "model.gguf", kind)
    path = write_projector(tmp_path / "mmproj.gguf", kind)
    for attempt in range(2):
        if attempt:
            monkeypatch.setattr(preflight, "ask_child", None)  # what a child has found is remembered
        with Engine.load(model, projector=path, family="qwen3", n_ctx=512) as llm:
            assert llm.complete("a", max_tokens=2, ignore_eos=True).finish_reason == "length"


def test_the_first_use_that_would_end_the_process_is_seen_by_the_child(tmp_path: Path) -> None:
    path = write_projector(tmp_path / "mmproj.gguf", KINDS["ultravox"], stack=8)
    with pytest.raises(ModelLoadError, match=r"mmproj\.gguf is not loaded.*died by SIGABRT"):
        Engine.load(projector=path)


def test_markers_that_the_vocabulary_lacks_are_refused_at_load(tmp_path: Path) -> None:
    path = write_projector(tmp_path / "mmproj.gguf", Kind("idefics3"))
    with pytest.raises(ModelLoadError, match="not in this model's vocabulary"):
        Engine.load(projector=path)


@pytest.mark.parametrize(("preflight", "isolated"), [(True, False), (False, False), (False, True)])
def test_a_projector_of_another_model_is_refused_with_both_widths(
    tmp_path: Path, preflight: bool, isolated: bool
) -> None:
    path = write_projector(tmp_path / "mmproj.gguf", KINDS["llava"], width=128)
    with pytest.raises(ModelLoadError, match=r"another model: it makes rows of 128 numbers.*rows of 256"):
        Engine.load(projector=path, preflight=preflight, isolated=isolated)


def test_files_that_are_no_projector(projector: Path, tmp_path: Path) -> None:
    data = projector.read_bytes()
    damaged = tmp_path / "mmproj.gguf"
    for content, message in (
        (data[:-3000], "is cut off"),
        (b"GGUF" + bytes(range(256)) * 8, "GGUF version"),
        (b"", "empty|too short|not a GGUF"),
    ):
        damaged.write_bytes(content)
        with pytest.raises(ModelLoadError, match=message):
            Engine.load(projector=damaged)
    with pytest.raises(ModelLoadError, match="is not a projector: its architecture is 'qwen3'"):
        Engine.load(projector=_data.builtin_model())
    with pytest.raises(ModelLoadError, match="There is no file"):
        Engine.load(projector=tmp_path / "none.gguf")


def test_what_a_projector_cannot_be_combined_with(projector: Path) -> None:
    with pytest.raises(RequestError, match="are for models with a projector"):
        Engine.load(image_max_tokens=100)
    with pytest.raises(RequestError, match="image_min_tokens=5 is more than image_max_tokens=3"):
        Engine.load(projector=projector, image_min_tokens=5, image_max_tokens=3)
    with pytest.raises(RequestError, match="write projector="):
        Engine.load(mmproj=projector)  # pyright: ignore[reportCallIssue]


def test_a_projector_for_an_open_llama(projector: Path) -> None:
    llama = Llama(str(_data.builtin_model()), n_ctx=512, verbose=False, n_threads=1)
    with Engine.from_llama(llama, projector=projector) as llm:
        assert llm.complete("a", max_tokens=2, ignore_eos=True).finish_reason == "length"
    llama.close()
