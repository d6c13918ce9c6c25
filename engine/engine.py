"""`Engine`: the face users hold. Every method is one call deep into the rooms below.

Knows: which room does what, and the options a caller may give. Does not know: how any of it is done.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self, Unpack

from engine import _data
from engine import preflight as checks
from engine.agent import Run, RunStream, stream_run
from engine.chat_template import ChatTemplate
from engine.errors import ModelLoadError, RequestError
from engine.explanation import Asked, Explanation, explain_turn
from engine.families import Family, Format
from engine.inspection import Inspection, inspect_model
from engine.memory import ReasoningMemory, RememberingParser, Restored
from engine.options import AllowedChoice, LoadOptions, TurnOptions, refuse_unknown, sampling_params
from engine.parsing import Piece
from engine.runtime.backend import Backend
from engine.runtime.llama import Model, ModelInfo
from engine.runtime.metrics import Metrics
from engine.runtime.options import ContextOptions, ModelOptions
from engine.service import Service, Stream
from engine.template.conversation import MessagesLike, check_last, conversation_of
from engine.template.prompt import Prompt
from engine.tools import ToolLike, as_tools
from engine.types import Completion, Message, SamplingParams

_SMALL = 16 << 20
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


class Engine:
    """A model, ready to talk; made by `Engine.load`, a context manager. Its methods may be called from any thread.

    Without a GGUF, for tests: `Engine(ScriptedBackend(...), ChatTemplate(None, family="qwen3"))`; the backend is owned
    from then on.
    """

    def __init__(
        self,
        backend: Backend,
        template: ChatTemplate,
        *,
        model: Model | None = None,
        seed: int | None = None,
        longest_draft: int = 0,
    ) -> None:
        self.template = template
        self._service = Service(backend, longest_draft=longest_draft)
        self._model = model
        self._seed = seed
        self._memory = ReasoningMemory()

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        n_ctx: int | None = None,
        n_gpu_layers: int = 0,
        chat_template: str | Path | None = None,
        family: str | Family | Format | None = None,
        seed: int | None = None,
        longest_draft: int = 0,
        preflight: bool = True,
        progress: Callable[[float], bool | None] | None = None,
        **options: Unpack[LoadOptions],
    ) -> Self:
        """Load a GGUF file, by default the built-in model.

        n_ctx: tokens of context; None is the smaller of the training length and what fits into memory.
        n_gpu_layers: layers to offload, -1 for all. chat_template: its text, or the path of a .jinja file, in place of
        the model's own. family: read the output as this family's (a name of models.toml, or a record). seed: of every
        turn that names none. longest_draft: tokens guessed at once from what the conversation holds already, and
        verified in one decode; 0 for none. The answer is the same, sooner where it repeats much. preflight: try these
        options in a child process first, so that a native fault does not end this one. progress: called with 0.0 to
        1.0, answers False to stop.

        Raises ModelLoadError for what is not a model that can chat, ContextOverflowError for a context that does not
        fit into memory, TemplateError and FamilyError for a template or family that cannot be used, RequestError for
        options that make no sense.
        """
        path = _data.builtin_model() if model is None else _file(model)
        load, context = _load_options({"n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, **options})
        if preflight and path.is_file():  # what is no file is refused below, sooner
            load = checks.prepare(load, context)
        with ExitStack() as undo:
            weights = undo.enter_context(Model.load(path, load, progress=progress))
            info = weights.info
            template = ChatTemplate.for_model(
                info.chat_template,
                info.bos_text,
                info.eos_text,
                family,
                chat_template,
                named={further.name: further.source for further in info.named_templates},
                architecture=info.architecture,
                name=info.name,
                control_tokens=weights.vocab.control_tokens,
                trials=checks.cache_directory() / "templates" if preflight else None,
            )
            made = cls(
                weights.backend(_few_threads(context, info)),
                template,
                model=weights,
                seed=seed,
                longest_draft=longest_draft,
            )
            undo.pop_all()
            return made

    def chat(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Completion:
        """One turn: the model's answer to a user's text or a list of messages. Raises what `stream` raises."""
        return self.stream(messages, tools, **options).result()

    def stream(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Stream:
        """One turn as it is generated: `for`, `async for`, `await`, `with`.

        Reasoning of earlier turns that the messages lost on their way is put back where it is known beyond doubt; the
        template decides what of it the model sees.

        Raises RequestError for messages, tools or options that are not valid, TemplateError where the template rejects
        them, ContextOverflowError for a prompt that is too long, EngineError when the engine is closed.
        """
        known = as_tools(tools)
        sampling = self._sampling(options)
        choice = _choice(options)
        restored = self._memory.restore(conversation_of(messages))
        conversation, prompt = restored.messages, self._rendered(restored, known, options)
        view = options.get("reasoning_format", "deepseek")
        salt = _salt(prompt, sampling)
        template, vocabulary = self.template, self._service.vocab.control_tokens
        return self._service.submit(
            prompt,
            lambda: RememberingParser(
                template.parser(
                    prompt,
                    known,
                    choice,
                    reasoning_format=view,
                    control_tokens=vocabulary,
                    id_salt=salt,
                    builtin_tools=options.get("builtin_tools", ()),
                ),
                self._memory,
                conversation,
            ),
            sampling,
            markers=frozenset(template.format.control),
            priority=options.get("priority", 0),
            deadline=options.get("deadline"),
            reasoning_budget=options.get("reasoning_budget"),
            reasoning_close=self._reasoning_close(),
        )

    def generate(
        self,
        conversations: Sequence[MessagesLike],
        tools: Sequence[ToolLike] | None = None,
        **options: Unpack[TurnOptions],
    ) -> list[Completion]:
        """Many turns at once, answers in order; load with `n_sequences=8` to decode eight together.

        Raises what `stream` raises; the others are cancelled then.
        """
        if isinstance(conversations, str):
            raise RequestError("generate() takes a list of prompts; put the text in a list, or use chat().")
        known = as_tools(tools)
        with ExitStack() as streams:
            started = [
                streams.enter_context(self.stream(conversation, known, **options)) for conversation in conversations
            ]
            return [stream.result() for stream in started]

    def run(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        max_steps: int = 8,
        **options: Unpack[TurnOptions],
    ) -> Run:
        """The agent loop: turns and tools until the model answers, `max_steps` turns at most. Raises what `stream`
        raises."""
        return self.stream_run(messages, tools, max_steps, **options).result()

    def stream_run(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        max_steps: int = 8,
        **options: Unpack[TurnOptions],
    ) -> RunStream:
        """The agent loop as it goes: `for`, `async for`, `await` (the Run), `with`. Each event carries its `step`."""
        known = as_tools(tools)
        _ = self._sampling(options), _choice(options)

        def turn(history: Sequence[Message]) -> Stream:
            return self.stream(history, known, **options)

        conversation = conversation_of(messages)
        check_last(conversation, generates=True, continues=False)
        return stream_run(turn, conversation, known, max_steps)

    def render(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Prompt:
        """The prompt that `stream` would send."""
        return self._rendered(self._memory.restore(conversation_of(messages)), tools, options)

    def explain(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        output: str | Sequence[Piece] | None = None,
        **options: Unpack[TurnOptions],
    ) -> Explanation:
        """What the engine makes of a conversation, and of an `output` that followed it, piece by piece.

        In an output given as text the family's control markers count as the tokens. `.text()` is a report to read,
        `.data()` plain values. Raises what `stream` raises, but for prompts that are too long.
        """
        restored = self._memory.restore(conversation_of(messages))
        prompt = self._rendered(restored, tools, options)
        asked = Asked(
            restored.messages,
            prompt,
            self._rendered(restored, tools, options, authors=True),
            as_tools(tools),
            _choice(options),
            options.get("builtin_tools", ()),
            output,
            self._service.tokens(prompt),
        )
        return explain_turn(self.template, asked, self._service.vocab)

    def _rendered(
        self,
        restored: Restored,
        tools: Sequence[ToolLike] | None,
        options: TurnOptions,
        *,
        authors: bool = False,
    ) -> Prompt:
        prompt = self.template.render(
            restored.messages,
            tools,
            options.get("reasoning"),
            _choice(options),
            template_kwargs=options.get("template_kwargs"),
            documents=options.get("documents"),
            builtin_tools=options.get("builtin_tools", ()),
            authors=authors,
        )
        return replace(prompt, restored=restored.numbers)

    def inspect(self) -> Inspection:
        """What the engine understood of the model."""
        return inspect_model(self.template, self.info, self.n_ctx, self._service.vocab.size)

    @property
    def family(self) -> Family:
        """The family that the model's output is read as."""
        return self.template.family

    @property
    def info(self) -> ModelInfo:
        """What the loaded model is. Raises RequestError for an engine that was not made by `load`."""
        if self._model is None:
            raise RequestError(
                "This engine was made over a backend, not from a model file, so there is no information."
            )
        return self._model.info

    @property
    def n_ctx(self) -> int:
        """Tokens that one conversation may have, its answer included."""
        return self._service.n_ctx

    @property
    def metrics(self) -> Metrics:
        """Sums over the turns finished so far; `.prometheus()` is their text for a scraper."""
        return self._service.metrics

    def close(self) -> None:
        """Cancel what runs and free the memory; twice is fine."""
        self._service.close()
        if self._model is not None:
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reasoning_close(self) -> tuple[Piece, ...]:
        """What closes this family's reasoning from outside."""
        syntax = self.template.format.reasoning
        return (Piece(syntax.close, True),) if syntax else ()

    def _sampling(self, options: TurnOptions) -> SamplingParams:
        """The caller's choice, then the engine's seed, then the family's defaults."""
        refuse_unknown(options, TurnOptions.__optional_keys__)
        return sampling_params(options, {**self.family.sampling, "seed": self._seed})


def _choice(options: TurnOptions) -> AllowedChoice:
    choice = options.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise RequestError(
            f'tool_choice={choice!r} cannot be enforced yet; use "auto" (say in the prompt which to call) or "none".'
        )
    return choice


def _salt(prompt: Prompt, sampling: SamplingParams) -> str:
    """What the ids of this turn's calls are made from: repeatable where the answer is, else random."""
    if sampling.seed is None and sampling.temperature != 0:
        return secrets.token_hex(16)
    return sha256(f"{sampling.seed} {prompt.text}".encode(errors="surrogatepass")).hexdigest()


def _file(model: str | Path) -> Path:
    path, name = Path(model).expanduser(), str(model)
    if not path.exists() and _HUB_NAME.fullmatch(name) and not name.endswith(".gguf") and not path.parent.exists():
        repository, _, quantization = name.partition(":")
        wanted = f"*{quantization or 'Q4_K_M'}*.gguf"
        raise ModelLoadError(
            f"There is no file {name!r}, and names on the Hugging Face Hub are not supported yet. Download it first: "
            f'hf download {repository} --include "{wanted}" --local-dir models, then pass the path of the GGUF file.'
        )
    return path


def _load_options(options: Mapping[str, Any]) -> tuple[ModelOptions, ContextOptions]:
    """The options split over their two records (`check_memory` is in both)."""
    of_model = {field.name for field in fields(ModelOptions)}
    of_context = {field.name for field in fields(ContextOptions)}
    if unknown := sorted(set(options) - of_model - of_context):
        raise RequestError(f"There is no option {unknown[0]!r}; see LoadOptions for those there are.")
    load = ModelOptions(**{name: value for name, value in options.items() if name in of_model})
    return load, ContextOptions(**{name: value for name, value in options.items() if name in of_context})


def _few_threads(context: ContextOptions, info: ModelInfo) -> ContextOptions:
    """Weights that fit a core's own cache are not worth a second thread: it would only wait for the first."""
    if context.n_threads is not None or info.size_bytes > _SMALL:
        return context
    return replace(context, n_threads=1)
