"""The file beside a batch's output that says which job its rows belong to, and which other files the batch wrote."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from engine.support.errors import RequestError
from engine.support.output_file import replacing

_FILES = "files"
_ALWAYS = frozenset({"version", "model", "template", "family"})


@dataclass(frozen=True, slots=True)
class Manifest:
    """`job`: plain values on which the answers depend. `errors`: the error files of the batch: names beside the output,
    or whole paths. `temporary`: the name of a file that was being written; whoever finds it there removes it. `table`:
    the digests of the table that the batch wrote: of the one that is there, and of one that was about to replace it."""

    job: Mapping[str, Any]
    errors: tuple[str, ...] = ()
    temporary: str | None = None
    table: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path, errors: str) -> Self | None:
        """Returns the manifest; None if there is no file. `errors`: the error file of manifests that name none.

        Raises RequestError for a file that cannot be read, or that is not a batch's manifest.
        """
        try:
            content: object = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise RequestError(f"{path} cannot be read ({error}); restore, move or delete it.") from error
        job = dict(cast("Mapping[str, Any]", content)) if isinstance(content, dict) else {}
        files: object = job.pop(_FILES, {"errors": [errors]})
        about = cast("dict[str, object]", files) if isinstance(files, dict) else dict[str, object]()
        names, temporary = about.get("errors"), about.get("temporary")
        table = about.get("table", [])
        if (
            not isinstance(names, list)
            or not isinstance(table, list)
            or not isinstance(temporary, str | None)
            or not job.keys() >= _ALWAYS
        ):
            raise RequestError(f"{path} is not the manifest of a batch; restore, move or delete it.")
        return cls(job, _texts(cast("object", names)), temporary, _texts(cast("object", table)))

    def write(self, path: Path, permissions: int) -> None:
        """Replace the file; `permissions` are for one that is new. Raises OSError."""
        files = {"errors": self.errors, "temporary": self.temporary, "table": self.table}
        with replacing(path, mode=permissions) as (file, _):
            file.write(json.dumps({**self.job, _FILES: files}, indent=2, sort_keys=True).encode() + b"\n")

    def differences(self, job: Mapping[str, Any]) -> list[str]:
        """Returns the names of the values in which another job differs. One that only one of them holds concerns rows
        that the other does not have."""
        return sorted(name for name in self.job.keys() & job.keys() if self.job[name] != job[name])


def _texts(values: object) -> tuple[str, ...]:
    return tuple(map(str, cast("list[object]", values)))
