"""What small models spoil is never executable unless meant, never lost, and shows no markup (a sample; the whole:
`python benchmarks/fuzz.py --small-models`)."""

import json

import pytest
from cases.parsing_cases import TOOLS, each_family, run
from fakes.small_models import judge, mutants

from engine.formats.parsing import Parser
from engine.types.events import fold

NO_CLOSING = frozenset(["gigachat-3", "gigachat-3.1", "granite-20b-functioncalling", "llama-3"])
"""Text may follow a call directly there, so a quote that cuts one short cannot always be told from its end."""


@each_family
def test_spoiled_outputs(family: str) -> None:
    for mutant in mutants(family, cuts=61):
        excused = {"executable"} if mutant.kind == "quotes" and family in NO_CLOSING else set[str]()
        guilty = set(judge(mutant)) - {"shown"} - excused
        assert not guilty, (guilty, mutant)


def test_there_are_mutants_of_every_kind() -> None:
    kinds = {mutant.kind for family in ("qwen3.5", "deepseek-v4") for mutant in mutants(family)}
    assert len(kinds) >= 12


def test_reasoning_behind_a_call_is_no_content() -> None:
    call = "<tool_call>\n<function=ping>\n</function>\n</tool_call>"
    for output in (f"A {call}\nB</think>\n\nC", f"A {call}\nB {call}</think>\n\nC"):
        for size in (1, 5, 1000):
            parser = Parser("qwen3.5", "<think>\n", tools=TOOLS)
            read = fold(run(parser, [output[at : at + size] for at in range(0, len(output), size)]))
            assert "B" in read.reasoning
            assert read.content == "C"
            assert [call.error for call in read.tool_calls] == [None] * output.count("<tool_call>")


@pytest.mark.parametrize("size", [1, 1000])
def test_a_quote_that_cuts_a_call_short_flags_it(size: int) -> None:
    output = r"""<|tool_call_start|>[get_weather(city='a "b(c='\;'))"')]<|tool_call_end|>"""
    parser = Parser("lfm2", tools=TOOLS)
    read = fold(run(parser, [output[at : at + size] for at in range(0, len(output), size)]))
    assert [call.error for call in read.tool_calls] == ["malformed"]


def test_an_opening_inside_a_value_has_a_closing_of_its_own() -> None:
    def read(value: str) -> tuple[str, str | None]:
        call = f'<invoke name="get_weather">\n<parameter name="city">{value}</parameter>\n</invoke>'
        completion = fold(
            run(Parser("minimax-m2", tools=TOOLS), [f"<minimax:tool_call>\n{call}\n</minimax:tool_call>"])
        )
        return completion.tool_calls[0].arguments, completion.tool_calls[0].error

    quoted = '<c><parameter name="x">1</parameter></c>'
    assert read(quoted) == (json.dumps({"city": quoted}), None)
    assert read('Rome\n<parameter name="x">1')[1] == "malformed"
    assert read('Rome</parameter><parameter name="city">Oslo')[1] == "malformed"
