"""One request's pictures and sounds at every door: decoded only for a model that takes them, within one budget."""

import asyncio
import base64
import time
from io import BytesIO
from threading import Thread
from typing import Any

import PIL.Image
import pytest
from attacks.hostile_media import picture, sound
from attacks.media_doors import DOORS, SOUNDS, Asked, engine
from fakes.picture_server import serving

from engine import Audio, EngineError, Image, RequestError
from engine.openai import AsyncOpenAI, OpenAI
from engine.support.child import Child
from engine.types.media import MediaBudget, budget, decoding, link
from engine.types.media.source import Encoded

FILES = {
    kind: sound(kind) if kind in SOUNDS else picture(kind) for kind in ("PNG", "JPEG", "WEBP", "FLAC", "OGG", "MP3")
}
EACH = 31 * 17


def answered(door: str, kind: str, count: int, *, projector: bool, patch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Returns what an engine says of so many files, and how many were decoded."""
    decoded: list[str] = []
    ask = decoding._decoded  # pyright: ignore[reportPrivateUsage]

    def note(what: str, *rest: object) -> object:
        found = ask(what, *rest)  # pyright: ignore[reportArgumentType, reportCallIssue]
        decoded.append(what)
        return found

    patch.setattr(decoding, "_decoded", note)
    replies = (
        ('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>', "Done.") if door == "tool" else ("Done.",)
    )
    with serving(patch) as server, engine(*replies, projector=projector) as llm:
        try:
            said = DOORS[door](llm, Asked([FILES[kind]] * count, kind, server))
        except EngineError as error:
            said = str(error)
        except Exception as error:  # noqa: BLE001 - the client's errors
            said = str(error)
    return said, len(decoded)


CELLS = [(door, kind) for door in DOORS for kind in FILES if door != "link" or kind not in SOUNDS]


@pytest.mark.parametrize(("door", "kind"), CELLS)
def test_nothing_is_decoded_for_a_model_that_takes_none(door: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(door, kind, 16, projector=False, patch=monkeypatch)[1] == 0


@pytest.mark.parametrize(("door", "kind"), CELLS)
def test_a_request_has_one_budget(door: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(budget._MOST, "pixels", 3 * EACH)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setitem(budget._MOST, "samples", 6000)  # pyright: ignore[reportPrivateUsage]
    said, decoded = answered(door, kind, 9, projector=True, patch=monkeypatch)
    assert 1 <= decoded <= 3
    assert "together" in said or "not shown" in said


@pytest.mark.parametrize("kind", ["PNG", "FLAC"])
@pytest.mark.parametrize(("what", "most"), [("parts", 2), ("bytes", 2.5)])
def test_what_came_over_the_wire_is_counted_before_it_is_decoded(
    kind: str, what: str, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = len(FILES[kind]) if what == "bytes" else 1
    monkeypatch.setitem(budget._MOST, what, int(most * each))  # pyright: ignore[reportPrivateUsage]
    media = Audio if kind in SOUNDS else Image
    files = [media.undecoded(Encoded(base64.b64encode(FILES[kind]).decode())) for _ in range(3)]
    whole = MediaBudget()
    for file in files[:2]:
        file.decode(whole)
        assert file.decode(whole).is_decoded, "once decoded, it counts no more"
    with pytest.raises(RequestError, match=rf"have more than {int(most * each):,} {what} together"):
        files[2].decode(whole)
    assert not files[2].is_decoded


@pytest.mark.parametrize("door", DOORS)
def test_a_request_whose_time_is_over_asks_no_child_for_the_rest(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    ask = decoding._started  # pyright: ignore[reportPrivateUsage]

    def started(kind: decoding.Kind, budgeted: MediaBudget) -> Child:
        asked.append(kind)
        budgeted.spend(20.0)
        return ask(kind, budgeted)

    monkeypatch.setattr(decoding, "_started", started)
    said, _ = answered(door, "PNG", 9, projector=True, patch=monkeypatch)
    assert len(asked) == 1
    assert "took longer to decode" in said or "not shown" in said


def test_a_decode_that_takes_too_long_ends_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    file = FILES["JPEG"]
    place = file.index(b"\xff\xdb")
    monkeypatch.setattr(budget, "_SECONDS", 0.5)
    with pytest.raises(RequestError, match="took longer to decode"):
        Image(file[:place] + b"\xff" * (60 << 20) + file[place:])
    monkeypatch.undo()
    assert Image(file).width == 31
    assert link.read_media([], {"image"}, None, None) == []
    assert MediaBudget().left("parts") == 256


def test_a_kind_that_a_model_does_not_take_stays_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Audio.undecoded(Encoded(base64.b64encode(FILES["FLAC"]).decode()))
    monkeypatch.setattr(decoding, "_decoded", pytest.fail)
    assert link.read_media([heard], {"image"}, None, None) == [heard]


@pytest.mark.parametrize("way", ["whole", "streamed", "responses", "coroutine"])
def test_a_client_s_timeout_holds_for_decoding(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float] = []

    def made(until: float | None = None) -> MediaBudget:
        budgeted = MediaBudget(until)
        left.append(budgeted.seconds)
        return budgeted

    monkeypatch.setattr(link, "MediaBudget", made)
    asked = Asked([FILES["PNG"]], "PNG", None)  # pyright: ignore[reportArgumentType]
    with engine("Done.", "Done.", projector=True) as llm:
        for timeout in (5.0, None):
            client, coroutines = OpenAI(llm, timeout=timeout), AsyncOpenAI(llm, timeout=timeout)
            if way == "responses":
                parts: Any = [asked.part(FILES["PNG"], responses=True)]
                assert client.responses.create(model="m", input=[{"role": "user", "content": parts}]).output_text
            elif way == "coroutine":
                assert asyncio.run(coroutines.chat.completions.create(model="m", messages=asked.messages())).choices
            else:
                found: Any = client.chat.completions.create(
                    model="m", messages=asked.messages(), stream=way == "streamed"
                )
                assert list(found)
    bounded, free = left
    assert bounded <= 5.0
    assert free == 10.0


def test_a_request_does_not_wait_longer_than_its_time_for_the_child_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for child in list(decoding._children.values()):  # pyright: ignore[reportPrivateUsage]
        child.kill()
    monkeypatch.setattr(decoding, "_POLL", 0.001)
    picture_sent = Image.undecoded(Encoded(base64.b64encode(FILES["PNG"]).decode()))
    with pytest.raises(RequestError, match="the request's deadline"):
        link.read_media([picture_sent], {"image"}, None, time.monotonic() + 0.01)
    starting = decoding._children["image"]  # pyright: ignore[reportPrivateUsage]
    assert starting.alive, "for the next request"
    assert not starting.greeted
    assert [each.kind for each in link.read_media([picture_sent], {"image"}, None, None)] == ["image"]
    assert picture_sent.width == 31


def test_a_picture_that_takes_seconds_keeps_only_others_of_its_kind_waiting() -> None:
    """The larger one is decoded in a child of its own."""
    _ = Image(FILES["PNG"]).width  # both children have begun
    _ = Image(flat(5000)).width
    large = Thread(target=lambda: Image(flat(8000)).width)
    large.start()
    lock = decoding._locks["large image"]  # pyright: ignore[reportPrivateUsage]
    while large.is_alive() and not lock.locked():
        time.sleep(0.001)
    assert Image(FILES["JPEG"]).width == 31
    assert large.is_alive(), "the small one waited for it"
    large.join()


def flat(side: int) -> bytes:
    """The file of a picture of one colour."""
    file = BytesIO()
    PIL.Image.new("RGB", (side, side)).save(file, "PNG", compress_level=1)
    return file.getvalue()
