"""`examples/worker_engines.py`: partitions of Dask, Spark and Daft, answered by an engine in each worker process.

`.ci/ray` installs Dask and runs this file; what is not installed is skipped.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

# The libraries' own warnings are no failures of ours.
pytestmark = pytest.mark.filterwarnings("ignore")
pandas: Any = pytest.importorskip("pandas")
TEXTS = ["Budget review on 2026-04-02", "Call the dentist, 2026-05-21", "Team lunch, 2026-03-14"]
DATES = [text[-10:] for text in TEXTS]


@pytest.fixture
def example(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the example, which worker processes find too."""
    paths = [str(repository / "examples"), str(repository)]
    monkeypatch.setattr(sys, "path", [paths[0], *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    worker_engines: Any = import_module("worker_engines")
    yield worker_engines
    if worker_engines.engine.cache_info().currsize:
        worker_engines.engine().close()
        worker_engines.engine.cache_clear()


@pytest.fixture
def mails() -> Any:
    return pandas.DataFrame({"id": list(range(12)), "text": TEXTS * 4})


def test_a_partition_and_one_without_rows(example: Any, mails: Any) -> None:
    """The engine is loaded once, and not at all for what has no rows."""
    empty = example.answered(mails[:0])
    assert example.engine.cache_info().misses == 0
    names = ["id", "text", "answer", "title", "date", "finish_reason", "error"]
    for part in (mails[:3], mails[3:6]):
        found = example.answered(part)
        assert list(found.columns) == list(empty.columns) == names
        assert list(found["date"]) == DATES
    assert example.engine.cache_info().misses == 1


def test_the_page_shows_the_example(repository: Path) -> None:
    page = (repository / "docs" / "guides" / "batches.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^```py\n(@cache.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert shown in (repository / "examples" / "worker_engines.py").read_text(encoding="utf-8")


def test_dask(example: Any, mails: Any) -> None:
    dask: Any = pytest.importorskip("dask.dataframe")
    distributed: Any = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = example.with_dask(dask.from_pandas(mails, npartitions=6)).compute()
        loads = client.run(_loads)
    assert list(found["id"]) == list(mails["id"])
    assert list(found["date"]) == DATES * 4
    assert set(loads.values()) <= {0, 1}, "one engine for each worker at most"
    assert sum(loads.values()) >= 1
    assert example.engine.cache_info().misses == 0, "none here"


def _loads() -> int:
    worker_engines: Any = import_module("worker_engines")
    return worker_engines.engine.cache_info().misses


def test_spark(example: Any, mails: Any) -> None:
    sql: Any = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        found = example.with_spark(session.createDataFrame(mails).repartition(4)).collect()
    finally:
        session.stop()
    assert {row["id"]: row["date"] for row in found} == dict(enumerate(DATES * 4))
    assert {row["error"] for row in found} == {None}


def test_daft(example: Any, mails: Any) -> None:
    daft: Any = pytest.importorskip("daft")
    found = example.with_daft(daft.from_pandas(mails)).to_pydict()
    assert [event["date"] for event in found["event"]] == DATES * 4
    assert example.engine.cache_info().misses == 1
