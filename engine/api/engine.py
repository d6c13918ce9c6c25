"""`Engine`: the class that users work with. Every method only calls the packages below."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from engine.api import batch_generate, loading
from engine.api.adapter_loader import AdapterLoader, AdapterSource
from engine.api.clients import async_openai_client, openai_client
from engine.api.loading import TemplateChoice
from engine.api.source import Loaded, Source
from engine.formats.families import Family, FamilyLike, ResponseTemplateLike
from engine.formats.template.chat_template import ChatTemplate
from engine.llama.model import Model, ModelInfo
from engine.runtime.adapters.adapters import AdapterInfo
from engine.runtime.loop.backend import Backend
from engine.runtime.loop.config import LoopOptions
from engine.runtime.loop.metrics import Metrics
from engine.runtime.stream.raw import detokenize, tokenize
from engine.runtime.stream.service import PinnedPrefix, Service, Stream
from engine.support.display import page_markdown, table_html, visible
from engine.support.errors import EngineError, MissingTemplateError, NotCopied, RequestError
from engine.support.guided import Guided, GuidedClass, door
from engine.support.offloop import off_loop, off_loop_or_undo
from engine.support.reload import remember, tell_open
from engine.tools import RunTool, Toolbox, ToolLike
from engine.turns.embedding import Embedder, Ranked, VectorSettings, matrix, ranking, vector_facts
from engine.turns.model_parts import ModelParts
from engine.turns.options import (
    ChoicesArguments,
    ContextLoadOptions,
    EmbedOptions,
    FreeAgentOptions,
    FreeRawOptions,
    FreeTurnOptions,
    LoadOptions,
    RawOptions,
    RerankOptions,
    ScoreOptions,
    TurnOptions,
    check_arguments,
    checked,
    settings,
)
from engine.turns.sampling_defaults import SamplingDefaults
from engine.turns.scoring import Score, Scorer, TextOrTokens
from engine.turns.starters import agent_stepper, batch_starter, raw_starter
from engine.turns.turns import Turns
from engine.types.answer_formats import Answer, ResponseFormatLike
from engine.types.completion import Completion
from engine.types.conversation import check_last, conversation_of
from engine.types.messages import MessagesLike
from engine.types.prompt import Piece, Prompt
from engine.types.streams import Starting

if TYPE_CHECKING:  # what a plain chat does not need is imported where it is used
    from numpy.typing import NDArray

    from engine.agent.run import Run, RunStream
    from engine.agent.transcript import RunInput
    from engine.api.explain import Explanation
    from engine.api.inspect import Inspection
    from engine.isolated.parent import IsolatedContext, IsolatedModel
    from engine.turns.conversation import Conversation
    from engine.turns.decisions import DecideOptions, Decider, DecisionState
    from engine.turns.questions import QuestionsLike
    from engine.types.decisions import Decision


class Engine(Guided, NotCopied, metaclass=GuidedClass):
    """A loaded model, ready for turns; made by `Engine.load`. A context manager; thread-safe.

    Without a GGUF, for tests: `Engine.over(ScriptedBackend(...), ChatTemplate(None, family="qwen3"))`.
    """

    _instead = (
        "The model lives in this process: share the object, which is thread-safe, and in another process call "
        "Engine.load(...) there."
    )

    if not TYPE_CHECKING:

        def __new__(cls, *arguments: object, **_: object) -> Self:
            """Refuse what was meant for `load`."""
            if cls is Engine and not hasattr((*arguments, None)[0], "lease"):
                raise RequestError(
                    'An engine is made by Engine.load("model.gguf"), or Engine.load("owner/repo:Q4_K_M"); over a '
                    "backend of your own by Engine.over(backend, template)."
                )
            return super().__new__(cls)

        def __call__(self, *_: object, **__: object) -> Self:
            raise TypeError('An engine is no function; write llm.chat("..."), or llm.complete("...").')

    def __init__(self, source: Source) -> None:
        self.source = source
        """Where the parts come from that the methods call."""
        self.scorer = Scorer(source.lease)
        """What `score` asks for log-probabilities."""
        self.embedder = Embedder(source.lease_for_vectors)
        """What `embed` and `rerank` ask for vectors."""

    @classmethod
    def over(
        cls,
        backend: "Backend | IsolatedContext",
        template: ChatTemplate | MissingTemplateError,
        *,
        model: "Model | IsolatedModel | None" = None,
        seed: int | None = None,
        options: LoopOptions | None = None,
        adapters: AdapterSource | None = None,
        draft: Backend | None = None,
        sampling: SamplingDefaults | None = None,
    ) -> Self:
        """Make an engine over a backend, which it then owns and closes, and so a second one that guesses ahead
        (`draft=`, with `LoopOptions(draft_max=...)`). Raises what `load_adapter` raises."""
        service, info = Service(backend, options, draft), None if model is None else model.info
        name = "" if info is None else info.name or info.path.stem
        turns = Turns(service, template, seed, options and options.media_urls, sampling, name)
        loaded = Loaded(service, turns, info, AdapterLoader(service, adapters), model)
        try:
            loaded.adapters.load_first()
        except BaseException:
            loaded.close()
            raise
        remember(loaded)
        return cls(loaded)

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        revision: str | None = None,
        n_ctx: int | None = None,
        n_gpu_layers: int | None = None,
        chat_template: str | Path | None = None,
        family: FamilyLike | None = None,
        response_template: ResponseTemplateLike | None = None,
        seed: int | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        draft: "str | Path | Engine | None" = None,
        projector: str | Path | None = None,
        preflight: bool = True,
        trust_template: bool = False,
        isolated: bool = False,
        progress: Callable[[float], bool | None] | None = None,
        **options: Unpack[LoadOptions],
    ) -> Self:
        """Load a GGUF file, by default the built-in model.

            >>> with Engine.load(n_ctx=1024) as llm:
            ...     print(llm.chat("Hello! Who are you?", temperature=0).content)
            I am the tiny built-in model of llama-engine. I can call tools and quote their results.

        The usual options; `LoadOptions` has further ones, all with defaults in docs/reference/options.md:

        - `model`: a path, or a model on the Hugging Face Hub, downloaded unless it is there: "owner/repo:Q4_K_M",
          "owner/repo" (a quantisation that fits is chosen and logged), "owner/repo/file.gguf"; "ollama:qwen3.5:4b",
          "lmstudio:publisher/model/file": what these programs have on this disk; "auto": the best that is on it and
          fits; "smollm2", a real model of 98 MB (the extra `smollm2`). Default: the built-in model.
        - `n_ctx`: the most tokens of one conversation, answers included. Default: 8,192, or less.
        - `n_gpu_layers`: layers to offload, -1 for all. Default: as many as fit into the devices' free memory.
        - `n_sequences`: how many conversations are decoded at once, from one pool. Default: 4, or what fits.
        - `type_k`, `type_v`: precision of the KV cache; "q8_0" takes half of the memory. Default: "f16".
        - `projector`: the model's file for pictures and sounds (mmproj); "auto" finds it. Default: none.
        - `draft`: who guesses the next tokens, verified in one decode: "ngram" from the conversation, "mtp" by the
          model's own head, a smaller model (a path, a Hub name, an open Engine), or "auto". Default: none.
        - `adapters`: LoRA adapters by name, which turns then name. Default: none.
        - `seed`: of every turn that gives none. Default: random.
        - `chat_template`: its text, or the path of a .jinja file. Default: the model's own.
        - `family`, or `response_template` (Hugging Face's): the format of the output. Default: found by the template.
        - `preflight`: try options and files in a child first, which a native fault then ends. Default: True.
        - `isolated`: run the model in a child: a native fault ends only that, and it is started again (requests that
          had shown a part of their answer fail); logits processors must then be functions of a module. Default: False.
        - `progress`: gets 0.0 to 1.0, in another thread; False stops the load.

        `aload` is the same for an event loop. Raises ModelLoadError for a file that is no chat model or does not fit
        into memory, ContextOverflowError if only its context does not, both before the weights are read; TemplateError,
        FamilyError and RequestError for options that cannot be used.
        """
        seed = check_arguments(seed=seed, progress=progress, revision=revision, preflight=preflight).get("seed")
        _ = check_arguments(projector=projector, isolated=isolated)
        given = settings({"n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, **options}, draft)
        reading = TemplateChoice(chat_template, family, trust_template, response_template)
        loaded = loading.load(
            model, given, reading, adapters=adapters, preflight=preflight, isolated=isolated, progress=progress,
            revision=revision, opening=partial(tell_open, cls), draft=_guesser(draft), projector=projector,
        )  # fmt: skip
        return cls.over(
            loaded.backend, loaded.template, model=loaded.weights, seed=seed, options=loaded.loop,
            adapters=loaded.adapters, draft=loaded.draft, sampling=loaded.sampling,
        )  # fmt: skip

    @classmethod
    async def aload(cls, model: str | Path | None = None, **options: Any) -> Self:
        """`load` for an event loop, with the same options. Cancelling the task closes what was loaded; a download stops
        when the next bytes arrive, and the next call resumes it."""
        return await off_loop_or_undo(lambda: cls.load(model, **options), cls.close)

    @classmethod
    def from_llama(
        cls,
        llama: Any,
        /,
        *,
        n_ctx: int | None = None,
        chat_template: str | Path | None = None,
        family: FamilyLike | None = None,
        response_template: ResponseTemplateLike | None = None,
        seed: int | None = None,
        draft: "str | Path | Engine | None" = None,
        projector: str | Path | None = None,
        preflight: bool = True,
        trust_template: bool = False,
        **options: Unpack[ContextLoadOptions],
    ) -> Self:
        """Make an engine over the weights of an open `llama_cpp.Llama`, which stays usable and must stay open.

        The context is a new one, by default with the Llama's length, RoPE scaling and number of threads; LoRA adapters
        of the Llama's context are not used. The options are those of `load`. Raises what `load` raises, and EngineError
        if this build of llama.cpp would end the process: weights that are already loaded cannot be fixed.
        """
        seed = check_arguments(seed=seed, preflight=preflight, projector=projector).get("seed")
        reading = TemplateChoice(chat_template, family, trust_template, response_template)
        loaded = loading.adopt(
            llama, {"n_ctx": n_ctx, **options}, reading, preflight=preflight, draft=_guesser(draft), projector=projector
        )
        return cls.over(
            loaded.backend, loaded.template, model=loaded.weights, seed=seed, options=loaded.loop,
            adapters=loaded.adapters, draft=loaded.draft, sampling=loaded.sampling,
        )  # fmt: skip

    def chat(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> Completion[Answer]:
        """Returns the model's answer to a user's text or a list of messages: a `Completion` with its `content`,
        `reasoning` and `tool_calls`.

            >>> llm.chat("Hello! Who are you?", temperature=0).content
            'I am the tiny built-in model of llama-engine. I can call tools and quote their results.'
            >>> llm.chat("Is Paris in France?", response_format=bool, temperature=0).parsed
            True

        The usual options; `TurnOptions` and `SamplingParams` have them all:

        - `messages`: a text, or a list of `Message`s or of dictionaries: `{"role": "system", "content": "Be brief."}`.
        - `tools`: functions with type hints that the model may call (`run` also runs them). Default: none.
        - `response_format`: what the answer must be: a type, whose value is then `.parsed`; `Choice(["yes", "no"])`,
          `JsonSchema({...})`, `Regex(...)`. Default: any text.
        - `temperature`: 0 takes the likeliest token each time. Default: `llm.sampling`.
        - `max_tokens`: the most tokens, reasoning included. Default: up to the end of the context.
        - `reasoning`: True, False, "low", "medium" or "high". Default: the model's.
        - `tool_choice`: "auto", "none", "required" (one is called) or `ToolName(name="...")`. Default: "auto".
        - `seed`: of the random draws. Default: the engine's, or random.
        - `stop`: texts that end the answer where they occur. Default: none.
        - `top_k`, `top_p`, `min_p`: which unlikely tokens are never drawn. Default: `llm.sampling`.
        - `reasoning_budget`: the most reasoning tokens; then the answer follows. Default: no limit.
        - `overflow`: "error" refuses a prompt that is too long, "truncate_oldest" drops its oldest turns. Default:
          "error".
        - `deadline`: seconds until the turn ends as it is. Default: none.
        - `adapters`: the LoRA adapters that compute it, `["name"]` or `{"name": 0.5}`. Default: none.
        - `cache_salt`: a text for each caller whose prompts others must not guess. Default: none.

        `achat` is the same for an event loop. Raises what `stream` raises.
        """
        return self.stream(messages, tools, response_format=response_format, **options).result()

    def stream(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> Stream[Answer]:
        """Start one turn and return it as a stream: `for`, `async for`, `await`, `with`. Options: those of `chat`.

            >>> for event in llm.stream("Hello! Who are you?", temperature=0):
            ...     match event:
            ...         case ContentDelta(text):
            ...             print(text, end="")
            ...         case Finished(reason=reason):
            ...             print("", reason)
            I am the tiny built-in model of llama-engine. I can call tools and quote their results. stop

        The events: `ReasoningDelta`; `ContentDelta`; for each call `ToolCallStart`, `ToolCallDelta`, `ToolCallEnd`; and
        last `Finished`. `.result()` reads the rest and returns the `Completion`; leaving a `with` cancels the turn.
        `astream` is the same for an event loop.

        Reasoning of earlier turns that the messages lack is restored if it is known unambiguously; the template decides
        how much of it the model sees.

        Raises RequestError for messages, tools or options that are not valid, TemplateError if the template rejects
        them, ContextOverflowError for a prompt that is too long, EngineError if the engine is closed.
        """
        with self.source.lease() as parts:
            settings = parts.turns.check(options, response_format=response_format)
            return parts.turns.start(messages, tools, settings)[0]

    def choices(
        self,
        messages: MessagesLike,
        n: int,
        tools: Sequence[ToolLike] | None = None,
        *,
        offline: bool = False,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> list[Stream[Answer]]:
        """Start `n` answers to one conversation, each a stream of its own. The prompt is evaluated once (a short one
        again, if that is cheaper than copying it to another KV buffer).

        With a seed, the first answer uses it, the next answer the next number, and so on. Load with `n_sequences=n` to
        decode them together. `offline`: only the results are read, so other prompts that arrive are evaluated first, as
        in `generate`: more tokens per second in total. Raises what `stream` raises.
        """
        n = checked({"n": n, "offline": offline}, ChoicesArguments)["n"]
        with self.source.lease() as parts:
            settings = parts.turns.check(options, response_format=response_format)
            return parts.turns.start(messages, tools, settings, n, offline=offline)

    def conversation(
        self,
        messages: "MessagesLike | None" = None,
        tools: Sequence[ToolLike] | None = None,
        **options: Unpack[TurnOptions],
    ) -> "Conversation":
        """Returns a conversation that begins with these messages (a system message, for example), keeps what is said,
        and can be forked: `llm.conversation().chat("Hello")`. `tools` and `options` are those of its turns. Raises
        RequestError for what is not valid."""
        from engine.turns.conversation import Conversation

        with self.source.lease() as parts:
            _ = parts.turns.check(options)

        def start(messages: MessagesLike, tools: Sequence[ToolLike] | None, options: TurnOptions) -> Stream:
            with self.source.lease() as parts:
                return parts.turns.start(messages, tools, parts.turns.check(options), claims=True)[0]

        return Conversation(start, messages, tools, options)

    def pin(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> PinnedPrefix:
        """Evaluate the prefix that all conversations share which begin with these messages (such as a system message
        and tools), and keep it in the cache until it is released: `with llm.pin(messages, tools) as prefix`. Returns
        when it is evaluated.

        A pinned prefix occupies one of the engine's `n_sequences`. With `states=StateStore(path=..)` its state is
        written there at once, and another process that pins the same messages reads it from there. Raises what
        `stream` raises, and RequestError if no sequence is left for it.
        """
        with self.source.lease() as parts:
            settings = parts.turns.check(options)
            tokens, media = parts.turns.shared_prefix(messages, tools, settings)
            return parts.service.pin(tokens, settings, media)

    @overload
    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        n: None = None,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeRawOptions],
    ) -> Completion[Answer]: ...
    @overload
    def complete(
        self,
        prompt: list[str] | tuple[str, ...] | list[list[int]],
        *,
        n: None = None,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeRawOptions],
    ) -> list[Completion[Answer]]: ...
    @overload
    def complete(
        self,
        prompt: batch_generate.Prompts,
        *,
        n: int,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeRawOptions],
    ) -> list[Completion[Answer]]: ...
    def complete(
        self, prompt: Any, *, n: int | None = None, **options: Unpack[RawOptions]
    ) -> Completion[Any] | list[Any]:
        """Returns the continuation of a text or of tokens, without a chat template; of a list of them a list, computed
        together. `n` answers to each prompt are a list, those of one prompt in a row; with a seed, each has its own.
        Raises what `stream_complete` raises."""
        n = None if n is None else checked({"n": n, "offline": False}, ChoicesArguments)["n"]
        several = batch_generate.several(prompt, n)
        if several is None:
            return self.stream_complete(prompt, **options).result()
        return batch_generate.generate(raw_starter(self.source.lease, options), several, self._room, "raise")

    @property
    def _room(self) -> int:
        """How many rows of many are started at a time."""
        with self.source.lease() as parts:
            return parts.service.room

    def stream_complete(
        self,
        prompt: str | Sequence[int],
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeRawOptions],
    ) -> Stream[Answer]:
        """`complete` as a stream; all of the output is content.

        In a text, control-token text becomes control tokens, and the model's BOS token is put before it unless it is
        there. Tokens are used unchanged. With `suffix`, the model fills in the text between the prompt and the suffix;
        in both, and in `files`, control-token text stays text. Raises RequestError for tokens or options that are not
        valid, ContextOverflowError for a prompt that is too long, EngineError if the engine is closed.
        """
        with self.source.lease() as parts:
            settings = parts.turns.check(options, RawOptions, response_format=response_format)
            return parts.turns.start_raw(prompt, settings)

    async def achat(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> Completion[Answer]:
        """`chat` for an event loop; cancelling the task stops the turn."""
        return await (await self.astream(messages, tools, response_format=response_format, **options))

    def astream(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> Starting[Stream[Answer]]:
        """`stream` for an event loop: the template is rendered and the prompt tokenised in a worker thread. Read it
        with `async for event in llm.astream(...)`, or get the stream first: `stream = await llm.astream(...)`."""

        def start() -> Stream[Answer]:
            return self.stream(messages, tools, response_format=response_format, **options)

        return Starting(off_loop_or_undo(start, Stream.cancel))

    async def arun(
        self,
        messages: "RunInput",
        tools: Sequence[RunTool] | None = None,
        max_steps: int = 8,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeAgentOptions],
    ) -> "Run[Answer]":
        """`run` for an event loop: async tools of one turn run at once; cancelling the task stops the run."""
        return await self.stream_run(messages, tools, max_steps, response_format=response_format, **options)

    def load_adapter(self, name: str, path: str | Path, *, scale: float = 1.0) -> AdapterInfo:
        """Load a LoRA adapter, for turns to name (`adapters=["name"]`, with this scale). Raises RequestError for a used
        name, ModelLoadError for a file that is not for this model, ContextOverflowError if it does not fit."""
        with self.source.lease() as parts:
            return parts.adapters.load(name, path, scale)

    def drop_adapter(self, name: str) -> None:
        """Refuse turns that name this adapter from now on, wait for those that use it, and free it. Raises RequestError
        for an unknown name."""
        with self.source.lease() as parts:
            parts.service.drop_adapter(name)

    @property
    def adapters(self) -> dict[str, AdapterInfo]:
        """The loaded adapters by name."""
        with self.source.lease() as parts:
            return parts.service.adapters

    @overload
    def generate(
        self,
        rows: Sequence[batch_generate.Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        on_error: Literal["raise"] = "raise",
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> list[Completion[Answer]]: ...
    @overload
    def generate(
        self,
        rows: Sequence[batch_generate.Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        on_error: Literal["return"],
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> list[Completion[Answer] | EngineError]: ...
    def generate(
        self,
        rows: Sequence[batch_generate.Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        on_error: batch_generate.OnError = "raise",
        **options: Unpack[TurnOptions],
    ) -> Any:
        """Run many turns at once and return the answers in order; load with `n_sequences=8` to decode eight together.

        A row is a conversation, or a pair of a conversation and its own options. Since nobody reads along, waiting
        prompts are evaluated before running answers continue: this is faster in total than as many streams. With
        `on_error="return"` a row's error takes the place of its answer; otherwise the first error is raised, with a
        note that names the row, and the other rows are cancelled. Raises what `stream` raises.
        """
        start = batch_starter(self.source.lease, tools, options)
        return batch_generate.generate(start, rows, self._room, on_error)

    def generate_iter(
        self,
        rows: Iterable[batch_generate.Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> Generator[tuple[int, Completion[Answer] | EngineError]]:
        """Yields pairs of a row's number and its answer, or its error, as rows of any iterable finish. At most twice
        `n_sequences` rows are taken and run at a time; leaving the loop cancels them."""
        start = batch_starter(self.source.lease, tools, {**options, "response_format": response_format})
        return batch_generate.generate_iter(start, rows, self._room)

    @overload
    async def agenerate(
        self,
        rows: Sequence[batch_generate.Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        on_error: Literal["raise"] = "raise",
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> list[Completion[Answer]]: ...
    @overload
    async def agenerate(
        self,
        rows: Sequence[batch_generate.Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        on_error: Literal["return"],
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> list[Completion[Answer] | EngineError]: ...
    async def agenerate(
        self,
        rows: Sequence[batch_generate.Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        on_error: batch_generate.OnError = "raise",
        **options: Unpack[TurnOptions],
    ) -> Any:
        """`generate` for an event loop; cancelling the task stops all rows."""
        generate: Callable[..., Any] = self.generate
        return await off_loop(generate, rows, tools, on_error=on_error, **options)

    def run(
        self,
        messages: "RunInput",
        tools: Sequence[RunTool] | None = None,
        max_steps: int = 8,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeAgentOptions],
    ) -> "Run[Answer]":
        """Run the agent loop: turns and tools until the model answers. Returns a `Run`, which has the `completion`, the
        `messages` and the `steps`.

            >>> def get_weather(city: str) -> str:
            ...     '''Get the weather in a city.'''
            ...     return f"21 degrees and sunny in {city}"
            >>> llm.run("What is the weather in Paris?", [get_weather], temperature=0).completion.content
            'The weather result: 21 degrees and sunny in Paris'

        The usual options, besides those of `chat` for each turn; `RunOptions` has them all:

        - `messages`: a text, messages, or a `Transcript`, which is resumed where it ended.
        - `tools`: functions, sync or async, and servers of tools (`MCP`), connected during the run. Default: none.
        - `max_steps`: the most turns. Default: 8.
        - `max_total_tokens`: no turn begins after this many tokens. Default: no limit.
        - `tool_timeout`: seconds that one call may take. Default: no limit.
        - `max_parallel_tools`: how many calls of one turn run at once. Default: async tools all, others 1.
        - `approve`: called with each `ToolCall` before it runs; returns True, or False or a reason not to. Default: all
          calls run.
        - `stop_on`: names of tools that end the run. Default: none.
        - `save`: a path, or a function, that gets the `Transcript` after each call and turn. Default: nowhere.

        `arun` is the same for an event loop, where async tools of one turn run at once. Raises what `stream` raises,
        EngineError for a server that cannot be connected, and CallbackError if a function given as an option fails.
        """
        return self.stream_run(messages, tools, max_steps, response_format=response_format, **options).result()

    def stream_run(
        self,
        messages: "RunInput",
        tools: Sequence[RunTool] | None = None,
        max_steps: int = 8,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeAgentOptions],
    ) -> "RunStream[Answer]":
        """Start the agent loop and return it as a stream: `for`, `async for`, `await` (the Run), `with`. Each event has
        its `step`."""
        from engine.agent.limits import run_options
        from engine.agent.run import stream_run
        from engine.agent.transcript import Transcript

        policy, own = run_options(max_steps, {**options, "response_format": response_format}, TurnOptions)
        toolbox = Toolbox(tools)
        turn = agent_stepper(self.source.lease, lambda: toolbox.tools, own)
        if not isinstance(messages, Transcript):
            messages = conversation_of(messages)
            check_last(messages, generates=True, continues=own.get("continue_final_message", False))
        with self.source.lease() as parts:
            media = frozenset(parts.service.info.media)
        return stream_run(turn, messages, toolbox, policy, media)

    def tokenize(self, text: str, *, special: bool = True, add_bos: bool = False) -> list[int]:
        """Returns the tokens of a text. `special`: control-token text becomes control tokens; `add_bos`: put the BOS
        token first, if this model's prompts have one."""
        with self.source.lease() as parts:
            parts.service.check()
            return tokenize(parts.service.vocab, text, special=special, add_bos=add_bos)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, including control tokens; invalid UTF-8 becomes U+FFFD. Raises RequestError for a
        token that the model does not have."""
        with self.source.lease() as parts:
            parts.service.check()
            return detokenize(parts.service.vocab, tokens)

    def embed(self, texts: str | Iterable[str | Sequence[int]], **options: Unpack[EmbedOptions]) -> "NDArray[Any]":
        """Returns the vector of a text, shape (d,), or of several, shape (n, d), as float32; see `EmbedOptions`. An
        embedding model makes them, or, far worse, a chat model, in a context of its own. Raises RequestError for what
        is not valid, ContextOverflowError if the context does not fit into memory, EngineError if closed."""
        settings = VectorSettings.of(options, EmbedOptions)
        return matrix(self.embedder.start(texts, settings).result(), settings, one=isinstance(texts, str))

    def rerank(self, query: str, documents: Iterable[str], **options: Unpack[RerankOptions]) -> list[Ranked]:
        """Returns the places and scores of the documents, the best answer to the query first; see `RerankOptions`.
        Needs a reranking model. Raises what `embed` raises."""
        settings = VectorSettings.of(options, RerankOptions)
        return ranking(self.embedder.start_rank(query, documents, settings).result(), settings)

    def score(
        self, prompt: TextOrTokens | Prompt, continuations: Sequence[TextOrTokens], **options: Unpack[ScoreOptions]
    ) -> list[Score]:
        """Returns how likely each continuation is after a prompt, in order; texts or tokens. The prompt is read once,
        `n_sequences` continuations at a time. With `special`, control-token text in the prompt becomes control tokens,
        as in a prompt that was rendered; else a text stays a text. The model's BOS token is put before a text. A prompt
        that `Engine.render` returned may have pictures and sounds in it. Raises
        RequestError for what is not text or tokens, or if nothing stands before the first token that is scored,
        ContextOverflowError for more tokens than a conversation holds, EngineError if the engine is closed."""
        return self.scorer.score(prompt, continuations, options)

    @cached_property
    def decider(self) -> "Decider":
        """What `decide` asks for probabilities."""
        from engine.turns.decisions import Decider

        return Decider(self.source.lease)

    def decide(
        self,
        state: "DecisionState",
        questions: "QuestionsLike",
        **options: "Unpack[DecideOptions]",
    ) -> "Decision[Any]":
        """Returns the answers to typed questions about one state, with a probability for every option. Nothing is
        generated; the state is read once.

            >>> decision = llm.decide("Where is my parcel?", {"queue": Literal["billing", "delivery"]})
            >>> decision["queue"].rows[0][0]
            'billing'

        - `state`: what is judged: a text, messages, or any other JSON.
        - `questions`: one, several by name or in a list, or a type with fields (a pydantic model, a dataclass): then
          `.parsed` is an object of it. A question is a statement, as a text or `Predicate`; a `ChoiceQuestion`; a
          `ScoreQuestion` over ordered levels; or a type: `bool`, `Literal[...]`, an `Enum` (an `IntEnum` is a score).
        - `calibration`: what `Calibration.fit` made of your own answers. Default: none.
        - `deadline`: seconds, after which TimeoutError is raised. Default: none.
        - `adapters`, `cache_salt`: as in `chat`.

        A question that cannot be answered is a `Refusal`, beside the others' answers. How a model is asked best is
        measured when the first question is asked, if its weights take less than 700 MB: by some thirty short readings.
        Raises RequestError for what is no question or state, ContextOverflowError if the state is too long for each
        question, EngineError if the engine is closed.
        """
        return next(self.decider.decisions([state], questions, options))

    def decide_iter(
        self, states: "Iterable[DecisionState]", questions: "QuestionsLike", **options: "Unpack[DecideOptions]"
    ) -> "Generator[Decision[Any]]":
        """Yields the decisions about many states, in order; they are read together. Leaving the loop stops the rest."""
        yield from self.decider.decisions(states, questions, options)

    def render(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Prompt:
        """Returns the prompt that `stream` would send."""
        with self.source.lease() as parts:
            return parts.turns.prompt(messages, tools, parts.turns.check(options))

    def explain(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        output: str | Sequence[Piece] | None = None,
        **options: Unpack[TurnOptions],
    ) -> "Explanation":
        """Explain how the engine understands a conversation, and an `output` that followed it, piece by piece.

        In an output given as text, the family's control markers count as control tokens. `.text()` returns a report,
        `.data()` plain values. Raises what `stream` raises, except for prompts that are too long.
        """
        from engine.api.explain import explain_turn

        with self.source.lease() as parts:
            turns = parts.turns
            given = turns.explain_input(messages, tools, output, turns.check(options))
            return explain_turn(turns.template, given, parts.service.vocab)

    openai_client = openai_client
    async_openai_client = async_openai_client

    def inspect(self) -> "Inspection":
        """Returns what the engine knows about the model."""
        from engine.api.inspect import inspect_model

        with self.source.lease() as parts:
            context, turns = parts.service.info, parts.turns
            sampling = turns.sampling.text() if context.generates else ""
            vectors, tokens = vector_facts(parts), parts.service.vocab.size
            return inspect_model(turns.known_template, _info(parts), context, vectors, tokens, sampling)

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Raises MissingTemplateError for a base model that has none."""
        with self.source.lease() as parts:
            return parts.turns.template

    @property
    def family(self) -> Family:
        """The family in whose format the output is read; "content-only" for a base model without a template."""
        with self.source.lease() as parts:
            return parts.turns.family

    @property
    def info(self) -> ModelInfo:
        """Facts about the loaded model. Raises RequestError for an engine that was made from a backend."""
        with self.source.lease() as parts:
            return _info(parts)

    @property
    def sampling(self) -> SamplingDefaults:
        """How answers are drawn where a caller does not say it, and who states each value: the file, the repository on
        the Hub, the family, or llama.cpp's defaults."""
        with self.source.lease() as parts:
            return parts.turns.sampling

    @property
    def n_ctx(self) -> int:
        """The most tokens that one conversation may have, including its answer."""
        with self.source.lease() as parts:
            return parts.service.info.n_ctx

    @property
    def metrics(self) -> Metrics:
        """Sums over the turns finished so far; `.prometheus()` returns them in Prometheus's text format."""
        return self.source.metrics

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests because it was closed or failed."""
        return self.source.closed

    def close(self) -> None:
        """Cancel running turns and free the memory. Can be called more than once."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def aclose(self) -> None:
        """`close` for an event loop."""
        await off_loop(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        facts = dict(self._facts())
        closed = ", closed" if self.closed else ""
        return visible(f"<{type(self).__name__} {facts['model']} ({facts['family']}), n_ctx={self.n_ctx}{closed}>")

    def _repr_html_(self) -> str:
        return table_html(self._facts(), type(self).__name__)

    def _repr_markdown_(self) -> str:
        return page_markdown([], "\n".join(f"{name}: {value}" for name, value in self._facts()))

    def _facts(self) -> list[tuple[str, str]]:
        """Returns what a notebook shows of the engine, as names and values."""
        from engine.api.inspect import engine_facts

        with self.source.lease() as parts:
            return engine_facts(parts.info, parts.turns.family.title, parts.service.info.n_ctx, closed=self.closed)


def _info(parts: ModelParts) -> ModelInfo:
    if parts.info is None:
        raise RequestError(
            "This engine was made over a backend, not from a model file, so it has no `info`; use Engine.load."
        )
    return parts.info


def _guesser(draft: object) -> object:
    """Returns what guesses: of an open engine its model."""
    source = draft.source if isinstance(draft, Engine) else None
    return source.model or draft if isinstance(source, Loaded) else draft


if not TYPE_CHECKING:
    for _name in (
        "chat", "stream", "choices", "run", "stream_run", "achat", "astream", "arun",
        "complete", "generate", "agenerate", "embed", "rerank", "score", "decide",
    ):  # fmt: skip
        setattr(Engine, _name, door(getattr(Engine, _name)))
