"""Links to pictures wherever messages go: read once, by an engine that may, off the loop's thread."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from fakes.picture_server import CAT, Pictures, answer, drip, serving
from fakes.scripts import VOCAB, backend_of, said, scripted, wait_until

from engine import ChatTemplate, Engine, ImageLink, MediaUrls, Message, RequestError, as_tool, batch, remote
from engine.openai import OpenAI
from engine.runtime.loop.config import LoopOptions
from engine.runtime.media.media import MediaChunk, PromptPart
from engine.testing.scripted import ScriptedBackend
from engine.types.media import Media, MediaKind


def look() -> str:
    """Looks."""
    return "Nothing."


class Sees:
    """A projector of the scripted backend: each picture is a unit of nine rows."""

    kinds: frozenset[MediaKind] = frozenset({"image"})

    def read(self, media: Media) -> Sequence[PromptPart]:
        return (MediaChunk(media.digest, 9, 9, True),)

    def encode(self, unit: MediaChunk) -> Any:
        return np.zeros((unit.rows, 1), np.float32)


LINK = "http://pictures.example/cat.png"
LINKED: dict[str, Any] = {"type": "image_url", "image_url": {"url": LINK}}
ASKED: Any = [{"role": "user", "content": [LINKED, {"type": "text", "text": "What?"}]}]


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pictures]:
    with serving(monkeypatch) as server:
        yield server


def seeing(*replies: str, urls: MediaUrls | None = MediaUrls()) -> Engine:  # noqa: B008 - frozen
    backend = ScriptedBackend(list(replies), vocab=VOCAB, projector=Sees())
    template = ChatTemplate(None, family="qwen3", control_tokens=VOCAB.control_tokens)
    return Engine.over(backend, template, options=LoopOptions(media_urls=urls))


def seen(llm: Engine) -> list[bytes]:
    return backend_of(llm).media


@pytest.mark.parametrize("name", ["image_url", "image", "input_image"])
def test_a_link_stays_one_until_an_engine_reads_it(name: str, pictures: Pictures) -> None:
    field = "image" if name == "image" else "image_url"
    message = Message.model_validate({"role": "user", "content": [{"type": name, field: LINK}, "What?"]})
    assert message.media == (ImageLink(LINK),)
    for dump in (message.model_dump(), message.model_dump(mode="json"), message.openai()):
        assert LINK in str(dump)
        assert Message.model_validate(dump) == message
    assert "image at a link" in message._repr_html_()  # pyright: ignore[reportPrivateUsage]
    (sent,) = remote.request([message])["messages"]
    assert sent["content"][0]["image_url"]["url"] == LINK, "another server reads it itself"
    assert pictures.requests == []


def test_a_link_is_read_by_an_engine_that_may(pictures: Pictures) -> None:
    with seeing("Yes.", "No.") as llm:
        assert llm.chat(ASKED).content == "Yes."
        assert seen(llm) == [CAT.digest]
        assert llm.render(ASKED).media == (CAT,)
    assert len(pictures.requests) == 2, "a request reads its own links"
    with (
        seeing(urls=None) as llm,
        pytest.raises(RequestError, match="does not follow: load it with a projector and media_urls"),
    ):
        llm.chat(ASKED)
    with scripted(["No."]) as llm, pytest.raises(RequestError, match=r"media_urls=MediaUrls\(\)"):
        llm.chat(ASKED)
    options = LoopOptions(media_urls=MediaUrls())
    blind = Engine.over(ScriptedBackend(["No."]), ChatTemplate(None, family="qwen3"), options=options)
    with blind, pytest.raises(RequestError, match="load it with a projector"):
        blind.chat(ASKED)
    assert len(pictures.requests) == 2


def test_all_turns_of_a_conversation_and_a_run_see_the_same_pixels(pictures: Pictures) -> None:
    with seeing("One.", "Two.", "Three.") as llm:
        conversation = llm.conversation()
        for question in (ASKED, "And?", "Else?"):
            conversation.chat(question)
        assert len(pictures.requests) == 1
        assert seen(llm) == [CAT.digest]
    with seeing(said("look"), "Done.") as llm:
        assert llm.run(ASKED, [as_tool(look)]).completion.content == "Done."
    assert len(pictures.requests) == 2


def test_links_on_openais_wires(pictures: Pictures) -> None:
    image: Any = {"type": "input_image", "image_url": LINK, "detail": "auto"}
    asked: Any = [{"role": "user", "content": [image, {"type": "input_text", "text": "What?"}]}]
    with seeing("One.", "Two.") as llm:
        client = OpenAI(llm)
        assert client.chat.completions.create(model="m", messages=ASKED).choices[0].message.content == "One."
        assert client.responses.create(model="m", input=asked).output_text == "Two."
    with seeing(urls=None) as llm:
        client = OpenAI(llm)
        with pytest.raises(openai.BadRequestError, match="does not follow"):
            client.chat.completions.create(model="m", messages=ASKED)
        with pytest.raises(openai.BadRequestError, match="does not follow"):
            client.responses.create(model="m", input=asked)
    assert len(pictures.requests) == 2


def test_links_in_rows_of_batches(pictures: Pictures, tmp_path: Path) -> None:
    row = json.dumps({"messages": ASKED})
    (tmp_path / "rows.jsonl").write_text(f"{row}\n{row}\n", encoding="utf-8")
    with seeing("Yes.", "Yes.") as llm:
        report = batch.run(tmp_path / "rows.jsonl", tmp_path / "out.jsonl", llm)
    assert report.failed == 0
    assert len(pictures.requests) == 2


async def test_a_loop_goes_on_while_a_link_is_read(pictures: Pictures) -> None:
    pictures.replies["/cat.png"] = lambda _: [*drip(answer(CAT.png())[:20], 0.05), answer(CAT.png())[20:]]
    with seeing("One.", "Two.", "Three.") as llm:
        for start in (llm.achat(ASKED), llm.arun(ASKED), _client_asks(llm)):
            ticks, task = 0, asyncio.ensure_future(start)
            while not task.done():
                await asyncio.sleep(0.02)
                ticks += 1
            await task
            assert ticks > 20


async def _client_asks(llm: Engine) -> Any:
    return await llm.async_openai_client().chat.completions.create(model="m", messages=ASKED)


async def test_a_cancelled_task_ends_the_reading(pictures: Pictures) -> None:
    sent: list[int] = []

    def slowly(_: str) -> Iterator[bytes]:
        for number, byte in enumerate(drip(answer(CAT.png()), 0.02)):
            sent.append(number)
            yield byte

    pictures.replies["/cat.png"] = slowly
    with seeing("One.") as llm:
        task = asyncio.ensure_future(llm.achat(ASKED))
        await asyncio.to_thread(wait_until, lambda: len(sent) > 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        at = len(sent)
        await asyncio.sleep(0.6)
        assert len(sent) < at + 20


def test_the_deadline_of_a_turn_holds_for_its_links(pictures: Pictures) -> None:
    pictures.replies["/cat.png"] = lambda _: drip(answer(CAT.png()))
    with seeing("One.") as llm, pytest.raises(RequestError, match="it takes too long"):
        llm.chat(ASKED, deadline=0.5)


def test_loading_with_the_option() -> None:
    with pytest.raises(RequestError, match="media_urls are for models with a projector"):
        Engine.load(media_urls=MediaUrls())
    with pytest.raises(RequestError, match="media_urls=True is not valid: it should be an instance of MediaUrls"):
        Engine.load(media_urls=True)  # pyright: ignore[reportArgumentType]
