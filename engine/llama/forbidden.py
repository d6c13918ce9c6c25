"""Tokens that may not be drawn now: ends before `min_tokens`, and tokens that would complete one of `bad_words`."""

import re
from collections.abc import Sequence
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
        words = [word.encode() for word in params.bad_words]
        self._whole = self._holding(words)
        # What of a word was written, and what one token might complete it with.
        self._rests: dict[bytes, set[bytes]] = {}
        self._completing: dict[bytes, list[int]] = {}
        for word in words:
            for cut in range(max(1, len(word) - vocab.longest_text), len(word)):
                self._rests.setdefault(word[:cut], set()).add(word[cut:])
        self._longest = max(map(len, words), default=1)
        self._drawn = 0
        self._tail = b""

    def tokens(self, *, ends: bool) -> "NDArray[np.int64]":
        """Returns the tokens that may not follow. `ends`: nothing else decides where the answer ends, as a constraint
        does."""
        import numpy as np

        found = set(self._whole)
        for length in range(1, min(len(self._tail), self._longest) + 1):
            for rest in self._rests.get(self._tail[-length:], ()):
                if rest not in self._completing:
                    self._completing[rest] = self._vocab.beginning_with(rest)
                found.update(self._completing[rest])
        listed = np.array(sorted(found), dtype=np.int64)
        return np.union1d(listed, self._ends) if ends and self._drawn < self._least else listed

    def accept(self, token: int) -> None:
        """Take a token that was written."""
        self._drawn += 1
        data = b"" if self._vocab.is_special(token) else self._vocab.token_bytes(token)
        self._tail = (self._tail + data)[-self._longest :] if data else b""

    def _holding(self, words: Sequence[bytes]) -> list[int]:
        """Returns the tokens that hold one of the words as a whole."""
        if not words:
            return []
        search = re.compile(b"|".join(map(re.escape, words)), re.DOTALL).search
        return [token for data, token in self._vocab.by_text if search(data)]
