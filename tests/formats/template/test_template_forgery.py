"""No text that a caller or a model writes becomes a control token: templates of llama.cpp's tree, real vocabularies.

A seeded sample of what `benchmarks/forgery.py` tries in full. Needs the vocabularies and the templates: set
`LLAMA_CPP_MODELS` to the folder `vendor/llama.cpp/models` of llama-cpp-python's source distribution. Skipped, by name,
without it. `FORGERY_TEMPLATES`: how many templates are tried with each vocabulary.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from attacks.forging import (
    CLEAN,
    OURS,
    SOURCES,
    VOCABULARIES,
    Probe,
    TextProbe,
    Tried,
    families_vocabulary,
    few_of_a_row,
    guarded_tokens,
    vocabulary,
)

from engine.llama.vocab import LlamaVocab

TEMPLATES = int(os.environ.get("FORGERY_TEMPLATES", "3"))
TOKENS = 12
PARTS = 12
# Each way of tokenising: byte pairs, sentencepieces with a space before texts and with tokens that take the white space
# beside them, word pieces; few control tokens and thousands.
KINDS = [path for path in VOCABULARIES if path.stem.endswith(("-spm", "phi-3", "qwen2", "llama-bpe", "llm", "-bge"))]
# Those, and the ones that fill in or have user-defined tokens, for texts that no template stands around.
WITHOUT_TEMPLATE = [*KINDS, *(path for path in VOCABULARIES if path.stem.endswith(("refact", "coder", "gemma-4")))]
# Templates that write what callers give them right beside what could complete a token: `<`, the key, `>`.
TIGHT = ("Qwen3-Coder", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "MiniMax-M3", "Apertus-8B-Instruct", "qwen3-coder")

pytestmark = pytest.mark.skipif(not VOCABULARIES, reason="set LLAMA_CPP_MODELS to llama.cpp's models folder")


def assert_nothing_forged(probe: Probe, chance: random.Random, known: list[str]) -> int:
    """Some tokens whole, and some parts of any: nothing is forged, lost or altered. The number of texts tried."""
    texts = 0
    tokens = chance.sample(known, min(TOKENS, len(known)))
    parts = list(probe.completions(known))
    for found in (
        *(probe.whole(kind, tokens) for kind in probe.kinds),
        *(probe.filled(kind, texts) for kind, texts in chance.sample(parts, min(PARTS, len(parts)))),
    ):
        assert (found.forged, found.lost, found.same_bytes) == (0, 0, True), f"{probe.name}: {found.about}"
        texts += found.texts
    return texts


@pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_real_vocabularies(path: Path, record_testsuite_property: Callable[[str, object], None]) -> None:
    chance, texts = random.Random(path.stem), 0
    with vocabulary(path) as vocab:
        known = few_of_a_row(guarded_tokens(vocab))
        for source in chance.sample([*SOURCES, *OURS], TEMPLATES):
            probe = Probe(source, vocab)
            if probe.takes is None:
                continue
            texts += assert_nothing_forged(probe, chance, known)
            assert all(map(probe.clean, CLEAN)), probe.name
    record_testsuite_property(f"forgery {path.stem}", f"forged 0 of {texts}")


@pytest.mark.parametrize("name", TIGHT)
def test_the_tokens_of_all_families(
    name: str, tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """One vocabulary has them all, on templates that complete what they are given."""
    chance = random.Random(name)
    with vocabulary(families_vocabulary(tmp_path)) as vocab:
        probe = Probe(next(path for path in (*SOURCES, *OURS) if path.stem == name), vocab)
        texts = assert_nothing_forged(probe, chance, guarded_tokens(vocab))
        assert len(list(probe.completions(guarded_tokens(vocab)))) > PARTS, "it completes what it is given"
        assert probe.clean(CLEAN[-1])
    record_testsuite_property(f"forgery {name}", f"forged 0 of {texts}")


def test_the_guard_is_what_prevents_it(tmp_path: Path) -> None:
    """Without the guard the same texts do forge: the measure can fail."""
    with vocabulary(families_vocabulary(tmp_path)) as vocab:
        probe = Probe(next(path for path in OURS if path.stem == "qwen3-coder"), vocab)
        for kind in probe.kinds:
            assert probe.whole(kind, ["<|im_start|>"]).forged == 0
            assert probe.whole(kind, ["<|im_start|>"], guard=False).forged > 0
        key = {"schema key": "|im_start|"}
        assert (0, key) in [
            (kind, {field: text for field, text in texts.items() if field in key})
            for kind, texts in probe.completions(["<|im_start|>"])
        ]
        assert probe.filled(0, key) == Tried(1, 0, 0, same_text=True, same_bytes=True, about="")
        assert probe.filled(0, key, guard=False).forged == 1


def forged_without_a_template(vocab: LlamaVocab, tokens: list[str]) -> tuple[Counter[str], int]:
    """Control tokens too many or too few, by place, and the number of texts tried."""
    probe, odd, texts = TextProbe(vocab), Counter[str](), 0
    for token in tokens:
        for place, found in (*probe.whole(token), *probe.halves(token)):
            texts += found.texts
            odd[place] += found.forged + found.lost
    return odd, texts


@pytest.mark.parametrize("path", WITHOUT_TEMPLATE, ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_texts_to_embed_rank_score_and_fill_in(
    path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    with vocabulary(path) as vocab:
        known = few_of_a_row(guarded_tokens(vocab))
        odd, texts = forged_without_a_template(vocab, random.Random(path.stem).sample(known, min(5, len(known))))
        assert odd.total() == 0, odd
        assert {"embed", "embed, prefix", "rerank", "rerank, template", "score", "score, tokens"} <= set(odd)
        assert ("complete, suffix" in odd) == (vocab.fim is not None)
        assert texts > 100
    record_testsuite_property(f"forgery of texts {path.stem}", f"forged 0 of {texts}")


def test_cuts_are_what_prevents_it_without_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One vocabulary has the tokens of all families; uncut, those that are user-defined are forged."""
    with vocabulary(families_vocabulary(tmp_path)) as vocab:
        chance = random.Random(4)
        tokens = chance.sample(guarded_tokens(vocab), 12)
        assert forged_without_a_template(vocab, tokens)[0].total() == 0
        monkeypatch.setattr(LlamaVocab, "tokenize", LlamaVocab._continue)  # pyright: ignore[reportPrivateUsage]
        odd, _ = forged_without_a_template(vocab, tokens)
        assert {place for place, count in odd.items() if count} == {"score, tokens"}
