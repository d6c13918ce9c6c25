"""The files that a batch writes: output, errors, manifest, and a table. They are different files, of this batch and of
no other; torn tails, outdated lines and failures of rows that later succeeded are removed.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from hashlib import file_digest
from itertools import combinations, pairwise
from pathlib import Path
from typing import IO, Any, Self

from engine.batch.index import Index, State
from engine.batch.lines import Lines, changed, writing
from engine.batch.manifest import Manifest
from engine.batch.rows import identity as line_identity
from engine.batch.tabular import SHEETS, is_table
from engine.support.errors import EngineError, RequestError
from engine.support.output_file import Identity, identity, replacing, resolved, temporary_prefix


class Files:
    """All files of one batch, open and locked inside the `with` block. `source` is the identity of the input, if that
    is a file. An `out` that is a table is written at the end, from the lines of an output beside it.

    Raises RequestError if two of them are the same file, if one is no regular file, or if another process writes one.
    """

    def __init__(self, out: str | Path, errors: str | Path | None = None, source: Identity | None = None) -> None:
        path = _resolved(out)
        if path.suffix.lower() in SHEETS:
            raise RequestError(
                f"{path.name}: batches write no {path.suffix} files. Name a .csv, .parquet or .jsonl file."
            )
        self.table = path if is_table(path) else None
        if self.table is not None:
            path = _resolved(path.with_name(f"{path.name}.jsonl"))
        beside = path.with_name(_default_errors(path)) if errors is None else Path(errors)
        self._paths = path, _resolved(beside), _resolved(path.with_name(f"{path.name}.manifest.json"))
        self._source = source
        self._manifest: Manifest | None = None
        self._owns_errors = False
        self.out: Lines
        self.errors: Lines

    def __enter__(self) -> Self:
        out, errors, _ = self._paths
        self._check_different()
        self.out = Lines(out)
        try:
            self.errors = Lines(errors)
        except BaseException:
            self.out.close(remove_empty=self.out.created)
            raise
        return self

    def _check_different(self) -> None:
        """Raise RequestError if one file has two roles, whatever its names are; before any is opened."""
        names: dict[str, Path] = dict(zip(("output", "errors", "manifest"), self._paths, strict=True))
        if self.table is not None:
            names["table"] = self.table
        with writing(self._paths[0]):
            identities = {role: identity(path) for role, path in names.items()}
        if self._source is not None:
            identities["input"] = self._source
        for one, other in combinations(identities, 2):
            if identities[one] == identities[other]:
                raise RequestError(
                    f"{names[one]} is the file of both the {one} and the {other} of this batch. Name another output "
                    "or another file for the errors."
                )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close both files; empty ones are removed if this batch made them."""
        manifest = self._manifest
        empty = not self.errors.size and (manifest is None or kind is None)
        with ExitStack() as closing:
            if kind is not None:
                closing.enter_context(suppress(EngineError))  # the first error is the one to tell
            closing.callback(self.out.close, remove_empty=self.out.created and manifest is None)
            owned = self._owns_errors or self.errors.created
            closing.callback(self.errors.close, remove_empty=empty and owned)
            if empty and manifest is not None:  # first, since another batch may make a file of that name afterwards
                rest = tuple(name for name in manifest.errors if name != self._errors_name)
                self._write(replace(manifest, errors=rest))

    @property
    def _errors_name(self) -> str:
        """The error file as the manifest names it: still right when the folder was moved, if it is in that folder."""
        out, errors, _ = self._paths
        return errors.name if errors.parent == out.parent else str(errors)

    def claim(self, job: Mapping[str, Any], index: Index, *, force: bool) -> None:
        """Check that the files belong to this job (plain values on which its answers depend) and to these rows.

        Raises RequestError for files that no batch of this manifest wrote. Raises it for another job's files, and for
        answers to rows that have changed since, unless `force`: then another job's lines are deleted, and `settle`
        removes those of rows that have changed.
        """
        before = Manifest.read(self._paths[2], _default_errors(self._paths[0]))
        manifest = self._paths[2].name
        named = before is not None and self._errors_name in before.errors
        _check_ours(self.out, f"{manifest} is missing" if before is None else None)
        _check_ours(self.errors, None if named else f"{manifest} does not name it")
        written = before.table if before is not None else ()
        self._check_table(written)
        differences = before.differences(job) if before is not None else []
        if not force:
            self._check_unchanged(differences, index)
        self._owns_errors = named
        if before is not None:
            self._manifest = before
            self._remove_temporary(before.temporary)
            if differences and force:  # by new files: other names (hard links) keep what they have
                self._replace(self.out, ())
                self._replace(self.errors, ())
        names = dict.fromkeys([*(before.errors if before else ()), self._errors_name])
        kept = dict(before.job) if before is not None and not differences else dict[str, Any]()
        self._write(Manifest({**kept, **job}, tuple(names), table=written))

    def _check_table(self, digests: Sequence[str]) -> None:
        """Raise RequestError if a file is in the table's place that has none of these digests: another batch's, or one
        that somebody has changed since."""
        if self.table is None:
            return
        with writing(self.table):
            try:
                digest = _digest(self.table)
            except FileNotFoundError:
                return
        if digest not in digests:
            raise RequestError(
                f"{self.table} exists already, but it is not what this batch wrote there. Name another output, or move "
                "that one away."
            )

    def write_table(self, write: Callable[[IO[bytes]], None]) -> None:
        """Replace the table, whole or not at all; `write` writes its content to a file. Raises RequestError if
        something else has written it meanwhile."""
        table, manifest = self.table, self._manifest
        if table is None or manifest is None:
            raise EngineError("This batch has no table, or its files are not claimed.")
        with writing(table), replacing(table, mode=self.out.permissions) as (new, path):
            self._write(replace(manifest, temporary=path.name))
            write(new)
            new.flush()
            digest = _digest(path)
            self._check_table(manifest.table)
            self._write(replace(manifest, temporary=path.name, table=(*manifest.table, digest)))
        self._write(replace(manifest, table=(digest,)))

    def _check_unchanged(self, differences: Sequence[str], index: Index) -> None:
        """Raise RequestError if going on would delete answers."""
        reason = None
        if differences and (self.out.size or self.errors.size):
            reason = f"belongs to another job; it differs in: {', '.join(differences)}"
        elif rows := sum(index.has_changed(key, name) for key, name, _ in self.out.entries()):
            reason = f"has answers to {rows} row{'' if rows == 1 else 's'} that changed in the input since"
        if reason is not None:
            raise RequestError(
                f"{self.out.path} {reason}. Name another output, or pass force=True (--force) to delete those answers "
                "and compute them anew."
            )

    def _remove_temporary(self, name: str | None) -> None:
        """Remove what a process left behind that died while it replaced a file."""
        for file in (self.out.path, self.errors.path, *([] if self.table is None else [self.table])):
            if name and name == Path(name).name and name.startswith(temporary_prefix(file)):
                with writing(file.with_name(name)):
                    file.with_name(name).unlink(missing_ok=True)

    def _write(self, manifest: Manifest) -> None:
        self._manifest = manifest
        with writing(self._paths[2]):
            manifest.write(self._paths[2], self.out.permissions)

    def settle(self, index: Index, *, in_order: bool = False) -> int:
        """Mark the rows in the index that are done or failed, and remove lines that do not count: a torn tail, lines of
        rows that have changed since, failures of rows that succeeded, and lines that no batch wrote.

        Lines of rows that the input no longer has stay, with `in_order` behind the others, which are sorted like the
        input. Returns how many lines were removed.
        """
        with writing(self.out.path):
            self.out.cut()
            self.errors.cut()
            self._mark(index)
            removed = self._rewrite(self.out, index, "done", in_order=in_order)
            removed += self._rewrite(self.errors, index, "failed", in_order=in_order)
            if removed or in_order:  # the lines are at other places now
                self._mark(index)
        return removed

    def _mark(self, index: Index) -> None:
        index.clear()
        for key, _, place in self.out.entries():
            index.mark(key, "done", place, over=True)
        for key, _, place in self.errors.entries():
            index.mark(key, "failed", place, over=False)

    def finish(self, index: Index, done: int, failed: int, *, in_order: bool) -> None:
        """Hold the files against the input when every row was tried, and with `in_order` sort them like it.

        Raises EngineError if they have not as many rows as were written.
        """
        self.settle(index, in_order=in_order)
        if (index.count("done"), index.count("failed")) != (done, failed):
            raise changed(self.out.path)

    def sync(self) -> None:
        """Make what was written survive a power cut. Raises EngineError if something else has deleted, replaced, cut or
        extended one of the files."""
        self.out.sync()
        self.errors.sync()

    def _rewrite(self, file: Lines, index: Index, state: State, *, in_order: bool) -> int:
        """Keep the lines that count. Returns how many were removed; a file that is right already is not touched."""
        total, kept, others = 0, array("q"), array("q")
        for place, line in file.lines():
            total += 1
            if (row := line_identity(line)) is None:
                continue
            key, name = row
            if name is not None and not index.has_name(name):
                others.append(place)
                kept.append(place)
            elif index.is_at(key, state, place):
                kept.append(place)
        if in_order:
            kept = array("q", index.places(state)) + others
        if len(kept) < total or any(one > other for one, other in pairwise(kept)):
            self._replace(file, file.lines_at(kept))
        return total - len(kept)

    def _replace(self, file: Lines, lines: Iterable[bytes]) -> None:
        """Replace a file, completely or not at all. The manifest names what is written meanwhile, so that it can be
        removed if this process dies."""
        manifest = self._manifest
        if manifest is None:
            raise EngineError(f"{file.path} is not claimed.")
        with writing(file.path), file.replacing() as (new, path):
            self._write(replace(manifest, temporary=path.name))
            new.writelines(lines)
        self._write(replace(manifest, temporary=None))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _default_errors(out: Path) -> str:
    return f"{out.stem}.errors{out.suffix}"


def _resolved(path: str | Path) -> Path:
    try:
        return resolved(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}. Name a file.") from error


def _check_ours(file: Lines, foreign: str | None) -> None:
    """Raise RequestError for a file with content that a batch of this manifest did not write; `foreign` is why not, if
    that is known without reading it."""
    if file.size and (foreign or not file.is_of_a_batch()):
        raise RequestError(
            f"{file.path} exists already, but this batch did not write it ({foreign or 'it has no row'}). Name another "
            "file, or move that one away."
        )
