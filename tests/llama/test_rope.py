"""YaRN and the other options of positions: checked against the file, completed, told, and what llama.cpp computes."""

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import model_files, model_zoo, vector_files
from gguf import GGUFWriter, RopeScalingType

from engine import Engine, LlamaOptions
from engine.cli import main
from engine.llama.gguf.gguf import GgufFile, read_gguf
from engine.llama.gguf.rope import beyond, positions, reach, rope_options, rope_params
from engine.llama.lib import library
from engine.llama.model import Model
from engine.llama.plan.plan import Machine, plan
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support.errors import RequestError


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    """Trained on 512 tokens."""
    return read_gguf(model_files.write(tmp_path_factory.mktemp("rope") / "m.gguf"))


def declaring(folder: Path, kind: RopeScalingType, factor: float, original: int = 0, trained: int = 512) -> GgufFile:
    def change(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(factor)
        if original:
            writer.add_rope_scaling_orig_ctx_len(original)

    shape = model_files.Shape(n_ctx=trained)
    return read_gguf(model_files.write(folder / f"{kind.name}{factor}{original}.gguf", shape=shape, change=change))


@pytest.mark.parametrize("kind", model_zoo.KINDS)
def test_architectures_rotate_as_llama_cpp_says(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model_zoo.model(kind).encoded())
    with Model.load(path) as model:
        by_library = library().llama_model_rope_type(model.handle) >= 0
        assert model.file.shape.rope.rotates == by_library


@pytest.mark.parametrize("name", ["rope_scaling_type", "yarn_orig_ctx", "rope_freq_base", "rope_freq_scale"])
@pytest.mark.parametrize("kind", ["mamba", "rwkv7", "gpt2", "bert"])
def test_a_model_without_rotary_positions_refuses_by_name(tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / "m.gguf"
    if kind == "bert":
        vector_files.write(path, vector_files.KINDS["bert-mean"])
    else:
        path.write_bytes(model_zoo.model(kind).encoded())
    value: Any = {"rope_scaling_type": "yarn", "yarn_orig_ctx": 256}.get(name, 0.5)
    reason = "learned positions" if kind in ("gpt2", "bert") else "no positions that rotate"
    with pytest.raises(RequestError, match=rf"{name}={value!r} .*{kind}.* has {reason}; leave it out"):
        Engine.load(path, preflight=False, llama=LlamaOptions(**{name: value}))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"yarn_orig_ctx": 512}, r"yarn_orig_ctx is an option of YaRN.*'linear'; pass rope_scaling_type=\"yarn\""),
        ({"rope_scaling_type": "none", "yarn_ext_factor": 1.0}, "yarn_ext_factor is an option of YaRN.*'none'"),
        ({"rope_scaling_type": "none", "rope_freq_scale": 0.5}, "rope_freq_scale=0.5 has no effect"),
        ({"rope_scaling_type": "yarn", "yarn_attn_factor": 0.5}, "unless yarn_ext_factor=0"),
        ({"rope_scaling_type": "yarn", "rope_freq_scale": 4.0}, "would shorten the context.*0.25"),
        ({"rope_scaling_type": "yarn", "yarn_beta_fast": 1.0, "yarn_beta_slow": 1.0}, "must be more than"),
    ],
)
def test_options_that_mean_nothing_are_refused(file: GgufFile, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        plan(file, ModelOptions(), ContextOptions(**options), Machine(None))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "x", True])
@pytest.mark.parametrize(
    "name",
    ["yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "rope_freq_base",
     "rope_freq_scale", "rope_scaling_type"],
)  # fmt: skip
def test_wrong_values_are_refused_before_anything_is_loaded(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=rf"^{name}="):
        ContextOptions(**{name: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx"])
def test_zero_is_no_value_of_yarn(name: str) -> None:
    with pytest.raises(RequestError, match=rf"^{name}=0"):
        ContextOptions(**{name: 0})  # pyright: ignore[reportArgumentType]


def test_yarn_is_completed_for_the_length_that_was_asked_for(file: GgufFile) -> None:
    made = rope_options(file, ContextOptions(n_ctx=2048, rope_scaling_type="yarn"))
    assert (made.yarn_orig_ctx, made.rope_freq_scale) == (512, 0.25)
    assert rope_options(file, made) == made
    assert reach(file, made) == 2048
    own = ContextOptions(n_ctx=2048, rope_scaling_type="yarn", rope_freq_scale=0.5)
    assert rope_options(file, own) == own, "what was given is kept"
    assert reach(file, own) == 1024
    other = rope_options(file, ContextOptions(n_ctx=2048, rope_scaling_type="yarn", yarn_orig_ctx=256))
    assert (other.yarn_orig_ctx, other.rope_freq_scale) == (256, 0.125)
    short = ContextOptions(n_ctx=512, rope_scaling_type="yarn")
    assert rope_options(file, short) == short, "nothing to stretch"
    assert rope_params(short) == {"rope_scaling_type": 2}
    assert rope_params(ContextOptions()) == {}


def test_the_default_length_is_what_the_given_factor_reaches(file: GgufFile) -> None:
    options = ContextOptions(rope_scaling_type="yarn", rope_freq_scale=0.25)
    assert plan(file, ModelOptions(), options, Machine(None)).n_ctx == 2048
    assert plan(file, ModelOptions(), ContextOptions(), Machine(None)).n_ctx == 512


def test_scaling_that_a_file_declares_counts(tmp_path: Path) -> None:
    asked = ContextOptions()
    yarn = declaring(tmp_path, RopeScalingType.YARN, 4.0, 512)
    assert (reach(yarn, asked), beyond(yarn, asked, 2048)) == (2048, "")
    assert "trained on 512 tokens, YaRN (as the file says) from 512 by 4 to 2,048" in positions(yarn, asked)
    assert "YaRN (as the file says)" in plan(yarn, ModelOptions(), asked, Machine(None)).summary
    included = declaring(tmp_path, RopeScalingType.YARN, 4.0, 128)  # the training length includes it
    assert (included.shape.rope, reach(included, asked)) == ((True, "yarn", 4.0, 128), 512)
    linear = declaring(tmp_path, RopeScalingType.LINEAR, 8.0)
    assert reach(linear, asked) == 512
    further = rope_options(linear, ContextOptions(n_ctx=1024, rope_scaling_type="yarn"))
    assert (further.yarn_orig_ctx, further.rope_freq_scale) == (64, 1 / 16)
    more = rope_options(yarn, ContextOptions(n_ctx=4096, yarn_beta_fast=16.0))
    assert (more.rope_scaling_type, more.rope_freq_scale) == ("yarn", 0.125)
    off = ContextOptions(rope_scaling_type="none")
    assert (reach(yarn, off), positions(yarn, off)) == (512, "trained on 512 tokens")


def test_a_length_that_is_not_reached_warns_with_the_way_out(file: GgufFile, caplog: pytest.LogCaptureFixture) -> None:
    way = 'pass llama=LlamaOptions(rope_scaling_type="yarn"), or n_ctx=512 at most'
    with Model.load(file.path) as model:
        for options, warned in (
            ({}, f"reach (trained on 512 tokens): beyond 512 tokens answers get worse; {way}"),
            ({"rope_scaling_type": "yarn"}, ""),
            ({"rope_scaling_type": "yarn", "rope_freq_scale": 0.5}, "from 512 by 2 to 1,024): beyond 1,024 tokens"),
            ({"rope_freq_scale": 0.25}, ""),
        ):
            caplog.clear()
            given: dict[str, Any] = options
            with caplog.at_level(logging.WARNING, logger="engine.llama"):
                model.backend(ContextOptions(n_ctx=2048, n_sequences=1, **given)).close()
            ours = [text for text in caplog.messages if text.startswith("n_ctx=")]
            assert len(ours) == bool(warned)
            assert warned in "".join(ours)


def test_fit_and_inspect_say_how_far_positions_reach(
    tmp_path: Path, file: GgufFile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "fit", str(file.path), "--ctx", "1024"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "The model is trained on 512 tokens. n_ctx=1,024 is more than" in shown
    yarn = declaring(tmp_path, RopeScalingType.YARN, 4.0, 512)
    assert main(["models", "fit", str(yarn.path), "--ctx", "2048"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "YaRN (as the file says) from 512 by 4 to 2,048." in shown
    assert "n_ctx=" not in shown
    with Engine.load(yarn.path, n_ctx=600, llama=LlamaOptions(rope_freq_base=5000.0)) as llm:
        assert "600 tokens a conversation, trained on 512 tokens, YaRN (as the file says)" in llm.inspect().text()


def test_an_adopted_llamas_scaling_is_kept(builtin_model_path: Path) -> None:
    import llama_cpp

    given = {"rope_scaling_type": 2, "yarn_orig_ctx": 256, "rope_freq_scale": 0.5}
    llama: Any = llama_cpp.Llama(str(builtin_model_path), n_ctx=512, verbose=False, **given)  # pyright: ignore[reportArgumentType]
    with Engine.from_llama(llama) as llm:
        assert "YaRN (as asked for) from 256 by 2 to 512" in llm.inspect().text()
    with Engine.from_llama(llama, llama=LlamaOptions(rope_scaling_type="none")) as llm:
        assert "YaRN" not in llm.inspect().text()
    with Engine.from_llama(llama, llama=LlamaOptions(rope_freq_scale=0.25)) as llm:
        assert "YaRN (as asked for) from 256 by 4 to 1,024" in llm.inspect().text()
    with pytest.raises(RequestError, match="main_gpu is an option of the weights"):
        Engine.from_llama(llama, llama=LlamaOptions(main_gpu=1))
    llama.close()


def test_an_embedding_model_reads_texts_of_four_times_its_training_length(tmp_path: Path) -> None:
    path = vector_files.write(tmp_path / "m.gguf", vector_files.KINDS["nomic-mean"])
    alone = vector_files.Alone(path, longest=1024, rope_scaling_type=2, yarn_orig_ctx=256, rope_freq_scale=0.25)
    plain = vector_files.Alone(path, longest=1024)
    text = [5 + number % 40 for number in range(1000)]
    with Engine.load(path, n_ctx=1024, llama=LlamaOptions(rope_scaling_type="yarn")) as llm:
        (vector,) = llm.embed([text], normalize=False)
        facts = llm.embedder.facts
    assert vector_files.cosine(vector, alone.vector(text)) > 0.9999
    assert vector_files.cosine(vector, plain.vector(text)) < 0.9999
    assert facts is not None
    assert (facts.longest, facts.positions) == (
        1024,
        "trained on 256 tokens, YaRN (as asked for) from 256 by 4 to 1,024",
    )
    alone.close()
    plain.close()


def _bare(path: Path, change: Callable[[Any], None], rows: list[Row]) -> Any:
    """The last row's logits by llama.cpp's calls alone."""
    import llama_cpp

    lib: Any = llama_cpp
    params = lib.llama_model_default_params()
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    context_params = lib.llama_context_default_params()
    context_params.n_threads = context_params.n_threads_batch = 1
    context_params.flash_attn_type, context_params.n_ubatch = 0, 256
    change(context_params)
    context = lib.llama_init_from_model(model, context_params)
    batch = lib.llama_batch_init(len(rows), 0, 1)
    for place, row in enumerate(rows):
        batch.token[place], batch.pos[place], batch.n_seq_id[place] = row.token, row.position, 1
        batch.seq_id[place][0], batch.logits[place] = 0, row.output
    batch.n_tokens = len(rows)
    assert lib.llama_decode(context, batch) == 0
    size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    address = ctypes.cast(lib.llama_get_logits_ith(context, len(rows) - 1), ctypes.POINTER(ctypes.c_float))
    logits = np.ctypeslib.as_array(address, (size,)).copy()
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return logits


def test_yarn_at_four_times_the_training_length_is_llama_cpps(builtin_model_path: Path) -> None:
    """At the far end of the context, where a token's position is far beyond the training length."""
    trained = read_gguf(builtin_model_path).shape.n_ctx_train
    rows = [Row(300 + number, 4 * trained - 64 + number, 0, number == 63) for number in range(64)]

    def yarn(params: Any) -> None:
        params.n_ctx, params.rope_scaling_type, params.yarn_orig_ctx = 4 * trained, 2, trained
        params.rope_freq_scale = 0.25

    def plain(params: Any) -> None:
        params.n_ctx = 4 * trained

    options = ContextOptions(n_ctx=4 * trained, n_sequences=1, n_ubatch=256, n_threads=1, rope_scaling_type="yarn")
    with Model.load(builtin_model_path) as model:
        backend = model.backend(options)
        backend.decode(rows)
        logits = backend.logits(63).copy()
        assert "rope_freq_scale=0.25" in backend.origin.rope
    assert np.array_equal(logits, _bare(builtin_model_path, yarn, rows))
    assert not np.allclose(logits, _bare(builtin_model_path, plain, rows), atol=1e-2)
    with Engine.load(n_ctx=4 * trained, llama=LlamaOptions(rope_scaling_type="yarn"), n_sequences=1) as llm:
        assert llm.chat("Hello!", max_tokens=4).finish_reason == "length"
        assert f"by 4 to {4 * trained:,}" in llm.inspect().text()
