"""Makes the pictures of the pages: `python benchmarks/pictures.py terminal` and `notebook`.

`terminal` records `llama-engine demo` in a pseudo-terminal and writes docs/pictures/terminal.svg, which plays what came
when, slowed down; what is to come is dim, so that no frame is empty, and where nothing moves, it shows the
end. `notebook` renders with Chromium, which must be installed, what a cell shows of a run, in light and in dark, and
writes docs/pictures/notebook.png.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import numpy as np
from fakes.terminals import terminal
from PIL import Image

from engine import Engine
from engine.support.colouring import coloured

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
COLUMNS, WIDE, HIGH, EDGE = 80, 8.43, 20, 16  # of a terminal; of a letter and the edge, in pixels
SLOWER = 12
_SGR = re.compile(r"\x1b\[([\d;]*)m")
_STYLES = {"1": "font-weight:bold", "2": "fill:#8b949e", "32": "fill:#3fb950", "36": "fill:#39c5cf"}
_TYPED = "llama-engine demo"
_TYPING = 0.06  # seconds a letter

CODE = """run = llm.run("What is the weather in Lima?", tools=[get_weather])
run"""
PAGE = """<!DOCTYPE html><meta charset="utf-8"><style>
body {{ margin: 0; display: flex; font: 14px/1.5 'DejaVu Sans', sans-serif }}
div.half {{ box-sizing: border-box; width: 50%; padding: 16px }}
.light {{ background: #fff; color: #222 }}
.dark {{ background: #111; color: #ddd; color-scheme: dark }}
.in {{ font: 13px/1.5 'DejaVu Sans Mono', monospace; border: 1px solid #8886; background: #8881; padding: 8px }}
code {{ font-family: 'DejaVu Sans Mono', monospace }} td {{ padding: 1px 6px; font-size: 12px }}
</style>{halves}"""


Piece = tuple[float, int, int, str, str]
"""A text: when it comes, its row and column, its style, and itself."""


def recorded() -> list[tuple[float, str]]:
    """Returns what the demo writes into a terminal, each piece with its time."""
    chunks: list[tuple[float, str]] = []
    with terminal([sys.executable, "-m", "engine", "demo"], COLUMNS, 24) as demo:
        while demo.read(0.02) or demo.child.poll() is None:
            if text := demo.raw.decode()[sum(len(chunk) for _, chunk in chunks) :]:
                chunks.append((time.monotonic(), text))
    return chunks


def pieces(chunks: list[tuple[float, str]], begin: float) -> Iterator[Piece]:
    """Yields the texts that were written, each on one row of the terminal."""
    row, column, style = 1, 0, ""
    for at, chunk in chunks:
        moment = begin + SLOWER * (at - chunks[0][0])
        for number, part in enumerate(_SGR.split(chunk.replace("\r", ""))):
            if number % 2:
                style = ";".join(_STYLES[code] for code in part.split(";") if code in _STYLES)
                continue
            for line, text in enumerate(part.split("\n")):
                row, column = (row + 1, 0) if line else (row, column)
                for letter in text:
                    row, column = (row + 1, 0) if column == COLUMNS else (row, column)
                    yield moment, row, column, style, letter
                    column += 1


def joined(letters: Iterable[Piece]) -> list[Piece]:
    """Returns texts of letters that stand next to each other and come at once."""

    def place(letter: tuple[int, Piece]) -> tuple[object, ...]:
        number, (moment, row, column, style, _) = letter
        return moment, row, column - number, style

    groups = ([piece for _, piece in group] for _, group in groupby(enumerate(letters), place))
    return [(*group[0][:4], "".join(letter for *_, letter in group)) for group in groups]


def terminal_picture() -> str:
    """Returns an animated SVG of the demo."""
    typed = [(number * _TYPING, 0, number + 2, "", letter) for number, letter in enumerate(_TYPED)]
    shown = joined(pieces(recorded(), _TYPING * len(_TYPED) + 0.8))
    texts = [(0.0, 0, 0, _STYLES["32"], "$"), *typed, *shown]
    drawn = "\n".join(_text(*piece) for piece in texts if piece[4].strip())
    width, height = COLUMNS * WIDE + 2 * EDGE, (shown[-1][1] + 1) * HIGH + 2 * EDGE
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">
<title>llama-engine demo: a small model finds three facts in a sentence, and calls a tool</title>
<style>
text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #e6edf3 }}
text {{ white-space: pre }}
@media (prefers-reduced-motion: no-preference) {{
text {{ opacity: 0.4; animation: come 1ms forwards }}
@keyframes come {{ to {{ opacity: 1 }} }}
}}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
{drawn}
</svg>
"""


def _text(moment: float, row: int, column: int, style: str, text: str) -> str:
    place = f'x="{EDGE + column * WIDE:.1f}" y="{EDGE + 14 + row * HIGH}" textLength="{len(text) * WIDE:.1f}"'
    return f'<text {place} style="animation-delay:{moment:.2f}s;{style}">{escape(text)}</text>'


def get_weather(city: str) -> dict[str, object]:
    """Get the current weather.

    Args:
        city: The name of the city.
    """
    time.sleep(0.08)  # as long as a service takes
    return {"city": city, "temperature": 12, "sky": "clear"}


def notebook_picture(path: Path) -> None:
    """Write a picture of a run as a cell shows it, its timeline unfolded. Raises OSError without Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise OSError("Chromium is not installed")
    with Engine.load() as llm:
        run: Any = llm.run("What is the weather in Lima?", tools=[get_weather], temperature=0)
        html: str = run._repr_html_()
    before, fold, last = html.rpartition("<details>")
    cell = f'<div class="in">{coloured(CODE, "python").replace(chr(10), "<br>")}</div>{before}{fold[:-1]} open>{last}'
    halves = "".join(f'<div class="half {look}">{cell}</div>' for look in ("light", "dark"))
    with tempfile.TemporaryDirectory() as place:
        page = Path(place, "page.html")
        page.write_text(PAGE.format(halves=halves), encoding="utf-8")
        options = ("--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1200,900", f"--screenshot={path}")
        subprocess.run([chromium, *options, page.as_uri()], check=True, capture_output=True)
    with Image.open(path) as whole:
        picture = whole.convert("RGB")
    page = np.asarray(picture)[:, :600]
    last_line = int((page != page[:, :1]).any((1, 2)).nonzero()[0][-1])
    cut = picture.crop((0, 0, picture.width, last_line + 17))
    cut.quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    if "terminal" in sys.argv:
        (PICTURES / "terminal.svg").write_text(terminal_picture(), encoding="utf-8")
    if "notebook" in sys.argv:
        notebook_picture(PICTURES / "notebook.png")
