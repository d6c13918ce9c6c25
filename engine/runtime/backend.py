"""What the runner needs of a model: the seam between the engine's loop and llama.cpp (or a script, in tests).

Knows: the operations, as protocols. Does not know: ctypes, threads, requests. `engine.llama.model` implements them
on real weights, `engine.testing` without any.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from engine.parsing.reader import Piece
from engine.runtime.logprobs import TokenLogprobs
from engine.runtime.state_file import Origin
from engine.types import SamplingParams

TILE = 64
"""Rows that kernels take together: prefill is planned in multiples of it. The CPU's flash attention takes so many from
so many on (ggml-cpu/ops.cpp), and fewer one by one."""


class Row(NamedTuple):
    """One token to evaluate: at position `position` of sequence `sequence`; `output` asks for its logits."""

    token: int
    position: int
    sequence: int
    output: bool


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
        """Tell it a token that became part of the sequence (drawn, or forced)."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """One context over one model. Not thread-safe: a single thread calls it."""

    @property
    def vocab(self) -> Vocab: ...

    @property
    def n_ctx(self) -> int:
        """Cells of the KV cache, in tokens, over all sequences."""
        ...

    @property
    def n_ctx_sequence(self) -> int:
        """Tokens that one sequence can hold at most."""
        ...

    @property
    def n_ctx_other(self) -> int:
        """Tokens that one sequence could hold in the other layout of the cells (`relaid`); 0 where there is none. Fewer
        than `n_ctx_sequence` where each sequence would have a buffer of its own there."""
        ...

    @property
    def n_batch(self) -> int:
        """Rows that one `decode` takes at most."""
        ...

    @property
    def n_outputs(self) -> int:
        """Rows of one `decode` that may ask for logits at most; never fewer than there are sequences."""
        ...

    @property
    def n_sequences(self) -> int:
        """Sequence ids run from 0 to this, exclusive."""
        ...

    @property
    def mixed_rows(self) -> int:
        """Rows of one `decode` up to which single tokens of some sequences and the prefill of others belong together;
        beyond, they are faster apart. `n_batch`: they always belong together. 0: never, and no number of single tokens
        is too many."""
        ...

    @property
    def copy_cost(self) -> int:
        """Tokens whose evaluation takes about as long as one `copy`; 0 where sequences share cells."""
        ...

    @property
    def can_share(self) -> bool:
        """Whether sequences can be cut, and parts of them copied. False for recurrent memories: all, or nothing."""
        ...

    def decode(self, rows: Sequence[Row]) -> None:
        """Evaluate the rows. Raises DecodeError; the positions then held are told by `positions`."""
        ...

    def abort(self) -> None:
        """Make the decode that is running stop with DecodeError("aborted"), where it can be (on the CPU). For any
        thread. Decodes stop so until `resume`."""
        ...

    def resume(self) -> None:
        """Take back `abort`."""
        ...

    def sampler(self, params: SamplingParams, tokens: Sequence[int] = ()) -> Sampler:
        """A sampler of its own. `tokens` are those before its first draw: the prompt. Penalties look at them."""
        ...

    def attach(self, sampler: Sampler, sequence: int) -> None:
        """The sequence's next tokens are drawn with this sampler; a backend may do that where it computes. Until
        `detach`."""
        ...

    def detach(self, sequence: int) -> None:
        """Nothing more is drawn for the sequence with the sampler it had, if it had one."""
        ...

    def sample(self, sampler: Sampler, row: int) -> int:
        """Draw a token from the logits of row `row` of the last decode (which had `output`), and accept it.

        Raises DecodeError with reason "nan" when the logits are not numbers.
        """
        ...

    def logprobs(self, row: int, token: int, top: int) -> TokenLogprobs:
        """Log-probabilities of row `row` of the last decode: the token's own, and the `top` best."""
        ...

    def positions(self, sequence: int) -> int:
        """How many leading positions the sequence holds in the KV cache."""
        ...

    def trim(self, sequence: int, position: int) -> bool:
        """Forget the sequence from `position` on; False when this model's memory cannot (recurrent): forget it all
        then."""
        ...

    def copy(self, source: int, target: int, positions: int) -> None:
        """Let `target` (empty) share the first `positions` positions of `source`. No computation."""
        ...

    def shift(self, sequence: int, start: int, stop: int) -> bool:
        """Forget positions `start` to `stop` (exclusive) and move those behind them down; no cell that moves may be
        shared. False, with nothing changed, when this model's memory cannot."""
        ...

    def save(self, sequence: int) -> bytes:
        """What the sequence holds, for `restore` under the same origin."""
        ...

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace what the sequence holds by a saved state. Raises DecodeError; the sequence is empty then."""
        ...

    def relaid(self) -> "Backend":
        """This context with its cells laid out the other way: one buffer for each sequence instead of one for all, or
        back; or as they were, and for good, where that cannot be had. What the sequences held is forgotten, the
        samplers stay good; this one is closed."""
        ...

    @property
    def origin(self) -> Origin:
        """What saved states belong to. For any thread."""
        ...

    def close(self) -> None: ...
