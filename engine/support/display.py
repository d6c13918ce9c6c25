"""Records as HTML, Markdown and short text: plain functions, text in and text out.

The only importer of markdown_it; imported late, as it takes a moment.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from engine.support.colouring import coloured, laid_out

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

BlockKind: TypeAlias = Literal["message", "reasoning", "content", "fields", "call", "result", "media", "notice"]

SHOWN = 100_000
"""The most characters of one block; a longer text is shown by its beginning and end."""
_MARKDOWN = 30_000  # longer text is not rendered, as that takes long, above all for hostile text
_SHORT = 60
_NAME = 24
_UNFOLDED = 8  # lines of JSON that are shown at once
_MOST_ROWS = 200  # of a table of an answer's items
_SHOWN_TAIL = 1000

# Control characters except tab and newline, which could move a cursor; marks that change the direction of the text
# around them, and line separators; invisible tag characters; lone surrogates, which cannot be encoded.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_BOX = "border:1px solid rgba(128,128,128,.4);border-radius:6px;padding:.4em .7em;margin:.4em 0"
_TEXT = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"  # JupyterLab breaks lines inside words
_LONG = f"{_TEXT};max-height:30em;overflow:auto"
_FIXED = "font-family:var(--jp-code-font-family,monospace);margin:.2em 0"
_QUIET = "opacity:.7;font-size:85%"
_PICTURE = "display:block;max-width:100%;max-height:20em"
_BAD = "color:#d44"  # readable on white and on black
_CODE = (
    "white-space:pre;overflow-x:auto;background:rgba(128,128,128,.12);border-radius:6px;padding:.5em 4em .5em .7em;"
    "margin:.4em 0"
)
_PARAGRAPH = "margin:.4em 0"
_LABEL = f"{_QUIET};font-weight:600"
_ASKED = "border-left:3px solid rgba(128,128,128,.4);padding-left:.7em;margin:.4em 0"
_CELL = "text-align:left;vertical-align:top;word-break:normal"
_BAR = "height:.7em;align-self:center;background:var(--jp-brand-color1,var(--vscode-charts-blue,#1977e3))"
_RULE = "border-top:1px solid rgba(128,128,128,.25);margin-top:.3em;padding-top:.3em"
# Reasoning that is being written: its last lines. A page that is replaced ten times a second cannot be unfolded.
_TAIL = f"{_TEXT};{_QUIET};display:flex;flex-direction:column-reverse;line-height:1.5;max-height:6em;overflow:hidden"

# Front ends that typeset mathematics (MathJax) leave alone what has the first class, but for what has the second.
_LITERAL, _MATH = "mathjax_ignore", "mathjax_process"
_DELIMITERS = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$"))
_LONGEST_MATH = 2000
# A formula with any other command is shown as text: front ends have commands that load images, make links, set styles
# and define commands for the whole page, and new ones come.
_DRAWING = frozenset(re.findall("[A-Za-z]+", """
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa varkappa lambda mu nu xi omicron pi varpi
rho varrho sigma varsigma tau upsilon phi varphi chi psi omega digamma Gamma Delta Theta Lambda Xi Pi Sigma Upsilon
Phi Psi Omega aleph beth gimel daleth ell hbar hslash imath jmath wp Re Im partial nabla infty emptyset varnothing sum
prod coprod int iint iiint oint bigcup bigcap bigsqcup bigvee bigwedge bigoplus bigotimes bigodot biguplus frac dfrac
tfrac cfrac binom dbinom tbinom sqrt over atop choose overset underset stackrel limits nolimits substack overline
underline overbrace underbrace overrightarrow overleftarrow widehat widetilde hat tilde bar vec dot ddot dddot acute
grave breve check mathring boxed cancel bcancel xcancel phantom hphantom vphantom smash sin cos tan cot sec csc arcsin
arccos arctan sinh cosh tanh coth exp log ln lg lim limsup liminf max min sup inf arg det dim ker hom gcd deg Pr mod
bmod pmod pod operatorname argmax argmin left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl
Biggr bigm Bigm langle rangle lfloor rfloor lceil rceil lvert rvert lVert rVert vert Vert lbrace rbrace lbrack rbrack
lgroup rgroup backslash times div cdot cdots ldots dots dotsb dotsc dotsm dotsi vdots ddots pm mp ast star circ bullet
oplus ominus otimes oslash odot cup cap sqcup sqcap uplus setminus smallsetminus wedge vee land lor lnot neg amalg
dagger ddagger wr diamond bigcirc triangle bigtriangleup bigtriangledown triangleleft triangleright square Box
blacksquare lozenge le leq leqslant ge geq geqslant lt gt ne neq equiv approx approxeq cong sim simeq propto asymp
doteq prec succ preceq succeq ll gg lll ggg subset supset subseteq supseteq subsetneq supsetneq nsubseteq nsupseteq
sqsubseteq sqsupseteq in ni notin not owns mid nmid parallel nparallel perp vdash dashv models vDash Vdash nvdash
nvDash top bot forall exists nexists because therefore coloneqq eqqcolon triangleq to gets leftarrow rightarrow
leftrightarrow Leftarrow Rightarrow Leftrightarrow longleftarrow longrightarrow longleftrightarrow Longleftarrow
Longrightarrow Longleftrightarrow iff implies impliedby mapsto longmapsto uparrow downarrow updownarrow Uparrow
Downarrow Updownarrow nearrow searrow swarrow nwarrow hookleftarrow hookrightarrow leftharpoonup leftharpoondown
rightharpoonup rightharpoondown rightleftharpoons leadsto rightsquigarrow upharpoonright nleftarrow nrightarrow
nLeftarrow nRightarrow xrightarrow xleftarrow twoheadrightarrow curvearrowright circlearrowleft mathrm mathbf mathit
mathsf mathtt mathbb mathcal mathfrak mathscr mathnormal boldsymbol bm pmb rm bf it sf tt cal frak text textrm textbf
textit textsf texttt textnormal mbox displaystyle textstyle scriptstyle scriptscriptstyle tiny small normalsize large
Large quad qquad enspace enskip thinspace medspace thickspace negthinspace space colon prime backprime angle
measuredangle sphericalangle surd flat natural sharp clubsuit diamondsuit heartsuit spadesuit checkmark degree S P
copyright mathbin mathrel mathop mathord mathopen mathclose mathpunct mathinner hline hfill cr nonumber notag begin
end
"""))  # fmt: skip
_DRAWN = frozenset(re.findall("[A-Za-z]+", """
matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array cases aligned align gathered gather split equation
alignedat multline
"""))  # fmt: skip
"""Commands, and environments, that only draw."""
_COMMAND = re.compile(r"\\([A-Za-z@]+)")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{\s*([^{}]*?)\*?\s*\}")
# It selects what stands behind it, then copies that. A viewer that runs no handlers drops the whole element or leaves a
# button that does nothing; nothing that a model wrote is in it.
COPY = "getSelection().selectAllChildren(this.nextElementSibling);document.execCommand('copy')"
_BUTTON = (
    f'<input type="button" value="copy" title="Copy (in a notebook that is trusted)" onclick="{COPY}" style="'
    "position:absolute;top:.3em;right:.3em;font-size:75%;padding:.1em .5em;opacity:.8;cursor:pointer;border-radius:4px;"
    "border:1px solid rgba(128,128,128,.5);color:inherit;"
    'background:var(--jp-layout-color1,var(--vscode-editor-background,Canvas))">'
)


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a turn for display. `title` is the tool of a call or a result, the role of a message; `failed` marks
    errors; `open` marks the part that is still being written; `picture` is the `data:` URL of a picture made here.
    `seconds` is what a result took. `inside`: the result of a call, the pictures of a result, a message's parts."""

    kind: BlockKind
    text: str
    title: str = ""
    failed: bool = False
    open: bool = False
    picture: str = ""
    seconds: float | None = None
    inside: "tuple[Block, ...]" = ()


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a timeline: what took it, how much that did, and its begin, middle and end in seconds. Up to its
    middle it is drawn pale: there a prompt was read."""

    label: str
    amount: str
    begin: float
    middle: float
    end: float


def visible(text: str) -> str:
    """Returns the text with characters that act instead of being visible escaped as in Python (`\\x1b`)."""
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def visible_json(text: str) -> str:
    """Returns JSON text with such characters, which JSON allows in strings, escaped as in JSON."""
    return _HIDDEN.sub(lambda found: "" if found[0] == "\r" else _json_escape(found[0]), text)


def _json_escape(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def clipped(text: str, limit: int = SHOWN) -> str:
    """Returns the text; if it is longer than `limit`, its beginning and end, and the number of characters left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters are not shown …]\n{text[-half:]}"


def short(text: str, limit: int = _SHORT) -> str:
    """Returns the text's beginning on one line, for a `repr`."""
    line = " ".join(visible(text[: 4 * limit]).split())
    return line if len(line) <= limit and len(text) <= 4 * limit else f"{line[:limit]}…"


def counted(number: int, noun: str) -> str:
    """Returns "1 message" or "2,000 messages"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def escaped(text: str) -> str:
    """Returns the text as HTML that only shows it."""
    return escape(visible(clipped(text)))


def markdown_html(text: str) -> str:
    """Returns a model's Markdown as HTML. Tags in it are shown as text; only links to http, https and mailto addresses
    stay links; images become their addresses; formulas stay formulas. Very long texts are not rendered."""
    if len(text) > _MARKDOWN:
        return f'<div style="{_LONG}">{escaped(text)}</div>'
    return f'<div style="overflow-wrap:anywhere">{_renderer().render(visible(text))}</div>'


@cache
def _renderer() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table")
    made.validateLink = _harmless_link  # pyright: ignore[reportAttributeAccessIssue]
    made.inline.ruler.before("escape", "math", _math)
    for name, rule in (("math", _math_html), ("fence", _code_html), ("code_block", _code_html), ("image", _image_html)):
        made.add_render_rule(name, rule)
    for name in ("th_open", "td_open"):
        made.add_render_rule(name, _cell_html)
    made.add_render_rule("paragraph_open", _paragraph_html)
    return made


def _math(state: "StateInline", silent: bool) -> bool:
    """A formula between dollars or backslashed brackets. Amounts of money are none: the dollar that ends a formula
    follows no space, and no digit follows it, as Pandoc reads them."""
    for begin, end in _DELIMITERS:
        if state.src.startswith(begin, state.pos):
            start = state.pos + len(begin)
            stop = state.src.find(end, start, start + _LONGEST_MATH)
            text = state.src[start:stop] if stop > 0 else ""
            after = state.src[stop + len(end) : stop + len(end) + 1]
            if not text.strip() or not _draws_only(text):
                return False
            if begin == "$" and (text != text.strip() or after.isdigit()):
                return False
            if not silent:
                token = state.push("math", "", 0)
                token.content = f"{begin}{text}{end}"
            state.pos = stop + len(end)
            return True
    return False


def _draws_only(formula: str) -> bool:
    """Whether each command in a formula is one that draws, and each environment too."""
    commands = _COMMAND.findall(formula)
    environments = _ENVIRONMENT.findall(formula)
    blocks = sum(name in ("begin", "end") for name in commands)
    return _DRAWING.issuperset(commands) and _DRAWN.issuperset(environments) and blocks == len(environments)


def _math_html(_: Any, tokens: "Sequence[Token]", at: int, *__: Any) -> str:
    return f'<span class="{_MATH}">{escape(tokens[at].content)}</span>'


def _code_html(_: Any, tokens: "Sequence[Token]", at: int, *__: Any) -> str:
    """Code as it is: lines are not wrapped, long ones scroll."""
    language = (tokens[at].info.split() or [""])[0]
    code = f'<code style="background:none;white-space:inherit">{coloured(tokens[at].content, language)}</code>'
    return _copied(f'<pre style="{_CODE}">{code}</pre>') + "\n"


def _image_html(_: Any, tokens: "Sequence[Token]", at: int, *__: Any) -> str:
    """A link: loading a picture would tell a third party's server that the answer was read, and from where."""
    about, address = f"[image: {escape(tokens[at].content)}]", str(tokens[at].attrGet("src") or "")
    return f'<a href="{escape(address)}">{about}</a>' if _harmless_link(address) else about


def _copied(element: str) -> str:
    """Returns an element of HTML with a button that copies its text."""
    return f'<div style="position:relative">{_BUTTON}{element}</div>'


def _cell_html(renderer: Any, tokens: "Sequence[Token]", at: int, options: Any, env: Any) -> str:
    """A cell aligned as Markdown says, to the left where it says nothing: JupyterLab's own default is the right."""
    _ = env
    if tokens[at].attrGet("style") is None:
        tokens[at].attrSet("style", "text-align:left")
    return str(renderer.renderToken(tokens, at, options, {}))


def _paragraph_html(_: Any, tokens: "Sequence[Token]", at: int, *__: Any) -> str:
    return "" if tokens[at].hidden else f'<p style="{_PARAGRAPH}">'


def _harmless_link(address: str) -> bool:
    return address.strip().lower().startswith(("http://", "https://", "mailto:"))


def block_html(block: Block) -> str:
    """Returns the HTML of one part: reasoning folded, content as Markdown, a call and its result as one card."""
    inside = "".join(map(block_html, block.inside))
    match block.kind:
        case "content":
            return markdown_html(block.text)
        case "fields":
            return _fields_html(block.text)
        case "notice":
            return f'<div style="{_BAD if block.failed else _QUIET}">{escaped(block.text)}</div>'
        case "media":
            about = escaped(block.text)
            image = f'<img src="{escape(block.picture)}" alt="{about}" style="{_PICTURE}">' if block.picture else ""
            return f'<div>{image}<span style="{_QUIET}">{about}</span></div>'
        case "message":
            return f'<div style="{_ASKED}"><div style="{_LABEL}">{escaped(block.title)}</div>{inside}</div>'
        case "reasoning":
            return _reasoning_html(block)
        case "call":
            return f'<div style="{_BOX}">{_headed(block)}{inside}</div>'
        case "result":
            rule = "" if block.title else f' style="{_RULE}"'  # inside its call it has no title of its own
            return f"<div{rule}>{_headed(block)}{inside}</div>"


def _reasoning_html(block: Block) -> str:
    number = len(block.text.split())
    words = f"{counted(number, 'word')}{'…' if block.open else ''}"
    summary = f'<summary style="{_QUIET}">reasoning, {words}</summary>'
    if block.open:
        tail = f"<div>{_lines(escaped(block.text[-_SHOWN_TAIL:]))}</div>"
        return f'<details open>{summary}<div style="{_TAIL}">{tail}</div></details>'
    return f'<details>{summary}<div style="{_LONG};{_QUIET}">{_lines(escaped(block.text))}</div></details>'


def _fields_html(text: str) -> str:
    """The members of a JSON object, or the items of a list of objects, as a table; any other value in colours."""
    try:
        value = json.loads(text) if len(text) <= _MARKDOWN else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value:
        return table_html((_shown_name(name), _member(item)) for name, item in cast("dict[str, object]", value).items())
    rows = cast("list[dict[str, object]]", value)
    if not (isinstance(value, list) and value and all(isinstance(row, dict) and row for row in rows)):  # pyright: ignore[reportUnnecessaryIsInstance]
        return _value_html(text)
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_member(row[name]) if name in row else "" for name in names] for row in rows[:_MOST_ROWS]]
    left = len(rows) - _MOST_ROWS
    table = table_html(cells, head=[*map(_shown_name, names)])
    return table + (f'<div style="{_QUIET}">{counted(left, "further row")}</div>' if left > 0 else "")


def _member(value: object) -> str:
    return clipped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _shown_name(name: str) -> str:
    return short(name, _NAME)


def _headed(block: Block) -> str:
    """Returns what a call or a result is, and its text below."""
    style = f' style="{_BAD}"' if block.failed else ""
    name = f" <code>{escaped(block.title)}</code>" if block.title else ""
    took = "" if block.seconds is None else f' <span style="{_QUIET}">{seconds_text(block.seconds)}</span>'
    value = _value_html(block.text) if block.text or not block.inside else ""
    return f"<div><b{style}>{block.kind}</b>{name}{took}</div>{value}"


def _value_html(text: str) -> str:
    """Arguments or a result: JSON in colours, folded if it has many lines; other text as it is."""
    lines_of = laid_out(visible_json(text)) if len(text) <= _MARKDOWN else None
    if lines_of is None:
        return f'<div style="{_LONG};{_FIXED}">{_lines(escaped(text))}</div>'
    lines = lines_of.count("\n") + 1
    value = f'<div style="{_LONG};{_FIXED}">{_lines(coloured(lines_of, "json"))}</div>'
    if lines == 1:
        return value
    if lines <= _UNFOLDED:
        return _copied(value)
    summary = f'<summary style="{_QUIET}">{lines:,} lines: <code>{escape(short(text))}</code></summary>'
    return f"<details>{summary}{_copied(value)}</details>"


def _lines(html: str) -> str:
    """HTML whose lines stay apart, also where a front end takes styles and `<pre>` away (marimo's chat)."""
    return html.replace("\n", "<br>")


def page_html(blocks: Iterable[Block], footer: str = "", details: str = "") -> str:
    """Returns the HTML of a turn or run. `footer` is plain text; `details` is HTML that it unfolds."""
    foot = f'<div style="{_QUIET}">{escaped(footer)}</div>' if footer else ""
    if details:
        foot = f'<details><summary style="{_QUIET}">{escaped(footer) or "details"}</summary>{details}</details>'
    return f'<div class="llama-engine {_LITERAL}">{"".join(map(block_html, blocks))}{foot}</div>'


def fenced(text: str) -> str:
    """Returns the text as a block of code in Markdown that nothing in the text can end."""
    shown = visible(clipped(text))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"


def page_markdown(blocks: Iterable[Block], footer: str = "") -> str:
    """Returns a turn or run as Markdown. Text that a model wrote is in blocks of code, since Markdown may contain
    HTML."""
    parts: list[str] = []
    for label, block in _flat(blocks):
        failed = " (failed)" if block.failed else ""
        title = f" {_word(block.title)}" if block.title else ""
        text = fenced(block.text) if block.text or not block.inside else ""
        parts.append(f"**{label}**{title}{failed}\n\n{text}".rstrip("\n"))
    return "\n\n".join([*parts, *([fenced(footer)] if footer else [])])


def _word(name: str) -> str:
    """Returns a name without characters that have a meaning in Markdown or HTML."""
    return "`" + re.sub(r"[^\w.\-/ ]", "?", short(name)) + "`"


def _flat(blocks: Iterable[Block]) -> Iterator[tuple[str, Block]]:
    """Yields each block with its label, then what is inside it; of a message its content has the role as its label."""
    for block in blocks:
        if block.kind != "message":
            yield block.kind, block
        for label, inner in _flat(block.inside):
            yield (block.title if block.kind == "message" and label == "content" else label), inner


def page_text(blocks: Iterable[Block], footer: str = "") -> str:
    """Returns a turn or run as plain text, without control codes."""
    lines = [
        f"[{block.text}]" if block.kind == "media" else f"{' '.join(filter(None, (label, block.title)))}: {block.text}"
        for label, block in _flat(blocks)
    ]
    return visible("\n".join([*map(clipped, lines), *([footer] if footer else [])]))


def table_html(rows: Iterable[Sequence[str]], title: str = "", head: Sequence[str] = ()) -> str:
    """Returns rows of texts as an HTML table; the first text of each row is its heading. `head`: those of columns."""
    heading = f"<tr>{''.join(_cell('th', text) for text in head)}</tr>" if head else ""
    body = "".join(
        f"<tr>{_cell('th', first)}{''.join(_cell('td', text) for text in rest)}</tr>" for first, *rest in rows
    )
    return f'{f"<b>{escaped(title)}</b>" if title else ""}<table class="{_LITERAL}">{heading}{body}</table>'


def _cell(tag: str, text: str) -> str:
    """Returns a cell. Only in a long text a line may break inside a word: it would make a short one's column narrow."""
    wrap = "anywhere" if len(text) > _NAME else "break-word"
    return f'<{tag} style="{_CELL};white-space:pre-wrap;overflow-wrap:{wrap}">{escaped(text)}</{tag}>'


def record_html(fields: Iterable[tuple[str, object]]) -> str:
    """Returns counts and times as a table, those that are 0 or None left out; floats are seconds."""
    rows: list[tuple[str, str]] = []
    for field, value in fields:
        name = field.removesuffix("_seconds").removeprefix("n_").replace("_", " ")
        if isinstance(value, float) and value:
            rows.append((name, seconds_text(value)))
        elif value:
            rows.append((name, f"{value:,}" if isinstance(value, int) else str(value)))
    return table_html(rows)


def timeline_html(spans: Sequence[Span]) -> str:
    """Returns a table with a bar for each stretch of a timeline, which begins at 0; "" without any."""
    if not spans:
        return ""
    whole = max(span.end for span in spans) or 1.0
    rows: list[str] = []
    for span in spans:
        parts = (span.begin, span.middle - span.begin, span.end - span.middle)
        left, pale, full = (100 * part / whole for part in parts)
        bars = (
            f'<div style="{_BAR};opacity:.4;margin-left:{left:.1f}%;width:{pale:.1f}%"></div>'
            f'<div style="{_BAR};width:{full:.1f}%;min-width:1px"></div>'
        )
        amount, took = (text.replace(" ", "\xa0") for text in (span.amount, seconds_text(span.end - span.begin)))
        texts = "".join(_cell("td", text) for text in (span.label, amount, took))
        rows.append(f'<tr>{texts}<td style="width:50%"><div style="display:flex">{bars}</div></td></tr>')
    return f'<table class="{_LITERAL}" style="width:100%">{"".join(rows)}</table>'


def tokens_html(tokens: Iterable[tuple[str, float, str]]) -> str:
    """Returns tokens as a text in which the less likely ones stand out; each is its text, its log-probability, and what
    else is told of it where a pointer rests."""
    pieces: list[str] = []
    for text, logprob, about in tokens:
        probability = math.exp(logprob)
        style = f"background:rgba(226,53,53,{0.55 * (1 - probability):.2f});border-radius:3px"
        title = escaped(f"{probability:.1%}; {about}" if about else f"{probability:.1%}")
        pieces.append(f'<span style="{style}" title="{title}">{escaped(text)}</span>')
    return f'<div class="{_LITERAL}" style="{_LONG};{_FIXED}">{"".join(pieces)}</div>'


def seconds_text(seconds: float) -> str:
    """Returns a short duration as text: "0.31 s", "12 ms"."""
    if 0 < seconds < 0.001:
        return "under 1 ms"
    return f"{1000 * seconds:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.0f} s"


def section_html(title: str, body: str, *, unfolded: bool = False) -> str:
    """Returns HTML with a heading that unfolds `body`, which is HTML."""
    return f"<details{' open' if unfolded else ''}><summary>{escaped(title)}</summary>{body}</details>"


def preformatted(text: str) -> str:
    """Returns HTML with the text's lines unchanged, in a monospaced font."""
    return f'<pre style="{_LONG}">{escaped(text)}</pre>'
