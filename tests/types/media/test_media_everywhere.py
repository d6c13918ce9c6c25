"""Pictures and sounds wherever messages go: dumps, tools, MCP, the `openai` client, batches, other servers, the command
line, notebooks."""

import argparse
import base64
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from fakes.scripts import scripted
from pydantic import ValidationError

from engine import (
    Audio,
    AudioPart,
    Completion,
    ContentDelta,
    Event,
    Finished,
    Image,
    ImagePart,
    Message,
    RequestError,
    Run,
    TextPart,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
    ToolContext,
    ToolResult,
    Transcript,
    as_tool,
    fold,
    remote,
)
from engine.agent.run import stream_run
from engine.batch.bodies import read_body
from engine.cli import commands, main
from engine.cli.screen import json_line
from engine.openai import OpenAI
from engine.tools import ToolOutcome, run, run_async
from engine.types.live import Page
from engine.types.media import EncodedMedia, MediaKind

CAT = Image(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
SONG = Audio(np.linspace(-1, 1, 100, dtype=np.float32), 8000)
SEEN = Message.model_validate({"role": "user", "content": ["What", CAT, "and", SONG]})
TAKES: frozenset[MediaKind] = frozenset({"image", "audio"})
NO_PROJECTOR = "loaded without a projector"


def test_a_message_with_media_survives_every_dump() -> None:
    assert [type(part) for part in SEEN.parts] == [TextPart, ImagePart, TextPart, AudioPart]
    assert (SEEN.content, SEEN.media) == ("What\nand", (CAT, SONG))
    for dump in (
        SEEN.model_dump(),
        SEEN.model_dump(mode="json"),
        SEEN.model_dump(exclude_defaults=True),
        SEEN.openai(),
    ):
        assert Message.model_validate(dump) == SEEN
    assert Message.model_validate_json(SEEN.model_dump_json(exclude_defaults=True)) == SEEN
    assert Message(role="user", parts=SEEN.parts) == SEEN
    assert Message.model_validate({"role": "user", "content": CAT}).parts == (ImagePart(image=CAT),)
    assert "<Image 4x2 " in repr(SEEN)


def test_openais_parts_are_read_and_detail_changes_nothing() -> None:
    url = CAT.data_url()
    sound = base64.b64encode(SONG.wav()).decode()
    for part in (
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url, "detail": "auto"},
        {"type": "image", "image": CAT},
    ):
        assert Message.model_validate({"role": "user", "content": [part]}).media == (CAT,)
    for part in (
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "audio", "audio": SONG},
    ):
        assert Message.model_validate({"role": "user", "content": [part]}).media == (SONG,)


@pytest.mark.parametrize("address", ["a.png", "/etc/passwd", "file:///etc/x", "ftp://a/b.png", "//a/b", "C:\\a.png"])
@pytest.mark.parametrize("kind", ["image_url", "image", "input_image", "audio", "input_audio"])
def test_on_the_wire_no_address_is_read_but_data(kind: str, address: str) -> None:
    field = {"image": "image", "audio": "audio", "input_audio": "input_audio"}.get(kind, "image_url")
    value: Any = {"data": address, "format": "wav"} if kind == "input_audio" else address
    with pytest.raises(ValidationError, match=r"is not read: on the wire|is not base64"):
        Message.model_validate({"role": "user", "content": [{"type": kind, field: value}]})


def test_content_and_parts_that_differ_are_refused() -> None:
    with pytest.raises(ValidationError, match="content and the texts of parts differ"):
        Message(role="user", content="x", parts=SEEN.parts)


# --- tools


def look() -> list[str | Image]:
    """Looks."""
    return ["Here:", CAT]


def listen() -> Audio:
    """Listens."""
    return SONG


class Script:
    """The turns of a run: a call, then an answer; keeps what it was asked."""

    def __init__(self, *calls: str) -> None:
        self._calls = calls
        self.asked: list[Sequence[Message]] = []

    def __call__(self, messages: Sequence[Message]) -> Any:
        self.asked.append(messages)
        return _Turn(self._calls if len(self.asked) == 1 else ())


class _Turn:
    def __init__(self, calls: Sequence[str]) -> None:
        self._events: list[Event] = []
        for number, name in enumerate(calls):
            self._events += [ToolCallStart(number, name, name, number), ToolCallEnd(number, "{}", None, number)]
        self._events += [Finished("tool_calls")] if calls else [ContentDelta("Done."), Finished("stop")]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def cancel(self) -> None: ...

    @property
    def completion(self) -> Completion:
        return fold(self._events)


ASK = [Message(role="user", content="Look.")]


def test_a_tool_s_picture_reaches_a_model_that_takes_it() -> None:
    script = Script("look", "listen")
    with stream_run(script, ASK, [as_tool(look), as_tool(listen)], media=TAKES) as stream:
        events = list(stream)
    seen, heard = script.asked[1][-2:]
    assert (seen.role, seen.content, seen.media, heard.media) == ("tool", "Here:", (CAT,), (SONG,))
    result = next(event for event in events if isinstance(event, ToolResult))
    assert (result.content, result.parts) == ("Here:[image 4x2]", seen.parts)
    assert '"parts":[{"type":"text","text":"Here:"},{"type":"image","image":"data:' in json_line(result)
    whole: Run = stream.run
    assert whole._repr_html_().count("<img src=") == 1  # pyright: ignore[reportPrivateUsage]
    again = Transcript.from_json(whole.transcript.model_dump_json())
    assert again == whole.transcript
    assert again.messages[2].media == (CAT,)


def test_a_model_that_takes_none_reads_what_it_was() -> None:
    script = Script("look", "listen")
    stream_run(script, ASK, [as_tool(look), as_tool(listen)]).result()
    assert [message.content for message in script.asked[1][-2:]] == [
        "Here:\n(Image 4x2: not shown, as this model does not take it.)",
        "(Audio 0.0 s: not shown, as this model does not take it.)",
    ]
    only_images = run(as_tool(listen), "{}", ToolContext(None, media=frozenset({"image"})))
    assert only_images.parts == ()


def test_a_run_is_resumed_with_the_pictures_of_its_results() -> None:
    saved: list[Transcript] = []
    stream_run(Script("look"), ASK, [as_tool(look)], _options(saved), TAKES).result()
    within = next(transcript for transcript in saved if transcript.calls and transcript.calls[0].state == "done")
    again = Transcript.from_json(within.model_dump_json())
    assert again.calls[0].parts == (TextPart(text="Here:"), ImagePart(image=CAT))
    script = Script()
    stream_run(script, again, [as_tool(look)], media=TAKES).result()
    assert script.asked[0][-1].media == (CAT,)


def _options(saved: list[Transcript]) -> Any:
    from engine.agent.limits import RunOptions

    return RunOptions(save=saved.append)


async def test_an_async_tool_s_pictures() -> None:
    async def later() -> Image:
        return CAT

    outcome = await run_async(as_tool(later), "{}", ToolContext(None, media=TAKES))
    assert outcome.shown == (ImagePart(image=CAT),)


def test_mcp_s_pictures_and_sounds() -> None:
    types = pytest.importorskip("mcp.types")
    from engine.agent.mcp.content import outcome_of

    blocks = [
        types.TextContent(type="text", text="seen:"),
        types.ImageContent(type="image", data=base64.b64encode(CAT.png()).decode(), mime_type="image/png"),
        types.ImageContent(type="image", data="AAAA", mime_type="image/png"),
        types.AudioContent(type="audio", data=base64.b64encode(SONG.wav()).decode(), mime_type="audio/wav"),
    ]
    outcome = outcome_of(types.CallToolResult(content=blocks), 1000)
    assert isinstance(outcome.parts[1], EncodedMedia), "nothing is decoded for a model that takes none"

    def served() -> ToolOutcome:
        return outcome

    whole = run(as_tool(served), "{}", ToolContext(None, media=TAKES)).shown
    assert [getattr(part, "media", None) for part in whole] == [None, CAT, None, SONG]
    assert isinstance(whole[2], TextPart)
    assert whole[2].text.startswith("(Image, image/png, 3 bytes: not shown, as the image of 3 bytes is none of PNG")
    named = run(as_tool(served), "{}")
    assert named.parts == ()
    assert named.content.count("not shown, as this model does not take it.") == 3


# --- other ways in and out


def test_the_openai_client() -> None:
    content: list[Any] = [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": CAT.data_url()}},
    ]
    stolen: list[Any] = [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]
    with scripted(["Yes."]) as llm:
        client = OpenAI(llm)
        for parts, said in ((content, NO_PROJECTOR), (stolen, "on the wire only data: URLs")):
            with pytest.raises(openai.BadRequestError, match=said):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": parts}])
        image: Any = {"type": "input_image", "image_url": CAT.data_url(), "detail": "auto"}
        for part, said in (
            (image, NO_PROJECTOR),
            ({**image, "image_url": "/etc/passwd"}, "on the wire only data: URLs"),
            (
                {"type": "input_file", "file_id": "f"},
                "'input_file'; a local model reads text, input_image, input_audio",
            ),
        ):
            asked: Any = [{"role": "user", "content": [part]}]
            with pytest.raises(openai.BadRequestError, match=said) as refused:
                client.responses.create(model="m", input=asked)
            assert refused.value.param in ("input", "input[0].content[0]")


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/responses"])
def test_rows_of_batches(url: str) -> None:
    body = remote.request([SEEN], stream=False)
    if url.endswith("responses"):
        parts = [
            {"type": "input_text", "text": "What"},
            {"type": "input_image", "image_url": CAT.data_url()},
            {"type": "input_text", "text": "and"},
            {"type": "input_audio", "input_audio": {"data": base64.b64encode(SONG.wav()).decode(), "format": "wav"}},
        ]
        body = {"input": [{"role": "user", "content": parts}]}
    assert read_body(url, body, {}).messages == (SEEN,)


def test_other_servers_get_data_urls() -> None:
    (message,) = remote.request([SEEN])["messages"]
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "text", "input_audio"]
    assert message["content"][1]["image_url"]["url"] == CAT.data_url()
    assert Message.model_validate(message) == SEEN


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts of a scripted engine that every command loads."""
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return "Yes."

    def load(_: argparse.Namespace) -> Any:
        return scripted(reply)

    monkeypatch.setattr(commands, "load", load)
    return prompts


def test_run_shows_pictures(asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(CAT.png())
    assert main(["run", "What?", "--image", str(path), "--image", str(path)]) == 1
    assert f"The conversation has images or sounds, and this engine was {NO_PROJECTOR}" in capsys.readouterr().err
    assert main(["run", "What?", "--image", str(tmp_path / "b.png")]) == 1
    assert "b.png' cannot be read" in capsys.readouterr().err
    assert main(["run", "What?"]) == 0
    assert "What?<|im_end|>" in asked[0]


def test_chat_shows_files(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("The code is 7.", encoding="utf-8")
    (tmp_path / "a.png").write_bytes(CAT.png())
    (tmp_path / "a.wav").write_bytes(SONG.wav())
    lines = f"/file {tmp_path / 'notes.txt'}\nWhat is the code?\nAnd now?\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["chat", "--commands"]) == 0
    assert "The code is 7.\nWhat is the code?<|im_end|>" in asked[0]
    assert asked[1].count("The code is 7.") == 1
    for name, said in (("a.png", "takes no pictures"), ("a.wav", "takes no sounds"), ("none.png", "cannot be read")):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"/file {tmp_path / name}\nWhat is this?\n"))
        assert main(["chat", "--commands"]) == 1
        assert said in capsys.readouterr().err


def test_a_notebook_shows_a_message_s_picture_and_nothing_else() -> None:
    evil = "<img src=x onerror=alert(1)>"
    html = Message.model_validate({"role": "user", "content": [evil, CAT, SONG]})._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert re.findall(r'<img src="([^"]{22})[^"]*" alt="([^"]*)"', html) == [("data:image/png;base64,", "image 4x2")]
    assert html.count("<img") == 1
    assert "&lt;img src=x onerror" in html
    assert "audio 0.0 s" in html
    page = Page()
    page.take(ToolCallStart(0, "a", "look"))
    page.take(ToolResult(0, "a", evil, parts=(TextPart(text=evil), ImagePart(image=CAT))))
    assert page.data()["text/html"].count("<img src=") == 1
    assert "image 4x2" in page.data()["text/plain"]


def test_a_call_is_no_part_of_a_message_with_a_picture() -> None:
    call = ToolCall(id="a", name="f")
    with pytest.raises(ValidationError, match="pictures and sounds stand in messages of users"):
        Message(role="user", parts=(ImagePart(image=CAT), call))
    with pytest.raises(RequestError, match="is a link"):
        Image("https://example.org/a.png")
