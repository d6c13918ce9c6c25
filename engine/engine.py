"""`Engine`: the face users hold. Every method is one call deep into the rooms below.

Knows: which room does what, and the options a caller may give. Does not know: how any of it is done.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from engine import loading, many
from engine.agent import Run, RunInput, RunStream, Transcript, run_options, stream_run
from engine.diagnose.explain import Explanation, explain_turn
from engine.diagnose.inspect import Inspection, inspect_model
from engine.errors import EngineError, MissingTemplateError, RequestError
from engine.families import Family, FamilyLike
from engine.isolated.parent import IsolatedContext, IsolatedModel
from engine.llama.model import Model, ModelInfo
from engine.loading import Loaded, Reading
from engine.many import OnError, Row
from engine.notebook.facts import Facts
from engine.offloop import off_loop
from engine.openai.client import AsyncOpenAI, OpenAI
from engine.options import (
    AgentOptions,
    ChoicesArguments,
    ContextLoadOptions,
    FreeTurnOptions,
    LoadOptions,
    RawOptions,
    TurnOptions,
    check_arguments,
    checked,
    settings,
)
from engine.parsing import Piece
from engine.runtime.backend import Backend
from engine.runtime.metrics import Metrics
from engine.runtime.options import LoopOptions
from engine.runtime.service import PinnedPrefix, Service, Stream, detokenize, tokenize
from engine.template.chat_template import ChatTemplate
from engine.template.conversation import check_last, conversation_of
from engine.template.prompt import Prompt
from engine.tools import RunTool, Toolbox, ToolLike, as_tools
from engine.turns import Turns
from engine.types import Completion, Message, MessagesLike

if TYPE_CHECKING:
    from engine.types import ParsedCompletion

Answer = TypeVar("Answer")


class Engine(Facts):
    """A model, ready to talk; made by `Engine.load`, a context manager. Its methods may be called from any thread.

    Without a GGUF, for tests: `Engine(ScriptedBackend(...), ChatTemplate(None, family="qwen3"))`; the backend is owned
    from then on.
    """

    def __init__(
        self,
        backend: Backend | IsolatedContext,
        template: ChatTemplate | MissingTemplateError,
        *,
        model: Model | IsolatedModel | None = None,
        seed: int | None = None,
        options: LoopOptions | None = None,
    ) -> None:
        self._service = Service(backend, options)
        self._turns = Turns(self._service, template, seed)
        self._model = model

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
        seed: int | None = None,
        draft_max: int = 0,
        preflight: bool = True,
        trust_template: bool = False,
        isolated: bool = False,
        progress: Callable[[float], bool | None] | None = None,
        **options: Unpack[LoadOptions],
    ) -> Self:
        """Load a GGUF file, by default the built-in model.

        model: a path, or a model on the Hugging Face Hub, downloaded into its cache unless it is there:
        "owner/repo:Q4_K_M" (of "owner/repo" a quantisation that fits into memory is chosen, and said),
        "owner/repo/file.gguf", a glob, or the address of its page. huggingface_hub's settings hold (HF_TOKEN, HF_HOME,
        HF_HUB_OFFLINE, HF_ENDPOINT). What exists as a path is one. revision: a branch, tag or commit on the Hub.
        n_ctx: the most tokens that one conversation may hold; None is 8,192 or the training length, whichever is less,
        and less where memory is short; the log says which, with the numbers. n_gpu_layers: layers to offload, -1 for
        all; None is as many as the devices' free memory takes. chat_template: its text, or the path of a .jinja file,
        in place of the model's own. family: read the output as this family's (a name of models.toml, or a record), or
        find the family among these (`Families`). seed: of every turn that names none. draft_max: tokens guessed at once
        from what the conversation holds already, and verified in one decode; 0 for none. The answer is the same but for
        rounding, sooner where it repeats much. preflight: try these options in a child process first, and the file too
        where its header alone does not tell that llama.cpp lives with it, so that a native fault does not end this one;
        both are remembered. trust_template: render the model's own chat template in this process too; templates that
        did not come with this package are otherwise rendered in a child process, which has limits on memory and time.
        isolated: let the model live in a child process: a native fault later ends only that (requests fail with
        EngineError), and Python threads that compute here do not hold its interpreter lock; logits processors must be
        functions of modules then. progress: called with 0.0 to 1.0, in another thread, answers False to stop.

        Raises ModelLoadError for what is not a model that can chat, or does not fit into memory, ContextOverflowError
        where only its context does not, both before it is read, TemplateError and FamilyError for a template or family
        that cannot be used, RequestError for options that make no sense.
        """
        check_arguments(
            chat_template=chat_template,
            family=family,
            seed=seed,
            preflight=preflight,
            trust_template=trust_template,
            isolated=isolated,
            progress=progress,
            revision=revision,
        )
        given = settings({"n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, "draft_max": draft_max, **options})
        reading = Reading(chat_template, family, trust_template)
        loaded = loading.load(
            model, given, reading, preflight=preflight, isolated=isolated, progress=progress, revision=revision
        )
        return cls._over(loaded, seed, given.loop)

    @classmethod
    async def aload(cls, model: str | Path | None = None, **options: Any) -> Self:
        """`load` for an event loop, with the same options. Cancelling the task closes what was loaded; a download ends
        with the next bytes that come, keeps what it has, and the next call goes on from there."""
        return await off_loop(lambda: cls.load(model, **options), cls.close)

    @classmethod
    def from_llama(
        cls,
        llama: Any,
        *,
        n_ctx: int | None = None,
        chat_template: str | Path | None = None,
        family: FamilyLike | None = None,
        seed: int | None = None,
        draft_max: int = 0,
        preflight: bool = True,
        trust_template: bool = False,
        **options: Unpack[ContextLoadOptions],
    ) -> Self:
        """An engine over the weights of an open `llama_cpp.Llama`, which stays usable beside it and must stay open.

        The context is a new one, as long and with as many threads as the Llama's unless said otherwise; LoRA adapters
        of the Llama's context are not taken over. The options are those of `load`. Raises what `load` raises, and
        EngineError where this build of llama.cpp would end the process: what is loaded already cannot be remedied.
        """
        check_arguments(
            chat_template=chat_template, family=family, seed=seed, preflight=preflight, trust_template=trust_template
        )
        given = {"n_ctx": n_ctx, "draft_max": draft_max, **options}
        reading = Reading(chat_template, family, trust_template)
        loaded = loading.adopt(llama, given, reading, preflight=preflight)
        return cls._over(loaded, seed, settings(given).loop)

    @classmethod
    def _over(cls, loaded: Loaded, seed: int | None, options: LoopOptions) -> Self:
        weights, backend, template = loaded.weights, loaded.backend, loaded.template
        return cls(backend, template, model=weights, seed=seed, options=options)

    @overload
    def chat(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        response_format: type[Answer],
        **options: Unpack[FreeTurnOptions],
    ) -> "ParsedCompletion[Answer]": ...
    @overload
    def chat(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Completion: ...
    def chat(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Any:
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
        return self._turns.start(messages, tools, options, 1)[0]

    def choices(
        self,
        messages: MessagesLike,
        n: int,
        tools: Sequence[ToolLike] | None = None,
        *,
        offline: bool = False,
        **options: Unpack[TurnOptions],
    ) -> list[Stream]:
        """`n` answers to one conversation, each a stream of its own; its prompt is evaluated once (a short
        one again, where that is cheaper than copying it to another KV buffer).

        With a seed the first answer is drawn with it, the next with the next number, and so on. Load with
        `n_sequences=n` to decode them together. `offline`: nobody reads them token by token, so other prompts that
        arrive are evaluated first, as `generate` does it: more tokens a second in all. Raises what `stream` raises.
        """
        _ = checked({"n": n, "offline": offline}, ChoicesArguments)
        return self._turns.start(messages, tools, options, n, offline=offline)

    def pin(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> PinnedPrefix:
        """Evaluate what the prompts of all conversations that begin so have in common (a system message and tools, for
        one), and keep it until it is released: `with llm.pin(messages, tools) as prefix`. It waits for that.

        A pinned prefix takes one of the engine's `n_sequences` for itself. `prefix.save(path)` writes it to a file, for
        `restore`. Raises what `stream` raises, RequestError too when no sequence is left for it.
        """
        tokens = self._turns.head(messages, tools, options)
        return self._service.pin(tokens, progress=options.get("progress"))

    def restore(self, path: str | Path) -> PinnedPrefix:
        """Pin a saved prefix without evaluating it. Restore only files that you trust like the model's:
        whoever writes one decides what the model has read. Raises RequestError for a file that is damaged or belongs to
        another model or other settings, EngineError for one whose state is not that of its tokens, and what `pin`
        raises."""
        return self._service.restore(path)

    @overload
    def generate(
        self,
        rows: Sequence[Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        on_error: Literal["raise"] = "raise",
        **options: Unpack[TurnOptions],
    ) -> list[Completion]: ...
    @overload
    def generate(
        self,
        rows: Sequence[Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        on_error: OnError,
        **options: Unpack[TurnOptions],
    ) -> list[Completion | EngineError]: ...
    def generate(
        self,
        rows: Sequence[Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        on_error: OnError = "raise",
        **options: Unpack[TurnOptions],
    ) -> Any:
        """Many turns at once, answers in order; load with `n_sequences=8` to decode eight together.

        A row is a conversation, or a pair of one and options of its own. As only the ends are waited for, prompts are
        evaluated before answers are gone on with: faster as a whole than so many streams, whose tokens keep coming.
        `on_error="return"` puts the error of a row in its place; else the first one is raised, with a note that names
        the row, and the others are cancelled. Raises what `stream` raises.
        """
        return many.generate(self._rows(tools, options), rows, on_error)

    def generate_iter(
        self, rows: Iterable[Row], tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Iterator[tuple[int, Completion | EngineError]]:
        """Rows of any iterable, answered as they end: pairs of a row's number and its answer, or its error. At most
        twice `n_sequences` rows are under way, and no more are taken; leaving the loop cancels them."""
        return many.generate_iter(self._rows(tools, options), rows, self._room)

    def _rows(self, tools: Sequence[ToolLike] | None, options: TurnOptions) -> many.Start:
        """Starts turns of rows; the common options are checked now."""
        _, known = self._turns.check(options), as_tools(tools)

        def start(messages: MessagesLike, own: Mapping[str, Any]) -> Stream:
            merged: Any = {**options, **own}
            return self._turns.start(messages, merged.pop("tools", known), merged, 1, offline=True)[0]

        return start

    @property
    def _room(self) -> int:
        return 2 * self._service.info.n_sequences

    def complete(self, prompt: str | Sequence[int], **options: Unpack[RawOptions]) -> Completion:
        """What follows a text or tokens, with no chat template between. Raises what `stream_complete` raises."""
        return self.stream_complete(prompt, **options).result()

    def stream_complete(self, prompt: str | Sequence[int], **options: Unpack[RawOptions]) -> Stream:
        """`complete` as it is generated; all of it is content.

        In a text, control-token text becomes control tokens, and the model's beginning token is put before it, if it is
        not there. Tokens are taken as they are. Raises RequestError for tokens or options that are not valid,
        ContextOverflowError for a prompt that is too long, EngineError when the engine is closed.
        """
        return self._turns.start_raw(prompt, options)

    @overload
    async def achat(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        response_format: type[Answer],
        **options: Unpack[FreeTurnOptions],
    ) -> "ParsedCompletion[Answer]": ...
    @overload
    async def achat(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Completion: ...
    async def achat(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Any:
        """`chat` for an event loop; cancelling the task stops the turn."""
        return await (await self.astream(messages, tools, **options))

    async def astream(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Stream:
        """`stream` for an event loop: the template is rendered and the prompt tokenised in a worker thread."""
        return await off_loop(lambda: self.stream(messages, tools, **options), Stream.cancel)

    async def acomplete(self, prompt: str | Sequence[int], **options: Unpack[RawOptions]) -> Completion:
        """`complete` for an event loop; cancelling the task stops it."""
        return await (await off_loop(lambda: self.stream_complete(prompt, **options), Stream.cancel))

    async def arun(
        self,
        messages: RunInput,
        tools: Sequence[RunTool] | None = None,
        max_steps: int = 8,
        **options: Unpack[AgentOptions],
    ) -> Run:
        """`run` for an event loop: async tools of one turn run at once; cancelling the task stops the run."""
        return await self.stream_run(messages, tools, max_steps, **options)

    async def agenerate(
        self,
        rows: Sequence[Row],
        tools: Sequence[ToolLike] | None = None,
        *,
        on_error: OnError = "raise",
        **options: Unpack[TurnOptions],
    ) -> list[Completion | EngineError]:
        """`generate` for an event loop; cancelling the task stops all rows."""
        return await many.agenerate(self._rows(tools, options), rows, on_error, self._room)

    def agenerate_iter(
        self, rows: Iterable[Row], tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> AsyncIterator[tuple[int, Completion | EngineError]]:
        """`generate_iter` for an event loop: `async for number, answer in llm.agenerate_iter(rows)`."""
        return many.agenerate_iter(self._rows(tools, options), rows, self._room)

    async def apin(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> PinnedPrefix:
        """`pin` for an event loop."""
        return await off_loop(lambda: self.pin(messages, tools, **options), PinnedPrefix.release)

    async def arestore(self, path: str | Path) -> PinnedPrefix:
        """`restore` for an event loop."""
        return await off_loop(lambda: self.restore(path), PinnedPrefix.release)

    def tokenize(self, text: str, *, special: bool = True, add_bos: bool = False) -> list[int]:
        """The tokens of a text. `special`: control-token text becomes control tokens; `add_bos`: with the beginning
        token that this model's prompts have, if any."""
        self._service.check()
        return tokenize(self._service.vocab, text, special=special, add_bos=add_bos)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of tokens, control tokens as their texts; bytes that are no UTF-8 are U+FFFD. Raises RequestError
        for a token that the model does not have."""
        self._service.check()
        return detokenize(self._service.vocab, tokens)

    def run(
        self,
        messages: RunInput,
        tools: Sequence[RunTool] | None = None,
        max_steps: int = 8,
        **options: Unpack[AgentOptions],
    ) -> Run:
        """The agent loop: turns and tools until the model answers, `max_steps` turns at most. Beside tools it takes
        servers of tools (`MCP`), which it connects while it goes. A `Transcript` is gone on with where it was left. The
        run's own options are `RunOptions`. Raises what `stream` raises, EngineError for a server that cannot be
        connected, and CallbackError for an option that is a function and fails."""
        return self.stream_run(messages, tools, max_steps, **options).result()

    def stream_run(
        self,
        messages: RunInput,
        tools: Sequence[RunTool] | None = None,
        max_steps: int = 8,
        **options: Unpack[AgentOptions],
    ) -> RunStream:
        """The agent loop as it goes: `for`, `async for`, `await` (the Run), `with`. Each event carries its `step`."""
        policy, own = run_options(max_steps, options, TurnOptions)
        _ = self._turns.check(own)
        toolbox = Toolbox(tools, self.achat)

        def turn(history: Sequence[Message]) -> Stream:
            goes_on = own.get("continue_final_message", False) and history[-1].role == "assistant"
            return self.stream(history, toolbox.tools, **{**own, "continue_final_message": goes_on})

        if not isinstance(messages, Transcript):
            messages = conversation_of(messages)
            check_last(messages, generates=True, continues=own.get("continue_final_message", False))
        return stream_run(turn, messages, toolbox, policy)

    def render(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Prompt:
        """The prompt that `stream` would send."""
        return self._turns.prompt(messages, tools, options)

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
        return explain_turn(self.template, self._turns.asked(messages, tools, output, options), self._service.vocab)

    openai_client = OpenAI
    async_openai_client = AsyncOpenAI

    def inspect(self) -> Inspection:
        """What the engine understood of the model."""
        return inspect_model(self.template, self.info, self._service.info, self._service.vocab.size)

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Raises MissingTemplateError for a base model that has none."""
        return self._turns.template

    @property
    def family(self) -> Family:
        """The family that the model's output is read as; "content-only" for a base model without a template."""
        return self._turns.family

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
        return self._service.info.n_ctx

    @property
    def metrics(self) -> Metrics:
        """Sums over the turns finished so far; `.prometheus()` is their text for a scraper."""
        return self._service.metrics

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests: it was closed, or it broke."""
        return self._service.closed

    def close(self) -> None:
        """Cancel what runs and free the memory; twice is fine."""
        self._service.close()
        if self._model is not None:
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def aclose(self) -> None:
        """`close` for an event loop."""
        await off_loop(self.close, lambda _: None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
