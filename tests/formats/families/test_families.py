"""The truth table: what its loader refuses, how rows inherit, how a model is recognised."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from engine.formats.families import Detect, Families, Family, JsonSyntax, builtin_families, for_vocabulary
from engine.formats.parsing import Parser
from engine.formats.template.chat_template import ChatTemplate
from engine.support.errors import FamilyError
from engine.types.events import fold

OWN = """
[family.mine]
title = "Mine"
verified = "by hand"
like = "qwen3"
respell = [["tool_call", "call"]]

[family.mine.detect]
template = ["<|mine|>"]

[family.mine.format]
reasoning = "not applicable"
"""


NO_REASONING = 'reasoning = "not applicable"'


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(path: Path) -> list[str]:
    """The mistakes that loading a file names, a line each."""
    with pytest.raises(FamilyError) as caught:
        Families.load(path)
    first, *rest = str(caught.value).splitlines()
    if rest:
        assert first == f"{path} has {len(rest)} mistakes:"
    return rest or [first]


def test_a_file_of_ones_own_may_be_like_a_shipped_family(tmp_path: Path) -> None:
    own = Families.load(write(tmp_path, OWN))
    format_ = own.get("mine").format
    assert format_.reasoning is None
    assert format_.tools is not None
    assert format_.tools.section == ("\n<call>\n", "\n</call>")
    text = 'Hi\n<call>\n{"name": "f", "arguments": {}}\n</call>'
    parser = Parser(own.get("mine"))
    completion = fold([*parser.feed(text), *parser.close()])
    assert (completion.content, [call.name for call in completion.tool_calls]) == ("Hi", ["f"])


def test_rows_of_ones_own_win(tmp_path: Path) -> None:
    both = builtin_families().extended(Families.load(write(tmp_path, OWN)))
    assert both.detect("{{ '<|mine|>' }}").family.name == "mine"
    assert both.names()[0] == "mine"
    assert set(both.names()) == {"mine", *builtin_families().names()}


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        (
            'title = "Mine"',
            'title = "Mine"\nshoe_size = 43',
            4,
            "no key `shoe_size`. The keys of this table are like, respell, title",
        ),
        ('template = ["<|mine|>"]', "template = 7", 9, "7 is not a list of texts"),
        (NO_REASONING, "reasoning = { open = 7 }", 12, "7 is not a text"),
        (
            'title = "Mine"\nverified = "by hand"\nlike = "qwen3"\nrespell = [["tool_call", "call"]]',
            "",
            8,
            "`stops` is missing",
        ),
        (NO_REASONING, 'tools = { shape = "round" }', 12, "'round' is not known for `shape`. Write 'json'"),
        (NO_REASONING, 'tools = { shape = "tagged_json", section = ["", ""] }', 12, "needs call"),
    ],
)
def test_mistakes_are_named_by_line(tmp_path: Path, old: str, new: str, line: int, complaint: str) -> None:
    path = write(tmp_path, OWN.replace(old, new))
    told = [mistake for mistake in mistakes(path) if re.search(complaint, mistake)]
    assert told
    assert told[0].startswith(f"{path}:{line}: [family.mine"), told


WHOLE = """\
[family.whole]
title = "Whole"
verified = "by hand"

[family.whole.format]
stops = ["<|end|>"]
control = ["<|end|>"]
continued_end = "not applicable"

[family.whole.format.reasoning]
open = "<think>"
close = "</think>"
gate = "not applicable"
off = "close"
after_result = "free"
when_closed = "separate"
ends_on_call = false
history = "none"
fields = [""]

[family.whole.format.tools]
shape = "json"
section = ["<call>", "</call>"]
"""
DECISIONS = [
    "stops",
    "control",
    "continued_end",
    "gate",
    "off",
    "after_result",
    "when_closed",
    "ends_on_call",
    "history",
    "fields",
]


def test_a_row_of_its_own_loads(tmp_path: Path) -> None:
    format_ = Families.load(write(tmp_path, WHOLE)).get("whole").format
    assert format_.continued_end is None
    assert format_.reasoning is not None
    assert format_.reasoning.gate is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (OWN.replace('[["tool_call", "call"]]', '"call"'), "mine.toml:6: .*a list of pairs"),
        (OWN.replace('[["tool_call", "call"]]', '[["", "call"]]'), "mine.toml:6: .*a list of pairs"),
        (OWN.replace('like = "qwen3"', "like = 7"), "mine.toml:5: .*like = 7 is unknown or circular"),
        ("[family]\nmine = 7\n", "holds tables only"),
        ("family = 7\n", "holds tables only"),
        ('[family.mine]\ntitle = "M"\nverified = ""\nformat = 7\n', "mine.toml:4: .*7 is not a table"),
        (WHOLE.replace("[family.whole.format.tools]", "[family.whole.format.tolls]"), "`tools` is missing"),
    ],
)
def test_values_of_another_kind(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(FamilyError, match=complaint):
        Families.load(write(tmp_path, text))


@pytest.mark.parametrize("decision", DECISIONS)
def test_every_decision_must_be_stated(tmp_path: Path, decision: str) -> None:
    lines = WHOLE.splitlines()
    missing = next(number for number, line in enumerate(lines) if line.startswith(f"{decision} = "))
    table = max(number for number, line in enumerate(lines[:missing], 1) if line.startswith("["))
    path = write(tmp_path, "\n".join([*lines[:missing], *lines[missing + 1 :]]))
    with pytest.raises(FamilyError, match=f"`{decision}` is missing") as caught:
        Families.load(path)
    assert str(caught.value).startswith(f"{path}:{table}: [family.whole.format")


def test_reasoning_and_tools_must_be_stated(tmp_path: Path) -> None:
    head, _, rest = WHOLE.partition("[family.whole.format.reasoning]")
    tools = "[family.whole.format.tools]"
    without = head.rstrip() + "\n" + tools + rest.partition(tools)[2]
    with pytest.raises(FamilyError, match=r'`reasoning` is missing.* \(or "not applicable"\)'):
        Families.load(write(tmp_path, without))
    with pytest.raises(FamilyError, match="`tools` is missing"):
        Families.load(write(tmp_path, WHOLE.partition(tools)[0]))
    generic = head.rstrip() + '\nreasoning = "not applicable"\ntools = "generic"\n'
    assert Families.load(write(tmp_path, generic)).get("whole").format.tools is None


@pytest.mark.parametrize(
    ("old", "new", "field", "complaint"),
    [
        ('off = "close"', 'off = "gate"', "off", "belong together"),
        ('gate = "not applicable"', 'gate = { kwarg = "think", off = false }', "off", "belong together"),
        ('gate = "not applicable"', 'gate = { kwarg = "think", default = "off" }', "gate", "needs a value for `on`"),
        ('gate = "not applicable"', 'gate = "no"', "gate", "'no' is not a table"),
        ('close = "</think>"', 'close = "<think>"', "close", "the same text"),
        ('off = "close"', 'off = "close"\nforced_open = true\nimplicit = true', "implicit", "exclude each other"),
        ('history = "none"\nfields = [""]', 'history = "all"\nfields = []', "history", "needs `fields`"),
        ('history = "none"', 'history = "unknown"', "fields", "reads no field"),
        ('after_result = "free"', 'after_result = "maybe"', "after_result", "'opened', 'free' or 'no prompt'"),
        ('control = ["<|end|>"]', 'control = ["<|call|>"]', "control", "no marker holds '<|call|>'"),
        (
            'continued_end = "not applicable"',
            'continued_end = ["<|return|>", "<|end|>"]',
            "continued_end",
            "not one of the stops",
        ),
        ('shape = "json"', 'shape = "json"\nquote = "<q>"', "quote", "shape json has no `quote`"),
        ('verified = "by hand"', 'verified = "by hand"\nsampling = { top_k = 2 }', "sampling", "belong together"),
        (
            'verified = "by hand"',
            'verified = "by hand"\nsampling = { topk = 2 }\nsampling_source = "a card"',
            "sampling",
            "no sampling parameter 'topk'",
        ),
    ],
)
def test_contradictions_name_the_line(tmp_path: Path, old: str, new: str, field: str, complaint: str) -> None:
    text = WHOLE.replace(old, new)
    assert text != WHOLE
    path = write(tmp_path, text)
    with pytest.raises(FamilyError, match=re.escape(complaint)) as caught:
        Families.load(path)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith(f"{field} = "))
    assert str(caught.value).startswith(f"{path}:{line}: [family.whole.")


def test_channels_and_tools_exclude_each_other(tmp_path: Path) -> None:
    like = OWN.replace('like = "qwen3"', 'like = "gpt-oss"').replace(NO_REASONING, "")
    both = like + '[family.mine.format.tools]\nshape = "json"\nsection = ["<a>", "</a>"]\n'
    with pytest.raises(FamilyError, match="exclude each other"):
        Families.load(write(tmp_path, both))
    with pytest.raises(FamilyError, match="belong together: state both"):
        Families.load(write(tmp_path, like.replace("[family.mine.format]", '[family.mine.format]\ntools = "generic"')))
    with pytest.raises(FamilyError, match="belong together: state both"):
        Families.load(write(tmp_path, OWN.replace(NO_REASONING, 'tools = "channels"')))


def test_a_row_like_its_own_name_changes_the_shipped_one(tmp_path: Path) -> None:
    shipped = builtin_families().get("qwen3")
    text = '[family.qwen3]\nlike = "qwen3"\n\n[family.qwen3.format]\nstops = ["<|im_end|>", "<|done|>"]\n'
    changed = builtin_families().extended(Families.load(write(tmp_path, text))).get("qwen3")
    assert changed == shipped.model_copy(
        update={"format": shipped.format.model_copy(update={"stops": ("<|im_end|>", "<|done|>")})}
    )


def test_a_template_finds_its_family_among_ones_own(tmp_path: Path) -> None:
    own = Families.load(write(tmp_path, OWN))
    source = "{{ '<|mine|>' }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    both = builtin_families().extended(own)
    for families in (own, both):
        assert ChatTemplate(source, family=families).family.name == "mine"
        assert ChatTemplate.for_model(source, family=families).family.name == "mine"
    assert ChatTemplate.for_model(None, family=both, architecture="qwen3", name="Qwen3 0.6B").family.name == "qwen3"
    other = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert own.detect(other).family.name == "content-only"


def test_families_made_in_python() -> None:
    shipped = builtin_families().get("qwen3")
    mine = Family(
        name="mine",
        title="Mine",
        verified="by hand",
        detect=Detect(template=("<|mine|>",)),
        format=shipped.format.model_copy(update={"tools": JsonSyntax(shape="json", section=("<call>", "</call>"))}),
    )
    both = builtin_families().extended(Families([mine]))
    assert both.detect("{{ '<|mine|>' }}").family is mine
    parser = Parser(mine)
    completion = fold([*parser.feed('<call>{"name": "f", "arguments": {}}</call>'), *parser.close()])
    assert [call.name for call in completion.tool_calls] == ["f"]
    with pytest.raises(ValidationError, match="Extra inputs"):
        JsonSyntax.model_validate({"shape": "json", "bare": True, "quote": "<q>"})


def test_circles_unknown_names_and_what_is_no_toml(tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match="is unknown or circular"):
        Families.load(write(tmp_path, OWN.replace('like = "qwen3"', 'like = "mine"')))
    with pytest.raises(FamilyError, match="is unknown or circular"):
        Families.load(write(tmp_path, OWN.replace('like = "qwen3"', 'like = "nobody"')))
    with pytest.raises(FamilyError, match="no table `families`"):
        Families.load(write(tmp_path, "[families]\n"))
    with pytest.raises(FamilyError, match="cannot be read as TOML"):
        Families.load(write(tmp_path, "family = ["))
    with pytest.raises(FamilyError, match="cannot be read"):
        Families.load(tmp_path / "absent.toml")
    with pytest.raises(FamilyError, match="no family 'nobody'"):
        builtin_families().get("nobody")


def test_without_a_template_architecture_and_name_decide() -> None:
    families = builtin_families()
    assert families.detect(None, "qwen3", "Qwen3 0.6B").family.name == "qwen3"
    assert families.detect(None, "llama", "Meta Llama 3.1 8B").family.name == "llama-3"
    assert families.detect(None, "gpt-oss", "").family.name == "gpt-oss"
    unknown = families.detect(None, "unheard-of", "x")
    assert unknown.family.name == "content-only"
    assert "no family in models.toml" in unknown.reason
    assert "Qwen3 0.6B" in families.detect(None, "qwen3", "Qwen3 0.6B").reason


def test_a_stop_that_begins_a_section_of_calls_does_not_end_the_turn() -> None:
    giga = builtin_families().get("gigachat-3").format
    assert giga.stops == ("<|message_sep|>",)
    assert giga.final_stops == ()
    hermes = builtin_families().get("hermes").format
    assert hermes.final_stops == hermes.stops != ()


def test_every_mistake_of_a_file_is_in_one_error(tmp_path: Path) -> None:
    """Of every kind, over several rows; one left out of the list fails here."""
    text = """\
[family.fable]
titel = "Fable"
verified = "by hand"
like = ["plain", "think"]
detect.template = "[[reason]]"
format.stops = ["<|end|>"]
format.reasoning.open = ""
format.tools = { shape = "tagged_json", call = ["<fn>", "</fn>"], nameend = ">" }
[family.other]
like = "plane"
[base.mine]
format.reasoning.gate = "no"
[family.third]
title = "Third"
verified = "by hand"
like = ["plain", "think", "mine"]
respell = "a"
format.reasoning.history = "al"
format.tools = { shape = "tagged_args", call = ["<a>", "</a>"], quote = "x", argument = ["<", ">", "."] }
[families.fourth]
"""
    path = write(tmp_path, text)
    wanted = [
        (1, "`title` is missing"),
        (2, "no key `titel`. Did you mean `title`?"),
        (5, "'[[reason]]' is not a list of texts. Write template = [\"[[reason]]\"]"),
        (7, "`open` is empty"),
        (8, "shape tagged_json has no `nameend`. Did you mean `name_end`?"),
        (10, "'plane' is unknown or circular"),
        (12, "'no' is not a table"),
        (17, "respell is a list of pairs"),
        (18, "`stops` is missing"),
        (18, "'al' is not known for `history`"),
        (19, "has 3 texts"),
        (19, "shape tagged_args has no `quote`"),
        (20, "there is no table `families`"),
    ]
    told = mistakes(path)
    for line, complaint in wanted:
        assert any(each.startswith(f"{path}:{line}: ") and complaint in each for each in told), (line, complaint, told)
    assert len(told) == len(wanted)
    numbers = [int(each.split(":")[1]) for each in told]
    assert numbers == sorted(numbers)
    assert len(told) == len(set(told))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('open = "<think>"', 'open = ""', "`open` is empty"),
        ('open = "<think>"', 'open = "\\n"', "`open` is empty"),
        ('close = "</think>"', 'close = " "', "`close` is empty"),
        (
            'shape = "json"\nsection = ["<call>", "</call>"]',
            'shape = "tagged_json"\ncall = ["<c>", "</c>"]',
            "name_end",
        ),
        (
            'shape = "json"\nsection = ["<call>", "</call>"]',
            'shape = "tagged_args"\ncall = ["<c>", "</c>"]\nname_end = ">"\nargument = ["<a>", "</a>"]',
            "needs key_end",
        ),
    ],
)
def test_rows_that_would_lose_reasoning_or_calls_do_not_load(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    assert old in WHOLE
    assert [told for told in mistakes(write(tmp_path, WHOLE.replace(old, new))) if re.search(complaint, told)]


def test_rows_build_on_bases_of_their_file_and_of_the_shipped_one(tmp_path: Path) -> None:
    text = """\
[base.ends]
like = "plain"
format.stops = ["<|over|>"]
format.reasoning = "not applicable"

[base.tagged]
like = "hermes-calls"
respell = [["tool_call", "fn"]]

[family.one]
title = "One"
verified = "by hand"
like = ["ends", "tagged"]

[family.two]
title = "Two"
verified = "by hand"
like = ["chatml", "one"]
format.start = "A:"

[family.three]
like = "qwen3"
title = "Three"
"""
    own = Families.load(write(tmp_path, text))
    one, two, three = (own.get(name).format for name in own.names())
    assert one.stops == two.stops == ("<|over|>",), "a later one in the list wins"
    assert (one.start, two.start) == ("", "A:"), "what the row says itself wins"
    assert one.tools is not None
    assert one.tools.section == ("\n<fn>\n", "\n</fn>")
    assert one.tools == two.tools
    assert three == builtin_families().get("qwen3").format
    assert "ends" not in own.names()


def test_circles_among_bases_are_named(tmp_path: Path) -> None:
    text = '[base.a]\nlike = "b"\n[base.b]\nlike = ["plain", "a"]\n[family.c]\ntitle = "C"\nverified = ""\nlike = "a"\n'
    assert any("is unknown or circular (c -> a -> b -> a)" in told for told in mistakes(write(tmp_path, text)))


@pytest.mark.parametrize("name", ["hunyuan-3", "hunyuan-4"])
def test_a_vocabulary_s_own_suffix_is_part_of_every_marker(name: str) -> None:
    tokens = frozenset({"<think:6124c78e>", "</think:6124c78e>", "<tool_call:6124c78e>"})
    row = for_vocabulary(builtin_families().get(name), tokens)
    text = (
        "So.</think:6124c78e><tool_calls:6124c78e><tool_call:6124c78e>ping</tool_call:6124c78e></tool_calls:6124c78e>"
    )
    parser = Parser(row, "<｜hy_Assistant:6124c78e｜><think:6124c78e>")
    completion = fold([*parser.feed(text), *parser.close()])
    assert (completion.reasoning, completion.content) == ("So.", "")
    assert [call.name for call in completion.tool_calls] == ["ping"]
    assert row.format.stops == ("<｜hy_eos:6124c78e｜>",)
    assert for_vocabulary(row, tokens) is row  # once


def test_a_vocabulary_without_a_suffix_changes_nothing() -> None:
    for row in (builtin_families().get(name) for name in builtin_families().names()):
        assert for_vocabulary(row, {"<think>", "</think>", "<think:a>"}) is row


def test_a_template_s_family_is_spelt_as_its_vocabulary() -> None:
    source = "<｜hy_Assistant｜><arg_key>{% for message in messages %}{{ message.content }}{% endfor %}"
    template = ChatTemplate(source, control_tokens=frozenset({"<think:x1>"}))
    assert template.family.name == "hunyuan-4"
    assert template.format.reasoning is not None
    assert template.format.reasoning.open == "<think:x1>"
    assert "with a suffix" in template.detection.reason


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("dots", "<dots_function_call><invoke name="),
        ("plamo-3", "assistant<|plamo:msg|>"),
        ("hunyuan-4", "<｜hy_Assistant:{}｜> <arg_key:{}>"),
        ("glm-5.3", "<|system|>Reasoning Effort: <|assistant|><arg_key>"),
        ("nanbeige", "<|im_start|>南北阁<think><function=<parameter="),
        ("nanbeige-4", "<|im_start|>南北阁<think></think>reasoning_content<tool_call>"),
        ("trinity-large", "has_reasoning_content render_tool_call(x) <|im_start|>assistant\\n<think>"),
        ("granite-20b-functioncalling", "<|function_call_library|>"),
        ("xlam", "Salesforce xLAM <|im_start|>"),
        ("xlam-llama", "Salesforce xLAM <|start_header_id|><|eot_id|>ipython"),
    ],
)
def test_what_a_template_is_recognised_by(name: str, template: str) -> None:
    """No template of these families is at hand; these texts are what is known of them."""
    assert builtin_families().detect(template).family.name == name
