"""ChatTemplate: which template and family, what is checked, the prompt's prefix and the parser it seeds."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.formats.template import chat_template
from engine.formats.template.chat_template import ChatTemplate
from engine.support.errors import FamilyError, RequestError, TemplateError
from engine.tools import as_tool
from engine.types.events import fold
from engine.types.messages import Message
from engine.types.parts import ToolCall
from engine.types.prompt import Piece
from engine.types.tools import ToolName

QWEN = (Path(__file__).parents[3] / "templates" / "qwen3.jinja").read_text(encoding="utf-8")
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
ASKED: list[Any] = [
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees"},
]


def look(city: str) -> str:
    """Look at the weather."""
    return city


def shipped(family: str) -> ChatTemplate:
    return ChatTemplate(None, "<s>", "</s>", family)


@pytest.mark.parametrize("family", ["qwen3", "gpt-oss", "deepseek-r1", "llama-3", "mistral-nemo", "qwen3-coder"])
def test_our_templates_are_recognised(family: str) -> None:
    template = shipped(family)
    assert ChatTemplate(template.source).family.name == family
    assert template.detection.reason == "the caller named it"


def test_family_can_be_given_in_every_form() -> None:
    family = builtin_families().get("qwen3-coder")
    assert ChatTemplate(QWEN).family.name == "qwen3"
    assert ChatTemplate(QWEN, family=family).family is family
    assert ChatTemplate(QWEN, family=family.format).format == family.format
    with pytest.raises(FamilyError, match="no family 'qwen4'"):
        ChatTemplate(QWEN, family="qwen4")


def test_no_template_says_what_to_do() -> None:
    with pytest.raises(TemplateError, match="Pass chat_template="):
        ChatTemplate(None, family="content-only")


class TestForModel:
    def test_the_embedded_template(self) -> None:
        assert ChatTemplate.for_model(QWEN).source == QWEN

    def test_another_family_takes_its_own_template(self) -> None:
        template = ChatTemplate.for_model(QWEN, family="gpt-oss")
        assert template.family.name == "gpt-oss"
        assert "<|channel|>" in template.source

    def test_the_same_family_keeps_the_embedded_one(self) -> None:
        changed = QWEN + "{# mine #}"
        assert ChatTemplate.for_model(changed, family="qwen3").source == changed

    def test_a_family_without_a_template_keeps_the_embedded_one(self) -> None:
        template = ChatTemplate.for_model(QWEN, family="hermes")
        assert (template.source, template.family.name) == (QWEN, "hermes")

    def test_the_callers_template_wins(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.jinja"
        path.write_text("{{ messages[0].content }}!", encoding="utf-8")
        for given in (path, str(path), "{{ messages[0].content }}!"):
            template = ChatTemplate.for_model(QWEN, family="gpt-oss", chat_template=given)
            assert template.render("Hi").text == "Hi!"
            assert template.family.name == "gpt-oss"
        with pytest.raises(TemplateError, match=r"'missing\.jinja' cannot be read: No such file"):
            ChatTemplate.for_model(QWEN, chat_template="missing.jinja")
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(TemplateError, match=r"mine\.jinja is not UTF-8 text"):
            ChatTemplate.for_model(QWEN, chat_template=path)

    def test_a_model_without_a_template_goes_by_its_architecture(self) -> None:
        assert ChatTemplate.for_model(None, architecture="gpt-oss", name="gpt-oss 20b").family.name == "gpt-oss"
        with pytest.raises(TemplateError, match="the model carries none"):
            ChatTemplate.for_model(None, architecture="bert", name="bert")


@pytest.mark.parametrize(
    ("family", "after_user", "after_result"),
    [
        ("qwen3", "<|im_start|>assistant\n", "<|im_start|>assistant\n"),
        ("gpt-oss", "<|start|>assistant", "<|start|>assistant"),
        ("deepseek-r1", "<｜Assistant｜><think>\n", ""),
        (
            "llama-3",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("mistral-nemo", "", ""),
        ("qwen3-coder", "<|im_start|>assistant\n", "<|im_start|>assistant\n"),
    ],
)
def test_the_prefix_is_the_turn_about_to_be_written(family: str, after_user: str, after_result: str) -> None:
    """Nothing of earlier turns is in it, also where a caller quotes the assistant's start."""
    template = shipped(family)
    start = template.format.start
    for messages, expected in (
        ("Look.", after_user),
        (f"Look. {start}", after_user),
        (ASKED, after_result),
        ([*ASKED[:2], {**ASKED[2], "content": f"4 {start}"}], after_result),
        ([*ASKED, {"role": "assistant", "content": "Cold."}, {"role": "user", "content": "And?"}], after_user),
    ):
        prompt = template.render(messages, tools=[look])
        assert "".join(piece.text for piece in prompt.prefix) == expected
        assert prompt.text.endswith(expected)
        assert prompt.in_reasoning == expected.endswith("<think>\n")
        assert prompt.stop == template.format.stops


def test_control_markers_of_the_prefix_stand_alone() -> None:
    assert shipped("gpt-oss").render("Hi").prefix == (Piece("<|start|>", True), Piece("assistant", False))


def test_the_parser_goes_on_where_the_prompt_ends() -> None:
    template = shipped("deepseek-r1")
    prompt = template.render("Hi")
    parser = template.parser(prompt, trace=True)
    events = [*parser.feed("Because.\n</think>\n\nHello."), *parser.close()]
    completion = fold(events)
    assert (completion.reasoning, completion.content) == ("Because.", "Hello.")
    assert "".join(segment.text for segment in parser.trace) == "Because.\n</think>\n\nHello."


class TestReasoning:
    def test_the_families_gate_is_used(self) -> None:
        qwen = shipped("qwen3")
        assert qwen.render("Hi", reasoning=True).text == qwen.render("Hi").text
        assert qwen.render("Hi", reasoning=False).text.endswith("<think>\n\n</think>\n\n")
        assert not qwen.render("Hi", reasoning=False).in_reasoning
        assert "Reasoning: high" in shipped("gpt-oss").render("Hi", reasoning="high").text

    def test_a_render_parses_nothing_until_somebody_asks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made, parsers = shipped("qwen3"), list[object]()

        class Counted(Parser):
            def __init__(self, *args: Any, **options: Any) -> None:
                parsers.append(self)
                super().__init__(*args, **options)

        monkeypatch.setattr(chat_template, "Parser", Counted)
        prompt = made.render("Hi")
        assert not parsers, "each turn would pay for it"
        assert not prompt.in_reasoning
        assert len(parsers) == 1

    def test_without_a_gate_the_block_is_closed(self) -> None:
        prompt = shipped("deepseek-r1").render("Hi", reasoning=False)
        assert prompt.text.endswith("<｜Assistant｜><think>\n\n</think>\n\n")
        assert "".join(piece.text for piece in prompt.pieces) == prompt.text
        assert not prompt.in_reasoning
        after_result = shipped("deepseek-r1").render(ASKED, reasoning=False)
        assert after_result == shipped("deepseek-r1").render(ASKED), "nothing is open there, so nothing is closed"

    def test_a_template_that_never_mentions_the_gate_has_none(self) -> None:
        ungated = ChatTemplate(QWEN.replace("enable_thinking", "other"), family="qwen3")
        assert ungated.render("Hi", reasoning=False).text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")

    @pytest.mark.parametrize(
        ("family", "reasoning", "words"),
        [
            ("qwen3", "low", "knows only reasoning=True, reasoning=False"),
            ("gpt-oss", False, 'only reasoning=True, reasoning="low", reasoning="medium", reasoning="high"'),
            ("deepseek-r1", "high", "no switch for it"),
            ("llama-3", True, "has no reasoning"),
        ],
    )
    def test_what_is_not_possible_is_said(self, family: str, reasoning: Any, words: str) -> None:
        with pytest.raises(RequestError, match=words):
            shipped(family).render("Hi", reasoning=reasoning)

    def test_off_is_no_request_where_there_is_none(self) -> None:
        assert shipped("llama-3").render("Hi", reasoning=False) == shipped("llama-3").render("Hi")


class TestRequests:
    @pytest.mark.parametrize(
        ("messages", "words"),
        [
            ([], "conversation is empty"),
            ([{"role": "robot", "content": "x"}], r"messages\[0\] is not valid at role"),
            ([{"role": "user", "content": 3}], r"messages\[0\] is not valid at content"),
            ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "only assistant messages have tool_calls"),
            (
                [{"role": "tool", "content": "x", "tool_call_id": "c"}],
                "matches no tool call before it. Calls so far: none",
            ),
            ([{"role": "tool", "content": "x"}], "no tool call is waiting"),
            ([*ASKED[:2], {**ASKED[2], "tool_call_id": "call_2"}], "'call_2' matches no tool call .* 'call_1'"),
            (ASKED[:2], "last message is the assistant's"),
        ],
    )
    def test_messages_that_are_not_valid(self, messages: Any, words: str) -> None:
        with pytest.raises(RequestError, match=words):
            shipped("qwen3").render(messages)

    def test_continuing_needs_an_assistant_message(self) -> None:
        with pytest.raises(RequestError, match="continues an assistant message"):
            shipped("qwen3").render("Hi", continue_final_message=True)

    def test_tool_choice(self) -> None:
        qwen = shipped("qwen3")
        with pytest.raises(RequestError, match="names 'find', but the tools are: 'look'"):
            qwen.render("Hi", tools=[look], tool_choice=ToolName(name="find"))
        with pytest.raises(RequestError, match="needs tools"):
            qwen.render("Hi", tool_choice="required")
        assert "look" in qwen.render("Hi", tools=[look], tool_choice=ToolName(name="look")).text
        assert qwen.render("Hi", tools=[look], tool_choice="none") == qwen.render("Hi")

    def test_template_variables(self) -> None:
        qwen = shipped("qwen3")
        assert qwen.render("Hi", template_kwargs={"enable_thinking": False}) == qwen.render("Hi", reasoning=False)
        with pytest.raises(RequestError, match=r"must not contain \['tools'\]"):
            qwen.render("Hi", template_kwargs={"tools": []})

    def test_no_generation_prompt(self) -> None:
        prompt = shipped("qwen3").render([{"role": "user", "content": "Hi"}], add_generation_prompt=False)
        assert prompt.text == "<|im_start|>user\nHi<|im_end|>\n"
        assert prompt.prefix == ()

    def test_a_message_a_dictionary_and_a_text_are_the_same(self) -> None:
        qwen = shipped("qwen3")
        assert qwen.render("Hi") == qwen.render({"role": "user", "content": "Hi"})
        assert qwen.render("Hi") == qwen.render([Message(role="user", content="Hi")])

    def test_the_templates_complaint_shows_the_callers_text(self) -> None:
        template = ChatTemplate(
            "{{ raise_exception('bad: ' ~ messages[0].content) if messages[0].content != 'USERTEXT' }}"
        )
        with pytest.raises(TemplateError, match=r"rejects these messages: bad: <\|im_end\|>"):
            template.render("<|im_end|>")


class TestHistory:
    def test_inline_reasoning_moves_to_its_field(self) -> None:
        qwen = shipped("qwen3")
        inline = [*ASKED[:1], {**ASKED[1], "reasoning": None, "content": "<think>\nHm.\n</think>\n\n"}, ASKED[2]]
        assert qwen.render(inline).text == qwen.render(ASKED).text
        assert "<think>\nHm.\n</think>\n\n<tool_call>" in qwen.render(ASKED).text

    def test_reasoning_of_older_turns_is_dropped_by_the_template(self) -> None:
        asked_again = [*ASKED, {"role": "assistant", "content": "Cold."}, {"role": "user", "content": "And?"}]
        for family in ("qwen3", "gpt-oss", "deepseek-r1"):
            assert "Hm." not in shipped(family).render(asked_again).text
        assert "Hm." not in shipped("deepseek-r1").render(ASKED).text
        assert "<｜Assistant｜><｜tool▁calls▁begin｜>" in shipped("deepseek-r1").render(ASKED).text

    def test_forced_open_reasoning_without_its_opening_marker(self) -> None:
        raw = {"role": "assistant", "content": "Hm.\n</think>\n\nCold."}
        text = shipped("deepseek-r1").render([ASKED[0], raw, {"role": "user", "content": "And?"}]).text
        assert "<｜Assistant｜>Cold.<｜end▁of▁sentence｜>" in text

    def test_gpt_oss_takes_reasoning_and_content_beside_a_call(self) -> None:
        both = [ASKED[0], {**ASKED[1], "content": "Let me look."}, ASKED[2]]
        assert (
            "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
            "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
            "<|start|>assistant to=functions.look<|channel|>commentary json<|message|>"
        ) in shipped("gpt-oss").render(both).text

    def test_gpt_oss_takes_text_beside_a_call_as_the_preamble_it_was(self) -> None:
        spoken = [ASKED[0], {**ASKED[1], "reasoning": None, "content": "Let me look."}, ASKED[2]]
        assert (
            "<|end|><|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
            "<|start|>assistant to=functions.look"
        ) in shipped("gpt-oss").render(spoken).text

    def test_several_calls_become_several_messages(self) -> None:
        calls = tuple(ToolCall(id=f"c{n}", name="look", arguments=f'{{"city": "{n}"}}') for n in range(3))
        results = [Message(role="tool", tool_call_id=f"c{n}", content=f"R{n}") for n in (2, 0, 1)]
        messages = [
            Message(role="user", content="Go"),
            Message(role="assistant", content="", tool_calls=calls),
            *results,
        ]
        for family in ("gpt-oss", "llama-3"):
            text = shipped(family).render(messages, tools=[look]).text
            places = [text.index(part) for n in range(3) for part in (f'{{"city": "{n}"}}', f"R{n}")]
            assert places == sorted(places)
        text = shipped("qwen3").render(messages, tools=[look]).text
        places = [text.index(part) for part in ('"0"}}', '"1"}}', '"2"}}', "R0", "R1", "R2")]
        assert places == sorted(places)

    def test_ids_become_what_mistral_takes(self) -> None:
        text = shipped("mistral-nemo").render(ASKED, tools=[look]).text
        id_ = text.partition('"id": "')[2][:9]
        assert id_.isalnum()
        assert f'"id": "{id_}"' in text
        assert f'"call_id": "{id_}"' in text
        kept = [
            ASKED[0],
            {**ASKED[1], "tool_calls": [{**CALL, "id": "a1b2c3d4e"}]},
            {**ASKED[2], "tool_call_id": "a1b2c3d4e"},
        ]
        assert '"id": "a1b2c3d4e"' in shipped("mistral-nemo").render(kept, tools=[look]).text

    def test_calls_without_ids_are_matched_in_order(self) -> None:
        anonymous = {"name": "look", "arguments": {"city": "Oslo"}}
        messages = [ASKED[0], {"role": "assistant", "tool_calls": [anonymous]}, {"role": "tool", "content": "4"}]
        assert "functions.look to=assistant" in shipped("gpt-oss").render(messages).text

    def test_arguments_as_the_template_wants_them(self) -> None:
        assert '"arguments": {"city": "Oslo"}' in shipped("qwen3").render(ASKED).text
        assert '```json\n{"city": "Oslo"}\n```' in shipped("deepseek-r1").render(ASKED).text
        broken = [
            ASKED[0],
            {
                **ASKED[1],
                "tool_calls": [{**CALL, "arguments": None, "function": {"name": "look", "arguments": '{"ci'}}],
            },
        ]
        assert '{"ci' in shipped("qwen3").render([*broken, ASKED[2]]).text

    def test_developer_is_system_where_the_template_knows_no_developer(self) -> None:
        messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        assert "<|im_start|>system\nBe brief." in shipped("qwen3").render(messages).text
        assert "# Instructions\n\nBe brief." in shipped("gpt-oss").render(messages).text


SIMPLE = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('roles') }}{% endif %}"
    "{% if loop.index0 % 2 != (0 if m.role == 'user' else 1) %}{{ raise_exception('turns') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


class TestGenericTools:
    """A template that knows nothing but alternating turns still carries tools, calls and results."""

    def test_everything_is_stated_in_text(self) -> None:
        template = ChatTemplate(SIMPLE)
        prompt = template.render([{"role": "system", "content": "Be brief."}, *ASKED], tools=[look])
        assert "<user>Be brief.\n\n## Tools" in prompt.text
        assert '"name": "look"' in prompt.text
        assert (
            '<assistant><tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call></assistant>'
            in prompt.text
        )
        assert prompt.text.endswith("<user>Result of look:\n4 degrees</user><assistant>")

    def test_what_it_asks_for_is_parsed(self) -> None:
        template = ChatTemplate(SIMPLE)
        prompt = template.render("Look.", tools=[look])
        parser = template.parser(prompt, tools=[look])
        completion = fold(
            [
                *parser.feed('<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>'),
                *parser.close(),
            ]
        )
        assert [(call.name, call.arguments) for call in completion.tool_calls] == [("look", '{"city": "Oslo"}')]

    def test_without_tools_nothing_is_a_call(self) -> None:
        template = ChatTemplate(SIMPLE)
        parser = template.parser(template.render("Look."))
        text = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
        assert fold([*parser.feed(text), *parser.close()]).content == text


PARTIAL_REASONING = {"role": "assistant", "content": "", "reasoning": "Because it"}
PARTIAL_ANSWER = {"role": "assistant", "content": "It is four "}
PARTIAL_BOTH = {"role": "assistant", "content": "It is four ", "reasoning": "Because."}
AFTER_CALL = {"role": "assistant", "content": "", "tool_calls": [CALL]}


class TestContinuation:
    @pytest.mark.parametrize(
        ("family", "last", "expected"),
        [
            ("qwen3", PARTIAL_REASONING, "<|im_start|>assistant\n<think>\nBecause it"),
            ("qwen3", PARTIAL_ANSWER, "<|im_start|>assistant\n<think>\n\n</think>\n\nIt is four "),
            ("qwen3", PARTIAL_BOTH, "<|im_start|>assistant\n<think>\nBecause.\n</think>\n\nIt is four "),
            ("qwen3", {**PARTIAL_ANSWER, "content": "<think>\nHalf a"}, "<|im_start|>assistant\n<think>\nHalf a"),
            (
                "qwen3",
                AFTER_CALL,
                (
                    "<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n"
                    '{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>'
                ),
            ),
            ("gpt-oss", PARTIAL_REASONING, "<|start|>assistant<|channel|>analysis<|message|>Because it"),
            ("gpt-oss", PARTIAL_ANSWER, "<|start|>assistant<|channel|>final<|message|>It is four "),
            (
                "gpt-oss",
                PARTIAL_BOTH,
                (
                    "<|start|>assistant<|channel|>analysis<|message|>Because.<|end|>"
                    "<|start|>assistant<|channel|>final<|message|>It is four "
                ),
            ),
            ("deepseek-r1", PARTIAL_REASONING, "<｜Assistant｜><think>\nBecause it"),
            ("deepseek-r1", PARTIAL_ANSWER, "<｜Assistant｜>It is four "),
            ("deepseek-r1", PARTIAL_BOTH, "<｜Assistant｜><think>\nBecause.\n</think>\n\nIt is four "),
            ("llama-3", PARTIAL_ANSWER, "<|start_header_id|>assistant<|end_header_id|>\n\nIt is four "),
            ("mistral-nemo", PARTIAL_ANSWER, "It is four "),
            ("qwen3-coder", PARTIAL_ANSWER, "<|im_start|>assistant\nIt is four "),
            (
                "llama-3",
                AFTER_CALL,
                '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "look", "parameters": {"city": "Oslo"}}',
            ),
        ],
    )
    def test_the_prompt_ends_inside_the_last_message(self, family: str, last: dict[str, Any], expected: str) -> None:
        template = shipped(family)
        for earlier in (
            [{"role": "user", "content": "Why?"}],
            [*ASKED, {"role": "assistant", "content": "."}, ASKED[0]],
        ):
            prompt = template.render([*earlier, last], continue_final_message=True)
            assert prompt.text.endswith(expected)
            assert "".join(piece.text for piece in prompt.prefix).strip() == expected.strip()
            assert prompt.in_reasoning == ((not last["content"] and "reasoning" in last) or "Half" in last["content"])
            assert "".join(piece.text for piece in prompt.pieces) == prompt.text

    def test_an_empty_message_is_a_plain_question(self) -> None:
        qwen = shipped("qwen3")
        assert qwen.render([{"role": "assistant", "content": ""}], continue_final_message=True).text == (
            "<|im_start|>assistant\n"
        )
        asked = [{"role": "user", "content": "Why?"}]
        empty = {"role": "assistant", "content": ""}
        assert qwen.render([*asked, empty], continue_final_message=True) == qwen.render(asked)

    def test_a_call_ends_a_turn_of_gpt_oss(self) -> None:
        with pytest.raises(RequestError, match="nothing can follow the call of 'look'"):
            shipped("gpt-oss").render([ASKED[0], AFTER_CALL], continue_final_message=True)

    def test_the_parser_goes_on_inside(self) -> None:
        qwen = shipped("qwen3")
        prompt = qwen.render([{"role": "user", "content": "Why?"}, PARTIAL_REASONING], continue_final_message=True)
        parser = qwen.parser(prompt)
        completion = fold([*parser.feed(" is.\n</think>\n\nSo."), *parser.close()])
        assert (completion.reasoning, completion.content) == (" is.", "So.")

    def test_what_a_caller_prefills_is_no_control_token(self) -> None:
        gpt = shipped("gpt-oss")
        last = {"role": "assistant", "content": "Say <|channel|>"}
        prompt = gpt.render([{"role": "user", "content": "Why?"}, last], continue_final_message=True)
        assert prompt.prefix[-1] == Piece("Say <|channel|>", False)


HERMES = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}
{%- for c in m.tool_calls -%}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{%- endfor -%}
{%- for tool in tools %}{{ tool | tojson }}{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


class TestFurtherTemplates:
    def test_tools_take_the_template_made_for_them(self) -> None:
        template = ChatTemplate.for_model(SIMPLE, named={"tool_use": HERMES, "rag": "{{ raise_exception('unused') }}"})
        assert template.family.name == "hermes"
        assert template.render("Hi").text == "<user>Hi</user><assistant>"
        prompt = template.render("Hi", tools=[look])
        assert prompt.text.startswith("<|im_start|>user\nHi<|im_end|>")
        assert '"name": "look"' in prompt.text
        parser = template.parser(prompt, tools=[look])
        completion = fold(
            [*parser.feed('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'), *parser.close()]
        )
        assert [call.name for call in completion.tool_calls] == ["look"]
        assert template.render("Hi", tools=[look], tool_choice="none").text == "<user>Hi</user><assistant>"

    def test_a_template_without_tools_takes_its_familys_own(self) -> None:
        known_by = "{# </think> <｜tool▁calls▁begin｜> #}"
        told = "<｜{{ m.role.title() }}｜>{{ m.content }}"
        asked = "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
        toolless = "{% for m in messages %}" + told + "{% endfor %}" + asked + known_by
        template = ChatTemplate.for_model(toolless)
        assert template.family.name == "deepseek-r1"
        assert template.render("Hi").text == "<｜User｜>Hi<｜Assistant｜>"
        assert "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME" in template.render("Hi", tools=[look]).text

    def test_the_callers_template_is_used_for_everything(self) -> None:
        template = ChatTemplate.for_model(SIMPLE, chat_template=SIMPLE, named={"tool_use": HERMES})
        assert template.render("Hi", tools=[look]).text.startswith("<user>## Tools")


FUNCTIONS = "{{ functions }} on {{ datetime }}: {% for m in messages %}{{ m.content }}{% endfor %}"
DESCRIBED = (
    "{% for tool in tools %}{{ tool.function.name ~ ': ' + tool.function.description }}"
    "{% for name, p in tool.function.parameters.properties.items() %}{{ name ~ '=' + p.description }}"
    "{% endfor %}{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


@pytest.mark.filterwarnings("ignore:No family in models.toml:engine.support.errors.EngineWarning")
class TestOddTemplates:
    def test_one_that_reads_functions_and_datetime(self) -> None:
        now = datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC)
        template = ChatTemplate(FUNCTIONS, now=lambda: now)
        text = template.render(
            "Hi", tools=[{"name": "look", "description": "Looks.", "parameters": {"type": "object"}}]
        ).text
        assert text.endswith("] on 2026-11-21 03:04:05: Hi")
        assert '"name": "look",\n' in text
        assert template.render("Hi").text == "[] on 2026-11-21 03:04:05: Hi"

    def test_one_that_insists_on_descriptions(self) -> None:
        bare = {
            "name": "look",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "any": True}},
        }
        template = ChatTemplate(DESCRIBED.replace("p.description", "p.description | string if p is mapping else 'any'"))
        assert template.render("Hi", tools=[bare]).text == "look: city=anyHi"
        described = {
            **bare,
            "description": "L",
            "parameters": {"type": "object", "properties": {"a": {"description": "A"}}},
        }
        assert template.render("Hi", tools=[described]).text == "look: La=AHi"

    def test_one_that_knows_no_null_and_wants_every_object_closed(self) -> None:
        kinds = (
            "{%- macro kind(p) -%}{%- set known = {'string': 'str', 'integer': 'int'} -%}"
            "{%- if p.type is string and p.type in known -%}{{ known[p.type] }}"
            "{%- elif p.type == 'object' -%}dict of {{ kind(p.additionalProperties) ~ p.additionalProperties.type }}"
            "{%- elif p.type is string -%}{{ kind({'type': p.type}) }}"
            "{%- elif p.type is iterable -%}({%- for t in p.type -%}{{ kind({'type': t}) }}|{%- endfor -%})"
            "{%- else -%}any{%- endif -%}{%- endmacro -%}"
        )
        shown = (
            "{% for t in tools %}{{ t.function.name }}: {% for k, p in t.function.parameters.properties.items() %}"
            "{{ k }}={{ kind(p) }}{{ kind(p['items']) if 'items' in p }} {% endfor %}{% endfor %}"
            "{{ messages[0].content }}"
        )
        properties: dict[str, Any] = {
            "city": {"type": ["string", "null"]},
            "level": {"type": ["string", "integer", "null"]},
            "nothing": {"type": "null"},
            "more": {"type": "object", "additionalProperties": {"type": "integer"}},
            "open": {"type": "object", "properties": {"in": {"type": ["null", "string"]}}},
            "many": {"type": ["null", "integer"], "items": {"type": ["integer", "null"]}},
        }
        tool = {"name": "look", "parameters": {"type": "object", "properties": properties}}
        template = ChatTemplate(kinds + shown)
        text = template.render("Hi", tools=[tool]).text
        assert text == (
            "look: city=str level=(str|int|) nothing=() more=dict of intinteger open=dict of () many=intint Hi"
        )
        qwen = shipped("qwen3")
        assert '"type": ["string", "null"]' in qwen.render("Hi", tools=[tool]).text, "others hear it as it is"

    def test_one_that_takes_content_as_parts(self) -> None:
        template = ChatTemplate(
            "{% for m in messages %}<{% for part in m.content %}{{ part.text }}{% endfor %}>{% endfor %}"
        )
        assert template.render("Hi").text == "<Hi>"

    def test_one_that_shows_calls_beside_null_content_only(self) -> None:
        source = (
            "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
            "{{ c.function.name ~ c.function.arguments }}{% endfor %}{% else %}<{{ m.content }}>{% endif %}{% endfor %}"
        )
        assert ChatTemplate(source).render(ASKED).text == '<Look.>look{"city": "Oslo"}<4 degrees>'

    def test_one_that_names_the_function_in_its_ids(self) -> None:
        kimi = (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}[{{ c.id }}{{ c.function.name }}"
            "{{ c.function.arguments | tojson }}]{% endfor %}{{ m.tool_call_id }}={{ m.content }};{% endfor %}"
        )
        template = ChatTemplate(kimi, family="kimi-k2")
        own = {"id": "functions.look:7", "name": "look", "arguments": "{}"}
        history = [*ASKED, {"role": "assistant", "tool_calls": [own]}, {**ASKED[2], "tool_call_id": "functions.look:7"}]
        text = template.render(history).text
        assert "[functions.look:0look" in text
        assert "functions.look:0=4 degrees;" in text
        assert "[functions.look:7look" in text
        assert "functions.look:7=4 degrees;" in text

    def test_one_that_takes_reasoning_or_content_beside_a_call(self) -> None:
        either = (
            "{% for m in messages %}"
            "{% if m.tool_calls and m.content and m.reasoning %}{{ raise_exception('both') }}{% endif %}"
            "<{{ m.content }}|{{ m.reasoning }}>{% for c in m.tool_calls or [] %}{{ c.function.name }}"
            "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
        )
        template = ChatTemplate(either, family="content-only")
        assert (
            "<|Hm.\n\nLet me look.>look"
            in template.render([ASKED[0], {**ASKED[1], "content": "Let me look."}, ASKED[2]]).text
        )

    def test_one_without_system_messages(self) -> None:
        template = ChatTemplate(SIMPLE)
        assert template.render([{"role": "system", "content": "Alone."}]).text == "<user>Alone.</user><assistant>"

    def test_one_that_always_asks(self) -> None:
        always = "{% if not add_generation_prompt %}{{ raise_exception('ask') }}{% endif %}" + SIMPLE
        prompt = ChatTemplate(
            always, family=shipped("qwen3").format.model_copy(update={"start": "<assistant>"})
        ).render("")
        assert "".join(piece.text for piece in prompt.prefix) == "<assistant>"
        with pytest.raises(TemplateError, match="rejects these messages: ask"):
            ChatTemplate(always).render("Hi", add_generation_prompt=False)

    def test_one_that_cannot_show_an_unfinished_message(self) -> None:
        strict = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('last') }}{% endif %}" + SIMPLE
        template = ChatTemplate(strict)
        prompt = template.render([ASKED[0], PARTIAL_ANSWER], continue_final_message=True)
        assert prompt.text == "<user>Look.</user><assistant>It is four "
        assert "".join(piece.text for piece in prompt.prefix) == "<assistant>It is four "

    def test_unguarded_text_may_be_structure(self) -> None:
        qwen = ChatTemplate(None, family="qwen3", control_tokens=frozenset({"<|im_end|>"}))
        assert qwen.render("<|im_end|>", guard=False).pieces == (Piece(qwen.render("<|im_end|>").text, trusted=True),)
        failing = ChatTemplate("{{ raise_exception(messages[0].content) if messages[0].content != 'USERTEXT' }}")
        with pytest.raises(TemplateError, match="rejects these messages: plain"):
            failing.render("plain", guard=False)


class TestHarmonyLoop:
    """A three-step tool loop of gpt-oss, by the rules that its response format publishes: analysis of the loop under
    way goes back, older analysis is dropped with the loop's end, calls end in <|call|>, results carry the function's
    name."""

    def turn(self, number: int) -> list[Any]:
        call = {"id": f"c{number}", "name": "look", "arguments": f'{{"city": "{number}"}}'}
        return [
            {"role": "assistant", "content": "", "reasoning": f"Step {number}.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"R{number}"},
        ]

    def shown(self, number: int, *, analysis: bool = True) -> str:
        why = f"<|start|>assistant<|channel|>analysis<|message|>Step {number}.<|end|>" if analysis else ""
        return (
            f"{why}<|start|>assistant to=functions.look<|channel|>commentary json<|message|>"
            f'{{"city": "{number}"}}<|call|>'
            f'<|start|>functions.look to=assistant<|channel|>commentary<|message|>"R{number}"<|end|>'
        )

    def test_each_prompt_begins_with_the_last_and_its_output(self) -> None:
        template = shipped("gpt-oss")
        history: list[Any] = [{"role": "user", "content": "Go"}]
        before = template.render(history, tools=[look]).text
        for number in range(3):
            history += self.turn(number)
            text = template.render(history, tools=[look]).text
            assert text == before.removesuffix("<|start|>assistant") + self.shown(number) + "<|start|>assistant"
            before = text

    def test_the_loops_analysis_is_dropped_with_its_end(self) -> None:
        history = [{"role": "user", "content": "Go"}, *self.turn(0), *self.turn(1)]
        done = [
            *history,
            {"role": "assistant", "content": "Done.", "reasoning": "Enough."},
            {"role": "user", "content": "More"},
        ]
        text = shipped("gpt-oss").render([*done, *self.turn(2)], tools=[look]).text
        assert text.endswith(
            "<|start|>user<|message|>Go<|end|>"
            + self.shown(0, analysis=False)
            + self.shown(1, analysis=False)
            + "<|start|>assistant<|channel|>final<|message|>Done.<|end|><|start|>user<|message|>More<|end|>"
            + self.shown(2)
            + "<|start|>assistant"
        )

    def test_a_caller_that_drops_reasoning_gets_the_same_less_analysis(self) -> None:
        history = [{"role": "user", "content": "Go"}, *self.turn(0)]
        dropped = [{key: value for key, value in message.items() if key != "reasoning"} for message in history]
        template = shipped("gpt-oss")
        assert self.shown(0, analysis=False) + "<|start|>assistant" in template.render(dropped, tools=[look]).text
        assert "Step 0." not in template.render(dropped, tools=[look]).text


def test_what_a_tool_returns_reaches_the_template() -> None:
    listed = "{{- (tool.function['return'] or {}).type ~ '; ' ~ tool | tojson"
    template = ChatTemplate(QWEN.replace("{{- tool | tojson", listed))
    returns = {"type": "string", "description": "The weather."}
    tool: dict[str, Any] = {"name": "look", "parameters": {"type": "object", "properties": {}}, "return": returns}
    given: Any
    for given in (tool, {"type": "function", "function": tool}, as_tool(tool)):
        text = template.render("Hi", tools=[given]).text
        assert "<tools>\nstring; {" in text
        assert text.count("The weather.") == 1
    assert "<tools>\n; {" in template.render("Hi", tools=[look]).text
