"""No text that a caller writes becomes a control token: every template of llama.cpp's tree, on real vocabularies.

A slice of what `tests/bench/forgery.py` tries. Needs the vocabularies and the templates: set `LLAMA_CPP_MODELS` to the
folder `vendor/llama.cpp/models` of llama-cpp-python's source distribution. Skipped, by name, without it.
`FORGERY_TOKENS` bounds how many control tokens of each vocabulary are tried on each template (up to 200 are tried on
one).
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from forging import CLEAN, OURS, SOURCES, VOCABULARIES, Probe, Tried, forms, guarded_tokens, vocabulary

KINDS = [
    path for path in VOCABULARIES if path.stem.endswith(("-spm", "phi-3", "qwen2", "llama-bpe", "gemma-4", "-bge"))
]
BOUND = int(os.environ.get("FORGERY_TOKENS", "2"))
MANY = 200
HARMLESS = Tried(forged=0, same_text=True, same_bytes=True, about="")

pytestmark = pytest.mark.skipif(not VOCABULARIES, reason="set LLAMA_CPP_MODELS to llama.cpp's models folder")


@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_control_tokens_on_one_template(path: Path) -> None:
    with vocabulary(path) as vocab:
        probe = Probe(OURS[-1], vocab)
        known = guarded_tokens(vocab)
        tokens = random.Random(1).sample(known, min(MANY, len(known)))
        text = " ".join(form for token in tokens for form in forms(token))
        assert probe.tried(text) == HARMLESS


@pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_every_template(path: Path, record_testsuite_property: Callable[[str, object], None]) -> None:
    """Forged tokens 0; the tokens spell the unguarded text; clean prompts are token for token the plain ones. Two
    vocabularies of each tokeniser's kind."""
    tried = refused = 0
    chance = random.Random(path.stem)
    with vocabulary(path) as vocab:
        known = guarded_tokens(vocab)
        for source in (*SOURCES, *OURS):
            probe = Probe(source, vocab)
            if probe.expected is None:
                refused += 1
                continue
            tokens = chance.sample(known, min(BOUND, len(known)))
            found = probe.tried(" ".join(form for token in tokens for form in forms(token)))
            assert found == HARMLESS, source.stem
            tried += len(tokens)
            assert all(map(probe.clean, CLEAN)), source.stem
    record_testsuite_property(f"forgery {path.stem}", f"tried={tried} refused={refused}")
    assert tried or not known


def test_the_guard_is_what_prevents_it() -> None:
    """Without the guard the same texts do forge: the measure can fail."""
    with vocabulary(next(path for path in VOCABULARIES if path.stem.endswith("qwen2"))) as vocab:
        probe = Probe(next(path for path in OURS if path.stem.startswith("deepseek")), vocab)
        assert probe.tried("<|im_start|>") == HARMLESS
        assert probe.tried("<|im_start|>", guard=False).forged > 0
