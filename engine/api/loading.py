"""Loads weights, context and template of a file, or for the weights of an open `llama_cpp.Llama`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from engine.api.adapter_loader import AdapterSource
from engine.formats.families import Families, FamilyLike, ResponseTemplate, ResponseTemplateLike, builtin_families
from engine.formats.families.response_template import template_in
from engine.formats.template import renderer
from engine.formats.template.chat_template import ChatTemplate
from engine.isolated import preflight as checks
from engine.isolated.file_trial import try_file
from engine.llama.context import LlamaBackend
from engine.llama.draft import DraftModel, check_draft
from engine.llama.gguf.adapter_file import read_control_vectors
from engine.llama.gguf.gguf import GgufFile, read_gguf
from engine.llama.gguf.projector_file import ProjectorFile, read_projector
from engine.llama.gguf.rope import adopted
from engine.llama.head import head_file, hidden_bytes, why_no_head
from engine.llama.lib import check_devices, library
from engine.llama.model import Model
from engine.llama.plan.machine import ONE_THREAD, available_memory
from engine.llama.plan.plan import Machine, Need, Plan, draft_context, plan, this_machine
from engine.llama.pooling import vector_options
from engine.runtime.loop.config import (
    ContextOptions,
    LlamaOptions,
    LoopOptions,
    MediaOptions,
    ModelOptions,
    check_value,
)
from engine.runtime.stream.service import NOT_CHAT
from engine.support import _data, screens, threads
from engine.support.errors import (
    ContextOverflowError,
    MissingTemplateError,
    ModelLoadError,
    RequestError,
    shown,
)
from engine.support.packaged import packaged
from engine.support.reload import held_by_open
from engine.support.warning import warn
from engine.turns.options import AUTO, HEAD_TOKENS, MTP, NGRAM, LoadOptions, Settings, check_arguments, settings
from engine.turns.sampling_defaults import SamplingDefaults, sampling_defaults
from engine.types.media import prepare_decoding

if TYPE_CHECKING:
    from engine.isolated.parent import IsolatedContext, IsolatedModel

_ALL = 1 << 62
_log = logging.getLogger("engine.llama")


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """The caller's choices for the chat template and the output's format: see `ChatTemplate.for_model`. Raises
    RequestError for one of a wrong type."""

    chat_template: str | Path | None = None
    family: FamilyLike | None = None
    trust_template: bool = False
    response_template: ResponseTemplate | ResponseTemplateLike | None = None

    def __post_init__(self) -> None:
        _ = check_arguments(chat_template=self.chat_template, family=self.family, trust_template=self.trust_template)
        if not isinstance(self.response_template, ResponseTemplate):
            _ = check_arguments(response_template=self.response_template)

    @property
    def is_chosen(self) -> bool:
        """Whether the caller states the output's format."""
        named = self.family is not None and not isinstance(self.family, Families)
        return named or self.response_template is not None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model with its context and template; `weights` own the backend, and the draft model's (`draft`), if that
    is in this process. `loop`: how requests are served. `adapters` reads those of the model."""

    weights: "Model | IsolatedModel"
    backend: "LlamaBackend | IsolatedContext"
    template: ChatTemplate | MissingTemplateError
    loop: LoopOptions
    adapters: AdapterSource = field(default_factory=AdapterSource)
    draft: LlamaBackend | None = None
    sampling: SamplingDefaults | None = None


def load(
    model: str | Path | None,
    options: Settings,
    choice: TemplateChoice,
    *,
    adapters: Mapping[str, str | Path] | None = None,
    preflight: bool = True,
    isolated: bool = False,
    progress: Callable[[float], bool | None] | None = None,
    revision: str | None = None,
    machine: Callable[[], Machine] = this_machine,
    opening: Callable[[Path], None] | None = None,
    draft: object = None,
    projector: str | Path | None = None,
) -> Loaded:
    """Load a GGUF file, in this process or in a child; None is the built-in model. `machine` returns the memory and
    devices that are available; `opening` is called with the file before that. `draft`: who guesses ahead.
    `projector`: what makes rows of pictures and sounds, "auto" to find it. Raises what `Engine.load` raises."""
    check_devices()
    model, revision = resolved(model, revision, machine)
    path = located(model, revision)
    if opening is not None:
        opening(path)
    _warn_without_gpu(options.model)
    _prepare(choice, builtin=model is None)
    file = read_gguf(path)  # a file that is not a model, or does not fit, is refused before anything else is tried
    _check_steering(file, options.context, adapters)
    files = AdapterSource(file).named(adapters)
    draft_model = _draft_model(draft, options.loop.draft_max, file, isolated=isolated)
    head = draft_model is not None and draft_model.is_head
    if projector is not None and head:
        raise RequestError('A model with a projector does not draft by its own head; write draft="ngram".')
    here = machine()
    projector_header = projector_file(projector, file, options, here)
    reserved = sum(each.size_bytes for each in files.values()) + (hidden_bytes(file, options.context) if head else 0)
    made = planned(file, options, here.without(reserved), draft_model, projector_header)
    if is_on_hub(model) and not file.embeds and not choice.is_chosen:
        choice = replace(choice, response_template=_published(path, file.base_models))
    _log.info("%s: %s", file.path.name, made.summary)
    load_options, context = made.model, made.context
    draft_options = draft_context(made.context, made.n_ctx, made.cells.sequences)
    if preflight:
        adapter_paths = [each.path for each in files.values()]
        load_options, context = _tried(file, made, options.context, adapter_paths, projector_header, head=head)
        if draft_model is not None and draft_model.model is None and not head:
            try_file(draft_model.file, load_options, draft_options)
    draft_path = draft_model.file.path if draft_model is not None and isolated and not head else None
    weights = _weights(path, file, load_options, progress, isolated=isolated, draft=draft_path, head=head)
    source = replace(_source(file, load_options, context, machine, preflight=preflight), first=files)
    checked = replace(context, check_memory=False)  # `plan` has checked it
    draft_options = replace(draft_options, check_memory=False)
    checked = _few_threads(checked, weights.info.size_bytes)
    loop = options.loop
    if head and draft == AUTO:
        loop = replace(loop, draft_max=min(loop.draft_max, HEAD_TOKENS))
    loaded = _completed(weights, checked, loop, choice, source, draft_model, draft_options, projector_header)
    return replace(loaded, sampling=_sampling(loaded, file, on_hub=is_on_hub(model)))


def _tried(
    file: GgufFile,
    made: Plan,
    given: ContextOptions,
    adapters: Sequence[Path],
    projector: ProjectorFile | None,
    *,
    head: bool,
) -> tuple[ModelOptions, ContextOptions]:
    """Let children decode with the file as planned, with its adapters and its projector. Returns the planned options,
    changed where a child died of them; `given`: the caller's."""
    context = made.context
    if file.embeds:  # with the options of a chat, as the trial generates; only the remedy for the weights matters
        model, _ = checks.prepare(made.model, given)
    else:
        model, context = checks.prepare(made.model, context)
    try_file(file, model, context, head=head)
    for path in adapters:
        try_file(file, model, context, path)
    if projector is not None:
        try_file(file, model, context, projector=projector)
    return model, context


def projector_file(
    projector: str | Path | None,
    file: GgufFile,
    options: Settings,
    machine: Machine | None = None,
) -> ProjectorFile | None:
    """Returns the header of a model's projector, if there is one; "auto" finds it, in a precision that fits into half
    of what the weights leave of the machine: the conversation needs room too. Raises RequestError where none can be
    used, and for options without one."""
    if projector is None:
        if options.media != MediaOptions() or options.loop.media_urls is not None:
            raise RequestError(
                "image_min_tokens, image_max_tokens, media_cache_mib and media_urls are for models with a projector; "
                'pass projector="auto" or a file with them, or leave them out.'
            )
        return None
    if file.embeds:
        raise RequestError(f"projector={shown(str(projector))} cannot be used with a model that makes vectors.")
    if projector == AUTO:
        from engine import hub

        room = None if machine is None or machine.room is None else machine.room + machine.device_room
        found = hub.projector(file.path, None if room is None else max(0, room - file.weights) // 2)
    else:
        found = located(projector, None)
    return read_projector(found, options.media)


def planned(
    file: GgufFile,
    options: Settings,
    machine: Machine,
    draft_model: DraftModel | None = None,
    projector: ProjectorFile | None = None,
) -> Plan:
    """Returns how a file is loaded on a machine, beside a draft model and a projector. Raises what `Engine.load` raises
    for one that does not fit."""
    if projector is not None:
        _log.info("%s: the projector %s", file.path.name, projector.memory_text)
        options = replace(options, context=projector.widened(options.context))
        machine = machine.without(projector.memory)
    context = vector_options(file, options.context) if file.embeds else options.context
    draft = None if draft_model is None else draft_model.planned
    try:
        return plan(file, options.model, context, machine, draft=draft)
    except (ModelLoadError, ContextOverflowError) as error:
        more = held_by_open(file.path)
        if projector is not None:
            more += f" The projector is counted, {projector.memory_text}: a smaller media_cache_mib or "
            more += "image_max_tokens lowers that."
        raise type(error)(f"{error}{more}") from error


def planned_vectors(file: GgufFile, loaded: Plan, machine: Machine) -> Need:
    """Returns what the context for vectors takes that a chat model makes beside its own. Raises ContextOverflowError if
    not even that fits on this machine."""
    weights = replace(loaded.model, n_gpu_layers=loaded.model.n_gpu_layers or 0)
    return plan(file, weights, vector_options(file, loaded.context), machine, held=_ALL).need


def _check_steering(file: GgufFile, context: ContextOptions, adapters: object) -> None:
    """Raise RequestError for adapters and control vectors of a model that does not generate, ModelLoadError for control
    vectors of another model."""
    if file.embeds and (adapters or context.control_vectors):
        raise RequestError("adapters and control_vectors change what a model writes; this one only makes vectors.")
    _ = read_control_vectors(context.control_vectors, file.shape.n_embd, len(file.shape.layers))


def _source(
    file: GgufFile, model: ModelOptions, context: ContextOptions, machine: Callable[[], Machine], *, preflight: bool
) -> AdapterSource:
    """Returns what reads and tries adapters that are loaded later."""

    def room() -> int | None:
        now = machine()
        return None if now.room is None else now.room + now.device_room

    trial = partial(try_file, file, model, context) if preflight else None
    return AdapterSource(file, trial, room if context.check_memory else None)


def _draft_model(draft: object, longest: int, file: GgufFile | None, *, isolated: bool = False) -> DraftModel | None:
    """Returns the model that guesses, if there is one: a file's, an open engine's, or the head in the model's own
    `file` (None: it is loaded already, without a head). Raises RequestError for anything else."""
    if draft is None or draft == NGRAM or not longest:
        return None
    if draft in (MTP, AUTO):
        why = why_no_head(file) if file is not None else "a Llama that is open was loaded without its head"
        if file is not None and why is None:
            return DraftModel(head_file(file), is_head=True)
        if draft == MTP:
            raise RequestError(
                f'draft="mtp" is not possible: {why}. Pass draft="ngram", or a smaller model of the same vocabulary.'
            )
        _log.info('draft="auto" means "ngram" here: %s.', why)
        return None
    if isinstance(draft, str | Path):
        return DraftModel(read_gguf(located(draft, None)))
    if isinstance(draft, Model) and not isolated:
        return DraftModel(draft.file, draft)
    raise RequestError(
        f'draft={shown(draft)} cannot guess here; pass "ngram", "mtp", "auto", the path or Hub name of a GGUF file, '
        "or, if the model is to run in this process, an open engine whose model does."
    )


def _weights(
    path: Path,
    file: GgufFile,
    options: ModelOptions,
    progress: Callable[[float], bool | None] | None,
    *,
    isolated: bool,
    draft: Path | None,
    head: bool,
) -> "Model | IsolatedModel":
    """Load the weights of a file, with its `head`, and those of a draft model in the same child. In a notebook,
    show the progress, unless the caller passed `progress`."""
    load: Callable[..., Any] = partial(_loaded_here, head=head, file=file)
    if isolated:
        from engine.isolated.parent import IsolatedModel

        load = partial(IsolatedModel.load, draft=draft, head=head)
    if progress is not None or (screen := screens.notebook()) is None:
        return load(path, options, progress=progress)
    shown = screens.Loading(screen, path.name)
    weights = load(path, options, progress=shown)
    shown.end()
    return weights


def _loaded_here(path: Path, options: ModelOptions, **rest: Any) -> Model:
    """Load weights as `Model.load` does; llama.cpp leaves Python to a thread that prepares the first turn."""
    preparing = Thread(target=_prepare_first_turn, name="llama-engine-prepare")
    threads.start(preparing)
    weights = Model.load(path, options, **rest)
    preparing.join()
    return weights


def _prepare_first_turn() -> None:
    """Import and read what a first turn needs; in the main thread Ctrl-C could end numpy's import for good."""
    _ = import_module("numpy")
    _ = builtin_families()


def adopt(
    llama: Any,
    options: Mapping[str, Any],
    choice: TemplateChoice,
    *,
    preflight: bool = True,
    draft: object = None,
    projector: str | Path | None = None,
) -> Loaded:
    """Make a context of our own over the weights of a `llama_cpp.Llama`, by default with its length, scaling of
    positions and number of threads. Raises what `Engine.from_llama` raises."""
    details: LlamaOptions = options.get("llama") or LlamaOptions()
    _ = check_value(LoadOptions, "llama", details)
    of_weights = {field.name for field in fields(ModelOptions)} - {"check_memory"}
    if given := [*sorted(of_weights.intersection(options)), *details.of_weights]:
        raise RequestError(
            f"{given[0]} is an option of the weights, which this Llama has loaded already; leave it out, or use "
            "Engine.load."
        )
    _prepare(choice)
    check_devices()
    weights = Model.adopt(llama)
    same: dict[str, Any] = {
        "n_ctx": llama.n_ctx(),
        "n_threads": llama.n_threads,
        "n_threads_batch": llama.n_threads_batch,
    }
    same["llama"] = details if details.rope_scaling_type else adopted(llama.context_params, details)
    named = {name: value for name, value in options.items() if value is not None and name != "llama"}
    given = settings({**same, **named}, draft)
    draft_model = _draft_model(draft, given.loop.draft_max, None)
    projector_header = projector_file(projector, weights.file, given, this_machine())
    if preflight:
        checks.check_loaded(weights.options, given.context)
        if projector_header is not None:
            try_file(weights.file, weights.options, given.context, projector=projector_header)
    source = _source(weights.file, weights.options, given.context, this_machine, preflight=preflight)
    loaded = _completed(weights, given.context, given.loop, choice, source, draft_model, projector=projector_header)
    return replace(loaded, sampling=_sampling(loaded, weights.file))


def _prepare(choice: TemplateChoice, *, builtin: bool = False) -> None:
    """Start the child that will render the template while the weights are loaded."""
    if not choice.trust_template and (choice.chat_template is not None or not builtin):
        renderer.prepare()


def _completed(
    weights: "Model | IsolatedModel",
    context: ContextOptions,
    loop: LoopOptions,
    choice: TemplateChoice,
    adapters: AdapterSource,
    draft_model: DraftModel | None = None,
    beside: ContextOptions | None = None,
    projector: ProjectorFile | None = None,
) -> Loaded:
    """Make the contexts and the template. `beside`: the options of the draft model's context, if they are planned."""
    if projector is not None:
        prepare_decoding()
    with ExitStack() as undo:
        undo.callback(weights.close)
        draft: LlamaBackend | None = None
        if not isinstance(weights, Model):
            backend = weights.backend(context, beside if draft_model is not None else None, projector)
        else:
            backend = weights.backend(context, projector)
            if draft_model is not None and draft_model.is_head:
                draft = weights.head(backend)
            elif draft_model is not None:
                guesser = draft_model.load(replace(weights.options, check_memory=context.check_memory))
                weights.own(guesser)
                check_draft(weights, guesser)
                beside = beside or draft_context(context, backend.info.n_ctx, backend.info.n_sequences)
                draft = guesser.backend(_few_threads(beside, guesser.info.size_bytes))
        template = _template(weights, choice) if backend.info.generates else MissingTemplateError(NOT_CHAT)
        undo.pop_all()
        return Loaded(weights, backend, template, loop, adapters, draft)


def _template(weights: "Model | IsolatedModel", choice: TemplateChoice) -> ChatTemplate | MissingTemplateError:
    """Returns the model's template; for a base model without a `family`, the error that it has none."""
    info = weights.info
    try:
        return ChatTemplate.for_model(
            info.chat_template,
            info.bos_text,
            info.eos_text,
            choice.family,
            choice.chat_template,
            named={further.name: further.source for further in info.named_templates},
            architecture=info.architecture,
            name=info.name,
            control_tokens=weights.vocab.control_tokens,
            trust_template=choice.trust_template,
            response_template=choice.response_template,
        )
    except MissingTemplateError as error:
        if choice.family is None or isinstance(choice.family, Families):
            return error
        raise


def _sampling(loaded: Loaded, file: GgufFile, *, on_hub: bool = False) -> SamplingDefaults:
    """Returns how the model samples where a caller does not say it."""
    family = loaded.template.family.sampling if isinstance(loaded.template, ChatTemplate) else None
    if not on_hub or file.embeds:
        return sampling_defaults(file.tokens.sampling, (), family)
    from engine import hub

    return sampling_defaults(file.tokens.sampling, hub.companions(file.path, file.base_models, hub.GENERATION), family)


def _published(path: Path, bases: Sequence[str]) -> ResponseTemplate | None:
    """Returns the response template of a model from the Hub: its repository's, otherwise its base model's."""
    from engine import hub

    for name, data in hub.companions(path, bases):
        if (spec := template_in(data)) is not None:
            return ResponseTemplate(spec, f"the response template of {name}")
    return None


def is_on_hub(model: object) -> bool:
    """Whether a model that can be located is one of the Hub, not a file."""
    return isinstance(model, str) and local(model) is None


def resolved(
    model: str | Path | None, revision: str | None, machine: Callable[[], Machine]
) -> tuple[str | Path | None, str | None]:
    """Returns name and revision of a model; for "auto", if no file has that name, those of the best on this disk, which
    is told. Raises ModelLoadError if none fits, RequestError for a revision beside "auto"."""
    if model != AUTO or Path(AUTO).exists():
        return model, revision
    if revision is not None:
        raise RequestError(f'revision={shown(revision)} is for one model, and "auto" chooses; leave it out.')
    from engine.api.on_disk import best

    return best(machine())


def located(model: object, revision: str | None, memory: Callable[[], int | None] = available_memory) -> Path:
    """Returns the file that a model's name means; one of the Hub is downloaded unless it is in the cache. `memory`
    returns the bytes into which a quantisation is to fit. Raises RequestError and ModelLoadError."""
    if model is None:
        path = _data.builtin_model()
    elif not isinstance(model, str | Path):
        raise RequestError(
            f"model={shown(model)} must be the path of a .gguf file, as text or a Path, or a model on the Hugging Face "
            "Hub, "
            'such as "owner/repo:Q4_K_M"; None is the built-in.'
        )
    elif not str(model) or model == Path():
        raise ModelLoadError("The path of the model is empty; pass the path of a .gguf file.")
    elif (known := local(model, memory)) is not None:
        path = known
    else:
        from engine import hub  # imports huggingface_hub, which a file does not need

        return hub.located(str(model), revision, memory)
    if revision is not None:
        raise RequestError(f"revision={shown(revision)} is for models on the Hub, but {path} is a file; leave it out.")
    return path


def local(model: str | Path, memory: Callable[[], int | None] = available_memory) -> Path | None:
    """Returns the path of a Path, of an existing file, of a packaged model or of another program's; None for a text
    that may name a model on the Hub. `memory` as for `located`."""
    try:
        path = Path(model).expanduser()
        if isinstance(model, Path) or path.exists():
            return path
        if (known := packaged(model)) is not None or ":" not in model:
            return known
    except (OSError, RuntimeError) as error:  # not accessible, or no home directory
        if "://" in str(model):
            return None  # addresses may be too long for a path
        raise ModelLoadError(f"{model} is not a readable path ({error}); pass the path of a .gguf file.") from error
    from engine.hub import elsewhere  # imports huggingface_hub, as a name with a colon does anyway

    return elsewhere.located(model, memory)


def _warn_without_gpu(options: ModelOptions) -> None:
    """Warn about GPU options without a GPU build, which llama.cpp ignores silently."""
    if options.n_gpu_layers and not library().llama_supports_gpu_offload():
        warn(
            f"n_gpu_layers={options.n_gpu_layers} does nothing: the installed llama-cpp-python computes on the CPU "
            "only. Leave it out, or install a build for your GPU (`llama-engine doctor` shows the command).",
        )


def _few_threads(context: ContextOptions, size: int) -> ContextOptions:
    """Use one thread for weights, of `size` bytes, that need no more."""
    if context.n_threads is not None or size > ONE_THREAD:
        return context
    return replace(context, n_threads=1)
