"""Guesses at the next tokens of all running sequences, verified in one decode (speculative decoding): copied from what
a sequence holds, or written by a smaller model or by the model's own head.

The output is drawn from the model's own logits, so guesses change its speed only.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from engine.runtime.cache.slots import common_prefix
from engine.runtime.draft.draft_rule import DraftRule, MeanCost
from engine.runtime.draft.ngram import Ngrams
from engine.runtime.loop.backend import Backend, ContextInfo, Row, Vocab
from engine.runtime.loop.scheduler import Chunk, PrefillBudget
from engine.runtime.loop.sequence import SequenceState
from engine.support.errors import DecodeError, EngineError

_log = logging.getLogger("engine.runner")
_LEAST_PROBABILITY = 0.6
"""A draft model's draft ends where its best token is less probable: such a guess is rarely worth its row. Between 0.3
and 0.7 the time per token was about the same; without it, a tenth more."""
_FAILURES = 3
"""Failed decodes in a row after which a draft model is not used any more."""
_MODEL_REST = 1024
_UNREAD = 32
"""Rows of a sequence that wait for the next guess; with more, a head reads them at once."""


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

    longest_rest = _MODEL_REST

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
        except (EngineError, MemoryError) as error:
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


@runtime_checkable
class Head(Protocol):
    """The context of a model's own head for the next tokens (MTP, NextN), beside the model's. A row of it is a token
    and the model's hidden state after the token before: float32 numbers, or None where that is not known."""

    @property
    def info(self) -> ContextInfo: ...
    @property
    def vocab(self) -> Vocab: ...
    def hidden(self, start: int, stop: int) -> Sequence[bytes]:
        """Returns the model's hidden states after these rows of its last decode."""
        ...

    def own_hidden(self, row: int) -> bytes:
        """Returns the head's own state after row `row` of its last decode, which had `output`: what follows a guess."""
        ...

    def read(self, rows: Sequence[Row], hidden: Sequence[bytes | None]) -> None:
        """Evaluate the rows, each with a hidden state. Raises DecodeError."""
        ...

    def likeliest(self, row: int) -> tuple[int, float]: ...
    def trim(self, sequence: int, position: int) -> bool: ...
    def copy(self, source: int, target: int, positions: int) -> None: ...


class _Track:
    """What is known of one sequence: its tokens from position `base` on, of which the head holds the first `read`;
    `hidden`: the model's states after the token before those that are not read, and after each of them. `used`: the
    number of the decode in which it last grew."""

    __slots__ = ("base", "hidden", "read", "tokens", "used", "user")

    def __init__(self, user: SequenceState | None = None, base: int = 0) -> None:
        self.user = user
        self.base = base
        self.tokens: list[int] = []
        self.read = self.used = 0
        self.hidden: list[bytes | None] = [None]

    @property
    def stop(self) -> int:
        return self.base + len(self.tokens)

    def begins(self, tokens: Sequence[int], position: int) -> bool:
        """Whether the first `position` of these tokens are known here, from `base` on."""
        wanted = position - self.base
        return wanted > 0 and common_prefix(self.tokens, tokens[self.base :], wanted) == wanted

    def unread(self, sequence: int) -> list[Row]:
        start = self.base + self.read
        return [Row(token, start + at, sequence, False) for at, token in enumerate(self.tokens[self.read :])]


class HeadDrafter:
    """Lets the model's own head continue all sequences together, one decode for each guess, from the model's hidden
    states.

    The states are there only after a decode of the model, so the head reads along: prompts at once, the few rows of an
    answer with its next guess. A beginning that the model copies from another sequence is copied here too. Where it
    was restored from a saved state, the head begins behind it; the hidden state before the first row is then not known,
    nor is it after a part was cut off.
    """

    longest_rest = _MODEL_REST

    def __init__(self, head: Head, longest: int, clock: Callable[[], float]) -> None:
        self.sizes: Sequence[int] = range(1, longest + 1)
        self._head = head
        self._clock = clock
        self._tracks = [_Track() for _ in range(head.info.n_sequences)]
        self._cost = MeanCost()
        self._failures = self._decodes = 0

    @property
    def cost(self) -> float:
        return self._cost.seconds

    def follow(self, chunks: Sequence[Chunk]) -> None:
        """Take the hidden states of the model's last decode, of these chunks; what each sequence still holds of its
        chunk was right."""
        if self._failures < _FAILURES:
            self._try(lambda: self._take(chunks))

    def _take(self, chunks: Sequence[Chunk]) -> None:
        row = 0
        self._decodes += 1
        for chunk in chunks:
            state, right = chunk.state, chunk.state.evaluated - chunk.start
            track = self._at(state, chunk.start)
            track.tokens += state.tokens[chunk.start : state.evaluated]
            track.hidden += self._head.hidden(row, row + right)
            track.used = self._decodes
            row += chunk.size
        sequences = sorted(chunk.state.sequence for chunk in chunks)
        self._read([each for each in sequences if len(self._tracks[each].hidden) > _UNREAD])

    def propose(self, due: Sequence[Due]) -> Sequence[Sequence[int]]:
        drafts: list[list[int]] = [[] for _ in due]
        followed = [
            (state, size, draft)
            for (state, size), draft in zip(due, drafts, strict=True)
            if (track := self._tracks[state.sequence]).user is state and track.stop == state.evaluated
        ]
        followed.sort(key=lambda each: each[0].sequence)
        if self._failures >= _FAILURES or not followed:
            return drafts
        if not self._try(lambda: self._guess(followed)):
            return [[] for _ in due]
        self._failures = 0
        return drafts

    def _guess(self, followed: Sequence[tuple[SequenceState, int, list[int]]]) -> None:
        """Read what is left and the newest token of each sequence, then guess on, one token of each at a time, until
        every draft is complete. What was guessed is forgotten: it is read again with the model's own states."""
        sequences = [state.sequence for state, _, _ in followed]
        if sum(len(self._tracks[each].hidden) for each in sequences) > self._head.info.n_batch:
            self._read(sequences)
        rows, hidden, asked = list[Row](), list[bytes | None](), list[int]()
        for state, _, _ in followed:
            track = self._tracks[state.sequence]
            rows += [*track.unread(state.sequence), Row(state.tokens[-1], track.stop, state.sequence, True)]
            hidden += track.hidden
            asked.append(len(rows) - 1)
        while rows:
            began = self._clock()
            self._evaluate(rows, hidden)
            rows, hidden, going = list[Row](), list[bytes | None](), list[tuple[SequenceState, int, list[int]]]()
            for row, (state, size, draft) in zip(asked, followed, strict=True):
                token, probability = self._head.likeliest(row)
                if probability < _LEAST_PROBABILITY or self._head.vocab.is_end(token):
                    continue
                draft.append(token)
                if len(draft) < size:
                    going.append((state, size, draft))
                    rows.append(Row(token, state.evaluated + len(draft), state.sequence, True))
                    hidden.append(self._head.own_hidden(row))
            self._cost.add(self._clock() - began)
            followed, asked = going, list(range(len(going)))
        self._have_read(sequences)

    def _read(self, sequences: Sequence[int]) -> None:
        """Let the head read what it has not read of these sequences."""
        rows, hidden = list[Row](), list[bytes | None]()
        for sequence in sequences:
            rows += self._tracks[sequence].unread(sequence)
            hidden += self._tracks[sequence].hidden[:-1]
        most = self._head.info.n_batch
        for start in range(0, len(rows), most):
            self._evaluate(rows[start : start + most], hidden[start : start + most])
        self._have_read(sequences)

    def _evaluate(self, rows: Sequence[Row], hidden: Sequence[bytes | None]) -> None:
        """Evaluate rows of the head; while a shared pool is full, forget what was used longest ago."""
        while True:
            try:
                return self._head.read(rows, hidden)
            except DecodeError as error:
                busy = {row.sequence for row in rows}
                idle = [number for number, track in enumerate(self._tracks) if track.read and number not in busy]
                if error.reason != "no_slot" or not idle:
                    raise
                self._begin(min(idle, key=lambda number: self._tracks[number].used), None, 0)

    def _have_read(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            track = self._tracks[sequence]
            track.read, track.hidden = len(track.tokens), track.hidden[-1:]
            if not self._head.trim(sequence, track.stop):
                self._begin(sequence, track.user, track.stop)

    def _at(self, state: SequenceState, position: int) -> _Track:
        """Returns what is known of a sequence, cut at `position`: what another one holds, or nothing, if other tokens
        stood before it."""
        track = self._tracks[state.sequence]
        wanted = position - track.base
        same = wanted if track.user is state else common_prefix(track.tokens, state.tokens[track.base :], wanted)
        if not 0 <= wanted <= min(same, len(track.tokens)):
            return self._copied(state, position)
        track.user = state
        del track.tokens[wanted:]
        if wanted >= track.read:
            del track.hidden[wanted - track.read + 1 :]
            return track
        track.read = wanted
        track.hidden = [None]
        return track if self._head.trim(state.sequence, position) else self._begin(state.sequence, state, position)

    def _copied(self, state: SequenceState, position: int) -> _Track:
        track = self._begin(state.sequence, state, position)
        for source, other in enumerate(self._tracks):
            if other.begins(state.tokens, position):
                if other.base + other.read < position:
                    self._read([source])
                self._head.copy(source, state.sequence, position)
                track.base, track.tokens = other.base, state.tokens[other.base : position]
                track.read = len(track.tokens)
                break
        return track

    def _begin(self, sequence: int, user: SequenceState | None, position: int) -> _Track:
        self._head.trim(sequence, 0)
        track = self._tracks[sequence] = _Track(user, position)
        return track

    def _try(self, work: Callable[[], None]) -> bool:
        """Returns whether the head worked; after a failure it begins anew. That a shared pool is full is none."""
        try:
            work()
        except (EngineError, MemoryError) as error:
            is_full = isinstance(error, DecodeError) and error.reason == "no_slot"
            self._failures += not is_full
            for sequence in range(len(self._tracks)):
                self._begin(sequence, None, 0)
            off = "; it is not used any more" if self._failures == _FAILURES else ""
            level = logging.DEBUG if is_full else logging.WARNING
            _log.log(level, "The head for the next tokens failed (%s)%s.", error, off)
            return False
        return True


class Drafts:
    """The drafts of a loop's sequences: who guesses, how much, and what came of it. `n_ctx`: the most tokens of a
    sequence. `follow`: to be called with the chunks of each decode, after what follows them was drawn."""

    def __init__(self, drafter: Drafter, n_ctx: int, follow: Callable[[Sequence[Chunk]], None] | None = None) -> None:
        self._drafter = drafter
        self._n_ctx = n_ctx
        self.follow = follow
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
    """Returns the drafts of a loop over `backend`: by `draft`, a smaller model or the model's own head, or copied from
    the sequences if there is none; None for none (`longest` is 0, or the memory cannot be cut, so that wrong guesses
    would stay)."""
    if not longest or not backend.info.can_share:
        return None
    if draft is None:
        return Drafts(NgramDrafter(longest), backend.info.n_ctx)
    if isinstance(draft, Head):
        head = HeadDrafter(draft, longest, clock)
        return Drafts(head, backend.info.n_ctx, head.follow)
    return Drafts(ModelDrafter(draft, longest, backend.vocab.size, prefill_seconds, clock), backend.info.n_ctx)
