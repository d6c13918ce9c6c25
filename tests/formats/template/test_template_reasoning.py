"""One switch for reasoning: variables and words, what a template lacks or ignores, where no field takes reasoning."""

import os
from pathlib import Path
from typing import Any

import pytest

from engine.formats.families import Gate, builtin_families
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.reasoning import Switch, with_words
from engine.support.errors import RequestError
from engine.types.events import fold
from engine.types.messages import Message, Role
from engine.types.sampling import Reasoning

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
ASKED: list[Any] = [{"role": "user", "content": "Why?"}]
BRIEF: Any = {"role": "system", "content": "Be brief."}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}


def look(city: str) -> str:
    """Look at the weather."""
    return city


# Reads the words where these models' templates do, and strips them there.
WORDY = """\
{%- set ns = namespace(on=true) -%}
{%- for m in messages if m.role in ('user', 'system') -%}
    {%- if '/think' in m.content %}{% set ns.on = true %}
    {%- elif '/no_think' in m.content %}{% set ns.on = false %}{% endif -%}
{%- endfor -%}
{%- for m in messages -%}
<SPECIAL_11>{{ m.role }}
{{ (m.content or '').replace('/think', '').replace('/no_think', '').strip() }}
{%- for c in m.tool_calls or [] %}<TOOLCALL>[{{ c.function | tojson }}]</TOOLCALL>{% endfor %}<SPECIAL_12>
{% endfor -%}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- if add_generation_prompt %}<SPECIAL_11>Assistant
{{ '<think>\n' if ns.on else '<think></think>' }}{% endif -%}
"""


class TestWords:
    def test_a_template_that_reads_words_is_switched_by_them(self) -> None:
        template = ChatTemplate(WORDY)
        assert template.family.name == "nemotron-nano-v2"
        for messages in (ASKED, [BRIEF, *ASKED]):
            asked, off = template.render(messages), template.render(messages, reasoning=False)
            assert asked.in_reasoning
            assert not off.in_reasoning
            assert off.text == asked.text.removesuffix("<think>\n") + "<think></think>"
            assert template.render(messages, reasoning=True).text == asked.text

    def test_what_was_asked_wins_over_words_in_the_conversation(self) -> None:
        template = ChatTemplate(WORDY)
        told = [{"role": "system", "content": "/no_think"}, {"role": "user", "content": "/think of it"}]
        assert template.render(told).in_reasoning
        assert not template.render(told, reasoning=False).in_reasoning
        assert template.render([told[0], *ASKED], reasoning=True).in_reasoning

    def test_it_holds_after_a_tool_result(self) -> None:
        template = ChatTemplate(WORDY)
        loop = [*ASKED, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "4"}]
        assert template.render(loop, [look], reasoning=True).in_reasoning
        assert template.render(loop, [look], reasoning=False).text.endswith("Assistant\n<think></think>")

    def test_a_guarded_question_is_switched_too(self) -> None:
        off = ChatTemplate(WORDY).render("What is <SPECIAL_12>?", reasoning=False)
        assert off.text.endswith("<think></think>")
        assert any("<SPECIAL_12>" in piece.text and not piece.trusted for piece in off.pieces)

    @pytest.mark.skipif(not FOLDER, reason="set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
    def test_the_official_template_of_nemotron_nano_v2(self) -> None:
        source = Path(FOLDER, "NVIDIA-Nemotron-Nano-v2.jinja").read_text(encoding="utf-8")
        template = ChatTemplate(source)
        off, asked = template.render([BRIEF, *ASKED], reasoning=False), template.render([BRIEF, *ASKED])
        assert off.text == asked.text.removesuffix("<think>\n") + "<think></think>"

    def test_the_system_text_of_llama_nemotron(self) -> None:
        plain = "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
        source = f"{{# <TOOLCALL> #}}{{% for m in messages %}}{plain}{{% endfor %}}"
        first = ChatTemplate(source)
        assert first.family.name == "llama-nemotron"
        system = "<|start_header_id|>system<|end_header_id|>\n\n"
        assert first.render([BRIEF, *ASKED], reasoning=True).text.startswith(
            f"{system}detailed thinking on\n\nBe brief.<|eot_id|>"
        )
        assert first.render(ASKED, reasoning=False).text.startswith(f"{system}detailed thinking off<|eot_id|>")
        assert "detailed" not in first.render(ASKED).text
        later = ChatTemplate(source + "{# /no_think #}")
        assert later.family.name == "llama-nemotron-1.5"
        assert later.render(ASKED, reasoning=False).text.startswith(f"{system}/no_think<|eot_id|>")
        assert later.render(ASKED, reasoning=True).text == later.render(ASKED).text

    def test_words_find_a_place(self) -> None:
        user, system = Message(role="user", content="Hi"), Message(role="system", content="Be brief.")
        at_user, at_system = Switch(place="user", words="/off"), Switch(place="system", words="/off")
        assert [m.content for m in with_words([system, user], at_user)] == ["Be brief.", "Hi\n\n/off"]
        assert [m.content for m in with_words([system], at_user)] == ["/off\n\nBe brief."]
        assert [m.content for m in with_words([user], at_system)] == ["/off", "Hi"]
        assert with_words([], at_system) == []

    def test_words_stand_in_the_last_question(self) -> None:
        roles: tuple[Role, ...] = ("user", "assistant", "user")
        asked = [Message(role=role, content=role) for role in roles]
        said = [message.content for message in with_words(asked, Switch(place="user", words="/no_think"))]
        assert said == ["user", "assistant", "user\n\n/no_think"]

    def test_a_gate_is_a_variable_or_words(self) -> None:
        for wrong in ({"place": "variable"}, {"place": "user", "kwarg": "thinking"}):
            with pytest.raises(ValueError, match="either a kwarg, or a place"):
                Gate.model_validate(wrong)


# The switch of Hermes 4 picks the system text, so a caller's own takes it away.
IGNORANT = (
    "{# keep_cots #}{% if messages[0].role != 'system' %}<|im_start|>system\n"
    "{{ 'Think.' if thinking else 'Answer.' }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class TestWhatIsLacking:
    def test_a_switch_that_the_template_ignores_here_is_said(self) -> None:
        template = ChatTemplate(IGNORANT)
        assert template.family.name == "hermes-4"
        assert "Think." in template.render(ASKED, reasoning=True).text
        with pytest.raises(RequestError, match=r"ignores its own switch \(thinking\) with .* this system message"):
            template.render([BRIEF, *ASKED], reasoning=True)
        assert template.render([BRIEF, *ASKED], reasoning=False) == template.render([BRIEF, *ASKED]), "off anyway"

    def test_a_tool_loop_is_no_reason_to_refuse(self) -> None:
        """A template that adds no prompt after a tool result renders alike under any switch there."""
        source = (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
            "{{ c.function.name ~ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
            "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
            "{% if messages[-1].role == 'user' %}{{ '<think>' if enable_thinking else '<think></think>' }}{% endif %}"
        )
        family = builtin_families().get("qwen3").format
        template = ChatTemplate(source, family=family)
        loop = [*ASKED, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "4"}]
        assert template.render(loop, [look], reasoning=True).text == template.render(loop, [look], reasoning=False).text

    def test_a_switch_that_is_always_ignored_is_closed_by_us(self) -> None:
        reads = "{# <think> </think> reasoning_content #}{% if enable_thinking %}{% endif %}"
        source = reads + IGNORANT.replace("thinking", "mood")
        template = ChatTemplate(source, family="qwen3")
        assert template.render(ASKED, reasoning=False).text.endswith("assistant\n<think>\n\n</think>\n\n")
        assert template.render(ASKED, reasoning=True) == template.render(ASKED), "it reasons unasked"

    def test_a_family_that_reasons_when_asked_only_needs_its_switch(self) -> None:
        with pytest.raises(RequestError, match="no switch for it"):
            ChatTemplate("{{ messages[-1].content }}", family="granite-3").render("Hi", reasoning=True)

    @pytest.mark.parametrize(
        "turn", ["<|{r}|>\n{c}</s>\n", "### {r}: {c}\n", "<|im_start|>{r}\n{c}<|im_end|>\n", "[{r}] {c}\n"]
    )
    @pytest.mark.parametrize("reasoning", [True, "low", "medium", "high"])
    def test_a_template_that_shows_none_and_has_no_switch_cannot_be_switched_on(
        self, turn: str, reasoning: Reasoning
    ) -> None:
        before, _, after = turn.replace("{r}", "{{ m.role }}").partition("{c}")
        opening = before.replace("{{ m.role }}", "assistant")
        source = (
            f"{{% for m in messages %}}{before}{{{{ m.content }}}}{after}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}{{{{ {opening!r} }}}}{{% endif %}}"
        )
        template = ChatTemplate(source)
        with pytest.raises(RequestError, match=r"shows no reasoning, and no switch.*Leave the option out"):
            template.render("Hi", reasoning=reasoning)
        assert template.render("Hi", reasoning=False) == template.render("Hi")
        switched = "{% if enable_thinking %}Think.{% endif %}" + source
        assert "Think." in ChatTemplate(switched).render("Hi", reasoning=True).text

    def test_what_a_model_writes_all_the_same_is_separated(self) -> None:
        template = ChatTemplate(None, family="qwen3")
        parser = template.parser(template.render("Hi", reasoning=False))
        completion = fold([*parser.feed("<think>\nHm.\n</think>\n\nYes."), *parser.close()])
        assert (completion.reasoning, completion.content) == ("Hm.", "Yes.")


class TestMarkersForAField:
    """Where the rule keeps reasoning and the template has no field for it, it is in the family's own markers."""

    SOURCE = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}\n"
        '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
        "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    LOOP: tuple[Any, ...] = (
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "reasoning": "First.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    )
    ANSWERED: tuple[Any, ...] = (
        *LOOP,
        {"role": "assistant", "content": "Cold.", "reasoning": "Then."},
        {"role": "user", "content": "And?"},
    )

    def test_within_the_rule(self) -> None:
        template = ChatTemplate(self.SOURCE, family="qwen3")
        assert template.capabilities.reasoning_fields == ()
        text = template.render(list(self.LOOP)).text
        assert "<|im_start|>assistant\n<think>\nFirst.\n</think>\n\n<tool_call>" in text

    @pytest.mark.parametrize(
        ("family", "kept"),
        [("qwen3", []), ("kimi-k2-thinking", []), ("bielik", ["First.", "Then."]), ("mimo-7b", [])],
    )
    def test_and_outside_of_it(self, family: str, kept: list[str]) -> None:
        """last_user, last_answer, all, unknown."""
        text = ChatTemplate(self.SOURCE, family=family).render(list(self.ANSWERED)).text
        assert [why for why in ("First.", "Then.") if why in text] == kept
        syntax = builtin_families().get(family).format.reasoning
        assert syntax is not None
        assert all(syntax.open + why + syntax.close in text for why in kept)

    def test_the_last_answer_closes_the_rule_of_kimi(self) -> None:
        text = ChatTemplate(self.SOURCE, family="kimi-k2-thinking").render([*self.LOOP, *ASKED]).text
        assert "<think>First.</think>" in text, "no answer without calls came since"
