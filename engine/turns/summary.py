"""What must go from a conversation becomes a summary, which the same model writes once: `overflow="summarise"`."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from engine.support.errors import EngineError, LateError, RequestError
from engine.turns.reasoning_memory import digests
from engine.types.completion import Completion
from engine.types.messages import Message
from engine.types.sampling import SamplingParams
from engine.types.tools import AllowedChoice
from engine.types.turn_settings import TurnSettings

CHARACTERS = 1_000_000
"""The most characters of summaries that are kept; those that were used longest ago are forgotten first."""
_HEAD = "Summary of our earlier conversation, whose messages were left out to save room:\n"
_ASK = (
    "Before we go on, summarise our conversation so far for yourself, in at most {} words. Keep names, numbers, facts "
    "about me, decisions, results of tools, and what is still to do. Write the summary only."
)
_WORDS = 0.6
"""Words of a token, roughly: a summary that is asked to be so long is not cut off at its budget."""
_LEAST, _MOST, _SHARE = 64, 512, 16
_UNTOLD = ("cancelled", "deadline", "error")
"""Ends of a summary that say nothing about the next attempt."""

Groups: TypeAlias = Sequence[Sequence[int]]
Write: TypeAlias = Callable[[tuple[Message, ...], int], Completion]
"""Answers these messages in at most so many tokens. Raises EngineError."""
Count: TypeAlias = Callable[[tuple[Message, ...]], int]


class Failed(Exception):
    """No summary can be written, and why. `lasting`: another attempt would fail, too."""

    def __init__(self, why: str, *, lasting: bool = True) -> None:
        super().__init__(why)
        self.lasting = lasting


class Summary(NamedTuple):
    """A text that stands for the first `groups` of what may go; "" where there is none. `tokens`: what reading and
    writing it took just now."""

    groups: int = 0
    text: str = ""
    tokens: int = 0

    def instead_of(self, messages: Sequence[Message], groups: Groups) -> tuple[Message, ...]:
        """Returns the messages with this summary in place of the groups that it stands for."""
        return replaced(messages, groups[: self.groups], self.text)


class Summaries:
    """The summaries of conversations, found by the messages that they stand for. Thread-safe."""

    def __init__(self, characters: int = CHARACTERS) -> None:
        self._room = characters
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, messages: Sequence[Message], groups: Groups, salt: str | None) -> Summary:
        """Returns the summary of the most of these groups; one of none, if there is none."""
        keys = _keys(messages, groups, salt)
        with self._lock:
            for number in range(len(keys), 0, -1):
                if (text := self._texts.get(keys[number - 1])) is not None:
                    self._texts.move_to_end(keys[number - 1])
                    return Summary(number, text)
        return Summary()

    def remember(self, messages: Sequence[Message], groups: Groups, salt: str | None, text: str) -> None:
        """Keep the summary of all these groups."""
        key = _keys(messages, groups, salt)[-1]
        with self._lock:
            self._room += _size(self._texts.pop(key, None)) - _size(text)
            self._texts[key] = text
            while self._room < 0:
                self._room += _size(self._texts.popitem(last=False)[1])


class Summarising(NamedTuple):
    """The summaries that there are, and who writes others (None: nobody)."""

    summaries: Summaries
    write: Write | None = None


def _size(text: str | None) -> int:
    return 0 if text is None else 64 + len(text)


def _keys(messages: Sequence[Message], groups: Groups, salt: str | None) -> list[bytes]:
    """Returns a digest of the messages of the first group, of the first two, and so on."""
    gone = [number for group in groups for number in group]
    every = list(digests([messages[number] for number in gone], salt))
    return [every[end - 1] for end in accumulate(map(len, groups))]


def messages_in(groups: Groups, number: int) -> int:
    """Returns how many messages the first groups have."""
    return sum(map(len, groups[:number]))


def budget_of(settings: TurnSettings, n_ctx: int) -> int:
    """Returns the most tokens of a summary: the caller's, else a sixteenth of the context, 64 to 512."""
    given = settings.summary_tokens
    return max(_LEAST, min(_MOST, n_ctx // _SHARE)) if given is None else min(given, max(1, n_ctx // 4))


def replaced(messages: Sequence[Message], groups: Groups, text: str) -> tuple[Message, ...]:
    """Returns the messages with a summary in place of these groups; without them where there is no text."""
    gone = {number for group in groups for number in group}
    left = [(number, message) for number, message in enumerate(messages) if number not in gone]
    if not text or not gone:
        return tuple(message for _, message in left)
    place = sum(number < min(gone) for number, _ in left)
    whole = [message for _, message in left]
    return (*whole[:place], Message(role="user", content=_HEAD + text), *whole[place:])


def overhead(messages: Sequence[Message], groups: Groups, count: Count) -> int:
    """Returns the tokens that a summary takes beside its text."""
    return count(replaced(messages, groups, ".")) - count(replaced(messages, groups, ""))


def written(
    messages: Sequence[Message], groups: Groups, known: Summary, count: Count, budget: int, n_ctx: int, write: Write
) -> Summary:
    """Let the model summarise these groups, of which it has summarised some already, in as many steps as the context
    asks for: each behind what the conversation's own prompt began with, so that the cache has most of it. Raises
    Failed."""
    done, text, spent = known.groups, known.text, 0
    while done < len(groups):
        stop = _fitting(messages, groups, done, text, lambda some: count(some) + budget <= n_ctx)
        if stop == done:
            raise Failed("one turn alone fills the context")
        try:
            said = write(_question(messages, groups, done, stop, text, budget), budget)
        except EngineError as error:
            lasting = isinstance(error, RequestError) and not isinstance(error, LateError)
            raise Failed(str(error), lasting=lasting) from error
        spent += said.usage.prompt_tokens - said.usage.cached_tokens + said.usage.completion_tokens
        if said.finish_reason in _UNTOLD:
            raise Failed(f"its turn ended: {said.finish_reason}", lasting=False)
        if not (text := said.content.strip()):
            raise Failed("the model called a tool instead" if said.tool_calls else "the model wrote nothing")
        done = stop
    return Summary(len(groups), text, spent)


def _question(
    messages: Sequence[Message], groups: Groups, done: int, stop: int, text: str, budget: int
) -> tuple[Message, ...]:
    """Returns the conversation up to the last message of group `stop`, the summary of the first `done` in their place,
    and the request for a new one."""
    end = max(number for group in groups[:stop] for number in group) + 1
    ask = _ASK.format(max(1, int(budget * _WORDS)))
    return (*replaced(messages[:end], groups[:done], text), Message(role="user", content=ask))


def _fitting(
    messages: Sequence[Message], groups: Groups, done: int, text: str, fits: Callable[[tuple[Message, ...]], bool]
) -> int:
    """Returns the number of groups up to which the conversation can be read at once, `done` if not one more can."""
    low, high = done, len(groups)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(_question(messages, groups, done, middle, text, _MOST)):
            low = middle
        else:
            high = middle - 1
    return low


def summary_settings(settings: TurnSettings, budget: int) -> TurnSettings:
    """Returns how a summary is written: like the turn's answer where that shapes the prompt, and greedily."""
    choice: AllowedChoice = "none" if settings.tool_choice == "none" else "auto"
    return TurnSettings(
        sampling=SamplingParams(temperature=0, max_tokens=budget, repeat_penalty=1.0),
        tool_choice=choice,
        builtin_tools=settings.builtin_tools,
        reasoning=False,
        restore_reasoning=False,
        template_kwargs=settings.template_kwargs,
        documents=settings.documents,
        priority=settings.priority,
        deadline=settings.deadline,
        adapters=settings.adapters,
        cache_salt=settings.cache_salt,
    )
