"""Runs a batch: reads rows and writes lines, as many rows at once as the engine can use, until all are done or
something stops it.

Knows: the order of the steps, which errors fail a row and which end the batch, interrupts, progress. Does not know:
formats (`rows`), files (`files`), how a turn is computed.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeAlias, Unpack, cast

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from engine.batch.bodies import Turn, turn
from engine.batch.files import Files, IfChanged
from engine.batch.lines import Lines, Syncer
from engine.batch.rows import ROW_ERRORS, Defaults, Row, answer_line, failure_line
from engine.batch.source import BadRow, Index, Plan, RowsLike, Source, input_identity
from engine.errors import EngineError, QueueFullError, RequestError
from engine.families import Family
from engine.options import TurnOptions
from engine.runtime.service import Stream
from engine.screens import Screen, duration_text, screen_for
from engine.template.chat_template import ChatTemplate
from engine.tools import ToolLike, as_tools
from engine.types import Completion, MessagesLike

_VERSION = 1
_WAKE_SECONDS = 0.25
_ENDS = 1 << 20


class EngineLike(Protocol):
    """What a batch needs from an `Engine`."""

    @property
    def template(self) -> ChatTemplate: ...

    @property
    def family(self) -> Family: ...

    @property
    def info(self) -> Any: ...

    def choices(
        self,
        messages: MessagesLike,
        n: int,
        tools: Sequence[ToolLike] | None = None,
        *,
        offline: bool = False,
        **options: Unpack[TurnOptions],
    ) -> list[Stream]: ...


Loader: TypeAlias = Callable[[Plan], EngineLike]


@dataclass(frozen=True, slots=True)
class Report:
    """The progress of a batch. `total`: rows in the input; `done` of them are in the output and `failed` in the error
    file, by this call or earlier ones. The tokens, `ran` (rows) and `seconds` are only those of this call."""

    total: int
    done: int
    failed: int
    ran: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def left(self) -> int:
        """Rows that are neither done nor failed."""
        return self.total - self.done - self.failed

    def text(self) -> str:
        """Returns the report as one line of text."""
        share = 100 * (self.done + self.failed) // self.total
        words = [f"{self.done + self.failed} of {self.total} rows ({share} %)"]
        if self.failed:
            words.append(f"{self.failed} failed")
        if self.ran and self.seconds > 0:
            words.append(f"{self.completion_tokens / self.seconds:.0f} tokens/s")
            if self.prompt_tokens:
                words.append(f"{100 * self.cached_tokens // self.prompt_tokens} % of prompts cached")
            words.append(f"{duration_text(self.left * self.seconds / self.ran)} left" if self.left else "")
            if not self.left:
                words[-1] = f"in {duration_text(self.seconds)}"
        return ", ".join(words)


def run(
    rows: RowsLike,
    out: str | Path,
    llm: EngineLike | Loader,
    *,
    errors: str | Path | None = None,
    tools: Sequence[ToolLike] | None = None,
    system: str | None = None,
    skip_bad: bool = False,
    retry_failed: bool = False,
    if_changed: IfChanged = "refuse",
    group: bool = True,
    in_order: bool = False,
    in_flight: int = 16,
    on_progress: Callable[[Report], None] | None = None,
    quiet: bool = False,
    **options: Unpack[TurnOptions],
) -> Report:
    """Compute every row that `out` does not have yet, and append it there; the same call resumes a batch that died.

    rows: a JSONL or Parquet file, "-" for standard input, or an iterable of dictionaries, in OpenAI's batch format or
    with a `prompt` or `messages`. llm: an engine, or a function that loads one, which is called once the rows are known
    to be valid. errors: the file of failed rows; by default `out` with `.errors` before its suffix. tools, system,
    options: for rows without their own (`system` for simple rows only). skip_bad: rows that are not valid become failed
    rows. retry_failed: compute failed rows again. if_changed: what to do with the rows of another job: "refuse",
    "continue" or "restart". group: compute rows with the same beginning next to one another. in_order: sort the files
    at the end. in_flight: rows computed at once; should exceed the engine's number of sequences. on_progress: called
    with the report a few times a second, in this thread; without it progress is shown on standard error, unless
    `quiet`.

    After the first KeyboardInterrupt the rows under way are finished, a second one stops at once; both return the
    report, with `interrupted`. Raises BatchInputError for rows that are not valid, DiskFullError, RequestError for
    another job's or another process's files, and the error that stops the engine.
    """
    if "progress" in options:
        raise RequestError("progress= reports one turn; for a batch use on_progress=.")
    if in_flight < 1:
        raise RequestError(f"in_flight={in_flight} is not valid; give 1 or more.")
    given = turn("?", tools, options)
    defaults = Defaults(given.options, given.tools, system)
    shown = _Teller(None if quiet or on_progress else screen_for(sys.stderr), on_progress)
    with Files(out, errors, input_identity(rows)) as files, Source(rows) as source, Index(source, defaults) as index:
        index.build(skip_bad=skip_bad)
        engine = cast("EngineLike", llm) if hasattr(llm, "choices") else cast("Loader", llm)(index.plan())
        files.claim(_fingerprint(engine, defaults), if_changed)
        if removed := files.settle(index):
            shown.say(f"Removed {removed} line{'' if removed == 1 else 's'} of rows that changed or succeeded since.")
        if retry_failed:
            index.retry()
        report = _computed(engine, files, index, shown, group=group, in_flight=in_flight)
        if not report.left and (report.ran or in_order):
            files.finish(index, report.done, report.failed, in_order=in_order)
        elif retry_failed:
            files.settle(index)
        files.check()
    shown.end(report)
    return report


def _computed(llm: EngineLike, files: Files, index: Index, shown: "_Teller", *, group: bool, in_flight: int) -> Report:
    before = Report(index.plan().total, index.count("done"), index.count("failed"))
    work = _Work(llm, index.work(group=group), files.out, files.errors, before)
    with Syncer(files.out, files.errors) as syncer:
        return _driven(work, syncer, shown, min(in_flight, max(1, before.left)))


def _driven(work: "_Work", syncer: Syncer, shown: "_Teller", in_flight: int) -> Report:
    """Run the work in threads until it is over; only this thread receives interrupts."""
    fault: BaseException | None = None
    with ThreadPoolExecutor(in_flight, thread_name_prefix="batch") as pool:
        try:
            running: set[Future[None]] = {pool.submit(work.run) for _ in range(in_flight)}
            while running:
                try:
                    done, rest = wait(running, timeout=_WAKE_SECONDS, return_when=FIRST_EXCEPTION)
                    fault = fault or next(filter(None, (each.exception() for each in done)), None) or syncer.fault
                    running = rest
                    if fault is not None:
                        work.cancel()
                    shown.show(work.report)
                except KeyboardInterrupt:
                    shown.say(work.interrupt())
        finally:
            work.cancel()
    if fault is not None:
        raise fault
    return work.report


class _Work:
    """What the threads share: the remaining rows, the running streams, the sums."""

    def __init__(
        self, llm: EngineLike, rows: Iterator[Row | BadRow], out: Lines, errors: Lines, before: Report
    ) -> None:
        self._llm = llm
        self._model = _model_name(llm)
        self._rows = rows
        self._out = out
        self._errors = errors
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._stopped = False
        self._cancelled = False
        self._over = threading.Event()
        self._began = time.monotonic()
        self._sums = before

    @property
    def report(self) -> Report:
        """The progress so far."""
        with self._lock:
            return replace(self._sums, seconds=time.monotonic() - self._began)

    def interrupt(self) -> str:
        """Start no more rows; the second time, also cancel those under way. Returns the text to show."""
        if self._stopped:
            self.cancel()
            return "Stopped; run the same command to go on."
        with self._lock:
            self._stopped = True
            self._sums = replace(self._sums, interrupted=True)
            under_way = len(self._streams)
        rows = f"{under_way} row{'' if under_way == 1 else 's'} under way"
        return f"Finishing {rows}; Ctrl-C again stops at once.\nRun the same command to go on."

    def cancel(self) -> None:
        """Start no more rows and cancel those under way; nothing of them is written."""
        with self._lock:
            self._stopped = self._cancelled = True
            self._over.set()
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()

    def run(self) -> None:
        """Compute rows one after the other, in one thread."""
        while (row := self._next()) is not None:
            if isinstance(row, BadRow):
                self._errors.append(row.line)
                self._add((), failed=True)
                continue
            try:
                completions = self._answers(row)
            except ROW_ERRORS as error:
                self._errors.append(failure_line(row, error))
                self._add((), failed=True)
                continue
            if not completions or any(completion.finish_reason == "cancelled" for completion in completions):
                return
            self._out.append(answer_line(row, self._model, completions))
            self._add(completions, failed=False)

    def _next(self) -> Row | BadRow | None:
        with self._lock:
            return None if self._stopped else next(self._rows, None)

    def _answers(self, row: Row) -> list[Completion]:
        streams = self._started(row.turn)
        with self._under_way(streams):
            return [stream.result() for stream in streams]

    def _started(self, asked: Turn) -> list[Stream]:
        """Start a row's turns. Returns an empty list if the work was cancelled before the engine had room."""
        while True:
            try:
                options = cast("TurnOptions", asked.options)
                return self._llm.choices(asked.messages, asked.n, asked.tools, offline=True, **options)
            except QueueFullError:  # others use this engine too, or more are in flight than it lets wait
                if self._over.wait(_WAKE_SECONDS):
                    return []

    @contextmanager
    def _under_way(self, streams: Sequence[Stream]) -> Generator[None]:
        with self._lock:
            self._streams.update(streams)
            cancelled = self._cancelled
        try:
            if cancelled:
                for stream in streams:
                    stream.cancel()
            yield
        finally:
            with self._lock:
                self._streams.difference_update(streams)

    def _add(self, completions: Sequence[Completion], *, failed: bool) -> None:
        usages = [completion.usage for completion in completions if completion.usage is not None]
        with self._lock:
            sums = self._sums
            self._sums = replace(
                sums,
                done=sums.done + (not failed),
                failed=sums.failed + failed,
                ran=sums.ran + 1,
                prompt_tokens=sums.prompt_tokens + sum(usage.prompt_tokens for usage in usages),
                cached_tokens=sums.cached_tokens + sum(usage.cached_tokens for usage in usages),
                completion_tokens=sums.completion_tokens + sum(usage.completion_tokens for usage in usages),
            )


def _fingerprint(llm: EngineLike, defaults: Defaults) -> dict[str, Any]:
    """Returns everything besides the rows on which answers depend."""
    fingerprint = {
        "version": _VERSION,
        "model": _model(llm),
        "template": sha256(llm.template.source.encode(errors="surrogatepass")).hexdigest(),
        "family": llm.family.name,
        "sampling": dict(llm.family.sampling),
        "options": dict(defaults.options),
        "tools": [tool.openai() for tool in as_tools(defaults.tools)],
        "system": defaults.system,
    }
    return json.loads(json.dumps(fingerprint, default=_stand_in))


def _stand_in(value: object) -> object:
    """Returns a JSON value for one that JSON does not have; the same in every process."""
    if isinstance(value, type):
        return TypeAdapter(value).json_schema()
    if callable(value):
        return getattr(value, "__qualname__", repr(type(value)))
    return to_jsonable_python(value)


def _model(llm: EngineLike) -> dict[str, Any] | None:
    """Identifies the weights by the sizes and the ends of their file, which takes no time. None without a file."""
    try:
        info = llm.info
    except RequestError:
        return None
    digest = sha256()
    try:
        with Path(info.path).open("rb") as file:
            digest.update(file.read(_ENDS))
            file.seek(max(0, file.seek(0, 2) - _ENDS))
            digest.update(file.read())
    except OSError as error:
        raise EngineError(f"{info.path} cannot be read any more: {error}.") from error
    about = {name: getattr(info, name) for name in ("architecture", "name", "quantization", "parameters", "size_bytes")}
    return {**about, "ends": digest.hexdigest()}


def _model_name(llm: EngineLike) -> str:
    try:
        return llm.info.name or llm.info.path.name
    except RequestError:
        return llm.family.name


class _Teller:
    """Reports progress to a screen, to a function, or not at all."""

    def __init__(self, screen: Screen | None, told: Callable[[Report], None] | None) -> None:
        self._screen = screen
        self._told = told
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        if self._screen:
            self._screen.line(text)

    def show(self, report: Report) -> None:
        if self._told:
            self._told(report)
        now = time.monotonic()
        if self._screen and now - self._last >= self._screen.every:
            self._last = now
            self._screen.state(report.text())

    def end(self, report: Report) -> None:
        if self._told:
            self._told(report)
        self.say(report.text())
