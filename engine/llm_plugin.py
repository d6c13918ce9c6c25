"""The plugin for the command-line tool `llm`: models on this machine, as `llm -m llama-engine/...`.

    llm -m llama-engine/builtin "Who are you?"
    llm -m llama-engine/file -o file model.gguf -o n_ctx 16384 "Hello"

Knows: llm's plugin API ("Writing a plugin to support a new model" in its documentation): models that are registered by
name, prompts as messages made of parts, answers as stream events. Does not know: how a model is found or run. Only llm
imports this module, through the entry point `llm`.
"""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from threading import Lock
from typing import Any, Literal, Protocol, cast

import llm
from llm.parts import AttachmentPart, Message, Part, ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field

from engine.engine import Engine
from engine.errors import RequestError
from engine.events import ContentDelta, Event, Finished, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from engine.hub import cache
from engine.offloop import off_loop
from engine.types import Usage

PREFIX = "llama-engine/"
_REASONING: Mapping[str, bool] = {"on": True, "off": False}
_OF_LOADING = ("file", "family", "n_ctx", "n_gpu_layers")


class LocalOptions(llm.Model.Options):
    """The options of `-o`: how a model is loaded, then how it answers."""

    file: str | None = Field(default=None, description="A GGUF file, or owner/repo:Q4_K_M on the Hugging Face Hub")
    family: str | None = Field(
        default=None, description="Read the output in this family's format instead of the model's own"
    )
    n_ctx: int | None = Field(default=None, description="The most tokens that a conversation may hold")
    n_gpu_layers: int = Field(default=0, description="Layers to offload to the GPU, -1 for all")
    reasoning: Literal["on", "off", "low", "medium", "high"] | None = Field(
        default=None, description="Whether, or how long, the model reasons"
    )
    max_tokens: int | None = Field(default=None, description="The most tokens to generate, reasoning included")
    temperature: float | None = Field(default=None, description="0 is greedy")
    top_k: int | None = Field(default=None, description="Draw from this many of the likeliest tokens")
    top_p: float | None = Field(default=None, description="Draw from the likeliest tokens of this total probability")
    min_p: float | None = Field(
        default=None, description="Draw from tokens at least this share as likely as the likeliest"
    )
    seed: int | None = Field(default=None, description="For answers that can be repeated")


class _Response(Protocol):
    """The part of llm's record of an answer that we fill; `llm.Response` and `llm.AsyncResponse` are such records."""

    def add_tool_call(self, tool_call: llm.ToolCall) -> None: ...

    def set_usage(self, *, input: int | None, output: int | None, details: dict[str, Any] | None) -> None: ...  # noqa: A002 - llm's name


class Engines:
    """The engines in this process: each is loaded on first use, and stays until the process ends."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loaded: dict[tuple[object, ...], Engine] = {}

    def get(self, name: str, options: LocalOptions) -> Engine:
        """Returns the engine of the model that is registered under `name`. Raises RequestError if `-o file` is missing
        or not allowed, and what `Engine.load` raises."""
        if (name == "file") != (options.file is not None):
            raise RequestError(
                f"-o file goes with the model {PREFIX}file, and with no other: llm -m {PREFIX}file -o file model.gguf."
            )
        model = None if name == "builtin" else options.file or name
        with self._lock:
            key = (model, options.family, options.n_ctx, options.n_gpu_layers)
            if key not in self._loaded:
                self._loaded[key] = Engine.load(
                    model, family=options.family, n_ctx=options.n_ctx, n_gpu_layers=options.n_gpu_layers
                )
            return self._loaded[key]


class _Turn:
    """One prompt of llm's as an engine's arguments, and the engine's events as llm's."""

    def __init__(self, prompt: llm.Prompt, response: _Response) -> None:
        self._response = response
        self._names: dict[int, str] = {}
        self._ids: dict[int, str] = {}
        options = cast("LocalOptions", prompt.options).model_dump(exclude_none=True)
        given: dict[str, Any] = {name: value for name, value in options.items() if name not in _OF_LOADING}
        if (reasoning := given.get("reasoning")) is not None:
            given["reasoning"] = _REASONING.get(reasoning, reasoning)
        schema = cast("dict[str, Any] | None", prompt.schema)  # llm makes one of a pydantic model
        if schema:
            given["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
        self.options = given
        self.messages = [message for each in prompt.messages for message in as_openai(each)]
        self.tools = [_tool(tool) for tool in prompt.tools if isinstance(tool, llm.Tool)]

    def events(self, event: Event) -> Iterator[StreamEvent]:
        match event:
            case ReasoningDelta(text, part):
                yield StreamEvent("reasoning", text, part)
            case ContentDelta(text, part):
                yield StreamEvent("text", text, part)
            case ToolCallStart(index, id_, name, part):
                self._names[index], self._ids[index] = name, id_
                yield StreamEvent("tool_call_name", name, part, id_ or None)
            case ToolCallDelta(index, text, part):
                yield StreamEvent("tool_call_args", text, part, self._ids[index] or None)
            case ToolCallEnd(index, arguments, _, part):
                id_ = event.id or self._ids[index]
                if not self._ids[index] and id_:
                    yield StreamEvent("tool_call_args", "", part, id_)
                self._response.add_tool_call(llm.ToolCall(self._names[index], _arguments(arguments), id_ or None))
            case Finished(_, usage) if usage is not None:
                self._response.set_usage(
                    input=usage.prompt_tokens, output=usage.completion_tokens, details=_details(usage)
                )
            case _:
                pass


class Local(llm.Model):
    """A model of this machine for llm's synchronous API."""

    can_stream = True
    supports_schema = True
    supports_tools = True

    Options = LocalOptions

    def __init__(self, name: str, engines: Engines) -> None:
        self.model_id = PREFIX + name
        self._name = name
        self._engines = engines

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None,
    ) -> Iterator[StreamEvent]:
        del stream, conversation  # llm joins the events if it does not stream; the messages contain the conversation
        turn = _Turn(prompt, response)
        with self._engines.get(self._name, cast("LocalOptions", prompt.options)).stream(
            turn.messages, turn.tools, **turn.options
        ) as events:
            for event in events:
                yield from turn.events(event)


class AsyncLocal(llm.AsyncModel):
    """A model of this machine for llm's asynchronous API."""

    can_stream = True
    supports_schema = True
    supports_tools = True

    Options = LocalOptions

    def __init__(self, name: str, engines: Engines) -> None:
        self.model_id = PREFIX + name
        self._name = name
        self._engines = engines

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None,
    ) -> AsyncGenerator[StreamEvent, None]:
        del stream, conversation
        turn = _Turn(prompt, response)
        engine = await off_loop(lambda: self._engines.get(self._name, cast("LocalOptions", prompt.options)), _nothing)
        async with await engine.astream(turn.messages, turn.tools, **turn.options) as events:
            async for event in events:
                for found in turn.events(event):
                    yield found


@llm.hookimpl
def register_models(register: Any) -> None:
    """Register the built-in model, any file (`-o file`), and the models in the Hugging Face Hub's cache."""
    engines = Engines()
    for name in ("builtin", "file", *(model.name for model in cache.models() if model.variant is not None)):
        register(Local(name, engines), AsyncLocal(name, engines))


def as_openai(message: Message) -> Iterator[dict[str, Any]]:
    """Yields a message of llm's in OpenAI's form, with a separate message for each tool result. Raises RequestError for
    attachments."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    if any(isinstance(part, AttachmentPart) for part in message.parts) or any(each.attachments for each in results):
        raise RequestError("These models take text only, but a message has an attachment; send its text.")
    for result in results:
        yield {"role": "tool", "tool_call_id": result.tool_call_id, "name": result.name, "content": result.output}
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCallPart)]
    content, reasoning = _joined(message.parts, TextPart), _joined(message.parts, ReasoningPart)
    if content or reasoning or calls or not results:
        found: dict[str, Any] = {"role": message.role, "content": content}
        found |= {"reasoning_content": reasoning} if reasoning else {}
        yield found | ({"tool_calls": calls} if calls else {})


def _joined(parts: list[Part], kind: type[TextPart] | type[ReasoningPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def _call(part: ToolCallPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": json.dumps(part.arguments)}
    return {"id": part.tool_call_id, "type": "function", "function": function}


def _tool(tool: llm.Tool) -> dict[str, Any]:
    schema = cast("dict[str, Any]", tool.input_schema)
    function = {"name": tool.name, "description": tool.description or "", "parameters": schema}
    return {"type": "function", "function": function}


def _arguments(text: str) -> dict[str, Any]:
    """Returns a call's arguments; like llm itself, keep text that is not a JSON object as `_raw`."""
    try:
        value: object = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        value = None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"_raw": text}


def _nothing(engine: Engine) -> None:
    """Do nothing: an engine whose caller was cancelled stays for the next prompt."""


def _details(usage: Usage) -> dict[str, Any]:
    return {"reasoning_tokens": usage.reasoning_tokens, "cached_tokens": usage.cached_tokens}
