"""Variables under which single templates expect what others take as `tools` or as plain text."""

import pytest

from engine.formats.template.chat_template import ChatTemplate
from engine.support.errors import TemplateError

LOOK = {
    "name": "look",
    "description": 'Says "hi" & <b>.',
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}},
}
TURNS = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)
XML_TOOLS = (
    "{%- if xml_tools %}<|im_start|>system\n<tools>\n{% for tool in xml_tools %}{{ tool | string ~ '\n' }}{% endfor -%}"
    "</tools>\nWrite <tool_call>\n{'name': <function-name>, 'arguments': <args-json-object>}\n</tool_call><|im_end|>\n"
    "{% endif -%}"
)
TRANSLATES = (
    "{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set c = m.content[0] -%}"
    "{%- if c.source_lang_code is not defined %}{{ raise_exception('source_lang_code is needed') }}{% endif -%}"
    "<t>{{ c.source_lang_code ~ '>' ~ c.target_lang_code ~ ':' ~ c.text }}</t>"
    "{%- else %}{{ m.content }}{% endif %}{% endfor %}{{ '<a>' if add_generation_prompt else '' }}"
)


def test_xml_tools_are_the_functions() -> None:
    """As SmolLM3's card shows them; so that its own statement is sent, and derivation finds the form of a call."""
    template = ChatTemplate(XML_TOOLS + TURNS, "<s>", "</s>")
    text = template.render("Hi", [LOOK]).text
    assert f"<tools>\n{LOOK}\n</tools>" in text
    assert "<tools>" not in template.render("Hi").text
    assert text.count("look") == 1, "nothing states the tools once more"
    assert template.format.tools is not None
    assert template.format.tools.section[0].strip() == "<tool_call>"


def test_safe_changes_nothing() -> None:
    """Nothing is escaped, so that no text needs to be kept from it (functionary 3.1 writes its tools so)."""
    source = "{%- for t in tools or [] %}{{ 'Use '|safe + t.function.description + t.function | tojson }}{% endfor -%}"
    text = ChatTemplate(source + TURNS, "<s>", "</s>", "hermes").render('a "b" <c>', [LOOK]).text
    assert 'Use Says "hi" & <b>.' in text
    assert "&#34;" not in text
    assert "&lt;" not in text


def test_languages_of_a_translation_are_named() -> None:
    template = ChatTemplate(TRANSLATES, "<s>", "</s>")
    with pytest.raises(TemplateError, match=r"template_kwargs=\{.source_lang_code"):
        template.render("Hallo")
    given = {"source_lang_code": "de", "target_lang_code": "en"}
    prompt = template.render("Hallo <t>", template_kwargs=given)
    assert prompt.text == "<t>de>en:Hallo <t></t><a>"
