"""engine.cli.doctor: the report of this machine, of others, and of installations that are broken."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.cli import doctor
from engine.cli.doctor import Diagnosis, Machine
from engine.isolated import preflight
from engine.isolated.preflight import Verdict
from engine.llama.lib import Device, LibraryFacts
from engine.runtime.loop.config import AMX_VARIABLE
from engine.support import _data
from engine.support.errors import EngineError

LINUX = Machine("Linux", "x86_64")
FACTS = LibraryFacts(
    version="0.3.36",
    path=Path("/lib/libllama.so"),
    system_info="CPU : AVX2 = 1 |  AMX_INT8 = 1 ",
    supports_gpu_offload=True,
    devices=(Device("CUDA0", "A card", True, 3 * 2**30, 4 * 2**30), Device("CPU", "A chip", False, 0, 0)),
)
REPORT = Diagnosis(
    engine_version="0.1.0",
    python="3.11.7",
    system="Linux",
    cpu="A chip",
    cpu_features=("avx2", "amx_int8"),
    machine=replace(LINUX, amx=True, nvidia=True),
    library=FACTS,
    library_error="",
    verdict=Verdict("remedied", "A child died.", cached=True),
    rebuild="pip install it",
    builtin_model=Path("/data/builtin.gguf"),
    hub_cache=Path("/nowhere/hub"),
    own_cache=Path("/own"),
    threads=(4, 8),
)


@pytest.mark.parametrize(
    ("machine", "backend", "arguments"),
    [
        (LINUX, "CPU", ()),
        (replace(LINUX, nvidia=True, vulkan=True), "CUDA", ("-DGGML_CUDA=on",)),
        (replace(LINUX, vulkan=True), "Vulkan", ("-DGGML_VULKAN=on",)),
        (Machine("Darwin", "arm64"), "Metal", ("-DGGML_METAL=on",)),
        (Machine("Darwin", "x86_64"), "CPU", ()),
    ],
)
def test_how_the_library_is_best_built(machine: Machine, backend: str, arguments: tuple[str, ...]) -> None:
    assert machine.backend == backend
    assert machine.arguments == arguments


@pytest.mark.parametrize(
    ("machine", "faulted", "expected"),
    [
        (LINUX, False, False),
        (replace(LINUX, amx=True, gcc=12), False, True),
        (replace(LINUX, amx=True, gcc=13), False, False),
        (replace(LINUX, amx=True, gcc=13), True, True),
        (replace(LINUX, amx=True, gcc=None), False, False),
        (replace(LINUX, amx=False, gcc=12), True, False),
    ],
)
def test_where_a_build_needs_the_cure(machine: Machine, faulted: bool, expected: bool) -> None:
    assert machine.needs_cure(faulted=faulted) is expected


def test_the_text_says_every_fact_on_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AMX_VARIABLE, raising=False)
    rows = dict(line.split("  ", 1) for line in REPORT.text().splitlines() if not line.startswith(" "))
    told = {name.strip(): value.strip() for name, value in rows.items()}
    assert told == {
        "llama-engine": "0.1.0",
        "Python": "3.11.7 on Linux",
        "llama-cpp-python": f"0.3.36 at {FACTS.path}",
        "build": "CPU : AVX2 = 1 | AMX_INT8 = 1",
        "GPU offload": "this build can",
        "devices": "CUDA0 (A card, 3.0 of 4.0 GiB free); CPU (A chip)",
        "CPU": "A chip",
        "CPU features": "avx2 amx_int8 (AMX present)",
        "CPU threads": (
            "4 for a token, 8 for a prompt; fewer while other programs hold the processors (n_threads= fixes it)"
        ),
        "preflight": "remedied: A child died. (found by an earlier run)",
        "rebuild": "pip install it",
        "prebuilt wheels": f"{doctor.WHEELS} (llama-cpp-python's own; not verified by this project)",
        "built-in model": str(REPORT.builtin_model),
        "models cached in": f"{REPORT.hub_cache} (nothing there yet)",
        "own cache": str(REPORT.own_cache),
    }
    assert "a CUDA build; it needs the CUDA toolkit" in REPORT.text()
    assert "1 for a token, 2 for a prompt\n" in replace(REPORT, threads=(1, 2)).text()
    assert "toolkit" not in replace(REPORT, machine=replace(REPORT.machine, cuda_compiler=True)).text()


def test_a_broken_installation_is_reported() -> None:
    text = replace(REPORT, library=None, library_error="it died", builtin_model=None).text()
    assert "could not be asked: it died" in text
    assert "missing: reinstall" in text
    assert "GPU offload" not in text


def test_this_machine() -> None:
    report = doctor.diagnose()
    assert report.library is not None, report.library_error
    assert report.library.path.exists()
    assert report.library.version == preflight.rebuild_command(()).split("==")[-1]
    assert report.rebuild.startswith(("CMAKE_ARGS", "CXXFLAGS", sys.executable, "$env"))
    assert report.verdict.outcome in ("sound", "remedied"), report.verdict.reason
    assert report.own_cache.joinpath("preflight").is_dir()
    assert report.cpu
    assert report.cpu in report.text()


def test_without_a_model_there_is_still_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> Path:
        raise EngineError("The built-in model is missing.")

    monkeypatch.setattr(_data, "builtin_model", missing)
    monkeypatch.setenv("LLAMA_ENGINE_CACHE", str(tmp_path))
    report = doctor.diagnose()
    assert report.builtin_model is None
    assert "The built-in model is missing." in report.verdict.reason


@pytest.mark.parametrize(
    ("body", "said"), [("import os; os.abort()", "died by SIGABRT"), ("raise SystemExit('no library')", "no library")]
)
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_library_that_cannot_load_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, said: str
) -> None:
    (tmp_path / "dying_library.py").write_text(f"def main():\n    {body}\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(preflight, "CHILD", "dying_library")
    report = doctor.diagnose()
    assert report.library is None
    assert said in report.library_error
    assert report.library_error in report.text()


@pytest.mark.parametrize("executable", [None, "/nowhere/python"])
def test_no_child_can_be_asked(monkeypatch: pytest.MonkeyPatch, executable: str | None) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert "cannot be started" in doctor.diagnose().library_error


def test_a_user_without_a_home_gets_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert doctor.hub_cache().parts[-2:] == ("huggingface", "hub")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in")
@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("cc (Debian 12.2.0-14+deb12u1) 12.2.0", 12),
        ("gcc (GCC) 13.3.0", 13),
        ("Apple clang version 16.0.0", None),
        ("", None),
    ],
)
def test_the_compilers_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, version: int | None) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\necho '{says}'\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert Machine.here().gcc == version


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert Machine.here().gcc is None
