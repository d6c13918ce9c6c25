"""The truth table: what its loader refuses, how rows inherit, how a model is recognised."""

from pathlib import Path

import pytest

from engine.errors import FamilyError
from engine.events import fold
from engine.families import Families, builtin_families
from engine.parsing import Parser

OWN = """
[family.mine]
title = "Mine"
verified = "by hand"
like = "qwen3"
respell = [["tool_call", "call"]]

[family.mine.detect]
template = ["<|mine|>"]

[family.mine.format]
reasoning = false
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_ones_own_may_be_like_a_shipped_family(tmp_path: Path) -> None:
    own = Families.load(write(tmp_path, OWN))
    format_ = own.get("mine").format
    assert format_.reasoning is None
    assert format_.tools is not None
    assert format_.tools.section == ("\n<call>\n", "\n</call>")
    text = 'Hi\n<call>\n{"name": "f", "arguments": {}}\n</call>'
    parser = Parser(own.get("mine"))
    completion = fold([*parser.feed(text), *parser.close()])
    assert (completion.content, [call.name for call in completion.tool_calls]) == ("Hi", ["f"])


def test_rows_of_ones_own_win(tmp_path: Path) -> None:
    both = builtin_families().extended(Families.load(write(tmp_path, OWN)))
    assert both.detect("{{ '<|mine|>' }}").family.name == "mine"
    assert both.names()[0] == "mine"
    assert set(both.names()) == {"mine", *builtin_families().names()}


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ('title = "Mine"', 'title = "Mine"\nshoe_size = 43', 4, "Extra inputs"),
        ('template = ["<|mine|>"]', "template = 7", 9, "valid tuple"),
        ("reasoning = false", "reasoning = { open = 7 }", 12, "valid string"),
        (
            'title = "Mine"\nverified = "by hand"\nlike = "qwen3"\nrespell = [["tool_call", "call"]]',
            "",
            2,
            "Field required",
        ),
        ("reasoning = false", 'tools = { shape = "round" }', 12, "Input should be 'json'"),
        ("reasoning = false", 'tools = { shape = "tagged_json", section = ["", ""] }', 12, "needs call"),
    ],
)
def test_mistakes_are_named_by_line(tmp_path: Path, old: str, new: str, line: int, complaint: str) -> None:
    path = write(tmp_path, OWN.replace(old, new))
    with pytest.raises(FamilyError, match=complaint) as caught:
        Families.load(path)
    assert str(caught.value).startswith(f"{path}:{line}: [family.mine")


def test_channels_and_tools_exclude_each_other(tmp_path: Path) -> None:
    both = OWN.replace('like = "qwen3"', 'like = "gpt-oss"').replace("reasoning = false", "")
    both += '[family.mine.format.tools]\nshape = "json"\nsection = ["<a>", "</a>"]\n'
    with pytest.raises(FamilyError, match="exclude each other"):
        Families.load(write(tmp_path, both))


def test_circles_unknown_names_and_what_is_no_toml(tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match="leads nowhere"):
        Families.load(write(tmp_path, OWN.replace('like = "qwen3"', 'like = "mine"')))
    with pytest.raises(FamilyError, match="leads nowhere"):
        Families.load(write(tmp_path, OWN.replace('like = "qwen3"', 'like = "nobody"')))
    with pytest.raises(FamilyError, match="unknown tables"):
        Families.load(write(tmp_path, "[families]\n"))
    with pytest.raises(FamilyError, match="cannot be read as TOML"):
        Families.load(write(tmp_path, "family = ["))
    with pytest.raises(FamilyError, match="cannot be read"):
        Families.load(tmp_path / "absent.toml")
    with pytest.raises(FamilyError, match="no family 'nobody'"):
        builtin_families().get("nobody")


def test_without_a_template_architecture_and_name_decide() -> None:
    families = builtin_families()
    assert families.detect(None, "qwen3", "Qwen3 0.6B").family.name == "qwen3"
    assert families.detect(None, "llama", "Meta Llama 3.1 8B").family.name == "llama-3"
    assert families.detect(None, "gpt-oss", "").family.name == "gpt-oss"
    unknown = families.detect(None, "unheard-of", "x")
    assert unknown.family.name == "content-only"
    assert "no family in models.toml" in unknown.reason
    assert "Qwen3 0.6B" in families.detect(None, "qwen3", "Qwen3 0.6B").reason
