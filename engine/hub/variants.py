"""Finds which GGUF files of a repository belong together, and which of them a name means.

Sizes are bytes.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import PurePosixPath

from engine.hub.names import Name
from engine.support.errors import ModelLoadError

PREFERRED = "Q4_K_M"

_GGUF = ".gguf"
_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
# The spellings of llama.cpp's quantize tool and of publishers of models; "UD-" marks Unsloth's mixtures.
_QUANTIZATION = re.compile(
    r"""(?<![A-Z0-9]) (?P<dynamic> UD- )?
        (?: (?P<quantized> I?Q(?P<bits>[1-8]) (?: _(?:[0-9]|K|KS|KSS|KT|NL|XXS|XS|S|M|L|XL|XXL|R[48]) )*
                         | TQ(?P<ternary>[12])_0 | MXFP4(?:_MOE)? | NVFP4 )
          | (?P<plain> BF16 | FP?16 | FP?32 ) )
        (?![A-Z0-9])""",
    re.VERBOSE | re.IGNORECASE,
)
_NO_MODEL = re.compile(r"(?<![A-Z0-9])(mmproj|imatrix|lora|adapter|vocab)(?![A-Z0-9])", re.IGNORECASE)
_PROJECTOR = "mmproj"
_PRECISIONS = ("F16", "BF16", "Q8_0")
"""Precisions of a projector, the first one best: F16 is what most are published in and tried with. F32, twice its size,
holds nothing more, since the weights were trained in 16 bits."""
_SHOWN = 20  # maximum number of items of a list in a message
_RESERVE = 512 << 20  # in addition to the weights: context, buffers, this process


@dataclass(frozen=True, slots=True)
class File:
    """A file of a repository: its path there, and its size if the Hub reports it."""

    path: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One model of a repository: a GGUF file, or all parts of a split one, in order.

    `quantization`: from the file name, in the usual spelling ("Q4_K_M", "UD-Q4_K_XL", "BF16"); "" if there is none.
    `lacking`: numbers of missing parts, the first 20. `is_model`: false for projectors, importance matrices, adapters
    and vocabularies.
    """

    quantization: str
    files: tuple[File, ...]
    lacking: tuple[int, ...]
    is_model: bool

    @property
    def path(self) -> str:
        """The path of the first file."""
        return self.files[0].path

    @property
    def is_projector(self) -> bool:
        return _PROJECTOR in _kinds(self.path)

    @property
    def size(self) -> int | None:
        """Bytes of all files; None if the size of one is not known."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if len(sizes) == len(self.files) else None


def size_text(size: int | None) -> str:
    """Returns a size as the Hub's pages show it: decimal units, three digits."""
    if size is None:
        return "size unknown"
    amount, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:#.3g} {unit}".replace(". ", " ")


def quantization_of(path: str) -> str:
    """Returns the quantisation in a file's name, otherwise the one in its folder's name; "" if neither has one."""
    whole = PurePosixPath(path)
    for text in (whole.name, *(folder.name for folder in whole.parents)):
        found = list(_QUANTIZATION.finditer(text))
        if found:
            # "f16.Q6_K": some tensors are F16, but the quantised type is the one that counts.
            quantized = [each for each in found if each["quantized"]]
            return (quantized or found)[-1][0].upper().replace("FP16", "F16").replace("FP32", "F32")
    return ""


def base_of(variant: Variant) -> str:
    """Returns a file's name without quantisation and part, in lower case: the same for all quantisations of one
    model."""
    return base_of_path(variant.path)


def base_of_path(path: str) -> str:
    part = _PART.fullmatch(path)
    name = PurePosixPath(part["stem"] if part else path[: -len(_GGUF)]).name
    return re.sub(r"[^a-z0-9]", "", _QUANTIZATION.sub("", name).lower())


def variants_of(files: Iterable[File]) -> list[Variant]:
    """Returns the models among the files of a repository, with the parts of split models together, sorted by path."""
    groups: dict[tuple[str, int], dict[int, File]] = {}
    for file in files:
        if not file.path.lower().endswith(_GGUF):
            continue
        part = _PART.fullmatch(file.path)
        if part and not 1 <= int(part["number"]) <= int(part["count"]):
            continue
        key = (part["stem"], int(part["count"])) if part else (file.path, 1)
        groups.setdefault(key, {})[int(part["number"]) if part else 1] = file
    found: list[Variant] = []
    for (stem, count), parts in sorted(groups.items()):
        lacking = tuple(islice((number for number in range(1, count + 1) if number not in parts), _SHOWN))
        ordered = tuple(parts[number] for number in sorted(parts))
        found.append(Variant(quantization_of(ordered[0].path), ordered, lacking, not _kinds(stem)))
    return found


def _kinds(path: str) -> list[str]:
    """Returns what a file's name says that it is instead of a model."""
    return _NO_MODEL.findall(PurePosixPath(path).name.lower())


def select(
    name: Name, variants: Sequence[Variant], memory: int | None, is_here: Callable[[Variant], bool]
) -> tuple[Variant, str]:
    """Returns the variant that a name means, and why it was chosen ("" if the name contains the quantisation or file).

    `memory`: available bytes, used if no quantisation is named; None if not known. `is_here`: whether a variant needs
    no download; such variants are preferred if they fit. Raises ModelLoadError if the name means no variant, or
    several.
    """
    if not variants:
        raise ModelLoadError(
            f"{name.repo} has no GGUF file. Repositories with this model as GGUF: "
            f"https://huggingface.co/models?other=base_model:quantized:{name.repo}"
        )
    models = [variant for variant in variants if variant.is_model]
    if name.pattern is not None:
        return _whole(name, _by_pattern(name, name.pattern, variants)), ""
    if not models:
        raise ModelLoadError(
            f"{name.repo} has no chat model among its GGUF files: {_paths(variants)}. To load one of them anyway, "
            f"name the file: {name.repo}/{variants[0].path}"
        )
    if name.quantization is not None:
        return _whole(name, _by_quantization(name, name.quantization, models)), ""
    chosen, why = _by_memory(name, models, memory, is_here)
    return _whole(name, chosen), why


def projector_of(
    model: str, variants: Sequence[Variant], room: int | None, is_here: Callable[[Variant], bool], where: str
) -> tuple[Variant, str]:
    """Returns the projector that belongs to the model file at a path, and why it was chosen.

    F16, otherwise BF16, otherwise Q8_0, otherwise the smallest; where that has more than `room` bytes (None: not
    known), the next that fits, at worst the smallest. One that needs no download is preferred if it fits. Raises
    ModelLoadError if there is none, or if several have other names than the model; `where` says in which place.
    """
    found = [each for each in variants if each.is_projector and not each.lacking]
    if not found:
        raise ModelLoadError(
            f"{where} has no projector (mmproj-*.gguf) for {model}: the model reads text only, or its projector "
            "is elsewhere. Leave projector out, or name its file."
        )
    pure = PurePosixPath(model)
    found = [each for each in found if PurePosixPath(each.path).parent == pure.parent] or found
    names = {each: base_of(each).replace(_PROJECTOR, "") for each in found}
    found = [each for each in found if names[each] == base_of_path(model)] or found
    fitting = [each for each in found if room is None or (each.size or 0) <= room]
    best = min(
        [each for each in fitting if is_here(each)] or fitting or found,
        key=lambda each: _precision(each) if fitting else (0, each.size or 0),
    )
    same = [each for each in found if names[each] != names[best] or each.quantization == best.quantization]
    if len(same) > 1:
        raise ModelLoadError(f"{where} has several projectors: {_paths(found)}. Name the one for {model}.")
    beside = "" if room is None else f"; {size_text(room)} of memory are for it"
    others = "the only one" if len(found) == 1 else f"one of {len(found)}"
    return best, f"{best.path}, {others} ({size_text(best.size)}{beside})"


def _precision(projector: Variant) -> tuple[int, int]:
    """Returns a sort key, lower is better."""
    known = projector.quantization in _PRECISIONS
    return _PRECISIONS.index(projector.quantization) if known else len(_PRECISIONS), projector.size or 0


def is_meant(name: Name, variant: Variant) -> bool:
    """Whether a name with a quantisation or a pattern means this variant."""
    if name.quantization is not None:
        return _plain(variant.quantization) == _plain(name.quantization)
    pattern = (name.pattern or "*").lower()
    return any(pattern == file.path.lower() or fnmatchcase(file.path.lower(), pattern) for file in variant.files)


def _by_pattern(name: Name, pattern: str, variants: Sequence[Variant]) -> Variant:
    def matching(matches: Callable[[str], bool]) -> list[Variant]:
        return [variant for variant in variants if any(matches(file.path) for file in variant.files)]

    wanted = pattern.lower()
    found = (
        matching(lambda path: path == pattern)
        or matching(lambda path: path.lower() == wanted)
        or matching(lambda path: fnmatchcase(path.lower(), wanted))
    )
    found = [variant for variant in found if variant.is_model] or found
    if not found:
        raise ModelLoadError(f"{name.repo} has no GGUF file {pattern!r}. It has {_paths(variants)}.")
    return _only(name, found, f"files that {pattern!r} matches")


def _by_quantization(name: Name, quantization: str, models: Sequence[Variant]) -> Variant:
    wanted = _plain(quantization)
    found = [model for model in models if _plain(model.quantization) == wanted]
    found = found or [model for model in models if _plain(model.quantization.removeprefix("UD-")) == wanted]
    if not found:
        near = _nearest(wanted, models)
        hint = f" Did you mean {spelling(name.repo, near, models)}?" if near else ""
        raise ModelLoadError(
            f"{name.repo} has no quantisation {quantization!r}. It has {_quantizations(models)}.{hint}"
        )
    return _only(name, found, f"models in {found[0].quantization}")


def _nearest(wanted: str, models: Sequence[Variant]) -> Variant | None:
    """Returns the model that a cut-off or mistyped quantisation most likely means: "Q4" is Q4_K_M rather than Q4_0."""
    named = {_plain(model.quantization): model for model in models}
    begun = [model for plain, model in named.items() if wanted and plain.startswith(wanted)]
    close = [named[plain] for plain in get_close_matches(wanted, named, n=1, cutoff=0.7)]
    return min(begun, key=_preference) if begun else next(iter(close), None)


def _by_memory(
    name: Name, models: Sequence[Variant], memory: int | None, is_here: Callable[[Variant], bool]
) -> tuple[Variant, str]:
    fitting = [model for model in models if _fits(model, memory) and not model.lacking]
    if not fitting:
        smallest = min(models, key=lambda model: model.size or 0)
        raise ModelLoadError(
            f"No quantisation of {name.repo} fits into the memory available, {size_text(memory)}: it has "
            f"{_quantizations(models)}. Free memory, choose a smaller model, or name one to load it anyway: "
            f"{spelling(name.repo, smallest, models)}"
        )
    here = [model for model in fitting if is_here(model)]
    chosen = min(here or fitting, key=_preference)
    same = [model for model in here or models if model.quantization == chosen.quantization]
    chosen = _only(name, same, f"models in {chosen.quantization}" if chosen.quantization else "models")
    room = "" if memory is None else f"; {size_text(memory)} of memory are available"
    label = chosen.quantization or PurePosixPath(chosen.path).name
    others = "the only one" if len(models) == 1 else f"one of {len(models)}"
    return chosen, f"{label}, {others} ({size_text(chosen.size)}{', downloaded before' if here else ''}{room})"


def _fits(variant: Variant, memory: int | None) -> bool:
    size = variant.size
    return memory is None or size is None or size + max(size // 10, _RESERVE) <= memory


def _preference(variant: Variant) -> tuple[int, bool, bool, int]:
    """Returns a sort key, lower is better: Q4_K_M first, as other programs choose; then others with four bits, K-quants
    before others and larger before smaller; then more bits, the fewest first; then fewer bits, the largest first."""
    bits, size = _bits(variant.quantization), variant.size or 0
    if bits == 4:
        blocks = "_K" in variant.quantization or "FP4" in variant.quantization
        return 0, variant.quantization != PREFERRED, not blocks, -size
    if bits > 4:
        return 1, False, False, size
    return (2, False, False, -size) if bits else (3, False, False, size)


def _bits(quantization: str) -> int:
    """Returns roughly the bits per weight, from the name; 0 for no name."""
    found = _QUANTIZATION.fullmatch(quantization)
    if found is None:
        return 0
    if found["plain"]:
        return int(found["plain"][-2:])
    return int(found["bits"] or found["ternary"] or 4)


def _whole(name: Name, variant: Variant) -> Variant:
    if variant.lacking:
        parts = ", ".join(str(number) for number in variant.lacking)
        raise ModelLoadError(
            f"{name.repo} lacks part {parts} of the split model {variant.path}; use another quantisation or "
            "repository, or tell its owner."
        )
    return variant


def _only(name: Name, found: Sequence[Variant], what: str) -> Variant:
    if len(found) > 1:
        raise ModelLoadError(f"{name.repo} has several {what}: {_paths(found)}. Name one: {name.repo}/{found[0].path}")
    return found[0]


def _plain(quantization: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", quantization.upper().replace("FP16", "F16").replace("FP32", "F32"))


def _paths(variants: Sequence[Variant]) -> str:
    return _listed(f"{variant.path} ({size_text(variant.size)})" for variant in variants)


def _quantizations(models: Sequence[Variant]) -> str:
    ordered = sorted(models, key=lambda model: model.size or 0)
    return _listed(f"{model.quantization or model.path} ({size_text(model.size)})" for model in ordered)


def _listed(texts: Iterable[str]) -> str:
    """Returns the first items as text, and how many more there are."""
    every = list(texts)
    more = f" and {len(every) - _SHOWN:,} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more


def spelling(repo: str, variant: Variant, among: Sequence[Variant]) -> str:
    """Returns the shortest name of a variant."""
    unique = sum(each.quantization == variant.quantization for each in among) == 1
    return f"{repo}:{variant.quantization}" if variant.quantization and unique else f"{repo}/{variant.path}"
