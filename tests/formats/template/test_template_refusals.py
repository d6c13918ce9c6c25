"""A template that refuses text which could become one of its control tokens: the guard hides that text, so that a
conversation which speaks of such tokens goes on."""

import re
from pathlib import Path

import pytest
from cases.template_calls import SOURCES

from engine.formats.template.chat_template import ChatTemplate
from engine.support.errors import TemplateError

LITERAL = re.compile(r"'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\"")
REFUSING = (
    "{% for m in messages %}{% if '<|tag|>' in m.content or 'secret' in m.content %}{{ raise_exception('Unfit.') }}"
    "{% endif %}<|tag|>{{ m.content }}{% endfor %}"
)


def _conversation(text: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"What is {text}?"},
        {"role": "assistant", "content": f"It is {text}, a mark.", "reasoning": f"They ask for {text}."},
        {"role": "user", "content": "And then?"},
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_text_of_a_template_s_own_ends_a_conversation(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    template = ChatTemplate(source, "<s>", "</s>", trust_template=True)
    found = (text for match in LITERAL.findall(source) for text in match if re.search(r"[<\[|].*[>\]|]", text))
    for text in dict.fromkeys(text.replace("\\n", "\n") for text in found):
        prompt = template.render(_conversation(text))
        assert "And then?" in prompt.text, text


def test_only_text_that_could_become_a_control_token_is_hidden() -> None:
    template = ChatTemplate(REFUSING, control_tokens=frozenset({"<|tag|>"}))
    prompt = template.render("Say <|tag|> twice.")
    assert prompt.text == "<|tag|>Say <|tag|> twice."
    assert [piece.text for piece in prompt.pieces if piece.trusted] == ["<|tag|>"]
    for said in ("a secret", "a secret <|tag|>"):
        with pytest.raises(TemplateError, match="Unfit"):
            template.render(said)
    with pytest.raises(TemplateError, match="Unfit"):
        template.render("Say <|tag|> twice.", guard=False)
