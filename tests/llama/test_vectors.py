"""Vectors and ranks on real contexts, against llama.cpp's calls with each text alone."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.inside import parts
from files.vector_files import CLS, KINDS, LETTERS, RERANK_TEMPLATE, RERANKERS, SEP, Alone, Kind, cosine, write
from gguf import PoolingType

from engine import Engine
from engine.llama.model import Model
from engine.runtime.loop.config import ContextOptions
from engine.support.errors import ContextOverflowError, MissingTemplateError, ModelLoadError, RequestError

TEXTS = ["hello world", "a", "the quick brown fox jumps over the lazy dog", "what is a panda?", "0123456789"] * 8


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("vectors")
    return {name: write(folder / f"{name}.gguf", kind) for name, kind in (KINDS | RERANKERS).items()}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def llm(files: dict[str, Path], kind: str) -> Iterator[Engine]:
    with Engine.load(files[kind], preflight=False) as llm:  # as is each file of ours here: no child tries it
        yield llm


def tokens(llm: Engine, text: str) -> list[int]:
    return [CLS, *llm.tokenize(text, special=False), SEP]


def test_many_texts_have_the_vectors_of_each_alone(llm: Engine, files: dict[str, Path], kind: str) -> None:
    alone = Alone(files[kind])
    vectors = llm.embed(TEXTS, normalize=False)
    assert vectors.shape == (len(TEXTS), 64)
    assert vectors.dtype == np.float32
    assert (
        min(cosine(made, alone.vector(tokens(llm, text))) for made, text in zip(vectors, TEXTS, strict=True)) > 0.9999
    )
    assert cosine(vectors[0], vectors[1]) < 0.99  # else the comparison would say nothing
    alone.close()


def test_long_cut_and_repeated_texts_have_the_vectors_of_each_alone(
    llm: Engine, files: dict[str, Path], kind: str
) -> None:
    alone, rng = Alone(files[kind]), random.Random(3)
    long = "".join(rng.choice(LETTERS) for _ in range(1000))
    exact = long[: 256 - 2]
    texts = [exact, "a", long, "a", exact, "hello world", "a"]
    vectors = llm.embed(texts, truncate=True)
    expected = [alone.vector([*tokens(llm, text)[:-1][:255], SEP]) for text in texts]
    assert min(cosine(made, right) for made, right in zip(vectors, expected, strict=True)) > 0.9999
    alone.close()


def test_a_text_that_is_too_long_is_an_error_that_says_which_and_by_how_much(llm: Engine) -> None:
    with pytest.raises(RequestError, match=r"Text 1 has 302 tokens, and one text may have 256; .*truncate=True"):
        llm.embed(["a", "b" * 300])
    assert llm.embed(["a"]).shape == (1, 64)


def test_vectors_are_normalised_and_cut_to_dimensions(llm: Engine) -> None:
    raw = llm.embed("hello", normalize=False)
    assert raw.shape == (64,)
    assert np.allclose(llm.embed("hello"), raw / np.linalg.norm(raw), atol=1e-6)
    short = llm.embed("hello", dimensions=16)
    assert np.allclose(short, raw[:16] / np.linalg.norm(raw[:16]), atol=1e-6)
    with pytest.raises(RequestError, match="dimensions=65 is more than this model's vectors have: 64"):
        llm.embed("hello", dimensions=65)


def test_an_embedding_model_refuses_to_chat_by_name(llm: Engine) -> None:
    with pytest.raises(MissingTemplateError, match=r"embedding model.*load a chat model"):
        llm.chat("Hello")
    with pytest.raises(RequestError, match=r"embedding model.*load a chat model"):
        llm.complete("Hello")


def test_a_callers_text_becomes_no_control_token(llm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, ...]] = []
    service = parts(llm).service  # pyright: ignore[reportPrivateUsage]
    embed = service.embed

    def watched(texts: Any, tail: int, **options: Any) -> Any:
        read.extend(texts)
        return embed(texts, tail, **options)

    monkeypatch.setattr(service, "embed", watched)
    llm.embed(["a [SEP] b", "[CLS][MASK]", "[PAD]"])
    assert [text[0] for text in read] == [CLS] * 3
    assert all(text[-1] == SEP and not set(text[1:-1]) & {0, 2, 3, 4} for text in read)


def test_random_bytes_and_lengths_end_in_vectors_or_named_errors(llm: Engine) -> None:
    rng = random.Random(7)
    alphabet = [*LETTERS, " ", "\n", "\x00", "é", "漢", "😀", "[SEP]", "\ud800", "▁"]
    made = refused = 0
    for _ in range(60):
        texts = ["".join(rng.choices(alphabet, k=rng.choice((0, 1, 2, 50, 250, 254, 255, 256, 400)))) for _ in range(3)]
        try:
            made += len(llm.embed(texts, truncate=rng.random() < 0.5))
        except RequestError:
            refused += 1
    assert made > 60
    assert refused > 5


def test_a_model_in_a_child_process_makes_the_same_vectors(files: dict[str, Path]) -> None:
    with Engine.load(files["nomic-mean"]) as here, Engine.load(files["nomic-mean"], isolated=True) as there:
        assert np.array_equal(here.embed(TEXTS), there.embed(TEXTS))
        with pytest.raises(RequestError, match="Text 0 has 302 tokens"):
            there.embed("b" * 300)


def test_a_cross_encoder_ranks_by_its_score_of_query_and_document(files: dict[str, Path]) -> None:
    alone, query, documents = Alone(files["bert-rank"]), "what is a panda?", ["hi", "it is a bear", "a bear of china"]
    with Engine.load(files["bert-rank"], preflight=False) as llm:
        ranked = llm.rerank(query, documents, normalize=False)
        pairs = [[*tokens(llm, query), *llm.tokenize(document, special=False), SEP] for document in documents]
        expected = [float(alone.vector(pair)[0]) for pair in pairs]
        assert {each.index: each.score for each in ranked} == pytest.approx(dict(enumerate(expected)), abs=1e-3)
        assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
        best = llm.rerank(query, documents, top_n=1)
        assert [each.index for each in best] == [ranked[0].index]
        assert best[0].score == pytest.approx(1 / (1 + np.exp(-ranked[0].score)))
        with pytest.raises(RequestError, match=r"reranker, which has no vectors; use rerank"):
            llm.embed("hello")
    alone.close()


def test_a_long_document_is_cut_and_its_query_kept(files: dict[str, Path]) -> None:
    alone = Alone(files["bert-rank"])
    with Engine.load(files["bert-rank"], preflight=False) as llm:
        with pytest.raises(RequestError, match="Text 1 has"):
            llm.rerank("why?", ["a", "b" * 400])
        (first, *_) = llm.rerank("why?", ["b" * 400], truncate=True, normalize=False)
        head = [*tokens(llm, "why?"), *llm.tokenize("b" * 400, special=False)]
        assert first.score == pytest.approx(float(alone.vector([*head[:255], SEP])[0]), abs=1e-3)
    alone.close()


def test_a_yes_no_reranker_reads_its_own_template(tmp_path: Path) -> None:
    path = write(tmp_path / "rank.gguf", RERANKERS["qwen3-rank"], template=RERANK_TEMPLATE)
    alone = Alone(path)
    with Engine.load(path, preflight=False) as llm:
        ranked = llm.rerank("panda [SEP]", ["bear", "tree [CLS]"])
        for each, document in ((each, ["bear", "tree [CLS]"][each.index]) for each in ranked):
            plain = [llm.tokenize(text, special=False) for text in ("judge: ", "panda [SEP]", " against: ", document)]
            expected = alone.vector([CLS, *(token for part in plain for token in part), SEP, SEP])
            assert each.score == pytest.approx(float(expected[0]), abs=1e-3)
        with pytest.raises(RequestError, match=r"holds \{query\} and \{document\} once each"):
            llm.rerank("a", ["b"], template="{query}")
    alone.close()


def test_a_chat_model_embeds_beside_its_turns(builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path) as llm:
        answer = llm.chat("Hello! Who are you?", temperature=0).content
        with llm.stream("Hello! Who are you?", temperature=0) as stream:
            vectors = llm.embed(TEXTS)
            assert stream.result().content == answer
        assert vectors.shape[0] == len(TEXTS)
        assert min(cosine(one, llm.embed(text)) for one, text in zip(vectors[:5], TEXTS, strict=False)) > 0.9999
        with pytest.raises(RequestError, match="no reranker"):
            llm.rerank("a", ["b"])


def test_options_of_loading_decide_the_pooling_and_the_longest_text(
    builtin_model_path: Path, files: dict[str, Path]
) -> None:
    with Engine.load(builtin_model_path, pooling="last") as last, Engine.load(builtin_model_path) as mean:
        assert cosine(last.embed("hello world"), mean.embed("hello world")) < 0.999
    with Engine.load(files["nomic-mean"], n_ctx=32) as llm:
        assert llm.n_ctx == 32
        with pytest.raises(RequestError, match="one text may have 32"):
            llm.embed("b" * 40)
    with pytest.raises(RequestError, match="has learned 256 positions"):
        Engine.load(files["bert-mean"], n_ctx=300)
    with pytest.raises(RequestError, match="not for a reranker"):
        Engine.load(files["bert-rank"], pooling="mean")


def test_a_context_for_vectors_that_does_not_fit_is_refused_with_the_numbers(
    builtin_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.llama.plan.plan import Machine

    with Model.load(builtin_model_path) as model:
        monkeypatch.setattr(model, "_machine", lambda: Machine(1 << 20))
        with pytest.raises(ContextOverflowError, match="MiB"):
            model.vectors(ContextOptions(n_ctx=512, n_sequences=1))


def test_the_encoder_of_an_encoder_decoder_is_refused_by_name(tmp_path: Path) -> None:
    from files.model_files import write as write_model

    with pytest.raises(ModelLoadError, match="encoder-decoder"):
        Engine.load(write_model(tmp_path / "t5.gguf", "t5encoder", tensors=False))


@pytest.mark.parametrize("longest", [1, 30, 65, 100, 300, 700])
def test_any_length_makes_a_context(builtin_model_path: Path, longest: int) -> None:
    with Model.load(builtin_model_path) as model:
        made = model.vectors(ContextOptions(n_ctx=longest))
        assert made.info.longest == longest
        assert [len(vector) for vector in made.embed([[5]] * min(2, longest))] == [1024] * min(2, longest)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (Kind("bert", PoolingType.RANK, ("a", "b")), "classifier of 2 classes"),
        (Kind("qwen3", PoolingType.RANK, ("yes",)), "one class"),
    ],
)
def test_a_reranker_whose_scores_mean_nothing_is_refused(tmp_path: Path, kind: Kind, problem: str) -> None:
    path = write(tmp_path / "m.gguf", kind, classes=1)
    with pytest.raises(ModelLoadError, match=problem):
        Engine.load(path)


def test_a_query_that_leaves_no_room_for_a_document_is_refused(files: dict[str, Path]) -> None:
    with (
        Engine.load(files["bert-rank"], preflight=False) as llm,
        pytest.raises(RequestError, match="shorten the query"),
    ):
        llm.rerank("q" * 300, ["document"], truncate=True)


def test_scores_of_named_classes_are_probabilities(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", Kind("bert", PoolingType.RANK, ("no", "yes")))
    with Engine.load(path, preflight=False) as llm:
        ranked = llm.rerank("why?", ["a", "because it is so"])
        assert all(0 < each.score < 1 for each in ranked)
