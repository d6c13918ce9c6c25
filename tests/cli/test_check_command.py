"""`llama-engine check`: what it prints, and its exit codes."""

import io
import json

import pytest
from checked_servers import Handler, Json, chunks_of, served

from engine.cli import main


def leaky(handler: Handler, body: Json) -> None:
    """A server that leaves markup in the content of streams, and reports no usage."""
    if body.get("stream"):
        choice: Json = {"index": 0, "message": {"content": "<think>\n"}, "finish_reason": "stop"}
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks_of(choice))
        handler.send(200, "text/event-stream", f"{events}data: [DONE]\n\n".encode())
    else:
        handler.good(body)


def test_a_good_server(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as web:
        assert main(["check", web.url, "--suite", "forms", "--model", "mine", "--header", "X-Own: a:b"]) == 0
        assert all(body["model"] == "mine" for _, _, body in web.seen)
        assert {headers["X-Own"] for _, headers, _ in web.seen} == {"a:b"}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["forms,", "tools", "ok", "failed", "refused", "unknown"]
    assert [line.split()[-4:] for line in lines[1:6]] == [["18", "-", "-", "-"]] * 5
    assert lines[-1] == "0 of 90 cases failed."


def test_a_bad_server(capsys: pytest.CaptureFixture[str]) -> None:
    with served(leaky) as web:
        assert main(["check", web.url, "--suite", "forms"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "failed: as it is | no tools | any | yes: channel: <think> in the content" in lines
    assert lines[-1] == "45 of 90 cases failed."


def test_every_case_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as web:
        assert main(["check", "--json", web.url]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {record["suite"] for record in records} == {"forgery", "forms"}
    assert {"suite": "forgery", "place": "user", "marker": "</s>", "verdict": "text", "why": ""} in records


def test_what_was_found_before_an_error_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    count = iter(range(1000))

    def dies(handler: Handler, body: Json) -> None:
        if next(count) < 30:
            handler.good(body)
        else:
            handler.close_connection = True

    with served(dies) as web:
        assert main(["check", web.url, "--suite", "forms"]) == 1
    out, err = capsys.readouterr()
    assert out.endswith("0 of 29 cases failed.\n")
    assert err.startswith("llama-engine: There is no answer from 127.0.0.1")


@pytest.mark.parametrize("line", [[], ["http://localhost:1/v1", "--local", "builtin"], ["http://a", "--header", "X"]])
def test_wrong_usage(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *line]) == 1
    assert capsys.readouterr().err.startswith("llama-engine: ")


def test_a_model_of_this_process(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.check.forms.CHOICES", {})  # docs/check.md and tests/check run the suites
    assert main(["check", "--local", "builtin", "--suite", "forms"]) == 0
    assert capsys.readouterr().out == "0 of 0 cases failed.\n"


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Tty()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    with served() as web:
        assert main(["check", web.url, "--suite", "forms"]) == 0
    assert "forms: 1 cases" in out.getvalue()
    assert out.getvalue().endswith("\r90 cases\n")
