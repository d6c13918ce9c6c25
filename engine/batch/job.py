"""Runs a batch: reads rows and writes lines, as many rows at once as the engine can use, until all are done or
something stops it."""

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, Unpack, cast, overload

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from engine.api.engine import Engine
from engine.api.engines import Engines
from engine.batch.bodies import Texts, Turn, checked_turn
from engine.batch.column_prompt import column_prompt
from engine.batch.files import Files
from engine.batch.index import Index, Plan
from engine.batch.judged import Judged, RowQuestions, asked_of
from engine.batch.lines import Lines
from engine.batch.rows import (
    ROW_ERRORS,
    Defaults,
    Row,
    answer_line,
    body_line,
    check_columns,
    decision_line,
    failure_line,
)
from engine.batch.source import RowsLike, Source, input_identity
from engine.batch.table import Added, Table, added_columns, joined
from engine.batch.tabular import Frame, is_frame, pyarrow
from engine.openai.embeddings import Embedding
from engine.openai.streaming import no_efforts, without_effort
from engine.runtime.stream.service import Stream
from engine.support.display import counted
from engine.support.errors import (
    BatchInputError,
    EngineError,
    MissingTemplateError,
    QueueFullError,
    RequestError,
    shown,
)
from engine.support.offloop import cancellable
from engine.support.printed import Printed
from engine.support.screens import Screen, duration_text, screen_for
from engine.tools import ToolLike, as_tools
from engine.turns.calibration import Calibration
from engine.turns.options import TurnOptions, refuse_unknown
from engine.turns.questions import QuestionsLike
from engine.types.answer_formats import JsonSchema
from engine.types.completion import Usage

_VERSION = 1
_WAKE_SECONDS = 0.25
_SYNC_SECONDS = 1.0
_ENDS = 1 << 20
Started = TypeVar("Started")
FrameT = TypeVar("FrameT", bound=Frame)


Loader: TypeAlias = Callable[[Plan], Engine]
Model: TypeAlias = Engine | Engines | Loader
Named: TypeAlias = Model | str | Path


@dataclass(frozen=True, slots=True, repr=False)
class Report(Printed):
    """The progress of a batch. `total`: rows in the input; `done` of them are in the output and `failed` in the error
    file, by this call or earlier ones. The tokens, `ran` (rows) and `seconds` are only those of this call. `notes`:
    what was done otherwise than rows asked for."""

    total: int
    done: int
    failed: int
    ran: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        """Rows that are neither done nor failed."""
        return self.total - self.done - self.failed

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Returns the report as one line of text."""
        share = 100 * (self.done + self.failed) // self.total
        words = [f"{self.done + self.failed} of {counted(self.total, 'row')} ({share} %)"]
        if self.failed:
            words.append(f"{self.failed} failed")
        if self.ran and self.seconds > 0:
            words.append(f"{(self.completion_tokens or self.prompt_tokens) / self.seconds:.0f} tokens/s")
            if self.prompt_tokens and self.completion_tokens:
                words.append(f"{100 * self.cached_tokens // self.prompt_tokens} % of prompts cached")
            words.append(f"{duration_text(self.left * self.seconds / self.ran)} left" if self.left else "")
            if not self.left:
                words[-1] = f"in {duration_text(self.seconds)}"
        return ", ".join(words)

    def cost(self) -> str:
        """Returns what this call took, as one line of text."""
        cached = f" ({self.cached_tokens:,} of them cached)" if self.cached_tokens else ""
        tokens = f"{counted(self.prompt_tokens, 'token')} in{cached}, {self.completion_tokens:,} out"
        rate = (self.completion_tokens or self.prompt_tokens) / self.seconds if self.seconds else 0.0
        return f"{tokens}, {self.seconds:.1f} s, {rate:.0f} tokens/s"


class BatchOptions(TurnOptions, total=False):
    """The options of a batch, over those of its turns (which hold for rows without their own).

    - `prompt`: a text around columns, `"Extract: {text}"`, which makes the prompt of each row; a brace itself is
      doubled. `prompt_column`: the column that is the prompt. Without both a row has `prompt` or `messages`.
    - `schema`: a JSON Schema (a dictionary) or a type, short for `response_format`; in tables its fields are columns.
    - `decide`: questions about each row, as `Engine.decide` takes them: rows are judged, nothing is generated, and in
      tables the answers are columns, with their probabilities. `calibration`: what `Calibration.fit` made of your own
      answers to them.
    - `errors`: the file of failed rows; by default the output with `.errors` before its suffix.
    - `tools`, `system`: for rows without their own (`system` for simple rows only).
    - `skip_bad`: rows that are not valid become failed rows. `retry_failed`: compute failed rows again.
    - `force`: compute rows anew whose content or options have changed, and delete their answers; without it they are an
      error.
    - `group`: compute rows with the same beginning next to one another (True). `in_order`: sort the files at the end.
    - `quote_formulas`: in a CSV output, an apostrophe precedes text that a spreadsheet would compute (it begins with
      = + - @, a tab or a return).
    - `in_flight`: rows computed at once (16); should exceed the engine's number of sequences.
    - `on_progress`: called with the report a few times a second, in the caller's thread; without it progress is shown
      on standard error, unless `quiet`.
    """

    prompt: str | None
    prompt_column: str | None
    schema: Any
    decide: "QuestionsLike | None"
    calibration: Calibration | None
    errors: str | Path | None
    tools: Sequence[ToolLike] | None
    system: str | None
    skip_bad: bool
    retry_failed: bool
    force: bool
    group: bool
    in_order: bool
    quote_formulas: bool
    in_flight: int
    on_progress: Callable[[Report], None] | None
    quiet: bool


@dataclass(frozen=True, slots=True)
class _Settings:
    """What a batch is made of: `defaults` holds for rows without their own; the others are `BatchOptions`."""

    defaults: Defaults
    errors: str | Path | None = None
    skip_bad: bool = False
    retry_failed: bool = False
    force: bool = False
    group: bool = True
    in_order: bool = False
    quote_formulas: bool = False
    in_flight: int = 16
    on_progress: Callable[[Report], None] | None = None
    quiet: bool = False


@overload
def run(rows: FrameT, out: None = None, *, llm: Named, **options: Unpack[BatchOptions]) -> FrameT: ...
@overload
def run(rows: RowsLike, out: str | Path, llm: Named, **options: Unpack[BatchOptions]) -> Report: ...
def run(rows: Any, out: Any = None, llm: Named | None = None, **options: Unpack[BatchOptions]) -> Any:
    """Compute every row that `out` does not have yet, and append it there; the same call resumes a batch that died.

    rows: a CSV, Parquet or JSONL file, by its ending, "-" for standard input, an iterable of dictionaries, or a data
    frame of pandas, polars or pyarrow; in OpenAI's batch format, with a `prompt` or `messages`, or with columns that
    `prompt=` names. out: lines of JSON, or a table (.csv, .tsv, .parquet), which is written at the end from such lines
    beside it. Without `out` rows are a frame, and a frame of its library comes back, with columns added; nothing else
    is kept, so nothing can be resumed.

    llm: an engine; or a path or name, as `Engine.load` takes it, or a function that loads one, both once the rows are
    known to be valid; or several models, of which each row's body names its own: the rows of one model are computed
    together, and each model that is named is loaded once before, to see whether it is still the same.

    After the first KeyboardInterrupt the rows under way are finished, a second one stops at once; both return the
    report, with `interrupted`, or the frame, whose other rows say so. Raises BatchInputError for rows that are not
    valid, DiskFullError, RequestError for another job's or another process's files and for answered rows that have
    changed, and the error that stops the engine.
    """
    if isinstance(llm, str | Path):
        with _loaded_later(llm) as load:
            return run(rows, out, load, **options)
    if not isinstance(llm, Engine | Engines) and not callable(llm):
        what = "is missing" if llm is None else f"is {shown(llm)}"
        raise RequestError(f"llm= {what}: give an engine, what Engine.load takes, or a function that loads one.")
    settings = _checked(options)
    if out is not None:
        if not isinstance(out, str | Path):
            raise RequestError(f"out={shown(out)} is not the path of a file: write batch.run(rows, out, llm).")
        return _ran(rows, out, llm, settings)
    if not is_frame(rows):
        raise RequestError("out= is missing: name the file for the answers. Only a data frame comes back as a frame.")
    for name in ("errors", "retry_failed", "force", "in_order", "quote_formulas"):
        if getattr(settings, name):
            raise RequestError(f"{name}= is for batches that write a file: name one with out=, or leave it out.")
    if not rows.shape[0]:
        return joined(rows, {name: [] for name in _added(settings.defaults).names})
    frames: list[Any] = []
    with _temporary_folder() as folder:
        _ = _ran(rows, folder / "answers.jsonl", llm, settings, lambda table: frames.append(table.joined(rows)))
    return frames[0]


@contextmanager
def _loaded_later(name: str | Path) -> Generator[Loader]:
    """Yields what loads a model by its path or name, once the rows are known to be valid; it is closed at the end."""
    with ExitStack() as loaded:
        yield lambda _: loaded.enter_context(Engine.load(name))


@contextmanager
def _temporary_folder() -> Generator[Path]:
    """Yields a new folder, which is then deleted, as far as the system lets it."""
    try:
        folder = tempfile.mkdtemp(prefix="llama-engine-batch-")
    except OSError as error:
        raise EngineError(
            f"A folder for the answers cannot be made ({error}). Set TMPDIR to another folder."
        ) from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ran(
    rows: RowsLike,
    out: str | Path,
    llm: Model,
    settings: _Settings,
    deliver: Callable[[Table], None] | None = None,
) -> Report:
    """Run the batch; `deliver` gets the table of what was answered, in addition to a file."""
    defaults = settings.defaults
    added = _added(defaults)
    screen = None if settings.quiet or settings.on_progress else screen_for(sys.stderr)
    progress = _Progress(screen, settings.on_progress)
    retry, in_order = settings.retry_failed, settings.in_order
    with Files(out, settings.errors, input_identity(rows)) as files, Source(rows) as source:
        if has_table := files.table is not None or deliver is not None:
            defaults = replace(defaults, added=added.names)
        if files.table is not None and files.table.suffix.lower() == ".parquet":
            _ = pyarrow("parquet", files.table)
        if source.columns is not None:
            check_columns(source.name, source.columns, defaults)
        index = Index(source, defaults, several=isinstance(llm, Engines))
        index.build(skip_bad=settings.skip_bad)
        if has_table and index.kind == "openai":
            raise BatchInputError(f"{source.name} has OpenAI's rows, which make no table; name a .jsonl output.")
        engine = llm if isinstance(llm, Engine | Engines) else llm(index.plan())
        files.claim(_fingerprint(engine, defaults, index.plan()), index, force=settings.force)
        if removed := files.settle(index):
            progress.say(
                f"Removed {removed} line{'' if removed == 1 else 's'} of rows that changed or succeeded since."
            )
        if retry:
            index.retry()
        report = _computed(engine, files, index, progress, settings)
        if not report.left and (report.ran or in_order):
            files.finish(index, report.done, report.failed, in_order=in_order)
        elif retry or deliver is not None:
            files.settle(index)
        files.sync()
        table = Table(source, index, files, added)
        if (path := files.table) is not None and not report.left:
            quotes = settings.quote_formulas
            files.write_table(lambda file: table.write(file, path, rows, quote_formulas=quotes))
        if deliver is not None:
            deliver(table)
    progress.show(report, last=True)
    return report


_OWN = BatchOptions.__annotations__.keys() - TurnOptions.__annotations__.keys()


def _added(defaults: Defaults) -> Added | RowQuestions:
    return defaults.asked or added_columns(defaults.options.get("response_format"), defaults.tools)


def _checked(options: BatchOptions) -> _Settings:
    """Returns the options of a batch, checked. Raises RequestError for one that is not valid."""
    if "progress" in options:
        raise RequestError("progress= reports one turn; for a batch use on_progress=.")
    refuse_unknown(options, frozenset(BatchOptions.__annotations__))
    turn = {name: value for name, value in options.items() if name not in _OWN}
    own: dict[str, Any] = {name: value for name, value in options.items() if name in _OWN}
    schema: Any = own.pop("schema", None)
    if schema is not None:
        if turn.get("response_format") is not None:
            raise RequestError("Both schema= and response_format= are given; they say the same: leave one out.")
        is_schema = isinstance(schema, Mapping | bool)
        turn["response_format"] = JsonSchema(cast("Any", schema)) if is_schema else schema
    given = [name for name, value in {**turn, "tools": own.get("tools") or None}.items() if value is not None]
    asked = _asked(own.pop("decide", None), own.pop("calibration", None), given)
    example = checked_turn("?", own.pop("tools", None), turn)
    prompt = column_prompt(own.pop("prompt", None), own.pop("prompt_column", None))
    defaults = Defaults(example.options, example.tools, own.pop("system", None), prompt, asked=asked)
    settings = _Settings(defaults, **own)
    if settings.in_flight < 1:
        raise RequestError(f"in_flight={settings.in_flight} is not valid; give 1 or more.")
    return settings


_JUDGED = frozenset({"adapters", "cache_salt"})
"""The options of turns that hold for rows that are judged."""


def _asked(questions: object, calibration: object, given: Sequence[str]) -> RowQuestions | None:
    """Returns what is asked about each row; None where rows are answered. `given`: the options of turns."""
    if questions is None:
        if calibration is not None:
            raise RequestError("calibration= is for questions: give them with decide=, or leave it out.")
        return None
    if idle := sorted(set(given) - _JUDGED):
        raise RequestError(f"decide= generates nothing, so that {idle[0]}= says nothing; leave one of them out.")
    return asked_of(questions, calibration)


def _computed(llm: Engine | Engines, files: Files, index: Index, progress: "_Progress", settings: _Settings) -> Report:
    """Run the work in threads until it is over; only this thread receives interrupts."""
    before = Report(index.plan().total, index.count("done"), index.count("failed"))
    work = _Work(llm, index.work(group=settings.group), files.out, files.errors, before, settings.defaults)
    in_flight = min(settings.in_flight, max(1, before.left))
    synced = time.monotonic()
    with ThreadPoolExecutor(in_flight, thread_name_prefix="batch") as pool:
        try:
            running: set[Future[None]] = {pool.submit(work.run) for _ in range(in_flight)}
            while running:
                try:
                    done, rest = wait(running, timeout=_WAKE_SECONDS, return_when=FIRST_EXCEPTION)
                    for each in done:
                        each.result()
                    running = rest
                    if time.monotonic() - synced >= _SYNC_SECONDS:
                        files.sync()
                        synced = time.monotonic()
                    progress.show(work.report)
                except KeyboardInterrupt:
                    progress.say(work.interrupt())
        finally:
            work.cancel()
    return work.report


class _Cancellable(Protocol):
    def cancel(self) -> None: ...


class _Answered(NamedTuple):
    """The output line of a row, and what its answers used."""

    line: bytes
    usages: list[Usage]


class _Work:
    """What the threads share: the remaining rows, the running requests, the sums."""

    def __init__(
        self,
        llm: Engine | Engines,
        rows: Iterator[Row | bytes],
        out: Lines,
        errors: Lines,
        before: Report,
        defaults: Defaults,
    ) -> None:
        self._llm = llm
        self._asked, self._options = defaults.asked, dict(defaults.options)
        self._name = "" if isinstance(llm, Engines) else _model_name(llm)
        self._rows = rows
        self._out = out
        self._errors = errors
        self._lock = threading.Lock()
        self._requests: set[_Cancellable] = set()
        self._stopped = False
        self._cancelled = threading.Event()
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
            under_way = len(self._requests)
        rows = f"{under_way} row{'' if under_way == 1 else 's'} under way"
        return f"Finishing {rows}; Ctrl-C again stops at once.\nRun the same command to go on."

    def cancel(self) -> None:
        """Start no more rows and cancel those under way; nothing of them is written."""
        with self._lock:
            self._stopped = True
            self._cancelled.set()
            requests = list(self._requests)
        for request in requests:
            request.cancel()

    def run(self) -> None:
        """Compute rows one after the other, in one thread."""
        while (row := self._next()) is not None:
            if isinstance(row, bytes):
                self._fail(row)
                continue
            try:
                request, model = row.request, self._model(row.request.model)
                if isinstance(request, Judged):
                    answered = self._decision(row, request, model)
                elif isinstance(request, Texts):
                    answered = self._vectors(row, request, model)
                else:
                    answered = self._turn(row, request, model)
            except ROW_ERRORS as error:
                self._fail(failure_line(row, error))
                continue
            if answered is None:
                return
            self._out.append(answered.line)
            self._add(answered.usages)

    def _fail(self, line: bytes) -> None:
        self._errors.append(line)
        with self._lock:
            self._sums = replace(self._sums, failed=self._sums.failed + 1, ran=self._sums.ran + 1)

    def _next(self) -> Row | bytes | None:
        with self._lock:
            return None if self._stopped else next(self._rows, None)

    def _model(self, named: str | None) -> tuple[str, Engine]:
        """Returns the name and the engine that answer a row which names this model. Raises RequestError for one that is
        not there."""
        if not isinstance(self._llm, Engines):
            return self._name, self._llm
        if named is None or named not in self._llm:
            raise RequestError(f"model is {shown(named)}; the models here are {', '.join(map(repr, self._llm))}.")
        return named, self._llm[named]

    def _turn(self, row: Row, turn: Turn, model: tuple[str, Engine]) -> _Answered | None:
        """Returns a turn's answers; None if the work was cancelled."""
        name, llm = model
        streams = self._admitted(lambda: self._started(turn, llm))
        if streams is None:
            return None
        with self._under_way(streams):
            completions = [stream.result() for stream in streams]
        if any(completion.finish_reason == "cancelled" for completion in completions):
            return None
        usages = [completion.usage for completion in completions]
        return _Answered(answer_line(row, turn, name, completions), usages)

    def _vectors(self, row: Row, texts: Texts, model: tuple[str, Engine]) -> _Answered | None:
        """Returns the vectors of texts; None if the work was cancelled."""
        name, llm = model
        embedding = Embedding(llm, texts.request, name)
        pending = self._admitted(embedding.begin)
        if pending is None:
            return None
        try:
            with self._under_way([pending]):
                vectors = pending.result()
        except EngineError:
            if self._cancelled.is_set():
                return None
            raise
        usage = Usage(prompt_tokens=sum(vectors.tokens))
        return _Answered(body_line(row, embedding.whole(vectors)), [usage])

    def _decision(self, row: Row, judged: Judged, model: tuple[str, Engine]) -> _Answered | None:
        """Returns the answers to the questions about a row; None if the work was cancelled."""
        asked, (_, llm) = self._asked, model
        assert asked is not None, "a row is judged because something is asked"
        decide = partial(llm.decide, judged.messages, asked.questions, calibration=asked.calibration, **self._options)
        with cancellable() as call, self._under_way([call]):
            try:
                decision = self._admitted(decide)
            except EngineError:
                if self._cancelled.is_set():
                    return None
                raise
        return None if decision is None else _Answered(decision_line(row, decision), [decision.usage])

    def _started(self, turn: Turn, llm: Engine) -> list[Stream]:
        options = dict(turn.options)
        try:
            return llm.choices(turn.messages, turn.n, turn.tools, offline=True, **options)
        except RequestError as error:
            if (again := without_effort(options, error)) is None:
                raise
            self._note(no_efforts(turn.names.get("reasoning", "reasoning")))
            return llm.choices(turn.messages, turn.n, turn.tools, offline=True, **again)

    def _admitted(self, start: Callable[[], Started]) -> Started | None:
        """Start a request as soon as the engine has room. Returns None if the work was cancelled before."""
        while True:
            try:
                return start()
            except QueueFullError:  # others use this engine too, or more are in flight than it lets wait
                if self._cancelled.wait(_WAKE_SECONDS):
                    return None

    @contextmanager
    def _under_way(self, requests: Sequence[_Cancellable]) -> Generator[None]:
        """These requests are cancelled with the work, if that happens during the block."""
        with self._lock:
            self._requests.update(requests)
        if self._cancelled.is_set():
            for request in requests:
                request.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._requests.difference_update(requests)

    def _note(self, text: str) -> None:
        with self._lock:
            if text not in self._sums.notes:
                self._sums = replace(self._sums, notes=(*self._sums.notes, text))

    def _add(self, usages: Sequence[Usage]) -> None:
        with self._lock:
            sums = self._sums
            self._sums = replace(
                sums,
                done=sums.done + 1,
                ran=sums.ran + 1,
                prompt_tokens=sums.prompt_tokens + sum(usage.prompt_tokens for usage in usages),
                cached_tokens=sums.cached_tokens + sum(usage.cached_tokens for usage in usages),
                completion_tokens=sums.completion_tokens + sum(usage.completion_tokens for usage in usages),
            )


def _fingerprint(llm: Engine | Engines, defaults: Defaults, plan: Plan) -> dict[str, Any]:
    """Returns everything besides the rows on which answers depend; of several models, those that rows name."""
    if isinstance(llm, Engines):
        each = {name: _facts(llm[name], plan) for name in sorted(plan.models) if name in llm}
        keys = dict.fromkeys(key for about in each.values() for key in about)
        facts = {key: {name: about.get(key) for name, about in each.items()} for key in keys}
    else:
        facts = _facts(llm, plan)
    fingerprint = {
        "version": _VERSION,
        **facts,
        "options": {**defaults.options, **({"decide": defaults.asked.plain} if defaults.asked else {})},
        "tools": [tool.openai() for tool in as_tools(defaults.tools)],
        "system": defaults.system,
        "prompt": defaults.prompt.text if defaults.prompt is not None else None,
    }
    return json.loads(json.dumps(fingerprint, default=_stand_in))


def _facts(llm: Engine, plan: Plan) -> dict[str, Any]:
    """Returns what answers depend on of one model; how vectors are made only if a row asks for some. Raises
    MissingTemplateError if no row can be done: all of them ask for an answer, and the model cannot chat."""
    facts: dict[str, Any] = {"model": _model(llm)}
    try:
        facts["template"] = sha256(llm.template.source.encode(errors="surrogatepass")).hexdigest()
        facts |= {"family": llm.family.name, "sampling": dict(llm.sampling.values)}
    except MissingTemplateError:
        if not plan.vectors:
            raise
        facts |= {"template": None, "family": None, "sampling": {}}
    if plan.vectors:
        facts["vectors"] = llm.embedder.facts
    if adapters := llm.adapters:
        facts["adapters"] = {name: each.digest for name, each in adapters.items()}
    return facts


def _stand_in(value: object) -> object:
    """Returns a JSON value for one that JSON does not have; the same in every process."""
    if isinstance(value, type):
        return TypeAdapter(value).json_schema()
    if callable(value):
        return getattr(value, "__qualname__", repr(type(value)))
    return to_jsonable_python(value)


def _model(llm: Engine) -> dict[str, Any] | None:
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


def _model_name(llm: Engine) -> str:
    try:
        return llm.info.name or llm.info.path.name
    except RequestError:
        return llm.family.name


class _Progress:
    """Reports progress to a screen, to the caller's function, or not at all."""

    def __init__(self, screen: Screen | None, function: Callable[[Report], None] | None) -> None:
        self._screen = screen
        self._function = function
        self._last = time.monotonic()
        self._notes = 0

    def say(self, text: str) -> None:
        if self._screen:
            self._screen.line(text)

    def show(self, report: Report, *, last: bool = False) -> None:
        if self._function:
            self._function(report)
        for note in report.notes[self._notes :]:
            self.say(note)
        self._notes = len(report.notes)
        now = time.monotonic()
        if last:
            self.say(report.text())
            if report.ran:
                self.say(report.cost())
        elif self._screen and now - self._last >= self._screen.every:
            self._last = now
            self._screen.state(report.text())
