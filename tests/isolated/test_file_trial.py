"""A file whose header is not verified is tried in a child first: what the child's end means, and what is remembered.

The children are real where llama.cpp has to die or to live, and scripts where only their end counts.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.stand_in_child import StandIn
from files import model_zoo
from files.gguf_bytes import ARRAY, STRING, U32, Array, Document

from engine import Engine
from engine.isolated import file_trial, preflight
from engine.isolated.preflight import Verdict
from engine.llama.gguf.gguf import GgufFile, read_gguf
from engine.runtime.loop.config import ContextOptions, ModelOptions, amx_wanted
from engine.support.errors import EngineError, EngineWarning, ModelLoadError

MODEL, CONTEXT = ModelOptions(), ContextOptions(n_ctx=256)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="POSIX signals, and limits of memory")


def written(document: Document, folder: Path) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(document.encoded())
    return path


@pytest.fixture
def unverified(tmp_path: Path) -> GgufFile:
    file = read_gguf(written(model_zoo.model("mamba"), tmp_path))
    assert not file.is_verified
    return file


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stand-ins are found, for one test."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def tried(file: GgufFile, child: StandIn, folder: Path, context: ContextOptions = CONTEXT) -> None:
    file_trial.try_file(file, MODEL, context, child=child.module, directory=folder / "kept")


def test_a_child_that_lives_is_asked_once(tmp_path: Path, unverified: GgufFile) -> None:
    child = StandIn(tmp_path, "answer('ok')")
    tried(unverified, child, tmp_path)
    tried(unverified, child, tmp_path, ContextOptions(n_ctx=4096, n_threads=2))
    (order,) = child.orders
    assert order["task"] == "try"
    assert order["model"] == str(unverified.path)
    assert isinstance(order["context"], dict)
    assert order["context"]["n_ctx"] == 256
    assert isinstance(order["room"], int)
    assert order["room"] > 1 << 30


def test_an_error_of_ours_in_the_child_is_left_to_this_process_and_not_remembered(
    tmp_path: Path, unverified: GgufFile
) -> None:
    child = StandIn(tmp_path, "answer('ModelLoadError: no memory')")
    tried(unverified, child, tmp_path)
    tried(unverified, child, tmp_path)
    assert len(child.orders) == 2


def test_a_file_that_has_changed_is_tried_again(tmp_path: Path, unverified: GgufFile) -> None:
    child = StandIn(tmp_path, "answer('ok')")
    tried(unverified, child, tmp_path)
    os.utime(unverified.path, ns=(1, 1))
    tried(unverified, child, tmp_path)
    assert len(child.orders) == 2


def test_a_verified_file_is_not_tried(tmp_path: Path) -> None:
    child = StandIn(tmp_path, "raise SystemExit(1)")
    tried(read_gguf(written(model_zoo.model("llama"), tmp_path)), child, tmp_path)
    assert not child.orders


@LINUX
def test_a_death_is_an_error_and_is_remembered(tmp_path: Path, unverified: GgufFile) -> None:
    body = """
        print("/some/where/ggml.c:12: GGML_ASSERT(a == b) failed", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGABRT)
    """
    child = StandIn(tmp_path, body)
    with pytest.raises(ModelLoadError) as caught:
        tried(unverified, child, tmp_path)
    with pytest.raises(ModelLoadError) as again:
        tried(unverified, child, tmp_path)
    said = str(caught.value)
    assert str(again.value) == said
    assert "The child process of the preflight died by SIGABRT (ggml.c:12: GGML_ASSERT(a == b) failed)" in said
    assert "preflight=False" in said
    assert len(child.orders) == 1


@LINUX
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "died by SIGKILL"),  # the kernel, for memory, as a rule
        ("sys.exit('MemoryError: no more')", r"ended with exit code 1 \(MemoryError: no more\)"),
        ("time.sleep(60)", "did not finish within 1"),
    ],
)
def test_another_end_is_an_error_and_is_not_remembered(
    tmp_path: Path, unverified: GgufFile, monkeypatch: pytest.MonkeyPatch, body: str, says: str
) -> None:
    monkeypatch.setattr(file_trial, "_SECONDS", 1.0 if "sleep" in body else 60.0)
    child = StandIn(tmp_path, body)
    for _ in range(2):
        with pytest.raises(ModelLoadError, match=says):
            tried(unverified, child, tmp_path)
    assert len(child.orders) == 2


def test_where_no_child_can_be_started_a_warning_says_so(unverified: GgufFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.warns(EngineWarning, match=r"could not be tried in a child process first.*may end this process"):
        file_trial.try_file(unverified, MODEL, CONTEXT)


def small_jamba() -> Document:
    return model_zoo.model("jamba").put("jamba.ssm.inner_size", U32, 127)


def same_text_twice(document: Document) -> Document:
    texts = document.texts("tokenizer.ggml.tokens")
    return document.put("tokenizer.ggml.tokens", ARRAY, Array(STRING, [*texts[:270], b"<s>", *texts[271:]]))


@LINUX
@pytest.mark.parametrize(
    ("document", "isolated", "reason"),
    [
        (small_jamba, False, r"jamba.cpp:\d+: GGML_ASSERT\(2"),
        (small_jamba, True, r"jamba.cpp:\d+: GGML_ASSERT\(2"),
        (lambda: model_zoo.model("qwen3moe").put("qwen3moe.expert_used_count", U32, 0), False, "GGML_ASSERT"),
        (lambda: same_text_twice(model_zoo.model("llama")), False, "GGML_ASSERT"),
    ],
    ids=["jamba", "isolated", "experts", "tokens"],
)
def test_a_file_that_llama_cpp_dies_of_is_refused_by_load(
    tmp_path: Path, document: Callable[[], Document], isolated: bool, reason: str
) -> None:
    path = written(document(), tmp_path)
    with pytest.raises(ModelLoadError, match=rf"m\.gguf is not loaded.*died by SIG[A-Z]+ \(.*{reason}"):
        Engine.load(path, n_ctx=256, isolated=isolated)


def test_a_sound_file_of_an_unverified_kind_loads_and_is_remembered(tmp_path: Path, own_cache: Path) -> None:
    path = written(model_zoo.model("lfm2"), tmp_path)
    before = set((own_cache / "preflight").glob("file-*.json"))
    with Engine.load(path, n_ctx=256) as llm:
        usage = llm.complete("hello", max_tokens=2).usage
        assert usage is not None
        assert usage.completion_tokens == 2
    (record,) = set((own_cache / "preflight").glob("file-*.json")) - before
    assert preflight.read(record) == Verdict("sound", "ok", cached=True)
    begun = time.perf_counter()
    Engine.load(path, n_ctx=256).close()
    assert set((own_cache / "preflight").glob("file-*.json")) - before == {record}
    assert time.perf_counter() - begun < 60


def test_what_llama_cpp_refuses_by_itself_is_its_own_error(tmp_path: Path) -> None:
    """The child lives, so the parent hears what it heard."""
    document = model_zoo.model("mamba")
    path = written(replace(document, tensors=document.tensors[:-1]), tmp_path)
    with pytest.raises(ModelLoadError, match=r"llama\.cpp could not load"):
        Engine.load(path, n_ctx=256)


@LINUX
def test_a_child_may_not_take_all_memory(unverified: GgufFile) -> None:
    """The real child, with room for nothing, and with enough."""
    load = {"tensor_split": (), "amx": amx_wanted()}
    order = {"task": "try", "model": str(unverified.path), "load": load, "context": {"n_ctx": 256}}
    assert preflight.ask_child({**order, "room": 4 << 30}) == "ok"
    try:
        said = preflight.ask_child({**order, "room": 1 << 20})
    except EngineError as error:
        said = str(error)
    assert said != "ok"


def test_preflight_false_takes_the_risk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(preflight, "ask_child", never)
    path = written(model_zoo.model("mamba"), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Engine.load(path, n_ctx=256, preflight=False) as llm:
            assert llm.info.architecture == "mamba"
