"""`bench` and `completion`; options anywhere; help and exit codes."""

import argparse
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from engine.cli import main
from engine.cli.arguments import parser
from engine.cli.exit_codes import EXIT_CODES
from engine.cli.screen import wrapped

SMALL = ["--prompt", "32", "--answer", "4", "--streams", "2", "--rounds", "1", "--set", "n_threads=1"]


def test_bench_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str], builtin_model_path: Path) -> None:
    assert main(["bench", *SMALL, str(builtin_model_path)]) == 0
    rows = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["TOKENS PER SECOND"]
    names = ["prefill, 32 tokens", "decode, 1 stream", "decode, 2 streams"]
    assert [row[0] for row in rows[1:4]] == names
    assert all(float(row[1].replace(",", "")) > 0 for row in rows[1:4])
    assert main(["bench", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: len(each) for name, each in found["tokens_per_second"].items()} == dict.fromkeys(names, 1)
    assert main(["bench", "--rounds", "1", "none.gguf"]) == 1


def test_bench_takes_positive_counts_only() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--rounds", "0"])
    assert ended.value.code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_scripts_are_the_shells_own(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    written = capsys.readouterr().out
    names = ("families", "completion") if shell == "tcsh" else ("families", "--max-tokens", "--template")
    assert all(name in written for name in names)
    if shutil.which(shell) and shell != "tcsh":
        script = tmp_path / "script"
        script.write_text(written, encoding="utf-8")
        subprocess.run([shell, "-n", str(script)], check=True)


def test_bash_completes_commands_options_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for words, wanted in (
        (["llama-engine", "fam"], {"families"}),
        (["llama-engine", "families", "ch"], {"check"}),
        (["llama-engine", "chat", "--rea"], {"--reasoning"}),
    ):
        line = " ".join(f"'{word}'" for word in words)
        call = f"{script}\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words) - 1}\n_shtab_llama_engine\n"
        done = subprocess.run(
            [bash, "-c", call + 'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
        )
        assert set(done.stdout.split()) == wanted


def test_options_stand_anywhere() -> None:
    same = [
        ["run", "m.gguf", "Hello", "--ctx", "1", "--json"],
        ["run", "--ctx", "1", "m.gguf", "--json", "Hello"],
        ["run", "m.gguf", "--ctx", "1", "Hello", "--json"],
        ["run", "--json", "--ctx", "1", "m.gguf", "Hello"],
    ]
    first, *rest = [vars(parser().parse_args(line)) for line in same]
    assert (first["model"], first["prompt"], first["ctx"]) == ("m.gguf", "Hello", 1)
    assert all(other == first for other in rest)
    batch = parser().parse_args(["batch", "-m", "m.gguf", "in.jsonl", "--temperature", "0", "-o", "out.jsonl"])
    assert (batch.input, batch.output, batch.model) == ("in.jsonl", "out.jsonl", "m.gguf")
    removed = parser().parse_args(["models", "remove", "a/b", "--yes", "c/d"])
    assert removed.names == ["a/b", "c/d"]
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "m.gguf", "Hello", "again"])


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("run m.gguf Hello", {"model": "m.gguf", "prompt": "Hello"}),
        ("run Hello", {"model": None, "prompt": "Hello"}),
        ("run -m m.gguf Hello", {"model": "m.gguf", "prompt": "Hello"}),
        ("run Hello --model m.gguf", {"model": "m.gguf", "prompt": "Hello"}),
        ("run -p Hello m.gguf", {"model": "m.gguf", "prompt": "Hello"}),
        ("run --prompt Hello", {"model": None, "prompt": "Hello"}),
        ("run -m m.gguf -p Hello --ctx 1", {"model": "m.gguf", "prompt": "Hello", "ctx": 1}),
        ("run -m m.gguf -", {"model": "m.gguf", "prompt": "-"}),
        ("chat a b", {"models": ["a", "b"], "models_option": []}),
        ("chat -m a -m b", {"models": [], "models_option": ["a", "b"]}),
        ("inspect -m m.gguf", {"model": "m.gguf"}),
        ("inspect m.gguf", {"model": "m.gguf"}),
        ("inspect", {"model": None}),
        ("explain -m m.gguf -p Hello", {"model": "m.gguf", "prompt": "Hello"}),
        ("bench --model m.gguf", {"model": "m.gguf"}),
        ("embed m.gguf a b", {"model": "m.gguf", "texts": ["a", "b"]}),
        ("embed a -m m.gguf b", {"model": "m.gguf", "texts": ["a", "b"]}),
        ("embed -m m.gguf", {"model": "m.gguf", "texts": []}),
        ("rerank m.gguf q a b", {"model": "m.gguf", "query": "q", "texts": ["a", "b"]}),
        ("rerank -m m.gguf q a b", {"model": "m.gguf", "query": "q", "texts": ["a", "b"]}),
        ("rerank q -m m.gguf", {"model": "m.gguf", "query": "q", "texts": []}),
    ],
)
def test_options_name_the_model_and_the_prompt_as_well(line: str, wanted: dict[str, object]) -> None:
    found = vars(parser().parse_args(line.split()))
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run -m m.gguf", "required: PROMPT"),
        ("run", "required: PROMPT"),
        ("run -m m.gguf -p Hello again", "unrecognized arguments: again"),
        ("run -m m.gguf other.gguf Hello", "unrecognized arguments: Hello"),
        ("inspect -m m.gguf other.gguf", "unrecognized arguments: other.gguf"),
        ("embed", "required: MODEL"),
        ("rerank m.gguf", "required: QUERY"),
        ("rerank -m m.gguf", "required: QUERY"),
    ],
)
def test_what_is_missing_or_too_much_is_named(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(line.split())
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith(f"usage: llama-engine {line.split(maxsplit=1)[0]} "), "the usage of this command"


@pytest.mark.parametrize("line", [[], ["models"]])
def test_a_group_of_commands_alone_shows_its_help(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(" ".join(["usage: llama-engine", *line, "[-h]"]))
    assert ("suggest" if line else "chat") in out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rum m.gguf hi", "there is no 'rum'; did you mean 'run'?"),
        ("models sugest", "there is no 'sugest'; did you mean 'suggest'?"),
        ("families show qwen", "there is no 'qwen'; did you mean 'qwen3"),
        ("run m.gguf hi --temprature 1", "arguments: --temprature 1; did you mean '--temperature'?"),
        ("chat --sesion a", "unrecognized arguments: --sesion; did you mean '--session'?"),
        ("completion fihs", "choose from bash, zsh, tcsh"),
    ],
)
def test_the_nearest_of_what_there_is(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("qwen3:0.6b", "did you mean 'qwen3-0.6b'?"),
        ("owner/repo:Q4_K_M", "owner/repo:Q4_K_M is in the place of the prompt; add one: llama-engine run owner/repo"),
        ("owner/some-GGUF", "is in the place of the prompt"),
        ("m.gguf", "is in the place of the prompt"),
        ("and/or", "No model is named"),
        ("What is owner/repo:Q4_K_M?", "No model is named"),
    ],
)
def test_a_model_in_the_place_of_the_prompt(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", text]) == 1
    assert words in capsys.readouterr().err


def test_no_help_is_wider_than_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every command and subcommand; and each says what it does before it lists options."""
    monkeypatch.setenv("COLUMNS", "80")

    def commands(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
        yield one
        for action in one._actions:  # pyright: ignore[reportPrivateUsage]
            if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
                for inner in cast("dict[str, argparse.ArgumentParser]", action.choices).values():
                    yield from commands(inner)

    every = list(commands(parser()))
    assert len(every) > 15
    for one in every:
        text = one.format_help()
        assert max(map(len, text.splitlines())) <= 80, text
        assert not re.search("llama-$", text, re.MULTILINE), text
        about = text.split("\n\n")[1]
        assert about[0].isupper(), text
        assert about.endswith("."), text


def test_bench_says_which_round_is_measured(monkeypatch: pytest.MonkeyPatch, builtin_model_path: Path) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Tty()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["bench", *SMALL, str(builtin_model_path)]) == 0
    assert out.getvalue().startswith("\rmeasuring, round 1 of 1"), "before it is done"
    assert out.getvalue().endswith("\rmeasured 1 round\n")


def test_prose_on_a_terminal_is_wrapped_between_words() -> None:
    text = "There is no command /foo. " * 8 + "/a/path/without/an/end/" * 8 + " llama-engine chat"
    rows = wrapped(text, 40, 4).split("\n")
    assert " ".join(" ".join(rows).split()) == text
    assert all(len(row) <= 40 or " " not in row.strip() for row in rows)
    assert all(row.startswith("    ") for row in rows[1:])
    assert wrapped("a\n\nb", 40) == "a\n\nb"
    assert wrapped("NAME".ljust(44) + "some words that follow", 80, 44).split("\n")[1:] == []
    assert wrapped("NAME".ljust(44) + "some words that follow to the end", 66, 44) == (
        "NAME".ljust(44) + "some words that follow\n" + " " * 44 + "to the end"
    )
    assert wrapped("one two", 4, hang=30) == "one\ntwo", "no indent where there is no room"


def test_help_has_examples_and_the_table_of_exit_codes(
    capsys: pytest.CaptureFixture[str], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    page = (repository / "docs" / "guides" / "command-line.md").read_text(encoding="utf-8")
    for code, meaning in EXIT_CODES.items():
        assert f" {code} {meaning} " in " ".join([*out.split(), ""])
        assert f"\n| {code} | {meaning} |\n" in page
    commands = re.findall(r"^    (\w+) ", out.partition("options:")[0], re.MULTILINE)
    assert {"chat", "families", "bench", "doctor"} <= set(commands)
    for command in commands:
        assert f"\n| `{command}` | " in page
    told = re.findall(r"^  llama-engine (\w+)", out, re.MULTILINE)
    assert set(told) <= {*commands, "COMMAND"}
