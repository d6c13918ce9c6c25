"""What all tests share: the repository's root, a cache of our own, no warning about this machine's llama.cpp build, and
examples that may take as long as a busy machine needs.

Where this machine's build of llama.cpp dies of AMX, everything that the tests start leaves AMX out, by one environment
variable that children inherit. The preflight's own tests take it back.
"""

import compileall
import gc
import os
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from checkout import tracked_files
from hypothesis import Phase, settings

from engine.isolated import preflight
from engine.llama.lib import library
from engine.runtime.loop.config import AMX_VARIABLE, ContextOptions, ModelOptions, amx_wanted
from engine.support import _data

# An example that fails is shown as it was found: to make it smaller may take longer than a test may, and then the
# process is ended with nothing said. `--hypothesis-profile=default` makes it smaller.
settings.register_profile("no deadline", deadline=None, phases=[each for each in Phase if each != Phase.shrink])
settings.load_profile("no deadline")

SECONDS = Path(__file__).with_name("seconds.txt")
"""What each file's tests took when all were run last, the slowest first."""
_SLOW = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--within", type=float, metavar="SECONDS", help="only files that took no longer, by seconds.txt")
    parser.addoption("--record-seconds", action="store_true", help="write seconds.txt; run all tests with it")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        # Hundreds of children import the package; with PYTHONDONTWRITEBYTECODE each would compile it for itself.
        compileall.compile_dir(SECONDS.parents[1] / "engine", quiet=2)
        _leave_out_amx_if_it_faults()
    if not amx_wanted():
        library()  # so that no test imports llama_cpp before AMX is left out
    within: float | None = config.getoption("within")
    if within is not None:
        lines = (line.split() for line in SECONDS.read_text(encoding="utf-8").splitlines())
        config.stash[_SLOW] = {name for seconds, name in lines if float(seconds) > within}


def _leave_out_amx_if_it_faults() -> None:
    with TemporaryDirectory() as own:
        kept = os.environ.get("LLAMA_ENGINE_TEST_CACHE")
        verdict = preflight.examine(ModelOptions(), ContextOptions(), directory=Path(kept or own) / "preflight")
    if verdict.remedy == "amx":
        os.environ[AMX_VARIABLE] = "0"


def pytest_collection_finish() -> None:
    # Twenty thousand tests are some 400,000 objects, which Python's collector would look through again and again.
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    slow = config.stash.get(_SLOW, set[str]())
    return True if slow and str(collection_path.relative_to(SECONDS.parent)) in slow else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("record_seconds"):
        taken = Counter[str]()
        for report in (each for some in terminalreporter.stats.values() for each in some):
            if isinstance(report, pytest.TestReport):
                taken[report.location[0].removeprefix("tests/")] += report.duration  # pyright: ignore[reportArgumentType]
        lines = [f"{seconds:.1f} {name}\n" for name, seconds in taken.most_common() if seconds >= 0.5]
        SECONDS.write_text("".join(lines), encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Neighbours stay together, so that few modules' fixtures are made by several workers."""
    return import_module("xdist.scheduler").WorkStealingScheduling(config, log)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def tracked(repository: Path) -> list[str]:
    """The files that belong to the project."""
    return tracked_files(repository)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Preflight verdicts of this run only: never the user's, and found once for all workers. A command that runs tests
    again and again gives LLAMA_ENGINE_TEST_CACHE, and they are found once for all of its runs."""
    kept = os.environ.get("LLAMA_ENGINE_TEST_CACHE")
    base = tmp_path_factory.getbasetemp()  # of a worker of xdist: a folder in that of the run
    directory = Path(kept) if kept else (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    directory.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_ENGINE_CACHE", str(directory))
        yield directory


@pytest.fixture(scope="session")
def builtin_model_path() -> Path:
    """The built-in model; or the GGUF that LLAMA_ENGINE_TEST_MODEL names, to develop against another."""
    if named := os.environ.get("LLAMA_ENGINE_TEST_MODEL"):
        return Path(named)
    return _data.builtin_model()
