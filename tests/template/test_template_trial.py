"""A stranger's template runs in a child first: what hangs, dies or eats memory never reaches this process."""

import sys
from pathlib import Path

import pytest

from engine.errors import EngineWarning, TemplateError
from engine.template import trial
from engine.template.chat_template import ChatTemplate

GOOD = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
FIXED = {"bos_token": "", "eos_token": ""}


def test_a_good_template_passes_and_is_remembered(tmp_path: Path) -> None:
    trial.try_template(GOOD, FIXED, tmp_path / "passed")
    assert len(list((tmp_path / "passed").iterdir())) == 1
    trial.try_template(GOOD, FIXED, tmp_path / "passed", command=["/no/such/program"])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% if %}", "failed in a trial: The chat template has a syntax error at line 1"),
        ("{{ 'x' }", "failed in a trial"),
    ],
)
def test_a_broken_template_is_refused_and_not_remembered(source: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=words):
        trial.try_template(source, FIXED, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(TemplateError, match=r"did not finish within 0\.2 seconds"):
        trial.try_template(GOOD, FIXED, tmp_path, command=sleeper, seconds=0.2)


def test_a_child_that_dies_is_named(tmp_path: Path) -> None:
    dying = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    with pytest.raises(TemplateError, match="failed in a trial: exit status -9"):
        trial.try_template(GOOD, FIXED, tmp_path, command=dying)


LIMITED = "from engine.template import trial; trial._limit(); "


@pytest.mark.skipif(sys.platform == "win32", reason="this system limits no process from within")
def test_the_childs_memory_is_limited(tmp_path: Path) -> None:
    greedy = [sys.executable, "-c", LIMITED + "bytearray(2 << 30)"]
    with pytest.raises(TemplateError, match="failed in a trial: MemoryError"):
        trial.try_template(GOOD, FIXED, tmp_path, command=greedy)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="this system limits no process from within")
def test_the_childs_time_is_limited(tmp_path: Path) -> None:
    told = [sys.executable, "-c", LIMITED + "import resource as r, sys; sys.exit(str(r.getrlimit(r.RLIMIT_CPU)))"]
    with pytest.raises(TemplateError, match=rf"failed in a trial: \({trial.SECONDS}, {trial.SECONDS}\)"):
        trial.try_template(GOOD, FIXED, tmp_path, command=told)


def test_where_no_child_can_start_one_warning_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.warns(EngineWarning, match="could not be tried in a child process"):
        trial.try_template(GOOD, FIXED, tmp_path)


def test_models_templates_are_tried_and_ours_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def note(source: str, fixed: dict[str, str], passed: Path) -> None:
        tried.append(source)

    monkeypatch.setattr("engine.template.chat_template.try_template", note)
    ours = ChatTemplate(None, family="qwen3").source
    ChatTemplate.for_model(ours, trials=tmp_path)
    ChatTemplate.for_model(GOOD, named={"tool_use": GOOD + "!", "rag": "{% if %}"}, trials=tmp_path)
    ChatTemplate.for_model(GOOD)
    assert tried == [GOOD, GOOD + "!"]
