"""Reads the configuration that MCP clients share: `{"mcpServers": {name: {"command", "args", "env", "cwd"}}}`, or
`"url"` and `"headers"` in place of a command."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from engine.support.errors import RequestError

_LISTS = ("mcpServers", "servers")  # the second is VS Code's
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"(?:env:)?([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)


class Entry(NamedTuple):
    """A server of a configuration: its name, its command (in words) or URL, the options of `MCP` that it has, and what
    to put before the names of its tools."""

    name: str
    server: list[str] | str
    options: dict[str, Any]
    prefix: str


def entries(config: object) -> list[Entry]:
    """Returns the servers of a dictionary, or of the JSON file at a path, that are not disabled. `${NAME}` is the
    environment variable, `${NAME:-text}` has a text for one that is not set.

    Raises RequestError for what is no configuration, and for a variable that is not set.
    """
    where = f"{config}" if isinstance(config, str | Path) else "The MCP configuration"
    whole = _loaded(config)
    listed = next((whole[name] for name in _LISTS if name in whole), None)
    if not isinstance(listed, Mapping):
        raise RequestError(f'{where} must have "mcpServers": {{"name": {{"command": "..."}}}}.')
    servers = cast("Mapping[str, Any]", listed).items()
    return [_Server(f'{where}, server "{name}"', entry).entry(name) for name, entry in servers if _is_enabled(entry)]


def _loaded(config: object) -> Mapping[str, Any]:
    if isinstance(config, str | Path):
        try:
            config = json.loads(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RequestError(f"{config} cannot be read as a configuration of MCP servers: {error}.") from error
    return cast("Mapping[str, Any]", config) if isinstance(config, Mapping) else {}


def _is_enabled(entry: object) -> bool:
    return not (isinstance(entry, Mapping) and cast("Mapping[str, Any]", entry).get("disabled") is True)


class _Server:
    """One server; keys that other clients have for themselves are passed over."""

    def __init__(self, where: str, entry: object) -> None:
        self._where = where
        if not isinstance(entry, Mapping):
            raise RequestError(f"{where} must be an object.")
        self._entry = cast("Mapping[str, Any]", entry)

    def entry(self, name: str) -> Entry:
        command, url = self._text("command"), self._text("url")
        server = url if command is None else [command, *self._arguments()]
        if server is None or (command is not None and url is not None):
            raise RequestError(f'{self._where} must have either a "command" or a "url".')
        if self._entry.get("type") == "sse":
            raise RequestError(f"{self._where} speaks SSE, which is no longer read; give its streamable HTTP address.")
        options = {"env": self._texts("env"), "cwd": self._text("cwd"), "headers": self._texts("headers")}
        return Entry(name, server, options, self._text("prefix") or "")

    def _arguments(self) -> list[str]:
        value: object = self._entry.get("args", [])
        if not isinstance(value, list):
            raise RequestError(f'{self._where}: "args" must be a list of texts.')
        return [self._expanded("args", each) for each in cast("list[object]", value)]

    def _text(self, key: str) -> str | None:
        value: object = self._entry.get(key)
        return None if value is None else self._expanded(key, value)

    def _texts(self, key: str) -> dict[str, str] | None:
        value: object = self._entry.get(key)
        if not isinstance(value, Mapping | None):
            raise RequestError(f'{self._where}: "{key}" must be an object of texts.')
        named = cast("Mapping[str, object] | None", value)
        return None if named is None else {name: self._expanded(key, each) for name, each in named.items()}

    def _expanded(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            raise RequestError(f'{self._where}: "{key}" has {value!r:.40} where a text must be.')

        def of_environment(found: re.Match[str]) -> str:
            name = _NAME.fullmatch(found[1])
            text = None if name is None else os.environ.get(name[1], name[2])
            if text is None:
                raise RequestError(f'{self._where}: "{key}" needs the environment variable {found[0]}; set it.')
            return text

        return _VARIABLE.sub(of_environment, value)
