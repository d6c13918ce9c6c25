"""`llama-engine models suggest | fit | list | download | remove`: which models to use, which fit into memory, and those
on this disk: in the Hub's cache, in packages, and in the stores of Ollama and LM Studio."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.support.errors import ModelLoadError, RequestError
from engine.support.packaged import PACKAGED, Packaged, packaged

if TYPE_CHECKING:
    from engine.cli.quantisations import Fit
    from engine.hub.cache import CachedModel
    from engine.hub.stored import Stored
    from engine.llama.plan.plan import Machine

_DAMAGED = "(damaged)"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the list; `size` is bytes."""

    name: str
    size: int
    quantization: str | None
    path: str


def add_models(commands: Any) -> None:
    """Add the command and its options to a parser's subcommands."""
    models = commands.add_parser(
        "models", help="suggest models, show which fit into memory; list, download or remove them"
    )
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    suggest = actions.add_parser("suggest", help="name some good models, and which of them fit this machine")
    suggest.add_argument("--ctx", metavar="N", type=int, default=8192, help="tokens of one conversation (default 8192)")
    suggest.add_argument("--json", action="store_true", help="print it as one JSON object")
    fit = actions.add_parser("fit", help="which quantisations fit into memory, before any download")
    fit.add_argument("name", metavar="NAME", help="owner/repo, owner/repo:Q4_K_M, a short name, or a GGUF file")
    fit.add_argument("--revision", metavar="REV", help="a branch, tag or commit")
    fit.add_argument("--ctx", metavar="N", type=int, help="tokens of one conversation; by default 8192 at most")
    fit.add_argument("--sequences", metavar="N", type=int, default=1, help="conversations at once; by default 1")
    fit.add_argument(
        "--projector",
        metavar="FILE",
        help="count this projector (mmproj-....gguf), too; auto: the one of the repository or folder",
    )
    fit.add_argument("--json", action="store_true", help="print it as one JSON object")
    shown = actions.add_parser(
        "list", help="the models in the Hugging Face Hub's cache, in packages, of Ollama and LM Studio, and in folders"
    )
    shown.add_argument("folders", metavar="FOLDER", nargs="*", help="a folder whose GGUF files are listed, too")
    shown.add_argument("--json", action="store_true", help="print it as one JSON array")
    get = actions.add_parser("download", help="download a model into the Hub's cache and print its path")
    get.add_argument("name", metavar="NAME", help="owner/repo:Q4_K_M, owner/repo, owner/repo/file.gguf or a short name")
    get.add_argument("--revision", metavar="REV", help="a branch, tag or commit")
    remove = actions.add_parser("remove", help="delete models from the Hub's cache")
    remove.add_argument("names", metavar="NAME", nargs="+", help="as in the list; owner/repo is the whole repository")
    remove.add_argument("--yes", action="store_true", help="do not ask")


def models(options: argparse.Namespace) -> int:
    """Run the action that the options name, and return the exit code."""
    actions = {"suggest": _suggest, "fit": _fit, "list": _list, "download": _download, "remove": _remove}
    return actions[options.action](options)


def _suggest(options: argparse.Namespace) -> int:
    from engine.cli.suggestions import suggest

    return suggest(options)


def _fit(options: argparse.Namespace) -> int:
    from engine.cli.quantisations import Wanted, fits
    from engine.cli.screen import Screen
    from engine.llama.plan.plan import this_machine

    machine = this_machine()
    found = fits(options.name, options.revision, Wanted(options.ctx, options.sequences, options.projector), machine)
    screen = Screen(sys.stdout)
    if options.json:
        rows = [asdict(each) for each in found]
        devices = [{"name": device.name, "memory_free": device.memory_free} for device in machine.gpus]
        screen.line(json.dumps({"available": machine.available, "devices": devices, "models": rows}, indent=2))
        return 0
    _show_fits(screen, found, machine)
    return 0


def _show_fits(screen: Any, found: "Sequence[Fit]", machine: "Machine") -> None:
    from engine.cli.screen import columns
    from engine.cli.suggestions import free_text
    from engine.hub.variants import size_text

    words = {True: "yes", False: "no", None: "-"}
    repo, names = _common([each.name for each in found])
    table = [("NAME", "WEIGHTS", "MEMORY", *(("GPU", "LAYERS") if machine.gpus else ()), "LONGEST", "FITS")]
    for name, each in zip(names, found, strict=True):
        device = (size_text(each.device), f"{each.layers[0]}/{each.layers[1]}") if each.layers else ()
        length = "-" if each.longest is None else f"{each.longest:,}"
        table.append((name, size_text(each.size), size_text(each.memory), *device, length, words[each.fits]))
    if repo:
        screen.line(repo)
    for line in columns(table, right=range(1, len(table[0]))):
        screen.line(line)
    count = f"{found[0].n_sequences} conversations" if found[0].n_sequences > 1 else "a conversation"
    screen.prose(
        f"MEMORY is for {count} of {found[0].n_ctx:,} tokens.\n"
        "LONGEST is the most tokens of one conversation that fit into memory."
    )
    if found[0].projector:
        screen.prose(f"It includes the projector {found[0].projector}.")
    if found[0].not_counted:
        screen.prose(f"A projector, {found[0].not_counted}, is not counted;\n--projector auto counts it.")
    if found[0].positions:
        screen.prose(f"The model is {found[0].positions}.")
    if found[0].warning:
        screen.prose(f"{found[0].warning}.")
    if free := free_text(machine):
        screen.prose(free)


def _common(names: list[str]) -> tuple[str, list[str]]:
    """Returns the repository of several models and their quantisations, if the names differ only in that; otherwise ""
    and the names."""
    repo, _, _ = names[0].partition(":")
    if len(names) < 2 or not all(name.startswith(f"{repo}:") for name in names):
        return "", names
    return repo, [name.removeprefix(f"{repo}:") for name in names]


def _list(options: argparse.Namespace) -> int:
    from engine.cli.screen import Screen
    from engine.hub import api, cache, elsewhere

    rows = [_row_of(model) for model in cache.models()]
    rows += [_Row(name, model.size, _by_header(str(path)), str(path)) for name, model, path in _in_packages()]
    rows += map(_row_elsewhere, elsewhere.models())
    for folder in options.folders:
        rows += _in_folder(Path(folder).expanduser())
    screen = Screen(sys.stdout)
    if options.json:
        screen.line(json.dumps([asdict(row) for row in rows], indent=2))
    elif rows:
        screen.line(_listed(rows))
    else:
        screen.line(f"There are no models in {api.cache_directory()}.")
    return 0


def _in_packages() -> Iterator[tuple[str, Packaged, Path]]:
    """Yields the models that installed packages bring, by name, and their files."""
    for name, model in PACKAGED.items():
        if (path := model.path) is not None:
            yield name, model, path


def _row_of(model: "CachedModel") -> _Row:
    return _Row(model.name, model.size, model.quantization or None, str(model.paths[0]))


def _row_elsewhere(model: "Stored") -> _Row:
    """Returns the row of a model of another program; one that cannot be used is damaged."""
    path = str(model.path)
    kind = _DAMAGED if model.problem else model.quantization or _by_header(path)
    return _Row(model.name, model.size, kind, path)


def _in_folder(folder: Path) -> list[_Row]:
    """Returns the models in a folder and its subfolders."""
    from engine.hub.variants import File, variants_of

    if not folder.is_dir():
        raise RequestError(f"There is no folder {folder}; correct the path.")
    files = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() == ".gguf" and path.is_file()]
    found = variants_of(File(str(path), path.stat().st_size) for path in files)
    return [_Row(each.path, each.size or 0, each.quantization or _by_header(each.path), each.path) for each in found]


def _by_header(path: str) -> str | None:
    """Returns the quantisation in the file's header."""
    from engine.llama.gguf.gguf_header import file_type_name, read_header

    try:
        return file_type_name(read_header(Path(path)).integer("general.file_type", -1)) or None
    except ModelLoadError:
        return _DAMAGED


def _download(options: argparse.Namespace) -> int:
    from engine import hub
    from engine.cli.screen import Screen
    from engine.hub import elsewhere
    from engine.llama.plan.machine import available_memory

    screen = Screen(sys.stdout)
    here = packaged(options.name) or elsewhere.located(options.name, available_memory)
    if here is not None:
        screen.line(str(here))
        return 0
    name = hub.named(options.name, options.revision)
    if name is None:
        raise RequestError(f"{options.name} is a path, not a model on the Hugging Face Hub.")
    screen.line(str(hub.fetch(name, memory=available_memory)))
    return 0


def _remove(options: argparse.Namespace) -> int:
    from engine import hub
    from engine.cli.confirm import can_ask, confirmed
    from engine.cli.screen import Screen
    from engine.hub import cache, elsewhere

    if known := [PACKAGED[each] for each in options.names if each in PACKAGED]:
        package = known[0].package
        raise RequestError(f"{known[0].extra} is a part of the package {package}; pip uninstall {package} removes it.")
    if theirs := [each for each in options.names if each.startswith(elsewhere.PREFIXES)]:
        raise RequestError(f"{theirs[0]} is another program's, whose files are only read here; remove it there.")
    names = [(each, hub.named(each)) for each in options.names]
    if paths := [each for each, name in names if name is None]:
        raise RequestError(
            f"{paths[0]} is a path; only models in the Hub's cache can be removed. Delete the file itself."
        )
    unwanted = {model.paths: model for _, name in names if name for model in cache.models_of(name)}
    screen = Screen(sys.stdout)
    rows = [_row_of(model) for model in unwanted.values()]
    if options.yes:
        screen.line(_listed(rows))
    elif not can_ask():
        raise RequestError(
            "Without a terminal as input and output the removal cannot be confirmed; add --yes to remove these."
        )
    elif not confirmed(screen, _listed(rows), "Remove them?"):
        screen.line("Nothing was removed.")
        return 1
    try:
        cache.remove(list(unwanted.values()))
    except OSError as error:
        raise ModelLoadError(f"{error.filename} cannot be removed ({error.strerror}).") from error
    screen.line("Removed.")
    return 0


def _listed(rows: Sequence[_Row]) -> str:
    """Returns a table, and what is in it in all."""
    from engine.cli.screen import columns
    from engine.hub.variants import size_text

    paths = ["" if row.path == row.name else row.path for row in rows]  # a file in a folder is named by its path
    table = [("NAME", "SIZE", "QUANTISATION", "PATH" if any(paths) else "")]
    for row, path in zip(rows, paths, strict=True):
        table.append((row.name, size_text(row.size), row.quantization or "-", path))
    count = f"{len(rows)} model{'' if len(rows) == 1 else 's'}"
    return "\n".join([*columns(table, right=(1,)), f"{count}, {size_text(sum(row.size for row in rows))}"])
