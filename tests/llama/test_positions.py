"""Models whose positions were learned: llama.cpp ends the process at a token behind the last."""

from pathlib import Path

import pytest
from files import model_zoo
from files.gguf_bytes import U32

from engine.llama.gguf.gguf import read_gguf
from engine.llama.model import Model
from engine.llama.params import position_limit
from engine.runtime.loop.config import ContextOptions
from engine.support.errors import RequestError


def test_a_context_holds_no_more_tokens_than_there_are_positions(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model_zoo.model("gpt2").encoded())
    file = read_gguf(path)
    assert file.shape.n_positions == model_zoo.CONTEXT == 512
    assert position_limit(file, ContextOptions()) == position_limit(file, ContextOptions(n_ctx=300)) == 512
    with pytest.raises(
        RequestError, match=r"n_ctx=513 is more than .* it has learned 512 positions.*n_ctx=512 at most"
    ):
        position_limit(file, ContextOptions(n_ctx=513))


def test_positions_for_less_than_the_smallest_context(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model_zoo.model("gpt2", sizes={"C": 100}).put("gpt2.context_length", U32, 100).encoded())
    with pytest.raises(RequestError, match=r"it has learned 100 positions, .* use another model"):
        position_limit(read_gguf(path), ContextOptions())


def test_computed_positions_are_no_limit(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model_zoo.model("llama").encoded())
    assert position_limit(read_gguf(path), ContextOptions(n_ctx=1 << 20)) is None


def test_the_default_context_has_positions_too(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model_zoo.model("gpt2", sizes={"C": 300}).put("gpt2.context_length", U32, 300).encoded())
    with Model.load(path) as model:
        assert model.backend(ContextOptions(n_sequences=1)).info.n_ctx == 256
