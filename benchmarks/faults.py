"""Does a test notice when a promise is broken? Each promise of faults.toml gets its fault, and its tests must fail.

The checkout is copied into a temporary folder, which is where faults are put, one at a time; the working tree is never
touched. First the tests of all chosen promises run there as they are and must pass. Printed: a line for each promise
with the test that caught its fault, or NOT CAUGHT, or that the text to replace was not found; exits with 1 unless every
fault was caught. Tests that need llama.cpp's vocabularies and templates need LLAMA_CPP_MODELS and LLAMA_CPP_TEMPLATES.
"""

import argparse
import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ("pytest", "numpy", "pydantic", "jinja2", "jsonschema", "llama_cpp", "llguidance", "rich")
"""Imported once, here; every run is a fork. The package itself is imported by each run, from its copy."""
_PASSED = "NOT CAUGHT"
"""What is said of tests that passed."""


@dataclass(frozen=True)
class Fault:
    """A promise, what breaks it (`old` in `file`, which holds it once, becomes `new`), and the tests that must fail.
    `seconds`: with the fault in they hang, or take so much longer that they are stopped after as many."""

    under: str
    promise: str
    file: str
    old: str
    new: str
    tests: list[str]
    seconds: float | None = None


@dataclass
class Copy:
    """A copy of the checkout, and the run that is under way in it."""

    folder: Path
    fault: Fault | None = None
    original: str = ""
    run: BaseProcess | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def printed(self) -> Path:
        return self.folder.with_suffix(".txt")

    def put(self, fault: Fault) -> str | None:
        """Put the fault in and start its tests. Returns what is wrong with the entry, if its text is not there once."""
        path = self.folder / fault.file
        text = path.read_text(encoding="utf-8")
        if (count := text.count(fault.old)) != 1:
            return f"TEXT {'NOT FOUND' if not count else f'FOUND {count} TIMES'} in {fault.file}"
        self.fault, self.original = fault, text
        self._write(text.replace(fault.old, fault.new))
        self.start(["-x", *fault.tests])
        return None

    def start(self, arguments: list[str]) -> None:
        """Run pytest in this copy."""
        self.started = time.monotonic()
        self.run = multiprocessing.get_context("fork").Process(target=_pytest, args=(self, arguments))
        self.run.start()

    def take(self) -> None:
        """Take the fault out again."""
        self._write(self.original)
        self.fault = self.run = None

    def _write(self, text: str) -> None:
        assert self.fault is not None  # there is nothing to write without one
        path = self.folder / self.fault.file
        path.write_text(text, encoding="utf-8")
        # Two texts of one length may be written within one second: a compiled module is known by just these.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()


def _pytest(copy: Copy, arguments: list[str]) -> None:
    """The whole of a run: a process group of its own, in the copy, importing the copy's package in its children too."""
    os.setsid()
    with copy.printed.open("wb") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    os.chdir(copy.folder)
    own = Path(sys.prefix)  # the environment may lie in the checkout
    places = [Path(path) for path in sys.path if path]
    sys.path[:] = [str(path) for path in places if path.is_relative_to(own) or not path.is_relative_to(ROOT)]
    os.environ["PYTHONPATH"] = str(copy.folder)
    os.environ["LLAMA_ENGINE_TEST_CACHE"] = str(copy.folder.with_suffix(".cache"))
    usual = ["-q", "-W", "error", "-p", "no:cacheprovider", "--tb=short"]
    sys.exit(int(import_module("pytest").main([*usual, *arguments])))


def copied(folder: Path) -> Copy:
    """A copy of what belongs to the project, with a repository of its own, as some tests ask git."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # listed by git, and deleted
            shutil.copy2(ROOT / name, folder / name)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return Copy(folder)


def verdict(copy: Copy, limit: float) -> str | None:
    """What became of the run; None while it goes on."""
    assert copy.run is not None  # asked of copies with a run only
    hangs = copy.fault.seconds if copy.fault else None
    if copy.run.is_alive() and time.monotonic() - copy.started < (hangs or limit):
        return None
    late = copy.run.is_alive()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(copy.run.pid or 0, signal.SIGKILL)
    copy.run.join()
    code = copy.run.exitcode or 0
    printed = copy.printed.read_text(errors="replace")
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", printed, re.MULTILINE)
    if late:
        return f"caught: still running after {hangs:.0f} s" if hangs else f"TOO SLOW: over {limit:.0f} s"
    if code < 0:
        return f"caught: the tests' process died of {signal.Signals(-code).name}"
    if code == 1 and failed:
        return f"caught by {failed[1][:160]}"
    return _PASSED if code == 0 else f"{_PASSED}: pytest ended with {code}"


def modules() -> dict[str, list[str]]:
    """The files of the package by each end of their dotted names: `guard`, `template.guard`, ..."""
    table: dict[str, list[str]] = {}
    for path in sorted((ROOT / "engine").rglob("*.py")):
        file = path.relative_to(ROOT)
        names = [name for name in file.with_suffix("").parts if name != "__init__"]
        for first in range(len(names)):
            table.setdefault(".".join(names[first:]), []).append(file.as_posix())
    return table


def faults(path: Path, only: str) -> list[Fault]:
    """The entries whose heading, promise or file holds `only`."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    found, table = list[Fault](), modules()
    for under, entries in document.items():
        for entry in entries:
            if "module" in entry:
                (entry["file"],) = table[entry.pop("module")]
            found.append(Fault(under=under, **entry))
    return [each for each in found if only in each.under or only in each.promise or only in each.file]


def misplaced(chosen: list[Fault]) -> list[str]:
    """What is wrong with the entries whose text does not stand in its file once."""
    texts = {fault.file: (ROOT / fault.file).read_text(encoding="utf-8") for fault in chosen}
    counted = [(fault, texts[fault.file].count(fault.old)) for fault in chosen]
    return [f"{fault.file} holds it {count} times: {fault.promise}" for fault, count in counted if count != 1]


def untested(chosen: list[Fault]) -> list[str]:
    """The tests that are named and not there."""
    named = {test: test.split("[")[0].split("::") for fault in chosen for test in fault.tests}
    paths = {path for path, *_ in named.values() if (ROOT / path).exists()}
    files = {path: [ROOT / path] if (ROOT / path).is_file() else (ROOT / path).rglob("*.py") for path in paths}
    texts = {path: "\n".join(file.read_text(encoding="utf-8") for file in some) for path, some in files.items()}
    defined = re.compile(r"^ *(?:async )?(?:def|class) (\w+)", re.MULTILINE)
    there = {path: {*defined.findall(text)} for path, text in texts.items()}
    gone = (test for test, (path, *names) in named.items() if path not in there or not {*names} <= there[path])
    return [f"{test} is not there" for test in gone]


def clean(copy: Copy, chosen: list[Fault], limit: float) -> bool:
    """Whether all tests pass without a fault."""
    copy.start(list(dict.fromkeys(test for fault in chosen for test in fault.tests)))
    while (found := verdict(copy, limit * 10)) is None:
        time.sleep(0.1)
    copy.run = None
    if found != _PASSED:
        print(copy.printed.read_text(errors="replace")[-4000:], f"Without any fault: {found}", sep="\n")
    return found == _PASSED


def work(copies: list[Copy], chosen: list[Fault], limit: float) -> list[Fault]:
    """Put every fault in. Returns those that were not caught."""
    waiting, missed, under = chosen[::-1], list[Fault](), ""

    def tell(fault: Fault, found: str) -> None:
        nonlocal under
        if fault.under != under:
            under = fault.under
            print(f"\n{under}")
        print(f"  {fault.promise}\n      {found}", flush=True)
        if not found.startswith("caught"):
            missed.append(fault)

    while waiting or any(copy.run for copy in copies):
        for copy in copies:
            if copy.run is None and waiting:
                fault = waiting.pop()
                if (wrong := copy.put(fault)) is not None:
                    tell(fault, wrong)
            elif copy.fault is not None and (found := verdict(copy, limit)) is not None:
                tell(copy.fault, found)
                copy.take()
        time.sleep(0.05)
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose heading, promise or file holds this")
    parser.add_argument("--jobs", type=int, default=1, help="how many copies run tests at once")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="for the tests of one fault")
    parser.add_argument("--trusting", action="store_true", help="do not run the tests without a fault first")
    parser.add_argument("--file", type=Path, default=Path(__file__).with_suffix(".toml"), help="other faults")
    parser.add_argument(
        "--texts",
        action="store_true",
        help="only see whether each text stands in its file once, and each test is there",
    )
    given = parser.parse_args()
    chosen = faults(given.file, given.only)
    if given.texts:
        wrong, gone = misplaced(chosen), untested(chosen)
        print(*wrong, *gone, f"{len(chosen) - len(wrong)} of {len(chosen)} texts stand once", sep="\n")
        sys.exit(bool(wrong or gone))
    for name in SHARED:
        import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        copies = [copied(Path(folder, f"copy{number}")) for number in range(given.jobs)]
        if not given.trusting and not clean(copies[0], chosen, given.limit):
            sys.exit(1)
        missed = work(copies, chosen, given.limit)
    print(f"\n{len(chosen) - len(missed)} of {len(chosen)} faults caught")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
