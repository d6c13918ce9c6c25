"""`llama-engine families`: the list, a row shown, a file of one's own tried; what the check finds."""

import json
import re
from pathlib import Path

import pytest
from fakes.response_templates import HERMES

from engine.cli import main
from engine.formats.check.family_check import check, row_check
from engine.formats.families import builtin_families
from engine.formats.families.detect import tables_of
from engine.support import _data

ROW = """\
[family.fable]
title = "Fable"
verified = "by hand"
like = ["plain", "think"]
detect.template = ["[[reason]]"]
format.start = "<|assistant|>"
format.stops = ["<|end|>"]
format.reasoning = { open = "[[reason]]", close = "[[/reason]]", history = "all", fields = ["reasoning_content"] }
format.tools = { shape = "tagged_json", call = ['<fn name="', "</fn>"], name_end = '">' }
"""
TEMPLATE = """\
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.reasoning_content %}[[reason]]{{ message.reasoning_content }}[[/reason]]{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<fn name="{{ call.function.name }}">{{ call.function.arguments | tojson }}</fn>
{%- endfor %}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fable.toml"
    path.write_text(ROW, encoding="utf-8")
    path.with_suffix(".jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


def changed(path: Path, old: str, new: str) -> Path:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_every_shipped_row_reads_back_what_it_describes() -> None:
    tables = tables_of()
    tried, untried = 0, 0
    for name in builtin_families().names():
        found = row_check(builtin_families().get(name), tables)
        assert [trial for trial in found.tried if trial.problem] == [], name
        tried += len(found.tried)
        untried += bool(found.untried)
        assert {field.name for field in found.fields if field.origin} >= {"format.stops", "format.control"}
    assert tried > 500
    assert untried < 20


def test_our_own_templates_pass_under_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "qwen3.toml"
    path.write_text('[family.qwen3]\nlike = "qwen3"\n', encoding="utf-8")
    template = _data.root() / "templates" / "qwen3.jinja"
    found = check(path, template)
    assert found.is_sound, found.text()
    assert found.template is not None
    assert found.template.recognised == "qwen3"
    assert len(found.template.tried) == 7


def test_a_sound_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families", "check", str(file), "--template", str(file.with_suffix(".jinja"))]) == 0
    assert capsys.readouterr().out.endswith("1 family: all is read back.\n")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"</fn>"]', '"</function>"]', "LOST call: read as "),
        ('open = "[[reason]]"', 'open = "[[think]]"', "LOST reasoning: read as "),
        ('template = ["[[reason]]"]', 'template = ["[[thinks]]"]', "recognised as none of this file's rows"),
        ('start = "<|assistant|>"', 'start = ""', 'Write format.start = "<|assistant|>"'),
    ],
)
def test_a_row_that_does_not_fit_the_template(
    file: Path, old: str, new: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(file, old, new)
    assert main(["families", "check", str(file), "--template", str(file.with_suffix(".jinja"))]) == 1
    out = capsys.readouterr().out
    assert complaint in out
    assert out.endswith("1 family: NOT all is read back; see above.\n")


def test_a_row_that_contradicts_itself_is_lost_without_a_template(file: Path) -> None:
    found = check(changed(file, "'\">' }", "'ok' }"))
    assert not found.is_sound
    assert "LOST call" in found.text()


def test_mistakes_are_all_printed_and_nothing_is_tried(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(changed(file, "title", "titel"), "name_end", "nameend")
    assert main(["families", "check", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == f"llama-engine: {file} has 3 mistakes:"
    assert all(line.startswith(f"{file}:") for line in lines[1:])
    assert main(["families", "check", str(file.with_name("none.toml"))]) == 1
    assert main(["families", "check", str(changed(file, "titel", "title"))]) == 1


def test_a_template_that_is_not_there_and_channels(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families", "check", str(file), "--template", "none.jinja"]) == 1
    assert "none.jinja cannot be read" in capsys.readouterr().err
    assert main(["families", "show", "gpt-oss"]) == 0
    out = capsys.readouterr().out
    assert "turns in channels are written by templates only" in out
    assert re.search(r"format\.channels\.recipient +\"to=\" +from gpt-oss", out)


def test_the_list_has_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families"]) == 0
    alone = capsys.readouterr().out
    assert main(["families", "list"]) == 0
    assert capsys.readouterr().out == alone
    names = [line.split()[0] for line in alone.partition("\n\n")[0].splitlines()[1:]]
    assert names == list(builtin_families().names())
    assert max(len(line) for line in alone.splitlines()) < 110


def test_a_file_of_families_serves_a_model(
    file: Path, builtin_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(builtin_model_path), "--family", str(file)]) == 0
    assert "family" in capsys.readouterr().out
    assert main(["inspect", str(builtin_model_path), "--family", str(changed(file, "title", "titel"))]) == 1
    assert "Did you mean `title`?" in capsys.readouterr().err


def test_a_response_template_is_compared(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`families check` tells what it reads otherwise than the row, and refuses what cannot be expressed."""
    stated = tmp_path / "stated.json"
    reasoning = {"open": "[[think]]", "close": "[[/think]]"}
    fields = {"reasoning_content": reasoning, "content": {"close": "<|end|>"}}
    stated.write_text(json.dumps({"start_anchor": "<|assistant|>", "fields": fields}), encoding="utf-8")
    command = ["families", "check", str(file)]
    given = ["--template", str(file.with_suffix(".jinja")), "--response-template", str(stated)]
    assert main([*command, *given]) == 0
    out = capsys.readouterr().out
    assert f"the response template in {stated} reads otherwise: reasoning and an answer is read as content" in out
    assert main([*command, *given[2:]]) == 1
    assert "give it with --template" in capsys.readouterr().err
    stated.write_text(json.dumps({"fields": fields}), encoding="utf-8")
    assert main([*command, *given]) == 1
    assert "start_anchor: it is missing" in capsys.readouterr().err


def test_a_response_template_on_the_command_line(
    tmp_path: Path, builtin_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = tmp_path / "tokenizer_config.json"
    stated.write_text(json.dumps({"response_template": HERMES}), encoding="utf-8")
    command = ["inspect", str(builtin_model_path), "--ctx", "512", "--set"]
    assert main([*command, f"response_template={stated}"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"response template +it is used, and reads the chat template's own turns", out)
    assert f"the response template in {stated} states the output" in out
    assert main([*command, f"response_template={tmp_path / 'none.json'}"]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err
    assert main([*command, f"response_template={stated}", "--family", "qwen3"]) == 1
    assert "leave one out" in capsys.readouterr().err
