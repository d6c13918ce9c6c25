"""What records look like in notebooks, and that no model's text does anything there: judged by an HTML parser and by a
Markdown renderer that lets HTML through."""

# IPython's protocol is made of methods that begin with an underscore.
# pyright: reportPrivateUsage=false

import asyncio
import math
import pickle
import random
import re
import time
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from json import dumps, loads
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from fakes.scripts import said, scripted
from markdown_it import MarkdownIt

from engine import (
    Completion,
    Engine,
    EngineError,
    Image,
    ImagePart,
    JsonSchema,
    Message,
    ReasoningPart,
    Regex,
    RequestError,
    Run,
    Step,
    TextPart,
    TokenLogprob,
    ToolCall,
    ToolResult,
    Usage,
)
from engine.agent.transcript import RunEnd
from engine.api.batch_generate import Answers
from engine.support.colouring import coloured, laid_out
from engine.support.display import (
    COPY,
    block_html,
    clipped,
    fenced,
    markdown_html,
    page_text,
    seconds_text,
    short,
    visible,
    visible_json,
)
from engine.testing import ScriptedEngine
from engine.types.blocks import result_block
from engine.types.completion import ending
from engine.types.messages import Messages
from engine.types.sampling import FinishReason, Logprobs

ALLOWED = {
    "div", "p", "pre", "code", "b", "details", "summary", "table", "thead", "tbody", "tr", "th", "td", "h1", "h2", "h3",
    "h4", "h5", "h6", "ul", "ol", "li", "em", "strong", "blockquote", "hr", "br", "a", "span",
}  # fmt: skip
ATTRIBUTES = {"style", "class", "href", "title", "start", "open"}
BUTTON = {"type": "button", "value": "copy", "onclick": COPY}
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
VOID = {"br", "hr", "img", "input"}
TYPESET = re.compile(
    r"\\(includegraphics|html@mathml|href|url|style|class|cssId|require|unicode|[a-z]?def|let|csname|(re)?new(command|environment))(?![A-Za-z])"
)
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</pre></div></details><iframe src='https://x.example'></iframe>",
    "[click](javascript:alert(1))",
    "[click](<javascript:alert(1)>)",
    "[a]: javascript:alert(1)\n\n[a]",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](data:image/png;base64,AAAA) [y](file:///etc/passwd) [z](vscode://open)",
    "[x](JaVaScRiPt&#58;alert(1))",
    "![x](https://tracker.example/?leak)",
    "[x](https://a.example/\"onmouseover=\"alert(1))",
    "<javascript:alert(1)>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;",
    "```html\n</code></pre><script>alert(1)</script>\n```",
    "`````\n</code><style>*{display:none}</style>",
    "~~~\n````text\n<script>\n",
    "| a | <svg onload=alert(1)> |\n|---|---|\n| <math> | <b> |",
    "\x1b[2J\x1b]0;title\x07\x9b31m\r\b",
    "\u202eevil\u202c\u2066x\u2069\u200f",
    "\ud83d half of a pair",
    "'\"><svg/onload=alert(1)>",
    "$\\href{javascript:alert(1)}{x}$",
    "\\(\\url{javascript:alert(1)}\\) \\[\\style{position:fixed}{x}\\]",
    "$$\\def\\alpha{evil}$$ $\\let\\a=\\href$ $\\newcommand{\\x}{y}$ $\\csname href\\endcsname{javascript:x}{y}$",
    "$\\require{html} \\cssId{x}{y} \\class{jp-Dialog}{x}$ $a</span>\\href{x}{y}$",
    "$\\includegraphics{https://evil.example/x.png}$ $\\html@mathml{a}{b}$ $\\begin{evil}x\\end{evil}$",
    "\\begin{equation}\\href{javascript:alert(1)}{x}\\end{equation}",
    "<!-- --><!DOCTYPE x><?php ?><![CDATA[<script>]]>",
    "style=\"x\" </summary><script>",
]  # fmt: skip


class Seen(HTMLParser):
    """The tags and attributes that a browser would see, and the formulas that a front end would typeset. The button
    that copies is ours: nothing but its look may differ."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.wrong: list[str] = []
        self._typeset = [True]  # of each open tag, whether its text is typeset

    def handle_data(self, data: str) -> None:
        if self._typeset[-1] and (found := TYPESET.search(data)):
            self.wrong.append(f"typeset {found[0]}")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            self._typeset.pop()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "input" and {name: value for name, value in attrs if name not in ("title", "style")} == BUTTON:
            return
        classes = (dict(attrs).get("class") or "").split()
        is_typeset = "mathjax_process" in classes or (
            self._typeset[-1] and "mathjax_ignore" not in classes and tag not in ("pre", "code")
        )
        if tag not in VOID:
            self._typeset.append(is_typeset)
        if tag not in ALLOWED:
            self.wrong.append(f"<{tag}>")
        for name, value in attrs:
            if name not in ATTRIBUTES:
                self.wrong.append(f"{tag} {name}")
            if name == "href" and not (value or "").startswith(("http://", "https://", "mailto:")):
                self.wrong.append(f"{tag} href={value}")
            if name == "style" and "url(" in (value or ""):
                self.wrong.append(f"{tag} style={value}")

    def handle_comment(self, data: str) -> None:
        self.wrong.append(f"comment {data[:40]}")

    def handle_decl(self, decl: str) -> None:
        self.wrong.append(f"declaration {decl[:40]}")


def live(html: str) -> list[str]:
    """What in a page is not dead."""
    seen = Seen()
    seen.feed(html)
    seen.close()
    return [*seen.wrong, *(ascii(found) for found in UNSEEN.findall(html))]


def live_markdown(text: str) -> list[str]:
    """What of Markdown a renderer that lets HTML through would make live."""
    tokens = [token for top in MarkdownIt("commonmark").parse(text) for token in (top, *(top.children or []))]
    bad = {"html_block", "html_inline", "link_open", "image"}
    return [token.type for token in tokens if token.type in bad] + [ascii(found) for found in UNSEEN.findall(text)]


def completion(text: str) -> Completion:
    """A turn in which the model writes a text wherever it can."""
    call = ToolCall(id=text, name=text, arguments=text, error="malformed")
    json = ToolCall(id=text, name=text, arguments=dumps({text: [text, {"a": 1, text: None}]}, ensure_ascii=False))
    code = TextPart(text=f"```python\n{text}\n```\n\n```{text}\n{text}\n```\n![{text}](https://a.example/{text})")
    parts = (ReasoningPart(text=text), TextPart(text=text), code, call, json)
    return Completion(parts=parts, finish_reason="length", usage=Usage(completion_tokens=3), parse_error=text)


def records(text: str) -> Iterator[Completion | Run]:
    turn = completion(text)
    yield turn
    results = (ToolResult(0, text, text, error=True), ToolResult(1, text, turn.tool_calls[1].arguments))
    question = Message(role="user", content=text)
    yield Run((question, turn.message), (Step(turn, results),), "max_steps", turn.tool_calls)


def views(text: str) -> Iterator[str]:
    """The pages of lists, in which a text stands wherever it can."""
    turn = completion(text)
    token = TokenLogprob(token=1, text=text, bytes=(), logprob=-0.5)
    yield Messages(
        [Message(role="user", content=text), turn.message, Message(role="tool", content=text, name=text)]
    )._repr_html_()
    yield Answers([turn, EngineError(text)])._repr_html_()
    yield answered({text: text, "deep": {text: [text]}})
    yield answered([{text: text}])
    yield Logprobs([token.model_copy(update={"top": (token,)})])._repr_html_()


def test_nothing_hostile_is_live_in_any_record() -> None:
    seeded = random.Random(1)
    mixed = ["".join(seeded.choices([*HOSTILE, "\n", "`", "*", "- ", "> ", "    "], k=6)) for _ in range(150)]
    for text in [*HOSTILE, *mixed]:
        for html in views(text):
            assert live(html) == [], ascii(text)
        for record in records(text):
            assert live(record._repr_html_()) == [], ascii(text)
            assert live_markdown(record._repr_markdown_()) == [], ascii(text)
            assert not UNSEEN.search(repr(record)) or isinstance(record, Completion), ascii(text)


def test_the_judge_sees_what_is_live() -> None:
    """The test above could fail."""
    assert live("<p><script>x</script>") == ["<script>"]
    assert live('<a href="javascript:x">') == ["a href=javascript:x"]
    assert live('<p onclick="x">\x1b') == ["p onclick", "'\\x1b'"]
    assert live('<input type="button" value="copy" onclick="alert(1)">') != []
    assert live("<p>$\\href{x}{y}$</p>") == ["typeset \\href"]
    ignored = '<div class="mathjax_ignore"><p>$\\def</p><span class="mathjax_process">$\\def</span></div>'
    assert live(ignored) == ["typeset \\def"], "one of the two"
    assert live(MarkdownIt("commonmark").render("<img src=x>"))
    assert live_markdown("a <b>c</b> [x](http://x)") == ["html_inline", "html_inline", "link_open"]


def test_what_is_hidden_is_shown() -> None:
    assert visible("a\x1b[2J\u202eb\ud800\t\n") == "a\\x1b[2J\\u202eb\\ud800\t\n"
    assert visible("\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}é") == "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}é"
    html = markdown_html("a <b> **c** `<i>`\n\n- x\n\n[ok](https://a.example) ![i](https://b.example)")
    assert "a &lt;b&gt; <strong>c</strong> <code>&lt;i&gt;</code>" in html
    assert "<li>x</li>" in html
    assert '<a href="https://a.example">ok</a> <a href="https://b.example">[image: i]</a>' in html
    assert markdown_html("![i](data:image/png;base64,AAAA)").count("<a") == 0
    assert "<img" not in html


@pytest.mark.parametrize("unit", ["x", "[", "`", "*a ", "<b>", "\x1b", "| a ", "> ", "\u202e", "a\n"])
def test_a_megabyte_is_cut_and_drawn_soon(unit: str) -> None:
    text = (unit * 1_000_000)[:1_000_000]
    html = completion(text)._repr_html_()
    assert len(html) < 6_000_000
    assert "900,000 characters are not shown" in html
    assert live(html) == []
    assert len(completion(text)._repr_markdown_()) < 4_000_000
    assert live(markdown_html(text[:30_000])) == []


def test_short_texts() -> None:
    assert clipped("abc", 3) == "abc"
    assert clipped("abcdefghij", 4) == "ab\n[… 6 characters are not shown …]\nij"
    assert short("a\n b\x1b") == "a b\\x1b"
    assert short("word " * 100) == f"{('word ' * 100)[:60]}…"
    assert fenced("a\n```\nb").startswith("````text\n")


def test_a_completion_and_a_run_in_html_and_markdown() -> None:
    call = ToolCall(id="1", name="add", arguments='{"a": 1}')
    usage = Usage(completion_tokens=11, prompt_tokens=9, cached_tokens=4, decode_seconds=0.1)
    turn = Completion(parts=(ReasoningPart(text="Hm."), call), finish_reason="tool_calls", usage=usage)
    answer = Completion(parts=(TextPart(text="It is **3**."),))
    run = Run((turn.message,), (Step(turn, (ToolResult(0, "1", "3"),)), Step(answer)), "stop")
    html = run._repr_html_()
    assert "<details><summary" in html
    assert "reasoning, 1 word<" in html
    assert "<b>call</b> <code>add</code>" in html
    assert "<b>result</b>" in html
    assert "<strong>3</strong>" in html
    assert "100 tokens/s; prompt 9 tokens, 4 of them reused" in html
    assert "ended" not in html
    assert run._repr_markdown_().startswith("**reasoning**\n\n```text\nHm.\n```\n\n**call** `add`\n\n")
    assert repr(run) == "Run(stopped='stop', 2 steps, content='It is **3**.')"
    assert "The answer was cut off" in Completion(finish_reason="length")._repr_html_()
    assert "waits for the results of calls" in Run((), (Step(turn),), "pending", (call,))._repr_html_()


def test_cards_can_be_read_without_styles() -> None:
    """marimo's chat takes styles and `<pre>` away."""
    call = ToolCall(id="1", name="add", arguments='{"a": 1}')
    parts = (ReasoningPart(text="One.\nTwo."), call)
    run = Run((), (Step(Completion(parts=parts), (ToolResult(0, "1", "first\nsecond"),)),), "stop")
    html = re.sub(' style="[^"]*"|</?pre[^>]*>|</?span>', "", re.sub(' style="[^"]*"', "", run._repr_html_()))
    assert "<div>One.<br>Two.</div>" in html
    assert "<code>add</code></div><div>{&quot;a&quot;: 1}</div><div><div><b>result</b></div>" in html
    assert "<div>first<br>second</div></div></div>" in html


def test_every_end_is_told_in_a_sentence() -> None:
    for reason in {*get_args(FinishReason), *get_args(RunEnd)} - {"stop", "tool_calls"}:
        assert not ending(reason).startswith("The answer ended: "), f"{reason} has no sentence of its own"


def test_a_result_stands_below_its_call() -> None:
    calls = tuple(ToolCall(id=str(number), name="look", arguments=f'{{"at": {number}}}') for number in range(3))
    turn = Completion(parts=(TextPart(text="I look."), *calls), finish_reason="tool_calls")
    results = tuple(ToolResult(number, str(number), f"seen {number}") for number in (2, 0))
    run = Run((), (Step(turn, results), Step(Completion(parts=(TextPart(text="Done."),)))), "stop")
    html = re.sub("</?span[^>]*>", "", run._repr_html_())
    order = ["at&quot;: 0", "seen 0", "at&quot;: 1", "at&quot;: 2", "seen 2", "Done."]
    assert [html.index(text) for text in order] == sorted(html.index(text) for text in order)


def test_formulas_are_typeset_and_money_is_not() -> None:
    """A front end with MathJax typesets what the class lets it, and the delimiters come through Markdown whole."""

    def formulas(text: str) -> list[str]:
        return re.findall('<span class="mathjax_process">(.*?)</span>', markdown_html(text), re.DOTALL)

    assert formulas("so $x_1 * y_2$, \\(a_1 * b_2\\), \\[\nx < 1\n\\] and $$y^2$$") == [
        "$x_1 * y_2$", "\\(a_1 * b_2\\)", "\\[\nx &lt; 1\n\\]", "$$y^2$$",
    ]  # fmt: skip
    for money in (
        "$5 here and $10 there",
        "from $5 to $10",
        "$5-$10",
        "\\$5$ a",
        "a `$x$` b",
        "    $x$",
        "$ x $",
        "$$",
    ):
        assert formulas(money) == [], money
    assert "mathjax_ignore" in Completion(parts=(TextPart(text="$5"),))._repr_html_()


def test_code_scrolls_and_cells_stand_where_markdown_says() -> None:
    html = markdown_html("```python\na < b\n```\n\n| a | b |\n|---|--:|\n| c | d |")
    assert re.search('<pre style="white-space:pre;overflow-x:auto[^>]*><code[^>]*>a &lt; b\n</code></pre>', html)
    assert re.findall("text-align:(\\w+)", html) == ["left", "right", "left", "right"]


def shown(record: Any) -> str:
    """What a notebook shows of it."""
    return record._repr_html_()


def plain(html: str) -> str:
    """The text of a page, without its tags."""
    return unescape(re.sub("<[^>]*>", "", html.replace("<br>", "\n")))


def json_value(seeded: random.Random, depth: int = 0) -> object:
    match seeded.randrange(7 if depth < 5 else 4):
        case 0:
            return seeded.random() * 10.0 ** seeded.randint(-20, 20)
        case 1:
            return seeded.choice([None, True, 12, -0.0])
        case 2 | 3:
            return "".join(seeded.choices('ab"\\{}[],: \n<\u202e\x1b', k=seeded.randrange(40)))
        case 4 | 5:
            return [json_value(seeded, depth + 1) for _ in range(seeded.randrange(6))]
        case _:
            return {f'{number}"{{': json_value(seeded, depth + 1) for number in range(seeded.randrange(6))}


def test_json_is_laid_out_and_stays_what_it_was() -> None:
    seeded = random.Random(2)
    for _ in range(2000):
        value = [json_value(seeded), json_value(seeded)]
        shown = laid_out(dumps(value, ensure_ascii=False, indent=seeded.choice([None, 1])))
        assert shown is not None
        assert loads(shown) == value
        assert plain(coloured(visible_json(shown), "json")) == visible_json(shown)
    assert laid_out('{"a": [1, 2.50e3, 3], "b": "%s", "c": {"d": []}}' % ("x" * 60)) == (
        '{\n  "a": [1, 2.50e3, 3],\n  "b": "%s",\n  "c": {\n    "d": []\n  }\n}' % ("x" * 60)
    )
    assert laid_out('{"a": 1}') == '{"a": 1}'
    for other in ("", "12 degrees", '{"a": 1', "[" * 20_000, '"text"'):
        assert laid_out(other) is None


def test_long_json_is_folded_and_has_a_button_that_copies_it() -> None:
    def card(arguments: object) -> str:
        return Completion(parts=(ToolCall(name="look", arguments=dumps(arguments)),))._repr_html_()

    long = {f"key {number}": "x" * 30 for number in range(20)}
    html = card(long)
    assert "<details><summary" in html
    assert "22 lines: " in html
    (button,) = re.findall("<input[^>]*><div[^>]*>(.*?)</div>", html)
    assert loads(plain(button)) == long
    assert "<details>" not in card({"a": 1})
    assert "<input" not in card({"a": 1})


@pytest.mark.parametrize(
    "language", ["python", "js", "ts", "html", "css", "sh", "sql", "cpp", "rust", "go", "yaml", "rb"]
)
def test_code_is_coloured_and_stays_what_it_was_soon(language: str) -> None:
    """Some lexers are quadratic in hostile code: a page of 30,000 characters must not hold a kernel up."""
    code = "if x < 1: # \"a\"\n  return f('b') // 12\n"
    assert "<span style=" in coloured(code, language)
    assert plain(coloured(code, language)) == code
    units = [
        '"',
        "'",
        "\\",
        "<",
        "<a ",
        "/*",
        "`",
        "$",
        "${",
        "=",
        "a=",
        "(",
        "{",
        "[",
        "&",
        "a.b",
        '"a\\',
        "a b ",
        "@",
        "%w{",
    ]
    began = time.process_time()
    for unit in units:
        assert plain(coloured((unit * 4000)[:4000], language)) == (unit * 4000)[:4000]
    assert time.process_time() - began < 10
    assert coloured("x" * 4001, language) == "x" * 4001
    assert coloured(code, "no language") == coloured(code, "")


def test_a_call_is_one_card_with_its_result_its_time_and_its_picture() -> None:
    picture = Image(np.zeros((4, 6, 3), np.uint8))
    call = ToolCall(name="plot", arguments='{"of": "rain"}')
    parts = (TextPart(text="Here."), ImagePart(image=picture))
    result = ToolResult(0, "1", "Here.[image 6x4]", parts=parts, ran=(0.1, 0.43))
    run = Run((Message(role="user", content="Rain?"),), (Step(Completion(parts=(call,)), (result,)),), "stop")
    asked, called = run._blocks()
    card = block_html(called)
    assert card.index("rain") < card.index("<b>result</b>") < card.index("0.33 s") < card.index(picture.data_url())
    assert card in run._repr_html_()
    assert "Rain?" in block_html(asked)
    assert result.seconds == pytest.approx(0.33)
    assert block_html(called).count("image 6x4") == 2, "its caption, and what is read in place of it"
    assert page_text(run._blocks()).count("[image 6x4]") == 1
    only = block_html(result_block("[image 6x4]", parts, failed=False, seconds=0.0001))
    assert "under 1 ms" in only
    assert _value_of(only) == ""
    assert "```text\n\n```" not in run._repr_markdown_()
    assert page_text(run._blocks()).startswith("user: Rain?\n")


def _value_of(card: str) -> str:
    """The text of a result's card, without its heading and its picture."""
    return re.sub(r"<div><b>result</b>.*?</div>|<div><img.*?</div>|<[^>]+>", "", card)


def answered(value: object) -> str:
    """The HTML of an answer whose parsed value this is."""
    answer = Completion[Any](parts=(TextPart(text="\n" + dumps(value)),), parsed=value)
    return answer._repr_html_()  # pyright: ignore[reportPrivateUsage]


def test_a_structured_answer_shows_its_fields_as_a_table() -> None:
    shown = answered({"name": "Ann <b>", "total": 10.5, "paid": True, "tags": ["a", "ä"]})
    assert shown.count("<tr>") == 4
    for text in (">name<", ">Ann &lt;b&gt;<", ">10.5<", ">true<", ">[&quot;a&quot;, &quot;ä&quot;]<"):
        assert text in shown
    rows = answered([{"city": "Rome", "n": 1}, {"city": "Oslo", "m": None}])
    assert [rows.count(f">{text}<") for text in ("city", "n", "m", "Rome", "Oslo", "null")] == [1] * 6
    assert "5 further rows" in answered([{"n": number} for number in range(205)])
    others: list[object] = [{}, [], [{}], [1, {"a": 1}], 7, "word", [[1]]]
    for other in others:
        assert "<table" not in answered(other)
    assert "<table" not in Completion(parts=(TextPart(text='{"a": 1}'),))._repr_html_()  # pyright: ignore[reportPrivateUsage]


def test_a_timeline_shows_what_ran_when() -> None:
    usage = Usage(completion_tokens=7, time_to_first_token=0.5, decode_seconds=0.5)
    calls = tuple(ToolCall(name=f"tool{number}") for number in range(2))
    results = (ToolResult(0, "", "", ran=(0.0, 1.0)), ToolResult(1, "", "", ran=(0.0, 0.5)))
    run = Run((), (Step(Completion(parts=calls, usage=usage), results), Step(Completion(usage=usage))), "stop")
    assert [(span.label, span.begin, span.middle, span.end) for span in run._spans()] == [
        ("turn 1", 0.0, 0.5, 1.0),
        ("tool0", 1.0, 1.0, 2.0),
        ("tool1", 1.0, 1.0, 1.5),
        ("turn 2", 2.0, 2.5, 3.0),
    ]
    html = run._repr_html_()
    assert re.findall(r"margin-left:([\d.]+)%", html) == ["0.0", "33.3", "33.3", "66.7"]
    assert "7\xa0tokens" in html
    assert "<table" not in Run((), (), "cancelled")._repr_html_()


def test_a_run_times_its_tools() -> None:
    async def slow() -> str:
        """Wait."""
        await asyncio.sleep(1)
        return "done"

    def fast() -> str:
        """Return."""
        return "done"

    with scripted([said("slow", "slow", "fast", "none"), "Done."]) as llm:
        run = asyncio.run(llm.arun("Go.", tools=[slow, fast], reasoning=False))
    first, second, third, refused = run.steps[0].results
    assert 1 <= (first.seconds or 0) < 10
    assert first.ran is not None
    assert second.ran is not None
    assert second.ran[0] < first.ran[1], "the two ran at once"
    assert 0 <= (third.seconds or 0) < 1
    assert refused.seconds is None


def test_which_limit_cut_an_answer_off() -> None:
    with scripted(lambda _: "word " * 2000, n_ctx=256) as llm:
        few = llm.chat("Go.", reasoning=False, max_tokens=3)
        many = llm.chat("Go.", reasoning=False)
        constrained = llm.chat("Go.", reasoning=False, response_format=Regex("[a-z ]*"))
    assert few.usage
    assert few.usage.limit == "max_tokens"
    assert "cut off at 3 tokens, the most allowed (max_tokens)" in few._repr_html_()
    for long in (many, constrained):
        assert long.usage
        assert long.usage.limit == "context"
        assert "the end of the context (n_ctx)" in long._repr_html_()
    assert "or the end of the context" in Completion(finish_reason="length")._repr_html_(), "of another server"


def test_answers_are_a_list_that_shows_itself_as_a_table() -> None:
    with scripted(lambda prompt: "One." if "first" in prompt else "Two.") as llm:
        answers = llm.generate(["first", "second"], reasoning=False)
        waited = asyncio.run(llm.agenerate(["first", "second"], reasoning=False))
    assert isinstance(answers, Answers)
    assert answers == list(answers)
    assert pickle.loads(pickle.dumps(answers)) == answers
    assert [each.content for each in waited if isinstance(each, Completion)] == ["One.", "Two."]
    html = Answers([*answers, RequestError("no <b>way</b>")])._repr_html_()
    assert html.count("<tr>") == 4
    assert "RequestError" in html
    assert "no &lt;b&gt;way" in html
    assert "calls" not in html, "no answer has any"
    assert ">answer<" in html
    assert "1,900 more" in Answers([answers[0]] * 2000)._repr_html_()


def test_log_probabilities_are_a_text_in_which_the_unlikely_stands_out(builtin_model_path: Path) -> None:
    with Engine.load(str(builtin_model_path), n_ctx=512, preflight=False) as llm:
        completion = llm.chat("Hello!", logprobs=2, temperature=0, reasoning=False, max_tokens=5)
    html = shown(completion.logprobs)
    assert plain(html) == "".join(each.text for each in completion.logprobs)
    assert f"{math.exp(completion.logprobs[0].logprob):.1%}; " in html
    assert html in completion._repr_html_()
    made = TokenLogprob(token=1, text="x", bytes=(120,), logprob=-math.inf)
    assert "rgba(226,53,53,0.55)" in Logprobs([made])._repr_html_()


def test_histories_and_counts_show_themselves() -> None:
    with scripted([said('add {"a": 1}'), "It is **3**.", "Fine."]) as llm:
        run = llm.run("How many?", tools=[add], reasoning=False)
        conversation = llm.conversation()
        conversation.chat("Hello!", reasoning=False)
        assert "prompt tokens" in llm.metrics._repr_html_()
        assert "3 stop" not in llm.metrics._repr_html_()
        assert "2 stop, 1 tool_calls" in llm.metrics._repr_html_()
        mean = seconds_text(llm.metrics.time_to_first_token / 3)
        assert re.search(rf">time to first token</th><td[^>]*>{mean}<", llm.metrics._repr_html_())
    history = plain(shown(run.messages))
    assert re.findall("user|assistant|tool|How many|result add|It is 3", history) == [
        "user", "How many", "assistant", "tool", "result add", "assistant", "It is 3",
    ]  # fmt: skip
    assert run.messages == tuple(run.messages)
    assert shown(conversation.messages) == shown(conversation)
    assert "Fine." in conversation._repr_html_()


def add(a: int) -> int:
    """Add two."""
    return a + 2


def engine(*replies: str) -> Engine:
    return scripted(replies)


def test_engine_stream_and_run_have_short_reprs() -> None:
    with engine("One.", "Two.", "Three.") as llm:
        assert repr(llm) == "<Engine a backend without a file (Qwen3), n_ctx=4096>"
        assert "<th" in llm._repr_html_()
        assert "4,096 tokens a conversation" in llm._repr_html_()
        assert live_markdown(llm._repr_markdown_()) == []
        stream = llm.stream("Hello", reasoning=False)
        assert repr(stream) == "<Stream: not over, 0 events read>"
        stream.result()
        assert repr(stream) == "<Stream: stop, content='One.'>"
        run = llm.stream_run("Hello", reasoning=False)
        assert repr(run) == "<RunStream: not over, 0 steps complete>"
        run.result()
        assert repr(run) == "<RunStream: stop, 1 step complete>"
        assert asyncio.run(finished(llm)) == "<Stream: stop, content='Three.'>"
    assert repr(llm) == "<Engine a backend without a file (Qwen3), n_ctx=4096, closed>"
    assert "closed: load it again" in llm._repr_html_()


def test_a_completion_has_a_short_repr_and_prints_its_text() -> None:
    call = ToolCall(id="call_1", name="look", arguments="{}")
    parts = (ReasoningPart(text="Hm. " * 1000), TextPart(text="Yes."), call)
    turn = Completion(parts=parts, finish_reason="tool_calls", usage=Usage(completion_tokens=9))
    assert repr(turn).startswith("Completion(finish_reason='tool_calls', reasoning='Hm. Hm. ")
    assert repr(turn).endswith("content='Yes.', tool_calls=['look'], completion_tokens=9)")
    assert len(repr(turn)) < 300
    assert str(turn) == turn.text == "Yes."
    assert str(Completion(parts=(call,))) == repr(Completion(parts=(call,))), "a call has no text"


def test_a_conversation_shows_its_newest_turn() -> None:
    with ScriptedEngine(["Good day.", "Bye."]) as llm:
        talk = llm.conversation()
        assert repr(talk) == "<Conversation: 0 messages>"
        talk.chat("Hello!")
        assert repr(talk) == "<Conversation: 2 messages, the newest 'Good day.'>"
        assert "Good day." in talk._repr_html_()  # pyright: ignore[reportPrivateUsage]


def test_a_run_has_its_answer_as_output_and_prints_it() -> None:
    with ScriptedEngine(["Good day.", '{"n": 3}']) as llm:
        run = llm.run("Hello!")
        assert (str(run), run.output, run.content) == ("Good day.", "Good day.", "Good day.")
        assert llm.run("A number?", response_format=JsonSchema({"type": "object"})).output == {"n": 3}


async def finished(llm: Engine) -> str:
    stream = await llm.astream("Hello", reasoning=False)
    await stream
    return repr(stream)


def test_explanation_and_inspection(builtin_model_path: object) -> None:
    with Engine.load(str(builtin_model_path), n_ctx=512) as llm:
        hostile = "\n".join(text.encode(errors="replace").decode() for text in HOSTILE)[:400]
        explained = llm.explain(hostile, output=hostile)
        assert live(explained._repr_html_()) == []
        assert live_markdown(explained._repr_markdown_()) == []
        assert "caller" in explained._repr_html_()
        assert len(repr(explained)) < 100
        inspected = llm.inspect()
        assert live(inspected._repr_html_()) == []
        assert live_markdown(inspected._repr_markdown_()) == []
        assert inspected.family in inspected._repr_html_()
        assert len(repr(inspected)) < 100
        assert str(builtin_model_path) in llm._repr_html_()
