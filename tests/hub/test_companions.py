"""The response template that belongs to a model from the Hub: its repository's, or its base model's."""

import json
import logging
from pathlib import Path

import pytest
from fakes.hub_server import Hub
from fakes.response_templates import CODER, HERMES
from files import gguf_bytes

from engine import Engine, Engines
from engine.hub import cache, companions, located
from engine.hub.tokenizer_config import LARGEST
from engine.llama.gguf.gguf import read_gguf

CONFIG = "tokenizer_config.json"


def config(spec: object) -> bytes:
    return json.dumps({"eos_token": "<|im_end|>", "response_template": spec}).encode()


@pytest.fixture
def model(builtin_model_path: Path, hub: Hub) -> bytes:
    """The built-in model, made from a base model on this Hub."""
    document = gguf_bytes.decoded(builtin_model_path.read_bytes())
    address = f"{hub.address}/own/base".encode()
    return document.put("general.base_model.0.repo_url", 8, address).encoded()


def found(name: str) -> list[tuple[str, bytes]]:
    path = located(name)
    return list(companions(path, read_gguf(path).base_models))


def paths(hub: Hub) -> list[str]:
    return [request.path for request in hub.requests]


def test_the_repositorys_own_comes_first(hub: Hub, model: bytes) -> None:
    hub.add("own/repo", {"m-Q8_0.gguf": model, CONFIG: config(HERMES)})
    hub.add("own/base", {CONFIG: config(CODER)})
    assert found("own/repo") == [(f"own/repo ({CONFIG})", config(HERMES)), (f"own/base ({CONFIG})", config(CODER))]


def test_they_are_kept_and_so_is_their_absence(hub: Hub, model: bytes) -> None:
    """A second load asks the Hub nothing about them."""
    hub.add("own/repo", {"m-Q8_0.gguf": model})
    hub.add("own/base", {CONFIG: config(CODER)})
    assert found("own/repo") == [(f"own/base ({CONFIG})", config(CODER))]
    path = located("own/repo")
    hub.requests.clear()
    again = list(companions(path, read_gguf(path).base_models))
    assert again == [(f"own/base ({CONFIG})", config(CODER))]
    assert paths(hub) == []


def test_what_cannot_be_had_is_left_out(
    hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Private, gone, too large, or without a network: the model is loaded without it."""
    caplog.set_level(logging.DEBUG, "engine.hub")
    hub.add("own/repo", {"m-Q8_0.gguf": model})
    assert found("own/repo") == []
    assert "own/base is left out" in caplog.text
    hub.add("own/base", {CONFIG: config(CODER)}).is_private = True
    assert found("own/repo") == []
    hub.repos["own/base"].is_private = False
    hub.statuses = [500]
    path = located("own/repo@" + hub.repos["own/repo"].branches["main"])
    assert list(companions(path, read_gguf(path).base_models)) == []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert list(companions(path, read_gguf(path).base_models)) == []


def test_one_that_is_too_large_or_no_json(hub: Hub, model: bytes) -> None:
    hub.add("own/repo", {"m-Q8_0.gguf": model, CONFIG: b" " * (LARGEST + 1)})
    hub.add("own/base", {CONFIG: b"{"})
    assert found("own/repo") == [(f"own/base ({CONFIG})", b"{")]
    with Engine.load("own/repo", n_ctx=256, preflight=False) as llm:
        assert llm.template.detection.response_template == ""


@pytest.mark.parametrize(
    "address", ["https://elsewhere.example/own/base", "own/base", "https://hf.co/datasets/a/b", ""]
)
def test_addresses_that_are_no_repository_here(hub: Hub, model: bytes, address: str, builtin_model_path: Path) -> None:
    hub.add("own/repo", {"m-Q8_0.gguf": model})
    path = located("own/repo")
    hub.requests.clear()
    assert list(companions(path, [address])) == []
    assert not [path for path in paths(hub) if "own/base" in path]
    assert list(companions(builtin_model_path, [])) == []


def test_a_model_loaded_by_name(hub: Hub, model: bytes) -> None:
    """The built-in model's family has a row, which wins; `inspect` tells what the author's statement reads."""
    hub.add("own/repo", {"m-Q8_0.gguf": model})
    hub.add("own/base", {CONFIG: config(HERMES)})
    with Engine.load("own/repo", n_ctx=256, preflight=False) as llm:
        row = llm.template.format
        assert f"  the response template of own/base ({CONFIG}) reads" in llm.inspect().text()
    path = located("own/repo")
    hub.requests.clear()
    with Engine.load(path, n_ctx=256, preflight=False) as llm:  # a file is not looked up
        assert llm.template.format == row
        assert llm.template.detection.response_template == ""
    assert paths(hub) == []
    with Engine.load("own/repo", n_ctx=256, preflight=False, response_template=HERMES) as llm:
        assert llm.template.detection.response_template.startswith("it is used")


def test_removing_a_model_removes_what_came_with_it(hub: Hub, model: bytes) -> None:
    hub.add("own/repo", {"m-Q8_0.gguf": model, CONFIG: config(HERMES), "README.md": b"# M"})
    found("own/repo")
    folder = cache.path_of("own/repo", "x", cache.File("y")).parents[2]
    assert folder.is_dir()
    cache.remove(cache.models())
    assert not folder.exists()


def test_without_a_network_only_one_is_asked_for(hub: Hub, model: bytes) -> None:
    hub.add("own/repo", {"m-Q8_0.gguf": model})
    path = located("own/repo")
    hub.requests.clear()
    hub.statuses = [503, 503]
    assert list(companions(path, read_gguf(path).base_models)) == []
    assert len(paths(hub)) == 1


def test_one_of_several_models_is_read_as_it_is_alone(hub: Hub, model: bytes) -> None:
    hub.add("own/repo", {"m-Q8_0.gguf": model})
    hub.add("own/base", {CONFIG: config(HERMES)})
    with Engines({"a": {"model": "own/repo", "n_ctx": 256, "preflight": False}}) as engines:
        assert "own/base" in engines["a"].template.detection.response_template
