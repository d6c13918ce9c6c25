"""`llama-engine models fit`: what fits into memory, from headers alone."""

import json
from dataclasses import replace
from pathlib import Path

import model_files
import pytest
from hub_server import Hub

from engine import Engine
from engine.cli import main
from engine.diagnose.fit import Fit, Wanted, fits
from engine.errors import ContextOverflowError, ModelLoadError, RequestError
from engine.hub import located
from engine.llama.gguf import read_gguf
from engine.llama.memory import RESERVE

GB = 10**9


@pytest.fixture
def model(hub: Hub, builtin_model_path: Path) -> bytes:
    """A repository with the built-in model as three quantisations, two with bytes behind the last tensor."""
    data = builtin_model_path.read_bytes()
    more = {name: data + bytes(size) for name, size in (("tiny-Q8_0.gguf", 3_000_000), ("tiny-F16.gguf", 9_000_000))}
    hub.add(
        "own/repo", {"tiny-Q4_K_M.gguf": data, **more, "other-Q2_K.gguf": data[:-1], "mmproj-F16.gguf": data[:5_000]}
    )
    return data


def test_every_quantisation_is_told_from_one_header(hub: Hub, model: bytes, builtin_model_path: Path) -> None:
    found = fits("own/repo", None, Wanted(), GB)
    assert [each.name for each in found] == ["own/repo:Q4_K_M", "own/repo:Q8_0", "own/repo:F16"]
    assert [each.size - len(model) for each in found] == [0, 3_000_000, 9_000_000]
    assert len(hub.content_starts()) == 1
    (here,) = fits(str(builtin_model_path), None, Wanted(), GB)
    whole = read_gguf(builtin_model_path)
    assert replace(here, name="", quantization="", size=0) == replace(found[0], name="", quantization="", size=0)
    assert (here.size, here.quantization) == (whole.weights, whole.quantization)


def test_the_verdict_is_that_of_loading(builtin_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said to fit is loaded; with less than the context needs, both refuse."""

    def told(available: int) -> Fit:
        (fit,) = fits(str(builtin_model_path), None, Wanted(1024, 2), available)
        return fit

    edge = int(told(GB).memory / (1 - RESERVE)) + 2
    assert (told(edge).fits, told(edge - 100).fits) == (True, False)
    assert (told(edge).longest, told(edge - 100).longest) == (1024, 768)
    assert told(1000).longest == 0
    monkeypatch.setattr("engine.llama.model.available_memory", lambda: edge + 2_000_000)
    with Engine.load(builtin_model_path, n_ctx=1024, n_sequences=2, preflight=False) as llm:
        assert llm.chat("Hello", max_tokens=2).usage is not None
    # Weights that loading copied are gone from the memory that is available, so only those are not counted again.
    fit = told(edge)
    monkeypatch.setattr("engine.llama.model.available_memory", lambda: int(fit.context / (1 - RESERVE)) - 100)
    with pytest.raises(ContextOverflowError):
        Engine.load(builtin_model_path, n_ctx=1024, n_sequences=2, preflight=False, check_memory=True)


def test_names_and_files(hub: Hub, model: bytes, tmp_path: Path) -> None:
    assert [each.name for each in fits("own/repo:q8_0", None, Wanted(), GB)] == ["own/repo:Q8_0"]
    hub.requests.clear()
    located("own/repo:Q4_K_M")
    starts = hub.content_starts()
    assert fits("own/repo:Q4_K_M", None, Wanted(), None)[0].fits is None
    assert hub.content_starts() == starts  # what is here is read here
    with pytest.raises(ModelLoadError, match="is cut off"):
        fits("own/repo:Q2_K", None, Wanted(), GB)
    with pytest.raises(RequestError, match="leave it out"):
        fits(str(tmp_path / "x.gguf"), "v1", Wanted(), GB)
    with pytest.raises(ModelLoadError, match="no file"):
        fits(str(tmp_path / "x.gguf"), None, Wanted(), GB)


def test_split_models(hub: Hub, tmp_path: Path) -> None:
    model_files.write(tmp_path / "tiny-F32.gguf", split_bytes=60_000)
    parts = {path.name: path.read_bytes() for path in tmp_path.glob("tiny-F32-*.gguf")}
    hub.add("own/split", parts)
    (fit,) = fits("own/split", None, Wanted(), GB)
    assert (fit.name, fit.size, fit.fits) == ("own/split:F32", sum(map(len, parts.values())), True)
    assert len(hub.content_starts()) == len(parts)


def test_the_command(
    hub: Hub, model: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (small, *_) = fits("own/repo", None, Wanted(4096), GB)
    monkeypatch.setattr("engine.llama.memory.available_memory", lambda: int((small.memory + 2_000_000) / 0.9))
    assert main(["models", "fit", "own/repo", "--ctx", "4096"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["NAME", "own/repo:Q4_K_M", "own/repo:Q8_0", "own/repo:F16"]
    assert [line.split()[-1] for line in lines[:4]] == ["FITS", "yes", "no", "no"]
    assert lines[4].startswith("MEMORY is for conversations of 4,096 tokens, LONGEST the longest that fit.")
    assert main(["models", "fit", "own/repo", "--ctx", "4096", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert next(each["memory"] for each in told["models"]) == small.memory
    assert main(["models", "fit", "own/none"]) == 1
    assert "no repository own/none" in capsys.readouterr().err
    assert main(["models", "fit", "own/repo", "--sequences", "0"]) == 1
    assert "n_sequences=0" in capsys.readouterr().err
