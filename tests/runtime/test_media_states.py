"""What was read with pictures in it is kept, pinned, saved and scored; another picture never hits."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from fakes.scripted_media import ROWS, Projector, asked, opened, picture, read

from engine import Image, RequestError, StateStore
from engine.runtime.media.media import MediaChunk, PromptPart, are_whole, position, row_tokens
from engine.types.media import Media

LONG = "a text of some length, " * 5


def stored(tmp_path: Path, where: str) -> list[StateStore]:
    """The stores of two engines, one after the other."""
    if where == "memory":
        return [StateStore()] * 2
    return [StateStore(0, tmp_path / "states", 1 << 20) for _ in range(2)]


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("trimmable", [True, False])
def test_what_an_engine_saw_the_next_one_finds(tmp_path: Path, where: str, trimmable: bool) -> None:
    first, second = stored(tmp_path, where)
    llm, backend = opened(states=first, trimmable=trimmable)
    with llm:
        # so that no number is given by the order in which pictures came
        llm.chat(asked(7, text=LONG))
        answer = llm.chat(asked(1, 2, text=LONG))
        assert len(backend.media) == 3
    llm, backend = opened(states=second, trimmable=trimmable)
    with llm:
        talk = [*asked(1, 2, text=LONG), answer.message, {"role": "user", "content": "And?"}]
        assert read(llm.chat(talk)) < 60
        assert backend.media == []
        assert read(llm.chat(asked(1, 3, text=LONG))) > ROWS
        assert backend.media[-1] == picture(3).digest
        assert picture(2).digest not in backend.media


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_another_picture_of_the_same_beginning_never_hits(tmp_path: Path, where: str) -> None:
    """Of the same size, and of the same pixels but the last."""
    pixels = np.zeros((40, 40, 3), np.uint8)
    changed = pixels.copy()
    changed[-1, -1, -1] = 1
    first, second = stored(tmp_path, where)
    pictures = [Image(pixels), Image(changed)]
    for states, each in zip((first, second), pictures, strict=True):
        llm, backend = opened(states=states)
        with llm:
            llm.chat([{"role": "user", "content": [LONG, each, LONG]}])
            assert backend.media == [each.digest]


class Other(Projector):
    """Another projector: its rows of the same picture are others."""

    def read(self, media: Media) -> "list[PromptPart]":
        parts = super().read(media)
        return [
            MediaChunk(sha256(part.key).digest(), part.rows, part.positions, part.is_causal)
            if isinstance(part, MediaChunk)
            else part
            for part in parts
        ]


def test_another_projector_never_hits(tmp_path: Path) -> None:
    first, second = stored(tmp_path, "disk")
    llm, _ = opened(states=first)
    with llm:
        llm.chat(asked(1, text=LONG))
    llm, backend = opened(Other(), states=second)
    with llm:
        assert read(llm.chat(asked(1, text=LONG))) > ROWS
        assert len(backend.media) == 1


def test_a_fork_finds_what_its_conversation_saw() -> None:
    llm, backend = opened(n_sequences=1)
    with llm:
        talk = llm.conversation()
        talk.chat(asked(1, text=LONG))
        forks = [talk.fork() for _ in range(4)]
        for number, fork in enumerate(forks):
            assert read(fork.chat(f"And {number}?")) < 70
            llm.chat("something else, " * 20)
        assert backend.media == [picture(1).digest]


def test_a_prefix_with_a_picture_is_pinned_and_found_on_disk(tmp_path: Path) -> None:
    first, second = stored(tmp_path, "disk")
    llm, backend = opened(states=first)
    with llm, llm.pin(asked(1, text=LONG)) as prefix:
        assert prefix.tokens > ROWS
        assert backend.media == [picture(1).digest]
        for number in range(6):
            llm.chat(f"{number} " * 100)
        assert read(llm.chat(asked(1, text=LONG))) < 2
        assert backend.media == [picture(1).digest]
    llm, backend = opened(states=second)
    with llm, llm.pin(asked(1, text=LONG)) as prefix:
        assert prefix.tokens > ROWS
        assert read(llm.chat(asked(1, text=LONG))) < 2
        assert backend.media == []
        assert read(llm.chat(asked(2, text=LONG))) > ROWS


def test_the_head_of_conversations_about_a_picture_is_pinned() -> None:
    llm, backend = opened()
    with llm:
        begun = [{"role": "system", "content": ["Look:", picture(1)]}]
        with llm.pin(begun):
            llm.chat([*begun, {"role": "user", "content": "What is it?"}])
            llm.chat([*begun, {"role": "user", "content": "Where is it?"}])
        assert backend.media == [picture(1).digest]


def forged(path: Path, change: Any) -> None:
    """Change the tokens in a state file, under a right digest."""
    data = path.read_bytes()
    start = data.index(b"\n") + 1
    length = int.from_bytes(data[start : start + 4], "little")
    head = json.loads(data[start + 4 : start + 4 + length])
    head["tokens"] = change(head["tokens"])
    made = json.dumps(head).encode()
    body = data[:start] + len(made).to_bytes(4, "little") + made + data[start + 4 + length : -32]
    path.write_bytes(body + sha256(body).digest())


def without(tokens: list[int]) -> list[int]:
    return [token for token in tokens if token >= 0]


def cut(tokens: list[int]) -> list[int]:
    at = next(number for number, token in enumerate(tokens) if token < 0) + 3
    return [*tokens[:at], *tokens[at + 1 :]]


def with_another(tokens: list[int]) -> list[int]:
    return [*tokens, *row_tokens(MediaChunk(b"x" * 32, 5, 5, True))]


@pytest.mark.parametrize(
    ("change", "used"),
    [
        (without, False),
        (with_another, False),
        (cut, False),
        ([-5].__add__, False),
        ([10**500].__add__, False),
        (list, True),
    ],
)
def test_a_file_whose_tokens_are_not_those_of_its_state_is_not_used(tmp_path: Path, change: Any, used: bool) -> None:
    first, second = stored(tmp_path, "disk")
    llm, _ = opened(states=first)
    with llm:
        whole = read(llm.chat(asked(1, text=LONG)))
    (path,) = tmp_path.glob("*/*/*.state")
    forged(path, change)
    llm, backend = opened(states=second)
    with llm:
        assert read(llm.chat(asked(1, text=LONG))) == (1 if used else whole)
        assert backend.media == [] if used else [picture(1).digest]


def test_labels_and_texts_behind_a_picture_are_scored() -> None:
    llm, backend = opened()
    with llm:
        assert len(llm.decide(asked(1), Literal["yes", "no", "maybe"])["answer"].rows) in (0, 3)
        prompt = llm.render(asked(1))
        first, second = llm.score(prompt, ["fine", "good"])
        assert [len(each.tokens) for each in (first, second)] == [4, 4]
        assert backend.media == [picture(1).digest], "it is read once"
        llm.score(llm.render(asked(2)), ["fine"])
        assert backend.media == [picture(1).digest, picture(2).digest]
        with pytest.raises(RequestError, match="list of continuations"):
            llm.score(prompt, [])


def test_numbers_of_rows_hold_the_key() -> None:
    one, two = MediaChunk(picture(1).digest, 5, 3, True), MediaChunk(picture(2).digest, 5, 3, True)
    assert not set(row_tokens(one)) & set(row_tokens(two))
    assert not set(row_tokens(one)) & set(row_tokens(MediaChunk(picture(1).digest, 5, 4, True)))
    tokens = [1, *row_tokens(one), *row_tokens(two)]
    assert are_whole(tokens)
    assert not any(are_whole(tokens[:at] + tokens[at + 1 :]) for at in range(1, len(tokens)))
    assert position(tokens, len(tokens)) == 7
    assert {(~token >> 60).to_bytes(32) for token in row_tokens(one)} == {one.key}
