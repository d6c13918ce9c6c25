"""What a prompt becomes before it is sent to the loop: tokens, chunks of media, and what ends its answer."""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property, lru_cache, partial
from itertools import groupby

from engine.runtime.cache.control_tokens import ControlTokens
from engine.runtime.cache.token_memory import TurnMemory
from engine.runtime.guidance.vocabulary import Vocabulary
from engine.runtime.loop.backend import Vocab
from engine.runtime.loop.generation import Limits
from engine.runtime.loop.request import TurnRequest
from engine.runtime.media.media import ChunkAt, MediaChunk, PromptPart, TokensAndMedia, row_tokens, whole
from engine.support.errors import RequestError
from engine.types.media import Media, MediaKind
from engine.types.prompt import MediaPiece, Piece, Prompt

_REMEMBERED_MEDIA = 16


def _encoded(vocab: Vocab, pieces: tuple[Piece, ...]) -> tuple[int, ...]:
    return tuple(vocab.encode(pieces, add_bos=False))


def _single_tokens(vocab: Vocab, texts: tuple[str, ...] | frozenset[str]) -> tuple[frozenset[int], tuple[str, ...]]:
    """Returns the texts that are one token of the vocabulary, as tokens; and the other texts."""
    tokens: set[int] = set()
    others: list[str] = []
    for text in texts:
        ids = vocab.tokenize(text, special=True)
        if len(ids) == 1:
            tokens.add(ids[0])
        else:
            others.append(text)
    return frozenset(tokens), tuple(others)


class PromptTokens:
    """Makes tokens of prompts for one vocabulary. `turns`: the tokens of turns generated here; `read`: reads pictures
    and sounds as the model's projector does, if there is one, and of these `kinds`."""

    def __init__(
        self,
        vocab: Vocab,
        turns: TurnMemory,
        read: Callable[[Media], Sequence[PromptPart]] | None,
        kinds: Collection[MediaKind],
    ) -> None:
        self._vocab = vocab
        self._turns = turns
        self._control = ControlTokens(vocab)
        # What a template writes in every turn, by its exact text: a text never stands for another.
        self._encoded = lru_cache(maxsize=16)(partial(_encoded, vocab))
        self._single = lru_cache(maxsize=16)(partial(_single_tokens, vocab))
        self._kinds = kinds
        self._projected = None if read is None else lru_cache(maxsize=_REMEMBERED_MEDIA)(read)

    def tokenized(self, prompt: Prompt) -> TokensAndMedia:
        """Returns the tokens of a prompt, and the pictures and sounds among them. Raises
        ForgedPromptError if callers' text became a control token, RequestError for media without a projector."""
        if not prompt.media:
            own = self._vocab.encode(prompt.texts, add_bos=True)
            tokens = self._turns.splice(prompt.text, own)
            self._control.check(prompt.texts, tokens)
            return tokens, ()
        mixed: list[int] = []
        placed: list[ChunkAt] = []
        for text, group in groupby(prompt.pieces, lambda piece: isinstance(piece, Piece)):
            if text:
                pieces = [piece for piece in group if isinstance(piece, Piece)]
                part = self._vocab.encode(pieces, add_bos=not mixed)
                self._control.check(pieces, part)
                mixed += part
                continue
            mixed = mixed or self._vocab.encode((), add_bos=True)
            for piece in group:
                assert isinstance(piece, MediaPiece), "a prompt has texts and media"
                for unit in self.units(piece.media):
                    if isinstance(unit, MediaChunk):
                        placed.append(ChunkAt(len(mixed), unit))
                    mixed += row_tokens(unit) if isinstance(unit, MediaChunk) else unit
        return tuple(mixed), tuple(placed)

    def units(self, media: Media) -> Sequence[PromptPart]:
        """Returns a picture or a sound as the model reads it; the last ones are remembered."""
        if self._projected is None:
            raise RequestError(
                "The conversation has images or sounds, and this engine was loaded without a projector; load it with "
                'projector="auto", or with the file of its projector (mmproj).'
            )
        if media.kind not in self._kinds:
            raise RequestError(
                f"The model's projector takes {' and '.join(sorted(self._kinds))}, not {media.kind}; leave it out, or "
                "load the model with a projector that does."
            )
        return self._projected(media)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens, as a trial of a grammar is told them."""
        return Vocabulary.of(self._vocab)

    def turn_starts(self, tokens: Sequence[int], prompt: Prompt) -> tuple[int, ...]:
        """Returns where the last message and the turn to be generated begin in the prompt: later prompts may diverge
        there. Messages begin with the same control token as this turn."""
        start = whole(tokens, len(tokens) - max(1, len(self._encoded(prompt.prefix))))
        if start <= 0:
            return ()
        opens = tokens[start]
        if opens < 0 or not self._vocab.is_special(opens):
            return (start,)
        before = next((place for place in range(start - 1, 0, -1) if tokens[place] == opens), 0)
        return (before, start) if before else (start,)

    def limits(self, turn: TurnRequest, room: int) -> Limits:
        """Returns what ends the turn: the caller's options, and the template's `stop`. `room`: tokens left after the
        prompt; they limit a constrained turn."""
        sampling = turn.settings.sampling
        ends, texts = self._single(turn.prompt.stop)
        most = room if turn.constraint is not None else None
        only_calls = turn.constraint is not None and turn.constraint.only_calls
        return Limits(
            max_tokens=most if sampling.max_tokens is None else sampling.max_tokens,
            stop=(*sampling.stop, *texts),
            stop_tokens=frozenset(sampling.stop_tokens),
            ends=ends,
            markers=self._single(turn.markers)[0],
            ignore_eos=sampling.ignore_eos,
            calls="single" if turn.settings.parallel_tool_calls is False else "different" if only_calls else "any",
            repetition=0 if sampling.ignore_eos else sampling.repetition_limit,
            min_tokens=sampling.min_tokens or 0,
            reasoning_budget=turn.settings.reasoning_budget,
            reasoning_close=self._encoded(turn.reasoning_close),
        )
