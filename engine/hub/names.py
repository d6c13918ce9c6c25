"""The names that a caller may write for a model on the Hugging Face Hub, and what they mean."""

import re
import tomllib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from engine.support import _data
from engine.support.errors import ModelLoadError, did_you_mean
from engine.support.packaged import PACKAGED

HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
SPELLINGS = '"owner/repo:Q4_K_M", "owner/repo" or "owner/repo/file.gguf"'

_NAME = re.compile(
    r"""(?P<repo> \w[\w.-]* / \w[\w.-]* )
        (?: @ (?P<revision> refs/\w+/[^/:@]+ | [^/:@]+ ) )?
        (?: : (?P<quantization> [^/:]* ) | / (?P<path> .* ) )?""",
    re.VERBOSE | re.ASCII,
)
_SHORT = re.compile(r"[a-z][\w.-]*(?::(?P<quantization>[\w-]+))?", re.ASCII)
_OLLAMA = re.compile(r"[a-z][\w.-]+:[\w.-]+", re.ASCII)
_SCHEME = re.compile(r"(?P<scheme>\w+)://(?P<rest>.*)", re.ASCII)
# First parts of an address or an hf:// name that are not an owner, and what each is for.
_NO_MODELS = {
    "datasets": "a data set",
    "spaces": "a Space",
    "kernels": "a kernel",
    "buckets": "a bucket",
    "collections": "a collection",
    "papers": "a paper",
    "docs": "a page of the documentation",
    "api": "an address of the API",
}
_VIEWS = frozenset({"blob", "resolve", "raw", "tree"})


@dataclass(frozen=True, slots=True)
class Name:
    """A model on the Hub as the caller named it.

    `revision`: a branch, tag or commit; None is the main branch. `quantization`: such as "Q4_K_M", in any case.
    `pattern`: a file of the repository, or a glob over its files. At most one of the last two is given; with neither, a
    quantisation is chosen.
    """

    repo: str
    revision: str | None = None
    quantization: str | None = None
    pattern: str | None = None

    def __str__(self) -> str:
        end = f":{self.quantization}" if self.quantization else f"/{self.pattern}" if self.pattern else ""
        return f"{self.repo}{f'@{self.revision}' if self.revision else ''}{end}"


@cache
def short_names() -> Mapping[str, str]:
    """Returns what the short names of the suggested models stand for (`[[suggested]]` in models.toml)."""
    tables = tomllib.loads(_data.models_toml().read_text(encoding="utf-8"))["suggested"]
    return {table["name"]: table["model"] for table in tables}


def _short(text: str) -> Name | None:
    """Returns the model that a short name stands for, in another quantisation if one follows; None for other texts."""
    if (found := _SHORT.fullmatch(text)) is None or (model := short_names().get(text.partition(":")[0])) is None:
        return None
    name = parse(model)
    assert name is not None, "models.toml names models on the Hub"
    return replace(name, quantization=found["quantization"] or name.quantization)


def is_bare(text: str) -> bool:
    """Whether a text is one word, as other programs call models: `llama3.2`, `gpt-4o`."""
    return _SHORT.fullmatch(text) is not None and not text.lower().endswith(".gguf")


def near_names(text: str) -> str:
    """Returns a question that names the models whose short names are like a text; "" if none is."""
    return did_you_mean(text, (*short_names(), *PACKAGED), "") if is_bare(text) else ""


def parse(text: str, hosts: AbstractSet[str] = HUB_HOSTS) -> Name | None:
    """Returns the name of a model on the Hub; None for a text that can only be the path of a file.

    `owner/repo.gguf` is a path (`hf://owner/repo.gguf` is not). The short name of a suggested model is one of the Hub,
    `name:Q8_0` in another quantisation. `hosts`: the host names of the Hub. Raises
    ModelLoadError for an address that is not a model's, with the right spelling.
    """
    if scheme := _SCHEME.fullmatch(text):
        if scheme["scheme"] == "hf":
            return _in_hub(scheme["rest"].removeprefix("models/"), text)
        return _address(text, hosts)
    host, _, rest = text.partition("/")
    if host in hosts:  # hf.co/owner/repo, as other programs spell it
        return _address(f"https://{text}", hosts) if _is_view(rest) else _in_hub(rest, text)
    if (short := _short(text)) is not None:
        return short
    if _OLLAMA.fullmatch(text) and not text.lower().endswith(".gguf") and not Path(text).exists():
        near = did_you_mean(text.replace(":", "-"), short_names(), "`llama-engine models suggest` names some.")
        raise ModelLoadError(
            f"{text} looks like a tag of Ollama: write ollama:{text} for what Ollama has on this disk; {near} Write a "
            f"model on the Hugging Face Hub as {SPELLINGS}, or the path of a GGUF file."
        )
    found = _NAME.fullmatch(text)
    if found is None or (found["path"] is None and found["quantization"] is None and text.lower().endswith(".gguf")):
        return None
    return _name(found)


def _is_view(path: str) -> bool:
    parts = path.split("/")
    return len(parts) > 2 and parts[2] in _VIEWS


def _in_hub(rest: str, text: str) -> Name:
    found = _NAME.fullmatch(rest)
    if found is None or found["repo"].split("/")[0] in _NO_MODELS:
        raise _no_model(rest, text)
    return _name(found)


def _name(found: re.Match[str]) -> Name:
    quantization, pattern = found["quantization"] or None, (found["path"] or "").rstrip("/") or None
    if quantization and quantization.lower().endswith(".gguf"):
        quantization, pattern = None, quantization
    return Name(found["repo"], unquote(found["revision"] or "") or None, quantization, pattern)


def _address(text: str, hosts: AbstractSet[str]) -> Name:
    """Returns the model of a page: https://huggingface.co/owner/repo, or .../blob/REVISION/FILE (resolve, raw,
    tree)."""
    try:
        address = urlsplit(text)
    except ValueError as error:
        raise ModelLoadError(f"{text} is not an address: {error}. Write a model on the Hub as {SPELLINGS}.") from error
    if address.scheme not in ("http", "https") or (address.hostname or "") not in hosts:
        raise ModelLoadError(
            f"{text} is not an address of the Hugging Face Hub ({', '.join(sorted(hosts))}). Write a model there as "
            f"{SPELLINGS}; download any other file first, and pass its path."
        )
    parts = [unquote(part) for part in address.path.split("/") if part]
    if len(parts) < 2 or parts[0] in _NO_MODELS or _NAME.fullmatch("/".join(parts[:2])) is None:
        raise _no_model(address.path.strip("/"), text)
    repo, view = "/".join(parts[:2]), parts[2] if len(parts) > 2 else ""
    if view not in _VIEWS:
        return Name(repo)  # a tab of the model's page
    path = "/".join(parts[4:])
    if view == "tree" and path:
        path += "/*"
    return Name(repo, parts[3] if len(parts) > 3 else None, None, path or None)


def _no_model(path: str, text: str) -> ModelLoadError:
    first = path.partition("/")[0]
    what = f"names {_NO_MODELS[first]}" if first in _NO_MODELS else "does not name a repository"
    return ModelLoadError(f"{text} {what}, not a model. Write a model on the Hugging Face Hub as {SPELLINGS}.")
