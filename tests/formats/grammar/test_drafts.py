"""Guesses under a constraint: each token is drawn by the grammar's mask at its own place, so nothing changes but the
number of decodes."""

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from cases.constrained import STATES, WISHES, State, Turn, engine_of, options_of
from fakes.doubles import guess_always
from fakes.scripts import backend_of

from engine import Completion, RequestError
from engine.testing.scripted import ScriptedBackend

FAMILIES = ("qwen3", "gpt-oss", "llama-3", "mistral-nemo", "deepseek-r1", "qwen3-coder", "kimi-k2", "glm-4.5", "lfm2")


def played(turn: Turn, guess: Callable[[str], str] | None = None) -> tuple[Completion | None, ScriptedBackend]:
    """The turn's completion; None where the family's reasoning cannot be switched so."""
    with engine_of(turn, guess=guess) as llm:
        backend = backend_of(llm)
        options: dict[str, Any] = {**options_of(turn), "max_tokens": 300}
        try:
            return llm.chat("What is it?", **options), backend
        except RequestError as error:
            if "reasoning" not in str(error):
                raise
            return None, backend


@pytest.mark.parametrize("state", STATES)
def test_guesses_under_a_constraint_change_nothing(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    """The draft model knows the answer except for every fifth place, where it guesses something else."""
    guess_always(monkeypatch)
    compared = accepted = saved = 0
    for number, family in enumerate(FAMILIES):
        turn = Turn(family, state, WISHES[(number + STATES.index(state)) % len(WISHES)])
        plain, bare = played(turn)
        if plain is None:
            continue
        known = bare.vocab.text(bare.tokens(0))

        def guess(text: str, known: str = known) -> str:
            return known[len(text) :] if zlib.crc32(text.encode()) % 5 else "~"

        drafted, backend = played(turn, guess)
        assert drafted is not None
        assert (drafted.parts, drafted.finish_reason) == (plain.parts, plain.finish_reason), turn
        assert plain.usage
        assert drafted.usage
        assert drafted.usage.completion_tokens == plain.usage.completion_tokens
        compared += 1
        accepted += drafted.usage.accepted_tokens
        saved += bare.decodes - backend.decodes
    assert compared >= 4
    assert accepted > saved > compared


def test_a_guess_that_the_grammar_refuses_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    guess_always(monkeypatch)
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 9}
    drafted, _ = played(Turn("qwen3", "off", "schema", schema=schema), lambda _: "~")
    assert drafted is not None
    assert drafted.parsed is not None
    assert drafted.usage
    assert drafted.usage.drafted_tokens == 0
