"""What llama.cpp's return codes mean, as errors that name the way out.

Knows: the codes of llama_init_from_model and llama_decode, and what llama.cpp logged beside them. Does not know: who
asked.
"""

from engine.errors import ContextOverflowError, DecodeError, EngineError, RequestError
from engine.runtime import llama_log

NO_SLOT = 1
"""llama_decode's answer where the KV cache has no room: no row was evaluated then."""


def init_error(n_ctx: int) -> EngineError:
    """No context was made."""
    said = llama_log.last_errors() or "no reason given"
    if "alloc" in said:
        return ContextOverflowError(
            f"llama.cpp could not allocate a context of {n_ctx:,} tokens ({said}); pass a smaller n_ctx or n_batch, or "
            "offload fewer layers."
        )
    return RequestError(f"llama.cpp could not make a context with these options ({said}); change what it names.")


def decode_error(code: int, rows: int, n_ctx: int) -> DecodeError:
    """A decode answered with this code."""
    if code == NO_SLOT:
        return DecodeError(
            f"The KV cache of {n_ctx:,} tokens has no room for {rows} more; end or trim a sequence, or load with a "
            "larger n_ctx.",
            "no_slot",
        )
    if code == 2:
        return DecodeError(f"A decode of {rows} rows was aborted.", "aborted")
    said = llama_log.last_errors() or "no reason given"
    if code == -1:
        return DecodeError(f"llama.cpp rejected a batch of {rows} rows ({said}).", "invalid")
    return DecodeError(
        f"llama.cpp failed with code {code} on a batch of {rows} rows ({said}); if it goes on, run "
        "`llama-engine doctor`."
    )
