"""Errors of the package in the words of the command line: options as they are written there."""

import re
from collections.abc import Mapping
from types import MappingProxyType

OF_LOADING: Mapping[str, str] = MappingProxyType(
    {
        "n_ctx": "--ctx",
        "n_gpu_layers": "--gpu-layers",
        "n_sequences": "--sequences",
        "chat_template": "--chat-template",
        "family": "--family",
        "projector": "--projector",
        "adapters": "--adapter",
        "revision": "--revision",
    }
)
OF_TURNS: Mapping[str, str] = MappingProxyType(
    {
        "temperature": "--temperature",
        "max_tokens": "--max-tokens",
        "reasoning": "--reasoning",
        "response_format": "--schema",
    }
)
"""Options of Python, and those of the commands."""
BY_SET = frozenset(
    {"n_threads", "response_template", "preflight", "states", "seed", "draft", "check_memory", "kv_tokens"}
)
"""Options of loading that errors name and `--set` gives."""
_OPTION = re.compile(
    r"""\b(?P<name>[a-z]\w*)=
        (?P<value> True | False | None | "[^"]*" | '[^']*' | -?\d+(?:,\d{3})*(?:\.\d+)? )?""",
    re.VERBOSE,
)
_PHRASES = MappingProxyType(
    {
        "(its text, or the path of a .jinja file)": "FILE.jinja",
        "complete() needs no template": "`run --raw` continues a text without one",
        "llm.complete": "run --raw",
        "llm.embed": "llama-engine embed",
        "llm.rerank": "llama-engine rerank",
        "pass the path of a .gguf file": "give the path of a .gguf file",
    }
)
_WORDS = MappingProxyType({"True": "on", "False": "off", "None": ""})
_JSON = MappingProxyType({"True": "true", "False": "false", "None": "null"})
_QUOTES = "\"'"


def spoken(text: str, *, chat: bool = False) -> str:
    """Returns a message with Python's options as the command line writes them: `--ctx 4096` for `n_ctx=4,096`. `chat`:
    those of turns stay, as `/set` has Python's names for them."""
    for theirs, ours in _PHRASES.items():
        text = text.replace(theirs, ours)

    def option(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"] or ""
        known = OF_LOADING.get(name) or ("" if chat else OF_TURNS.get(name))
        if not known and name in BY_SET:
            return f"--set {name}={_JSON.get(value, value).strip(_QUOTES).replace(',', '')}"
        if not known:
            return found[0]
        value = _WORDS.get(value, value.strip(_QUOTES).replace(",", ""))
        return f"{known} {value}".rstrip()

    return _OPTION.sub(option, text)
