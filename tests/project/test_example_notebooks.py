"""examples/notebooks run in a kernel on the built-in model, and what they show is what a reader expects.

They are committed with their outputs, so that GitHub shows them: texts, tables and one small plot. Run as a script
(`python tests/project/test_example_notebooks.py`) this file runs them all and writes the present outputs into them.
"""

import gc
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from files.projector_files import KINDS, write_projector

from engine.support import _data

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
MOST_BYTES = 40_000
Shown = list[list[dict[str, Any]]]  # of each code cell, its outputs


def read(path: Path) -> Any:
    return pytest.importorskip("nbformat").read(path, 4)


def kernel(folder: Path) -> Any:
    """A kernel of this Python that imports this checkout and works in a folder, where it finds the built-in model as
    `model.gguf` and a projector of random numbers for it as `mmproj.gguf`."""
    (folder / "model.gguf").symlink_to(_data.builtin_model())
    _ = write_projector(folder / "mmproj.gguf", KINDS["llava"])
    made = pytest.importorskip("jupyter_client.manager").KernelManager()
    made.kernel_spec.argv[0] = sys.executable
    made.start_kernel(cwd=str(folder), env={**os.environ, "PYTHONPATH": str(ROOT)})
    return made


def executed(notebook: Any, manager: Any) -> Any:
    """Run it in the kernel, with no names of another; its outputs are the present ones then. Raises for a cell that
    fails."""
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    client.execute_interactive("%reset -f", output_hook=str)  # which shows it nowhere
    client.stop_channels()
    run = pytest.importorskip("nbclient").NotebookClient
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # nbclient leaves its sockets to the collector
        done = run(notebook, km=manager, timeout=240, record_timing=False, coalesce_streams=True).execute(reset_kc=True)
        gc.collect()
    return done


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = kernel(tmp_path_factory.mktemp("kernel"))
    yield made
    made.shutdown_kernel(now=True)


def test_no_line_of_a_notebook_is_cut_off() -> None:
    """A page of JupyterLab shows about 110 characters of a line of code; the rest is behind a scroll bar."""
    for path in NOTEBOOKS:
        for cell in read(path)["cells"]:
            if cell["cell_type"] == "code":
                assert max(map(len, cell["source"].splitlines())) <= 110, (path.name, cell["source"])


def text(outputs: list[dict[str, Any]]) -> str:
    """What a cell shows, as text."""
    return "\n".join(each.get("text") or each.get("data", {}).get("text/plain", "") for each in outputs)


def shows_an_agent(shown: Shown) -> None:
    live, atlantis, events, approved = shown[2:6]
    assert live[0]["output_type"] == "display_data"
    assert "12 degrees and clear in Lima" in live[0]["data"]["text/html"]
    assert "no weather station in Atlantis" in text(atlantis)
    assert 'call:   {"a": 127, "b": 46}\nresult: 5842' in text(events)
    assert text(events).endswith("\nanswer: The multiply result: 5842\n")
    assert 'the call was denied: no sums today\n{"minutes": 10} -> ' in text(approved)


def shows_rows(shown: Shown) -> None:
    events, weekdays = text(shown[2]), text(shown[3])
    for row in ("budget review 2026-03-14", "team lunch 2026-04-02", "board meeting 2026-11-17"):
        assert row in events
    assert "Saturday" in weekdays


def shows_a_batch(shown: Shown) -> None:
    assert text(shown[1]) == "8 rows done, 0 failed\n"
    assert text(shown[2]).count('{"city": "') == 8
    again, more = text(shown[3]).splitlines()
    assert again == "8 rows done; tokens generated now: 0"
    assert more.startswith("10 rows done; tokens generated now: 1")


def shows_a_plot(shown: Shown) -> None:
    (plot,) = shown[-1]
    assert plot["data"]["image/png"]


def shows_both(shown: Shown) -> None:
    (beside,) = shown[1]
    assert beside["data"]["text/html"].count("<h4>") == 2
    with_, without = text(shown[2]).splitlines()
    assert "tokens, 66 of them reasoning" in with_
    assert "tokens,  0 of them reasoning" in without


def shows_first_steps(shown: Shown) -> None:
    cards = [cell[0]["data"]["text/html"] for cell in shown[1:-1]]
    turn, live, run, fields, rows, labels, sure, talk, counts = cards
    for card, city in ((turn, "Oslo"), (live, "Cairo"), (run, "Lima")):
        assert "<b>call</b> <code>get_weather</code>" in card
        assert city in card
    assert "temperature is 12, sky is clear" in run
    assert re.search(r">date</th><td[^>]*>2026-07-09<", fields)
    assert rows.count("get_weather") == 6
    assert re.search(r"% get_weather.*% multiply", labels, re.DOTALL)
    assert "<span" in sure
    assert "I am the tiny built-in model" in talk
    assert "completion tokens" in counts


def shows_pictures(shown: Shown) -> None:
    image, message, live, run, history = (shown[place][0]["data"] for place in (0, 1, 3, 4, 5))
    assert image["text/html"].startswith('<img src="data:image/png;base64,')
    before, _, after = message["text/html"].partition('<img src="data:image/png;base64,')
    assert "What is in this picture?" in before
    assert "Answer in one word." in after
    assert live["text/plain"].startswith("reasoning: ")
    for page in (run, history):
        assert page["text/html"].count("<img src=") == 1
        assert "image 160x96" in page["text/html"]


CHECKS: dict[str, Callable[[Shown], None]] = {
    "agent": shows_an_agent,
    "batch": shows_a_batch,
    "documents": shows_rows,
    "first_steps": shows_first_steps,
    "pictures": shows_pictures,
    "reasoning": shows_both,
    "speed": shows_a_plot,
}


def outputs(notebook: Any) -> Shown:
    return [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_should(path: Path, manager: Any) -> None:
    if path.stem in ("batch", "documents"):
        pytest.importorskip("pandas")
    if path.stem == "speed":
        pytest.importorskip("matplotlib")
    CHECKS[path.stem](outputs(executed(read(path), manager)))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_committed_outputs_are_small_and_those_of_the_cells(path: Path) -> None:
    notebook = read(path)
    assert path.stat().st_size < MOST_BYTES
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    CHECKS[path.stem](outputs(notebook))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        shared = kernel(Path(place))
        for each in NOTEBOOKS:
            pytest.importorskip("nbformat").write(executed(read(each), shared), each)
        shared.shutdown_kernel(now=True)
