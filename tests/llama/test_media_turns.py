"""Turns about pictures and sounds on one engine: what each says alone, whatever runs beside it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import media_talks
from cases.media_talks import TURN, new, opened, talk
from fakes.inside import parts
from files.projector_files import KINDS, Kind, media

from engine import Audio, Completion, Engine, RequestError
from engine.runtime.media.media import MediaChunk
from engine.types.media import Media

CLOSE = 0.1
"""Where the two likeliest tokens are as near as this, another order of the same sums may draw the other one."""


@pytest.fixture(scope="module", params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def kind(name: str) -> Kind:
    return KINDS[name]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, name: str) -> tuple[Path, Path]:
    return media_talks.files(tmp_path_factory.mktemp("turns"), name)


@pytest.fixture(scope="module")
def llm(files: tuple[Path, Path]) -> Iterator[Engine]:
    with opened(files) as llm:
        yield llm


def shown(media: Media, text: str = "What is this?") -> dict[str, Any]:
    return {"role": "user", "content": ["See:", media, text]}


def same(one: Completion, other: Completion) -> bool:
    """Whether two answers are the same up to where the two likeliest tokens are near each other."""
    for left, right in zip(one.logprobs or (), other.logprobs or (), strict=True):
        if left.token != right.token:
            return abs(left.top[0].logprob - left.top[1].logprob) < CLOSE
    return True


def noted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[bytes]:
    """The keys of the units that a method is called with from now on."""
    keys: list[bytes] = []
    method: Any = getattr(owner, name)

    def note(unit: MediaChunk, *more: Any) -> Any:
        keys.append(unit.key)
        return method(unit, *more)

    monkeypatch.setattr(owner, name, note)
    return keys


def test_a_second_conversation_encodes_nothing_and_evaluates_none_of_its_rows(
    llm: Engine, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner: Any = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
    backend = runner._backend
    encoded, evaluated = (
        noted(monkeypatch, owner, name) for owner, name in ((backend.projector, "_encoded"), (backend, "decode_media"))
    )
    for seed in (3, 4):  # the second is another picture, which never hits
        encoded.clear()
        evaluated.clear()
        first = llm.chat([shown(media(kind, seed))], **TURN)
        units = [unit.key for unit in backend.projector.read(media(kind, seed)) if isinstance(unit, MediaChunk)]
        assert encoded == [*dict.fromkeys(evaluated)] == units
        steps = len(evaluated)
        again = llm.chat([shown(media(kind, seed), "Something else?")], **TURN)
        assert (encoded, len(evaluated)) == (units, steps)
        assert new(again) < new(first)
    beside = llm.chat([{"role": "user", "content": ["Elsewhere:", media(kind, 3)]}], **TURN)
    assert beside.finish_reason == "length"
    assert encoded == units, "where the beginning differs it is evaluated, and not encoded"


def test_turns_at_once_say_what_each_says_alone(
    name: str, files: tuple[Path, Path], record_testsuite_property: Callable[[str, object], None]
) -> None:
    """A part of `benchmarks/media_turns.py`."""
    talked = talk(name, files, 16 if name == "ultravox" else 32)
    assert talked.wrong == 0, talked.differences
    assert talked.cancelled > 0
    tiles = 5 if name == "idefics3" else 1
    assert 0 < talked.encoded <= media_talks.PICTURES * tiles, "each at most once"
    assert talked.encoded < tiles * sum(turn.media for turn in talked.turns)
    record_testsuite_property(f"turns with {name}", (len(talked.turns), talked.unlike))


def test_a_conversation_goes_on_behind_a_picture(files: tuple[Path, Path], llm: Engine, kind: Kind) -> None:
    held = llm.conversation()
    held.chat([shown(media(kind, 6))], **TURN)
    answer = held.fork().chat("And now?", **TURN)
    assert new(answer) < 60
    with opened(files, n_sequences=1) as alone:
        assert same(answer, alone.chat([*held.messages, {"role": "user", "content": "And now?"}], **TURN))


def test_a_shared_pool_serves_them_too(files: tuple[Path, Path], kind: Kind, llm: Engine) -> None:
    with opened(files, kv_unified=True, kv_tokens=1024, n_sequences=4, flash_attn="off") as pool:
        asked = [[shown(media(kind, seed % 3), f"{seed}?")] for seed in range(9)]
        rows: Any = asked
        answers = pool.generate(rows, temperature=0, max_tokens=8, logprobs=2, ignore_eos=True)
        for talk, answer in zip(asked, answers, strict=True):
            assert same(answer, llm.chat(talk, **TURN))


def test_a_child_process_answers_as_one_here(files: tuple[Path, Path], llm: Engine, kind: Kind) -> None:
    wrong = KINDS["ultravox" if kind.projector != "ultravox" else "llava"]
    with opened(files, isolated=True) as apart:
        assert apart.inspect() == llm.inspect()
        talks = [[shown(media(kind, 8)), shown(media(kind, seed), f"{seed}?")] for seed in (9, 8, 9)]
        there = [apart.stream(talk, **TURN) for talk in talks]
        for talk, stream in zip(talks, there, strict=True):
            assert same(stream.result(), llm.chat(talk, **TURN))
        again = apart.chat(talks[0], **TURN)
        assert new(again) < 30, "its rows are known there, too"
        for engine in (llm, apart):
            with pytest.raises(RequestError, match="takes"):
                engine.chat([shown(media(wrong))], **TURN)


def test_an_openai_client_shows_it_as_a_data_url(llm: Engine, kind: Kind) -> None:
    shown_ = media(kind, 7)
    url = shown_.data_url()
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    if isinstance(shown_, Audio):
        part = {"type": "input_audio", "input_audio": {"data": url.partition(",")[2], "format": "wav"}}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "See:"}, part]}]
    answer = llm.openai_client().chat.completions.create(model="any", messages=messages, temperature=0, max_tokens=4)
    assert answer.usage
    told = llm.chat([{"role": "user", "content": ["See:", shown_]}], temperature=0, max_tokens=4)
    assert told.usage
    assert (answer.usage.prompt_tokens, answer.choices[0].message.content) == (told.usage.prompt_tokens, told.content)
