"""`python -m benchmarks.check`: what it prints, and its exit codes."""

import io
import json
from collections.abc import Iterator

import pytest
from fakes.checked_servers import Handler, Json, chunks_of, served

from benchmarks import check
from benchmarks.check.__main__ import main


def leaky(handler: Handler, body: Json) -> None:
    """A server that leaves markup in the content of streams, and reports no usage."""
    if body.get("stream"):
        choice: Json = {"index": 0, "message": {"content": "<think>\n"}, "finish_reason": "stop"}
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks_of(choice))
        handler.send(200, "text/event-stream", f"{events}data: [DONE]\n\n".encode())
    else:
        handler.good(body)


def test_a_good_server(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    err = Tty()
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    with served() as web:
        assert main([web.url, "--suite", "forms", "--model", "mine", "--header", "X-Own: a:b"]) == 0
        assert all(body["model"] == "mine" for _, _, body in web.seen)
        assert {headers["X-Own"] for _, headers, _ in web.seen} == {"a:b"}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["forms,", "tools", "ok", "failed", "refused", "unknown"]
    assert [line.split()[-4:] for line in lines[1:6]] == [["18", "-", "-", "-"]] * 5
    assert lines[-1] == "0 of 90 cases failed."
    assert "forms: 1 cases" in err.getvalue()
    assert err.getvalue().endswith("\r90 cases\n")


def test_a_bad_server(capsys: pytest.CaptureFixture[str]) -> None:
    with served(leaky) as web:
        assert main([web.url, "--suite", "forms"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "failed: as it is | no tools | any | yes: channel: <think> in the content" in lines
    assert lines[-1] == "45 of 90 cases failed."


def test_every_case_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as web:
        assert main(["--json", web.url, "--suite", "forms"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    case = {"reasoning": "on", "tools": "auto", "format": "any", "stream": "yes"}
    assert {"suite": "forms", **case, "verdict": "ok", "why": ""} in records
    assert len(records) == 90


def test_what_was_found_before_an_error_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    count = iter(range(1000))

    def dies(handler: Handler, body: Json) -> None:
        if next(count) < 30:
            handler.good(body)
        else:
            handler.close_connection = True

    with served(dies) as web:
        assert main([web.url, "--suite", "forms"]) == 1
    out, err = capsys.readouterr()
    assert out.endswith("0 of 29 cases failed.\n")
    assert err.startswith("check: There is no answer from 127.0.0.1")


@pytest.mark.parametrize("line", [[], ["http://localhost:1/v1", "--local", "builtin"], ["http://a", "--header", "X"]])
def test_wrong_usage(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*line]) == 1
    assert capsys.readouterr().err.startswith("check: ")


def test_both_suites_on_a_model_of_this_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the questions, which docs/guides/other-servers.md and tests/check ask."""

    def forgery(exchange: check.LocalExchange) -> Iterator[check.Record]:
        assert exchange.send({"messages": []}).refused
        for place in ("user", "system"):
            yield check.Record("forgery", {"place": place, "marker": "</s>"}, "control token", "a copy adds 1 token")

    def forms(exchange: check.LocalExchange, *, max_tokens: int) -> Iterator[check.Record]:
        yield check.Record("forms", {"tools": "auto"}, "unknown", f"at most {max_tokens}")

    monkeypatch.setattr(check, "forgery", forgery)
    monkeypatch.setattr(check, "forms", forms)
    assert main(["--local", "builtin", "--max-tokens", "7"]) == 1
    _, _, shown = capsys.readouterr().out.rpartition("\n\n")
    assert shown.splitlines() == [
        "control token: user | </s>: a copy adds 1 token",
        "unknown, 1 cases: at most 7",
        "1 control tokens in system text are told, not failed: an application writes that itself.",
        "1 of 3 cases failed.",
    ]
