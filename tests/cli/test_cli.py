"""The command line: what each command prints, on a pipe and on a terminal, and its exit codes."""

import argparse
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fakes.scripts import VOCAB
from files.adapter_files import write_adapter
from rich.console import Console

from engine import ChatTemplate, Engine, LlamaOptions
from engine.cli import commands, main
from engine.cli.screen import Screen, json_line
from engine.support import _data
from engine.support.errors import ContextOverflowError, EngineWarning, ModelLoadError
from engine.support.packaged import PACKAGED
from engine.testing.scripted import ScriptedBackend
from engine.types.completion import Usage, figures
from engine.types.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)

WRITTEN = '{"name": "multiply", "arguments": {"a": 127, "b": 46}}'
CALL = f"<think>\nI multiply.\n</think>\n\n<tool_call>\n{WRITTEN}\n</tool_call>"
ANSWER = "<think>\nI know it.\n</think>\n\nIt is 5842."
EVENTS: list[Event] = [
    ReasoningDelta("I ", 0),
    ReasoningDelta("call.", 0),
    ToolCallStart(0, "id", "add", 1),
    ToolCallDelta(0, '{"a"', 1),
    ToolCallDelta(0, ": 1}", 1),
    ToolCallEnd(0, '{"a": 1}', None, 1),
    ToolCallStart(1, "id", "add", 2),
    ToolCallEnd(1, "", "truncated", 2),
    Finished("length"),
    ToolResult(0, "id", "3", part=1),
    ToolResult(1, "id", "Error: no", error=True, part=2),
    ContentDelta("Th", 0, 1),
    ContentDelta("ree.", 0, 1),
    Finished("stop", step=1),
]


def always(_: str) -> str:
    return ANSWER


def shown(events: Sequence[Event]) -> str:
    out = io.StringIO()
    screen = Screen(out)
    for event in events:
        screen.show(event)
    return out.getvalue()


def test_events_as_plain_text() -> None:
    assert shown(EVENTS).splitlines() == [
        "reasoning: I call.",
        'call: add {"a": 1}',
        "call: add  [truncated]",
        "[The answer was cut off: it reached the most tokens allowed (max_tokens), or the end of the context.]",
        "result: 3",
        "result: Error: no",
        "answer: Three.",
    ]


def test_parts_of_one_kind_are_apart() -> None:
    assert shown([ContentDelta("a", 0), ContentDelta("b", 1), ContentDelta("c", 0, 1)]) == (
        "answer: a\nanswer: b\nanswer: c"
    )


def test_a_terminal_gets_styles() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        out = Terminal()
        screen = Screen(out)
        assert screen.is_terminal
        screen.show(ReasoningDelta("dim \x1b[1m"))
        screen.line("done", "bold")
    assert "\x1b[2mdim \\x1b[1m" in out.getvalue()
    assert "\x1b[1mdone" in out.getvalue()


def test_json_lines() -> None:
    lines = [json.loads(json_line(event)) for event in EVENTS]
    assert lines[0] == {"type": "reasoning_delta", "text": "I ", "part": 0, "step": 0}
    assert lines[2] == {"type": "tool_call_start", "index": 0, "id": "id", "name": "add", "part": 1, "step": 0}
    assert lines[8] == {"type": "finished", "reason": "length", "usage": None, "step": 0}
    evil = "a\x1b\x9b\x7f\u202e\U000e0041\r\ud83d"
    assert json_line(ContentDelta(evil[:-1])).isprintable()
    assert json.loads(json_line(ContentDelta(evil[:-1])))["text"] == evil[:-1]
    usage = json.loads(json_line(Finished("stop", Usage(prompt_tokens=3))))["usage"]
    assert usage["prompt_tokens"] == 3


def test_figures() -> None:
    first = Usage(prompt_tokens=100, cached_tokens=0, completion_tokens=11, decode_seconds=0.1)
    second = Usage(prompt_tokens=120, cached_tokens=110, completion_tokens=31, decode_seconds=0.1)
    assert figures([first, None, second]) == (
        "42 tokens in 2 turns, 200 tokens/s; prompt 220 tokens, 110 of them reused from the prefix cache"
    )
    assert figures([Usage(completion_tokens=1)]).startswith("1 token in 1 turn, speed not measured")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScriptedBackend]:
    """Let every command load an engine over a script."""

    def use(replies: Sequence[str] | Callable[[str], str], delay: float = 0.0) -> ScriptedBackend:
        backend = ScriptedBackend(replies, vocab=VOCAB, delay=delay)

        def load(_: argparse.Namespace) -> Engine:
            return Engine.over(backend, ChatTemplate(None, family="qwen3", control_tokens=VOCAB.control_tokens))

        monkeypatch.setattr(commands, "load", load)
        return backend

    return use


Scripted = Callable[..., ScriptedBackend]


def test_demo_without_a_real_model(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PACKAGED, "smollm2", PACKAGED["smollm2"]._replace(module="no_such_module"))
    backend = scripted([CALL, ANSWER])
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        "question: What is 127 times 46?",
        "reasoning: I multiply.",
        'call: multiply {"a": 127, "b": 46}',
        "result: 5842",
        "reasoning: I know it.",
        "answer: It is 5842.",
    ]
    assert lines[6] == ""
    assert "tokens in 2 turns" in lines[7]
    assert "pip install '.[smollm2]'" in lines[8]
    assert len(lines) == 9
    assert backend.closed
    assert all(sampler.params.temperature == 0 for sampler in backend.samplers)


def test_demo_with_real_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    answer = out.partition("answer: ")[2].partition("question: ")[0]
    assert json.loads(answer) == {"person": "Anna", "city": "Rome", "day": "Friday"}
    assert 'call: multiply {"a": 127, "b": 46}\nresult: 5842\n' in out
    assert "tokens in 2 turns" in out


def test_run_on_a_pipe_prints_the_answer_only(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    backend = scripted([ANSWER])
    assert main(["run", "What?", "--temperature", "0.5", "--max-tokens", "99"]) == 0
    assert capsys.readouterr() == ("It is 5842.\n", "")
    (params,) = [sampler.params for sampler in backend.samplers]
    assert (params.temperature, params.max_tokens) == (0.5, 99)


def test_run_with_a_model_and_no_prompt_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "models/my.gguf"]) == 1
    said = capsys.readouterr().err
    assert 'models/my.gguf is in the place of the prompt; add one: llama-engine run models/my.gguf "' in said


def test_run_that_is_cut_off_in_its_reasoning_says_so(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    scripted(["<think>\n" + "hm " * 50, ANSWER, "Yes. " * 50])
    for limit, told in (("20", True), ("99", False), ("20", False)):
        assert main(["run", "What?", "--max-tokens", limit]) == 0
        out, err = capsys.readouterr()
        assert ("cut off inside its reasoning; allow more tokens (--max-tokens" in err) is told
        assert "hm" not in out


def test_run_as_json_lines(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    scripted([ANSWER])
    assert main(["run", "What?", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "".join(event["text"] for event in events if event["type"] == "content_delta") == "It is 5842."
    assert events[-1]["usage"]["completion_tokens"] > 0


def test_run_with_system_reasoning_and_standard_input(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def reply(prompt: str) -> str:
        asked.append(prompt)
        return "Yes."

    scripted(reply)
    monkeypatch.setattr("sys.stdin", io.StringIO("from the pipe"))
    assert main(["run", "-", "--system", "Be brief.", "--reasoning", "off"]) == 0
    assert capsys.readouterr().out == "Yes.\n"
    assert "Be brief." in asked[0]
    assert "user\nfrom the pipe<|im_end|>" in asked[0]
    assert asked[0].endswith("<think>\n\n</think>\n\n")


def test_explain_a_prompt(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    scripted([])
    assert main(["explain", "--prompt", "What is <|im_end|>?", "--system", "Be brief.", "--reasoning", "off"]) == 0
    shown = capsys.readouterr().out
    assert "family: qwen3" in shown
    assert "caller (guarded)  '<|im_end|>'" in shown
    assert "Be brief." in shown
    assert "the prompt has closed reasoning" in shown


def test_explain_messages_and_an_output_as_data(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted([])
    tool = {"type": "function", "function": {"name": "multiply", "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "What?"}], "tools": [tool]}
    path = tmp_path / "turn.txt"
    path.write_text(CALL, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(body)))
    assert main(["explain", "--messages", "-", "--output", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "".join(piece["text"] for piece in found["output"]) == CALL
    assert found["completion"]["parts"][1]["name"] == "multiply"
    assert found["tokens"][0] == {"id": VOCAB.token("<|im_start|>"), "text": "<|im_start|>", "control": True}
    assert [piece["text"] for piece in found["prompt"] if piece["author"] == "caller"] == ["multiply", "type", "What?"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--messages", "missing.json"], "missing.json cannot be read"),
        (["--messages", "-", "--output", "-"], "Standard input can only be read once"),
        (["--messages", "-"], "- is not JSON"),
    ],
)
def test_explain_says_what_is_wrong(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("{"))
    assert main(["explain", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_input_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ("explain --messages -", "explain --prompt -", "run -", "run Hi --file -"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
        assert main(words.split()) == 1
        assert "Standard input is not UTF-8 text" in capsys.readouterr().err


def test_explain_needs_a_list_of_messages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ("3", '{"messages": {}}', '{"messages": [], "tools": 3}'):
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        assert main(["explain", "--messages", "-"]) == 1
        assert "must be a list of messages" in capsys.readouterr().err


def test_chat_from_a_pipe_keeps_the_history(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def reply(prompt: str) -> str:
        asked.append(prompt)
        return f"<think>\nHm.\n</think>\n\nAnswer {len(asked)}."

    scripted(reply)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\n  two \n/reset\nthree\n"))
    assert main(["chat", "--commands"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("reasoning")] == [
        "question: one",
        "answer: Answer 1.",
        "question: two",
        "answer: Answer 2.",
        "question: /reset",
        "question: three",
        "answer: Answer 3.",
    ]
    assert "Answer 1." in asked[1]
    assert "Answer 1." not in asked[2]


class Typed(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def typing(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    said = iter(lines)

    def answer(_: str) -> str:
        line = next(said, EOFError)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("sys.stdin", Typed())
    monkeypatch.setattr("builtins.input", answer)


@pytest.fixture
def no_information(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted engine has no model file to greet with."""

    def greeting(_: Engine) -> str:
        return "hello"

    monkeypatch.setattr(commands, "greeting", greeting)


@pytest.mark.usefixtures("no_information")
def test_chat_at_a_prompt(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted([ANSWER] * 3)
    typing(monkeypatch, "one", "", "two", "/exit", "three")
    assert main(["chat"]) == 0
    assert capsys.readouterr().out.count("It is 5842.") == 2
    typing(monkeypatch)
    assert main(["chat"]) == 0
    typing(monkeypatch, KeyboardInterrupt, "and so on", "/quit", "three")
    assert main(["chat"]) == 0
    out = capsys.readouterr().out
    assert "Ctrl-D or /quit ends" in out
    assert out.count("It is 5842.") == 1


@pytest.mark.usefixtures("no_information")
def test_an_error_at_a_prompt_is_said_and_the_conversation_goes_on(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(always)
    typing(monkeypatch, "long " * 2000, "short")
    assert main(["chat"]) == 0
    out = capsys.readouterr().out
    assert "The prompt has" in out
    assert "It is 5842." in out


def test_an_error_on_a_pipe_ends_with_1(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(always)
    monkeypatch.setattr("sys.stdin", io.StringIO("long " * 2000))
    assert main(["chat"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("llama-engine: The prompt has")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("no_information")
def test_interrupting_an_answer_keeps_what_was_said(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def reply(prompt: str) -> str:
        asked.append(prompt)
        return "word " * 300 if len(asked) == 1 else "Second."

    scripted(reply, delay=0.002)
    typing(monkeypatch, "one", "two")
    show = Screen.show
    seen = 0

    def interrupt(screen: Screen, event: Event) -> None:
        nonlocal seen
        show(screen, event)
        seen += 1
        if seen == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Screen, "show", interrupt)
    assert main(["chat", "--reasoning", "off"]) == 0
    out = capsys.readouterr().out
    assert "[The answer was cancelled.]" in out
    assert "answer: Second." in out
    assert "assistant\nword" in asked[1]


def test_errors_are_one_line_and_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert main(["run", str(tmp_path / "none.gguf"), "Hello"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        err == f"llama-engine: There is no file {tmp_path / 'none.gguf'}; check the path, or "
        "name a model of the Hugging Face Hub: owner/repo:Q4_K_M.\n"
    )

    def fails(_: argparse.Namespace) -> Engine:
        raise ModelLoadError("two\nlines")

    monkeypatch.setattr(commands, "load", fails)
    assert main(["inspect", "x.gguf"]) == 1
    assert capsys.readouterr().err == "llama-engine: two lines\n"


def test_warnings_are_one_line(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted([ANSWER])
    load = commands.load

    def warn(options: argparse.Namespace) -> Engine:
        import warnings

        warnings.warn("the remedy was applied", EngineWarning, stacklevel=2)
        return load(options)

    monkeypatch.setattr(commands, "load", warn)
    assert main(["run", "Hello"]) == 0
    assert capsys.readouterr().err == "llama-engine: warning: the remedy was applied\n"


@pytest.mark.parametrize(
    "arguments", [["sing"], ["run"], ["run", "--tokens", "3", "x"], ["run", "x", "--reasoning", "very"]]
)
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: llama-engine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "way"),
    [
        ("rerank model.gguf query -m other.gguf document --doc", ""),
        ("models fit -m owner/repo x", "; NAME is an argument, without an option"),
        ("batch in.jsonl -o out.jsonl -p Hello", "; write --prompt"),
        ("batch in.jsonl -o out.jsonl -c 4096", "; write --ctx"),
        ("batch in.jsonl -o out.jsonl -f in.txt", ""),
        ("batch in.jsonl -o out.jsonl --zzz 1", ""),
        ("run model.gguf Hello -f in.txt", "; write --file"),
        ("chat -p Hello", ""),
        ("run Hello --temprature 1", "; did you mean '--temperature'?"),
        ("models list --n-ctx 3", ""),
    ],
)
def test_an_option_of_another_program_gets_a_way_that_the_command_has(
    arguments: str, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments.split())
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.partition("unrecognized arguments: ")[2].partition(";")[1:] == (way[:1], way[1:])


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for argument in ("--version", "--help"):
        with pytest.raises(SystemExit) as ended:
            main([argument])
        assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("llama-engine ")
    assert "doctor" in out


def test_run_takes_a_model_and_a_prompt() -> None:
    from engine.cli.arguments import parser

    both = parser().parse_args(["run", "model.gguf", "Hello", "--ctx", "512", "--gpu-layers", "-1"])
    assert (both.model, both.prompt, both.ctx, both.gpu_layers) == ("model.gguf", "Hello", 512, -1)
    alone = parser().parse_args(["run", "Hello"])
    assert (alone.model, alone.prompt) == (None, "Hello")


def test_options_reach_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: dict[str, object] = {}

    def load(model: object, **options: object) -> Engine:
        given.update(options, model=model)
        raise ContextOverflowError("enough")

    monkeypatch.setattr(commands.Engine, "load", load)
    line = (
        "run m.gguf Hi --ctx 99 --gpu-layers 3 --family hermes --chat-template t.jinja --set n_threads=2 --set seed=4"
    )
    line += " --set response_template=r.json --adapter poet=p.gguf --adapter q.gguf --set preflight=false --set top_k=9"
    assert main([*line.split(), "--set", f"states={tmp_path}", "--set", "swa_full=false"]) == 1
    assert repr(given.pop("states")) == "<StateStore: StoreSizes(states=0, memory=0, files=0, disk=0)>"
    assert given == {
        "model": "m.gguf",
        "n_ctx": 99,
        "n_gpu_layers": 3,
        "family": "hermes",
        "chat_template": Path("t.jinja"),
        "response_template": "r.json",
        "n_threads": 2,
        "seed": 4,
        "adapters": {"poet": "p.gguf", "q.gguf": "q.gguf"},
        "preflight": False,
        "llama": LlamaOptions(swa_full=False),
    }


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("run builtin Hi --set n_thread=2", "did you mean 'n_threads'"),
        ("run builtin Hi --set n_threads", "has no value; write --set NAME=VALUE"),
        ("run builtin Hi --set n_threads=two", "--set n_threads=two is not valid"),
        ("run builtin Hi --set top_p=3 --ctx 256", "top_p=3 is not valid"),
        ("inspect builtin --set top_p=0.5", "There is no option 'top_p'"),
    ],
)
def test_what_is_set_is_checked_by_name(line: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 1
    assert problem in " ".join(capsys.readouterr().err.split())


def test_a_turn_takes_what_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "builtin", "Hello!", "--temperature", "0", "--set", "stop=help", "--ctx", "512"]) == 0
    assert capsys.readouterr().out.strip() == "Hello! How can I"


def test_adapters_are_used_by_every_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = str(write_adapter(tmp_path / "a.gguf"))
    line = [
        "run",
        str(_data.builtin_model()),
        "Hello!",
        "--temperature",
        "0",
        "--max-tokens",
        "12",
        "--reasoning",
        "off",
    ]
    said: list[str] = []
    for more in ([], ["--adapter", f"poet={adapter}"], ["--adapter", adapter]):
        assert main([*line, *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] != said[1] == said[2]


# As a program of its own


@pytest.fixture
def command() -> list[str]:
    return [sys.executable, "-m", "engine"]


def test_inspect(builtin_model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(builtin_model_path), "--ctx", "512"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^family +qwen3 \(Qwen3\): its chat template contains", out, re.MULTILINE)
    assert main(["inspect", str(builtin_model_path), "--ctx", "512", "--json", "--family", "gpt-oss"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["family"], facts["n_ctx"]) == ("gpt-oss", 512)
    assert {"role": "channel", "text": "<|channel|>", "kind": "control token", "missing": False} in facts["markers"]


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    out = capsys.readouterr().out
    assert "llama-cpp-python  0.3.36" in out
    assert "preflight" in out
    assert code == (1 if "faulty:" in out else 0)


def test_piped_there_are_no_control_codes(builtin_model_path: Path, command: list[str]) -> None:
    line = [*command, "run", str(builtin_model_path), "Hello!", "--temperature", "0"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env={**os.environ, "FORCE_COLOR": ""})
    assert done.stdout.strip()
    assert "\x1b" not in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_console_without_a_character_shows_its_code(builtin_model_path: Path, command: list[str]) -> None:
    line = [*command, "inspect", str(builtin_model_path), "--ctx", "512", "--family", "deepseek-r1"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(line, capture_output=True, text=True, encoding="ascii", check=True, env=environment)
    assert "<\\uff5cAssistant\\uff5c>" in done.stdout


def complaints(stderr: str) -> list[str]:
    """What was said beside the preflight's warning, which is a fact about the machine."""
    return [line for line in stderr.splitlines() if not line.startswith("llama-engine: warning: In the preflight")]


def test_an_argument_that_is_not_text_is_taken_all_the_same(builtin_model_path: Path, command: list[str]) -> None:
    line = [*command, "run", str(builtin_model_path), b"Hello \xff", "--max-tokens", "3", "--reasoning", "off"]
    done = subprocess.run(line, capture_output=True, check=False)
    assert (done.returncode, complaints(done.stderr.decode())) == (0, [])


def test_a_reader_that_leaves_is_no_error(builtin_model_path: Path, command: list[str]) -> None:
    line = [*command, "inspect", str(builtin_model_path), "--ctx", "512"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(line, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == 141
    assert complaints(done.stderr) == []


def test_rich_is_told_not_to_touch_text() -> None:
    assert Console(file=io.StringIO()).is_terminal is False
    assert shown([ContentDelta("[bold]:smile: " + "x" * 200)]) == "answer: [bold]:smile: " + "x" * 200
