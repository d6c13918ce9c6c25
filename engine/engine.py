"""`Engine`: the face users hold. Every method is one call deep into the rooms below.

Knows: which room does what, and the options a caller may give. Does not know: how any of it is done.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Self, TypedDict, Unpack

from pydantic import Field

from engine import loading
from engine.agent.loop import Run, RunStream, stream_run
from engine.constraint.demand import RESERVE, Demand, closing, constraint_of, cutter
from engine.constraint.lark import Cut
from engine.constraint.matcher import refusal
from engine.constraint.response import response_of
from engine.diagnose.explain import Asked, Explanation, explain_turn
from engine.diagnose.inspect import Inspection, inspect_model
from engine.errors import MissingTemplateError, QueueFullError, RequestError
from engine.events import fold
from engine.families import Family, FamilyLike, builtin_families
from engine.isolated.parent import IsolatedContext, IsolatedModel
from engine.llama.model import Model, ModelInfo
from engine.loading import Loaded, Reading
from engine.offloop import off_loop
from engine.openai.client import AsyncOpenAI, OpenAI
from engine.options import (
    ContextLoadOptions,
    LoadOptions,
    RawOptions,
    TurnOptions,
    check_arguments,
    checked,
    parser_choice,
    prompt_options,
    sampling_params,
    settings,
)
from engine.parsing import Piece
from engine.runtime.backend import Backend
from engine.runtime.metrics import Metrics
from engine.runtime.options import LoopOptions
from engine.runtime.service import (
    PinnedPrefix,
    Service,
    Stream,
    TurnRequest,
    detokenize,
    raw_format,
    raw_parser,
    raw_prompt,
    tokenize,
)
from engine.template.chat_template import ChatTemplate
from engine.template.conversation import check_last, conversation_of
from engine.template.fit import Fitted, Prompts
from engine.template.memory import ReasoningMemory
from engine.template.prompt import Prompt
from engine.tools import ToolLike, as_tools
from engine.types import Completion, Message, MessagesLike, SamplingParams


class _Choices(TypedDict):
    n: Annotated[int, Field(ge=1, le=1_000_000)]


class Engine:
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
        self._template = template
        self._service = Service(backend, options)
        self._model = model
        self._seed = seed
        self._memory = ReasoningMemory()

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        revision: str | None = None,
        n_ctx: int | None = None,
        n_gpu_layers: int = 0,
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
        n_ctx: the most tokens that one conversation may hold; None is 8,192 or the training length, whichever is less.
        n_gpu_layers: layers to offload, -1 for all. chat_template: its text, or the path of a .jinja file, in place of
        the model's own. family: read the output as this family's (a name of models.toml, or a record), or find the
        family among these (`Families`). seed: of every turn that names none. draft_max: tokens guessed at once
        from what the conversation holds already, and verified in one decode; 0 for none. The answer is the same
        but for rounding, sooner where it repeats much. preflight: try these options in a child process first, and the
        file too where its header alone does not tell that llama.cpp lives with it, so that a native fault does not end
        this one; both are remembered. trust_template: render the model's own chat template in this process too;
        templates that did not come with this package are otherwise rendered in a child process, which has limits on
        memory and time. isolated: let the model live in a child process: a native fault later ends
        only that (requests fail with EngineError), and Python threads that compute here do not hold its interpreter
        lock; logits processors must be functions of modules then. progress: called with 0.0 to 1.0, in another
        thread, answers False to stop.

        Raises ModelLoadError for what is not a model that can chat, ContextOverflowError for a context that does not
        fit into memory, TemplateError and FamilyError for a template or family that cannot be used, RequestError for
        options that make no sense.
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
        return self._turns(messages, tools, options, 1)[0]

    def choices(
        self,
        messages: MessagesLike,
        n: int,
        tools: Sequence[ToolLike] | None = None,
        **options: Unpack[TurnOptions],
    ) -> list[Stream]:
        """`n` answers to one conversation, each a stream of its own; its prompt is evaluated once (a short
        one again, where that is cheaper than copying it to another KV buffer).

        With a seed the first answer is drawn with it, the next with the next number, and so on. Load with
        `n_sequences=n` to decode them together. Raises what `stream` raises.
        """
        _ = checked({"n": n}, _Choices)
        return self._turns(messages, tools, options, n)

    def _turns(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None,
        options: TurnOptions,
        n: int,
        *,
        offline: bool = False,
    ) -> list[Stream]:
        self._check(options)
        known = as_tools(tools)
        sampling = self._sampling(options)
        asked = prompt_options(options)
        response = response_of(options.get("response_format"), refusal)
        restored = self._memory.restore(conversation_of(messages))
        fitted = self._prompts.fitted(restored, known, asked)
        demand = Demand(
            known,
            asked.tool_choice,
            options.get("parallel_tool_calls", True),
            response,
            options.get("strict_tools", False),
            options.get("answer_reserve", RESERVE),
            sampling.max_tokens,
            options.get("reasoning") is not False,
        )
        # The parser remembers the conversation as the caller has it, and will send it again.
        return [
            self._submit(fitted, restored.messages, demand, sampling.of_choice(number), options, offline=offline)
            for number in range(n)
        ]

    def _submit(
        self,
        fitted: Fitted,
        conversation: Sequence[Message],
        demand: Demand,
        sampling: SamplingParams,
        options: TurnOptions,
        *,
        offline: bool,
    ) -> Stream:
        prompt, memory = fitted.prompt, self._memory
        parser = self.template.parser_recipe(
            prompt,
            demand.tools,
            parser_choice(demand.choice, calls=bool(demand.tools) or demand.response is None),
            reasoning_format=options.get("reasoning_format", "deepseek"),
            control_tokens=self._service.vocab.control_tokens,
            id_salt=_salt(prompt, sampling),
            builtin_tools=options.get("builtin_tools", ()),
        )
        return self._service.submit(
            TurnRequest(
                prompt,
                parser,
                sampling,
                markers=frozenset(self.template.format.control),
                priority=options.get("priority", 0),
                deadline=options.get("deadline"),
                offline=offline,
                reasoning_budget=options.get("reasoning_budget"),
                reasoning_close=self._reasoning_close(),
                keep=fitted.keep,
                dropped=fitted.dropped,
                progress=options.get("progress"),
                ended=lambda events: memory.remember(*_turn_of(conversation, fold(events))),
                constraint=constraint_of(demand, parser.format, prompt.prefix, self._cut),
                reads=demand.response.read if demand.response is not None else None,
            )
        )

    def pin(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> PinnedPrefix:
        """Evaluate what the prompts of all conversations that begin so have in common (a system message and tools, for
        one), and keep it until it is released: `with llm.pin(messages, tools) as prefix`. It waits for that.

        A pinned prefix takes one of the engine's `n_sequences` for itself. `prefix.save(path)` writes it to a file, for
        `restore`. Raises what `stream` raises, RequestError too when no sequence is left for it.
        """
        self._check(options)
        known = as_tools(tools)
        restored = self._memory.restore(conversation_of(messages))
        if restored.messages[-1].role in ("user", "tool"):
            tokens = self._service.tokens(self._prompts.rendered(restored, known, prompt_options(options)))
        else:
            tokens = self._prompts.head(restored.messages, known, prompt_options(options))
        return self._service.pin(tokens, progress=options.get("progress"))

    def restore(self, path: str | Path) -> PinnedPrefix:
        """Pin a saved prefix without evaluating it. Restore only files that you trust like the model's:
        whoever writes one decides what the model has read. Raises RequestError for a file that is damaged or belongs to
        another model or other settings, EngineError for one whose state is not that of its tokens, and what `pin`
        raises."""
        return self._service.restore(path)

    def generate(
        self,
        conversations: Sequence[MessagesLike],
        tools: Sequence[ToolLike] | None = None,
        **options: Unpack[TurnOptions],
    ) -> list[Completion]:
        """Many turns at once, answers in order; load with `n_sequences=8` to decode eight together.

        As only the ends are waited for, prompts are evaluated before answers are gone on with: faster as a whole than
        so many streams, whose tokens keep coming. Raises what `stream` raises; the others are cancelled then.
        """
        if isinstance(conversations, str):
            raise RequestError("generate() takes a list of prompts; put the text in a list, or use chat().")
        known = as_tools(tools)
        with ExitStack() as streams:
            started: list[Stream] = []
            done = 0
            for conversation in conversations:
                while True:
                    try:
                        stream = self._turns(conversation, known, options, 1, offline=True)[0]
                        break
                    except QueueFullError:
                        if done == len(started):
                            raise
                        started[done].result()
                        done += 1
                started.append(streams.enter_context(stream))
            return [stream.result() for stream in started]

    def complete(self, prompt: str | Sequence[int], **options: Unpack[RawOptions]) -> Completion:
        """What follows a text or tokens, with no chat template between. Raises what `stream_complete` raises."""
        return self.stream_complete(prompt, **options).result()

    def stream_complete(self, prompt: str | Sequence[int], **options: Unpack[RawOptions]) -> Stream:
        """`complete` as it is generated; all of it is content.

        In a text, control-token text becomes control tokens, and the model's beginning token is put before it, if it is
        not there. Tokens are taken as they are. Raises RequestError for tokens or options that are not valid,
        ContextOverflowError for a prompt that is too long, EngineError when the engine is closed.
        """
        self._service.check()
        sampling = self._sampling(checked(options, RawOptions))
        raw = raw_prompt(self._service.vocab, prompt)
        response = response_of(options.get("response_format"), refusal)
        demand = Demand(response=response, max_tokens=sampling.max_tokens)
        return self._service.submit(
            TurnRequest(
                raw.prompt,
                raw_parser,
                sampling,
                priority=options.get("priority", 0),
                deadline=options.get("deadline"),
                progress=options.get("progress"),
                constraint=constraint_of(demand, raw_format(), (), self._cut),
                reads=response.read if response is not None else None,
                tokens=raw.tokens,
            )
        )

    async def achat(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Completion:
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
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        max_steps: int = 8,
        **options: Unpack[TurnOptions],
    ) -> Run:
        """`run` for an event loop: async tools of one turn run at once; cancelling the task stops the run."""
        return await self.stream_run(messages, tools, max_steps, **options)

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
        self._check(options)
        known = as_tools(tools)

        def turn(history: Sequence[Message]) -> Stream:
            goes_on = options.get("continue_final_message", False) and history[-1].role == "assistant"
            return self.stream(history, known, **{**options, "continue_final_message": goes_on})

        conversation = conversation_of(messages)
        check_last(conversation, generates=True, continues=options.get("continue_final_message", False))
        return stream_run(turn, conversation, known, max_steps)

    def render(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[TurnOptions]
    ) -> Prompt:
        """The prompt that `stream` would send."""
        self._check(options)
        return self._prompts.fitted(
            self._memory.restore(conversation_of(messages)), as_tools(tools), prompt_options(options)
        ).prompt

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
        self._check(options)
        restored = self._memory.restore(conversation_of(messages))
        prompt = self._prompts.rendered(restored, tools, prompt_options(options))
        asked = Asked(
            restored.messages,
            prompt,
            as_tools(tools),
            parser_choice(prompt_options(options).tool_choice),
            options.get("builtin_tools", ()),
            output,
            self._service.tokens(prompt),
        )
        return explain_turn(self.template, asked, self._service.vocab)

    openai_client = OpenAI
    async_openai_client = AsyncOpenAI

    def inspect(self) -> Inspection:
        """What the engine understood of the model."""
        return inspect_model(self.template, self.info, self._service.info, self._service.vocab.size)

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Raises MissingTemplateError for a base model that has none."""
        if isinstance(self._template, MissingTemplateError):
            raise MissingTemplateError(*self._template.args)
        return self._template

    @cached_property
    def _cut(self) -> Cut:
        return cutter(self._service.vocab)

    @cached_property
    def _prompts(self) -> Prompts:
        return Prompts(self.template, self._service.tokens, self._service.info.n_ctx)

    @property
    def family(self) -> Family:
        """The family that the model's output is read as; "content-only" for a base model without a template."""
        if isinstance(self._template, MissingTemplateError):
            return builtin_families().get("content-only")
        return self._template.family

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

    def _reasoning_close(self) -> tuple[Piece, ...]:
        """What closes this family's reasoning from outside."""
        text = closing(self.template.format)
        return (Piece(text, True),) if text else ()

    def _check(self, options: TurnOptions) -> None:
        """Raise RequestError for options that are not valid, EngineError in a fork of this process."""
        self._service.check()
        _ = self._sampling(checked(options, TurnOptions)), prompt_options(options)

    def _sampling(self, options: RawOptions) -> SamplingParams:
        """The caller's choice, then the engine's seed, then the family's defaults."""
        return sampling_params(options, {**self.family.sampling, "seed": self._seed})


def _turn_of(conversation: Sequence[Message], completion: Completion) -> tuple[Sequence[Message], Message]:
    """A finished turn as it will stand in the next conversation, and what came before it."""
    last = conversation[-1]
    if last.role != "assistant":
        return conversation, completion.message
    return conversation[:-1], last.continued(completion)


def _salt(prompt: Prompt, sampling: SamplingParams) -> str:
    """What the ids of this turn's calls are made from: repeatable where the answer is, else random."""
    if sampling.seed is None and sampling.temperature != 0:
        return secrets.token_hex(16)
    return sha256(f"{sampling.seed} {prompt.text}".encode(errors="surrogatepass")).hexdigest()
