"""`llama-engine chat` in a terminal, drawn by an emulator: no line twice, whatever is resized; Ctrl-C wherever it
comes; output that would move the cursor; edited lines and pastes."""

import io
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("fcntl")  # pseudo-terminals

from fakes.terminals import chat_command, terminal

from engine.cli.screen import Screen
from engine.types.events import ContentDelta

TOOLS = '''
import time

def sleep(seconds: int) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "slept"
'''


def script(folder: Path, *replies: str, delay: float = 0.0) -> Path:
    path = folder / "script.json"
    path.write_text(json.dumps({"replies": replies, "delay": delay}), encoding="utf-8")
    return path


def long_markdown(lines: int = 500, seed: int = 0) -> str:
    """Lines of Markdown of every kind of block, each with a number of its own."""
    draw = random.Random(seed)
    made: list[str] = []

    def line(text: str) -> None:
        made.append(text.replace("@", f"N{len(made):04}"))

    while len(made) < lines:
        match draw.randrange(7):
            case 0:
                line("## Heading @")
            case 1:
                for _ in range(draw.choice([1, 4, 40])):
                    line(f"Words **of** a `paragraph` @{' and more' * draw.randrange(14)}.")
            case 2:
                for number in range(draw.randrange(2, 30)):
                    line(f"{draw.choice(['- ', '  - ']) if number else '- '}an item @ {'long ' * draw.randrange(20)}")
            case 3:
                for number in range(draw.randrange(2, 20)):
                    line(f"{number + 1}. step @")
            case 4:
                made.append("```python")
                for _ in range(draw.randrange(1, 50)):
                    line(f"value = compute('@'){'  # why' * draw.randrange(3)}")
                made.append("```")
            case 5:
                line("| name @ | value |")
                made.append("|---|---:|")
                for _ in range(draw.choice([3, 60])):
                    line(f"| row @ | {draw.randrange(10**6)} |")
            case _:
                line("> said @\n> and")
        made.append("")
    return "\n".join(made[:lines])


def repeats(text: str, answer: str) -> dict[str, int]:
    """The numbers of the answer's lines that do not stand exactly once in what was drawn."""
    drawn = Counter(re.findall(r"N\d{4}", text))
    return {name: drawn[name] for name in re.findall(r"N\d{4}", answer) if drawn[name] != 1}


def place(answer: str, share: float) -> str:
    """The number of the line that stands so far down."""
    names = re.findall(r"N\d{4}", answer)
    return names[int(share * len(names))]


@pytest.mark.parametrize(
    ("columns", "lines", "sizes"),
    [
        (80, 24, [(50, 24), (120, 40), (60, 12), (80, 24)]),
        (200, 50, [(80, 24), (200, 50)]),
    ],
)
def test_no_line_of_a_long_answer_is_drawn_twice(
    tmp_path: Path, columns: int, lines: int, sizes: list[tuple[int, int]]
) -> None:
    answer = long_markdown()
    with terminal(chat_command(script(tmp_path, answer)), columns, lines) as shown:
        shown.until(">$")
        shown.type("Write.\r")
        for number, (wide, high) in enumerate(sizes, 1):
            shown.until(place(answer, number / (len(sizes) + 1)))
            shown.resize(wide, high)
        text = shown.until(r"tokens/s.*reused\]")
        assert repeats(text, answer) == {}
        drawn = shown.raw[: shown.raw.rfind(b"reused]")]  # behind it the next prompt hides the cursor while it is drawn
        assert drawn.rfind(b"\x1b[?25h") > drawn.rfind(b"\x1b[?25l"), "the cursor is shown again"
        shown.type("\x04")
        shown.until("$")
        assert shown.child.wait(20) == 0
        assert shown.echoes(), "what is typed is shown again"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux, which wraps rows anew when it is resized")
def test_no_line_is_drawn_twice_in_a_terminal_that_wraps_rows_anew(tmp_path: Path) -> None:
    answer = long_markdown(seed=1)
    command = " ".join(chat_command(script(tmp_path, answer)))
    root = Path(__file__).resolve().parents[2]
    socket = str(tmp_path / "tmux")

    def tmux(*arguments: str) -> str:
        done = subprocess.run(["tmux", "-S", socket, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    def until(pattern: str) -> str:
        limit = time.monotonic() + 60
        while not re.search(pattern, text := tmux("capture-pane", "-p", "-J", "-S", "-5000"), re.DOTALL):
            assert time.monotonic() < limit, text
            time.sleep(0.02)
        return text

    shell = f"env PYTHONPATH={root}:{root}/tests/helpers PYTHONWARNINGS=ignore {command}"
    tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", f"{shell}; sleep 100")
    try:
        tmux("set-option", "-g", "history-limit", "10000")
        until("\n>")
        tmux("send-keys", "Write.", "Enter")
        for number, (wide, high) in enumerate([(50, 24), (120, 40), (60, 12), (80, 24)], 1):
            until(place(answer, number / 5))
            tmux("resize-window", "-x", str(wide), "-y", str(high))
        assert repeats(until(r"reused\]"), answer) == {}
    finally:
        tmux("kill-server")


def test_an_interrupt_in_reasoning_in_content_in_a_tool_and_at_the_prompt(tmp_path: Path) -> None:
    tools = tmp_path / "tools.py"
    tools.write_text(TOOLS, encoding="utf-8")
    call = '<tool_call>\n{"name": "sleep", "arguments": {"seconds": 60}}\n</tool_call>'
    on = " ".join(map(str, range(4000)))
    replies = (f"<think>\nwhy why {on}</think>\n\nnever", f"- word word {on}", call, call, "Still **here**.")
    with terminal(chat_command(script(tmp_path, *replies, delay=0.002), "--tools", str(tools))) as shown:
        shown.until(">$")
        shown.interrupt()
        shown.until(r"Ctrl-D or /quit ends the chat.*>$")
        shown.type("one\r")
        shown.until("reasoning: why why")
        shown.interrupt()
        shown.until(r"cancelled.*reused\]\n+>$")
        shown.type("two\r")
        shown.until(r"• word word")
        assert not shown.echoes()
        shown.type("xyz\r")
        shown.interrupt()
        shown.until(r"cancelled.*cancelled.*reused\].*>$")
        shown.type("\x15")
        shown.type("three\r")
        shown.until(r"Run it\? \[y/N\]$")
        shown.interrupt()
        shown.until(r"stopped.*> $|reused\].*reused\].*reused\].*>$")
        shown.type("four\r")
        shown.until(r"Run it\?.*Run it\? \[y/N\]$")
        shown.type("y\r")
        time.sleep(0.5)
        shown.interrupt()
        shown.until(r"(reused\].*){4}>$")
        shown.type("five\r")
        text = shown.until(r"Still here\..*(reused\].*)>$")
        assert "never" not in text
        assert "Traceback" not in text
        shown.type("\x04")
        assert shown.child.wait(20) == 0


HOSTILE = (
    "\x1b[2J\x1b[H\x1b]0;owned\x07\x9b2J\x08\x08\r\x1b[31m\x1b[?1049h\x0e\u202e\u2066 kept &#27;[2J &#x1b;]0;o&#7; "
    "&#x202e; [x](http://a/\x1b[2J) ![i](http://a/&#27;[1A)"
)


def test_hostile_output_moves_no_cursor(tmp_path: Path) -> None:
    """Of every kind of block; the lines around stay where they were."""
    blocks = [
        f"before {HOSTILE} after",
        f"# head {HOSTILE}",
        f"- item {HOSTILE}\n- next",
        f"```{HOSTILE}\ncode {HOSTILE}\n```",
        f"| a {HOSTILE} |\n|---|\n| b {HOSTILE} |",
        f"> quote {HOSTILE}",
        f"`span {HOSTILE}` <b onclick='x'>{HOSTILE}</b>",
        "x" * 20_000,
        "wide " * 2000,
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u4e2d\u6587 " * 200,
    ]
    answer = "N0001 first\n\n" + "\n\n".join(blocks) + "\n\nN0002 last"
    think = f"<think>\n{HOSTILE}\n</think>\n\n"
    with terminal(chat_command(script(tmp_path, think + answer))) as shown:
        shown.until(">$")
        shown.type("/set repetition_limit 0\r")
        shown.until(r"repetition_limit.*>$")
        shown.type("Write.\r")
        text = shown.until(r"reused\].*>$", 100)
        allowed = rb"\x1b\[\?(25|7|1|2004|12)[lh]|\x1b\[[\d;]*m|\x1b\[\d*[ABCDJK]|\x1b\[6n|\x1b\[0?m"
        answered = shown.raw[shown.raw.index(b"N0001") : shown.raw.index(b" tokens/s")]
        rest = re.sub(allowed, b"", answered)
        assert set(re.findall(rb"\x1b.{4}|[\x00-\x08\x0b\x0c\x0e-\x1a\x7f]", rest)) == set()
        assert not {"\u202e", "\u2066", "\x9b"} & set(shown.raw.decode(errors="replace"))
        for word in ("hello", "Write.", "N0001 first", "N0002 last", "before", "code", "quote"):
            assert word in text
        assert text.index("hello") < text.index("N0001") < text.index("before") < text.index("N0002")
        assert text.count("x") > 20_000
        assert shown.screen.title == ""


def test_a_line_of_a_million_characters_is_drawn_in_linear_time() -> None:
    """Whole, in pieces, and as code, where each piece is a token."""
    for text in (
        "x" * 1_000_000,
        "word " * 200_000,
        "```\n" + "x" * 1_000_000,
        "- " + "x" * 1_000_000,
        "| x\n" * 250_000,
    ):
        for size in (len(text), 64):
            out = Stand()
            screen = Screen(out, markdown=True)
            began = time.process_time()
            for at in range(0, len(text), size):
                screen.show(ContentDelta(text[at : at + size]))
            screen.close()
            taken = time.process_time() - began
            assert taken < 15, (text[:10], size, taken)
            drawn = re.sub(r"\r\x1b\[J|\x1b\[[\d;?]*[a-zA-Z]", "", out.getvalue())
            assert drawn.count("x") >= text.count("x")
            assert len(out.getvalue()) < 12 * len(text), "the open block is not drawn again and again"


class Stand(io.StringIO):
    """Stands in for a terminal's file."""

    def isatty(self) -> bool:
        return True


def test_commands_of_a_chat_in_a_session(tmp_path: Path) -> None:
    """Typed in a real terminal: options, the last question again, what is used; a second chat with the session is told;
    the next one goes on."""
    replies = ("One.", "Uno.", "Two.")
    line = chat_command(script(tmp_path, *replies), "--session", "trip", "--system", "Be brief.")
    state = str(tmp_path / "state")
    with terminal(line, XDG_STATE_HOME=state) as shown:
        shown.until(">$")
        shown.type("/set temperature 0.5\r")
        shown.until(r"temperature is 0\.5 from now on\).*>$")
        shown.type("first\r")
        shown.until(r"One\..*reused\]\n+>$")
        with terminal(line, XDG_STATE_HOME=state) as second:
            second.until("The session trip is open in another process")
            assert second.child.wait(20) == 1
        shown.type("/ret\t")
        shown.until("> /retry$")
        shown.type("\r")
        shown.until(r"Uno\..*reused\]\n+>$")
        shown.type("/show\r")
        text = shown.until(r"saved to +\S.*>$")
        for words in (
            "system    Be brief.",
            "options   temperature 0.5",
            "messages  3, of which 1 question",
            "2 turns",
        ):
            assert words in text
        shown.type("\x04")
        assert shown.child.wait(20) == 0
    with terminal(chat_command(script(tmp_path, *replies), "--continue"), XDG_STATE_HOME=state) as shown:
        shown.until(r"going on after 1 question.*>$")
        shown.type("/undo\r")
        shown.until(r"the last question is forgotten\).*>$")
        shown.type("/halp\r")
        shown.until(r"no command /halp; did you mean '/help'\?.*>$")
        shown.type("\x04")
        assert shown.child.wait(20) == 0
    kept = json.loads((tmp_path / "state/llama-engine/sessions/trip.json").read_text(encoding="utf-8"))
    assert [message["role"] for message in kept] == ["system"]


def test_a_chat_without_a_model_asks_which(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "engine", "chat", "--max-tokens", "200", "--temperature", "0"]
    with terminal(line, columns=120, lines=40) as shown:
        text = shown.until(r"Which one\? A number, a name, or Enter for \d+:$")
        assert "qwen3-0.6b" in text
        assert text.count("*") == 1, "one is the pick"
        shown.type("builtin\r")
        shown.until(r"Ctrl-D ends.*>$")
        shown.type("Hello! Who are you?\r")
        shown.until(r"I am the tiny built-in model.*reused\]\n+>$")
        shown.type("/quit\r")
        assert shown.child.wait(20) == 0
    with terminal([*line[:3], "run", "Hello"], columns=120, lines=40) as shown:
        shown.until(r"Which one\?.*:$")
        shown.type("\x04")
        shown.until("No model was chosen")
        assert shown.child.wait(20) == 1


def test_a_paste_of_many_lines_is_one_message_and_lines_are_edited(tmp_path: Path) -> None:
    with terminal(
        chat_command(script(tmp_path, "One.", "Two.", "Three."), "--resume", str(tmp_path / "kept.json"))
    ) as shown:
        shown.until(">$")
        shown.type("\x1b[200~first line\nsecond line\r\nthird\x1b[201~")
        shown.until("third")
        shown.type("!\r")
        shown.until(r"One\..*>$")
        shown.type("helo\x1b[Dl\r")  # an arrow, then a letter in between
        shown.until(r"Two\..*>$")
        shown.type("\x1b[A\r")  # the line before
        shown.until(r"Three\..*>$")
        shown.type("/he\t")
        shown.until("> /help$")
        shown.type("\r")
        shown.until(r"/think on\|off.*>$")
        shown.type("\x04")
        assert shown.child.wait(20) == 0
    kept = json.loads((tmp_path / "kept.json").read_text(encoding="utf-8"))
    assert [message["content"] for message in kept if message["role"] == "user"] == [
        "first line\nsecond line\nthird!",
        "hello",
        "hello",
    ]
