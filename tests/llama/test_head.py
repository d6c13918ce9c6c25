"""A model's own head for the next tokens (MTP, NextN) over llama.cpp itself: the same answers, whatever it guesses."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.doubles import guess_always, preempted_states
from files import head_files

from engine import Completion, Engine, RequestError
from engine.llama import head as head_module
from engine.llama.context import LlamaBackend
from engine.llama.gguf.gguf import read_gguf
from engine.llama.head import LlamaHead, head_file, why_no_head
from engine.llama.model import Model
from engine.llama.plan.plan import DraftFile, Machine, plan
from engine.runtime.draft.drafter import Due, HeadDrafter
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support.errors import DecodeError
from engine.types.answer_formats import JsonSchema

WORDS = ("hello", "world", "a b", "ab", "so", "ll", "w or ld")
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


def questions(count: int, longest: int = 12) -> list[str]:
    draw = random.Random(3)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


ASKED = questions(52)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("heads")
    kinds: tuple[head_files.Kind, ...] = ("right", "often", "wrong")
    return {kind: head_files.write(folder / f"{kind}.gguf", kind) for kind in kinds}


@pytest.fixture(scope="module")
def bare(files: dict[str, Path]) -> Iterator[Engine]:
    """The model without its head, which is the same for all three."""
    with loaded(files["right"], n_sequences=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(bare: Engine) -> list[Completion]:
    return [bare.chat(text, **GREEDY) for text in ASKED]


def loaded(path: Path, **options: Any) -> Engine:
    """The model with a buffer for each sequence, unless told: in a pool, rounding depends on what else is in it. The
    file is ours, so no child tries it."""
    settings: dict[str, Any] = {"family": "content-only", "n_ctx": 512, "preflight": False}
    settings |= {"kv_unified": "kv_tokens" in options, **options}
    return Engine.load(path, **settings)


def answers(llm: Engine, texts: Sequence[str], **options: Any) -> list[Completion]:
    """All answers, asked at once."""
    streams = [llm.stream(text, **{**GREEDY, **options}) for text in texts]
    return [stream.result() for stream in streams]


def same(some: Sequence[Completion], others: Sequence[Completion]) -> bool:
    return [each.parts for each in some] == [each.parts for each in others]


def parts_at_close_calls(plain: Sequence[Completion], others: Sequence[Completion]) -> bool:
    """Whether answers with two log-probabilities are the same until the two best tokens are as likely as each other:
    where a request was preempted, rows are computed again, in other batches."""
    for one, other in zip(plain, others, strict=True):
        pairs = zip(one.logprobs or (), other.logprobs or (), strict=False)
        for entry, drawn in pairs:
            if entry.token != drawn.token:
                if entry.top[0].logprob - entry.top[1].logprob > 0.05:
                    return False
                break
    return True


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each decode of the model itself."""
    counted: list[int] = []
    decode = LlamaBackend.decode

    def counting(backend: LlamaBackend, rows: Sequence[Row]) -> None:
        if not isinstance(backend, LlamaHead):
            counted.append(len(rows))
        decode(backend, rows)

    monkeypatch.setattr(LlamaBackend, "decode", counting)
    return counted


@pytest.mark.parametrize("kind", ["right", "often", "wrong"])
@pytest.mark.parametrize("streams", [1, 4])
def test_answers_are_the_same_whatever_the_head_guesses(
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, Path],
    expected: list[Completion],
    decodes: list[int],
    kind: str,
    streams: int,
) -> None:
    guess_always(monkeypatch)
    with loaded(files[kind], n_sequences=streams, draft="mtp") as llm:
        assert same(answers(llm, ASKED), expected)
        metrics = llm.metrics
    assert metrics.drafted_tokens > 500
    if kind == "right":
        assert metrics.accepted_tokens == metrics.drafted_tokens
        assert len(decodes) < 0.7 * metrics.completion_tokens / streams
    elif kind == "often":
        assert 0.4 * metrics.drafted_tokens < metrics.accepted_tokens < 0.95 * metrics.drafted_tokens
    else:
        assert metrics.accepted_tokens < 0.02 * metrics.drafted_tokens


def test_guesses_follow_from_the_hidden_states_of_the_tokens_before(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, Path]
) -> None:
    """The first guess after each token, made while tokens came and guesses were cut off, is what the head says to the
    same tokens in one go."""
    guess_always(monkeypatch)
    made: list[tuple[tuple[int, ...], int]] = []
    propose = HeadDrafter.propose

    def watched(drafter: HeadDrafter, due: Sequence[Due]) -> Sequence[Sequence[int]]:
        drafts = propose(drafter, due)
        made.extend((tuple(state.tokens), draft[0]) for (state, _), draft in zip(due, drafts, strict=True) if draft)
        return drafts

    monkeypatch.setattr(HeadDrafter, "propose", watched)
    with loaded(files["often"], n_sequences=2, n_batch=48, draft="mtp", draft_max=2) as llm:
        answers(llm, questions(6, 40), max_tokens=40)
    assert len(made) > 60
    with Model.load(files["often"], head=True) as model:
        trunk = model.backend(ContextOptions(n_ctx=512, n_sequences=1))
        head = model.head(trunk)
        wrong = [guess for tokens, guess in made if _says(trunk, head, tokens) != guess]
    assert len(wrong) <= len(made) // 50, "but for rounding"


def _says(trunk: LlamaBackend, head: LlamaHead, tokens: Sequence[int]) -> int:
    last = len(tokens) - 1
    rows = [Row(token, position, 0, position == last) for position, token in enumerate(tokens)]
    for context in (trunk, head):
        context.trim(0, 0)
    trunk.decode(rows)
    head.read(rows, [None, *head.hidden(0, last)])
    return head.likeliest(last)[0]


def test_the_hidden_state_before_a_token_counts(files: dict[str, Path]) -> None:
    tokens = [1, *range(40, 60)]
    last = len(tokens) - 1
    rows = [Row(token, position, 0, position == last) for position, token in enumerate(tokens)]
    with Model.load(files["often"], head=True) as model:
        trunk = model.backend(ContextOptions(n_ctx=512, n_sequences=1))
        head = model.head(trunk)
        trunk.decode(rows)
        states = head.hidden(0, len(tokens))
        logits: list[Any] = []
        for hidden in ([None, *states[:-1]], states, [None] * len(tokens)):
            head.trim(0, 0)
            head.read(rows, hidden)
            logits.append(head.logits(last).copy())
        assert abs(logits[0] - logits[1]).max() > 0.1
        assert abs(logits[0] - logits[2]).max() > 0.1
        with pytest.raises(DecodeError, match="no hidden state"):
            head.own_hidden(0)


def test_shared_and_grown_prefixes_are_guessed_for(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, Path], bare: Engine
) -> None:
    """A conversation goes on, one is asked again from the middle, and several begin alike."""
    guess_always(monkeypatch)
    beginning = " ".join(ASKED[:6])
    texts = [f"{beginning} {text}" for text in ASKED[:6]]
    for pool in (False, True):
        with loaded(files["right"], n_sequences=4, n_ctx=512, draft="mtp", kv_unified=pool) as llm:
            first = llm.chat(beginning, **GREEDY)
            messages: list[Any] = [{"role": "user", "content": beginning}]
            messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "so"}]
            for asked in (messages, messages[:1], [*messages[:2], {"role": "user", "content": "hello"}]):
                assert llm.chat(asked, **GREEDY).parts == bare.chat(asked, **GREEDY).parts
            assert same(answers(llm, texts), [bare.chat(text, **GREEDY) for text in texts])
            metrics = llm.metrics
        assert metrics.cached_tokens > 0
        assert metrics.accepted_tokens == metrics.drafted_tokens > 100, "the head holds what the model copied"


def test_preempted_requests_are_guessed_for_again(monkeypatch: pytest.MonkeyPatch, files: dict[str, Path]) -> None:
    guess_always(monkeypatch)
    texts = questions(5, 20)
    options = {**GREEDY, "max_tokens": None, "logprobs": 2}
    monkeypatch.setattr("engine.runtime.loop.sequence.ANSWER", 0)
    preempted = preempted_states(monkeypatch)
    pool: dict[str, Any] = {"n_sequences": 4, "n_ctx": 256, "kv_tokens": 256}
    with loaded(files["often"], **pool) as llm:
        plain = answers(llm, texts, **options)
    del preempted[:]
    with loaded(files["often"], draft="mtp", **pool) as llm:
        assert parts_at_close_calls(plain, answers(llm, texts, **options))
        assert preempted
        assert llm.metrics.accepted_tokens > 100


@pytest.mark.parametrize("isolated", [False, True])
def test_sampled_and_constrained_answers_are_the_same(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, Path], bare: Engine, isolated: bool
) -> None:
    guess_always(monkeypatch)
    schema = JsonSchema({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 4, "maxItems": 9})
    wishes: list[dict[str, Any]] = [
        {"temperature": 0.9, "seed": 4},
        {"temperature": 0.9, "seed": 5, "response_format": schema, "ignore_eos": False, "max_tokens": 60},
    ]
    with loaded(files["often"], n_sequences=2, draft="mtp", isolated=isolated) as llm:
        for wish in wishes:
            plain = [bare.chat(text, **{**GREEDY, **wish}) for text in ASKED[:6]]
            assert same(answers(llm, ASKED[:6], **wish), plain)
        assert llm.metrics.drafted_tokens > 0


def test_a_head_that_fails_ends_no_request(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, Path], expected: list[Completion]
) -> None:
    guess_always(monkeypatch)
    calls: list[int] = []

    def fail(_head: LlamaHead, rows: Sequence[Row], _hidden: Sequence[Any]) -> None:
        calls.append(len(rows))
        raise DecodeError("the head broke")

    monkeypatch.setattr(LlamaHead, "read", fail)
    with loaded(files["right"], n_sequences=2, draft="mtp") as llm:
        assert same(answers(llm, ASKED[:8]), expected[:8])
        assert llm.metrics.drafted_tokens == 0
    assert len(calls) == 3, "then it is not used any more"


def test_what_has_no_head_is_refused_by_name_or_guesses_by_ngrams(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RequestError, match=r'draft="mtp" is not possible: .* has no head for the next tokens'):
        Engine.load(n_ctx=512, draft="mtp")
    left_out = head_files.write(tmp_path / "left_out.gguf", None)
    assert "has no head" in str(why_no_head(read_gguf(left_out)))
    file = read_gguf(files["right"])
    assert why_no_head(file) is None
    assert "heads of exaone-moe" in str(why_no_head(replace(file, architecture="exaone-moe")))
    assert "recurrent memory" in str(why_no_head(replace(file, architecture="qwen35")))
    caplog.set_level("INFO", "engine.llama")
    with loaded(left_out, draft="auto") as llm:
        assert llm.chat("hello", **GREEDY).content
    assert 'draft="auto" means "ngram" here' in caplog.text
    monkeypatch.setattr(head_module, "nextn", lambda: None)
    with pytest.raises(RequestError, match="does not give the hidden states"):
        loaded(files["right"], draft="mtp")
    with loaded(files["right"], draft="auto") as llm:
        assert llm.chat("hello", **GREEDY).content
        assert "does not give the hidden states" in caplog.text


def test_auto_uses_the_head_that_there_is(monkeypatch: pytest.MonkeyPatch, files: dict[str, Path]) -> None:
    guess_always(monkeypatch)
    with loaded(files["right"], draft="auto") as llm:
        usage = llm.chat("hello", **GREEDY).usage
        assert usage is not None
        assert usage.accepted_tokens == usage.drafted_tokens > 10


def test_a_llama_that_is_open_has_no_head(files: dict[str, Path]) -> None:
    import llama_cpp

    llama = llama_cpp.Llama(str(files["right"]), n_ctx=512, verbose=False)
    options: dict[str, Any] = {"family": "content-only", "draft": "mtp"}
    with pytest.raises(RequestError, match="was loaded without its head"):
        Engine.from_llama(llama, **options)
    llama.close()


def test_the_plan_counts_the_head(files: dict[str, Path]) -> None:
    file = read_gguf(files["right"])
    assert (len(file.shape.layers), file.shape.nextn_layers, len(head_file(file).shape.layers)) == (2, 1, 1)
    machine, options = Machine(1 << 40), ContextOptions(n_ctx=512, n_sequences=2)
    alone, both = (
        plan(file, ModelOptions(), options, machine, draft=draft)
        for draft in (None, DraftFile(head_file(file), 1 << 62))
    )
    cache = 512 * 2 * 2 * 64 * 2  # positions, sequences, keys and values, numbers, bytes
    assert alone.need.host + cache < both.need.host < alone.need.host + cache + (8 << 20)
