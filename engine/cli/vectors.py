"""`llama-engine embed` and `rerank`: texts from arguments, files or a pipe; vectors and ranks as JSON lines, or vectors
as a NumPy file."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.cli.exit_codes import DONE
from engine.cli.named import add_model_option
from engine.cli.standard import output
from engine.support.errors import RequestError
from engine.support.output_file import write_file
from engine.turns.embedding import numpy_file
from engine.turns.options import EmbedOptions, RerankOptions

_NUMPY, _LINES = ".npy", ".jsonl"


def add_embed(commands: Any) -> argparse.ArgumentParser:
    """Add the command with its own arguments, and return it. `commands`: what argparse's `add_subparsers` returns."""
    command: argparse.ArgumentParser = commands.add_parser("embed", help="make the vectors of texts")
    command.set_defaults(places=("model", "texts*"))
    _add_model(command)
    command.add_argument("texts", metavar="TEXT", nargs="*", help="a text; several are made into vectors together")
    _add_texts(command, "texts")
    command.add_argument(
        "--input-type",
        choices=("query", "document"),
        help="put before each text what this model wants there, where that is known",
    )
    command.add_argument("--prefix", metavar="TEXT", help="put this before each text instead")
    command.add_argument(
        "--dimensions", metavar="N", type=int, help="only the first N numbers, for models that were trained so"
    )
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help=f"write {_NUMPY} (float32, a row for each text) or {_LINES} instead of JSON lines to standard output",
    )
    return command


def add_rerank(commands: Any) -> argparse.ArgumentParser:
    """Add the command with its own arguments, and return it."""
    command: argparse.ArgumentParser = commands.add_parser(
        "rerank", help="rank documents by how well they answer a query"
    )
    command.set_defaults(places=("model", "query", "texts*"))
    _add_model(command)
    command.add_argument("query", metavar="QUERY", nargs="?", help="what the documents should answer")
    command.add_argument("texts", metavar="DOCUMENT", nargs="*", help="a document")
    _add_texts(command, "documents")
    command.add_argument("--top-n", metavar="N", type=int, help="the most documents to print; by default all")
    return command


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "model", metavar="MODEL", nargs="?", help="a GGUF file, or a model on the Hugging Face Hub: owner/repo:Q8_0"
    )
    add_model_option(command)


def _add_texts(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--file",
        metavar="FILE",
        action="append",
        default=[],
        help=f"{what}, one a line; - reads standard input, as does a pipe if there are no others; may be given "
        "several times",
    )
    command.add_argument(
        "--truncate", action="store_true", help="read the beginning of a text that is too long; else it is an error"
    )


def embed(options: argparse.Namespace) -> int:
    """Print or write the vectors of all texts, in order. Nothing is written if one of them has none."""
    from engine.cli import commands

    path: Path | None = options.output
    if path is not None and path.suffix not in (_NUMPY, _LINES):
        raise RequestError(f"{path} must end in {_NUMPY} or {_LINES}, which says what to write.")
    texts = _texts(options, "TEXT")
    how: EmbedOptions = {
        "input_type": options.input_type,
        "prefix": options.prefix,
        "dimensions": options.dimensions,
        "truncate": options.truncate,
    }
    with commands.load(options) as llm:
        vectors = llm.embed(texts, **how)
    if path is None:
        _print(_vector_lines(vectors))
        return DONE
    content = [numpy_file(vectors)] if path.suffix == _NUMPY else map(str.encode, _vector_lines(vectors))
    try:
        write_file(path, *content)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error}. Name another file.") from error
    return DONE


def rerank(options: argparse.Namespace) -> int:
    """Print the documents with their scores, the best first."""
    from engine.cli import commands

    documents = _texts(options, "DOCUMENT")
    how: RerankOptions = {"top_n": options.top_n, "truncate": options.truncate}
    with commands.load(options) as llm:
        ranked = llm.rerank(options.query, documents, **how)
    _print(_line({"index": each.index, "score": each.score, "document": documents[each.index]}) for each in ranked)
    return DONE


def _texts(options: argparse.Namespace, name: str) -> list[str]:
    """Returns the texts of the arguments, then the lines of each file, or those of a pipe."""
    from engine.cli import commands

    files: Sequence[str] = options.file
    texts = [*options.texts, *(line for file in files for line in _lines(commands.read_text(file)))]
    if not options.texts and not files:
        texts = _lines(commands.piped_text() or "")
    if not texts:
        raise RequestError(f"There is nothing to read; add {name}, --file FILE, or pipe lines in.")
    return texts


def _lines(text: str) -> list[str]:
    """Returns the lines, empty ones too, so that a line's number is its vector's."""
    return text.removesuffix("\n").split("\n") if text else []


def _vector_lines(vectors: Any) -> Iterator[str]:
    return (_line({"index": index, "embedding": row.tolist()}) for index, row in enumerate(vectors))


def _line(fields: dict[str, object]) -> str:
    return json.dumps(fields) + "\n"  # ASCII, so that no control code reaches a terminal


def _print(lines: Iterable[str]) -> None:
    with output():
        sys.stdout.writelines(lines)
