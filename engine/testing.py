"""A model without a model: a vocabulary of bytes, and a backend whose replies are written in advance.

Knows: the backend's protocol, and how a KV cache keeps its books (which sequence holds which positions, what shares a
cell, when it is full). Does not know: weights, or how the replies came about. It is for your tests as much as for ours:
an agent runs against it in milliseconds, through the same scheduler, prefix cache, parser and streams as on real
weights. What the engine decodes is checked at each draw: the sequence must hold exactly the prompt and the tokens
accepted since.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.errors import DecodeError, EngineError
from engine.parsing.reader import Piece
from engine.runtime.backend import Row, Sampler
from engine.runtime.logprobs import Logprob, TokenLogprobs
from engine.runtime.prefix import common_prefix
from engine.runtime.state_file import Origin
from engine.types import SamplingParams


class ByteVocab:
    """256 tokens, one for each byte, and after them the control tokens, in the order given.

    `control`: the texts of the control tokens; `end`: those that end a generation (they need not be repeated in
    `control`); the first of `end` is what ScriptedBackend writes when a reply is over. `bos`: the token that `encode`
    puts first when asked to.
    """

    def __init__(
        self, control: Sequence[str] = (), *, end: Sequence[str] = ("<|im_end|>",), bos: str | None = None
    ) -> None:
        if not end:
            raise ValueError("a vocabulary needs at least one end token: ByteVocab(end=['<|im_end|>'])")
        texts: dict[str, None] = dict.fromkeys([*control, *end, *([bos] if bos else [])])
        self._ids = {text: 256 + index for index, text in enumerate(texts)}
        self._bytes = [bytes([value]) for value in range(256)] + [text.encode() for text in texts]
        self._ends = frozenset(self._ids[text] for text in end)
        self._control = frozenset(texts)
        self._bos = bos
        self.end = self._ids[end[0]]
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("(" + "|".join(re.escape(text) for text in longest_first) + ")")

    @property
    def size(self) -> int:
        return len(self._bytes)

    @property
    def control_tokens(self) -> frozenset[str]:
        """The texts of the control tokens."""
        return self._control

    def token(self, text: str) -> int:
        """The id of a control token, by its text."""
        return self._ids[text]

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """The bytes of a text; with `special`, control-token text becomes control tokens."""
        if not special:
            return list(text.encode())
        tokens: list[int] = []
        for part in self._pattern.split(text):
            tokens.extend([self._ids[part]] if part in self._ids else part.encode())
        return tokens

    def encode(self, pieces: Sequence[Piece], *, add_bos: bool) -> list[int]:
        """The tokens of a prompt; only pieces with `special` can form control tokens."""
        tokens = [self._ids[self._bos]] if add_bos and self._bos else []
        for piece in pieces:
            tokens += self.tokenize(piece.text, special=piece.special)
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def is_special(self, token: int) -> bool:
        return token >= 256

    def is_end(self, token: int) -> bool:
        return token in self._ends

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, control tokens included."""
        return b"".join(self._bytes[token] for token in tokens).decode(errors="replace")


@dataclass(slots=True)
class _Cell:
    """One position's entry; `digest` is over this token and all before it."""

    token: int
    digest: int
    sequences: int = 1


@dataclass(slots=True)
class ScriptedSampler:
    """The script of one request: what it still has to say. `tokens` are those it knows of, the prompt's first."""

    params: SamplingParams
    tokens: list[int] = field(default_factory=list[int])
    digest: int | None = None
    reply: list[int] = field(default_factory=list)
    drawn: int = 0
    forced: bool = False
    closed: bool = False

    def accept(self, token: int) -> None:
        self.tokens.append(token)
        if self.digest is not None:
            self.digest = hash((self.digest, token))
            self.forced = True

    def close(self) -> None:
        self.closed = True


class ScriptedBackend:
    """A `Backend` that says what it is told to.

    `replies` is a list (each request takes the next one when its first token is drawn) or a function from the prompt's
    text, control tokens included, to the reply's text; for several requests at once take a function. Control-token text
    in a reply becomes control tokens, and an end token follows each reply. Tokens that the engine forces into a
    sequence do not use up the script; a function is asked again after them, with the whole text so far.

    `before_decode(rows)` runs first in each decode: raise `DecodeError` there to fail it, sleep or wait there to hold
    it. `delay` seconds pass in each decode, unless it is aborted. `trimmable=False` behaves like a recurrent memory:
    a sequence is kept whole or forgotten. `mixed_rows` (None: all of a batch), `copy_cost` and `n_ctx_other` are what
    it says of itself as a `Backend`; `relaid()` exchanges the last and `n_ctx_sequence`. For assertions: `decodes`
    counts the calls of `decode`, `evaluated` the rows, `batches` keeps each call's number of rows, `used` is the number
    of cells taken, `samplers` are all that were made, `closed` says whether `close()` was called.
    """

    def __init__(
        self,
        replies: Sequence[str] | Callable[[str], str],
        *,
        vocab: ByteVocab | None = None,
        n_ctx: int = 4096,
        n_batch: int = 256,
        n_sequences: int = 4,
        before_decode: Callable[[Sequence[Row]], None] | None = None,
        delay: float = 0.0,
        trimmable: bool = True,
        mixed_rows: int | None = None,
        copy_cost: int = 0,
        n_ctx_other: int = 0,
    ) -> None:
        self.vocab: ByteVocab = vocab if vocab is not None else ByteVocab()
        self.n_ctx: int = n_ctx
        self.n_ctx_sequence: int = n_ctx
        self.n_ctx_other: int = n_ctx_other
        self.n_batch: int = n_batch
        self.n_outputs: int = n_batch
        self.n_sequences: int = n_sequences
        self.before_decode = before_decode
        self.delay = delay
        self.trimmable = trimmable
        self.can_share: bool = trimmable
        self.mixed_rows: int = n_batch if mixed_rows is None else mixed_rows
        self.copy_cost: int = copy_cost
        self.decodes = 0
        self.evaluated = 0
        self.batches: list[int] = []
        self.used = 0
        self.samplers: list[ScriptedSampler] = []
        self.attached: dict[int, Sampler] = {}
        self.closed = False
        self._function = replies if callable(replies) else None
        self._replies = [] if callable(replies) else list(replies)
        self._given = 0
        self._cells: list[list[_Cell]] = [[] for _ in range(n_sequences)]
        self._rows: Sequence[Row] = ()
        self._aborted = threading.Event()

    def tokens(self, sequence: int) -> list[int]:
        """What a sequence holds, for assertions."""
        return [cell.token for cell in self._cells[sequence]]

    def decode(self, rows: Sequence[Row]) -> None:
        self.decodes += 1
        self.batches.append(len(rows))
        if self.before_decode is not None:
            self.before_decode(rows)
        if self._aborted.wait(self.delay) if self.delay else self._aborted.is_set():
            raise DecodeError(f"a decode of {len(rows)} rows was aborted.", "aborted")
        self._check(rows)
        for row in rows:
            self._append(row.sequence, row.token)
        self.evaluated += len(rows)
        self._rows = tuple(rows)

    def _append(self, sequence: int, token: int) -> None:
        cells = self._cells[sequence]
        cells.append(_Cell(token, hash((cells[-1].digest if cells else 0, token))))
        self.used += 1

    def _check(self, rows: Sequence[Row]) -> None:
        if not 0 < len(rows) <= self.n_batch:
            raise DecodeError(f"a batch of {len(rows)} rows; it takes 1 to {self.n_batch} (n_batch). Split it.")
        if self.used + len(rows) > self.n_ctx:
            raise DecodeError(
                f"the KV cache is full: {self.used} of {self.n_ctx} cells are taken and {len(rows)} are needed. "
                "Free a sequence, or load with a larger n_ctx."
            )
        expected: dict[int, int] = {}
        for row in rows:
            position = expected.get(row.sequence, len(self._cells[row.sequence]))
            if row.position != position:
                raise DecodeError(
                    f"sequence {row.sequence} continues at position {position}, not at {row.position}. Trim it first."
                )
            expected[row.sequence] = position + 1
            if position >= self.n_ctx_sequence:
                raise DecodeError(f"sequence {row.sequence} is full: it holds {position} tokens. End it.", "no_slot")

    def abort(self) -> None:
        self._aborted.set()

    @property
    def aborting(self) -> bool:
        """Whether decodes are being aborted, for assertions."""
        return self._aborted.is_set()

    def resume(self) -> None:
        self._aborted.clear()

    def sampler(self, params: SamplingParams, tokens: Sequence[int] = ()) -> ScriptedSampler:
        sampler = ScriptedSampler(params, list(tokens))
        self.samplers.append(sampler)
        return sampler

    def attach(self, sampler: Sampler, sequence: int) -> None:
        if sequence in self.attached or any(other is sampler for other in self.attached.values()):
            raise EngineError(f"sequence {sequence} or its sampler is attached already. Detach it first.")
        self.attached[sequence] = sampler

    def detach(self, sequence: int) -> None:
        self.attached.pop(sequence, None)

    def sample(self, sampler: Sampler, row: int) -> int:
        if not isinstance(sampler, ScriptedSampler):
            raise EngineError(f"{sampler!r} was not made by this backend; take one from its sampler().")
        at = self._with_output(row)
        if self.attached.get(at.sequence, sampler) is not sampler:
            raise EngineError(f"another sampler is attached to sequence {at.sequence}. Detach it first.")
        digest = self._cells[at.sequence][at.position].digest
        if sampler.digest is None:
            sampler.reply = self._next_reply(at)
        elif sampler.digest != digest and not self._is_shifted(sampler, at):
            raise EngineError(
                f"sequence {at.sequence} does not hold its prompt and the accepted tokens up to {at.position}: "
                "sequences were mixed up. Report this as a bug."
            )
        elif sampler.forced and self._function is not None:
            sampler.reply, sampler.drawn = self._next_reply(at), 0
        token = sampler.reply[sampler.drawn] if sampler.drawn < len(sampler.reply) else self.vocab.end
        sampler.drawn += 1
        sampler.forced = False
        sampler.digest = hash((digest, token))
        sampler.tokens.append(token)
        return token

    def _is_shifted(self, sampler: ScriptedSampler, at: Row) -> bool:
        """Whether the sequence holds the sampler's tokens less some in the middle: the context was shifted, and what
        was left evaluated again."""
        held, known = self.tokens(at.sequence)[: at.position + 1], sampler.tokens
        head = common_prefix(held, known, len(held))
        return 0 < head < len(held) < len(known) and held[head:] == known[head - len(held) :]

    def _with_output(self, row: int) -> Row:
        at = self._rows[row]
        if not at.output:
            raise EngineError(f"row {row} of the last batch was decoded without output; ask for it in the Row.")
        return at

    def logprobs(self, row: int, token: int, top: int) -> TokenLogprobs:
        """A script is certain: the token has probability 1, and there are no alternatives."""
        self._with_output(row)
        drawn = Logprob(token, 0.0, self.vocab.token_bytes(token))
        return TokenLogprobs(drawn, (drawn,)[:top])

    def _next_reply(self, at: Row) -> list[int]:
        if self._function is not None:
            text = self._function(self.vocab.text(self.tokens(at.sequence)[: at.position + 1]))
        elif self._given < len(self._replies):
            text = self._replies[self._given]
        else:
            raise EngineError(
                f"the script has {len(self._replies)} replies and request {self._given + 1} asks for one more. "
                "Give ScriptedBackend a longer list, or a function."
            )
        self._given += 1
        return self.vocab.tokenize(text, special=True)

    def positions(self, sequence: int) -> int:
        return len(self._cells[sequence])

    def trim(self, sequence: int, position: int) -> bool:
        cells = self._cells[sequence]
        if not self.trimmable and 0 < position < len(cells):
            return False
        for cell in cells[position:]:
            cell.sequences -= 1
            self.used -= not cell.sequences
        del cells[position:]
        return True

    def shift(self, sequence: int, start: int, stop: int) -> bool:
        cells = self._cells[sequence]
        if not self.trimmable:
            return False
        if any(cell.sequences > 1 for cell in cells[stop:]):
            raise EngineError(f"sequence {sequence} shares cells that would move; copy or cut them first.")
        for cell in cells[start:stop]:
            cell.sequences -= 1
            self.used -= not cell.sequences
        del cells[start:stop]
        return True

    def save(self, sequence: int) -> bytes:
        return json.dumps(self.tokens(sequence)).encode()

    def restore(self, sequence: int, state: bytes) -> None:
        self.trim(sequence, 0)
        tokens = json.loads(state)
        if self.used + len(tokens) > self.n_ctx:
            raise DecodeError(f"the KV cache is full: a state of {len(tokens)} tokens does not fit.", "no_slot")
        for token in tokens:
            self._append(sequence, token)

    @property
    def origin(self) -> Origin:
        return Origin("scripted", "testing", "none", "none", "off", 0.0, 0.0, swa_full=True, buffers=1)

    def copy(self, source: int, target: int, positions: int) -> None:
        if self._cells[target]:
            raise DecodeError(f"sequence {target} is not empty; trim it to 0 before copying into it.")
        if not self.trimmable and positions != len(self._cells[source]):
            raise DecodeError("a recurrent memory copies a sequence whole or not at all.")
        shared = self._cells[source][:positions]
        for cell in shared:
            cell.sequences += 1
        self._cells[target] = shared

    def relaid(self) -> "ScriptedBackend":
        if not self.n_ctx_other or self.attached:
            raise EngineError(f"there is no other layout, or sequences {list(self.attached)} are in use. Detach them.")
        self.n_ctx_sequence, self.n_ctx_other = self.n_ctx_other, self.n_ctx_sequence
        self._cells = [[] for _ in range(self.n_sequences)]
        self._rows, self.used = (), 0
        return self

    def close(self) -> None:
        self.closed = True
