"""A salt for each caller: what one has asked shows in nothing that another can count."""

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fakes.doubles import plain, prompt

from engine import Engine, StateStore
from engine.runtime.loop.config import LoopOptions
from engine.runtime.loop.request import TurnRequest
from engine.runtime.stream.service import Service
from engine.testing import ScriptedEngine
from engine.testing.scripted import ScriptedBackend
from engine.types.completion import Completion
from engine.types.messages import Message
from engine.types.turn_settings import TurnSettings

SHARED = "a long beginning that many prompts have in common, and that takes a while to evaluate; "
SECRETS = ("4711 0815 " * 12, "1234 9876 " * 12)
SIZES = (0, 30, 61, 90, 120)


def brief(_: str) -> str:
    """A short answer: what is counted is of prompts."""
    return "yes"


def cached(service: Service, text: str, salt: str | None) -> int:
    usage = service.submit(TurnRequest(prompt(text), plain, TurnSettings(cache_salt=salt))).result().usage
    assert usage is not None
    return usage.cached_tokens


def counts(
    seed: int, secret: str, service: Service, salts: tuple[str | None, str | None], states: StateStore | None
) -> list[int]:
    """What a guesser counts beside a caller who asks about a secret: the same requests in the same order, whatever
    the secret is. The guesses are parts of the first secret."""
    chance, (asks, guesses) = random.Random(seed), salts
    seen: list[int] = []
    for _ in range(25):
        size, own = chance.choice(SIZES), chance.random() < 0.5
        if own:
            seen.append(cached(service, SHARED + SECRETS[0][:size] + chance.choice("?!"), guesses))
        else:
            cached(service, SHARED + secret[: size or 10] + chance.choice("xy"), asks)
        if states is not None:
            states.flush()
    return seen


def worlds(seed: int, build: Callable[[], tuple[ScriptedBackend, LoopOptions]], *salts: str | None) -> list[list[int]]:
    """Returns what the guesser counts in two worlds, which differ in the secret only."""
    seen: list[list[int]] = []
    for secret in SECRETS:
        backend, options = build()
        with Service(backend, options) as service:
            asks, guesses = salts
            seen.append(counts(seed, secret, service, (asks, guesses), options.states))
    return seen


@pytest.mark.parametrize("store", ["none", "memory", "disk"])
@pytest.mark.parametrize("pool", [None, 700])
@pytest.mark.parametrize("trimmable", [True, False])
def test_a_guesser_counts_the_same(trimmable: bool, pool: int | None, store: str, tmp_path: Path) -> None:
    """In sequences, states in memory and on disk, and checkpoints."""
    numbers = count()

    def build() -> tuple[ScriptedBackend, LoopOptions]:
        states = StateStore(1 << 20 if store == "memory" else 0)
        if store == "disk":
            states = StateStore(0, tmp_path / str(next(numbers)), 1 << 20)
        backend = ScriptedBackend(brief, n_sequences=3, n_ctx=1000, kv_tokens=pool, trimmable=trimmable)
        return backend, LoopOptions(states=states)

    found = [worlds(seed, build, "a", "b") for seed in range(2)]
    for one, other in found:
        assert one == other
    assert any(any(one) for one, _ in found), "a caller finds what is its own"


@pytest.mark.parametrize("salts", [(None, None), ("a", "a")])
def test_equal_salts_share(salts: tuple[str | None, str | None]) -> None:
    """So the property above can fail."""
    found = [worlds(seed, lambda: (ScriptedBackend(brief, n_ctx=1000), LoopOptions()), *salts) for seed in range(4)]
    assert any(one != other for one, other in found)


def of_chat(llm: Engine, salt: str | None) -> int:
    return told(llm.chat(SHARED, cache_salt=salt))


def of_complete(llm: Engine, salt: str | None) -> int:
    return told(llm.complete(SHARED, cache_salt=salt))


def of_generate(llm: Engine, salt: str | None) -> int:
    return told(llm.generate([SHARED], cache_salt=salt)[0])


def of_conversation(llm: Engine, salt: str | None) -> int:
    talk = llm.conversation(cache_salt=salt)
    first = told(talk.chat(SHARED))
    told(talk.fork().chat("and on"))
    return first


def of_client(llm: Engine, salt: str | None) -> int:
    extra = {} if salt is None else {"cache_salt": salt}
    body: list[Any] = [{"role": "user", "content": SHARED}]
    client: Any = llm.openai_client()
    answer = client.chat.completions.create(model="m", messages=body, extra_body=extra)
    return int(answer.usage.prompt_tokens_details.cached_tokens or 0)


def of_pin(llm: Engine, salt: str | None) -> int:
    with llm.pin([{"role": "system", "content": SHARED}], cache_salt=salt):
        return told(llm.chat([{"role": "system", "content": SHARED}, {"role": "user", "content": "x"}], cache_salt="b"))


def told(answer: Completion[Any]) -> int:
    assert answer.usage is not None
    return answer.usage.cached_tokens


@pytest.mark.parametrize("ask", [of_chat, of_complete, of_generate, of_conversation, of_client])
@pytest.mark.parametrize("salt", [None, "a", "", "\ud800"])
def test_every_way_to_ask_takes_a_salt(ask: Callable[[Engine, str | None], int], salt: str | None) -> None:
    if ask is of_client and salt == "\ud800":
        pytest.skip("no JSON")
    with ScriptedEngine(lambda _: "yes") as llm:
        assert ask(llm, salt) < 40, "little is shared with the first"
        assert ask(llm, salt) > 60
        for other in {None, "b", "aa"} - {salt}:
            assert ask(llm, other) < 40


def test_a_pin_is_for_its_own_salt() -> None:
    with ScriptedEngine(lambda _: "yes", n_sequences=4) as llm:
        assert of_pin(llm, "a") == 0
        assert of_pin(llm, "b") > 60


def test_reasoning_is_restored_under_its_own_salt_only() -> None:
    """A prompt that is longer by it would tell that somebody had this very conversation."""
    with ScriptedEngine(lambda _: "<think>\nsecret\n</think>\n\nyes", family="qwen3") as llm:
        question: list[Any] = [Message(role="user", content="q")]
        answer = llm.chat(question, cache_salt="a")
        follow = [*question, Message(role="assistant", content=answer.content), Message(role="user", content="r")]
        restored = {salt: llm.render(follow, cache_salt=salt).restored for salt in ("a", "b", None)}
    assert restored == {"a": (1,), "b": (), None: ()}


def test_a_score_leaves_nothing_for_others() -> None:
    with ScriptedEngine(lambda _: "yes") as llm:
        llm.score(SHARED, ["x"], cache_salt="a")
        assert of_complete(llm, None) == 0
