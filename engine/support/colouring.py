"""Code and JSON as coloured HTML: in the theme's colours where a front end names them, else in ones that can be read on
white and on black.

The only importer of pygments, imported late; rich and IPython need it too.
"""

import json
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from html import escape
from typing import Any

# Lexers that read _LONGEST characters in a quarter of a second, whatever a model writes (Java's does not).
_LANGUAGES = {
    "bash": "bash sh shell zsh",
    "c": "c h",
    "cpp": "cpp c++",
    "css": "css",
    "diff": "diff patch",
    "go": "go golang",
    "html": "html xml svg",
    "javascript": "javascript js jsx",
    "json": "json jsonl",
    "kotlin": "kotlin kt",
    "lua": "lua",
    "python": "python py python3",
    "ruby": "ruby rb",
    "rust": "rust rs",
    "sql": "sql",
    "swift": "swift",
    "toml": "toml",
    "typescript": "typescript ts tsx",
    "yaml": "yaml yml",
}
_LEXERS = {name: language for language, names in _LANGUAGES.items() for name in names.split()}
_LONGEST = 4000  # some lexers are quadratic in hostile code; longer code is not coloured
# JupyterLab's name of a colour, VS Code's, and one with a contrast of 4.3 and more on white and on #111.
_COLOURS = {
    "keyword": "var(--jp-mirror-editor-keyword-color,var(--vscode-debugTokenExpression-boolean,#1977e3))",
    "name": "var(--jp-mirror-editor-def-color,var(--vscode-debugTokenExpression-name,#a659c0))",
    "string": "var(--jp-mirror-editor-string-color,var(--vscode-debugTokenExpression-string,#cc521d))",
    "number": "var(--jp-mirror-editor-number-color,var(--vscode-debugTokenExpression-number,#078b49))",
}
_STRING = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(rf'{_STRING}|[{{}}\[\],:]|[^\s{{}}\[\],:"]+')
_INNERMOST = re.compile(rf'[{{\[](?:{_STRING}|[^{{}}\[\]"\n])*[}}\]]|{_TOKEN.pattern}')
_NARROW = 72
_DEEPEST = 20  # what is nested deeper is not moved further to the right


def coloured(code: str, language: str) -> str:
    """Returns code as HTML, in colours if the language is known and the code is not long. `code` has only characters
    that can be shown."""
    lexer = _LEXERS.get(language.lower())
    return escape(code) if lexer is None or len(code) > _LONGEST else _spans(code, lexer)


@lru_cache(maxsize=64)  # a page that is being written is drawn again and again
def _spans(code: str, lexer: str) -> str:
    html: list[str] = []
    for _, kind, text in _lexer(lexer).get_tokens_unprocessed(code):
        colour = _colour(kind)
        html.append(f'<span style="color:{colour}">{escape(text)}</span>' if colour else escape(text))
    return "".join(html)


@cache
def _lexer(name: str) -> Any:
    from pygments.lexers import get_lexer_by_name  # pyright: ignore[reportUnknownVariableType]

    return get_lexer_by_name(name)


@cache
def _colour(kind: Any) -> str:
    """Returns the colour of one of Pygments' kinds of tokens; "" for the text's own."""
    from pygments.token import Comment, Keyword, Name, Number, String

    if kind in Comment:
        return "var(--jp-mirror-editor-comment-color,#738a8a)"
    if kind in Keyword:
        return _COLOURS["keyword"]
    if kind in String:
        return _COLOURS["string"]
    if kind in Number:
        return _COLOURS["number"]
    return _COLOURS["name"] if kind in Name.Function or kind in Name.Class or kind in Name.Tag else ""


def laid_out(text: str) -> str | None:
    """Returns a JSON object or list with a line for each member, short ones whole in one line; None if the text is
    neither. Strings and numbers stay as they were written."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    if len(text) <= _NARROW and "\n" not in text:
        return text
    lines, depth, after = [""], 0, ""
    for token in _tokens(text):
        closes, opened = token in ("}", "]"), after in ("{", "[")
        depth += opened - closes
        if after == "," or opened != closes:
            lines.append("  " * min(depth, _DEEPEST))
        lines[-1] += f"{token} " if token == ":" else token
        after = token
    return "\n".join(lines)


def _tokens(text: str) -> Iterator[str]:
    """Yields the tokens of JSON; an object or list without others in it as one token if it is short."""
    for token in _INNERMOST.findall(text):
        if len(token) <= _NARROW:
            yield token
        else:
            yield from _TOKEN.findall(token)
