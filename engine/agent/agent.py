"""`Agent`: instructions, tools, the form of the answer and limits as one record, run by any engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self

from engine.agent.limits import Approve
from engine.agent.run import Run, RunStream
from engine.agent.transcript import RunInput, Transcript
from engine.support.errors import RequestError, shown
from engine.support.guided import Guided
from engine.support.hints import unknown_option
from engine.support.printed import Printed
from engine.tools import RunTool
from engine.types.answer_formats import Answer_co, ResponseFormatLike
from engine.types.conversation import conversation_of
from engine.types.messages import Message


class Runs(Protocol):
    """An object that runs an agent: `Engine`, or `engine.remote.Remote`."""

    @property
    def stream_run(self) -> Any:
        """Same as `Engine.stream_run`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Agent(Guided, Printed, Generic[Answer_co]):
    """What all runs of one agent have in common: `agent.run(llm, "...")`, `stream_run`, `arun`.

    - `instructions`: the system message, put before the conversation.
    - `tools`: as for `llm.run`.
    - `output`: the required form of the final answer, as `response_format` of a turn: a pydantic model,
      `JsonSchema({...})`, `Choice([...])` and so on; `run.completion.parsed` is its value, which type checkers know:
      the runs of an `Agent(output=Invoice)`, an `Agent[Invoice]`, are `Run[Invoice]`.
    - `max_steps`, `max_total_tokens`, `max_parallel_tools`, `tool_timeout`, `stop_on`, `approve`: as in `RunOptions`.
    - `options`: further options of its turns, like `{"temperature": 0}`.

    Options that are given to a run override the agent's.
    """

    instructions: str | None = None
    tools: Sequence[RunTool] = ()
    output: ResponseFormatLike[Answer_co] = None
    max_steps: int = 8
    max_total_tokens: int | None = None
    max_parallel_tools: int | None = None
    tool_timeout: float | None = None
    stop_on: Sequence[str] = ()
    approve: Approve | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    if not TYPE_CHECKING:

        def __new__(cls, *values: object, **named: object) -> Self:
            """Refuse what other libraries' agents take, by name."""
            if values:
                raise RequestError('An Agent takes its fields by name: Agent(instructions="...", tools=[...]).')
            for name in named:
                if name not in cls.__dataclass_fields__:
                    raise RequestError(unknown_option(name, cls.__dataclass_fields__, _ELSEWHERE.get(name, "")))
            return object.__new__(cls)

    def run(self, llm: Runs, messages: RunInput = (), **options: Any) -> Run[Answer_co]:
        """Run the agent to the end. Raises what `llm.run` raises, and RequestError for messages that begin with a
        different system message."""
        return self.stream_run(llm, messages, **options).result()

    async def arun(self, llm: Runs, messages: RunInput = (), **options: Any) -> Run[Answer_co]:
        """Same as `run`, for an event loop; cancelling the task stops the run."""
        return await self.stream_run(llm, messages, **options)

    def stream_run(self, llm: Runs, messages: RunInput = (), **options: Any) -> RunStream[Answer_co]:
        """Returns the run as a stream: `for`, `async for`, `await` (the Run), `with`. Raises what `run` raises."""
        if not hasattr(llm, "stream_run"):
            raise RequestError(f'An agent is run by an engine, agent.run(llm, "..."), but {shown(llm)} is none.')
        merged = {**self._own(), **self.options, **options}
        return llm.stream_run(self._instructed(messages), self.tools, **merged)

    def _own(self) -> dict[str, Any]:
        form = {} if self.output is None else {"response_format": self.output}
        return form | {name: getattr(self, name) for name in _RUN_OPTIONS}

    def _instructed(self, messages: RunInput) -> RunInput:
        """Returns the conversation with the instructions first. They are not added to the messages of an earlier run,
        which begin with them."""
        if self.instructions is None or isinstance(messages, Transcript):
            return messages
        conversation = conversation_of(messages)
        first = conversation[0]
        if first.role not in ("system", "developer"):
            return [Message(role="system", content=self.instructions), *conversation]
        if first.content != self.instructions:
            raise RequestError(
                f"The messages begin with a {first.role} message of their own, but the agent has instructions; leave "
                "one of them out (messages[1:], or an agent without instructions)."
            )
        return conversation


_ELSEWHERE = {
    **dict.fromkeys(
        ("system", "system_prompt", "prompt", "system_message", "role", "goal", "backstory", "persona", "description"),
        "write instructions=",
    ),
    **dict.fromkeys(
        ("model", "llm", "client", "engine", "model_client"), "an agent is run by one: agent.run(llm, ...)"
    ),
    **dict.fromkeys(
        ("output_type", "result_type", "response_format", "response_model", "output_schema", "output_pydantic"),
        "write output=",
    ),
    **dict.fromkeys(
        ("temperature", "max_tokens", "seed", "top_p", "top_k", "stop", "reasoning", "model_settings", "tool_choice"),
        'it is one of its turns: options={"temperature": 0}',
    ),
    **dict.fromkeys(("memory", "checkpointer", "history"), "a run goes on with the messages: [*run.messages, ...]"),
    **dict.fromkeys(("name", "verbose", "debug"), "leave it out: an agent has no name and logs by Python's logging"),
    **dict.fromkeys(("deps_type", "deps", "context"), "give context= to the run, for a ToolContext parameter of tools"),
    **dict.fromkeys(
        ("handoffs", "sub_agents"), "a tool may run another agent: a function that calls other.run(llm, ...)"
    ),
    "mcp_servers": 'they are tools: tools=[MCP("python server.py")]',
}
"""Fields of other libraries' agents, and what is here in their place."""
_RUN_OPTIONS = ("max_steps", "max_total_tokens", "max_parallel_tools", "tool_timeout", "stop_on", "approve")
