"""Test doubles for a model: a vocabulary of bytes, and a backend with scripted replies.

It is for users' tests as well as ours: an agent runs on it in milliseconds, through the same scheduler, prefix cache,
parser and streams as on real weights. Each draw checks what the engine decoded: the sequence must hold exactly the
prompt and the tokens accepted since.
"""

import json
import random
import re
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from engine.constraint.matcher import Mask
from engine.errors import DecodeError, EngineError, ModelLoadError, RequestError
from engine.parsing.reader import Piece
from engine.runtime.adapters import Scales
from engine.runtime.backend import ContextInfo, FimTokens, Row, Sampler
from engine.runtime.logprobs import Logprob, TokenLogprobs
from engine.runtime.media import Projector, Rows, Unit, row_tokens
from engine.runtime.prefix import common_prefix
from engine.runtime.state_file import Origin
from engine.runtime.vectors import VectorInfo
from engine.types import SamplingParams


class ByteVocab:
    """A vocabulary of 256 tokens, one for each byte, followed by the control tokens in the order given.

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
        """Returns the id of a control token."""
        return self._ids[text]

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Returns the bytes of a text; with `special`, control-token text becomes control tokens."""
        if not special:
            return list(text.encode("utf-8", "replace"))
        tokens: list[int] = []
        for part in self._pattern.split(text):
            tokens.extend([self._ids[part]] if part in self._ids else part.encode("utf-8", "replace"))
        return tokens

    def encode(self, pieces: Sequence[Piece], *, add_bos: bool) -> list[int]:
        """Returns the tokens of a prompt; only pieces with `special` can form control tokens."""
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

    @property
    def fim(self) -> FimTokens | None:
        names = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
        known = [self._ids.get(name, -1) for name in names]
        return FimTokens(*known) if min(known[:3]) >= 0 else None

    @property
    def closing(self) -> tuple[int, ...]:
        return ()

    @property
    def between(self) -> tuple[int, ...]:
        return tuple(b"\n")

    def text(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, including control tokens."""
        return b"".join(self._bytes[token] for token in tokens).decode(errors="replace")


@dataclass(slots=True)
class _Cell:
    """The entry of one position, computed with the adapters `scales`; `digest` covers this token and all before it."""

    token: int
    digest: int
    scales: Scales
    sequences: int = 1


@dataclass
class ScriptedSampler:
    """The script of one request. `tokens` are the tokens that it knows of, the prompt's first."""

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
            self.drawn += self.reply[self.drawn : self.drawn + 1] == [token]

    def allowed(self, token: int, mask: "Mask", vocab: ByteVocab) -> int:
        """Returns the token if the constraint allows it. If not, the script is over: return the end token if that is
        allowed, else any allowed token, drawn with the sampling's seed."""
        every = [each for each in range(vocab.size) if mask[each >> 5] >> (each & 31) & 1]
        if token in every:
            return token
        self.reply = []
        if not every:
            raise RequestError("The constraint allows no token here; check its grammar.")
        return vocab.end if vocab.end in every else self.random.choice(every)

    @cached_property
    def random(self) -> random.Random:
        """The random generator that draws tokens once the script is over."""
        return random.Random(self.params.seed or 0)

    def close(self) -> None:
        self.closed = True


class ScriptedVectors:
    """Vectors without weights: each word of a text adds to the number that its digest chooses, so texts that share
    words are near each other. `texts` lists what was embedded, for assertions."""

    def __init__(self, vocab: ByteVocab, size: int, longest: int) -> None:
        self.info = VectorInfo("mean", size, longest, rows=512, sequences=64)
        self.texts: list[str] = []
        self._vocab = vocab

    def embed(self, texts: Sequence[Sequence[int]]) -> list[bytes]:
        return [self._vector(self._vocab.text(text)) for text in texts]

    def _vector(self, text: str) -> bytes:
        self.texts.append(text)
        numbers = [0.0] * self.info.size
        for word in text.lower().split() or [""]:
            numbers[zlib.crc32(word.strip(".,;:!?").encode()) % self.info.size] += 1.0
        return struct.pack(f"<{len(numbers)}f", *numbers)

    def abort(self) -> None:
        """Do nothing: a decode takes no time."""


class ScriptedBackend:
    """A `Backend` with scripted replies.

    `replies` is a list (each request takes the next one when its first token is drawn) or a function from the prompt's
    text, control tokens included, to the reply's text; for several requests at once use a function. Control-token text
    in a reply becomes control tokens, and an end token follows each reply. Under a constraint a reply continues as far
    as it is allowed, then with random text that is. Tokens that the engine forces into a sequence use up the script if
    they are the same; a function is called again after them, with all of the text so far.

    `n_ctx` is what each of `n_sequences` conversations may hold; with `kv_tokens` they share one pool of that many
    cells. `before_decode(rows)` runs first in each decode: raise `DecodeError` there to fail it, sleep or wait there to
    hold it. `delay` seconds pass in each decode, unless it is aborted. `trimmable=False` behaves like a recurrent
    memory: a sequence is kept complete, removed, or taken back to a checkpoint. `info` is its `ContextInfo` as a
    `Backend`. It loads any file as an adapter. For assertions: `decodes` counts the calls of `decode`, `evaluated` the
    rows, `batches` lists each call's number of rows, `used` is the number of cells in use, `samplers` are all made,
    `adapters` those loaded, `adapted` the adapters of each decode, `changes` the calls of `adapt`, `closed`: whether
    `close()` was called.
    """

    def __init__(
        self,
        replies: Sequence[str] | Callable[[str], str],
        *,
        vocab: ByteVocab | None = None,
        n_ctx: int = 4096,
        n_batch: int = 256,
        n_sequences: int = 4,
        kv_tokens: int | None = None,
        before_decode: Callable[[Sequence[Row]], None] | None = None,
        delay: float = 0.0,
        trimmable: bool = True,
        dimensions: int = 256,
        projector: Projector | None = None,
    ) -> None:
        self.vocab: ByteVocab = vocab if vocab is not None else ByteVocab()
        self._vectors = ScriptedVectors(self.vocab, dimensions, n_ctx)
        self.info = ContextInfo(
            n_ctx=n_ctx,
            n_sequences=n_sequences,
            kv_tokens=kv_tokens or 0,
            n_batch=n_batch,
            n_outputs=n_batch,
            can_share=trimmable,
            checkpoint_bytes=0 if trimmable else 1 << 20,
            vectors=self._vectors.info,
            media=() if projector is None else tuple(sorted(projector.kinds)),
        )
        self.projector = projector
        self.media: list[bytes] = []
        self.before_decode = before_decode
        self.delay = delay
        self.trimmable = trimmable
        self.decodes = 0
        self.evaluated = 0
        self.batches: list[int] = []
        self.used = 0
        self.samplers: list[ScriptedSampler] = []
        self.attached: dict[int, Sampler] = {}
        self.adapters: set[str] = set()
        self.adapted: list[Scales] = []
        self.changes: list[Scales] = []
        self.closed = False
        self._function = replies if callable(replies) else None
        self._replies = [] if callable(replies) else list(replies)
        self._given = 0
        self._cells: list[list[_Cell]] = [[] for _ in range(self.info.n_sequences)]
        self._rows: Sequence[Row] = ()
        self._aborted = threading.Event()

    def vectors(self) -> ScriptedVectors:
        return self._vectors

    def tokens(self, sequence: int) -> list[int]:
        """Returns the tokens of a sequence, for assertions."""
        return [cell.token for cell in self._cells[sequence]]

    def computed(self, sequence: int) -> list[Scales]:
        """Returns the adapters that computed each position of a sequence, for assertions."""
        return [cell.scales for cell in self._cells[sequence]]

    def decode(self, rows: Sequence[Row]) -> None:
        self.decodes += 1
        self.batches.append(len(rows))
        self.adapted.append(self._in_force)
        if self.before_decode is not None:
            self.before_decode(rows)
        aborted = self._aborted.wait(self.delay) if self.delay else self._aborted.is_set()
        self._aborted.clear()
        if aborted:
            raise DecodeError(f"a decode of {len(rows)} rows was aborted.", "aborted")
        self._check(rows)
        for row in rows:
            self._append(row.sequence, row.token)
        self.evaluated += len(rows)
        self._rows = tuple(rows)

    @property
    def _in_force(self) -> Scales:
        return self.changes[-1] if self.changes else ()

    def load_adapter(self, digest: str, path: Path) -> None:
        if not path.is_file():
            raise ModelLoadError(f"There is no file {path}; check the path.")
        self.adapters.add(digest)

    def adapt(self, scales: Scales) -> None:
        if scales == self._in_force or not self.adapters.issuperset(digest for digest, _ in scales):
            raise EngineError(f"{scales} are in force already, or not loaded. Report this as a bug.")
        self.changes.append(scales)

    def free_adapter(self, digest: str) -> None:
        if any(digest == each for each, _ in self._in_force):
            raise EngineError(f"the adapter {digest} is in force. Put others in force first.")
        self.adapters.remove(digest)

    def decode_media(
        self, unit: Unit, sequence: int, position: int, rows: "Rows | None" = None, part: slice = slice(None)
    ) -> None:
        """Evaluate rows of a unit, which take as many positions. After the last one its key joins `media`."""
        if rows is None and self.projector is not None:
            self.projector.encode(unit)
        start, stop, _ = part.indices(unit.rows)
        if position + start != len(self._cells[sequence]):
            raise DecodeError(f"sequence {sequence} does not continue at position {position + start}. Trim it first.")
        for token in row_tokens(unit)[start:stop]:
            self._append(sequence, token)
        self.evaluated += stop - start
        if stop == unit.rows:
            self.media.append(unit.key)

    def _append(self, sequence: int, token: int) -> None:
        cells = self._cells[sequence]
        cells.append(_Cell(token, hash((cells[-1].digest if cells else 0, token)), self._in_force))
        self.used += 1

    def _check(self, rows: Sequence[Row]) -> None:
        info = self.info
        if not 0 < len(rows) <= info.n_batch:
            raise DecodeError(f"a batch of {len(rows)} rows; it takes 1 to {info.n_batch} (n_batch). Split it.")
        if self.used + len(rows) > info.cells:
            raise DecodeError(
                f"the KV cache is full: {self.used} of {info.cells} cells are taken and {len(rows)} are needed. "
                "Free a sequence, or load with more."
            )
        expected: dict[int, int] = {}
        for row in rows:
            position = expected.get(row.sequence, len(self._cells[row.sequence]))
            if row.position != position:
                raise DecodeError(
                    f"sequence {row.sequence} continues at position {position}, not at {row.position}. Trim it first."
                )
            expected[row.sequence] = position + 1
            if position >= info.n_ctx:
                raise DecodeError(f"sequence {row.sequence} is full: it holds {position} tokens. End it.", "no_slot")

    def abort(self) -> None:
        self._aborted.set()

    @property
    def aborting(self) -> bool:
        """Whether decodes are being aborted, for assertions."""
        return self._aborted.is_set()

    def sampler(self, params: SamplingParams, tokens: Sequence[int] = ()) -> ScriptedSampler:
        sampler = ScriptedSampler(params, list(tokens))
        self.samplers.append(sampler)
        return sampler

    def attach(self, sequence: int, sampler: Sampler | None) -> None:
        self.attached.pop(sequence, None)
        if sampler is None:
            return
        if any(other is sampler for other in self.attached.values()):
            raise EngineError(f"the sampler for sequence {sequence} is attached to another. Detach it first.")
        self.attached[sequence] = sampler

    def sample(self, sampler: Sampler, row: int, mask: "Mask | None" = None) -> int:
        if not isinstance(sampler, ScriptedSampler):
            raise EngineError(f"{sampler!r} was not made by this backend; take one from its sampler().")
        at = self._with_output(row)
        if self.attached.get(at.sequence, sampler) is not sampler:
            raise EngineError(f"another sampler is attached to sequence {at.sequence}. Detach it first.")
        digest = self._cells[at.sequence][at.position].digest
        if sampler.digest is None:
            sampler.reply = self._next_reply(at)
        elif sampler.digest != digest and not self._lacks_replaced(sampler, at):
            raise EngineError(
                f"sequence {at.sequence} does not hold its prompt and the accepted tokens up to {at.position}: "
                "sequences were mixed up. Report this as a bug."
            )
        elif sampler.forced and self._function is not None:
            sampler.reply, sampler.drawn = self._next_reply(at), 0
        token = sampler.reply[sampler.drawn] if sampler.drawn < len(sampler.reply) else self.vocab.end
        if mask is not None:
            token = sampler.allowed(token, mask, self.vocab)
        sampler.drawn += 1
        sampler.forced = False
        sampler.digest = hash((digest, token))
        sampler.tokens.append(token)
        return token

    def _lacks_replaced(self, sampler: ScriptedSampler, at: Row) -> bool:
        """Whether the sequence holds the sampler's tokens except for a drawn one that the turn's grammar replaced."""
        held, drawn = self.tokens(at.sequence)[: at.position + 1], sampler.tokens
        head = common_prefix(held, drawn, len(held))
        return 0 < head < len(held) < len(drawn) and held[head:] == drawn[head - len(held) :]

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

    def likeliest(self, row: int) -> tuple[int, float]:
        """A script is certain: its next token, for the text so far, has probability 1."""
        reply = self._next_reply(self._with_output(row))
        return (reply[0] if reply else self.vocab.end), 1.0

    def _next_reply(self, at: Row) -> list[int]:
        if self._function is not None:
            held = self.tokens(at.sequence)[: at.position + 1]
            text = self._function(self.vocab.text([token if token >= 0 else ord("?") for token in held]))
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

    def state_size(self, sequence: int) -> int:
        return len(self.save(sequence))

    def save(self, sequence: int) -> bytes:
        return json.dumps(self.tokens(sequence)).encode()

    def restore(self, sequence: int, state: bytes) -> None:
        self.trim(sequence, 0)
        tokens = json.loads(state)
        if self.used + len(tokens) > self.info.cells:
            raise DecodeError(f"the KV cache is full: a state of {len(tokens)} tokens does not fit.", "no_slot")
        for token in tokens:
            self._append(sequence, token)

    def checkpoint(self, sequence: int) -> bytes:
        return self.save(sequence)

    def rewind(self, sequence: int, position: int, state: bytes) -> bool:
        tokens = json.loads(state)
        cells = self._cells[sequence]
        if tokens != self.tokens(sequence)[:position] or len(tokens) != position:
            raise EngineError(
                f"sequence {sequence} does not hold the checkpoint's {len(tokens)} tokens at position {position}: "
                "checkpoints were mixed up. Report this as a bug."
            )
        for cell in cells[position:]:
            cell.sequences -= 1
            self.used -= not cell.sequences
        del cells[position:]
        return True

    @property
    def origin(self) -> Origin:
        projector = "" if self.projector is None else "scripted"
        return Origin("scripted", "testing", "none", "none", "off", "", True, 1, projector=projector)

    def copy(self, source: int, target: int, positions: int) -> None:
        if self._cells[target]:
            raise DecodeError(f"sequence {target} is not empty; trim it to 0 before copying into it.")
        if not self.trimmable and positions != len(self._cells[source]):
            raise DecodeError("a recurrent memory can only copy a complete sequence.")
        shared = self._cells[source][:positions]
        for cell in shared:
            cell.sequences += 1
        self._cells[target] = shared

    def close(self) -> None:
        self.closed = True
