"""Tokens that may not be drawn now: ends before `min_tokens`, and tokens that would complete one of `bad_words`."""

from typing import TYPE_CHECKING

from engine.llama.vocab import LlamaVocab
from engine.types.sampling import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Forbidden:
    """Follows the tokens of one sequence. A text of `bad_words` is never written, however its tokens are cut; control
    tokens are no text."""

    def __init__(self, params: SamplingParams, vocab: LlamaVocab) -> None:
        import numpy as np

        self._least = params.min_tokens or 0
        ends = {*vocab.end_tokens, *(token for token in params.stop_tokens if token < vocab.size)}
        self._ends = np.array(sorted(ends), dtype=np.int64)
        self._vocab = vocab
        self._words = [word.encode() for word in params.bad_words]
        # By the part of a word that is still missing: the tokens that begin with it. Whole words may stand anywhere.
        self._completing: dict[bytes, list[int]] = {}
        table = [b"" if vocab.is_special(at) else data for at, data in enumerate(vocab.all_token_bytes())]
        for word in self._words:
            for cut in range(1, len(word)):
                rest = word[cut:]
                self._completing[rest] = [token for token, data in enumerate(table) if data.startswith(rest)]
        self._whole = [token for token, data in enumerate(table) if any(word in data for word in self._words)]
        self._longest = max((len(word) for word in self._words), default=1)
        self._drawn = 0
        self._tail = b""

    def tokens(self, *, ends: bool) -> "NDArray[np.int64]":
        """Returns the tokens that may not follow. `ends`: nothing else decides where the answer ends, as a constraint
        does."""
        import numpy as np

        found = set(self._whole)
        for word in self._words:
            for cut in range(1, len(word)):
                if self._tail.endswith(word[:cut]):
                    found.update(self._completing[word[cut:]])
        listed = np.array(sorted(found), dtype=np.int64)
        return np.union1d(listed, self._ends) if ends and self._drawn < self._least else listed

    def accept(self, token: int) -> None:
        """Take a token that was written."""
        self._drawn += 1
        data = b"" if self._vocab.is_special(token) else self._vocab.token_bytes(token)
        self._tail = (self._tail + data)[-self._longest :] if data else b""
