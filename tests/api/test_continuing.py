"""Prefilling: the model goes on with an assistant message, from every method that takes a conversation."""

from typing import Any

import pytest
from fakes.scripts import plain as scripted

from engine.support.errors import RequestError

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "The sky"}]
CALL = ' is far.\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


def look() -> str:
    """Look up."""
    return "blue"


def test_the_answer_goes_on_where_the_message_ends() -> None:
    with scripted(" is blue.", " is blue.") as llm:
        assert llm.render(ASKED, continue_final_message=True).text.endswith("The sky")
        assert llm.chat(ASKED, continue_final_message=True).content == " is blue."
        with llm.stream(ASKED, continue_final_message=True) as stream:
            assert stream.result().content == " is blue."


def test_a_run_has_the_message_once_and_whole() -> None:
    with scripted(CALL, "<think>\nSo.\n</think>\n\nIt is blue.") as llm:
        run = llm.run(ASKED, [look], continue_final_message=True)
    assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert run.messages[1].content == "The sky is far."
    assert [call.name for call in run.messages[1].tool_calls] == ["look"]
    assert run.completion.content == "It is blue."


def test_what_was_reasoned_before_is_found_again() -> None:
    asked = [ASKED[0], {"role": "assistant", "reasoning": "I think"}]
    with scripted(" of light.\n</think>\n\nBlue.") as llm:
        whole = llm.chat(asked, continue_final_message=True)
        assert (whole.reasoning, whole.content) == (" of light.", "Blue.")
        lost = [ASKED[0], {"role": "assistant", "content": "Blue."}, {"role": "user", "content": "And?"}]
        assert llm.render(lost).restored == (1,)


def test_without_the_option_the_error_names_it() -> None:
    with scripted("") as llm:
        for action in (llm.chat, llm.stream, llm.run):
            with pytest.raises(RequestError, match="continue_final_message=True"):
                action(ASKED)
        with pytest.raises(RequestError, match="continues an assistant message"):
            llm.chat(ASKED[:1], continue_final_message=True)
