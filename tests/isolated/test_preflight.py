"""engine.isolated.preflight, with stand-in children that end in every way a child can: the fault itself needs a
faulting CPU."""

import os
import re
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fakes.stand_in_child import StandIn

from engine.isolated import preflight
from engine.isolated.preflight import Verdict, examine
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support import _data
from engine.support.errors import EngineError, EngineWarning

MODEL, CONTEXT = ModelOptions(amx=True), ContextOptions()
CURE = "(-fno-dse|-U__AMX_INT8__)"
"""By gcc; by any other compiler."""


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stand-ins are found, for one test."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(autouse=True)
def a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stand-ins need no weights."""
    monkeypatch.setattr(_data, "builtin_model", lambda: tmp_path / "tiny.gguf")


SOUND = "answer('ok')"
FAULTS_UNLESS_REMEDIED = """
    if order["load"]["use_extra_bufts"]:
        os.kill(os.getpid(), signal.SIGSEGV)
    answer("ok")
"""
ALWAYS_FAULTS = "os.kill(os.getpid(), signal.SIGILL)"
EXITS = "sys.exit('no such device')"
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
SAYS_ANOTHER_THING = "answer('maybe')"


@contextmanager
def no_warning() -> Generator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_child_that_lives_is_believed_and_remembered(tmp_path: Path) -> None:
    child = StandIn(tmp_path, SOUND)
    first = examine(MODEL, CONTEXT, child=child.module, directory=tmp_path / "cache")
    again = examine(MODEL, CONTEXT, child=child.module, directory=tmp_path / "cache")
    assert (first.outcome, first.cached) == ("sound", False)
    assert again == Verdict("sound", first.reason, cached=True)
    assert len(child.orders) == 1


def test_the_child_gets_the_options_that_choose_the_code(tmp_path: Path) -> None:
    child = StandIn(tmp_path, SOUND)
    model = ModelOptions(n_gpu_layers=7, split_mode="row", main_gpu=1, use_mlock=True)
    context = ContextOptions(
        n_ctx=100_000, n_sequences=9, flash_attn="on", type_k="q8_0", type_v="q8_0", offload_kqv=False, n_threads=3
    )
    examine(model, context, child=child.module, directory=tmp_path)
    (order,) = child.orders
    told = {**order["load"], **order["context"]}
    kept = {
        "n_gpu_layers": 7,
        "split_mode": "row",
        "main_gpu": 1,
        "flash_attn": "on",
        "type_k": "q8_0",
        "type_v": "q8_0",
    }
    assert {**told, **kept, "offload_kqv": False, "n_threads": 1, "n_threads_batch": 1} == told
    assert (told["n_ctx"], told["n_batch"], told["n_sequences"], told["use_mlock"]) == (256, 64, 9, False), "but small"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_amx_alone_is_left_out_where_that_helps(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), signal.SIGILL) if order['load']['amx'] else answer('ok')"
    child = StandIn(tmp_path, body)
    verdict = examine(MODEL, CONTEXT, child=child.module, directory=tmp_path)
    assert (verdict.outcome, verdict.remedy) == ("remedied", "amx")
    assert [order["load"]["use_extra_bufts"] for order in child.orders] == [True, True]


def test_the_variable_leaves_amx_out_of_every_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ENGINE_AMX", "0")
    child = StandIn(tmp_path, SOUND)
    examine(ModelOptions(), CONTEXT, child=child.module, directory=tmp_path)
    assert child.orders[0]["load"]["amx"] is False


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_fault_is_remedied_and_all_children_are_seen(tmp_path: Path) -> None:
    child = StandIn(tmp_path, FAULTS_UNLESS_REMEDIED)
    verdict = examine(MODEL, CONTEXT, child=child.module, directory=tmp_path)
    assert verdict.outcome == "remedied"
    assert "SIGSEGV" in verdict.reason
    assert [order["load"]["use_extra_bufts"] for order in child.orders] == [True, True, False]
    assert examine(MODEL, CONTEXT, child=child.module, directory=tmp_path).cached


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_no_remedy(tmp_path: Path) -> None:
    child = StandIn(tmp_path, ALWAYS_FAULTS)
    verdict = examine(MODEL, CONTEXT, child=child.module, directory=tmp_path)
    assert verdict.outcome == "faulty"
    assert "SIGILL" in verdict.reason
    assert len(child.orders) == 3
    remedied_before = ModelOptions(use_extra_bufts=False)
    assert examine(remedied_before, CONTEXT, child=child.module, directory=tmp_path).outcome == "faulty"
    assert len(child.orders) == 4, "the remedies were on already; there is no second child"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (EXITS, "exit code 1 (no such device)"),
        (SAYS_ANOTHER_THING, "answered 'maybe'"),
        ("pass", "exit code 0"),
        pytest.param(KILLED, "died by SIGKILL", id="killed"),
    ],
)
def test_what_proves_nothing_is_unknown_and_asked_again(tmp_path: Path, body: str, said: str) -> None:
    child = StandIn(tmp_path, body)
    for count in (1, 2):
        verdict = examine(MODEL, CONTEXT, child=child.module, directory=tmp_path)
        assert verdict.outcome == "unknown"
        assert said in verdict.reason
        assert len(child.orders) == count


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_fault_whose_remedy_gives_no_answer_is_unknown(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), signal.SIGSEGV if order['load']['use_extra_bufts'] else signal.SIGKILL)"
    verdict = examine(MODEL, CONTEXT, child=StandIn(tmp_path, body).module, directory=tmp_path)
    assert verdict.outcome == "unknown"


FAULTS_ON_A_DEVICE = """
    context, load = order["context"], order["load"]
    if load["n_gpu_layers"] and context["n_sequences"] == 4 and {condition}:
        os.kill(os.getpid(), signal.SIGSEGV)
    answer("ok")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(
    ("condition", "remedy", "children"),
    [
        ("load['amx']", "amx", 2),
        ("load['use_extra_bufts']", "use_extra_bufts", 3),
        ("context['flash_attn'] != 'off'", "flash_attn", 4),
        ("context['offload_kqv']", "offload_kqv", 5),
    ],
)
def test_a_fault_of_several_sequences_on_a_device_is_remedied(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    condition: str,
    remedy: str,
    children: int,
) -> None:
    child = StandIn(tmp_path, FAULTS_ON_A_DEVICE.format(condition=condition))
    monkeypatch.setenv("LLAMA_ENGINE_CACHE", str(tmp_path / "own"))
    monkeypatch.setattr(preflight, "CHILD", child.module)
    model = ModelOptions(n_gpu_layers=-1, amx=True)
    context = ContextOptions(n_sequences=4)
    changed = "off" if remedy == "flash_attn" else False
    said = rf"SIGSEGV.*works with {remedy}="
    told = pytest.warns(EngineWarning, match=said)
    for expected in (told, no_warning()):  # from children, and from the record
        with caplog.at_level("INFO", "engine.isolated.preflight"), expected:
            loads, makes = preflight.prepare(model, context)
        assert len(child.orders) == children
        one_changed = {**asdict(model), **asdict(context), remedy: changed}
        assert {**asdict(loads), **asdict(makes)} == one_changed
    assert len(re.findall(said, caplog.text)) == 1, "what a user has been told once is in the log"
    with no_warning():
        assert preflight.prepare(model, replace(context, n_sequences=2))[0] is model, "two sequences do not meet it"
        assert preflight.prepare(ModelOptions(), context)[1] is context


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_device_that_no_remedy_helps_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = StandIn(tmp_path, FAULTS_ON_A_DEVICE.format(condition="True"))
    monkeypatch.setenv("LLAMA_ENGINE_CACHE", str(tmp_path / "own"))
    monkeypatch.setattr(preflight, "CHILD", child.module)
    context = ContextOptions(n_sequences=4, type_v="q8_0")
    with pytest.raises(EngineError, match=r"SIGSEGV.*Load with n_gpu_layers=0"):
        preflight.prepare(ModelOptions(n_gpu_layers=-1, amx=True), context)
    assert len(child.orders) == 4, "quantised values need flash attention"


@pytest.mark.parametrize(("executable", "said"), [("/nothing-here", "nothing-here"), ("", "sys.executable is empty")])
def test_no_child_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executable: str, said: str) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    verdict = examine(MODEL, CONTEXT, directory=tmp_path)
    assert verdict.outcome == "unknown"
    assert said in verdict.reason
    assert "preflight=False" in verdict.reason


def test_a_child_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_SECONDS", 0.2)
    verdict = examine(MODEL, CONTEXT, child=StandIn(tmp_path, "time.sleep(60)").module, directory=tmp_path)
    assert verdict.outcome == "unknown"
    assert "did not finish within 0.2 seconds" in verdict.reason


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"outcome": "sound"}', '{"outcome": "great", "reason": "x"}', "[" * 100_000),
        '{"outcome": "remedied", "reason": "x", "remedy": "preflight"}',
        '{"outcome": "remedied", "reason": "x", "remedy": null}',
    ],
)
def test_a_damaged_record_is_replaced(tmp_path: Path, content: str) -> None:
    child = StandIn(tmp_path, SOUND)
    cache = tmp_path / "cache"
    examine(MODEL, CONTEXT, child=child.module, directory=cache)
    (record,) = cache.iterdir()
    record.write_text(content, encoding="utf-8")
    assert examine(MODEL, CONTEXT, child=child.module, directory=cache).cached is False
    assert examine(MODEL, CONTEXT, child=child.module, directory=cache).cached is True


def test_other_options_another_library_another_cpu_are_asked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = StandIn(tmp_path, SOUND)
    library = tmp_path / "lib"
    library.mkdir()
    shared = library / "libllama.so"
    shared.write_bytes(b"one")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(library))

    def asked(context: ContextOptions = CONTEXT) -> bool:
        return not examine(MODEL, context, child=child.module, directory=tmp_path / "cache").cached

    assert asked()
    assert not asked()
    assert asked(ContextOptions(flash_attn="off"))
    assert not asked(ContextOptions(n_ctx=512)), "the context's length chooses no code"
    stat = shared.stat()
    os.utime(shared, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert asked(), "the library was rebuilt"
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    assert asked(), "it sees other devices"
    monkeypatch.setenv("SOMETHING_ELSE", "0")
    assert not asked()
    shared.write_bytes(b"other")
    os.utime(shared, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert asked(), "its size changed"
    monkeypatch.setattr(preflight, "processor", lambda: ("another CPU", ("amx_int8",)))
    assert asked(), "it runs on another CPU"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name")
def test_a_pipe_in_the_cache_is_not_waited_for(tmp_path: Path) -> None:
    child = StandIn(tmp_path, SOUND)
    cache = tmp_path / "cache"
    examine(MODEL, CONTEXT, child=child.module, directory=cache)
    (record,) = cache.iterdir()
    record.unlink()
    os.mkfifo(record)
    assert examine(MODEL, CONTEXT, child=child.module, directory=cache).cached is False
    assert examine(MODEL, CONTEXT, child=child.module, directory=cache).cached is True, "it was replaced"


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="whom modes keep out")
def test_a_cache_that_cannot_be_read_costs_only_time(tmp_path: Path) -> None:
    child = StandIn(tmp_path, SOUND)
    cache = tmp_path / "cache"
    examine(MODEL, CONTEXT, child=child.module, directory=cache)
    (record,) = cache.iterdir()
    record.chmod(0)
    assert examine(MODEL, CONTEXT, child=child.module, directory=cache).outcome == "sound"
    cache.chmod(0)
    assert examine(MODEL, CONTEXT, child=child.module, directory=cache).outcome == "sound"
    cache.chmod(0o700)


def test_a_user_without_a_home_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("LLAMA_ENGINE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    child = StandIn(tmp_path, SOUND)
    for _ in range(2):
        assert examine(MODEL, CONTEXT, child=child.module).outcome == "sound"
    assert len(child.orders) == 2


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    child = StandIn(tmp_path, SOUND)
    blocked = tmp_path / "file"
    blocked.write_text("in the way", encoding="utf-8")
    for _ in range(2):
        assert examine(MODEL, CONTEXT, child=child.module, directory=blocked / "cache").outcome == "sound"
    assert len(child.orders) == 2


class TestPrepare:
    """What a load does with the verdict."""

    def use(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
        monkeypatch.setenv("LLAMA_ENGINE_CACHE", str(tmp_path / "own"))
        monkeypatch.setattr(preflight, "CHILD", StandIn(tmp_path, body).module)

    @pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
    def test_the_remedy_comes_with_one_warning_that_names_the_cure(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.use(monkeypatch, tmp_path, FAULTS_UNLESS_REMEDIED)
        with pytest.warns(EngineWarning, match=CURE) as caught:
            options, _ = preflight.prepare(ModelOptions(n_gpu_layers=3, amx=True), CONTEXT)
        assert options == ModelOptions(n_gpu_layers=3, amx=True, use_extra_bufts=False)
        assert len(caught) == 1

    @pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
    def test_a_user_is_told_once_for_a_build_not_for_each_choice_of_options(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.use(monkeypatch, tmp_path, FAULTS_UNLESS_REMEDIED)
        with pytest.warns(EngineWarning, match="ends it"):
            preflight.prepare(MODEL, CONTEXT)
        with no_warning():
            preflight.prepare(MODEL, replace(CONTEXT, n_sequences=7))
        monkeypatch.setattr(preflight, "processor", lambda: ("another CPU", ()))
        with pytest.warns(EngineWarning, match="ends it"):
            preflight.prepare(MODEL, CONTEXT)

    @pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
    def test_what_cannot_be_remedied_is_an_error_with_the_cure(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.use(monkeypatch, tmp_path, ALWAYS_FAULTS)
        with pytest.raises(EngineError, match=rf"(?s)SIGILL.*{CURE}.*preflight=False"):
            preflight.prepare(MODEL, CONTEXT)

    def test_the_unknown_is_remedied_with_a_warning(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.use(monkeypatch, tmp_path, EXITS)
        with pytest.warns(EngineWarning, match="no such device"):
            assert preflight.prepare(MODEL, CONTEXT)[0].use_extra_bufts is False

    def test_weights_that_are_loaded_already_may_be_sound(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.use(monkeypatch, tmp_path, SOUND)
        with warnings.catch_warnings(record=True) as caught:
            preflight.check_loaded(MODEL, CONTEXT)
        assert not caught

    @pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
    @pytest.mark.parametrize("body", [FAULTS_UNLESS_REMEDIED, ALWAYS_FAULTS])
    def test_weights_that_are_loaded_already_cannot_be_remedied(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str
    ) -> None:
        self.use(monkeypatch, tmp_path, body)
        with pytest.raises(EngineError, match=rf"(?s)died by.*Engine\.load.*{CURE}.*preflight=False"):
            preflight.check_loaded(MODEL, CONTEXT)

    def test_weights_that_are_loaded_already_stay_as_they_are_where_nothing_is_known(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.use(monkeypatch, tmp_path, EXITS)
        with pytest.warns(EngineWarning, match="no such device"):
            preflight.check_loaded(MODEL, CONTEXT)


@pytest.mark.parametrize(
    ("returncode", "fault"),
    [
        (0, None),
        (1, None),
        (-11, "SIGSEGV"),
        (-9, None),
        (-2, None),
        (-1000, None),
        (0xC0000005, "exception 0xc0000005"),
    ],
)
def test_how_an_exit_status_is_read(returncode: int, fault: str | None) -> None:
    assert preflight._fault(returncode) == fault  # pyright: ignore[reportPrivateUsage]


def test_the_rebuild_line() -> None:
    line = preflight.rebuild_command(("-DA=1", "-DB=2"), windows=False)
    assert line.startswith('CMAKE_ARGS="-DA=1 -DB=2" pip install --force-reinstall --no-cache-dir --no-binary')
    assert line.endswith("llama-cpp-python==0.3.36")
    assert preflight.rebuild_command(("-DA=1",), windows=True).startswith('$env:CMAKE_ARGS="-DA=1"; pip')
    assert preflight.rebuild_command((), python="/usr/bin/python3").startswith("/usr/bin/python3 -m pip install")


@pytest.mark.parametrize(
    ("gcc", "windows", "start"),
    [
        (12, False, 'CXXFLAGS="-fno-tree-dse -fno-dse" CMAKE_ARGS="-DA=1" pip install'),
        (12, True, '$env:CXXFLAGS="-fno-tree-dse -fno-dse"; $env:CMAKE_ARGS="-DA=1"; pip install'),
        (None, False, 'CMAKE_ARGS="-DA=1 -DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__" pip install'),
    ],
)
def test_the_rebuild_line_that_cures_amx_fits_the_compiler(
    monkeypatch: pytest.MonkeyPatch, gcc: int | None, windows: bool, start: str
) -> None:
    monkeypatch.setattr(preflight, "gcc_version", lambda: gcc)
    assert preflight.rebuild_command(("-DA=1",), cure_amx=True, windows=windows).startswith(start)


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/llama-engine"),
        ("linux", {}, "/home/ann/.cache/llama-engine"),
        ("darwin", {}, "/home/ann/Library/Caches/llama-engine"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/llama-engine"),
        ("linux", {"LLAMA_ENGINE_CACHE": "/mine"}, "/mine"),
    ],
)
def test_where_verdicts_are_kept(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str
) -> None:
    for name in ("LLAMA_ENGINE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ann"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert preflight.cache_directory() == Path(expected)


class TestTheRealChild:
    """The real child, on the built-in model; what it finds is this machine's affair, that it answers is ours."""

    @pytest.fixture(autouse=True)
    def real_model(self, monkeypatch: pytest.MonkeyPatch, a_model: None, repository: Path) -> None:
        path = repository / "examples" / "default_model" / "builtin-q8_0.gguf"
        monkeypatch.setattr(_data, "builtin_model", lambda: path)

    @pytest.mark.parametrize(
        "context",
        [CONTEXT, ContextOptions(flash_attn="on", type_k="q8_0", type_v="q8_0"), ContextOptions(n_sequences=3)],
    )
    def test_it_answers(self, tmp_path: Path, context: ContextOptions) -> None:
        verdict = examine(MODEL, context, directory=tmp_path)
        assert verdict.outcome in ("sound", "remedied"), verdict.reason
        assert examine(MODEL, context, directory=tmp_path).cached

    def test_without_a_model_it_fails_by_exit_code_and_last_line(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(_data, "builtin_model", lambda: tmp_path / "absent.gguf")
        verdict = examine(MODEL, CONTEXT, directory=tmp_path)
        assert verdict.outcome == "unknown"
        assert "absent.gguf" in verdict.reason

    def test_it_sees_the_modules_that_this_process_sees(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "llama_cpp.py").write_text("raise ImportError('the wrong llama_cpp')\n", encoding="utf-8")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        assert "the wrong llama_cpp" in examine(MODEL, CONTEXT, directory=tmp_path).reason
