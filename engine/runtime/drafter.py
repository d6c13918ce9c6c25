"""Guesses at the next tokens of all running sequences, verified in one decode (speculative decoding): copied from what
a sequence holds, or written by a smaller model.

The output is drawn from the model's own logits, so guesses change its speed only.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from engine.errors import DecodeError
from engine.runtime.backend import Backend, Row
from engine.runtime.draft_rule import DraftRule, MeanCost
from engine.runtime.ngram import Ngrams
from engine.runtime.prefix import common_prefix
from engine.runtime.scheduler import Chunk, PrefillBudget
from engine.runtime.sequence import SequenceState

_log = logging.getLogger("engine.runner")
_LEAST_PROBABILITY = 0.6
"""A draft model's draft ends where its best token is less probable: such a guess is rarely worth its row. Between 0.3
and 0.7 the time per token was about the same; without it, a tenth more."""
_FAILURES = 3
"""Failed decodes in a row after which a draft model is not used any more."""


class Due(NamedTuple):
    """A sequence whose next tokens are to be guessed, at most `size` of them."""

    state: SequenceState
    size: int


class Drafter(Protocol):
    """Makes guesses. `sizes`: the sizes of drafts to choose from. `longest_rest`: the most tokens between two tries
    where guesses do not pay. `cost`: the seconds that it takes to make one guess for each sequence."""

    @property
    def sizes(self) -> Sequence[int]: ...
    @property
    def longest_rest(self) -> int: ...
    @property
    def cost(self) -> float: ...

    def propose(self, due: Sequence[Due]) -> Sequence[Sequence[int]]:
        """Returns the guesses for each of the sequences, in their order; none where nothing comes to mind."""
        ...


class NgramDrafter:
    """Copies what followed the sequence's last tokens where they stood before.

    Guesses are evaluated together with the token before them: with it, 3, 7 or 15 guesses fill the blocks of four rows
    that the kernels for repacked weights take at once (ggml-cpu/repack.cpp). Eight rows can take less time than seven.
    """

    longest_rest = 64
    cost = 0.0

    def __init__(self, longest: int) -> None:
        self.sizes: Sequence[int] = [size for size in (1, 3, 7, 15, 31) if size <= longest]

    def propose(self, due: Sequence[Due]) -> Sequence[Sequence[int]]:
        drafts: list[Sequence[int]] = []
        for state, size in due:
            if state.ngrams is None:
                state.ngrams = Ngrams(state.tokens)
            drafts.append(state.ngrams.propose(size))
        return drafts


class _Reader(NamedTuple):
    """A sequence that the draft model is to continue: it holds the first `held` of the tokens, and will be given those
    up to `stop`."""

    draft: list[int]
    size: int
    state: SequenceState
    held: int
    stop: int


class ModelDrafter:
    """Lets a smaller model of the same vocabulary continue all sequences together, one decode for each guess.

    Each sequence has the same number in the draft model's context as in the model's own. What the context holds is
    compared with the sequence's tokens before each draft: wrong guesses are cut off, and what is missing is read,
    within the budget of a step, so that long prompts do not hold up running answers. A sequence is not guessed for
    until all of it is read. `vocab_size`: the model's own number of tokens.
    """

    longest_rest = 1024

    def __init__(
        self, backend: Backend, longest: int, vocab_size: int, prefill_seconds: float, clock: Callable[[], float]
    ) -> None:
        info = backend.info
        self.sizes: Sequence[int] = range(1, longest + 1)
        self._backend = backend
        self._n_tokens = min(vocab_size, backend.vocab.size)
        self._clock = clock
        self._budget = PrefillBudget(info.n_batch, prefill_seconds)
        self._held: list[list[int]] = [[] for _ in range(info.n_sequences)]
        self._users: list[tuple[SequenceState | None, int]] = [(None, 0)] * info.n_sequences
        self._cost = MeanCost()
        self._failures = 0

    @property
    def cost(self) -> float:
        return self._cost.seconds

    def propose(self, due: Sequence[Due]) -> Sequence[Sequence[int]]:
        drafts: list[list[int]] = [[] for _ in due]
        if self._failures >= _FAILURES:
            return drafts
        try:
            self._write(self._read(due, drafts))
        except DecodeError as error:
            self._failures += 1
            self._forget()
            off = "; it is not used any more" if self._failures == _FAILURES else ""
            _log.warning("The draft model failed (%s)%s.", error, off)
            return [[] for _ in due]
        self._failures = 0
        return drafts

    def _read(self, due: Sequence[Due], drafts: Sequence[list[int]]) -> list[_Reader]:
        """Cut off wrong guesses and read what is missing, as much as a step may. Returns the sequences of which all is
        read, each with its first guess."""
        missing = sorted(((len(state.tokens) - self._kept(state), number) for number, (state, _) in enumerate(due)))
        room, readers = self._budget.rows, list[_Reader]()
        for count, number in missing:
            state, size = due[number]
            held = len(state.tokens) - count
            stop = held + min(count, room)
            if stop > held:
                room -= stop - held
                readers.append(_Reader(drafts[number], size, state, held, stop))
        readers.sort(key=lambda reader: reader.state.sequence)
        rows: list[Row] = []
        asked: list[tuple[int, _Reader]] = []
        for reader in readers:
            chunk = Chunk(reader.state, reader.held, reader.stop)
            rows += chunk.rows()
            if chunk.output:
                asked.append((len(rows) - 1, reader))
        began = self._clock()
        self._decode(rows)
        self._budget.took(len(rows), self._clock() - began)
        for reader in readers:
            self._users[reader.state.sequence] = reader.state, reader.stop
        return [reader for row, reader in asked if self._guess(row, reader)]

    def _write(self, readers: list[_Reader]) -> None:
        """Guess on, one token of each sequence at a time, until every draft is complete."""
        while readers := [reader for reader in readers if len(reader.draft) < reader.size]:
            began = self._clock()
            self._decode(
                [
                    Row(draft[-1], len(state.tokens) + len(draft) - 1, state.sequence, True)
                    for draft, _, state, _, _ in readers
                ]
            )
            readers = [reader for row, reader in enumerate(readers) if self._guess(row, reader)]
            self._cost.add(self._clock() - began)

    def _guess(self, row: int, reader: _Reader) -> bool:
        """Add the likeliest token after this row to the draft. Returns False where the draft ends instead."""
        token, probability = self._backend.likeliest(row)
        if probability < _LEAST_PROBABILITY or token >= self._n_tokens or self._backend.vocab.is_end(token):
            return False
        reader.draft.append(token)
        return True

    def _kept(self, state: SequenceState) -> int:
        """Returns how many of the sequence's tokens the draft model holds, after cutting off what differs. The last
        token is always left to read, for its logits."""
        held, tokens, (user, same) = self._held[state.sequence], state.tokens, self._users[state.sequence]
        most = len(tokens) - 1
        if user is state:  # whose first `same` tokens are held
            same = min(same, most)
            while same < min(len(held), most) and held[same] == tokens[same]:
                same += 1
        else:
            same = common_prefix(held, tokens, most)
        if same < len(held):
            same = same if self._backend.trim(state.sequence, same) else 0
            if not same:
                self._backend.trim(state.sequence, 0)
            del held[same:]
        self._users[state.sequence] = state, same
        return same

    def _decode(self, rows: Sequence[Row]) -> None:
        self._backend.decode(rows)
        for row in rows:
            self._held[row.sequence].append(row.token)

    def _forget(self) -> None:
        for sequence, held in enumerate(self._held):
            self._backend.trim(sequence, 0)
            held.clear()
            self._users[sequence] = None, 0


class Drafts:
    """The drafts of a loop's sequences: who guesses, how much, and what came of it. `n_ctx`: the most tokens of a
    sequence."""

    def __init__(self, drafter: Drafter, n_ctx: int) -> None:
        self._drafter = drafter
        self._n_ctx = n_ctx
        self.rule = DraftRule(drafter.sizes, drafter.longest_rest)

    def guess(self, due: Sequence[SequenceState], rows: int) -> None:
        """Let each of these sequences, which are decoded next, guess its next tokens: at most `rows` in all."""
        share = rows // max(len(due), 1)
        asked: list[Due] = []
        for state in due:
            limits, left = state.request.limits, self._n_ctx - len(state.tokens)
            if limits.max_tokens is not None:  # the last token needs no guess, nor what would follow it
                left = min(left, limits.max_tokens - state.generation.tokens - 1)
            if size := self.rule.size(state.drafts, min(share, left), len(due), self._drafter.cost):
                asked.append(Due(state, size))
        if not asked:
            return
        for (state, _), draft in zip(asked, self._drafter.propose(asked), strict=True):
            matcher = state.generation.matcher
            state.draft = tuple(draft if matcher is None else matcher.allowed(draft))

    def judged(self, state: SequenceState, drafted: int, accepted: int) -> None:
        """Record that `accepted` of a sequence's `drafted` guesses were right."""
        self.rule.judged(state.drafts, drafted, accepted)


def drafter_for(
    backend: Backend, draft: Backend | None, longest: int, prefill_seconds: float, clock: Callable[[], float]
) -> Drafts | None:
    """Returns the drafts of a loop over `backend`: by the model `draft`, or copied from the sequences if there is none;
    None for none (`longest` is 0, or the memory cannot be cut, so that wrong guesses would stay)."""
    if not longest or not backend.info.can_share:
        return None
    if draft is None:
        return Drafts(NgramDrafter(longest), backend.info.n_ctx)
    return Drafts(ModelDrafter(draft, longest, backend.vocab.size, prefill_seconds, clock), backend.info.n_ctx)
