"""Log-probabilities of given texts."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TypeAlias, cast

from engine.runtime.loop.backend import Vocab
from engine.runtime.media.media import ChunkAt
from engine.runtime.stream.raw import tokens_of
from engine.runtime.stream.service import Service
from engine.runtime.stream.stream import Stream
from engine.support.errors import EngineError, QueueFullError, RequestError
from engine.support.offloop import is_unwanted
from engine.support.printed import Printed
from engine.turns.model_parts import Lease
from engine.turns.options import ScoreOptions
from engine.types.prompt import Piece, Prompt
from engine.types.sampling import TokenLogprob
from engine.types.turn_settings import PLAIN, TurnSettings

TextOrTokens: TypeAlias = str | Sequence[int]
Pair: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The tokens before a text, and those of the text."""


@dataclass(frozen=True, slots=True, repr=False)
class Score(Printed):
    """How likely a text is after a prompt: `logprob`, the natural logarithm of its probability, is the sum over its
    `tokens`, each of which has the most likely token of its place in `top`. `greedy`: each of its tokens is the most
    likely one."""

    logprob: float
    tokens: tuple[TokenLogprob, ...]
    greedy: bool

    def _told(self) -> Iterator[tuple[str, object]]:
        texts = [token.text for token in self.tokens]
        return ((name, texts if name == "tokens" else value) for name, value in Printed._told(self))


class Scorer:
    """Scores texts with one engine's model."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def score(
        self, prompt: TextOrTokens | Prompt, continuations: Sequence[TextOrTokens], options: ScoreOptions
    ) -> list[Score]:
        """Returns the scores of the continuations, in order. Raises what `Engine.score` raises."""
        with self._lease() as parts:
            settings = parts.turns.check(options, ScoreOptions)
            media = parts.service.tokenized(prompt)[1] if isinstance(prompt, Prompt) else ()
            return _scores(
                parts.service, _pairs(parts.service, prompt, continuations, settings.special), settings, media
            )

    def pairs(
        self, prompt: TextOrTokens | Prompt, continuations: Sequence[TextOrTokens], *, special: bool
    ) -> list[Pair]:
        """Returns the tokens before and of each continuation. `special`: control-token text in the prompt becomes
        control tokens. Two texts are tokenised together: where a token spans both, it belongs to the continuation; a
        rendered prompt stays as it is. Raises RequestError for what is not text or tokens."""
        with self._lease() as parts:
            return _pairs(parts.service, prompt, continuations, special)

    def scores(self, pairs: Sequence[Pair]) -> list[Score]:
        """Returns the scores of texts in order. Raises what `Service.score` raises."""
        with self._lease() as parts:
            return _scores(parts.service, pairs, PLAIN, ())


def _pairs(
    service: Service, prompt: TextOrTokens | Prompt, continuations: Sequence[TextOrTokens], special: bool
) -> list[Pair]:
    if not isinstance(cast("object", continuations), Sequence) or isinstance(continuations, str) or not continuations:
        raise RequestError("score() takes a list of continuations, one at least.")
    if isinstance(prompt, Prompt):
        before = service.tokens(prompt)
        return [(before, _tokens(service.vocab, each)) for each in continuations]
    return [_pair(service.vocab, prompt, each, special) for each in continuations]


def _pair(vocab: Vocab, prompt: TextOrTokens, continuation: TextOrTokens, special: bool) -> Pair:
    if not isinstance(prompt, str):
        before = tokens_of(vocab, prompt)
        return before, _tokens(vocab, continuation)
    pieces = [Piece(prompt, trusted=special)]
    before = tuple(vocab.encode(pieces, add_bos=True))
    if not isinstance(continuation, str):
        return before, tokens_of(vocab, continuation)
    whole = tuple(vocab.encode([*pieces, Piece(continuation)], add_bos=True))
    same = next((at for at, pair in enumerate(zip(before, whole, strict=False)) if pair[0] != pair[1]), len(before))
    same = min(same, len(whole))
    return whole[:same], whole[same:]


def _tokens(vocab: Vocab, continuation: TextOrTokens) -> tuple[int, ...]:
    if isinstance(continuation, str):
        return tuple(vocab.tokenize(continuation, special=False))
    return tokens_of(vocab, continuation)


def _scores(service: Service, pairs: Sequence[Pair], settings: TurnSettings, media: tuple[ChunkAt, ...]) -> list[Score]:
    """Returns the scores in order. `media`: pictures and sounds before each of the texts. Raises what
    `Service.score` raises.

    The texts after one prompt are read one after the other, so that the prompt stays where it is and nothing is
    copied; as many prompts as there are sequences take part at a time.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, (before, _) in enumerate(pairs):
        groups.setdefault(before, []).append(index)
    scores: dict[int, Score] = {}
    for prompts in _parts(list(groups.values()), service.info.n_sequences):
        for turn in zip_longest(*prompts):
            if is_unwanted():
                raise EngineError("The task that waits for these scores was cancelled.")
            indices = [index for index in turn if index is not None]
            scores |= _together(pairs, indices, partial(service.score, settings=settings, media=media))
    return [scores[index] for index in range(len(pairs))]


def _together(
    pairs: Sequence[Pair],
    indices: Sequence[int],
    score: Callable[[tuple[int, ...], tuple[int, ...]], Stream],
) -> dict[int, Score]:
    started: deque[tuple[int, Stream]] = deque()
    scores: dict[int, Score] = {}

    def finish() -> None:
        index, stream = started[0]
        scores[index] = _score(stream)
        started.popleft()

    try:
        for index in indices:
            while True:
                try:
                    started.append((index, score(*pairs[index])))
                    break
                except QueueFullError:
                    if not started:
                        raise
                    finish()
        while started:
            finish()
    finally:
        for _, stream in started:
            stream.cancel()
    return scores


def _parts(groups: Sequence[list[int]], size: int) -> Iterator[Sequence[list[int]]]:
    for start in range(0, len(groups), size):
        yield groups[start : start + size]


def _score(stream: Stream) -> Score:
    if stream.result().finish_reason != "stop":
        raise EngineError("A score was not computed, because the engine was closed; load the model again.")
    tokens = stream.logprobs
    greedy = all(token.top[0].token == token.token for token in tokens)
    return Score(sum(token.logprob for token in tokens), tokens, greedy)
