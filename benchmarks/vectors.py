"""Vectors and scores in figures: `python benchmarks/vectors.py [vectors] [scores] [accuracy] [fuzz]`.

- vectors: 64 short texts in one call of `embed` and in a call each, on 100 million random weights.
- scores: 8 continuations of each of 20 prompts in one call of `score` for each prompt, and in a call each.
- accuracy: how far vectors of many texts at once are from those of each alone (least cosine), and scores from one
  decode of each whole text by llama.cpp's calls alone (largest difference of a token; how often another text is best).
- fuzz: 1,000 lists of random texts of all lengths on four kinds of model; how they ended.
"""

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

from measuring import by_turns, report, seconds, words
from vector_files import CLS, KINDS, LETTERS, SEP, Alone, ScoredAlone, cosine, write

from engine import Engine
from engine.support import _data
from engine.support.errors import RequestError

FOLDER = Path(tempfile.mkdtemp())
TEXTS = [words(12, seed) for seed in range(64)]


def vectors() -> None:
    path = write(FOLDER / "large.gguf", KINDS["bert-mean"], width=768, layers=12, words=30_000)
    with Engine.load(path) as llm:
        llm.embed(TEXTS)

        def together(_: int) -> float:
            return 64 / seconds(lambda: llm.embed(TEXTS))

        def alone(_: int) -> float:
            return 64 / seconds(lambda: [llm.embed(text) for text in TEXTS])

        weights = f"{llm.info.parameters / 1e6:.0f} M weights, {len(llm.tokenize(TEXTS[0]))} tokens a text"
        contenders = {"one call": together, "a call each": alone}
        report(f"64 texts, {weights}", by_turns(contenders, 5), "a call each", "texts/s")


def scores() -> None:
    prompts = [words(60, seed) for seed in range(20)]
    texts = [f" {words(3, seed)}" for seed in range(8)]
    with Engine.load(_data.builtin_model(), n_ctx=512, n_sequences=8) as llm:
        llm.score(prompts[0], texts)

        def together(_: int) -> float:
            return 160 / seconds(lambda: [llm.score(prompt, texts) for prompt in prompts])

        def alone(_: int) -> float:
            return 160 / seconds(lambda: [llm.score(prompt, [text]) for prompt in prompts for text in texts])

        def harness(_: int) -> float:
            pairs = [pair for prompt in prompts for pair in llm.scorer.pairs(prompt, texts, special=False)]
            return 160 / seconds(lambda: llm.scorer.scores(pairs))

        contenders = {"all at once": harness, "a call for 8": together, "a call each": alone}
        report("8 texts after each of 20 prompts", by_turns(contenders, 5), "a call each", "rows/s")


def accuracy() -> None:
    for name, kind in KINDS.items():
        path = write(FOLDER / f"{name}.gguf", kind)
        with Engine.load(path) as llm:
            alone, made = Alone(path), llm.embed(TEXTS)
            expected = [alone.vector([CLS, *llm.tokenize(text, special=False), SEP]) for text in TEXTS]
            print(f"{name}: least cosine {min(map(cosine, made, expected)):.6f}")
            alone.close()
    whole, largest, other = ScoredAlone(_data.builtin_model()), 0.0, 0
    with Engine.load(_data.builtin_model(), n_ctx=512, n_sequences=4) as llm:
        for seed in range(50):
            prompt = llm.tokenize(words(20, seed), special=False, add_bos=True)
            texts = [llm.tokenize(f" {words(3, seed * 9 + at)}", special=False) for at in range(4)]
            given = llm.score(prompt, texts)
            right = [whole.logprobs([*prompt, *text])[len(prompt) - 1 :] for text in texts]
            for score, each in zip(given, right, strict=True):
                largest = max(largest, *(abs(a.logprob - b) for a, b in zip(score.tokens, each, strict=True)))
            sums = [sum(each) for each in right]
            other += max(range(4), key=sums.__getitem__) != max(range(4), key=lambda at: given[at].logprob)
    print(f"scores: largest difference of a token {largest:.4g}; another text best in {other} of 50")


def fuzz() -> None:
    rng, ends = random.Random(11), Counter[str]()
    alphabet = [*LETTERS, " ", "\n", "\x00", "é", "漢", "😀", "[SEP]", "[CLS]", "\ud800", "▁", "\u202e"]
    for name in ("bert-mean", "bert-cls", "nomic-mean", "qwen3-last"):
        with Engine.load(write(FOLDER / f"f-{name}.gguf", KINDS[name])) as llm:
            for _ in range(250):
                lengths = rng.choices((0, 1, 2, 30, 252, 253, 254, 255, 256, 257, 3000), k=rng.randint(1, 90))
                try:
                    llm.embed(["".join(rng.choices(alphabet, k=size)) for size in lengths], truncate=rng.random() < 0.7)
                    ends["vectors"] += 1
                except RequestError:
                    ends["refused by name"] += 1
    print(f"1,000 lists of texts: {dict(ends)}")


if __name__ == "__main__":
    for part in sys.argv[1:] or ("vectors", "scores", "accuracy", "fuzz"):
        {"vectors": vectors, "scores": scores, "accuracy": accuracy, "fuzz": fuzz}[part]()
