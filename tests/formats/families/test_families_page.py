"""docs/reference/families.md is models.toml in words. Run as a script, this writes it."""

import re
from pathlib import Path

import pytest

from engine import ChatTemplate, Engine
from engine.cli import main
from engine.formats.families import (
    Families,
    Family,
    TaggedJsonSyntax,
    builtin_families,
)
from engine.formats.families.detect import tables_of
from engine.testing.scripted import ByteVocab, ScriptedBackend

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "families.md"
TITLE = """# Model families

## Models by name

A model that is not here works, too: its format is derived from its chat template, and `llama-engine inspect FILE` says
how. *Thinking*: what `reasoning=` takes; "always" has no switch. Calls are in the model's own format; families with a
star have none, and write JSON where a call is asked for. A row with a dagger was written from descriptions,
since no template of the family was there to check it. `llama-engine families show NAME` prints what a row says:
markers, switches, what earlier reasoning the next prompt shows. The table is made from `models.toml`
(`python tests/formats/families/test_families_page.py`), and a test compares the two.

| models | thinking | family |
|---|---|---|
"""
HEAD = """
## Add a family

A family is a row of a TOML file: how its models mark the start and end of a turn, reasoning and tool calls. Markers are
literals, with the white space that the model's chat template writes beside them. `models.toml` has the rows that come
with the package, and a file of your own adds more.

First see what the engine makes of a model without one: `llama-engine inspect model.gguf` names the family and why
(`content-only`: none was recognised); `llama-engine explain` shows what each piece of an output is taken for.

Say a model called Fable reasons between `[[reason]]` and `[[/reason]]`, and calls a function `x` as
`<fn name="x">{json}</fn>`. Its chat template is `fable.jinja`:

```jinja title="fable.jinja"
{%- if tools %}<|system|>Call a function as <fn name="x">{json}</fn>. You have:
{% for tool in tools %}{{ tool.function | tojson }}
{% endfor %}<|end|>
{% endif %}
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.reasoning_content %}[[reason]]{{ message.reasoning_content }}[[/reason]]{% endif %}
{{- message.content or "" }}
{%- for call in message.tool_calls or [] -%}
<fn name="{{ call.function.name }}">{{ call.function.arguments | tojson }}</fn>
{%- endfor %}<|end|>
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
```

This is the whole row, in `fable.toml`:

```toml title="fable.toml"
[family.fable]
title = "Fable"
verified = "fable.jinja"
like = ["plain", "think"]
detect.template = ["[[reason]]", "<fn name="]
format.start = "<|assistant|>"
format.stops = ["<|end|>"]
format.reasoning = { open = "[[reason]]", close = "[[/reason]]", history = "all", fields = ["reasoning_content"] }
format.tools = { shape = "tagged_json", call = ['<fn name="', "</fn>"], name_end = '">' }
```

Check it:

```sh
llama-engine families check fable.toml --template fable.jinja
```

This names every mistake at once, with its line, and shows where each field comes from. Then it writes turns as the row
says, renders them with the template, and tells which are read back. The exit code is 1 if one is not.

Use it on the command line (`--family fable.toml`), or in Python. Families of your own are asked first; the first row
whose texts all occur in a model's chat template is its family:

```python
from engine import ChatTemplate, Engine, Families, Parser, fold
from engine.formats.families import builtin_families

families = builtin_families().extended(Families.load("fable.toml"))
with open("fable.jinja") as file:
    print(ChatTemplate(file.read(), family=families).family.title)  # found by its template
parser = Parser(families.get("fable"))
events = parser.feed('[[reason]]I look.[[/reason]]<fn name="look">{"city": "Oslo"}</fn>')
completion = fold([*events, *parser.close()])
print(completion.reasoning, [(call.name, call.arguments) for call in completion.tool_calls])
llm = Engine.load(family=families.get("fable"))  # whatever its template
llm.close()
```
```text
Fable
I look. [('look', '{"city": "Oslo"}')]
```

**`like`** takes over what other rows say: families (less their `detect`) and bases, a later one in the list over an
earlier one. What the row says itself wins. A row that is like its own name changes a shipped family. The bases are
`plain` (no markers that exist as tokens only, nothing that changes in history), `chatml` (turns between
`<|im_start|>` and `<|im_end|>`), `think` (reasoning in `<think>` at the start of a turn, no switch), `hermes-calls`
(JSON in `<tool_call>`), `coder-calls` (elements in `<tool_call>`, as Qwen3-Coder's) and `glm-calls` (pairs of
`<arg_key>` and `<arg_value>` in `<tool_call>`). A file may have bases of its own, as tables `[base.<name>]`.
`llama-engine families show NAME` prints a family with everything it takes over.

**`respell`** replaces text in all markers, for a family that only spells another's markers differently:

```toml title="parrot.toml"
[family.parrot]
title = "Parrot"
verified = "its own template, by hand"
like = "qwen3"
respell = [["tool_call", "parrot_call"]]
detect.template = ["<parrot_call>"]
format.reasoning = { gate = "not applicable", off = "close" }

[family.qwen3]
like = "qwen3"
format.stops = ["<|im_end|>", "<|endoftext|>"]
```

**Every decision must be stated**, by the row or by what it is like: a value that is right by default is right by
accident. `"not applicable"` is a value. `engine/formats/families/schema.py` documents every key. A call's `shape` is
`json` (JSON with the name in it), `tagged_json` (a name in markup, JSON arguments), `tagged_args` (name and arguments
in markup), `pythonic` (a call in Python), `dictionary` (bare keys) or `nested` (an element for each argument).

The same records can be made in Python: `Families([Family(name=.., title=.., verified=.., detect=Detect(..),
format=Format(..))])`; a single `Family` or `Format` may be given as `family=` too.

A contribution is a row in `models.toml`, a file of literal outputs in `tests/golden/` and, only where the GGUF's own
template is absent or wrong, a template in `templates/`. The tests write the usual turns
(`tests/helpers/cases/canonical.py`) in the new format by themselves. The file has, as `[[written]]`, a few of those
turns as the family spells them, copied from its template or its models, which check that writing; and, as `[[case]]`,
what only this family's models write, with what it means: malformed arguments, mistakes, other spellings. A new *shape*
of calls is the only thing that needs Python: a module in `engine/formats/parsing/shapes/`, and a function in
`tests/helpers/cases/writer.py`.

## A model's own response template

Authors can state the output's format themselves: Hugging Face's `response_template`, a dictionary in
`tokenizer_config.json`. It is converted into a `Format`, so that the same parser reads it, streams and constraints
included. Fable's says as much as its row:

```json title="fable.json"
{
  "start_anchor": "<|assistant|>",
  "fields": {
    "reasoning_content": {"open": "[[reason]]", "close": "[[/reason]]"},
    "tool_calls": {
      "open_pattern": "<fn name=\\"(?P<name>[^\\"]+)\\">",
      "close": "</fn>",
      "repeats": true,
      "content": "json",
      "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
    },
    "content": {"close": "<|end|>"}
  }
}
```

Where the format of an output comes from, first to last:

1. the caller: `family=`, or `response_template=` (a dictionary, a JSON file or a tokenizer_config.json;
   `--set response_template=FILE` on the command line), but not both;
2. a row of `models.toml`, or of your own file, that recognises the chat template;
3. the response template of a model that is loaded by its name on the Hub: from its repository, otherwise from that of
   the base model which the file names. Both are kept in the Hub's cache, and none is not an error;
4. what the chat template's own renders show.

A response template is compared with the row, or with what was rendered, over turns that the chat template writes. A row
wins over one from the Hub; one from the Hub that does not read those turns back is not used. The caller's is used in
any case, and an `EngineWarning` tells what it reads otherwise. `llama-engine inspect` and `llama-engine families check
FILE --template FILE --response-template FILE` tell the differences too.

```python
import engine

families = engine.Families.load("fable.toml")
with open("fable.jinja") as file:
    template = engine.ChatTemplate(file.read(), family=families, response_template="fable.json")
print(template.detection.response_template)
```
```text
it is used, and reads the chat template's own turns
```

What it does not say is taken from the row or the renders: how reasoning is switched and fed back, white space beside
marks. Patterns are read as marks and never run. What a format cannot express is refused by name (other fields than
content, tool calls and reasoning; `kv-lines`, `merge_duplicates`; marks that may be any text): a `FamilyError` if the
caller gave it, left out and told if it is from the Hub. `defaults` and `optional` change nothing.

## Special cases

- Muse Spark has no row, since no weights of it are known to be published. Its messages to `self`, to `user` and to a
  tool, with `<atem:..>` calls, are described as those of `muse-glimmer`.
- MiroThinker was trained on prompts of its own agent, which state tools with their servers. If a file's chat template
  does not, give `family="mirothinker"` and such a `chat_template=`. A tool may be declared as `server_name`, which is
  split in the prompt; otherwise the server that a call names is left out.
- The formats of K2 Horizon and LongCat are known, but the pinned llama.cpp does not have their architectures.

## When small models break the format

A call runs only if it stands in its wrapper, names a declared tool and is whole. Markup of a call in reasoning that
nothing has closed yet is held: a marker that closes reasoning makes it a draft, and it stays reasoning; otherwise text
behind it is the answer. Without its wrapper, a whole call of a declared tool counts in reasoning only as the last thing
of an output that nothing cut. Where calls end reasoning (`families show` says it), a whole call counts at once,
elsewhere only if nothing but calls follows. A call that a quote cuts short, or that gives a key twice, is malformed.

In its wrapper, a call in JSON names a tool and has one object of arguments, under the family's key or one that models
use for it (`arguments`, `parameters`, `args`, `input`, `params`, `kwargs`, `tool_input`, in any case). A second object,
or a value under any other key, makes it malformed, with that text in it: nothing is left out unsaid. Without a wrapper,
JSON is a call only if it has just these keys and ids, is whole, fits, and no prose goes on behind it; under an answer's
format only in the family's own form. A family that writes no markers passes arguments on as they come: what turns out
to be no call then ends as a malformed one. Where a call is demanded, its name decides.

A call that a text quotes (between backticks, or in a fence that does not begin the answer) is text, in reasoning as in
content, also where its marker is one token. A name that the output breaks off in is never run: it may be the beginning
of another.

A value is never run: a string is not over at a marker, and a whole call inside a value is text of it. Behind a string
that was never closed no call of the turn runs; they are malformed. In a value written without escapes, a closing mark
that nothing in it opens is the end of the call. (`python benchmarks/markup_values.py`: 40,000 calls with markup in a
value, 0 run that were not meant, 0 lost.)

`python benchmarks/fuzz.py --small-models` spoils the calls of all families in fifteen ways. Of 12,469 outputs none lost
text, 7 showed markup beside a right call, and 5 ran a call that was not meant: calls in JSON that no marker ends
(GigaChat 3 and 3.1, Granite 20B, Llama 3), where an unescaped `"}}` inside a string cannot always be told from the end.
"""
DECISIONS = """
## What requests decide

`llama-engine families show NAME` prints what a family's row says, with all that it takes over: what `reasoning=False`
does (`off`), what the prompt does behind a tool result while reasoning is on (`after_result`), whether call markup in
reasoning ends it or is quoted text (`ends_on_call`), what becomes of an opening marker that the model writes although
the prompt closed reasoning (`when_closed`), the texts that end a turn (`stops`), and markers that are matched only as
tokens, where the vocabulary has them (`control`). Reasoning is never constrained; a demanded call is, in the family's
own syntax or, where it has none, the generic one.
"""


def by_name(family: Family) -> str:
    """The row of a family for whoever looks for a model."""
    syntax = family.format.reasoning
    gate = syntax.gate if syntax else None
    values = [] if gate is None else [name for name in ("low", "medium", "high") if getattr(gate, name) is not None]
    off = syntax is not None and (gate.off is not None if gate else syntax.off in ("gate", "close"))
    thinks = syntax is not None and (gate is not None or syntax.off != "nothing")
    switched = ", ".join([*(["off"] if off else []), *(values or ["on"])])
    told = "no" if not thinks else switched if off or values else "always"
    star = "" if family.format.tools or family.format.channels else "*"
    dagger = "†" if family.verified.startswith("unverified") else ""
    return f"| {family.title} | {told} | `{family.name}`{star}{dagger} |\n"


def page() -> str:
    families = [builtin_families().get(name) for name in builtin_families().names()]
    named = sorted(
        (family for family in families if family.verified[:5] != "none:"), key=lambda each: each.title.lower()
    )
    return TITLE + "".join(map(by_name, named)) + HEAD + DECISIONS


def test_the_page_says_what_models_toml_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/reference/families.md is old: python tests/formats/families/test_families_page.py"
    )


def test_each_row_is_one_line_with_its_cells() -> None:
    rows = re.findall(r"^\| .* \| .* \| `(.*)`\*?†? \|$", page(), re.MULTILINE)
    assert len(set(rows)) == len(rows) > 100
    assert set(rows) <= set(builtin_families().names())


def blocks(language: str) -> list[str]:
    """The page's blocks of code in a language."""
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", HEAD, re.MULTILINE | re.DOTALL)


@pytest.fixture
def fable(tmp_path: Path) -> Path:
    """The worked example, as the two files that the page shows."""
    (tmp_path / "fable.jinja").write_text(blocks("jinja")[0], encoding="utf-8")
    path = tmp_path / "fable.toml"
    path.write_text(blocks("toml")[0], encoding="utf-8")
    return path


def test_the_worked_example_has_ten_lines_and_passes_its_check(fable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(fable.read_text(encoding="utf-8").splitlines()) <= 10
    assert main(["families", "check", str(fable), "--template", str(fable.with_suffix(".jinja"))]) == 0
    out = capsys.readouterr().out
    assert "written as the row says, and parsed: 7 of 7 turns come back" in out
    assert "recognised as fable" in out
    assert "rendered by the template, and parsed: 7 of 7 turns come back" in out
    assert re.search(r"format\.reasoning\.off +\"close\" +from think", out)
    assert "left at the default: detect.template_not" in out


def test_the_worked_example_answers_reasons_and_calls(fable: Path) -> None:
    families = builtin_families().extended(Families.load(fable))
    vocab = ByteVocab(["<|assistant|>", "<|user|>"], end=["<|end|>"])
    source = fable.with_suffix(".jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, family=families, control_tokens=vocab.control_tokens)
    said = '[[reason]]I look.[[/reason]]<fn name="look">{"city": "Oslo"}</fn>'
    with Engine.over(ScriptedBackend([said, "It rains."], vocab=vocab), template) as llm:

        def look(city: str) -> str:
            """Look."""
            return f"rain in {city}"

        run = llm.run("Weather?", tools=[look])
    assert run.steps[0].completion.reasoning == "I look."
    assert run.steps[-1].completion.content == "It rains."
    assert [message.content for message in run.messages if message.role == "tool"] == ["rain in Oslo"]


def test_the_example_of_ones_own_families_works(tmp_path: Path) -> None:
    path = tmp_path / "parrot.toml"
    path.write_text(blocks("toml")[1], encoding="utf-8")
    families = builtin_families().extended(Families.load(path))
    parrot, changed = families.get("parrot"), families.get("qwen3")
    assert families.detect("<parrot_call>").family is parrot
    assert parrot.format.tools is not None
    assert parrot.format.tools.section == ("\n<parrot_call>\n", "\n</parrot_call>")
    assert changed.format.stops == ("<|im_end|>", "<|endoftext|>")
    assert changed.detect == builtin_families().get("qwen3").detect


def test_the_response_template_on_the_page_says_what_the_row_says(
    fable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fable.json").write_text(blocks("json")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    example = next(block for block in blocks("python") if "response_template" in block)
    exec(compile(example, "docs/reference/families.md", "exec"), {})
    assert capsys.readouterr().out in blocks("text")
    row = Families.load(fable).get("fable").format
    source = fable.with_suffix(".jinja").read_text(encoding="utf-8")
    stated = ChatTemplate(source, family=Families([]), response_template="fable.json")
    assert isinstance(stated.format.tools, TaggedJsonSyntax)
    assert isinstance(row.tools, TaggedJsonSyntax)
    assert (stated.format.tools.call, stated.format.tools.name_end) == (row.tools.call, row.tools.name_end)
    check = ["families", "check", "fable.toml", "--template", "fable.jinja", "--response-template", "fable.json"]
    assert main(check) == 0
    assert "the response template in fable.json reads the same; the family's row is used" in capsys.readouterr().out


def test_the_page_names_the_bases() -> None:
    told = HEAD.partition("The bases are")[2].partition("A file may have")[0]
    assert re.findall(r"`([\w-]+)`\s\(", told) == list(tables_of().bases())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
