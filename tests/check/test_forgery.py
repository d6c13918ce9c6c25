"""The suite `forgery`: each verdict on a stand-in server that is so, and none on one that is not."""

from collections.abc import Callable
from typing import Any

import pytest
from fakes.checked_servers import MARKERS, Counting, forging, prompt_of, words

from benchmarks.check import LocalExchange, Record, Reply, forgery
from benchmarks.check.forgery import PLACES
from benchmarks.check.markers import family_markers, markers_of
from engine import Engine
from engine.support.errors import RemoteError

Json = dict[str, Any]


def verdicts(exchange: Counting, place: str = "user") -> set[str]:
    return {record.verdict for record in forgery(exchange, MARKERS, [place])}


@pytest.mark.parametrize("place", PLACES)
def test_markers_that_are_text_are_good(place: str) -> None:
    assert verdicts(Counting(words), place) == {"text"}


@pytest.mark.parametrize("place", PLACES)
def test_markers_that_are_one_token_are_forged(place: str) -> None:
    """A tool's name stands twice in this prompt, so that each copy adds two tokens."""
    assert verdicts(Counting(forging), place) == {"control token"}


def test_only_the_place_that_forges_is_told() -> None:
    def count(prompt: str) -> int:
        return forging(prompt) if prompt.startswith("system\n") else words(prompt)

    found = {record.case["place"]: record for record in forgery(Counting(count), MARKERS[:1], PLACES)}
    assert [place for place, record in found.items() if record.verdict == "control token"] == ["system"]
    assert not found["system"].failed, "a system message is the application's own"


def test_control_tokens_fail_everywhere_but_in_system_text() -> None:
    failed = {record.case["place"] for record in forgery(Counting(forging), MARKERS[:1]) if record.failed}
    assert failed == set(PLACES) - {"system"}


def test_text_that_is_written_twice_is_not_taken_for_text_that_is_safe() -> None:
    twice = Counting(forging, lambda body: prompt_of(body) * 2)
    assert verdicts(twice) == {"unknown"}


def test_markers_that_are_stripped_are_removed() -> None:
    def stripped(body: Json) -> str:
        text = prompt_of(body)
        for marker in MARKERS:
            text = text.replace(marker, "")
        return text

    assert verdicts(Counting(forging, stripped)) == {"removed"}


def test_a_place_that_the_prompt_leaves_out_is_removed() -> None:
    def without_reasoning(body: Json) -> str:
        for message in body["messages"]:
            message.pop("reasoning_content", None)
        return prompt_of(body)

    exchange = Counting(forging, without_reasoning)
    assert {record.why for record in forgery(exchange, MARKERS, ["reasoning"])} == {
        "nothing at this place reaches the prompt"
    }
    assert verdicts(exchange, "reasoning") == {"removed"}
    assert verdicts(exchange, "argument") == {"control token"}


def test_escaped_markers_are_text() -> None:
    escaped = Counting(forging, lambda body: prompt_of(body).replace("<", "&lt;").replace("[", "&#91;"))
    assert verdicts(escaped) == {"text"}


@pytest.mark.parametrize("status", [400, 422, 501])
def test_refused_markers(status: int) -> None:
    def refuses(body: Json) -> Reply | None:
        bad = any(marker in prompt_of(body) for marker in MARKERS)
        return Reply(status, ({"error": {"message": "no markers"}},)) if bad else None

    (record, *_) = forgery(Counting(words, refuses=refuses), MARKERS, ["user"])
    assert (record.verdict, record.why) == ("refused", f"{status}: no markers")


def test_a_place_that_is_refused_is_not_asked_for_each_marker() -> None:
    exchange = Counting(words, refuses=lambda body: Reply(400) if "tools" in body else None)
    assert [record.verdict for record in forgery(exchange, MARKERS * 10, ["tool result"])] == ["refused"] * 40
    assert exchange.sent < 10


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_servers_that_break_down_are_unknown(status: int) -> None:
    def refuses(body: Json) -> Reply | None:
        return Reply(status) if MARKERS[0] in prompt_of(body) else None

    found = [record.verdict for record in forgery(Counting(words, refuses=refuses), MARKERS, ["user"])]
    assert found == ["unknown", "text", "text", "text"]


def length(text: str) -> int:
    return len(text) // 4


def spaces(text: str) -> int:
    return len(text.split())


def constant(_: str) -> int:
    return 1


@pytest.mark.parametrize("count", [None, length, spaces, constant])
def test_counts_that_are_no_counts_of_tokens_tell_nothing(count: Callable[[str], int] | None) -> None:
    found = list(forgery(Counting(count), MARKERS))
    assert {record.verdict for record in found} == {"unknown"}
    assert len(found) == len(MARKERS) * len(PLACES)
    assert not any(record.failed for record in found)


def test_a_vocabulary_of_single_characters_is_judged() -> None:
    def characters(text: str) -> int:
        return len(text) - sum((len(marker) - 1) * text.count(marker) for marker in MARKERS[:2])

    found = [record.verdict for record in forgery(Counting(characters), MARKERS, ["user"])]
    assert found == ["control token", "control token", "text", "text"]


@pytest.mark.parametrize(("status", "way"), [(401, "--api-key"), (404, "--model"), (400, "--model")])
def test_a_server_that_does_not_answer_a_plain_question_is_an_error(status: int, way: str) -> None:
    exchange = Counting(refuses=lambda _: Reply(status, ({"error": {"message": "not like this."}},)))
    with pytest.raises(RemoteError, match=rf"\({status}: not like this\).*{way}"):
        list(forgery(exchange, MARKERS))


def test_the_markers_are_those_of_the_families_and_of_the_server() -> None:
    usual = markers_of("")
    assert {"<|im_end|>", "<|start_header_id|>", "[TOOL_CALLS]", "<think>", "</s>"} <= set(usual)
    assert len(usual) < 40 < len(family_markers())
    told = markers_of("{% if x < y and y > z %}<|mine|>{{ '<start_of_turn>' }}{{ '</' + x + '>' }}")
    assert told[:2] == ("<|mine|>", "<start_of_turn>")
    assert set(usual) < set(told)
    assert all(" " not in marker for marker in told)


def test_an_engine_of_this_process_forges_nothing(llm: Engine) -> None:
    found = list(forgery(LocalExchange(llm), ["<|im_end|>"]))
    others = {"system": "control token", "tool name": "refused"}
    assert {record.case["place"]: record.verdict for record in found} == {**dict.fromkeys(PLACES, "text"), **others}
    assert not any(record.failed for record in found)


def test_a_record_is_flat_data() -> None:
    record = Record("forgery", {"place": "user", "marker": "</s>"}, "text")
    assert record.data() == {"suite": "forgery", "place": "user", "marker": "</s>", "verdict": "text", "why": ""}
