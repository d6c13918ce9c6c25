"""What a chat template may be: a text, a path, or the name of one of ours; and some that leave out the question."""

import os
from pathlib import Path

import pytest

from engine import Engine
from engine.formats.families import builtin_families
from engine.formats.families.response_template import given_template
from engine.formats.template.chat_template import ChatTemplate
from engine.support import _data
from engine.support.errors import EngineWarning, FamilyError, TemplateError

MUTE = [
    "",
    "Hello",
    "qwen-3",
    "{{ bos_token }}",
    "{% for m in messages %}{{ m.role }}{% endfor %}",
    "{{ messages | length }}",
]
ODD = ["x" * 10**6, "../models", "/etc/passwd", "a/../qwen3", "\0", "", "qwen3.jinja", "con", "~"]


@pytest.mark.parametrize("name", _data.own_templates())
def test_the_name_of_a_template_of_ours_is_that_template(name: str) -> None:
    template = ChatTemplate.for_model("Hello", chat_template=name)
    assert template.source == _data.template_source(name)
    assert "USERTEXT" in template.render("USERTEXT").text


def test_chatml_makes_a_model_answer() -> None:
    with Engine.load(chat_template="chatml") as llm:
        assert llm.render("Hi").text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        assert llm.chat("Hi", max_tokens=3).usage.completion_tokens


@pytest.mark.parametrize("source", MUTE)
def test_a_template_without_the_question_is_refused_or_told(source: str) -> None:
    with pytest.raises(TemplateError, match=r"without the user's text.*('chatml'|did you mean 'qwen3')"):
        ChatTemplate.for_model(None, chat_template=source)
    with pytest.warns(EngineWarning, match=r"without the user's text.*'chatml'"):
        assert ChatTemplate.for_model(source).capabilities.mute


def test_a_template_that_refuses_the_probe_is_not_one_without_the_question() -> None:
    template = ChatTemplate.for_model(None, chat_template="{{ raise_exception('only lists') }}")
    assert not template.capabilities.mute


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_no_name_of_a_family_becomes_a_path(name: str) -> None:
    assert _data.template_source(name) is None
    with pytest.raises(FamilyError) as caught:
        builtin_families().get(name)
    assert len(str(caught.value)) < 5_000
    with pytest.raises(FamilyError):
        ChatTemplate.for_model("{{ messages[0].content }}", family=name)


@pytest.mark.parametrize("path", ["\0", "x\0.json", "x" * 10**6, "/dev/zero", "none.json", "."], ids=range(6))
def test_a_response_template_that_is_no_file_is_refused_by_name(path: str) -> None:
    with pytest.raises(FamilyError) as caught:
        given_template(path)
    assert len(str(caught.value)) < 2_000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_is_never_waited_for(tmp_path: Path) -> None:
    for name in ("a.jinja", "b.json"):
        os.mkfifo(tmp_path / name)
    for odd in (tmp_path / "a.jinja", Path("/dev/zero/a.jinja"), "\0.jinja"):
        with pytest.raises(TemplateError, match="cannot be read"):
            ChatTemplate.for_model(None, chat_template=odd)
    with pytest.raises(FamilyError, match="cannot be read"):
        given_template(tmp_path / "b.json")
