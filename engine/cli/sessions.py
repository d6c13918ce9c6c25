"""Saved conversations of `llama-engine chat`: files of the caller's, and named sessions in the user's state folder."""

import argparse
import json
import os
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engine.cli.exit_codes import DONE
from engine.support import paths
from engine.support.errors import RequestError, shown
from engine.support.output_file import lock, write_file
from engine.support.own_file import read_regular
from engine.types.messages import Message
from engine.types.parts import Record

_NAME = re.compile(r"\w[\w.-]{0,63}", re.ASCII)
_END = ".json"
_LARGEST = 1 << 28  # in bytes; pictures are inside
_MESSAGES = TypeAdapter(list[Message])


class Saved(Record):
    """A conversation and the names of the models that it was held with. Its file has both as one JSON object, or only
    the list of messages."""

    models: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()


def read(path: Path) -> Saved:
    """Returns the conversation in a file. Raises RequestError for a file that cannot be read, or is none."""
    try:
        found: object = json.loads(read_regular(path, _LARGEST))
        return Saved.model_validate({"messages": found} if isinstance(found, list) else found)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error}. Correct the path.") from error
    except (ValueError, RecursionError) as error:
        first = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
        raise RequestError(f"{path} is not a saved conversation: {first}. Give a file from /save.") from error


def write(path: Path, messages: Sequence[Message], models: Sequence[str] = ()) -> None:
    """Write a conversation completely: an existing file is replaced once the new one is complete. Raises
    RequestError."""
    data = _MESSAGES.dump_json(list(messages), indent=1, exclude_defaults=True)
    if models:
        data = b'{"models": %s,\n "messages": %s}' % (json.dumps(list(models)).encode(), data)
    try:
        write_file(path, data)
    except OSError as error:
        raise RequestError(f"The conversation cannot be saved to {path}: {error}. Give another file.") from error


def folder() -> Path:
    """Returns where sessions are kept: `llama-engine/sessions` in `$XDG_STATE_HOME` (`~/.local/state`), on Windows in
    `%LOCALAPPDATA%`."""
    if sys.platform == "win32":
        state = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        given = os.environ.get("XDG_STATE_HOME", "")
        state = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    return state / "llama-engine" / "sessions"


@contextmanager
def session(name: str) -> Generator[Path]:
    """Yields a session's file, which need not exist yet; no other process has it meanwhile. Raises RequestError for a
    name that is no file's, and if another process has the session."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{shown(name)} cannot name a session; write up to 64 letters, digits, dots, dashes and underscores, and "
            "begin with none of the dots and dashes."
        )
    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (place / f".{name}.lock").open("ab")
    except OSError as error:
        raise _unusable(place, error) from error
    try:
        try:
            is_free = lock(file.fileno())
        except OSError as error:
            raise _unusable(place, error) from error
        if not is_free:
            raise RequestError(
                f"The session {name} is open in another process; end that, or begin another: --session NAME."
            )
        yield place / f"{name}{_END}"
    finally:
        with suppress(OSError):  # nothing was written to it
            file.close()


def _unusable(place: Path, error: OSError) -> RequestError:
    return RequestError(f"Sessions cannot be kept in {place}: {error}. Set XDG_STATE_HOME to another folder.")


def last() -> str:
    """Returns the name of the session that was saved last. Raises RequestError if there is none."""
    if not (files := _files()):
        raise RequestError(
            f"There is no session in {folder()} to continue; begin one: llama-engine chat --session NAME"
        )
    return files[0][1].name.removesuffix(_END)


def _files() -> list[tuple[float, Path]]:
    """Returns the files of all sessions and when they were saved, the last one first. Raises RequestError if the folder
    cannot be read."""
    place, found = folder(), list[tuple[float, Path]]()
    try:
        for path in paths.listed(place):
            if path.name.endswith(_END) and _NAME.fullmatch(path.name.removesuffix(_END)) and paths.is_file(path):
                found.append((path.stat().st_mtime, path))
    except OSError as error:
        raise _unusable(place, error) from error
    return sorted(found, reverse=True)


def add_sessions(commands: Any) -> None:
    """Add the command to a parser's subcommands."""
    command = commands.add_parser("sessions", help="list the named conversations of chat --session")
    command.add_argument("--json", action="store_true", help="print it as one JSON array")


def sessions(options: argparse.Namespace) -> int:
    """List the sessions, the one that was saved last first."""
    from engine.cli.screen import Screen, columns

    rows = [_row(saved, path) for saved, path in _files()]
    screen = Screen(sys.stdout)
    if options.json:
        screen.line(json.dumps(rows, indent=2))
        return DONE
    if not rows:
        screen.line(f"There are no sessions in {folder()}; `llama-engine chat --session NAME` begins one.")
        return DONE
    table = [("NAME", "QUESTIONS", "SAVED", "MODELS")]
    for row in rows:
        count = "damaged" if row["questions"] is None else str(row["questions"])
        table.append((row["name"], count, row["saved"], ", ".join(row["models"])))
    for line in columns(table, right=(1,)):
        screen.line(line)
    screen.line(f"{len(rows)} session{'' if len(rows) == 1 else 's'} in {folder()}")
    return DONE


def _row(changed: float, path: Path) -> dict[str, Any]:
    """Returns what the list says of a session; `questions` is None for a file that cannot be read."""
    time = datetime.fromtimestamp(changed).astimezone()
    row = {"name": path.name.removesuffix(_END), "saved": f"{time:%Y-%m-%d %H:%M}", "path": str(path)}
    try:
        saved = read(path)
    except RequestError:
        return {**row, "questions": None, "models": []}
    asked = sum(message.role == "user" for message in saved.messages)
    return {**row, "questions": asked, "models": list(saved.models)}
