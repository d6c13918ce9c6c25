"""A request whose logits are not numbers spoils nothing for those that follow."""

from pathlib import Path
from typing import Any

import pytest
from files.adapter_files import write_adapter

from engine import DecodeError, Engine
from engine.runtime.stream.stream import Stream

QUESTION = "Hello! Who are you?"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter") / "a.gguf", strength=1e9)


def fails(stream: Stream[Any]) -> bool:
    """Whether the turn ends because its logits are not numbers."""
    try:
        stream.result()
    except DecodeError as error:
        return error.reason == "nan"
    return False


@pytest.mark.parametrize("options", [{}, {"kv_unified": True}, {"n_sequences": 1}], ids=["buffers", "pool", "one"])
def test_clean_turns_after_an_adapter_that_overflows(
    options: dict[str, Any], adapter: Path, builtin_model_path: Path
) -> None:
    with Engine.load(builtin_model_path, n_ctx=512, adapters={"a": adapter}, preflight=False, **options) as llm:
        right = llm.chat(QUESTION, temperature=0, max_tokens=8, adapters=()).content
        broken = 0
        for scale in (0.5, 1, 1000):
            bad = llm.stream(QUESTION + " Tell me more.", temperature=0, max_tokens=8, adapters={"a": scale})
            broken += fails(bad)
            for number in range(6):
                clean = llm.chat(f"{QUESTION}{'!' * number}", temperature=0, max_tokens=8, adapters=())
                assert number or clean.content == right
        assert broken, "no scale made logits that are not numbers: the test shows nothing"


def test_what_runs_beside_it_goes_on_and_what_waits_begins_after_it(adapter: Path, builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path, n_ctx=512, n_sequences=3, adapters={"a": adapter}, preflight=False) as llm:
        alone = llm.chat(QUESTION, temperature=0, max_tokens=40, adapters=(), ignore_eos=True).content
        running = llm.stream(QUESTION, temperature=0, max_tokens=40, adapters=(), ignore_eos=True)
        events = iter(running)
        next(events)
        bad = llm.stream("Hi", temperature=0, max_tokens=8, adapters={"a": 1})
        with pytest.raises(DecodeError):
            bad.result()
        after = [llm.stream(QUESTION, temperature=0, max_tokens=40, adapters=(), ignore_eos=True) for _ in range(3)]
        assert running.result().content == alone
        assert [each.result().content for each in after] == [alone] * 3


def test_a_pinned_prefix_is_read_again_after_it(adapter: Path, builtin_model_path: Path) -> None:
    with (
        Engine.load(builtin_model_path, n_ctx=512, n_sequences=3, adapters={"a": adapter}, preflight=False) as llm,
        llm.pin([{"role": "system", "content": "Be brief and kind, and answer in one sentence."}], adapters=()),
    ):
        messages = [
            {"role": "system", "content": "Be brief and kind, and answer in one sentence."},
            {"role": "user", "content": QUESTION},
        ]
        right = llm.chat(messages, temperature=0, max_tokens=8, adapters=()).content
        with pytest.raises(DecodeError):
            llm.chat("Hi", temperature=0, max_tokens=8, adapters={"a": 1})
        assert llm.chat(messages, temperature=0, max_tokens=8, adapters=()).content == right
