"""Makes the prompt of a conversation: rendered, and fitted into the context by the caller's overflow policy."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeAlias

from engine.formats.template.chat_template import ChatTemplate
from engine.support.deadlines import check_time, latest
from engine.tools import ToolLike
from engine.turns.room import check_room
from engine.turns.summary import Failed, Summarising, Summary, budget_of, messages_in, overhead, written
from engine.types.completion import Usage
from engine.types.events import Event, Summarised
from engine.types.messages import Message
from engine.types.prompt import Prompt
from engine.types.tools import Tool
from engine.types.turn_settings import TurnSettings

_KEPT = ("system", "developer")
_WHOLE = Usage()
"""The usage of a prompt that leaves nothing out."""
_SHORT = 200
"""The length of a shortened result in characters; results of up to twice that length are not shortened."""


def kept(
    messages: Sequence[Message], count: Callable[[tuple[int, ...]], int], limit: int, step: int
) -> tuple[int, ...]:
    """Returns the indices of the messages to send, so that their `count` is at most `limit`; if that is impossible, as
    few as may be sent.

    The number of dropped tokens is rounded up to a multiple of `step` if possible, so that the prompt's beginning,
    which a prefix cache holds, stays the same for many turns.
    """
    everything = tuple(range(len(messages)))
    total = count(everything)
    if total <= limit:
        return everything
    groups = droppable(messages)

    def without(number: int) -> tuple[int, ...]:
        gone = {index for group in groups[:number] for index in group}
        return tuple(index for index in everything if index not in gone)

    return without(fewest(lambda number: total - count(without(number)), len(groups), total - limit, step))


def fewest(saves: Callable[[int], int], most: int, excess: int, step: int) -> int:
    """Returns how many of `most` must go until that saves the excess: rounded up to a multiple of `step` if they can,
    all if even they save too little."""
    known = cache(saves)
    for wanted in (-(-excess // step) * step, excess):
        number = bisect_left(range(most + 1), wanted, key=known)
        if number <= most:
            return number
    return most


def shortened(
    messages: Sequence[Message], count: Callable[[tuple[Message, ...]], int], limit: int, step: int
) -> tuple[Message, ...]:
    """Returns the messages with the results of tools cut to the beginnings of their texts, the oldest first, until
    their `count` is at most `limit`; if that is impossible, with all results cut that may be. Results that the model
    has not read yet stay complete.

    As in `kept`, the number of tokens removed is rounded up to a multiple of `step` if possible.
    """
    whole = tuple(messages)
    total = count(whole)
    if total <= limit:
        return whole
    newest = max((index for index, message in enumerate(whole) if message.role == "assistant"), default=-1)
    long = [index for index, message in enumerate(whole[:newest]) if _is_long(message)]

    def cut(number: int) -> tuple[Message, ...]:
        gone = frozenset(long[:number])
        return tuple(_cut(message) if index in gone else message for index, message in enumerate(whole))

    return cut(fewest(lambda number: total - count(cut(number)), len(long), total - limit, step))


def _is_long(message: Message) -> bool:
    return message.role == "tool" and (len(message.content or "") > 2 * _SHORT or bool(message.media))


def _cut(message: Message) -> Message:
    text = message.content or ""
    note = f"these are the first {_SHORT} of {len(text):,} characters" if len(text) > 2 * _SHORT else ""
    left_out = f"without {', '.join(each.about for each in message.media)}" if message.media else ""
    shown = text[:_SHORT] if note else text
    cut = f"{shown}\n(Cut to save room: {', '.join(filter(None, (note, left_out)))}.)"
    return message.model_copy(update={"content": cut, "parts": ()})


def droppable(messages: Sequence[Message]) -> list[list[int]]:
    """Returns groups of messages, the oldest first; each can only be dropped as a whole."""
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    groups: list[list[int]] = []
    home: dict[str, int] = {}
    fresh = True
    for index, message in enumerate(messages):
        if message.role in _KEPT:
            continue
        if index == last:
            fresh = True
            continue
        if fresh or message.role == ("user" if index < last else "assistant"):
            groups.append([])
            fresh = False
        newest = len(groups) - 1
        if message.role == "tool" and (at := home.get(message.tool_call_id or "", newest)) < newest:
            groups[at:] = [[number for group in groups[at:] for number in group]]
        groups[-1].append(index)
        home.update({call.id: len(groups) - 1 for call in message.tool_calls})
    # The model continues from the last group, so it is kept.
    return groups[:-1] if groups and groups[-1][-1] > last else groups


Fitted: TypeAlias = tuple[Prompt, Usage, tuple[Event, ...]]
"""A prompt that fits, the usage that tells what was left out, and the events that tell it."""


class Prompts:
    """Makes the prompts of one engine. `tokens` returns a prompt's tokens, `n_ctx` is the most that fit, `longest` the
    bytes of the longest token."""

    def __init__(
        self,
        template: ChatTemplate,
        tokens: Callable[[Prompt], tuple[int, ...]],
        n_ctx: int,
        longest: Callable[[], int],
    ) -> None:
        self._template = template
        self._tokens = tokens
        self._n_ctx = n_ctx
        self._longest = longest

    def rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolLike] | None,
        settings: TurnSettings,
        restored: tuple[int, ...] = (),
    ) -> Prompt:
        """Returns the prompt of these messages. `restored`: the indices of those whose reasoning the caller did not
        send."""
        check_time()
        prompt = self._template.render(
            messages,
            tools,
            settings.reasoning,
            settings.tool_choice,
            continue_final_message=settings.continue_final_message,
            template_kwargs=settings.template_kwargs,
            documents=settings.documents,
            builtin_tools=settings.builtin_tools,
            until=latest(),
        )
        return replace(prompt, restored=restored) if restored else prompt

    def head(self, messages: Sequence[Message], known: Sequence[Tool], settings: TurnSettings) -> tuple[Prompt, int]:
        """Returns a prompt that continues these messages with a user message, and how many of its tokens all prompts
        share that do."""
        answering = replace(settings, continue_final_message=False)
        first, second = (
            self.rendered((*messages, Message(role="user", content=text)), known, answering) for text in ("a", "b")
        )
        return first, _shared(self._tokens(first), self._tokens(second))

    def fitted(
        self,
        messages: tuple[Message, ...],
        restored: tuple[int, ...],
        known: Sequence[Tool],
        settings: TurnSettings,
        summarising: Summarising | None = None,
    ) -> Fitted:
        """Returns the prompt, fitted by the overflow policy beside an answer of `max_tokens` (None: a quarter of the
        context). `restored`: see `rendered`; `summarising`: for "summarise". Raises ContextOverflowError for a prompt
        that is far too long (`check_room`)."""
        policy, max_tokens = settings.overflow, settings.sampling.max_tokens
        fixed = messages if policy == "error" else [each for each in messages if each.role in _KEPT]
        stated = known if settings.tool_choice != "none" else ()
        check_room(fixed, stated, settings.documents or (), self._n_ctx, self._longest)
        if policy == "error":
            return self.rendered(messages, known, settings, restored), _WHOLE, ()

        quarter = max(self._n_ctx // 4, 1)
        limit = self._n_ctx - min(max_tokens or quarter, self._n_ctx // 2)

        def rendered(some: tuple[Message, ...]) -> Prompt:
            return self.rendered(some, known, settings)

        if policy == "summarise":
            assert summarising is not None, "whoever lets turns be summarised says how"
            if (made := self._summarised(messages, restored, rendered, limit, settings, summarising)) is not None:
                return made
        sent = messages
        if policy == "shorten_results":
            sent = shortened(messages, lambda some: len(self._tokens(rendered(some))), limit, quarter)

        @cache
        def prompt(numbers: tuple[int, ...]) -> Prompt:
            return rendered(tuple(sent[number] for number in numbers))

        numbers = kept(sent, lambda some: len(self._tokens(prompt(some))), limit, max(limit // 2, 1))
        found = tuple(number for number in restored if number in numbers)
        dropped = len(messages) - len(numbers)
        cut = sum(sent[number] is not messages[number] for number in numbers)
        usage = Usage(dropped_messages=dropped, shortened_results=cut)
        return replace(prompt(numbers), restored=found), usage, ()

    def _summarised(
        self,
        messages: tuple[Message, ...],
        restored: tuple[int, ...],
        rendered: Callable[[tuple[Message, ...]], Prompt],
        limit: int,
        settings: TurnSettings,
        summarising: Summarising,
    ) -> Fitted | None:
        """Returns the prompt with a summary in place of what must go; None where that is only to be dropped."""

        def count(some: tuple[Message, ...]) -> int:
            return len(self._tokens(rendered(some)))

        total = count(messages)
        if total <= limit:
            return replace(rendered(messages), restored=restored), _WHOLE, ()
        groups, (summaries, write), salt = droppable(messages), summarising, settings.cache_salt
        known, events = summaries.find(messages, groups, salt), ()
        if not known.groups or count(known.instead_of(messages, groups)) > limit:
            budget = budget_of(settings, self._n_ctx)
            going = fewest(
                lambda number: total - count(Summary(number).instead_of(messages, groups)),
                len(groups),
                total - limit + budget + overhead(messages, groups, count),
                max(limit // 2, 1),
            )
            if write is None or going <= known.groups:
                return None
            try:
                known = written(messages, groups[:going], known, count, budget, self._n_ctx, write)
            except Failed as failure:
                known, events = Summary(going), (Summarised("", messages_in(groups, going), str(failure)),)
                lasting = failure.lasting
            else:
                events, lasting = (Summarised(known.text, messages_in(groups, going)),), True
            if lasting:
                summaries.remember(messages, groups[:going], salt, known.text)
        gone = messages_in(groups, known.groups)
        usage = Usage(summarised_messages=gone) if known.text else Usage(dropped_messages=gone)
        usage = usage.model_copy(update={"summarising_tokens": known.tokens})
        numbers = {number for group in groups[: known.groups] for number in group}
        prompt = rendered(known.instead_of(messages, groups))
        return replace(prompt, restored=tuple(number for number in restored if number not in numbers)), usage, events


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the length of the common prefix."""
    return next(
        (number for number, (one, other) in enumerate(zip(first, second, strict=False)) if one != other),
        min(len(first), len(second)),
    )
