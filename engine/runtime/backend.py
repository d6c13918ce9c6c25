"""What the loop needs of a model: the seam between the engine's loop and llama.cpp (or a script, in tests).

Knows: the operations, as protocols. Does not know: ctypes, threads, requests. `engine.llama.context` implements them
on real weights, `engine.testing` without any.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.constraint.matcher import Mask
from engine.parsing.reader import Piece
from engine.runtime.logprobs import TokenLogprobs
from engine.runtime.state_file import Origin
from engine.types import SamplingParams


class Row(NamedTuple):
    """One token to evaluate: at position `position` of sequence `sequence`; `output` asks for its logits."""

    token: int
    position: int
    sequence: int
    output: bool


@dataclass(frozen=True, slots=True)
class ContextInfo:
    """The sizes and habits of a context, fixed when it is made.

    - `n_ctx`: tokens that one conversation may hold. `n_sequences`: conversations at once; their ids run from 0.
    - `kv_tokens`: cells of the one pool that all sequences share; 0 where each has a buffer of `n_ctx` for itself.
    - `n_batch`: rows that one `decode` takes at most, of which `n_outputs` may ask for logits (never fewer than there
      are sequences).
    - `separate_prefill`: prompts and single tokens are faster in two batches than in one.
    - `can_share`: sequences can be cut, and parts of them copied. False for recurrent memories: all, or nothing.
    - `copy_cost`: tokens whose evaluation takes about as long as one `copy`; 0 where sequences share cells.
    - `checkpoint_bytes`: what all checkpoints together may take; 0 where none are needed.
    """

    n_ctx: int
    n_sequences: int = 1
    kv_tokens: int = 0
    n_batch: int = 2048
    n_outputs: int = 16
    separate_prefill: bool = False
    can_share: bool = True
    copy_cost: int = 0
    checkpoint_bytes: int = 0

    @property
    def cells(self) -> int:
        """Tokens that all sequences together can hold, a shared cell counted once."""
        return self.kv_tokens or self.n_ctx * self.n_sequences


class Vocab(Protocol):
    """Tokens and their bytes."""

    @property
    def size(self) -> int: ...

    @property
    def control_tokens(self) -> frozenset[str]:
        """The texts of all control and user-defined tokens."""
        ...

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Tokens of a text, nothing added at either end. `special`: control-token text becomes control tokens."""
        ...

    def encode(self, pieces: Sequence[Piece], *, add_bos: bool) -> list[int]:
        """Tokens of a prompt. Pieces with `special` may form control tokens, the text of the others never does."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, control tokens included (their text)."""
        ...

    def is_special(self, token: int) -> bool:
        """Whether it is a control or user-defined token."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether it ends generation."""
        ...


class Sampler(Protocol):
    """One sequence's way of drawing tokens, with its own random stream and memory."""

    def accept(self, token: int) -> None:
        """Tell it a token that became part of the sequence without being drawn."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """One context over one model. Not thread-safe: a single thread calls it, but for `abort`."""

    @property
    def vocab(self) -> Vocab: ...

    @property
    def info(self) -> ContextInfo: ...

    @property
    def origin(self) -> Origin:
        """What saved states belong to. For any thread."""
        ...

    def decode(self, rows: Sequence[Row]) -> None:
        """Evaluate the rows. Raises DecodeError; `positions` tells what is held then."""
        ...

    def abort(self) -> None:
        """Make the decode that is running, or else the next one, stop with DecodeError("aborted"), where it can be
        stopped (on the CPU). For any thread."""
        ...

    def sampler(self, params: SamplingParams, tokens: Sequence[int] = ()) -> Sampler:
        """A sampler of its own. `tokens` are those before its first draw: the prompt. Penalties look at them."""
        ...

    def attach(self, sequence: int, sampler: Sampler | None) -> None:
        """The sequence's next tokens are drawn with this sampler, which a backend may do where it computes; None:
        nothing more is drawn for it."""
        ...

    def sample(self, sampler: Sampler, row: int, mask: "Mask | None" = None) -> int:
        """Draw a token from the logits of row `row` of the last decode (which had `output`), and accept it. `mask`:
        only tokens whose bits are set.

        Raises DecodeError with reason "nan" when the logits are not numbers, RequestError when nothing may be drawn.
        """
        ...

    def logprobs(self, row: int, token: int, top: int) -> TokenLogprobs:
        """Log-probabilities of row `row` of the last decode: the token's own, and the `top` best."""
        ...

    def positions(self, sequence: int) -> int:
        """How many leading positions the sequence holds."""
        ...

    def trim(self, sequence: int, position: int) -> bool:
        """Forget the sequence from `position` on; False, with nothing changed, when this memory cannot (recurrent)."""
        ...

    def copy(self, source: int, target: int, positions: int) -> None:
        """Let `target` (empty) hold the first `positions` positions of `source` too. No computation."""
        ...

    def shift(self, sequence: int, start: int, stop: int) -> bool:
        """Forget positions `start` to `stop` (exclusive) and move those behind them down; no cell that moves may be
        shared. False, with nothing changed, when this memory cannot."""
        ...

    def save(self, sequence: int) -> bytes:
        """What the sequence holds, for `restore` under the same origin."""
        ...

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace what the sequence holds by a saved state. Raises DecodeError; the sequence is empty then."""
        ...

    def checkpoint(self, sequence: int) -> bytes:
        """What is needed, for a memory that cannot be cut, to take the sequence back to where it is now."""
        ...

    def rewind(self, sequence: int, position: int, state: bytes) -> bool:
        """Take the sequence back to its first `position` positions, where `checkpoint` gave this. False, with the
        sequence in no state to be used, where that fails: trim it to 0."""
        ...

    def close(self) -> None: ...
