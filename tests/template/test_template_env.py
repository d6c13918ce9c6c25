"""The template environment: what Hugging Face's offers, and what no template may do."""

import datetime as dt
import time

import pytest

from engine.errors import TemplateError
from engine.template.env import Template


def render(source: str, **values: object) -> str:
    return Template(source, lambda: dt.datetime(2026, 11, 21, 3, 4, tzinfo=dt.UTC)).render(values)


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
        ("{{ strftime_now('%d %b %Y') }}", "21 Nov 2026"),
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
    ],
)
def test_complaints_say_what_to_do(source: str, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert words in str(caught.value)


def test_an_object_is_no_template_value() -> None:
    with pytest.raises(TemplateError, match="this is a object"):
        render("{{ x }}", x=object())


HOSTILE = {
    "attribute digging": "{{ ''.__class__.__mro__ }}",
    "attribute digging by filter": "{{ (''|attr('__class__')).__mro__ }}",
    "function internals": "{{ raise_exception.__globals__.x }}",
    "format digging": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format_map digging": "{{ '{a.__class__.__init__.x.y}'.format_map({'a': 1}) }}",
    "namespace internals": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "namespace internals by keyword": "{{ namespace(**{'__init__': 1}) }}",
    "input changed": "{{ x.update({'a': 1}) }}",
    "lipsum": "{{ lipsum(1000000) }}",
    "endless loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "endless loop over a growing list": "{% set l = [1] %}{% for a in l %}{% set _ = l.append(1) %}{% endfor %}",
    "exponential macros": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "times": "{{ 'x' * 2000000000 }}",
    "list times": "{{ [1] * 2000000000 }}",
    "power": "{{ 10 ** 1000000000 }}",
    "power of powers": "{{ 9 ** (9 ** 9) }}",
    "numbers": ("{% set n = namespace(a=2) %}{% for i in range(99) %}{% set n.a = n.a * n.a %}{% endfor %}{{ n.a }}"),
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "percent filter": "{{ '%1000000000d' | format(1) }}",
    "brace width": "{{ '{:1000000000}'.format(1) }}",
    "computed brace width": "{{ '{:{}}'.format(1, 1000000000) }}",
    "center": "{{ 'x' | center(1000000000) }}",
    "center method": "{{ 'x'.center(1000000000) }}",
    "center by keyword": "{{ 'x' | center(width=1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "zfill": "{{ 'x'.zfill(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "indent": "{{ 'x\nx' | indent(1000000000) }}",
    "indent by text": "{{ ('x\n' * 9999) | indent('y' * 9999) }}",
    "tojson indent": "{{ [[1]] | tojson(indent=1000000000) }}",
    "batch": "{{ [1] | batch(1000000000, 2) | list }}",
    "slice": "{{ [1] | slice(1000000000) | list }}",
    "round": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "replace": "{{ ('x' * 3000) | replace('x', 'y' * 3000) }}",
    "replace method": "{{ ('x' * 3000).replace('x', 'y' * 3000) }}",
    "replace nothing": "{{ ('x' * 3000).replace('', 'y' * 3000) }}",
    "join": "{{ ('x' * 3000) | join('y' * 3000) }}",
    "join method": "{{ ('y' * 3000).join(['x'] * 3000) }}",
    "join generator": "{{ range(99999) | map('string') | join('y' * 99999) }}",
    "translate": "{{ 'x'.translate({120: 'y' * 9999}) }}",
    "growing text": (
        "{% set n = namespace(t='x') %}{% for i in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}{{ n.t }}"
    ),
    "growing by plus": (
        "{% set n = namespace(t='x') %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}{{ n.t }}"
    ),
    "growing list": (
        "{% set n = namespace(t=[1]) %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}{{ n.t }}"
    ),
    "much output": "{% for i in range(90000) %}{{ 'x' * 999 }}{% endfor %}",
    "laughs printed": (
        "{% set n = namespace(t=['x']) %}{% for i in range(60) %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.t }}"
    ),
    "laughs as JSON": (
        "{% set n = namespace(t=['x']) %}{% for i in range(60) %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.t | "
        "tojson }}"
    ),
    "laughs compared": (
        "{% set n = namespace(t=['x'], u=['x']) %}{% for i in range(60) %}{% set n.t = [n.t, n.t] %}"
        "{% set n.u = [n.u, n.u] %}{% endfor %}{{ n.t == n.u }}"
    ),
    "laughs summed": "{{ ([[1] * 9999] * 9999) | sum(start=[]) | length }}",
    "string of a number": "{{ ((2 ** 4000) ** 2) | string }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name: str) -> None:
    began = time.monotonic()
    with pytest.raises(TemplateError):
        render(HOSTILE[name], x={})
    assert time.monotonic() - began < 60, "a generous bound: what is not stopped takes for ever"


def test_the_budget_grows_with_the_input() -> None:
    long = "x" * 3_000_000
    assert len(render("{% for m in messages %}{{ '<' ~ m ~ '>' }}{% endfor %}", messages=[long] * 4)) == 12_000_008


def test_many_messages_are_no_offence() -> None:
    messages = [{"role": "user", "content": "text " * 20}] * 3000
    source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content | trim ~ '\n' }}{% endif %}{% endfor %}"
    assert render(source, messages=messages).count("\n") == 3000
