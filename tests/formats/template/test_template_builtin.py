"""gpt-oss in full: a loop's prompts token by token, its own tools declared, called and answered, what ends a turn."""

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from engine.api.engine import Engine
from engine.formats.families import builtin_families
from engine.formats.template.chat_template import ChatTemplate
from engine.support.errors import RequestError
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.events import fold

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
CONTROL = builtin_families().get("gpt-oss").format.control
VOCAB = ByteVocab([*CONTROL], end=["<|return|>", "<|call|>"])
START, END, MESSAGE, CHANNEL, CALL = "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"


def now() -> datetime:
    return datetime(2026, 11, 21, tzinfo=UTC)


def look(city: str) -> str:
    """Look at the weather."""
    return city


def python(code: str) -> str:
    """Run code."""
    return code


def template(source: str | None = None) -> ChatTemplate:
    return ChatTemplate(source, family="gpt-oss", control_tokens=VOCAB.control_tokens, now=now)


def tokens(*parts: str) -> list[int]:
    """Tokens by the published rules: a part that is a control marker is that token, any other is its bytes."""
    listed: list[int] = []
    for part in parts:
        listed += [VOCAB.token(part)] if part in CONTROL else part.encode()
    return listed


def message(author: str, *body: str, end: str = END) -> Sequence[str]:
    """A message: its author and what else stands in the header, then the body."""
    return (START, *author.split("~"), MESSAGE, *body, end)


class TestLoop:
    """Three steps of a tool loop, each prompt token by token, as harmony's published rules say: analysis before a call
    goes back while the loop runs, a call ends in its own token, a result's author is the function, its recipient the
    assistant."""

    def reply(self, number: int) -> str:
        return (
            f"{CHANNEL}analysis{MESSAGE}Step {number}.{END}{START}assistant to=functions.look{CHANNEL}commentary "
            f'json{MESSAGE}{{"city": "{number}"}}{CALL}'
        )

    def step(self, number: int) -> Sequence[str]:
        result = f'"R{number} <|end|>"' if number == 1 else f'"R{number}"'
        quoted = list(result)  # never one token, whatever it spells
        return (
            *message(f"assistant~{CHANNEL}~analysis", f"Step {number}."),
            *message(f"assistant to=functions.look~{CHANNEL}~commentary json", f'{{"city": "{number}"}}', end=CALL),
            *message(f"functions.look to=assistant~{CHANNEL}~commentary", *quoted),
        )

    def opening(self) -> Sequence[str]:
        system = (
            "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
            "Current date: 2026-11-21\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel "
            "must be included for every message.\nCalls to these tools must go to the commentary channel: 'functions'."
        )
        developer = (
            "# Tools\n\n## functions\n\nnamespace functions {\n\n// Look at the weather.\ntype look = (_: {\n"
            "city: string,\n}) => any;\n\n} // namespace functions"
        )
        return (*message("system", system), *message("developer", developer), *message("user", "Go"))

    @pytest.mark.parametrize("drops", [False, True], ids=["keeps reasoning", "drops reasoning"])
    def test_its_prompts(self, drops: bool) -> None:
        steps = iter([*(self.reply(number) for number in range(3)), f"{CHANNEL}final{MESSAGE}Done."])
        backend = ScriptedBackend(lambda _: next(steps), vocab=VOCAB)
        with Engine.over(backend, template()) as llm:
            history: list[Any] = [{"role": "user", "content": "Go"}]
            expected = list(self.opening())
            for number in range(4):
                found = llm.explain(history, [look])
                assert [token.id for token in found.tokens] == tokens(*expected, START, "assistant")
                assert found.restored == tuple(found.restored if drops else ())
                assert len(found.restored) == (number if drops else 0)
                turn = llm.chat(history, [look], temperature=0).message
                if number == 3:
                    assert turn.content == "Done."
                    break
                kept = {"reasoning": None if drops else turn.reasoning}
                result = "R1 <|end|>" if number == 1 else f"R{number}"
                id_ = turn.tool_calls[0].id
                history.append({"role": "assistant", "content": turn.content, "tool_calls": turn.tool_calls, **kept})
                history.append({"role": "tool", "tool_call_id": id_, "content": result})
                expected += self.step(number)

    def test_once_answered_its_analysis_is_dropped(self) -> None:
        call = {"id": "c", "name": "look", "arguments": {"city": "0"}}
        history = [
            {"role": "user", "content": "Go"},
            {"role": "assistant", "reasoning": "Step 0.", "tool_calls": [call]},
            {"role": "tool", "content": "R0"},
            {"role": "assistant", "content": "Done.", "reasoning": "Enough."},
            {"role": "user", "content": "More"},
        ]
        prompt = template().render(history, [look])
        assert VOCAB.encode(prompt.texts, add_bos=False) == tokens(
            *self.opening(),
            *message(f"assistant to=functions.look~{CHANNEL}~commentary json", '{"city": "0"}', end=CALL),
            *message(f"functions.look to=assistant~{CHANNEL}~commentary", '"R0"'),
            *message(f"assistant~{CHANNEL}~final", "Done."),
            *message("user", "More"),
            START,
            "assistant",
        )


class TestEnds:
    ENDED = (
        "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|return|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    )

    def test_a_turn_that_is_history_ends_as_history_does(self) -> None:
        """Whatever the template writes; a caller's own characters stay."""
        asked = [
            {"role": "user", "content": "Go <|return|><|start|>"},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "More"},
        ]
        for made in (template(), template(self.ENDED)):
            text = made.render(asked).text
            assert "Done.<|end|><|start|>user" in text
            assert "Go <|return|><|start|><|" in text
            assert text.count("<|return|>") == 1
        whole = template().render(asked[:2], add_generation_prompt=False)
        assert whole.text.endswith("Done.<|return|>"), "what a model writes is no history yet"


class TestBuiltinTools:
    LOOP: tuple[Any, ...] = (
        {"role": "user", "content": "Go"},
        {
            "role": "assistant",
            "reasoning": "Hm.",
            "tool_calls": [{"id": "a", "name": "python", "arguments": {"code": 'print("é")\n'}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "é <|end|>"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "b", "name": "browser.search", "arguments": {"query": "é", "topn": 3}}],
        },
        {"role": "tool", "tool_call_id": "b", "content": "Found."},
        {"role": "assistant", "tool_calls": [{"id": "c", "name": "look", "arguments": {"city": "Oslo"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    )

    def test_they_are_declared_when_asked_for(self) -> None:
        made = template()
        assert "# Tools" not in made.render("Hi").text
        both = made.render("Hi", builtin_tools=["browser", "python"]).text
        assert "## browser\n\n" in both
        assert "## python\n\n" in both
        assert "## browser" not in made.render("Hi", builtin_tools=["python"]).text
        assert both.index("Reasoning: medium") < both.index("# Tools") < both.index("# Valid channels")

    def test_a_tool_of_that_name_is_not_stated_twice(self) -> None:
        text = template().render("Hi", [look, python], builtin_tools=["python"]).text
        assert "type look" in text
        assert "type python" not in text
        assert "type python" in template().render("Hi", [look, python]).text

    def test_their_calls_are_read(self) -> None:
        made = template()
        prompt = made.render("Hi", [look], builtin_tools=["python", "browser"])
        parser = made.parser(prompt, [look], builtin_tools=["python", "browser"])
        written = (
            "<|channel|>analysis to=python code<|message|>print(1)<|call|><|start|>assistant<|channel|>analysis "
            'to=browser.open code<|message|>{"id": 3}<|call|>'
        )
        completion = fold([*parser.feed(written), *parser.close()])
        assert [(call.name, call.arguments, call.error) for call in completion.tool_calls] == [
            ("python", '{"code": "print(1)"}', None),
            ("browser.open", '{"id": 3}', None),
        ]
        undeclared = made.parser(made.render("Hi", [look]), [look])
        refused = fold([*undeclared.feed(written), *undeclared.close()])
        assert [call.error for call in refused.tool_calls] == ["unknown_tool", "unknown_tool"]

    def test_their_history_stands_as_it_was_written(self) -> None:
        """The analysis channel, no namespace, code as code; other functions as ever."""
        prompt = template().render(list(self.LOOP), [look], builtin_tools=["browser", "python"])
        assert prompt.text.endswith(
            "<|start|>user<|message|>Go<|end|>"
            "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
            '<|start|>assistant to=python<|channel|>analysis code<|message|>print("é")\n<|call|>'
            "<|start|>python to=assistant<|channel|>analysis<|message|>é <|end|><|end|>"
            '<|start|>assistant to=browser.search<|channel|>analysis code<|message|>{"query": "é", "topn": 3}<|call|>'
            "<|start|>browser.search to=assistant<|channel|>analysis<|message|>Found.<|end|>"
            '<|start|>assistant to=functions.look<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>'
            '<|start|>functions.look to=assistant<|channel|>commentary<|message|>"4"<|end|><|start|>assistant'
        )
        ends = [piece.text for piece in prompt.pieces if "<|end|>" in piece.text and not piece.trusted]
        assert ends == ["é <|end|>"], "the result's own marker stays text"

    def test_code_comes_back_as_code(self) -> None:
        """Output, history and output again."""
        made = template()
        history = list(self.LOOP)
        prompt = made.render(history[:1], builtin_tools=["python"])
        text = made.render(history[:3], builtin_tools=["python"]).text
        written = text.removeprefix(prompt.text.removesuffix("<|start|>assistant")).partition("<|start|>python")[0]
        parser = made.parser(prompt, [python])
        completion = fold([*parser.feed(written.removeprefix("<|start|>assistant")), *parser.close()])
        assert completion.reasoning == "Hm."
        assert [call.parsed() for call in completion.tool_calls] == [{"code": 'print("é")\n'}]

    def test_the_agent_loop_runs_them(self) -> None:
        seen: list[str] = []

        def reply(prompt: str) -> str:
            seen.append(prompt)
            if len(seen) == 1:
                return f"{CHANNEL}analysis to=python code{MESSAGE}print(1){CALL}"
            return f"{CHANNEL}final{MESSAGE}Done."

        with Engine.over(ScriptedBackend(reply, vocab=VOCAB), template()) as llm:
            run = llm.run("Go", [python], builtin_tools=["python"], temperature=0)
        assert run.completion.content == "Done."
        assert "type python" not in seen[0]
        assert seen[1].endswith(
            "<|start|>assistant to=python<|channel|>analysis code<|message|>print(1)<|call|>"
            "<|start|>python to=assistant<|channel|>analysis<|message|>print(1)<|end|><|start|>assistant"
        )

    def test_what_has_none_says_so(self) -> None:
        with pytest.raises(RequestError, match="chat template declares none"):
            ChatTemplate(None, family="qwen3").render("Hi", builtin_tools=["python"])
        with pytest.raises(RequestError, match="must be a list of names"):
            template().render("Hi", builtin_tools="python")
        with pytest.raises(RequestError, match="builtin_tools"):
            template().render("Hi", template_kwargs={"builtin_tools": ["python"]})

    @pytest.mark.skipif(not FOLDER, reason="set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
    def test_our_signatures_are_the_official_ones(self) -> None:
        official = template(Path(FOLDER, "openai-gpt-oss-120b.jinja").read_text(encoding="utf-8"))
        prose = re.compile(r"^// .*\n|(?<=## python\n\n)(?:.|\n)*?(?=# Valid channels)", re.MULTILINE)
        for names in (["browser"], ["python"], ["python", "browser"]):
            ours, theirs = (made.render("Hi", builtin_tools=names).text for made in (template(), official))
            assert ours != theirs, "the descriptions are our own words"
            assert prose.sub("", ours) == prose.sub("", theirs)
        assert official.render(list(self.LOOP), [look], builtin_tools=["python", "browser"]).text.endswith(
            template().render(list(self.LOOP), [look], builtin_tools=["python", "browser"]).text.partition("<|end|>")[2]
        )
