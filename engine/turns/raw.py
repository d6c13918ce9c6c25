"""Prompts without a chat template: a text, tokens, or a gap to fill in; and the format of plain output."""

from collections.abc import Mapping, Sequence

from engine.formats.families import Format, builtin_families
from engine.formats.parsing import Parser
from engine.runtime.loop.backend import Vocab
from engine.runtime.stream.raw import text_of, tokens_of
from engine.support.errors import RequestError
from engine.types.prompt import Piece, Prompt


def raw_prompt(vocab: Vocab, source: str | Sequence[int]) -> tuple[Prompt, tuple[int, ...]]:
    """Returns the prompt of a text, in which texts of control tokens become control tokens, or of tokens; and these
    tokens. Raises RequestError for a token that the vocabulary does not have, and for none at all."""
    tokens = () if isinstance(source, str) else tokens_of(vocab, source)
    if not source:
        raise RequestError("The prompt is empty; give the model at least one token to continue.")
    text = source if isinstance(source, str) else text_of(vocab, tokens)
    return Prompt(text, (Piece(text, trusted=True),)), tokens


def infill_prompt(vocab: Vocab, beginning: str, end: str, files: Mapping[str, str]) -> tuple[Prompt, tuple[int, ...]]:
    """Returns the prompt for the text between a beginning and an end, in the order that models of this kind were
    trained on (llama.cpp's server has the same), behind other files of the repository. Nothing in these texts becomes
    a control token. Raises RequestError if the model was not made for filling in."""
    if (fim := vocab.fim) is None:
        raise RequestError("suffix needs a model made to fill in text; this vocabulary has no tokens for that.")
    if files and fim.file < 0:
        raise RequestError("files needs a model that reads repositories; this vocabulary has no token for a file.")

    def text(*parts: str) -> list[int]:
        return vocab.tokenize("".join(parts), special=False)

    tokens = vocab.encode([], add_bos=True)
    if files and fim.repo >= 0:
        tokens += [fim.repo, *text("repository\n")]
    for name, content in files.items():
        tokens += [fim.file, *text(name, "\n", content, "" if content.endswith("\n") else "\n")]
    if files:
        tokens.append(fim.file)
    tokens += [fim.prefix, *text(beginning), fim.suffix, *text(end), fim.middle]
    written = text_of(vocab, tokens)
    return Prompt(written, (Piece(written, trusted=True),)), tuple(tokens)


def raw_format() -> Format:
    """Returns the format in which everything generated is content."""
    return builtin_families().get("content-only").format


def raw_parser() -> Parser:
    """Returns a parser of `raw_format`."""
    return Parser(raw_format())
