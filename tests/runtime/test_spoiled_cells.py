"""A request whose logits are not numbers spoils nothing for those that follow."""

from pathlib import Path
from typing import Any

import pytest
from files.adapter_files import write_adapter

from engine import DecodeError, Engine, Regex, RequestError
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


def nothing_but_nan(_tokens: Any, logits: Any) -> None:
    logits[:] = float("nan")


def all_forbidden(_tokens: Any, logits: Any) -> None:
    logits[:] = -float("inf")


def one_nan(_tokens: Any, logits: Any) -> None:
    logits[len(logits) // 2] = float("nan")


LONG: dict[str, Any] = {"temperature": 0, "max_tokens": 400, "adapters": (), "ignore_eos": True}
ASKED = [{}, {"temperature": 0.8, "top_k": 0}, {"top_p": 0.9}, {"min_p": 0.1, "top_k": 5}, {"dry_multiplier": 0.5}]


@pytest.mark.parametrize("drawn", [{"temperature": 0}, *ASKED], ids=str)
@pytest.mark.parametrize("processor", [nothing_but_nan, all_forbidden, one_nan])
def test_what_a_processor_makes_of_the_logits_is_its_own_fault(
    processor: Any, drawn: dict[str, Any], builtin_model_path: Path
) -> None:
    with Engine.load(builtin_model_path, n_ctx=512, n_sequences=2, preflight=False) as llm:
        running = llm.stream(QUESTION, **LONG)
        for format_ in (None, Regex("[a-z]+")):
            with pytest.raises(RequestError, match=r"left no token to draw|forbids every token"):
                llm.chat("Hi", logits_processors=[processor], response_format=format_, reasoning=False, **drawn)
            llm.chat("Hi", max_tokens=2)
        assert not running.ended, "the others waited for it"
        running.cancel()


@pytest.mark.parametrize("options", [{}, {"kv_unified": True}], ids=["buffers", "pool"])
def test_nobody_waits_for_the_longest_answer_after_it(
    options: dict[str, Any], adapter: Path, builtin_model_path: Path
) -> None:
    loaded: dict[str, Any] = {"n_ctx": 512, "n_sequences": 3, "adapters": {"a": adapter}, "preflight": False}
    with Engine.load(builtin_model_path, **loaded, **options) as llm:
        alone = llm.chat(QUESTION, **LONG).content
        running = llm.stream(QUESTION, **LONG)
        for _ in range(4):  # more often than a doubt is allowed without one to blame
            with pytest.raises(DecodeError):
                llm.chat("Hi", temperature=0, max_tokens=8, adapters={"a": 1})
            assert llm.chat("Hi", max_tokens=2, adapters=()).finish_reason == "length"
            assert not running.ended, "a new request waited for the longest answer"
        assert running.result().content == alone


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
