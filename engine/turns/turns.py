"""Makes turns of messages and options: checks them once, renders, constrains, submits."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from hashlib import sha256
from math import inf
from time import monotonic
from typing import Any

from engine.formats.families import Family, builtin_families
from engine.formats.grammar.demand import Demand, closing, constraint_of
from engine.formats.grammar.response import response_of
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.inline_reasoning import without_inline_reasoning
from engine.runtime.guidance import matcher
from engine.runtime.guidance.matcher import Marks
from engine.runtime.loop.request import TurnRequest
from engine.runtime.media.media import TokensAndMedia
from engine.runtime.stream.service import Service
from engine.runtime.stream.stream import Stream
from engine.support.deadlines import finished_by, latest
from engine.support.errors import MissingTemplateError, NoSuchReasoningError, RequestError
from engine.tools import ToolLike, as_tools
from engine.turns.explain_input import ExplainInput
from engine.turns.options import TurnOptions, parser_choice, turn_settings, until
from engine.turns.overflow import Fitted, Prompts
from engine.turns.raw import infill_prompt, raw_format, raw_parser, raw_prompt
from engine.turns.reasoning_memory import ReasoningMemory
from engine.turns.sampling_defaults import SamplingDefaults, sampling_defaults
from engine.turns.summary import Summaries, Summarising, summary_settings
from engine.turns.turn_span import traced
from engine.types.completion import Completion, Usage
from engine.types.conversation import conversation_of, with_answer
from engine.types.events import Event, fold
from engine.types.media import Image, MediaUrls, read_media
from engine.types.messages import Message, MessagesLike
from engine.types.parts import ImagePart, MediaPart, MessagePart
from engine.types.prompt import Piece, Prompt
from engine.types.sampling import SamplingParams
from engine.types.tools import Tool, ToolChoice
from engine.types.turn_settings import TurnSettings

_LEAST_LEFT = 1e-3  # seconds: a turn whose time is over ends in the loop, which says so


class Turns:
    """Starts the turns of one engine. For a base model, `template` is the error that it has none."""

    def __init__(
        self,
        service: Service,
        template: ChatTemplate | MissingTemplateError,
        seed: int | None,
        media_urls: MediaUrls | None = None,
        sampling: SamplingDefaults | None = None,
        model: str = "",
    ) -> None:
        self._service = service
        self._media_urls = media_urls
        self._template = template
        self._seed = seed
        self._model = model or self.family.name
        self.sampling = sampling or sampling_defaults(family=self.family.sampling)
        """How turns sample that do not say it."""
        self.memory = ReasoningMemory()
        """The reasoning of earlier turns, by conversation."""
        self.summaries = Summaries()
        """What `overflow="summarise"` wrote, by conversation."""

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Raises MissingTemplateError for a base model."""
        if isinstance(self._template, MissingTemplateError):
            raise MissingTemplateError(*self._template.args)
        return self._template

    @property
    def known_template(self) -> ChatTemplate | None:
        """The chat template; None for a base model and for a model that makes vectors."""
        return None if isinstance(self._template, MissingTemplateError) else self._template

    @property
    def family(self) -> Family:
        """The family in whose format the output is read; "content-only" for a base model."""
        if isinstance(self._template, MissingTemplateError):
            return builtin_families().get("content-only")
        return self._template.family

    def check(
        self,
        options: Mapping[str, Any],
        kind: type[Mapping[str, Any]] = TurnOptions,
        *,
        response_format: object = None,
    ) -> TurnSettings:
        """Returns the caller's options, checked, over the engine's seed and the model's defaults; `kind`: those that
        there may be. Raises RequestError for options that are not valid, EngineError in a fork of this process."""
        self._service.check()
        beneath = {**self.sampling.values, "seed": self._seed}
        return turn_settings(options, kind, beneath, response_format=response_format)

    @cached_property
    def _marks(self) -> Marks:
        return Marks(self._service.vocab)

    def _cut(self, text: str) -> Sequence[str | int]:
        """Returns a text's plain parts and control tokens. The vocabulary is gone through for the first grammar."""
        return self._marks.cut(text)

    @cached_property
    def _prompts(self) -> Prompts:
        vocab = self._service.vocab
        return Prompts(
            self.template,
            self._service.tokens,
            self._service.info.n_ctx,
            cache(lambda: max(map(len, vocab.all_token_bytes()))),
        )

    def start(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None,
        settings: TurnSettings,
        n: int = 1,
        *,
        offline: bool = False,
        claims: bool = False,
    ) -> list[Stream]:
        """Start `n` turns over one prompt. `offline`: only the result is read. `claims`: what a turn held stays in the
        cache while its stream's `claim` is referenced. Raises what `Engine.stream` raises."""
        with finished_by(until(settings.deadline)):
            demand = _demand(settings, tools)
            conversation, restored = self._restored(messages, settings)
            fitted = self._fitted(conversation, restored, demand)
            # Remembered with the conversation as the caller has it, before fitting: the caller will send that again.
            return [
                self._submit(fitted, conversation, demand, number, offline=offline, claims=claims)
                for number in range(n)
            ]

    def _fitted(self, conversation: tuple[Message, ...], restored: tuple[int, ...], demand: Demand) -> Fitted:
        """Returns the prompt; what must go may first have to be summarised by this model."""
        settings = self._shown(demand)

        def write(messages: tuple[Message, ...], budget: int) -> Completion:
            quietly = summary_settings(settings, budget)
            try:
                (stream,) = self.start(messages, demand.tools, quietly)
            except NoSuchReasoningError:
                longer = quietly.sampling.model_copy(update={"max_tokens": 2 * budget})
                (stream,) = self.start(messages, demand.tools, replace(quietly, reasoning=None, sampling=longer))
            return stream.result()

        summarising = Summarising(self.summaries, write) if settings.overflow == "summarise" else None
        return self._prompts.fitted(conversation, restored, demand.tools, settings, summarising)

    def _submit(
        self,
        fitted: Fitted,
        conversation: Sequence[Message],
        demand: Demand,
        number: int,
        *,
        offline: bool,
        claims: bool,
    ) -> Stream:
        prompt, usage, before = fitted if number == 0 else _told_already(*fitted)
        memory, settings = self.memory, _of_choice(demand.settings, number)
        form = None if demand.response is None else demand.response.answer

        def remember(events: Sequence[Event]) -> None:
            *before, turn = with_answer(conversation, fold(events))
            memory.remember(before, turn, settings.cache_salt)

        parser = self.template.parser_recipe(
            prompt,
            _parser_tools(demand),
            _parser_choice(demand),
            reasoning_format=settings.reasoning_format,
            control_tokens=self._service.vocab.control_tokens,
            json=form is not None and form.is_json,
            exact=form is not None and form.exact,
            id_salt=_salt(prompt, settings.sampling),
            builtin_tools=settings.builtin_tools,
        )
        return traced(
            self._service.submit,
            TurnRequest(
                prompt,
                parser,
                settings,
                markers=frozenset(self.template.format.control),
                offline=offline,
                reasoning_close=self._close(),
                usage=usage.model_copy(update={"sampling": self.sampling.used(settings)}),
                before=before,
                ended=remember,
                claims=claims,
                constraint=constraint_of(demand, parser.format, prompt.prefix, self._cut, matcher),
                reads=self._reader(demand, conversation),
            ),
            self._model,
        )

    def _reader(self, demand: Demand, conversation: Sequence[Message]) -> Callable[[str], object] | None:
        """Returns what reads the finished answer, which begins with the text of a message that the turn continues."""
        if demand.response is None:
            return None
        read, last = demand.response.read, without_inline_reasoning(conversation[-1], self.template.format)
        begun = last.content or "" if last.role == "assistant" else ""
        return (lambda content: read(begun + content)) if begun else read

    def _restored(self, messages: MessagesLike, settings: TurnSettings) -> tuple[tuple[Message, ...], tuple[int, ...]]:
        """Returns the conversation, with the reasoning that the caller dropped unless the settings forbid it, and the
        indices of the messages that got it back."""
        conversation = self._decoded(conversation_of(messages))
        if settings.restore_reasoning:
            return self.memory.restore(conversation, settings.cache_salt)
        return conversation, ()

    def _decoded(self, conversation: tuple[Message, ...]) -> tuple[Message, ...]:
        """Returns the conversation with the pictures and sounds decoded that the model takes, and only these; links to
        pictures are read if this engine may."""
        media = [each for message in conversation for each in message.media]
        if not media or not self._service.info.media:
            return conversation
        read = iter(read_media(media, self._service.info.media, self._media_urls, latest()))

        def placed(part: MessagePart) -> MessagePart:
            if not isinstance(part, MediaPart):
                return part
            found = next(read)
            return ImagePart(image=found) if isinstance(found, Image) and found is not part.media else part

        return tuple(
            message.model_copy(update={"parts": tuple(map(placed, message.parts))}) if message.media else message
            for message in conversation
        )

    def start_raw(
        self, prompt: str | Sequence[int], settings: TurnSettings, choice: int = 0, *, offline: bool = False
    ) -> Stream:
        """Start a turn without a chat template, the answer of this number to its prompt. Raises what
        `Engine.stream_complete` raises."""
        raw, tokens = self._raw_prompt(prompt, settings)
        with finished_by(until(settings.deadline)):
            settings = _of_choice(settings, choice)
            demand = _demand(settings)
            return traced(
                self._service.submit,
                TurnRequest(
                    raw,
                    raw_parser,
                    settings,
                    usage=Usage(sampling=self.sampling.used(settings)),
                    offline=offline,
                    constraint=constraint_of(demand, raw_format(), (), self._cut, matcher),
                    reads=None if demand.response is None else demand.response.read,
                    tokens=tokens,
                ),
                self._model,
                "text_completion",
            )

    def _raw_prompt(self, prompt: str | Sequence[int], settings: TurnSettings) -> tuple[Prompt, tuple[int, ...]]:
        vocab, end, files = self._service.vocab, settings.suffix, settings.files
        if end is None:
            if files is not None:
                raise RequestError("files are read before a text with a gap; pass suffix, the text after the gap, too.")
            return raw_prompt(vocab, prompt)
        if not isinstance(prompt, str):
            raise RequestError("suffix needs a prompt that is text; this one is tokens.")
        return infill_prompt(vocab, prompt, end, files or {})

    def prompt(self, messages: MessagesLike, tools: Sequence[ToolLike] | None, settings: TurnSettings) -> Prompt:
        """Returns the prompt that `start` would send."""
        with finished_by(until(settings.deadline)):
            demand = _demand(settings, tools)
            conversation, restored = self._restored(messages, settings)
            settings, known = self._shown(demand), Summarising(self.summaries)
            return self._prompts.fitted(conversation, restored, demand.tools, settings, known)[0]

    def _shown(self, demand: Demand) -> TurnSettings:
        """Returns the settings with the schema of the answer, for a template that shows it."""
        settings = demand.settings
        if demand.response is None or not (shown := demand.response.shown(self.family.shows_schema)):
            return settings
        return replace(settings, template_kwargs={**shown, **(settings.template_kwargs or {})})

    def shared_prefix(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None, settings: TurnSettings
    ) -> TokensAndMedia:
        """Returns the tokens that all conversations share that begin with these messages."""
        with finished_by(until(settings.deadline)):
            stated = as_tools(tools)
            conversation, _ = self._restored(messages, settings)
            if conversation[-1].role in ("user", "tool"):
                return self._service.tokenized(self._prompts.rendered(conversation, stated, settings))
            prompt, shared = self._prompts.head(conversation, stated, settings)
            tokens, media = self._service.tokenized(prompt)
            return tokens[:shared], tuple(each for each in media if each.stop <= shared)

    def answer_prefix(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None, settings: TurnSettings
    ) -> TokensAndMedia:
        """Returns the tokens after which the answer to a conversation begins: without reasoning, which is switched off,
        or closed where the prompt leaves it open."""
        try:
            wanted = False if settings.reasoning is None else settings.reasoning
            prompt = self.prompt(messages, tools, replace(settings, reasoning=wanted))
        except RequestError:
            if settings.reasoning is not None:
                raise
            prompt = self.prompt(messages, tools, settings)  # a template without a switch
        pieces = (*prompt.pieces, *(self._close() if prompt.in_reasoning else ()))
        return self._service.tokenized(replace(prompt, pieces=pieces, text="".join(piece.text for piece in pieces)))

    def explain_input(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None,
        output: str | Sequence[Piece] | None,
        settings: TurnSettings,
    ) -> ExplainInput:
        """Returns the input of `explain` for a conversation and an output that followed it."""
        with finished_by(until(settings.deadline)):
            demand = _demand(settings, tools)
            conversation, restored = self._restored(messages, settings)
            prompt = self._prompts.rendered(conversation, demand.tools, self._shown(demand), restored)
        format_ = self.template.parser_recipe(prompt, demand.tools).format
        return ExplainInput(
            conversation,
            prompt,
            _parser_tools(demand),
            _parser_choice(demand),
            settings.builtin_tools,
            output,
            self._service.tokens(prompt),
            constraint_of(demand, format_, prompt.prefix, self._cut, matcher),
            self.sampling.used(settings),
        )

    def _close(self) -> tuple[Piece, ...]:
        """Returns the text to insert to close this family's reasoning, as pieces."""
        text = closing(self.template.format)
        return (Piece(text, trusted=True),) if text else ()


def _demand(settings: TurnSettings, tools: Sequence[ToolLike] | None = None) -> Demand:
    return Demand(settings, as_tools(tools), response_of(settings.response_format, matcher))


def _of_choice(settings: TurnSettings, number: int) -> TurnSettings:
    """Returns the settings of one of several answers, with what preparing it has left of its deadline."""
    sampling, deadline = settings.sampling.of_choice(number), _left(settings.deadline)
    if sampling is settings.sampling and deadline == settings.deadline:
        return settings
    return replace(settings, sampling=sampling, deadline=deadline)


def _told_already(prompt: Prompt, usage: Usage, _: object) -> Fitted:
    """Returns what a further answer to the same prompt tells: no summary was written for it."""
    return prompt, usage.model_copy(update={"summarising_tokens": 0}), ()


def _left(deadline: float | None) -> float | None:
    """Returns what preparing a turn has left of its deadline, in seconds."""
    until = latest()
    if deadline is None or until is None or not 0 < deadline < inf:
        return deadline
    return min(deadline, max(until - monotonic(), _LEAST_LEFT))


def _parser_choice(demand: Demand) -> ToolChoice:
    return parser_choice(demand.settings.tool_choice, calls=bool(demand.tools) or demand.response is None)


def _parser_tools(demand: Demand) -> tuple[Tool, ...]:
    """Returns the tools whose calls are looked for: none where a constrained answer is all that can be written."""
    return () if demand.settings.tool_choice == "none" and demand.response is not None else tuple(demand.tools)


def _salt(prompt: Prompt, sampling: SamplingParams) -> str:
    """Returns the salt of this turn's call ids: repeatable if the answer is, else random."""
    if sampling.seed is None and sampling.temperature != 0:
        return secrets.token_hex(16)
    return sha256(f"{sampling.seed} {prompt.key}".encode(errors="surrogatepass")).hexdigest()
