"""What the cache forgets is found again: idle conversations, other engines of one store, forks."""

import gc
from pathlib import Path
from typing import Any

import pytest
from fakes.doubles import echo, plain, prompt

from engine import ChatTemplate, Conversation, DecodeError, Engine, EngineError, RequestError, StateStore
from engine.runtime.adapters.adapters import BASE, Adapters
from engine.runtime.cache.prefix import Lease, PrefixCache
from engine.runtime.cache.state_store import OriginStates
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import LoopOptions
from engine.runtime.loop.request import TurnRequest
from engine.runtime.stream.service import Service
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.completion import Completion

VOCAB = ByteVocab(["<|im_start|>"], end=["<|im_end|>"])
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHARED = "a long beginning that many prompts have in common, and that takes a while to evaluate; "


def cached(service: Service, text: str, *, offline: bool = False) -> int:
    usage = service.submit(TurnRequest(prompt(text), plain, offline=offline)).result().usage
    assert usage is not None
    return usage.cached_tokens


@pytest.mark.parametrize("trimmable", [True, False])
@pytest.mark.parametrize("pool", [0, 1000])
def test_an_idle_conversation_is_found_again(trimmable: bool, pool: int) -> None:
    backend = ScriptedBackend(echo, n_sequences=2, n_ctx=1000, kv_tokens=pool or None, trimmable=trimmable)
    with Service(backend) as service:
        for number in range(5):
            assert cached(service, f"{number} {SHARED}") == 0
        for number in range(5):
            before, text = backend.evaluated, f"{number} {SHARED}re: {number} {SHARED}and"
            assert cached(service, text) == len(text) - 3
            assert backend.evaluated - before == 3 + len(f"re: {text}"), "only what is new is evaluated"


def test_a_prompt_may_part_from_what_is_kept() -> None:
    backend = ScriptedBackend(echo, n_sequences=1)
    with Service(backend) as service:
        cached(service, f"{SHARED}one")
        cached(service, "x" * 200)
        assert cached(service, f"{SHARED}two") == len(SHARED)


def test_without_a_budget_nothing_is_kept() -> None:
    with Service(ScriptedBackend(echo, n_sequences=1), LoopOptions(states=StateStore(0))) as service:
        cached(service, f"{SHARED}one")
        cached(service, "x" * 200)
        assert cached(service, f"{SHARED}two") == 0


def test_short_prompts_and_rows_of_a_batch_are_not_kept() -> None:
    store = StateStore()
    with Service(ScriptedBackend(lambda _: "y", n_sequences=1), LoopOptions(states=store)) as service:
        cached(service, "x" * 20)
        cached(service, f"{SHARED}one", offline=True)
        cached(service, "x" * 20)
        assert store.sizes.states == 0
    assert store.sizes.states == 0


def test_an_answer_that_the_next_prompt_leaves_out_is_not_kept() -> None:
    """As reasoning is, in every turn: the sequence itself goes on."""
    store = StateStore()
    with Service(ScriptedBackend(lambda _: "y" * 70, n_sequences=1), LoopOptions(states=store)) as service:
        cached(service, f"{SHARED}one")
        assert cached(service, f"{SHARED}one and more") == len(SHARED) + 3
        assert store.sizes.states == 0


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("trimmable", [True, False])
def test_what_an_engine_read_the_next_one_finds(tmp_path: Path, where: str, trimmable: bool) -> None:
    path = tmp_path / "states"
    store = StateStore(1 << 20) if where == "memory" else StateStore(0, path, 1 << 20)
    with Service(ScriptedBackend(echo, trimmable=trimmable), LoopOptions(states=store)) as service:
        cached(service, SHARED)
    store = store if where == "memory" else StateStore(0, path, 1 << 20)
    with Service(ScriptedBackend(echo, trimmable=trimmable), LoopOptions(states=store)) as service:
        text = f"{SHARED}re: {SHARED}and"
        assert cached(service, text) == len(text) - 3


def test_a_pinned_prefix_is_on_disk_at_once_and_pinned_from_there(tmp_path: Path) -> None:
    def opened() -> tuple[Service, ScriptedBackend]:
        backend = ScriptedBackend(echo)
        return Service(backend, LoopOptions(states=StateStore(0, tmp_path, 1 << 20))), backend

    one, first = opened()
    two, second = opened()
    with one, two:
        tokens = one.tokens(prompt(SHARED))
        with one.pin(tokens):
            assert first.evaluated == len(tokens)
            deadline = 200
            while not list(tmp_path.glob("*/*.state")) and deadline:
                deadline -= 1
                gc.collect()
            with two.pin(tokens) as prefix:
                assert (prefix.tokens, second.evaluated) == (len(tokens), 1), "the last token, for its logits"
                assert cached(two, f"{SHARED}and") == len(tokens)


def test_a_state_that_the_memory_refuses_is_evaluated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = ScriptedBackend(echo, n_sequences=1)
    with Service(backend) as service:
        cached(service, f"{SHARED}one")
        cached(service, "x" * 200)

        def refuse(sequence: int, state: bytes) -> None:
            backend.trim(sequence, 0)
            raise DecodeError("does not fit", "invalid")

        with monkeypatch.context() as patch:
            patch.setattr(backend, "restore", refuse)
            assert cached(service, f"{SHARED}two") == 0
            assert "A kept state of 184 tokens was not loaded: does not fit" in caplog.text
        cached(service, "x" * 200)
        assert cached(service, f"{SHARED}two") == len(SHARED) + 2


def test_a_state_that_cannot_be_saved_is_lost_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend(echo, n_sequences=1)
    with Service(backend) as service:
        cached(service, f"{SHARED}one")

        def refuse(sequence: int) -> bytes:
            raise MemoryError

        monkeypatch.setattr(backend, "save", refuse)
        cached(service, "x" * 200)
        assert cached(service, f"{SHARED}two") == 0


def scripted(**options: Any) -> tuple[Engine, ScriptedBackend]:
    """An engine whose answers are all the same length, and its backend."""
    backend = ScriptedBackend(lambda text: f"{len(text)} is what I read", vocab=VOCAB, **options)
    return Engine.over(backend, ChatTemplate(TEMPLATE, family="hermes", control_tokens=VOCAB.control_tokens)), backend


def read(completion: Completion) -> int:
    """The tokens of the prompt that were evaluated for an answer."""
    assert completion.usage
    return completion.usage.prompt_tokens - completion.usage.cached_tokens


def begun(llm: Engine) -> Conversation:
    chat = llm.conversation([{"role": "system", "content": SHARED}])
    chat.chat("Hello, and a few words more")
    return chat


@pytest.mark.parametrize("n_sequences", [1, 2, 8])
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("trimmable", [True, False])
def test_forks_read_only_what_is_new_to_them(n_sequences: int, pool: bool, trimmable: bool) -> None:
    options: dict[str, Any] = {"kv_tokens": 4096} if pool else {}
    llm, backend = scripted(n_sequences=n_sequences, trimmable=trimmable, **options)
    with llm:
        root = begun(llm)
        before = backend.evaluated
        forks = [root.fork() for _ in range(6)]
        assert backend.evaluated == before, "a fork evaluates nothing"
        new = max(read(fork.chat("What now?")) for fork in forks)
        if not trimmable:
            return  # such a memory goes on from where it was saved: at the last turn's beginning, if at all
        assert new < 40, "the answer's end, and the new message"
        for number in range(3):
            for fork in forks:
                assert read(fork.chat(f"{number}, and on we go, each its own way")) < 90
        assert read(root.chat("At last")) < 40


@pytest.mark.parametrize("refused", [True, False])
def test_what_a_conversation_said_is_kept_after_a_call_that_was_refused(refused: bool) -> None:
    """Another one that shares more than a half of it takes the only sequence; without a conversation it would be
    lost."""
    llm, _ = scripted(n_sequences=1)
    with llm:
        chat: Any = begun(llm)
        if refused:
            with pytest.raises(RequestError):
                chat.chat("And now?", temperature=-1)
        llm.chat([{"role": "system", "content": SHARED * 2}, {"role": "user", "content": "x"}])
        assert read(chat.chat("Go on")) < 60


def test_a_conversation_keeps_its_messages() -> None:
    llm, _ = scripted()
    with llm:
        chat = begun(llm)
        assert [message.role for message in chat.messages] == ["system", "user", "assistant"]
        other = chat.fork()
        stream = other.stream("And now?", temperature=0)
        assert [message.content for message in other.messages[3:]] == ["And now?", stream.result().content]
        assert len(chat.messages) == 3
        assert repr(chat).startswith("<Conversation: 3 messages, the newest ")


def test_a_turn_that_fails_or_is_left_changes_nothing() -> None:
    llm, backend = scripted(delay=0.01)
    with llm:
        chat = begun(llm)
        for _ in chat.stream("Tell me"):
            break
        assert len(chat.messages) == 3

        def fail(_: object) -> None:
            raise DecodeError("broken", "failed")

        backend.before_decode = fail
        with pytest.raises(DecodeError):
            chat.chat("Tell me")
        backend.before_decode = None
        assert len(chat.messages) == 3
        assert chat.chat("Tell me").finish_reason == "stop"
        assert len(chat.messages) == 5
    with pytest.raises(EngineError):
        chat.chat("Are you there?")
    assert len(chat.messages) == 5


async def test_a_conversation_in_an_event_loop() -> None:
    llm, _ = scripted()
    with llm:
        chat = llm.conversation()
        answer = await chat.achat("Hello")
        assert chat.messages[-1].content == answer.content


def test_what_nobody_goes_on_from_is_not_kept() -> None:
    store = StateStore()
    backend = ScriptedBackend(lambda _: "y" * 100, vocab=VOCAB, n_sequences=1)
    template = ChatTemplate(TEMPLATE, family="hermes", control_tokens=VOCAB.control_tokens)
    with Engine.over(backend, template, options=LoopOptions(states=store)) as llm:
        chat = begun(llm)
        chat.chat("And?")
        assert store.sizes.states == 0, "the conversation's own sequence goes on"
        fork = chat.fork()
        fork.chat("One way")
        del fork
        gc.collect()
        before = store.sizes.states
        chat.chat("Another way")
        assert store.sizes.states == before, "nobody can go on from the fork"
        fork = chat.fork()
        fork.chat("One way")
        chat.chat("Another way")
        assert store.sizes.states == before + 1, "the fork can go on"


def test_states_belong_to_the_adapters_that_computed_them() -> None:
    """Each prompt is found again with its own adapters only."""
    backend = ScriptedBackend(echo, n_ctx=1000, n_sequences=1)
    cache = PrefixCache(backend, states=OriginStates(StateStore(), lambda: backend.origin))
    tokens = list(range(100))
    other = list(range(200, 300))

    def run(tokens: list[int], adapters: Adapters) -> int:
        lease = cache.acquire(tokens, adapters=adapters)
        assert isinstance(lease, Lease)
        rows = [Row(token, place, 0, False) for place, token in enumerate(tokens)][lease.reused :]
        backend.decode(rows)
        cache.extend(0, tokens[lease.reused :])
        cache.release(0)
        return lease.reused

    one, late = Adapters((("a", 1.0),)), Adapters((("a", 1.0),), 80)
    assert [run(tokens, each) for each in (BASE, one, late)] == [0, 0, 80]
    assert run(other, BASE) == 0
    assert [run([*tokens, 7], each) for each in (one, BASE, late)] == [100, 100, 80], "its own beginning is enough"
