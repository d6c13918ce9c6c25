"""`RayWorker` on a local Ray cluster: one actor, three, one of three killed; resumed by Ray's checkpoints; resources.

Needs the extra `ray` (`pip install -e '.[dev,ray]'`); `.ci/ray` installs it and runs this file. Where Ray is missing,
the file is skipped.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.ray_engines import TellingWorker, counting, said, scripted

from engine.batch import RayWorker

# Ray's own warnings are no failures of ours.
pytestmark = pytest.mark.filterwarnings("ignore")
ray: Any = pytest.importorskip("ray", reason="needs the extra ray")
data: Any = pytest.importorskip("ray.data", reason="needs the extra ray")

ROWS, BATCH = 96, 8


@pytest.fixture(scope="module", autouse=True)
def cluster(repository: Path) -> Iterator[None]:
    """A cluster of this machine alone; its workers find this checkout and the helpers of its tests."""
    paths = os.pathsep.join([str(repository), str(repository / "tests" / "helpers")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
        )
        data.DataContext.get_current().enable_progress_bars = False
        yield
        ray.shutdown()


def rows(count: int = ROWS) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "messages": [{"role": "user", "content": f"question {number}" if number % 7 else "much " * 2000}],
            "sampling_params": {"max_tokens": 400, "temperature": None if number % 2 else 0.5},
        }
        for number in range(count)
    ]


def answered(source: Any, actors: int, **arguments: Any) -> Any:
    return source.map_batches(
        RayWorker,
        fn_constructor_kwargs=arguments,
        compute=data.ActorPoolStrategy(size=actors),
        batch_size=BATCH,
        num_cpus=1,
    )


def told(found: Any) -> set[tuple[int, str, str, str]]:
    """The output set; every row once."""
    taken = [(row["id"], row["generated_text"], row["reasoning"], row["__inference_error__"][:20]) for row in found]
    assert len({row[0] for row in taken}) == len(taken)
    return set(taken)


def wanted(count: int = ROWS) -> set[tuple[int, str, str, str]]:
    good = {(number, said(f"question {number}"), "I know.", "") for number in range(count) if number % 7}
    return good | {(number, "", "", "ContextOverflowError") for number in range(0, count, 7)}


@pytest.mark.parametrize("actors", [1, 3])
def test_the_same_rows_whatever_the_number_of_actors(tmp_path: Path, actors: int) -> None:
    source = data.from_items(rows(), override_num_blocks=ROWS // BATCH)
    found = answered(source, actors, model=scripted(tmp_path, 0.002)).take_all()
    assert told(found) == wanted()
    assert len(list(tmp_path.iterdir())) == actors, "one engine for each actor"


def test_an_actor_killed_in_the_middle_costs_no_row(tmp_path: Path) -> None:
    """SIGKILL, once all three have begun; Ray starts another, which loads an engine of its own."""
    killed: list[int] = []

    def kill() -> None:
        until = time.monotonic() + 60
        while len(begun := list(tmp_path.iterdir())) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)
        killed.append(int(begun[0].name))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    source = data.from_items(rows(), override_num_blocks=ROWS // BATCH)
    found = answered(source, 3, model=scripted(tmp_path, 0.01)).take_all()
    killer.join()
    assert told(found) == wanted()
    assert len(list(tmp_path.iterdir())) == 4, "the killed actor's work was taken up by a new one"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Parquet, whose files of some batches have calls, errors and reasoning, and those of others have none."""
    source = data.from_items(rows(), override_num_blocks=ROWS // BATCH)
    answered(source, 2, model=scripted()).write_parquet(str(tmp_path / "out"))
    found = data.read_parquet(str(tmp_path / "out")).take_all()
    assert told(found) == wanted()
    assert {row["tool_calls"] for row in found} == {"[]"}
    [third] = [row for row in found if row["id"] == 3]
    assert list(third["messages"]) == [{"content": "question 3", "role": "user"}]


def test_rays_checkpoint_goes_on(tmp_path: Path) -> None:
    """A run that dies is begun again by the same lines; rows whose output was written are not computed again."""
    config: Any = getattr(pytest.importorskip("ray.data.checkpoint"), "CheckpointConfig", None)
    if config is None:
        pytest.skip("this Ray has no CheckpointConfig")
    context, asked = data.DataContext.get_current(), tmp_path / "asked"
    asked.mkdir()
    (tmp_path / "in").mkdir()
    data.from_items(rows(), override_num_blocks=ROWS // BATCH).write_parquet(str(tmp_path / "in"))
    context.checkpoint_config = config(
        id_column="id", checkpoint_path=str(tmp_path / "checkpoint"), delete_checkpoint_on_success=False
    )
    before: set[str] = set()
    try:
        for dies_at in (ROWS // 2, None):
            # What is written of a block counts when all of it is: blocks must be small.
            source = data.read_parquet(str(tmp_path / "in")).repartition(target_num_rows_per_block=BATCH)
            run = answered(source, 1, model=counting(asked, dies_at))
            if dies_at is None:
                before = {path.name for path in asked.iterdir()}
                run.write_parquet(str(tmp_path / "out"))
            else:
                with pytest.raises(Exception, match="no more"):
                    run.write_parquet(str(tmp_path / "out"))
    finally:
        context.checkpoint_config = None
    assert told(data.read_parquet(str(tmp_path / "out")).take_all()) == wanted()
    counts = [int(path.read_text()) for path in asked.iterdir()]
    again = sum(count > 1 for count in counts)
    assert len(before) >= ROWS // 3
    assert again <= 3 * BATCH, f"{again} rows were computed twice"


def test_an_actor_uses_as_many_threads_as_it_has_cpus() -> None:
    """Two, where Ray gave it two; told by the options that it loads with."""
    source = data.from_items([{"messages": [{"role": "user", "content": "a"}]}])
    for load, threads in (({}, 2), ({"n_threads": 1}, 1)):
        run = source.map_batches(
            TellingWorker,
            fn_constructor_kwargs={"load": load},
            compute=data.ActorPoolStrategy(size=1),
            num_cpus=2,
        )
        assert [row["generated_text"] for row in run.take_all()] == [said(f"threads {threads}")]


def test_the_page_runs(tmp_path: Path, repository: Path) -> None:
    """The first block on Ray of docs/guides/batches.md, with the built-in model and a folder of the test's."""
    page = (repository / "docs" / "guides" / "batches.md").read_text(encoding="utf-8")
    block = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    for shown, used in (('"owner/repo:Q4_K_M"', "None"), ('"answers"', repr(str(tmp_path / "answers")))):
        assert shown in block
        block = block.replace(shown, used)
    exec(block, {})
    found = data.read_parquet(str(tmp_path / "answers")).take_all()
    assert sorted(row["id"] for row in found) == list(range(24))
    assert {row["__inference_error__"] for row in found} == {""}


def test_the_built_in_model(tmp_path: Path) -> None:
    """Real engines: three actors say what one says, at temperature 0."""
    source = data.from_items(
        [{"id": number, "messages": [{"role": "user", "content": f"What is {number} + 1?"}]} for number in range(12)],
        override_num_blocks=3,
    )
    options: dict[str, Any] = {"load": {"n_sequences": 2, "n_ctx": 256}, "temperature": 0, "max_tokens": 12}
    one, three = (answered(source, actors, **options).take_all() for actors in (1, 3))
    assert {row["__inference_error__"] for row in one} == {""}
    assert {row["id"]: row["generated_text"] for row in one} == {row["id"]: row["generated_text"] for row in three}
