"""A conversation becomes the prompt that is sent: rendered, and made to fit as the caller's policy wants it.

Knows: which options concern the prompt. Does not know: how a template renders, how messages are chosen to go, models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import get_args

from engine.chat_template import ChatTemplate
from engine.errors import RequestError
from engine.memory import Restored
from engine.options import AllowedChoice, TurnOptions
from engine.overflow import Overflow, kept
from engine.runtime.prefix import common_prefix
from engine.template.prompt import Prompt
from engine.tools import ToolLike
from engine.types import Message, Tool


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt, and what was done that it fits: see `Service.submit`."""

    prompt: Prompt
    keep: int | None = None
    dropped: int = 0


class Prompts:
    """Makes the prompts of one engine. `tokens` gives what is sent for a prompt, `n_ctx` is how many there may be."""

    def __init__(self, template: ChatTemplate, tokens: Callable[[Prompt], tuple[int, ...]], n_ctx: int) -> None:
        self._template = template
        self._tokens = tokens
        self._n_ctx = n_ctx

    def rendered(
        self,
        restored: Restored,
        tools: Sequence[ToolLike] | None,
        options: TurnOptions,
        *,
        authors: bool = False,
    ) -> Prompt:
        prompt = self._template.render(
            restored.messages,
            tools,
            options.get("reasoning"),
            allowed_choice(options),
            template_kwargs=options.get("template_kwargs"),
            documents=options.get("documents"),
            builtin_tools=options.get("builtin_tools", ()),
            authors=authors,
        )
        return replace(prompt, restored=restored.numbers)

    def head(self, messages: Sequence[Message], known: Sequence[Tool], options: TurnOptions) -> tuple[int, ...]:
        """The tokens that prompts have in common which go on from these messages with a user's."""
        first, second = (
            self._tokens(self.rendered(Restored((*messages, Message(role="user", content=text)), ()), known, options))
            for text in ("a", "b")
        )
        return first[: common_prefix(first, second, len(first))]

    def fitted(self, restored: Restored, known: Sequence[Tool], options: TurnOptions) -> Fitted:
        """The prompt, as the policy for a full context wants it."""
        policy = options.get("overflow", "error")
        if policy not in get_args(Overflow):
            raise RequestError(f"overflow={policy!r} is unknown; choose one of {', '.join(get_args(Overflow))}.")
        messages = restored.messages
        if policy == "shift":
            systems = [*takewhile(lambda message: message.role in ("system", "developer"), messages)]
            whole, head = self.rendered(restored, known, options), self.head(systems, known, options)
            return Fitted(whole, keep=common_prefix(head, self._tokens(whole), len(head)))
        if policy == "error":
            return Fitted(self.rendered(restored, known, options))

        @cache
        def prompt(numbers: tuple[int, ...]) -> Prompt:
            some = [messages[number] for number in numbers]
            return self.rendered(Restored(tuple(some), ()), known, options)

        quarter = max(self._n_ctx // 4, 1)
        room = min(options.get("max_tokens") or quarter, self._n_ctx // 2)
        numbers = kept(messages, lambda some: len(self._tokens(prompt(some))), self._n_ctx - room, quarter)
        found = tuple(number for number in restored.numbers if number in numbers)
        return Fitted(replace(prompt(numbers), restored=found), dropped=len(messages) - len(numbers))


def allowed_choice(options: TurnOptions) -> AllowedChoice:
    """The choice of tools. Raises RequestError for one that cannot be enforced."""
    choice = options.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise RequestError(
            f'tool_choice={choice!r} cannot be enforced yet; use "auto" (say in the prompt which to call) or "none".'
        )
    return choice
