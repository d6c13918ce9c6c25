"""`Agent`: instructions, tools, the form of the answer and limits as one record, run by any engine.

Knows: what its fields mean to a run. Does not know: models; it is given whatever has `stream_run`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from engine.agent.loop import Run, RunStream
from engine.agent.options import Approve
from engine.agent.transcript import RunInput, Transcript
from engine.errors import RequestError
from engine.tools import RunTool
from engine.types import Message


class Runs(Protocol):
    """What runs an agent: `Engine`, or `engine.openai.chat.Remote`."""

    @property
    def stream_run(self) -> Any:
        """As `Engine.stream_run`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What is the same in all runs of one agent: `agent.run(llm, "...")`, `stream_run`, `arun`.

    - `instructions`: the system message, put in front of the conversation.
    - `tools`: as for `llm.run`.
    - `output`: what the final answer must be, as `response_format` of a turn: a pydantic model, `JsonSchema({...})`,
      `Choice([...])` and so on; `run.completion.parsed` is its value.
    - `max_steps`, `max_total_tokens`, `max_parallel_tools`, `tool_timeout`, `stop_on`, `approve`: as `RunOptions` says.
    - `options`: further options of its turns, like `{"temperature": 0}`.

    Options that are given to a run win over the agent's.
    """

    instructions: str | None = None
    tools: Sequence[RunTool] = ()
    output: Any = None
    max_steps: int = 8
    max_total_tokens: int | None = None
    max_parallel_tools: int | None = None
    tool_timeout: float | None = None
    stop_on: Sequence[str] = ()
    approve: Approve | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def run(self, llm: Runs, messages: RunInput, **options: Any) -> Run:
        """Run it to its end. Raises what `llm.run` raises, and RequestError for messages that begin with another system
        message."""
        return self.stream_run(llm, messages, **options).result()

    async def arun(self, llm: Runs, messages: RunInput, **options: Any) -> Run:
        """`run` for an event loop; cancelling the task stops the run."""
        return await self.stream_run(llm, messages, **options)

    def stream_run(self, llm: Runs, messages: RunInput, **options: Any) -> RunStream:
        """The run as it goes: `for`, `async for`, `await` (the Run), `with`. Raises what `run` raises."""
        asked = {**self._own(), **self.options, **options}
        return llm.stream_run(self._instructed(messages), self.tools, **asked)

    def _own(self) -> dict[str, Any]:
        form = {} if self.output is None else {"response_format": self.output}
        return form | {
            "max_steps": self.max_steps,
            "max_total_tokens": self.max_total_tokens,
            "max_parallel_tools": self.max_parallel_tools,
            "tool_timeout": self.tool_timeout,
            "stop_on": self.stop_on,
            "approve": self.approve,
        }

    def _instructed(self, messages: RunInput) -> RunInput:
        """The conversation with the instructions in front, once: one that this agent has led before has them."""
        if self.instructions is None or isinstance(messages, Transcript):
            return messages
        given: list[Any]
        if isinstance(messages, str):
            given = [Message(role="user", content=messages)]
        else:
            given = [messages] if isinstance(messages, Message | Mapping) else list(messages)
        own = Message(role="system", content=self.instructions)
        first = _told(given[0]) if given else (None, None)
        if first[0] not in ("system", "developer"):
            return [own, *given]
        if first[1] != self.instructions:
            raise RequestError(
                f"The messages begin with a {first[0]} message of their own, and the agent has instructions; leave one "
                "of them out (messages[1:], or an agent without instructions)."
            )
        return given


def _told(message: Any) -> tuple[object, object]:
    """Role and content of a message in any of its spellings."""
    if isinstance(message, Mapping):
        about = cast("Mapping[str, object]", message)
        return about.get("role"), about.get("content")
    return getattr(message, "role", None), getattr(message, "content", None)
