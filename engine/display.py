"""Records as HTML, Markdown and short text: plain functions, text in and text out.

Knows: that a model's text must never become live HTML, a script, a remote image or a control code, and how much of a
very long text is worth showing. Does not know: records, events, IPython. The only importer of markdown_it; imported
late, as it takes a moment.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

BlockKind: TypeAlias = Literal["reasoning", "content", "call", "result", "notice"]

SHOWN = 100_000
"""The most characters of one block; a longer text is shown by its beginning and end."""
_MARKDOWN = 30_000  # longer text is not rendered, as that takes long, above all for hostile text
_SHORT = 60

# Control characters except tab and newline, which could move a cursor; marks that change the direction of the text
# around them, and line separators; invisible tag characters; lone surrogates, which cannot be encoded.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_BOX = "border:1px solid rgba(128,128,128,.4);border-radius:6px;padding:.4em .7em;margin:.4em 0"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere"
_LONG = f"{_TEXT};max-height:30em;overflow:auto"
_QUIET = "opacity:.7;font-size:85%"
_BAD = "color:#c33"


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a turn for display. `title` is the tool of a call or a result; `failed` marks errors; `open` marks the
    part that is still being written."""

    kind: BlockKind
    text: str
    title: str = ""
    failed: bool = False
    open: bool = False


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


def markdown_html(text: str) -> str:
    """Returns a model's Markdown as HTML. Tags in it are shown as text; only links to http, https and mailto addresses
    stay links; images become their addresses. Very long texts are not rendered."""
    if len(text) > _MARKDOWN:
        return f'<div style="{_LONG}">{escaped(text)}</div>'
    return f'<div style="overflow-wrap:anywhere">{_renderer().render(visible(text))}</div>'


@cache
def _renderer() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    # `image` is off: loading one would tell a third party's server that the answer was read, and from where.
    made = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable("image")
    made.validateLink = _harmless_link  # pyright: ignore[reportAttributeAccessIssue]
    return made


def _harmless_link(address: str) -> bool:
    return address.strip().lower().startswith(("http://", "https://", "mailto:"))


def block_html(block: Block) -> str:
    """Returns the HTML of one part: reasoning folded, content as Markdown, calls and results as cards."""
    if block.kind == "content":
        return markdown_html(block.text)
    if block.kind == "notice":
        return f'<div style="{_BAD if block.failed else _QUIET}">{escaped(block.text)}</div>'
    if block.kind == "reasoning":
        words = f"{len(block.text.split()):,} words{'…' if block.open else ''}"
        summary = f'<summary style="{_QUIET}">reasoning, {words}</summary>'
        return f'<details>{summary}<div style="{_LONG};{_QUIET}">{escaped(block.text)}</div></details>'
    style = f' style="{_BAD}"' if block.failed else ""
    head = f"<b{style}>{block.kind}</b> <code>{escaped(block.title)}</code>"
    return f'<div style="{_BOX}">{head}<pre style="{_LONG};margin:.2em 0">{escaped(block.text)}</pre></div>'


def page_html(blocks: Iterable[Block], footer: str = "") -> str:
    """Returns the HTML of a turn or run. `footer` is plain text."""
    foot = f'<div style="{_QUIET}">{escaped(footer)}</div>' if footer else ""
    return f'<div class="llama-engine">{"".join(map(block_html, blocks))}{foot}</div>'


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
    return f"{f'<b>{escaped(title)}</b>' if title else ''}<table>{body}</table>"


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
