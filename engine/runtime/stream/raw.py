"""Raw text and tokens, without a chat template: prompts, gaps to fill in, and what tokens are made of."""

from collections.abc import Iterable, Mapping, Sequence
from operator import index

from engine.formats.families import Format, builtin_families
from engine.formats.parsing import Parser as TextParser
from engine.formats.parsing.reader import Piece
from engine.formats.template.prompt import Prompt
from engine.runtime.loop.backend import Vocab
from engine.runtime.media.media import are_whole
from engine.support.errors import RequestError, shown


def raw_prompt(vocab: Vocab, source: str | Sequence[int]) -> tuple[Prompt, tuple[int, ...]]:
    """Returns the prompt of a text, in which texts of control tokens become control tokens, or of tokens; and these
    tokens. Raises RequestError for a token that the vocabulary does not have, and for none at all."""
    tokens = () if isinstance(source, str) else tokens_of(vocab, source)
    if not source:
        raise RequestError("The prompt is empty; give the model at least one token to continue.")
    text = source if isinstance(source, str) else _text(vocab, tokens)
    return Prompt(text, (Piece(text, True),)), tokens


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
    written = _text(vocab, tokens)
    return Prompt(written, (Piece(written, True),)), tuple(tokens)


def raw_format() -> Format:
    """Returns the format in which everything generated is content."""
    return builtin_families().get("content-only").format


def raw_parser() -> TextParser:
    """Returns a parser of `raw_format`."""
    return TextParser(raw_format())


def tokenize(vocab: Vocab, text: object, *, special: bool, add_bos: bool) -> list[int]:
    """Returns the tokens of a text. `special`: texts of control tokens become control tokens; `add_bos`: add the
    beginning token, if prompts of this model have one. Raises RequestError if `text` is not a string."""
    if not isinstance(text, str):
        raise RequestError(f"tokenize() takes a string; this is a {type(text).__name__}.")
    return vocab.encode([Piece(text, special)], add_bos=add_bos)


def detokenize(vocab: Vocab, tokens: Iterable[int]) -> str:
    """Returns the text of tokens, control tokens as their texts; bytes that are not UTF-8 become U+FFFD. Raises
    RequestError for a token that the vocabulary does not have."""
    return _text(vocab, tokens_of(vocab, tokens))


def tokens_of(vocab: Vocab, tokens: Iterable[int]) -> tuple[int, ...]:
    """Returns a caller's list of tokens. Raises RequestError for what is none of this vocabulary's."""
    if isinstance(tokens, str | bytes | bytearray):
        raise RequestError(f"Tokens must be a list of integers; this is a {type(tokens).__name__}.")
    try:
        known = tuple(map(index, tokens))
    except TypeError as error:
        raise RequestError(f"Tokens must be a list of integers ({error}); pass one, or a string.") from error
    return known_tokens(vocab, known)


def known_tokens(vocab: Vocab, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the tokens. Raises RequestError for one that the vocabulary does not have."""
    if wrong := [token for token in tokens if not 0 <= token < vocab.size]:
        raise RequestError(f"There is no token {shown(wrong[0])}; this model has the tokens 0 to {vocab.size - 1}.")
    return tokens


def check_known(vocab: Vocab, tokens: tuple[int, ...]) -> None:
    """Raise RequestError for a token that is neither the vocabulary's nor a row of a whole picture or sound."""
    known_tokens(vocab, tuple(token for token in tokens if token >= 0) if are_whole(tokens) else tokens)


def check_end(tokens: Sequence[int]) -> None:
    """Raise RequestError for a prompt after which nothing can be drawn."""
    if tokens[-1] < 0:
        raise RequestError("The prompt ends with a picture or a sound; let text follow it.")


def _text(vocab: Vocab, tokens: Iterable[int]) -> str:
    return b"".join(map(vocab.token_bytes, tokens)).decode(errors="replace")
