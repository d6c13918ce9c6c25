"""The template environment: what Hugging Face's offers, and what no template may do."""

import datetime as dt
import random

import pytest
from attacks.attacking import attack, hurry
from attacks.hostile_templates import ATTACKS, late

from engine.formats.template import sandbox
from engine.formats.template.env import Template
from engine.support.errors import TemplateError


def render(source: str, **values: object) -> str:
    """The text, in a child and here."""
    texts = [Template(source, lambda: NOW, trusted=trusted).render(values) for trusted in (False, True)]
    assert texts[0] == texts[1]
    return texts[0]


NOW = dt.datetime(2026, 11, 21, 3, 4, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ x | tojson }}", '{"é": "<b>&\'", "n": [1, null, true]}'),
        ("{{ x | tojson(indent=1) }}", '{\n "é": "<b>&\'",\n "n": [\n  1,\n  null,\n  true\n ]\n}'),
        ("{{ x | tojson(separators=(',', ':'), sort_keys=true) }}", '{"n":[1,null,true],"é":"<b>&\'"}'),
        ("{{ x | tojson(ensure_ascii=true) }}", '{"\\u00e9": "<b>&\'", "n": [1, null, true]}'),
        (
            (
                "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}"
                "{{ i }}{% endfor %}"
            ),
            "013",
        ),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc", "a\n  b\nc"),
        ("{% generation %}{% set y = 2 %}<{{ y }}>{% endgeneration %}{{ y is defined }}", "<2>False"),
        ("{{ strftime_now('%d %b %Y %H:%M %z %Z') }}", "21 Nov 2026 03:04 +0100 CET"),
        ("{% set l = [] %}{% set _ = l.append(1) %}{% set _ = l.insert(0, 2) %}{{ l.pop() }}{{ l }}", "1[2]"),
        ("{{ ('{\"a\": 1}' | from_json).a }}", "1"),
        ("{{ 'a' ~ 1 ~ none ~ missing ~ '<' | safe }}", "a1None<"),
        (
            "{{ '%s and %d' % ('x', 3) }}{{ '{:>4}'.format('r') }}{{ 'x' * 3 }}{{ 2 ** 10 }}{{ [1] + [2] }}",
            "x and 3   rxxx1024[1, 2]",
        ),
        (
            (
                "{% set n = namespace(a=1) %}{% for i in range(3) %}{% set n.a=n.a + i %}{{ loop.length }}{% endfor %}"
                "{{ n.a }}"
            ),
            "3334",
        ),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('a') }}{{ ['b', 'c'] | map('upper') | join('-') }}", "[a]B-C"),
    ],
)
def test_what_templates_use(source: str, expected: str) -> None:
    assert render(source, x={"é": "<b>&'", "n": [1, None, True]}) == expected


def test_inputs_are_copies() -> None:
    given = [1, 2]
    assert render("{% set _ = x.append(3) %}{{ x }}", x=given) == "[1, 2, 3]"
    assert given == [1, 2]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('No, ' ~ 'thanks') }}", "rejects these messages: No, thanks"),
        ("{% if %}", "syntax error at line 1"),
        ("{{ missing.field }}", "'missing' is undefined"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ {'a': missing} | tojson }}", "not JSON serializable"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself without end"),
        ("{% if x %}" * 120 + "{% endif %}" * 120, "cannot be compiled (IndentationError"),
        ("{% macro m(x, x) %}{% endmacro %}", "cannot be compiled (SyntaxError"),
        ("x" * 2_000_000, "has 2,000,000 characters"),
        ("{{ 'x' * 600000 }}", "writes more than 100,"),
        ("{{ 'x' * 3000000000 }}", "takes more memory than a template may"),
    ],
)
def test_complaints_say_what_to_do(source: str, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        Template(source).render({})
    assert words in str(caught.value)


def test_all_engines_of_a_template_share_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own clock and values."""
    compiled: list[str] = []

    class Counted(sandbox.Compiled):
        def __init__(self, source: str) -> None:
            compiled.append(source)
            super().__init__(source)

    monkeypatch.setattr(sandbox, "Compiled", Counted)
    source = "{# shared #}{{ bos_token }}{{ strftime_now('%Y') }}"
    told = [
        Template(source, lambda year=year: dt.datetime(year, 1, 1, tzinfo=dt.UTC), trusted=True).render(
            {"bos_token": f"<{year}>"}
        )
        for year in (2025, 2026)
    ]
    assert told == ["<2025>2025", "<2026>2026"]
    assert compiled == [source]


def sample() -> list[str]:
    """Some hostile templates of each kind; `benchmarks/hostile_templates.py` has them all."""
    chosen = random.Random(20)
    kinds = dict.fromkeys(name.partition("/")[0] for name in ATTACKS)
    return [
        name for kind in kinds for name in chosen.sample([name for name in ATTACKS if name.startswith(f"{kind}/")], 3)
    ]


def test_hostile_templates_cost_this_process_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, 0.3)
    outcomes: set[str] = set()
    for number, name in enumerate(sample()):
        cost = attack(ATTACKS[name] if number % 2 else late(ATTACKS[name]))
        assert not cost.raw, (name, cost)
        assert not cost.loot, (name, cost)
        assert cost.processor_seconds < 5, (name, cost)
        assert cost.bytes < 200 << 20, (name, cost)
        outcomes |= {cost.loaded, cost.rendered}
    assert outcomes >= {"loaded", "refused", "stopped", "rendered"}


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{a.__class__.__init__.x.y}'.format_map({'a': 1}) }}",
        "{{ x.update({'a': 1}) }}",
        "{{ lipsum(1) }}",
        "{{ 'x'.encode() }}",
        "{{ 'x'.translate({120: 'y'}) }}",
        "{{ (1).bit_length() }}",
    ],
)
def test_what_is_not_listed_is_refused(source: str) -> None:
    for trusted in (False, True):
        with pytest.raises(TemplateError):
            Template(source, trusted=trusted).render({"x": {}})


def test_values_that_no_template_can_have() -> None:
    nested: list[object] = []
    cyclic: list[object] = []
    cyclic.append(cyclic)
    for _ in range(5000):
        nested = [nested]
    for trusted in (False, True):
        template = Template("{{ x | tojson }}", trusted=trusted)
        for value, words in ((object(), "this is a object"), (nested, "too deeply"), (cyclic, "too deeply")):
            with pytest.raises(TemplateError, match=words):
                template.render({"x": value})
        with pytest.raises(TemplateError, match="digits"):
            template.render({"x": 10**5000})
        assert template.render({"x": [float("inf"), -0.0, 1e300, "\ud83d", "\ud83d\ude00", {"é": None}]}) == (
            '[Infinity, -0.0, 1e+300, "\ufffd", "\ufffd\ufffd", {"é": null}]'
        )


def test_the_bound_on_the_text_grows_with_the_input() -> None:
    long = "x" * 3_000_000
    assert len(render("{% for m in messages %}{{ '<' ~ m ~ '>' }}{% endfor %}", messages=[long] * 4)) == 12_000_008


def test_many_messages_are_no_offence() -> None:
    messages = [{"role": "user", "content": "text " * 20}] * 3000
    source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content | trim ~ '\n' }}{% endif %}{% endfor %}"
    assert render(source, messages=messages).count("\n") == 3000
