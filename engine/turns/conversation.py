"""`Conversation`: messages that grow turn by turn, and can be forked."""

from collections.abc import Sequence
from typing import Protocol, Self, Unpack

from engine.runtime.stream.stream import Stream
from engine.support.display import counted, page_html, short
from engine.support.errors import NotCopied
from engine.support.guided import Guided
from engine.support.offloop import off_loop_or_undo
from engine.tools import ToolLike
from engine.turns.options import FreeTurnOptions, TurnOptions
from engine.types.answer_formats import Answer, ResponseFormatLike
from engine.types.completion import Completion
from engine.types.conversation import conversation_of, with_answer
from engine.types.messages import Message, Messages, MessagesLike, message_block
from engine.types.streams import Starting


class Start(Protocol):
    """Starts a turn whose tokens stay in the cache while its stream's `claim` is referenced."""

    def __call__(self, messages: MessagesLike, tools: Sequence[ToolLike] | None, options: TurnOptions) -> Stream: ...


class Conversation(Guided, NotCopied):
    """A conversation with a model; made by `Engine.conversation`. For one thread at a time; its forks are others.

    `chat` and `stream` take what is said next: a user's text, or messages (results of tools, for example). It joins
    `messages` together with the answer, once that is complete: the next call waits for it. A turn that failed or was
    cancelled leaves the conversation as it was.

    What the model has read stays evaluated while the conversation or a fork of it is referenced, as far as memory
    reaches: in the KV cache, then in the engine's store of states.
    """

    _instead = "fork() returns another that goes on from here; `messages` is what to save, or to send elsewhere."

    def __init__(
        self, start: Start, messages: "MessagesLike | None", tools: Sequence[ToolLike] | None, options: TurnOptions
    ) -> None:
        self._start = start
        self._messages = () if messages is None else tuple(conversation_of(messages))
        self._tools = tools
        self._options = options
        self._turn: tuple[tuple[Message, ...], Stream] | None = None
        self._claim: object = None
        self._shared = False

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages so far; waits for an answer that is under way."""
        self._settle()
        return Messages(self._messages)

    def stream(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> Stream[Answer]:
        """Start the next turn and return it as a stream; `tools` and `options` are those of `Engine.stream`, over the
        conversation's own. Raises what `Engine.stream` raises."""
        said = (*self.messages, *conversation_of(messages))
        given: TurnOptions = {**self._options, **options}
        if response_format is not None:
            given["response_format"] = response_format
        stream = self._start(said, self._tools if tools is None else tools, given)
        self._turn = said, stream
        if not self._shared:
            self._claim = None  # no fork goes on from there, so the turn may take its place
        return stream

    def chat(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> Completion[Answer]:
        """Returns the model's answer. Raises what `Engine.chat` raises."""
        return self.stream(messages, tools, response_format=response_format, **options).result()

    def astream(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        *,
        response_format: ResponseFormatLike[Answer] = None,
        **options: Unpack[FreeTurnOptions],
    ) -> Starting[Stream[Answer]]:
        """`stream` for an event loop, read as `Engine.astream`'s."""

        def start() -> Stream[Answer]:
            return self.stream(messages, tools, response_format=response_format, **options)

        return Starting(off_loop_or_undo(start, Stream.cancel))

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

    def fork(self) -> Self:
        """Returns a conversation with the same messages, which goes its own way. Nothing is evaluated again: both
        continue from what is in the cache. Waits for an answer that is under way."""
        self._settle()
        other = type(self)(self._start, None, self._tools, self._options)
        other._messages, other._claim = self._messages, self._claim
        self._shared = other._shared = True
        return other

    def _settle(self) -> None:
        """Let the last turn join the messages, if it went well; its reader gets the error if it did not."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        said, stream = turn
        try:
            completion = stream.result()
        except Exception:  # noqa: BLE001 - raised where the stream is read
            return
        if completion.finish_reason not in ("cancelled", "deadline"):
            self._messages, self._claim, self._shared = with_answer(said, completion), stream.claim, False

    def _shown(self) -> tuple[Message, ...]:
        """Returns the messages for display, the newest turn's among them if it is over: showing waits for nothing."""
        if self._turn is not None and self._turn[1].ended:
            self._settle()
        return self._messages

    def __repr__(self) -> str:
        messages = self._shown()
        number = len(messages)
        newest = f", the newest {short(messages[-1].content or '')!r}" if number else ""
        return f"<Conversation: {counted(number, 'message')}{newest}>"

    def _repr_html_(self) -> str:
        return page_html(map(message_block, self._shown()))
