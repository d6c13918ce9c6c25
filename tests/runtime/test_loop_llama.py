"""The loop over llama.cpp itself: attention, recurrent and hybrid memories, with tiny random weights."""

from collections.abc import Iterator

import pytest
from fakes.doubles import prompt
from files import model_files

from engine.formats.parsing import Parser
from engine.llama.model import Model
from engine.runtime.loop.config import ContextOptions, LoopOptions
from engine.runtime.loop.generation import Limits
from engine.runtime.loop.loop import Loop
from engine.runtime.loop.request import Reply, TurnRequest
from engine.types.completion import Completion, Usage
from engine.types.events import fold
from engine.types.prompt import Piece
from engine.types.sampling import SamplingParams
from engine.types.turn_settings import TurnSettings

ARCHITECTURES = ("llama", "qwen3", "mamba", "lfm2", "gemma3")
SYSTEM = "<|start|>system\nhello world ab ab he o hello hello world<|end|><|start|>user\n"
TEXTS = [f"{SYSTEM}{text}<|end|><|start|>assistant\n" for text in ("ab", "ab", "world a b", "hello", "o", "ab ab")]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("loop") / "m.gguf"
    with Model.load(model_files.write(path, str(request.param))) as model:
        yield model


class Desk:
    """A loop over one context of a model, and what its requests answered."""

    def __init__(
        self,
        model: Model,
        n_sequences: int = 4,
        n_ctx: int = 512,
        draft_max: int = 0,
        *,
        n_batch: int = 64,
        unified: bool = True,
    ) -> None:
        options = ContextOptions(
            n_threads=1,
            n_sequences=n_sequences,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=n_batch,
            kv_unified=unified,
        )
        self.backend = model.backend(options)
        self.loop = Loop(self.backend, LoopOptions(draft_max=draft_max))
        self.replies: dict[int, list[Reply]] = {}

    def tokens(self, text: str) -> list[int]:
        return self.backend.vocab.encode([Piece(text, trusted=True)], add_bos=True)

    def submit(self, id_: int, text: str | list[int], *, turns: bool = True, logprobs: int | None = None) -> None:
        vocab = self.backend.vocab
        tokens = self.tokens(text) if isinstance(text, str) else text
        start = vocab.tokenize("<|start|>", special=True)[0]
        sampling = SamplingParams(temperature=0, logprobs=logprobs)
        limits = Limits(max_tokens=16, ignore_eos=True)
        starts = [place for place, token in enumerate(tokens) if token == start]
        begins = tuple(starts[-2:]) if turns else ()
        turn = TurnRequest(prompt(""), lambda: Parser("content-only"), TurnSettings(sampling))
        self.loop.submit(turn.crossing(id_, tuple(tokens), limits, begins))

    def step(self) -> None:
        self.loop.step()
        self.loop.cache.check()
        for reply in self.loop.drain():
            self.replies.setdefault(reply.id, []).append(reply)

    def run(self) -> None:
        while self.loop.busy:
            self.step()

    def output(self, id_: int) -> tuple[int, ...]:
        last = self.replies[id_][-1]
        assert last.error is None, last.error
        return last.output

    def usage(self, id_: int) -> Usage:
        completion: Completion = fold(event for reply in self.replies[id_] for event in reply.events)
        assert completion.usage
        return completion.usage


@pytest.fixture(scope="module")
def alone(model: Model) -> dict[str, tuple[int, ...]]:
    """What each text is answered with when nothing else runs and nothing is cached."""
    answers: dict[str, tuple[int, ...]] = {}
    for text in TEXTS:
        desk = Desk(model)
        desk.submit(0, text, turns=False)
        desk.run()
        desk.backend.close()
        answers[text] = desk.output(0)
    return answers


@pytest.mark.parametrize("draft_max", [0, 6])
@pytest.mark.parametrize(("n_ctx", "unified"), [(512, True), (256, True), (256, False)])
def test_every_output_equals_its_run_alone(
    model: Model, alone: dict[str, tuple[int, ...]], draft_max: int, n_ctx: int, *, unified: bool
) -> None:
    desk = Desk(model, n_sequences=3, n_ctx=n_ctx, draft_max=draft_max, unified=unified)
    for id_, text in enumerate(TEXTS):
        desk.submit(id_, text)
        desk.step()
    desk.submit(99, TEXTS[0] + "cancelled")
    desk.step()
    desk.loop.cancel(99)
    desk.run()
    for id_, text in enumerate(TEXTS):
        assert desk.output(id_) == alone[text]
    assert sum(desk.usage(id_).cached_tokens for id_ in range(len(TEXTS))) > 0
    desk.backend.close()


@pytest.mark.parametrize("unified", [True, False])
def test_long_prompts_beside_streams_change_no_output(model: Model, *, unified: bool) -> None:
    """More rows than the CPU's attention takes in one tile; the streams' tokens are evaluated apart from them then."""
    long = [f"{SYSTEM}{' world hello' * 14} {text}<|end|><|start|>assistant\n" for text in ("ab", "o", "hello")]
    texts = [TEXTS[0], long[0], TEXTS[2], long[1], TEXTS[3], long[2]]
    alone: list[tuple[int, ...]] = []
    for text in texts:
        desk = Desk(model, n_ctx=1024, n_batch=256)
        desk.submit(0, text, turns=False)
        desk.run()
        desk.backend.close()
        alone.append(desk.output(0))
    desk = Desk(model, n_ctx=1024, n_batch=256, unified=unified)
    for id_, text in enumerate(texts):
        desk.submit(id_, text)
        desk.step()
    desk.run()
    assert [desk.output(id_) for id_ in range(len(texts))] == alone
    desk.backend.close()


def test_logprobs_are_those_of_the_tokens_drawn(model: Model) -> None:
    desk = Desk(model, draft_max=6)
    desk.submit(0, TEXTS[0], logprobs=2)
    desk.run()
    entries = [entry for reply in desk.replies[0] for entry in reply.logprobs]
    assert tuple(entry.drawn.token for entry in entries) == desk.output(0)
    assert all(entry.top[0] == entry.drawn and entry.drawn.logprob < 0 for entry in entries), "greedy draws the best"
    desk.backend.close()


@pytest.mark.parametrize("unified", [True, False])
def test_prompts_sent_again_or_edited_are_not_read_from_their_beginning(model: Model, *, unified: bool) -> None:
    """In one sequence, which the last conversation filled: by cutting it, or by its checkpoints."""
    desk = Desk(model, n_sequences=1, unified=unified)
    edited = TEXTS[2].replace("world a b", "o he he")
    for id_, text in enumerate((TEXTS[2], TEXTS[2], edited, TEXTS[2])):
        desk.submit(id_, text)
        desk.run()
        fresh = Desk(model, unified=unified)
        fresh.submit(0, text, turns=False)
        fresh.run()
        assert desk.output(id_) == fresh.output(0)
        fresh.backend.close()
    vocab = desk.backend.vocab
    tail = len(vocab.tokenize("<|start|>assistant\n", special=True))
    head = len(vocab.encode([Piece(TEXTS[2].partition("<|start|>user")[0], trusted=True)], add_bos=True))
    assert desk.usage(1).cached_tokens >= desk.usage(0).prompt_tokens - tail
    assert desk.usage(2).cached_tokens >= head
    assert desk.usage(3).cached_tokens >= head
    kept, taken = desk.loop.cache.checkpoints
    assert (kept > 0) == (taken > 0) == (model.info.is_recurrent or model.info.is_hybrid)
    assert taken <= desk.backend.info.checkpoint_bytes
    desk.backend.close()


def test_a_next_turn_that_parts_from_the_last_is_continued_at_its_beginning(model: Model) -> None:
    desk = Desk(model, n_sequences=2)
    desk.submit(0, TEXTS[0])
    desk.run()
    second = TEXTS[0] + "world<|end|><|start|>user\nhello<|end|><|start|>assistant\n"
    desk.submit(1, second)
    desk.run()
    tail = len(desk.backend.vocab.tokenize("<|start|>assistant\n", special=True))
    assert desk.usage(1).cached_tokens >= desk.usage(0).prompt_tokens - tail
    fresh = Desk(model)
    fresh.submit(1, second, turns=False)
    fresh.run()
    assert desk.output(1) == fresh.output(1)
    desk.backend.close()
    fresh.backend.close()


@pytest.mark.parametrize("unified", [True, False])
def test_conversations_that_were_forgotten_go_on_from_their_states(model: Model, unified: bool) -> None:
    begun = [f"{SYSTEM}{number} {'hello world ab he ' * 10}<|end|><|start|>assistant\n" for number in "abcd"]
    answers: dict[int, list[tuple[int, ...]]] = {}
    for n_sequences in (1, 8):
        desk = Desk(model, n_sequences=n_sequences, unified=unified)
        for id_, text in enumerate(begun):
            desk.submit(id_, desk.tokens(text))
            desk.run()
        for id_, text in enumerate(begun):
            said = desk.tokens("<|end|><|start|>user\nab<|end|><|start|>assistant\n")[1:]
            desk.submit(id_ + 10, [*desk.tokens(text), *desk.output(id_)[:-1], *said])
            desk.run()
            if n_sequences == 1:
                assert desk.usage(id_ + 10).cached_tokens >= len(desk.tokens(text)) - 10, "it was kept"
        answers[n_sequences] = [desk.output(id_) for id_ in range(10, 14)]
        desk.backend.close()
    assert answers[1] == answers[8]
