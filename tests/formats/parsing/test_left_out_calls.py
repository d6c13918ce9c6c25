"""`tool_choice="none"`: a call that a model writes all the same is neither shown nor run, and counted; all else is as
if calls were read."""

from typing import Any

import pytest
from cases.parsing_cases import TOOLS, Case, cases_where, families_where, feed_pieces, pieces, run, splits
from fakes.small_models import mutants

from engine.formats.families import Format, WholeSyntax, builtin_families
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import ContentDelta, Event, Finished, ReasoningDelta, fold

OWN_FORM: dict[str, Any] = {"tool_choice": "none"}


def _checked(events: list[Event]) -> Completion:
    *deltas, last = events
    assert all(isinstance(event, ContentDelta | ReasoningDelta) for event in deltas)
    assert isinstance(last, Finished)
    return fold(events)


def _is_seen(case: Case) -> bool:
    """Whether a case's calls are seen as such: where no marker says so, only if their arguments fit."""
    tools = builtin_families().get(case.family).format.tools
    is_bare = isinstance(tools, WholeSyntax) and (tools.bare or not tools.section[0])
    return bool(case.calls) and not (is_bare and case.calls[0].get("error"))


@cases_where(_is_seen)
def test_a_call_that_nobody_wanted_is_left_out_and_counted(case: Case) -> None:
    control = frozenset(builtin_families().get(case.family).format.control)
    fed = pieces(case.family, case.output)
    tokens: dict[str, Any] = {"control_tokens": control, "prefix": pieces(case.family, case.prefix)}
    in_text = _checked(run(case.parser(**OWN_FORM), splits(case.output)[2], case.finish))
    as_tokens = _checked(feed_pieces(case.parser(**tokens, **OWN_FORM), fed, case.finish))
    for left in (in_text, as_tokens):
        assert (left.reasoning, left.content) == (case.reasoning, case.content)
        assert left.usage.dropped_calls == len(case.calls)
        assert left.finish_reason == case.finish


def _has_marks(format_: Format) -> bool:
    tools = format_.tools
    return tools is not None and not (isinstance(tools, WholeSyntax) and (tools.bare or not tools.section[0]))


@families_where(_has_marks)
def test_what_a_small_model_spoils_shows_no_more_than_where_calls_are_read(family: str) -> None:
    for mutant in mutants(family):
        read, left = (
            fold(run(Parser(family, mutant.prefix, tools=TOOLS, **form), [mutant.output], mutant.finish))
            for form in ({}, OWN_FORM)
        )
        assert (left.content, left.reasoning, left.tool_calls) == (read.content, read.reasoning, ()), mutant


@cases_where(lambda case: not case.calls)
def test_what_is_no_call_stays(case: Case) -> None:
    left = _checked(run(case.parser(**OWN_FORM), [case.output], case.finish))
    assert (left.reasoning, left.content) == (case.reasoning, case.content)
    assert not left.usage.dropped_calls


@pytest.mark.parametrize("text", ['{"name": "ping", "arguments": {}}', 'Say {"name": "ping", "parameters": {}}.'])
def test_json_that_is_not_the_family_s_form_is_an_answer(text: str) -> None:
    for family in ("content-only", "hermes"):
        parser = Case(family, "", text).parser(**OWN_FORM)
        assert _checked(run(parser, [text])).content == text
