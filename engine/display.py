"""Records as HTML, Markdown and short text: plain functions, text in and text out.

The only importer of markdown_it; imported late, as it takes a moment.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

BlockKind: TypeAlias = Literal["reasoning", "content", "call", "result", "media", "notice"]

SHOWN = 100_000
"""The most characters of one block; a longer text is shown by its beginning and end."""
_MARKDOWN = 30_000  # longer text is not rendered, as that takes long, above all for hostile text
_SHORT = 60
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
_CODE = "white-space:pre;overflow-x:auto;background:rgba(128,128,128,.12);border-radius:6px;padding:.5em .7em"
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
_ENDINGS = {
    "length": "The answer was cut off: it reached the most tokens allowed (max_tokens), or the end of the context.",
    "cancelled": "The answer was cancelled.",
    "deadline": "The answer was cut off: its deadline passed.",
    "error": "An error ended the answer.",
    "pending": "The run waits for the results of calls that no function here answers (run.pending).",
    "stop_on": "A tool that ends the run was called.",
    "max_steps": "The run ended after the most turns allowed (max_steps), before the model answered.",
    "max_total_tokens": "The run ended after the most tokens allowed (max_total_tokens), before the model answered.",
    "overflow": "The run ended: the conversation is longer than the context.",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a turn for display. `title` is the tool of a call or a result; `failed` marks errors; `open` marks the
    part that is still being written; `picture` is the `data:` URL of a picture made here."""

    kind: BlockKind
    text: str
    title: str = ""
    failed: bool = False
    open: bool = False
    picture: str = ""


class UsageLike(Protocol):
    """The counts of one turn, as `engine.types.Usage` has them."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def decode_seconds(self) -> float: ...


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


def escaped(text: str) -> str:
    """Returns the text as HTML that only shows it."""
    return escape(visible(clipped(text)))


def ending(reason: str) -> str:
    """Why a turn or a run ended, as a sentence: of the ends that a finish reason or `Run.stopped` names."""
    return _ENDINGS.get(reason, f"The answer ended: {reason}.")


def markdown_html(text: str) -> str:
    """Returns a model's Markdown as HTML. Tags in it are shown as text; only links to http, https and mailto addresses
    stay links; images become their addresses; formulas stay formulas. Very long texts are not rendered."""
    if len(text) > _MARKDOWN:
        return f'<div style="{_LONG}">{escaped(text)}</div>'
    return f'<div style="overflow-wrap:anywhere">{_renderer().render(visible(text))}</div>'


@cache
def _renderer() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    # `image` is off: loading one would tell a third party's server that the answer was read, and from where.
    made = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable("image")
    made.validateLink = _harmless_link  # pyright: ignore[reportAttributeAccessIssue]
    made.inline.ruler.before("escape", "math", _math)
    for name, rule in (("math", _math_html), ("fence", _code_html), ("code_block", _code_html)):
        made.add_render_rule(name, rule)
    for name in ("th_open", "td_open"):
        made.add_render_rule(name, _cell_html)
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
    code = f'<code style="background:none;white-space:inherit">{escape(tokens[at].content)}</code>'
    return f'<pre style="{_CODE}">{code}</pre>\n'


def _cell_html(renderer: Any, tokens: "Sequence[Token]", at: int, options: Any, env: Any) -> str:
    """A cell aligned as Markdown says, to the left where it says nothing: JupyterLab's own default is the right."""
    _ = env
    if tokens[at].attrGet("style") is None:
        tokens[at].attrSet("style", "text-align:left")
    return str(renderer.renderToken(tokens, at, options, {}))


def _harmless_link(address: str) -> bool:
    return address.strip().lower().startswith(("http://", "https://", "mailto:"))


def block_html(block: Block) -> str:
    """Returns the HTML of one part: reasoning folded, content as Markdown, calls and results as cards."""
    if block.kind == "content":
        return markdown_html(block.text)
    if block.kind == "notice":
        return f'<div style="{_BAD if block.failed else _QUIET}">{escaped(block.text)}</div>'
    if block.kind == "media":
        about = escaped(block.text)
        image = f'<img src="{escape(block.picture)}" alt="{about}" style="{_PICTURE}">' if block.picture else ""
        return f'<div style="{_QUIET}">{image}{about}</div>'
    if block.kind == "reasoning":
        number = len(block.text.split())
        words = f"{number:,} word{'' if number == 1 else 's'}{'…' if block.open else ''}"
        summary = f'<summary style="{_QUIET}">reasoning, {words}</summary>'
        if block.open:
            tail = f"<div>{_lines(block.text[-_SHOWN_TAIL:])}</div>"
            return f'<details open>{summary}<div style="{_TAIL}">{tail}</div></details>'
        return f'<details>{summary}<div style="{_LONG};{_QUIET}">{_lines(block.text)}</div></details>'
    style = f' style="{_BAD}"' if block.failed else ""
    head = f"<b{style}>{block.kind}</b> <code>{escaped(block.title)}</code>"
    return f'<div style="{_BOX}">{head}<div style="{_LONG};{_FIXED}">{_lines(block.text)}</div></div>'


def _lines(text: str) -> str:
    """The text as HTML whose lines stay apart, also where a front end takes styles and `<pre>` away (marimo's chat)."""
    return escaped(text).replace("\n", "<br>")


def page_html(blocks: Iterable[Block], footer: str = "") -> str:
    """Returns the HTML of a turn or run. `footer` is plain text."""
    foot = f'<div style="{_QUIET}">{escaped(footer)}</div>' if footer else ""
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
    for block in blocks:
        failed = " (failed)" if block.failed else ""
        title = f" {_word(block.title)}" if block.title else ""
        parts.append(f"**{block.kind}**{title}{failed}\n\n{fenced(block.text)}")
    return "\n\n".join([*parts, *([fenced(footer)] if footer else [])])


def _word(name: str) -> str:
    """Returns a name without characters that have a meaning in Markdown or HTML."""
    return "`" + re.sub(r"[^\w.\-/ ]", "?", short(name)) + "`"


def page_text(blocks: Iterable[Block], footer: str = "") -> str:
    """Returns a turn or run as plain text, without control codes."""
    lines = [f"{' '.join(filter(None, (block.kind, block.title)))}: {block.text}" for block in blocks]
    return visible("\n".join([*map(clipped, lines), *([footer] if footer else [])]))


def table_html(rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Returns rows of texts as an HTML table; the first text of each row is its heading."""
    cell = f"{_TEXT};text-align:left;vertical-align:top"
    body = "".join(
        f'<tr><th style="{cell}">{escaped(first)}</th>'
        + "".join(f'<td style="{cell}">{escaped(text)}</td>' for text in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return f'{f"<b>{escaped(title)}</b>" if title else ""}<table class="{_LITERAL}">{body}</table>'


def section_html(title: str, body: str, *, unfolded: bool = False) -> str:
    """Returns HTML with a heading that unfolds `body`, which is HTML."""
    return f"<details{' open' if unfolded else ''}><summary>{escaped(title)}</summary>{body}</details>"


def preformatted(text: str) -> str:
    """Returns HTML with the text's lines unchanged, in a monospaced font."""
    return f'<pre style="{_LONG}">{escaped(text)}</pre>'


def figures(usages: Iterable[UsageLike | None]) -> str:
    """Returns one line of figures over one or more turns."""
    known = [usage for usage in usages if usage is not None]
    written = sum(usage.completion_tokens for usage in known)
    asked = sum(usage.prompt_tokens for usage in known)
    reused = sum(usage.cached_tokens for usage in known)
    seconds = sum(usage.decode_seconds for usage in known)
    drawn = sum(max(0, usage.completion_tokens - 1) for usage in known if usage.decode_seconds > 0)
    speed = f"{drawn / seconds:.0f} tokens/s" if seconds > 0 else "speed not measured"
    turns = f"{len(known)} turn{'' if len(known) == 1 else 's'}"
    return f"{written} tokens in {turns}, {speed}; prompt {asked} tokens, {reused} of them reused from the prefix cache"
