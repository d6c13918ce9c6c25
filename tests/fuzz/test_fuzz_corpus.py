"""The inputs of tests/fuzz_corpus, tried again: what fuzzing found stays mended (`python benchmarks/fuzz.py`)."""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from attacks import fuzzing
from attacks.fuzz_targets import TARGETS
from attacks.fuzzing import CORPUS, MOST_BYTES, MOST_INPUTS, Lines, Target, always, fault_of, fuzz

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the limit of time is a signal")


@pytest.mark.parametrize("name", TARGETS)
def test_what_fuzzing_found_stays_mended(name: str) -> None:
    target = TARGETS[name]
    kept = target.kept()
    with target.opened() as attempt:
        faults = {file: fault for file, data in kept.items() if (fault := fault_of(attempt, data))}
    assert not faults


def test_corpora_are_small_and_of_known_targets() -> None:
    """The corpus of a target may be empty: its seeds then reach all that was ever reached."""
    names = {path.name for path in CORPUS.iterdir()}
    assert names <= TARGETS.keys()
    for name in names:
        kept = TARGETS[name].kept()
        assert len([name for name in kept if not name.startswith("found-")]) <= MOST_INPUTS
        assert max(map(len, kept.values()), default=0) <= MOST_BYTES


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_s_modules_are_there(name: str) -> None:
    assert all((fuzzing.ROOT / "engine" / module).exists() for module in TARGETS[name].modules)
    assert Lines(TARGETS[name].modules).all


def planted(data: bytes) -> None:
    """Has a fault behind a door that only coverage finds step by step."""
    if data[:1] == b"\x01":
        if data[1:2] == b"\x02":
            if data[2:3] == b"\x03":
                raise LookupError("the fault behind 3 steps")
            return
        return


def changed(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    made = bytearray(data or b"\0")
    made[chance.randrange(len(made))] = chance.randrange(6)
    return bytes(made) if chance.random() < 0.8 else bytes(made[:-1])


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target whose lines are those of this file, with a corpus of its own."""
    monkeypatch.setattr(fuzzing, "CORPUS", tmp_path)
    here = str(Path(__file__).relative_to(fuzzing.ROOT / "tests"))
    return Target("planted", (f"../tests/{here}",), ".bin", lambda: [bytes(3)], changed, always(planted))


def test_coverage_leads_to_a_fault_which_is_kept_small(target: Target) -> None:
    found = fuzz(target, 3.0, seed=1)
    (fault,) = found.faults
    assert fault == "LookupError: the fault behind .. steps"
    assert found.faults[fault] == b"\x01\x02\x03"
    assert [data for name, data in target.kept().items() if name.startswith("found-")] == [b"\x01\x02\x03"]
    assert found.corpus == len(target.kept())
    assert 0 < found.reached < found.lines


def _unchanged(data: bytes, _chance: random.Random, _pool: Sequence[bytes]) -> bytes:
    return data


def test_a_run_goes_on_from_the_corpus(target: Target) -> None:
    fuzz(target, 3.0, seed=1)
    again = fuzz(replace(target, changed=_unchanged), 0.0, seed=2)
    assert again.faults
    assert again.tried >= 2


def test_an_input_that_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt(data: bytes) -> None:
        while data:
            try:
                list(range(1000))
            except Exception:  # noqa: BLE001 - as code that swallows errors does
                continue

    monkeypatch.setattr(fuzzing, "SECONDS", 0.2)
    assert fault_of(attempt, b"x").startswith("HangError")
    assert not fault_of(attempt, b"")


def test_lines_of_functions_count(tmp_path: Path) -> None:
    lines = Lines(("tools/json_values.py",))
    assert not lines.reached
    with lines.traced():
        from engine.tools.json_values import size

        size({"a": [1]})
    assert 0 < len(lines.reached) < len(lines.all)
    assert lines.forget()
    assert not lines.reached
