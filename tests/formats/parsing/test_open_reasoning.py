"""Reasoning that nothing closes: a call at its end, without the section's marks too, and the answer behind a call."""

from collections.abc import Iterator

import pytest
from cases import writer
from cases.canonical import Call, Turn
from cases.parsing_cases import FAMILIES, feed_pieces, pieces, run, splits
from cases.writer import stated

from engine.formats.families import Format, builtin_families
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import fold
from engine.types.sampling import FinishReason

TOOLS = [{"name": "trip", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}}]
ROME = Call("trip", '{"to": "Rome"}')


def _format(family: str) -> Format:
    return builtin_families().get(family).format


def _families(*, unwrapped: bool) -> list[str]:
    """Those whose reasoning a prompt may open: with calls that need no section, or whose calls end reasoning."""
    found: list[str] = []
    for name in FAMILIES:
        reasoning, tools = _format(name).reasoning, _format(name).tools
        if reasoning and tools and not reasoning.implicit and not stated(tools, "heading", ("", ""))[0]:
            wanted = (
                stated(tools, "section_optional", default=False) and tools.section[0]
                if unwrapped
                else reasoning.ends_on_call
            )
            found += [name] * bool(wanted)
    return found


def _read(family: str, output: str, finish: FinishReason = "stop") -> Iterator[Completion]:
    """As text, at several chunkings, and as control tokens."""
    format_ = _format(family)
    assert format_.reasoning is not None
    prefix = format_.start + format_.reasoning.open
    for chunks in splits(output):
        yield fold(run(Parser(family, prefix, tools=TOOLS), chunks, finish))
    parser = Parser(family, pieces(family, prefix), tools=TOOLS, control_tokens=frozenset(format_.control))
    yield fold(feed_pieces(parser, pieces(family, output), finish))


def _call(family: str, *, wrapped: bool) -> str:
    format_ = _format(family)
    written = writer.written(Turn("", (ROME,)), format_).strip()
    assert format_.tools is not None
    for mark in () if wrapped else filter(None, map(str.strip, format_.tools.section)):
        written = written.replace(mark, "", 1)
    return written.strip()


def _calls(completion: Completion) -> list[tuple[str, str, str | None]]:
    return [(call.name, call.arguments, call.error) for call in completion.tool_calls]


@pytest.mark.parametrize("family", _families(unwrapped=True))
def test_a_whole_call_without_its_section_ends_reasoning_that_never_closes(family: str) -> None:
    """Of a declared tool, and as the last thing only: with a closing mark, or text, behind it, it is a draft."""
    reasoning = _format(family).reasoning
    assert reasoning is not None
    call = _call(family, wrapped=False)
    for completion in _read(family, f"I go\n{call}"):
        assert _calls(completion) == [("trip", '{"to": "Rome"}', None)]
        assert completion.reasoning.strip() == "I go"
    for output in (
        f"I go\n{call}{reasoning.close}Fine.",
        f"I go\n{call}\nor not",
        f"I go\n{call.replace('trip', 'tripp')}",
    ):
        for completion in _read(family, output):
            assert _calls(completion) == [], output
    for completion in _read(family, f"I go\n{call}", "length"):
        assert _calls(completion) == []


@pytest.mark.parametrize("family", _families(unwrapped=False))
def test_the_answer_behind_a_call_in_reasoning_that_never_closes(family: str) -> None:
    """It is reasoning where a closing mark comes later."""
    reasoning = _format(family).reasoning
    assert reasoning is not None
    call = _call(family, wrapped=True)
    for completion in _read(family, f"I go\n{call}\nDone."):
        assert (completion.content, completion.reasoning.strip()) == ("Done.", "I go")
        assert _calls(completion) == [("trip", '{"to": "Rome"}', None)]
    for completion in _read(family, f"I go\n{call}\nWait.{reasoning.close}Done."):
        assert completion.content == "Done."
        assert completion.reasoning.split() == ["I", "go", "Wait."]


@pytest.mark.parametrize("family", _families(unwrapped=False))
def test_what_is_left_over_behind_a_call_in_reasoning_takes_no_text_with_it(family: str) -> None:
    """Reasoning may be opened again there, too."""
    format_ = _format(family)
    assert format_.reasoning
    assert format_.tools
    opens, closes = format_.reasoning.open, format_.reasoning.close
    closer = format_.tools.section[1].strip() or format_.tools.call_marks[1].strip()
    output = f"I go\n{_call(family, wrapped=True)}\n{closer}\n{opens}{closer}Wait, is it so?{closes}Done."
    for chunks in splits(output):
        parser = Parser(family, format_.start + opens, tools=TOOLS, trace=True)
        completion = fold(run(parser, chunks, "stop"))
        assert "".join(segment.text for segment in parser.trace) == output
        assert completion.content == "Done."
        assert "Wait, is it so?" in completion.reasoning


def test_there_are_families_for_both() -> None:
    assert {"kimi-k2-thinking", "deepseek-v4", "qwen3.5"} <= set(_families(unwrapped=True))
    assert {"ling-3", "trinity", "kimi-k3"} <= set(_families(unwrapped=False))
