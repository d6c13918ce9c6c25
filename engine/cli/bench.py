"""`llama-engine bench`: compares a model on this machine with the bare library, as a table and a picture.

Knows: how results are shown. Does not know: how they are measured (`engine.cli.measure`). The only importer of
matplotlib, which only the picture needs.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.screen import Screen
from engine.errors import RequestError
from engine.screens import Screen as ScreenOfProgress
from engine.screens import screen_for

if TYPE_CHECKING:
    from engine.cli.measure import Result


def add_bench(commands: Any) -> None:
    """Add the command and its options to a parser's subcommands."""
    bench = commands.add_parser(
        "bench",
        help="measure this machine with a model: prefill, decode, several streams, beside the bare library",
        description="Measure tokens per second, and how they compare with llama.cpp's C functions in a plain loop.",
    )
    bench.add_argument(
        "model", metavar="MODEL", nargs="?", help="a GGUF file, or owner/repo:Q4_K_M; without it the built-in model"
    )
    bench.add_argument(
        "--prompt", metavar="TOKENS", type=_positive, default=512, help="length of the long prompt (default 512)"
    )
    bench.add_argument(
        "--answer", metavar="TOKENS", type=_positive, default=64, help="length of an answer (default 64)"
    )
    bench.add_argument("--streams", metavar="N", type=_positive, default=8, help="answers at once (default 8)")
    bench.add_argument(
        "--rounds",
        metavar="N",
        type=_positive,
        default=3,
        help="rounds, whose median is shown (default 3)",
    )
    bench.add_argument("--threads", metavar="N", type=_positive, help="CPU threads; by default one per physical core")
    bench.add_argument(
        "--gpu-layers", metavar="N", type=int, default=0, help="layers to offload; -1 for all (default 0)"
    )
    bench.add_argument("--png", metavar="FILE", type=Path, help="draw the results; needs matplotlib")
    bench.add_argument("--json", action="store_true", help="print them as one JSON object")


def bench(options: argparse.Namespace) -> int:
    """Measure, show the results and return the exit code."""
    from engine import hub
    from engine._data import builtin_model
    from engine.cli.measure import Sizes, measure

    if options.png is not None:
        _ = _pyplot()  # fails before minutes of measuring, not after them
    name = None if options.model is None else hub.named(options.model)
    path = builtin_model() if options.model is None else Path(options.model) if name is None else hub.fetch(name)
    screen = Screen(sys.stdout)
    sizes = Sizes(options.prompt, options.answer, options.streams, options.rounds)
    found: list[Result] = []
    progress = screen_for(sys.stderr) if sys.stderr.isatty() else None
    _tell(progress, 1, sizes.rounds)
    for done, found in measure(path, sizes, threads=options.threads, gpu_layers=options.gpu_layers):  # noqa: B007
        _tell(progress, done + 1, sizes.rounds)
    if options.json:
        rows = [{"name": each.name, "engine": each.engine, "bare": each.bare, "ratio": each.ratio} for each in found]
        screen.line(json.dumps({"model": path.name, "results": rows}, indent=2))
    else:
        _show(screen, path, found, sizes.rounds)
    if options.png is not None:
        _draw(options.png, path, found)
    return 0


def _tell(progress: ScreenOfProgress | None, number: int, rounds: int) -> None:
    """Say which round begins, before it takes its time; after the last one, that they are done."""
    if progress and number <= rounds:
        progress.state(f"measuring, round {number} of {rounds}")
    elif progress:
        progress.line(f"measured {rounds} round{'' if rounds == 1 else 's'}")


def _show(screen: Screen, path: Path, found: "Sequence[Result]", rounds: int) -> None:
    table = [("TOKENS PER SECOND", "ENGINE", "BARE LIBRARY", "RATIO")]
    for each in found:
        ours, bare = (f"{statistics.median(speeds):,.1f}" for speeds in (each.engine, each.bare))
        table.append((each.name, ours, bare, f"{each.ratio:.2f}"))
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for first, *rest in table:
        screen.line(
            "  ".join(
                [f"{first:<{widths[0]}}", *(f"{text:>{width}}" for text, width in zip(rest, widths[1:], strict=True))]
            )
        )
    number = "one round" if rounds == 1 else f"{rounds} rounds, the two in turn"
    ratio = "" if rounds == 1 else ". Speeds are the median of the rounds; so is RATIO, engine / bare library of each"
    screen.prose(f"{path.name}: {number}{ratio}.", "dim")


def _draw(file: Path, path: Path, found: "Sequence[Result]") -> None:
    """Draw bars of both sides, with axes of its own for each measurement, because speeds differ in scale."""
    plot = _pyplot()
    figure, axes = plot.subplots(1, len(found), figsize=(3.2 * len(found), 3.6), squeeze=False)
    for axis, each in zip(axes[0], found, strict=True):
        bars = axis.bar(["engine", "bare"], [statistics.median(each.engine), statistics.median(each.bare)])
        axis.bar_label(bars, fmt="{:,.0f}")
        axis.set_title(f"{each.name}\n{each.ratio:.2f} x bare", fontsize=10)
        axis.set_ylabel("tokens/s" if each is found[0] else "")
    figure.suptitle(path.name)
    figure.tight_layout()
    try:
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"The picture cannot be written to {file}: {error}. Give another path, such as results.png."
        ) from error
    finally:
        plot.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise RequestError(f"--png needs matplotlib ({error}): pip install matplotlib, or leave it out.") from error
    return pyplot


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() and len(text) < 10 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number
