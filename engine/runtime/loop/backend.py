"""The operations that the loop needs from a model: the interface between the engine's loop and llama.cpp.

`engine.llama.context` implements them for real weights, `engine.testing.scripted` for scripts, without weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from engine.runtime.adapters.adapters import Scales
from engine.runtime.cache.state_file import Origin
from engine.runtime.guidance.matcher import Mask, TokenIds
from engine.runtime.loop.logprobs import TokenLogprobs
from engine.runtime.media.media import Embeddings, MediaChunk, Projector
from engine.runtime.stream.embed_queue import VectorContext, VectorInfo
from engine.types.media import MediaKind
from engine.types.prompt import Piece
from engine.types.sampling import SamplingParams


class Row(NamedTuple):
    """One token to evaluate: at position `position` of sequence `sequence`; `output` asks for its logits."""

    token: int
    position: int
    sequence: int
    output: bool


class Ahead(NamedTuple):
    """First tokens of the texts, and what each one's log-probability gets for what follows it."""

    tokens: tuple[int, ...]
    more: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ContextInfo:
    """The sizes and properties of a context, fixed when it is made.

    - `n_ctx`: maximum number of tokens in one conversation. `n_sequences`: conversations at once; their ids start at 0.
    - `kv_tokens`: cells of the one pool that all sequences share; 0 if each sequence has its own buffer of `n_ctx`
      cells.
    - `n_batch`: maximum number of rows in one `decode`; at most `n_outputs` of them may ask for logits (`n_outputs` is
      never less than `n_sequences`).
    - `separate_prefill`: prompts and single tokens are faster in two batches than in one.
    - `can_share`: a sequence can be cut, and a part of it copied. False for recurrent memories: only all of it, or
      nothing.
    - `copy_cost`: number of tokens whose evaluation takes about as long as one `copy`; 0 if sequences share cells.
    - `cut_states`: the most tokens of a saved state that can be cut; None: any. 0 for a recurrent memory, and the
      window for a sliding one, since llama.cpp saves what the last token sees (llama-kv-cache.cpp, `state_write`).
    - `passes_idle`: attention takes longer for the cells of idle sequences (a pool on the CPU).
    - `checkpoint_bytes`: maximum size of all checkpoints together; 0 if none are needed.
    - `certain`: each next token is known, as in a script: nothing need be weighed.
    - `generates`: it can continue a text. False for embedding models, which only make vectors.
    - `vectors`: the vectors that it makes of texts. `positions`: how far the model's positions reach, in words.
    - `media`: the kinds of media that the model's projector makes rows of; none without a projector.
    """

    n_ctx: int
    n_sequences: int = 1
    kv_tokens: int = 0
    n_batch: int = 2048
    n_outputs: int = 16
    separate_prefill: bool = False
    can_share: bool = True
    copy_cost: int = 0
    cut_states: int | None = None
    passes_idle: bool = False
    checkpoint_bytes: int = 0
    certain: bool = False
    generates: bool = True
    vectors: VectorInfo | None = None
    positions: str = ""
    media: tuple[MediaKind, ...] = ()

    @property
    def cells(self) -> int:
        """Tokens that all sequences together can hold; a shared cell counts once."""
        return self.kv_tokens or self.n_ctx * self.n_sequences


class FimTokens(NamedTuple):
    """The tokens that mark the parts of a prompt to be filled in: before the beginning, the end and the middle. `repo`
    before a repository's name and `file` before a file's, -1 if the vocabulary has none."""

    prefix: int
    suffix: int
    middle: int
    repo: int = -1
    file: int = -1


_SPACE = " \t\r\n\v\f▁"


def is_marker(text: str) -> bool:
    """Whether a control or user-defined token of this text opens or closes something: white space and single characters
    are text, whatever their vocabulary calls them (Gemma 3 has user-defined tokens for line breaks and indents)."""
    return len(text) > 1 and bool(text.strip(_SPACE))


class Vocab(Protocol):
    """Tokens and their bytes. A *control token* is a control or user-defined one whose text `is_marker`."""

    @property
    def size(self) -> int: ...

    @property
    def control_tokens(self) -> frozenset[str]:
        """The texts of all control tokens."""
        ...

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Returns the tokens of a text, without adding any at either end. `special`: texts of control tokens become
        control tokens."""
        ...

    def encode(self, pieces: Sequence[Piece], *, add_bos: bool) -> list[int]:
        """Returns the tokens of a prompt. Control tokens are made only of the text of `trusted` pieces."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes of one token; for a control token, those of its text."""
        ...

    def all_token_bytes(self) -> list[bytes]:
        """Returns the bytes of all tokens, in order."""
        ...

    def is_special(self, token: int) -> bool:
        """Whether the token is a control token."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether the token ends generation."""
        ...

    @property
    def fim(self) -> FimTokens | None:
        """The tokens for filling in the middle of a text; None if the model was not made for that."""
        ...

    @property
    def closing(self) -> tuple[int, ...]:
        """The tokens that close a text of which a vector is made."""
        ...

    @property
    def between(self) -> tuple[int, ...]:
        """The tokens between a query and a document that are read together."""
        ...


class Sampler(Protocol):
    """Draws the tokens of one sequence, with a random generator and a history of its own."""

    def accept(self, token: int) -> None:
        """Record a token that joined the sequence without being drawn."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """One context over one model. Not thread-safe: only one thread may call it, except for `abort` and `origin`."""

    @property
    def vocab(self) -> Vocab: ...

    @property
    def info(self) -> ContextInfo: ...

    @property
    def threads(self) -> tuple[int, int]:
        """The threads that decode now: for a token, for a batch; 0 where that says nothing."""
        ...

    @property
    def origin(self) -> Origin:
        """The model and settings that saved states belong to. May be read from any thread."""
        ...

    def decode(self, rows: Sequence[Row]) -> None:
        """Evaluate the rows. Raises DecodeError; `positions` then returns what each sequence still holds."""
        ...

    @property
    def projector(self) -> Projector | None:
        """What makes rows of pictures and sounds; None without one."""
        ...

    def decode_media(
        self, unit: MediaChunk, sequence: int, position: int, rows: "Embeddings", part: slice = slice(None)
    ) -> None:
        """Evaluate the rows of a unit, which begins at this position, or a part of them, if those before it are
        evaluated; no logits come of them. `rows`: as the projector encoded them. Raises DecodeError; the sequence
        then holds nothing of the unit, if its memory can be cut."""
        ...

    def abort(self) -> None:
        """Make the decode that is running, or else the next one, stop with DecodeError("aborted"), where that is
        possible (on the CPU). May be called from any thread."""
        ...

    def sampler(self, params: SamplingParams, tokens: Sequence[int] = ()) -> Sampler:
        """Returns a new sampler. `tokens`: the tokens before its first draw (the prompt), which penalties take into
        account."""
        ...

    def sample(
        self,
        sampler: Sampler,
        row: int,
        mask: "Mask | None" = None,
        ends: "TokenIds | None" = None,
        opening: int | None = None,
        ahead: "Ahead | None" = None,
    ) -> int:
        """Draw a token from the logits of row `row` of the last decode (which had `output`), and accept it. `mask`:
        allow only tokens whose bits are set. `ends`: tokens that begin alike, with what ends a value; those of them
        that are allowed have the mass of all. `opening`: the token that is drawn where the model would write none of
        those that are allowed. `ahead`: only these tokens may be drawn, with so much more.

        Raises DecodeError with reason "nan" when the logits are not numbers, RequestError when no token may be drawn.
        """
        ...

    def logprobs(self, row: int, token: int, top: int | tuple[int, ...]) -> TokenLogprobs:
        """Returns log-probabilities of row `row` of the last decode: for `token`, and for the `top` most likely
        tokens, or for these."""
        ...

    def likeliest(self, row: int) -> tuple[int, float]:
        """Returns the most likely token after row `row` of the last decode, and its probability (0 if the logits are
        not numbers)."""
        ...

    def positions(self, sequence: int) -> int:
        """Returns how many leading positions the sequence holds."""
        ...

    def trim(self, sequence: int, position: int) -> bool:
        """Forget the sequence from `position` on. Returns False, with nothing changed, if this memory cannot do that
        now."""
        ...

    def can_trim(self, sequence: int, position: int) -> bool:
        """Whether `trim` would do that now. Layers with a sliding window drop what lies behind it, so they cannot be
        taken back far once they did."""
        ...

    def clear(self) -> None:
        """Forget all sequences, and overwrite what they held: a number that is none (NaN) in a cell that nobody uses
        would still spoil whatever is computed beside it."""
        ...

    def copy(self, source: int, target: int, positions: int) -> None:
        """Let `target` (empty) hold the first `positions` positions of `source` too, without evaluating anything."""
        ...

    def state_size(self, sequence: int) -> int:
        """Returns the size in bytes of what `save` would return."""
        ...

    def save(self, sequence: int) -> bytes:
        """Returns the state of the sequence, for `restore` under the same origin."""
        ...

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace the contents of the sequence by a saved state. Raises DecodeError; the sequence is then empty."""
        ...

    def checkpoint(self, sequence: int) -> bytes:
        """Returns what `rewind` needs to take the sequence back to its present position, for a memory that cannot be
        cut."""
        ...

    def rewind(self, sequence: int, position: int, state: bytes) -> bool:
        """Take the sequence back to its first `position` positions, at which `checkpoint` returned `state`. Returns
        False if that fails; the sequence is then unusable until it is trimmed to 0."""
        ...

    def vectors(self) -> VectorContext:
        """Returns the context that makes vectors of this model; it is made on first use. Raises EngineError if that
        fails."""
        ...

    def load_adapter(self, digest: str, path: Path) -> None:
        """Load the adapter in a file, to be known by its digest. Raises EngineError with the reason if that fails."""
        ...

    def adapt(self, scales: Scales) -> None:
        """Compute the next decodes with these adapters, which are loaded; none: with the model alone."""
        ...

    def free_adapter(self, digest: str) -> None:
        """Free a loaded adapter, which is not in force."""
        ...

    def close(self) -> None: ...
