"""Kept states, pinned prefixes, scores and steps with real projectors: the same answers as when all is read again."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from cases.media_talks import TEMPLATE, TURN, new
from fakes.inside import parts
from files.projector_files import KINDS, Kind, media, write_model, write_projector

from engine import Completion, Engine, Image, StateStore
from engine.llama.context import UnitEnds
from engine.llama.gguf.projector_file import read_projector
from engine.llama.model import Model
from engine.llama.state import check_state
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions
from engine.runtime.media.media import MediaChunk
from engine.support.errors import DecodeError
from engine.types.media import Media

CLOSE = 0.1
LONG = "a text of some length, " * 8
AND: dict[str, Any] = {"role": "user", "content": "And now?"}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, kind: Kind) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("states")
    return write_model(folder / "model.gguf", kind), write_projector(folder / "mmproj.gguf", kind)


def opened(files: tuple[Path, Path], **options: Any) -> Engine:
    given: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "n_sequences": 1, "preflight": False, **options}
    return Engine.load(files[0], projector=files[1], chat_template=TEMPLATE, family="content-only", **given)


@pytest.fixture(scope="module")
def alone(files: tuple[Path, Path]) -> Iterator[Engine]:
    """Keeps nothing, and reads one conversation at a time."""
    with opened(files, states=StateStore(0)) as llm:
        yield llm


def shown(*several: Media, text: str = LONG) -> dict[str, Any]:
    return {"role": "user", "content": [LONG, *several, text]}


def same(one: Completion, other: Completion) -> bool:
    """Whether two answers are the same up to where the two likeliest tokens are near each other."""
    for left, right in zip(one.logprobs or (), other.logprobs or (), strict=True):
        if left.token != right.token:
            return abs(left.top[0].logprob - left.top[1].logprob) < CLOSE
        for a, b in zip(left.top, right.top, strict=True):
            if a.token == b.token and abs(a.logprob - b.logprob) > CLOSE:
                return False
    return True


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_state_with_pictures_says_what_reading_it_again_says(
    files: tuple[Path, Path], alone: Engine, kind: Kind, tmp_path: Path, where: str
) -> None:
    one, two = media(kind, 1), media(kind, 2)
    states = [StateStore()] * 2 if where == "memory" else [StateStore(0, tmp_path / "s", 1 << 30) for _ in range(2)]
    with opened(files, states=states[0]) as llm:
        llm.chat([shown(media(kind, 4))], **TURN)
        first = llm.chat([shown(one, two)], **TURN)
    with opened(files, states=states[1]) as llm:
        talk = [shown(one, two), first.message, AND]
        again = llm.chat(talk, **TURN)
        assert new(again) < 60, "the state is found"
        assert same(again, alone.chat(talk, **TURN))
        parted = [shown(one, two, text="Something else?")]
        answer = llm.chat(parted, **TURN)
        assert new(answer) < 60, "it is cut behind the second picture"
        assert same(answer, alone.chat(parted, **TURN))
        other = [shown(one, media(kind, 3))]
        answer = llm.chat(other, **TURN)
        assert same(answer, alone.chat(other, **TURN))
        assert same(llm.chat([shown(one), AND], **TURN), alone.chat([shown(one), AND], **TURN))


def test_a_restored_sequence_knows_where_its_pictures_end(files: tuple[Path, Path], kind: Kind) -> None:
    with Model.load(files[0]) as model:
        options = ContextOptions(n_ctx=1024, n_sequences=3, kv_unified=False, n_threads=1)
        backend = model.backend(options, read_projector(files[1]))
        assert backend.projector is not None
        unit = next(part for part in backend.projector.read(media(kind)) if isinstance(part, MediaChunk))
        backend.decode([Row(token, token, 0, False) for token in range(3)])
        backend.decode_media(unit, 0, 3, backend.projector.encode(unit))
        end = 3 + unit.positions
        short = backend.save(0)
        backend.decode([Row(7, end, 0, True)])
        expected = backend.logits(0).copy()
        assert len(backend.save(0)) == backend.state_size(0)
        backend.restore(1, backend.save(0))
        assert backend.positions(1) == end + 1
        assert backend.trim(1, end)
        backend.restore(2, short)
        for sequence in (1, 2):
            assert backend.positions(sequence) == end
            backend.decode([Row(7, end, sequence, True)])
            assert np.abs(backend.logits(0) - expected).max() < 1e-3
            assert backend.trim(sequence, 3)
            assert backend.positions(sequence) == 3


def test_a_fork_of_a_conversation_about_a_picture(files: tuple[Path, Path], alone: Engine, kind: Kind) -> None:
    with opened(files) as llm:
        talk = llm.conversation()
        talk.chat([shown(media(kind, 6))], **TURN)
        for number in range(3):
            answer = talk.fork().chat(f"And {number}?", **TURN)
            assert new(answer) < 60
            asked = [*talk.messages, {"role": "user", "content": f"And {number}?"}]
            assert same(answer, alone.chat(asked, **TURN))
            llm.chat(f"{number} {LONG}", **TURN)


def test_a_pinned_prefix_with_a_picture(files: tuple[Path, Path], alone: Engine, kind: Kind, tmp_path: Path) -> None:
    talk = [shown(media(kind, 1))]
    expected = alone.chat(talk, **TURN)
    for _ in range(2):
        with opened(files, n_sequences=3, states=StateStore(0, tmp_path / "s", 1 << 30)) as llm, llm.pin(talk):
            for _ in range(2):
                answer = llm.chat(talk, **TURN)
                assert new(answer) < 2
                assert same(answer, expected)
            behind = [shown(media(kind, 1), text="Something else?")]
            answer = llm.chat(behind, **TURN)
            assert new(answer) < 60
            assert same(answer, alone.chat(behind, **TURN))
            other = [shown(media(kind, 2))]
            assert same(llm.chat(other, **TURN), alone.chat(other, **TURN))


def test_another_projector_s_states_in_a_shared_store_do_not_hit(
    files: tuple[Path, Path], kind: Kind, tmp_path: Path
) -> None:
    states, talk = StateStore(), [shown(media(kind, 1))]
    other = write_projector(tmp_path / "other.gguf", kind, seed=8)
    with opened(files, states=states) as llm:
        llm.chat(talk, **TURN)
    with opened((files[0], other), states=states) as llm, opened((files[0], other), states=StateStore(0)) as alone:
        answer, expected = llm.chat(talk, **TURN), alone.chat(talk, **TURN)
        assert new(answer) == new(expected)
        assert same(answer, expected)


def test_a_file_edited_under_a_right_digest_is_not_used(files: tuple[Path, Path], kind: Kind, tmp_path: Path) -> None:
    """Without the picture's rows, with a state that says nothing of its ends, or with values that are no numbers."""
    talk = [shown(media(kind, 1))]

    def read() -> int:
        with opened(files, n_sequences=2, states=StateStore(0, tmp_path, 1 << 30)) as llm:
            return new(llm.chat(talk, **TURN))

    whole = read()
    (path,) = tmp_path.glob("*/*.state")
    data = path.read_bytes()
    start = data.index(b"\n") + 1
    length = int.from_bytes(data[start : start + 4], "little")
    head, state = json.loads(data[start + 4 : start + 4 + length]), data[start + 4 + length : -32]
    texts = [token for token in head["tokens"] if token >= 0]
    spoilt = state[:-200] + b"\xff" * 100 + state[-100:]
    for tokens, written in (
        *((texts, state), (head["tokens"], state[:-4])),
        *((head["tokens"], state + b"\xff" * 4), (head["tokens"], spoilt)),
    ):
        made = json.dumps({**head, "tokens": tokens}).encode()
        body = data[:start] + len(made).to_bytes(4, "little") + made + written
        for other in tmp_path.glob("*/*.state"):
            other.unlink()
        path.write_bytes(body + sha256(body).digest())
        assert read() == whole
    for other in tmp_path.glob("*/*.state"):
        other.unlink()
    path.write_bytes(data)
    assert read() < 20


def test_labels_behind_a_picture_have_the_probabilities_of_the_answer(
    files: tuple[Path, Path], alone: Engine, kind: Kind
) -> None:
    with opened(files, n_sequences=3) as llm:
        for seed in (1, 2):
            talk = [shown(media(kind, seed))]
            drawn = alone.chat(talk, temperature=0, max_tokens=1, logprobs=8, ignore_eos=True)
            assert drawn.logprobs is not None
            tops = drawn.logprobs[0].top
            scores = llm.score(llm.render(talk), [[top.token] for top in tops])
            assert [score.logprob for score in scores] == pytest.approx([top.logprob for top in tops], abs=CLOSE)
        done, again = (dict(each.decide(talk, Literal["yes", "no"])["answer"].rows) for each in (llm, alone))
        assert done == pytest.approx(again, abs=CLOSE)


def test_pictures_read_in_steps_say_what_they_say_in_one(files: tuple[Path, Path], alone: Engine, kind: Kind) -> None:
    talks = [[shown(media(kind, seed % 3), text=f"{seed}?")] for seed in range(6)]
    expected = [alone.chat(talk, **TURN) for talk in talks]
    with opened(files, n_sequences=3) as llm:
        runner: Any = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
        budget = runner._loop._scheduler.budget
        budget.rows = budget.alone = budget._least = budget._most = 5
        streams = [llm.stream(talk, **TURN) for talk in talks]
        streams[1].cancel()
        for number, (stream, answer) in enumerate(zip(streams, expected, strict=True)):
            if number != 1:
                assert same(stream.result(), answer)
        runner._loop.cache.check()


class TestPictures:
    """What is said of pictures, without a kind."""

    def test_pictures_of_one_size_and_beginning_are_told_apart(self, tmp_path: Path) -> None:
        kind = KINDS["llava"]
        files = write_model(tmp_path / "model.gguf", kind), write_projector(tmp_path / "mmproj.gguf", kind)
        pixels = np.random.default_rng(1).integers(0, 256, (56, 56, 3), np.uint8)
        changed = pixels.copy()
        changed[28:] = 255 - changed[28:]
        states, one, two = (
            StateStore(),
            *([{"role": "user", "content": [Image(each), LONG]}] for each in (pixels, changed)),
        )
        with opened(files, states=states) as llm:
            llm.chat(one, **TURN)
        with opened(files, states=states) as llm, opened(files, states=StateStore(0)) as alone:
            answer, expected = llm.chat(two, **TURN), alone.chat(two, **TURN)
            assert new(answer) == new(expected)
            assert same(answer, expected)
            assert new(llm.chat(one, **TURN)) < 60

    def test_units_at_the_end_of_a_state(self) -> None:
        ends = UnitEnds()
        ends.note(0, 7, 11)
        ends.note(0, 20, 25)
        ends.note(1, 3, 4)
        assert UnitEnds.parted(b"state" + ends.saved(0)) == (b"state", {7: 11, 20: 25})
        assert UnitEnds.parted(b"state" + ends.saved(1)) == (b"state", {})
        for state in (b"", b"abc", b"\x01\x00\x00\x00", b"\xff\xff\xff\xff"):
            with pytest.raises(DecodeError, match="does not say where its pictures end"):
                UnitEnds.parted(state)

    @pytest.mark.parametrize(
        ("places", "ends", "is_right"),
        [
            ([0, 1, 2], {}, True),
            ([0, 1, 1, 1, 3], {1: 3}, True),
            ([0, 1, 1, 1], {1: 3}, True),
            ([3, 3, 5, 6], {3: 5}, True),
            ([0, 1, 1, 2], {}, False),
            ([0, 1, 1, 1, 2], {1: 3}, False),
            ([0, 1, 1, 1, 4], {1: 3}, False),
            ([0, 1, 2, 2], {1: 2}, False),
            ([-1, 0, 1], {}, False),
        ],
    )
    def test_positions_of_a_state_are_checked(self, places: list[int], ends: dict[int, int], is_right: bool) -> None:
        for extra in (0, 3):
            cells = b"".join(np.array([place, 1, *[9] * extra, 0], "<i4").tobytes() for place in places)
            state = bytes(8) + np.array([1, len(places)], "<u4").tobytes() + cells + bytes(8)
            if is_right:
                check_state(state, ends, cell_bytes=12 + 4 * extra)
            else:
                with pytest.raises(DecodeError, match="positions that no sequence has"):
                    check_state(state, ends, cell_bytes=12 + 4 * extra)
