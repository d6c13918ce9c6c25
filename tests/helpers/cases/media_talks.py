"""Conversations about pictures or sounds, many at once on one engine, and what each should have said: by an engine that
has nothing else to do, and by llama.cpp's and libmtmd's calls alone.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fakes.inside import parts
from files.projector_files import KINDS, Bare, Kind, media, write_model, write_projector
from numpy.typing import NDArray

from engine import Completion, Engine, Message, StateStore
from engine.runtime.cache.slots import common_prefix
from engine.runtime.media.media import MediaChunk
from engine.types.media import Media
from engine.types.prompt import MediaPiece

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "logprobs": 2, "ignore_eos": True}
PICTURES = 20
AT_ONCE = 8
CLOSE = 1e-3
"""How far a log-probability may be off without a look at the bare loop. Another picture changes it by 0.009 or more."""
LONGEST = 3  # questions of a conversation, after which it begins anew


def new(completion: Completion) -> int:
    """How many tokens of a prompt were evaluated for a turn."""
    assert completion.usage
    return completion.usage.prompt_tokens - completion.usage.cached_tokens


@dataclass(frozen=True)
class Turn:
    """What was asked, and the answer."""

    messages: tuple[Message, ...]
    answer: Completion

    @property
    def media(self) -> int:
        return sum(len(message.media) for message in self.messages)


@dataclass(frozen=True)
class Difference:
    """Where an answer differs from its reference. `apart`: of another token, how far the bare loop's two best logits
    lie apart there; of the same one, how far its log-probability is off. `noise`: how far the bare loop's are off, at
    most, if it evaluates the same rows one to eight at a time."""

    other_token: bool
    apart: float
    noise: float

    @property
    def is_rounding(self) -> bool:
        return self.apart <= self.noise


@dataclass(frozen=True)
class Talked:
    """The turns of `talk` that were not cancelled, and how many were; how they differ; how far log-probabilities of
    equal tokens are off, at most; and how often something was encoded."""

    turns: list[Turn]
    cancelled: int
    differences: list[Difference]
    off: float
    encoded: int

    @property
    def unlike(self) -> int:
        """Answers with another token."""
        return sum(each.other_token for each in self.differences)

    @property
    def wrong(self) -> int:
        """Differences that no rounding explains."""
        return sum(not each.is_rounding for each in self.differences)


def files(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a model and its projector; returns both."""
    kind = KINDS[name]
    return write_model(folder / f"{name}.gguf", kind), write_projector(folder / f"mmproj-{name}.gguf", kind)


def opened(paths: tuple[Path, Path], **options: Any) -> Engine:
    """Load both, without a trial."""
    given: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "n_sequences": 4, "preflight": False, **options}
    return Engine.load(paths[0], projector=paths[1], chat_template=TEMPLATE, family="content-only", **given)


def talk(name: str, paths: tuple[Path, Path], turns: int, *, isolated: bool = False) -> Talked:
    """Hold conversations about `PICTURES` pictures, `AT_ONCE` at a time; every tenth turn or so is cancelled."""
    encoded: list[object] = []
    with opened(paths, n_ctx=2048, n_sequences=AT_ONCE, kv_unified=False, isolated=isolated) as llm:
        runner: Any = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
        if not isolated:
            projector = runner._backend.projector
            encode = projector._encoded

            def counted(unit: MediaChunk) -> Any:
                encoded.append(unit)
                return encode(unit)

            projector._encoded = counted
        made = list(_conversations(llm, KINDS[name], turns))
        if not isolated:
            runner._loop.cache.check()
    finished = [turn for turn in made if turn.answer.finish_reason != "cancelled"]
    with opened(paths, n_ctx=2048, n_sequences=1, states=StateStore(0)) as alone, closing(Bare(*paths)) as bare:
        compared = [_compared(turn, alone, bare) for turn in finished]
    differences = [difference for _, found in compared for difference in found]
    return Talked(finished, len(made) - len(finished), differences, max(off for off, _ in compared), len(encoded))


def _conversations(llm: Engine, kind: Kind, turns: int) -> Iterator[Turn]:
    chance = random.Random(36)
    several = [media(kind, seed) for seed in range(PICTURES)]
    most = 1 if several[0].kind == "audio" else 2
    talks: list[list[Message]] = [[] for _ in range(12)]
    for first in range(0, turns, AT_ONCE):
        started: list[tuple[list[Message], tuple[Message, ...], Any]] = []
        for history in chance.sample(talks, min(AT_ONCE, turns - first)):
            if len(history) >= 2 * LONGEST:
                history.clear()
            shown = chance.sample(several, chance.randint(0 if history else 1, most))
            parts: Any = ["See:", *shown, chance.choice(("What?", "And now?", "Why?"))]
            history.append(Message(role="user", content=parts))
            started.append((history, tuple(history), llm.stream(history, **TURN)))
        for _, _, stream in started:
            if chance.random() < 0.1:
                if chance.random() < 0.5:
                    reading = iter(stream)
                    next(reading)
                stream.cancel()
        for history, messages, stream in started:
            answer: Completion = stream.result()
            yield Turn(messages, answer)
            if answer.finish_reason == "cancelled":
                history.clear()
            else:
                history.append(answer.message)


def _compared(turn: Turn, alone: Engine, bare: Bare) -> tuple[float, list[Difference]]:
    """Compares an answer with that of the engine which evaluates every prompt alone and whole. Returns how far the
    log-probabilities of equal tokens are off, at most, and the differences worth a look: the largest of these, and the
    first token that is another."""
    alone.complete("x", max_tokens=1)  # its only sequence forgets what it had
    expected = alone.chat(turn.messages, **TURN)
    assert expected.usage
    assert expected.usage.cached_tokens == 0
    left, right = turn.answer.logprobs or (), expected.logprobs or ()
    tokens = [each.token for each in left]
    same = common_prefix(tokens, [each.token for each in right], len(left))
    offs = [abs(left[place].top[0].logprob - right[place].top[0].logprob) for place in range(same)]
    prompt, off = _parts(alone, turn.messages), max(offs, default=0.0)
    found: list[Difference] = []
    if off > CLOSE:
        parts = [*prompt, tokens[: offs.index(off)]]
        found.append(Difference(False, off, _noise(bare, parts, _likeliest)))
    if same < len(left):
        parts = [*prompt, tokens[:same]]
        best = np.sort(bare.logits(parts, 512))[-2:]
        found.append(Difference(True, float(best[1] - best[0]), _noise(bare, parts, np.asarray)))
    return off, found


def _noise(bare: Bare, parts: list[Any], of: Callable[[Any], Any]) -> float:
    whole = of(bare.logits(parts, 512))
    return max(float(np.abs(whole - of(bare.logits(parts, rows))).max()) for rows in (1, 2, 3, 4, 8))


def _likeliest(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """The log-probability of the likeliest token."""
    above = logits.astype(np.float64) - logits.max()
    return -np.log(np.exp(above).sum())


def _parts(llm: Engine, messages: Sequence[Message]) -> list[Sequence[int] | Media]:
    """The prompt as the bare loop takes it."""
    found: list[Sequence[int] | Media] = []
    for piece in llm.render(messages).pieces:
        if isinstance(piece, MediaPiece):
            found.append(piece.media)
        elif piece.text:
            found.append(parts(llm).service.vocab.encode((piece,), add_bos=False))
    return found
