"""Verdicts of `forgery` on real vocabularies, where it is known which markers are tokens. Needs `LLAMA_CPP_MODELS`."""

from pathlib import Path

import pytest
from attacks.forging import VOCABULARIES, guarded_tokens, vocabulary
from fakes.checked_servers import Counting

from benchmarks.check import forgery
from benchmarks.check.markers import family_markers

NAMES = ("llama-spm", "llama-bpe", "qwen2", "bert-bge")
_CHOSEN = [path for path in VOCABULARIES if path.stem.removeprefix("ggml-vocab-") in NAMES]


@pytest.mark.skipif(not _CHOSEN, reason="set LLAMA_CPP_MODELS to llama.cpp's models folder")
@pytest.mark.parametrize("path", _CHOSEN, ids=lambda path: path.stem)
def test_what_is_a_token_and_only_that_is_told(path: Path) -> None:
    with vocabulary(path) as vocab:
        tokens = [token for token in guarded_tokens(vocab) if token.isascii() and " " not in token][:20]
        markers = list(dict.fromkeys([*tokens, *family_markers()]))[:120]

        def found(*, special: bool) -> list[str]:
            exchange = Counting(lambda prompt: len(vocab.tokenize(prompt, special=special)))
            records = forgery(exchange, markers, ["user"])
            return [record.case["marker"] for record in records if record.verdict != "text"]

        assert found(special=True) == [marker for marker in markers if marker in vocab.control_tokens]
        assert found(special=False) == []
