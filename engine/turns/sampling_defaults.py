"""How a model samples where the caller does not say: as its file, its repository or its family states, or llama.cpp."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from engine.types.sampling import SamplingParams
from engine.types.turn_settings import TurnSettings

_log = logging.getLogger("engine.sampling")
LLAMA_CPP: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""What llama.cpp's own programs use (common/common.h, `common_params_sampling`)."""
_OF_FILE = {
    "temp": "temperature",
    "penalty_repeat": "repeat_penalty",
    **{
        name: name
        for name in (
            "top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "penalty_last_n",
        )
    },
}  # fmt: skip
"""Keys below `general.sampling.` in a GGUF (llama.cpp's gguf-py, constants.py), and our names. Its `sequence` of
filters is not used: ours has an order of its own."""
_OF_REPOSITORY = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repeat_penalty",
}
"""Keys of a generation_config.json (transformers' GenerationConfig), and our names."""
_CALLER, _ENGINE = "the caller", "Engine.load"
DRAWING = frozenset(
    {
        "temperature",
        "repeat_penalty",
        "frequency_penalty",
        "presence_penalty",
        "penalty_last_n",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_last_n",
        "seed",
    }
)
"""Numbers that say how a token is drawn, at temperature 0 too."""
FILTERS = frozenset(
    {
        "dynatemp_range",
        "dynatemp_exponent",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "top_n_sigma",
        "xtc_probability",
        "xtc_threshold",
    }
)
"""Those that say it at other temperatures only."""
NOT_OF_DRAWING = frozenset({"logprobs", "max_tokens", "min_tokens", "ignore_eos", "repetition_limit"})
"""Numbers and switches that say nothing of how a token is drawn."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The sampling options that hold where a caller gives none, and who states each."""

    values: Mapping[str, float]
    sources: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<SamplingDefaults: {self.text()}>"

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Returns them for people: "temperature 0.6 (the file); top_k 40, min_p 0.05 (llama.cpp's default)"."""
        return _grouped((name, value, self.sources[name]) for name, value in self.values.items())

    def used(self, settings: TurnSettings) -> str:
        """Returns the same of one turn: what its tokens are drawn with. Filters are left out where nothing is filtered:
        at temperature 0."""
        sampling = settings.sampling
        of_drawing = DRAWING if sampling.temperature == 0 else DRAWING | FILTERS
        told: list[tuple[str, float, str]] = []
        for name in SamplingParams.model_fields:
            value: object = getattr(sampling, name) if name in sampling.model_fields_set else None
            if isinstance(value, int | float) and name in of_drawing:
                told.append((name, value, _CALLER if name in settings.given else self.sources.get(name, _ENGINE)))
        return _grouped(told)


def _grouped(stated: Iterable[tuple[str, float, str]]) -> str:
    """Returns names and values as a text, those with the same source together."""
    groups: dict[str, list[str]] = {}
    for name, value, source in stated:
        groups.setdefault(source, []).append(f"{name} {value:.10g}")
    return "; ".join([f"{', '.join(parts)} ({source})" for source, parts in groups.items()])


def sampling_defaults(
    file: Mapping[str, object] | None = None,
    repository: Iterable[tuple[str, bytes]] = (),
    family: Mapping[str, float] | None = None,
) -> SamplingDefaults:
    """Returns the defaults: of each option the first that is stated.

    - `file`: what stands below `general.sampling.` in the GGUF, without that prefix.
    - `repository`: name and bytes of the generation_config.json of the model's repository and of its base models'.
    - `family`: the family's row.

    A value that cannot be used is left out, with a line in the log.
    """
    if (file or {}).get("mirostat"):
        _log.warning("the file wants to be sampled with mirostat, which there is not; its other values are used")
    stated = [
        ("the family's row", dict(family or {})),
        *((name, _named(_read(data), _OF_REPOSITORY, name)) for name, data in reversed(list(repository))),
        ("the file", _named(file or {}, _OF_FILE, "the file")),
    ]
    values, sources = dict(LLAMA_CPP), dict.fromkeys(LLAMA_CPP, "llama.cpp's default")
    for source, found in stated:
        values |= found
        sources |= dict.fromkeys(found, source)
    return SamplingDefaults(values, sources)


def _read(data: bytes) -> Mapping[str, object]:
    """Returns a generation_config.json; {} for one that is no JSON object, or that wants greedy answers."""
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    config: Mapping[str, object] = cast("Mapping[str, object]", found) if isinstance(found, Mapping) else {}
    return config if config.get("do_sample") is not False else {}


def _named(given: Mapping[str, object], names: Mapping[str, str], source: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for theirs, ours in names.items():
        value = given.get(theirs)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not _fits(ours, value):
            _log.warning("%s of %s is %s, which cannot be used; it is left out", theirs, source, str(value)[:80])
            continue
        found[ours] = value
    return found


def _fits(name: str, value: float) -> bool:
    options: dict[str, Any] = {name: int(value) if isinstance(value, float) and value.is_integer() else value}
    try:
        SamplingParams(**options)
    except ValidationError:
        return False
    return True
