"""A projector of the Hub, by the name of its file."""

from pathlib import Path

from hub_server import Hub
from projector_files import KINDS, write_projector

from engine import Engine


def test_a_projector_is_named_by_its_file(hub: Hub, builtin_model_path: Path, tmp_path: Path) -> None:
    projector = write_projector(tmp_path / "mmproj.gguf", KINDS["llava"]).read_bytes()
    hub.add("own/repo", {"m-Q8_0.gguf": builtin_model_path.read_bytes(), "mmproj-F16.gguf": projector})
    with Engine.load("own/repo", projector="own/repo/mmproj-F16.gguf", family="qwen3") as llm:
        assert llm.complete("a", max_tokens=2, ignore_eos=True).finish_reason == "length"
