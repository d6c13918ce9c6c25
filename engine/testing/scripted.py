"""Test doubles for a model: an engine whose replies are a script, its backend, and a vocabulary of bytes.

It is for users' tests as well as ours: an agent runs on it in milliseconds, through the same scheduler, prefix cache,
parser and streams as on real weights. Each draw checks what the engine decoded: the sequence must hold exactly the
prompt and the tokens accepted since.
"""

import json
import random
import string
import struct
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from engine.api.engine import Engine
from engine.formats.check.roundtrip import SWITCHES, Outcome
from engine.formats.parsing import Parser
from engine.formats.template.chat_template import ChatTemplate
from engine.runtime.adapters.adapters import Scales
from engine.runtime.cache.slots import common_prefix
from engine.runtime.cache.state_file import Origin
from engine.runtime.guidance.matcher import Mask, TokenIds
from engine.runtime.loop.backend import Ahead, ContextInfo, Row, Sampler
from engine.runtime.loop.logprobs import Logprob, TokenLogprobs
from engine.runtime.media.media import Embeddings, MediaChunk, Projector, row_tokens
from engine.runtime.stream.embed_queue import VectorInfo
from engine.support.errors import DecodeError, EngineError, ModelLoadError, RequestError
from engine.testing.byte_vocab import ByteVocab
from engine.types.events import fold
from engine.types.messages import Message
from engine.types.parts import ToolCall
from engine.types.sampling import SamplingParams
from engine.types.tools import Tool


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
    vocab: ByteVocab = field(default_factory=ByteVocab)
    rewrite: bool = False
    digest: int | None = None
    begun: int = 0
    reply: list[int] = field(default_factory=list)
    drawn: int = 0
    forced: bool = False
    masked: bool = False
    closed: bool = False

    def accept(self, token: int) -> None:
        if self.masked and not self.rewrite and self.reply[self.drawn : self.drawn + 1] != [token]:
            raise self._broken([token])
        self.tokens.append(token)
        if self.digest is not None:
            self.digest = hash((self.digest, token))
            self.forced = True
            self.drawn += self.reply[self.drawn : self.drawn + 1] == [token]

    def next(self, mask: "Mask | None") -> int:
        """Returns the script's next token. If the constraint does not allow it, raises EngineError, or with `rewrite`
        gives the script up: returns the end token if that is allowed, else any allowed token, drawn with the
        sampling's seed."""
        token = self.reply[self.drawn] if self.drawn < len(self.reply) else self.vocab.end
        self.masked = mask is not None
        if mask is None or _allows(mask, token):
            return token
        every = [each for each in range(self.vocab.size) if _allows(mask, each)]
        if not every:
            raise RequestError("The constraint allows no token here; check its grammar.")
        if not self.rewrite:
            raise self._broken(every)
        self.reply = []
        return self.vocab.end if self.vocab.end in every else self.random.choice(every)

    def continue_behind(self, held: Sequence[int], mask: "Mask") -> None:
        """Find the place in a new reply from which it goes on: behind what the sequence holds of it already, because
        the form forced its beginning, or because a function wrote its whole reply again."""
        written, reply = len(held) - self.begun, self.reply
        if written and reply[:written] == held[-written:]:
            self.drawn = written
        elif reply and not _allows(mask, reply[0]):
            sizes = range(min(len(reply), len(held)), 0, -1)
            self.drawn = next((size for size in sizes if reply[:size] == held[-size:]), 0)

    def _broken(self, allowed: Sequence[int]) -> EngineError:
        """Returns the error for a script that goes on with a token other than these."""
        rest, before = self.vocab.text(self.reply[self.drawn :]), self.vocab.text(self.tokens)[-_SHOWN:]
        goes_on = f"goes on with {rest[:_SHOWN]!r}" if rest else "ends"
        return EngineError(
            f"The script breaks the form of the answer: after {before!r} it {goes_on}, but the form allows only "
            f"{self._named(allowed)} there. Change the reply, or pass rewrite=True, which replaces the rest of it."
        )

    def _named(self, tokens: Sequence[int]) -> str:
        """Returns what these tokens are, for a message."""
        left = {self.vocab.text([token]) for token in tokens if token != self.vocab.end}
        names = ["its end"] if self.vocab.end in tokens else []
        for name, characters in _CLASSES.items():
            if len(left & characters) > len(characters) // 2:
                names.append(name)
                left -= characters
        names += [repr(text) for text in sorted(left)]
        return ", ".join([*names[:_MOST_NAMED], *(["others"] if len(names) > _MOST_NAMED else [])])

    @cached_property
    def random(self) -> random.Random:
        """The random generator that draws tokens once the script is over."""
        return random.Random(self.params.seed or 0)

    def close(self) -> None:
        self.closed = True


_SHOWN, _MOST_NAMED = 40, 8
_CLASSES = {
    "white space": frozenset(" \t\r\n"),
    "a digit": frozenset(string.digits),
    "a letter": frozenset(string.ascii_letters),
}


def _allows(mask: "Mask", token: int) -> bool:
    return bool(mask[token >> 5] >> (token & 31) & 1)


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
    in a reply becomes control tokens, and an end token follows each reply. Tokens that the engine forces into a
    sequence use up the script if they are the same; a function is called again after them, with all of the text so
    far, and may return its whole reply again. A reply that breaks the form that a turn requires (`response_format`,
    `tool_choice`) raises EngineError where the turn is read, which says what the form allows there; with
    `rewrite=True` the rest is replaced by random text that it allows.

    `n_ctx` is what each of `n_sequences` conversations may hold; with `kv_tokens` they share one pool of that many
    cells. `before_decode(rows)` runs first in each decode: raise `DecodeError` there to fail it, sleep or wait there to
    hold it. `delay` seconds pass in each decode, unless it is aborted. `trimmable=False` behaves like a recurrent
    memory: a sequence is kept complete, removed, or taken back to a checkpoint. `info` is its `ContextInfo` as a
    `Backend`. It loads any file as an adapter. For assertions: `prompts` are the texts of the prompts in the order in
    which they began, control tokens included; `decodes` counts the calls of `decode`, `evaluated` the rows, `batches`
    lists each call's number of rows, `used` is the number of cells in use, `samplers` are all made (with the `tokens`
    of their prompts), `adapters` those loaded, `adapted` the adapters of each decode, `changes` the calls of `adapt`,
    `closed`: whether `close()` was called.
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
        rewrite: bool = False,
    ) -> None:
        self.vocab: ByteVocab = vocab if vocab is not None else ByteVocab()
        self._vectors = ScriptedVectors(self.vocab, dimensions, n_ctx)
        self.info = ContextInfo(
            n_ctx=n_ctx,
            n_sequences=n_sequences,
            kv_tokens=kv_tokens or 0,
            n_batch=n_batch,
            n_outputs=n_batch,
            certain=True,
            can_share=trimmable,
            cut_states=None if trimmable else 0,
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
        self.threads = (0, 0)
        self.used = 0
        self.samplers: list[ScriptedSampler] = []
        self.prompts: list[str] = []
        self._rewrite = rewrite
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
        self, unit: MediaChunk, sequence: int, position: int, rows: "Embeddings", part: slice = slice(None)
    ) -> None:
        """Evaluate rows of a unit, which take as many positions. After the last one its key joins `media`."""
        if len(rows) != unit.rows:
            raise DecodeError(f"{len(rows)} rows for a unit of {unit.rows}. Encode this unit.")
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
        sampler = ScriptedSampler(params, list(tokens), self.vocab, self._rewrite)
        self.prompts.append(self.vocab.text(tokens))
        self.samplers.append(sampler)
        return sampler

    def sample(
        self,
        sampler: Sampler,
        row: int,
        mask: "Mask | None" = None,
        ends: "TokenIds | None" = None,  # noqa: ARG002 - a script says what is drawn: there are no probabilities
        opening: int | None = None,  # noqa: ARG002 - the same
        ahead: Ahead | None = None,  # noqa: ARG002 - the same
    ) -> int:
        if not isinstance(sampler, ScriptedSampler):
            raise EngineError(f"{sampler!r} was not made by this backend; take one from its sampler().")
        at = self._with_output(row)
        digest = self._cells[at.sequence][at.position].digest
        fresh = sampler.digest is None or (sampler.forced and self._function is not None)
        if sampler.digest is None:
            sampler.begun = at.position + 1
        elif sampler.digest != digest and not self._lacks_replaced(sampler, at):
            raise EngineError(
                f"sequence {at.sequence} does not hold its prompt and the accepted tokens up to {at.position}: "
                "sequences were mixed up. Report this as a bug."
            )
        if fresh:
            sampler.reply, sampler.drawn = self._next_reply(at), 0
            if mask is not None:
                sampler.continue_behind(self.tokens(at.sequence)[: at.position + 1], mask)
        token = sampler.next(mask)
        sampler.drawn += 1
        sampler.forced = False
        sampler.digest = hash((digest, token))
        sampler.tokens.append(token)
        return token

    def _lacks_replaced(self, sampler: ScriptedSampler, at: Row) -> bool:
        """Whether the sequence holds the sampler's tokens except for a drawn one that the turn's grammar replaced,
        which the sampler then forgets."""
        held, drawn = self.tokens(at.sequence)[: at.position + 1], sampler.tokens
        head = common_prefix(held, drawn, len(held))
        lacks = sampler.forced and head > 0 and len(drawn) == len(held) + 1 and held[head:] == drawn[head + 1 :]
        if lacks:
            del drawn[head]
        return lacks

    def _with_output(self, row: int) -> Row:
        at = self._rows[row]
        if not at.output:
            raise EngineError(f"row {row} of the last batch was decoded without output; ask for it in the Row.")
        return at

    def logprobs(self, row: int, token: int, top: int | tuple[int, ...]) -> TokenLogprobs:
        """A script is certain: the token has probability 1, and there are no alternatives; of tokens that are asked
        for, the one that its reply begins with."""
        self._with_output(row)
        drawn = Logprob(token, 0.0, self.vocab.token_bytes(token))
        if not isinstance(top, tuple):
            return TokenLogprobs(drawn, (drawn,)[:top])
        next_, _ = self.likeliest(row)
        return TokenLogprobs(
            drawn,
            tuple(Logprob(each, 0.0 if each == next_ else -inf, self.vocab.token_bytes(each)) for each in top),
        )

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

    def clear(self) -> None:
        for sequence in range(len(self._cells)):
            self.trim(sequence, 0)

    def can_trim(self, sequence: int, position: int) -> bool:
        return self.trimmable or not 0 < position < len(self._cells[sequence])

    def trim(self, sequence: int, position: int) -> bool:
        cells = self._cells[sequence]
        if not self.can_trim(sequence, position):
            return False
        self._drop(cells, position)
        return True

    def _drop(self, cells: list[_Cell], position: int) -> None:
        for cell in cells[position:]:
            cell.sequences -= 1
            self.used -= not cell.sequences
        del cells[position:]

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
        self._drop(cells, position)
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


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call in a reply of a `ScriptedEngine`; made by `call`."""

    name: str
    arguments: Mapping[str, Any]


ReplyPart: TypeAlias = str | ScriptedCall
Reply: TypeAlias = ReplyPart | Sequence[ReplyPart]
"""A text in the family's format, a call, or several of these one after the other."""


def call(name: str, /, **arguments: Any) -> ScriptedCall:
    """Returns a call for a reply, which a `ScriptedEngine` writes as its family does: `call("get_order", order=7)`."""
    return ScriptedCall(name, arguments)


class ScriptedEngine(Engine):
    """An engine whose model says what you tell it to: `ScriptedEngine([call("get_order", order=7), "It is sent."])`.

    `replies`: a list, one for each request, or a function from the prompt's text to a reply; texts are written in the
    format of the `family` (a name of models.toml that has a template of its own), calls as its template writes them.
    `template`: another chat template instead. `backend`: the options of `ScriptedBackend`, which is `script`: its
    `prompts` are what the model was sent.
    """

    def __init__(
        self,
        replies: Sequence[Reply] | Callable[[str], Reply],
        family: str = "qwen3",
        *,
        template: ChatTemplate | None = None,
        **backend: Any,
    ) -> None:
        format_ = (template or ChatTemplate(None, family=family)).format
        vocab = backend.setdefault("vocab", ByteVocab(sorted(format_.control), end=["<|the end|>"]))
        shape = template or ChatTemplate(None, family=family, control_tokens=vocab.control_tokens)
        self.script = ScriptedBackend(_texts(replies, shape), **backend)
        super().__init__(Engine.over(self.script, shape).source)


def _texts(
    replies: Sequence[Reply] | Callable[[str], Reply], template: ChatTemplate
) -> list[str] | Callable[[str], str]:
    if callable(replies):
        reply = replies
        return lambda prompt: _written(reply(prompt), template)
    return [_written(each, template) for each in replies]


def _written(reply: Reply, template: ChatTemplate) -> str:
    """Returns a reply as the model of this template writes it. Raises RequestError for a call if it writes none."""
    parts = [reply] if isinstance(reply, str | ScriptedCall) else reply
    written: list[str] = []
    for _, group in groupby(parts, type):
        items = list(group)
        written += [part for part in items if isinstance(part, str)]
        if calls := [part for part in items if isinstance(part, ScriptedCall)]:
            written.append(markup(calls, template))
    return "".join(written)


def markup(calls: Sequence[ScriptedCall], template: ChatTemplate) -> str:
    """Returns what the template writes for these calls, without reasoning: the shortest of what it has after a prompt
    with each of its switches."""
    made = [
        ToolCall(id=f"call{number:05}", name=each.name, arguments=json.dumps(each.arguments, ensure_ascii=False))
        for number, each in enumerate(calls)
    ]
    tools = [
        Tool(name=each.name, parameters={"type": "object", "properties": {name: {} for name in each.arguments}})
        for each in {each.name: each for each in calls}.values()
    ]
    message = Message(role="assistant", content="", tool_calls=tuple(made))
    format_ = template.format
    outcomes = [Outcome(template, message, tools, [switch]) for switch in SWITCHES]
    written = {
        each.turn(format_).removeprefix(format_.start): each.kept.prefix if each.kept else ""
        for each in [each for each in outcomes if each.kept] or outcomes
    }
    whole: list[str] = []
    for text, prefix in written.items():
        parser = Parser(format_, prefix, tools=tools)
        if len(fold([*parser.feed(text), *parser.close()]).tool_calls) == len(calls):
            whole.append(text)
    if not whole:
        raise RequestError(
            f"The template of {template.family.name!r} does not write "
            f"{len(calls)} calls in one turn; write the reply as text, or use another family."
        )
    asked, text = outcomes[SWITCHES.index(None)].asked, min(whole, key=len)
    opened = asked is not None and Parser(format_, asked.prefix).in_reasoning
    closes = [format_.reasoning.close] if format_.reasoning and not opened else []
    for mark in filter(None, map(str.strip, (*closes, format_.content[1]))):  # it closes what another prompt opens
        text = text.lstrip().removeprefix(mark) if text.lstrip().startswith(mark) else text
    return text
