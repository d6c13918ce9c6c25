"""`llama-engine models fit`: what fits into memory, from headers alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.hub_server import Hub
from files import model_files

from engine.api.loading import TemplateChoice, load
from engine.cli import main
from engine.cli.quantisations import Fit, Wanted, fits
from engine.hub import located
from engine.llama.gguf.gguf import read_gguf
from engine.llama.lib import Device, repacked_types
from engine.llama.plan.plan import RESERVE, Machine
from engine.support.errors import ContextOverflowError, ModelLoadError, RequestError
from engine.turns.options import settings

GB = 10**9
PLENTY = Machine(GB)


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
    found = fits("own/repo", None, Wanted(), PLENTY)
    assert [each.name for each in found] == ["own/repo:Q4_K_M", "own/repo:Q8_0", "own/repo:F16"]
    assert [each.size - len(model) for each in found] == [0, 3_000_000, 9_000_000]
    assert len(hub.content_starts()) == 1
    (here,) = fits(str(builtin_model_path), None, Wanted(), PLENTY)
    whole = read_gguf(builtin_model_path)
    assert here.memory - here.size == found[0].memory - found[0].size  # of a file on the Hub the header counts, too
    same = {"name": "", "quantization": "", "size": 0, "memory": 0, "not_counted": ""}
    assert replace(here, **same) == replace(found[0], **same)
    assert (here.size, here.quantization) == (whole.weights, whole.quantization)


def test_the_verdict_is_that_of_loading(builtin_model_path: Path) -> None:
    """What is said to fit is loaded; with less than it needs, both refuse."""

    def having(available: int) -> Machine:
        return Machine(available, repacked_types())

    def told(available: int) -> Fit:
        (fit,) = fits(str(builtin_model_path), None, Wanted(1024, 2), having(available))
        return fit

    edge = int(told(GB).memory / (1 - RESERVE)) + 2
    assert (told(edge).fits, told(edge - 100).fits) == (True, False)
    assert (told(edge).longest, told(edge - 100).longest) == (1024, 768)
    assert told(1000).longest == 0
    asked, trusting = settings({"n_ctx": 1024, "n_sequences": 2}), TemplateChoice(trust_template=True)
    loaded = load(builtin_model_path, asked, trusting, preflight=False, machine=lambda: having(edge))
    assert loaded.backend.info.n_ctx == 1024
    loaded.weights.close()
    with pytest.raises(ContextOverflowError, match="the largest that fits is n_ctx=768 with n_sequences=2"):
        load(builtin_model_path, asked, trusting, preflight=False, machine=lambda: having(edge - 100))
    with pytest.raises(ModelLoadError, match="use a smaller quantisation"):
        load(builtin_model_path, asked, trusting, preflight=False, machine=lambda: having(1000))


def test_layers_on_a_gpu(hub: Hub, model: bytes) -> None:
    gpu = Device("CUDA0", "a card", True, 22_000_000, 22_000_000)
    found = fits("own/repo", None, Wanted(512), Machine(GB, gpus=(gpu,)))
    layers = [each.layers[0] for each in found if each.layers]
    assert layers == sorted(layers, reverse=True)
    assert layers[0] > layers[2]
    assert all(each.device <= 19_800_000 for each in found)


def test_names_and_files(hub: Hub, model: bytes, tmp_path: Path) -> None:
    assert [each.name for each in fits("own/repo:q8_0", None, Wanted(), PLENTY)] == ["own/repo:Q8_0"]
    hub.requests.clear()
    located("own/repo:Q4_K_M")
    starts = hub.content_starts()
    assert fits("own/repo:Q4_K_M", None, Wanted(), Machine(None))[0].fits is None
    assert hub.content_starts() == starts  # what is here is read here
    with pytest.raises(ModelLoadError, match="is cut off"):
        fits("own/repo:Q2_K", None, Wanted(), PLENTY)
    with pytest.raises(RequestError, match="leave it out"):
        fits(str(tmp_path / "x.gguf"), "v1", Wanted(), PLENTY)
    with pytest.raises(ModelLoadError, match="no file"):
        fits(str(tmp_path / "x.gguf"), None, Wanted(), PLENTY)


def test_split_models(hub: Hub, tmp_path: Path) -> None:
    model_files.write(tmp_path / "tiny-F32.gguf", split_bytes=60_000)
    parts = {path.name: path.read_bytes() for path in tmp_path.glob("tiny-F32-*.gguf")}
    hub.add("own/split", parts)
    (fit,) = fits("own/split", None, Wanted(), PLENTY)
    assert (fit.name, fit.size, fit.fits) == ("own/split:F32", sum(map(len, parts.values())), True)
    assert len(hub.content_starts()) == len(parts)


def test_the_command(
    hub: Hub, model: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Machine(GB, repacked_types())
    (small, *_) = fits("own/repo", None, Wanted(4096), here)
    here = replace(here, available=int((small.memory + 2_000_000) / 0.9))
    monkeypatch.setattr("engine.llama.plan.plan.this_machine", lambda: here)
    assert main(["models", "fit", "own/repo", "--ctx", "4096"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "own/repo"
    assert [line.split()[0] for line in lines[1:5]] == ["NAME", "Q4_K_M", "Q8_0", "F16"]
    assert [line.split()[-1] for line in lines[1:5]] == ["FITS", "yes", "no", "no"]
    assert lines[5] == "MEMORY is for a conversation of 4,096 tokens."
    assert max(map(len, lines)) <= 80
    gpu = Device("CUDA0", "a card", True, 30_000_000, 30_000_000)
    monkeypatch.setattr("engine.llama.plan.plan.this_machine", lambda: replace(here, gpus=(gpu,)))
    assert main(["models", "fit", "own/repo", "--ctx", "4096", "--sequences", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["NAME", "WEIGHTS", "MEMORY", "GPU", "LAYERS", "LONGEST", "FITS"]
    assert lines[5].startswith("MEMORY is for 2 conversations of 4,096 tokens")
    assert max(map(len, lines)) <= 80
    monkeypatch.setattr("engine.llama.plan.plan.this_machine", lambda: here)
    assert main(["models", "fit", "own/repo", "--ctx", "4096", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert next(each["memory"] for each in told["models"]) == small.memory
    assert main(["models", "fit", "own/none"]) == 1
    assert "no repository own/none" in capsys.readouterr().err
    assert main(["models", "fit", "own/repo", "--sequences", "0"]) == 1
    assert "--sequences 0" in capsys.readouterr().err
