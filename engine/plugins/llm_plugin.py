"""The plugin for the command-line tool `llm`, which finds it by the entry point `llm`: models on this machine.

llm -m llama-engine/builtin "Who are you?"
llm -m llama-engine/file -o file model.gguf -o n_ctx 16384 "Hello"
"""

import json
from collections.abc import AsyncGenerator, Iterator
from threading import Lock
from typing import Any, Literal, cast

import llm
from llm.parts import AttachmentPart, Message, ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field

from engine.api.engine import Engine
from engine.hub import cache, elsewhere
from engine.runtime.stream.stream import Stream
from engine.support.errors import RequestError
from engine.support.offloop import off_loop_or_undo
from engine.types.answer_formats import JsonSchema
from engine.types.completion import Usage
from engine.types.events import ContentDelta, Event, Finished, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart

PREFIX = "llama-engine/"
_OF_LOADING: set[str] = {"file", "family", "n_ctx", "n_gpu_layers"}


class LocalOptions(llm.Model.Options):
    """The options of `-o`: how a model is loaded, then how it answers."""

    file: str | None = Field(None, description="A GGUF file, or owner/repo:Q4_K_M on the Hugging Face Hub")
    family: str | None = Field(None, description="Read the output in this family's format, not the model's own")
    n_ctx: int | None = Field(None, description="The most tokens that a conversation may hold")
    n_gpu_layers: int = Field(0, description="Layers to offload to the GPU, -1 for all")
    reasoning: Literal["on", "off", "low", "medium", "high"] | None = Field(None, description="How long it reasons")
    max_tokens: int | None = Field(None, description="The most tokens to generate, reasoning included")
    temperature: float | None = Field(None, description="0 is greedy")
    top_k: int | None = Field(None, description="Draw from this many of the likeliest tokens")
    top_p: float | None = Field(None, description="Draw from the likeliest tokens of this total probability")
    min_p: float | None = Field(None, description="Draw from tokens at least this share as likely as the likeliest")
    seed: int | None = Field(None, description="For answers that can be repeated")


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
        loading = options.model_dump(include=_OF_LOADING - {"file"})
        key = (model, *loading.values())
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = Engine.load(model, **loading)
            return self._loaded[key]


class _Registered:
    """What both kinds of model share. Streamed or not, llm joins the events; the prompt holds the conversation."""

    can_stream = supports_schema = supports_tools = True
    Options = LocalOptions

    def __init__(self, name: str, engines: Engines) -> None:
        self.model_id = PREFIX + name
        self._name = name
        self._engines = engines

    def _start(self, prompt: llm.Prompt) -> Stream:
        messages, tools, options = _arguments(prompt)
        return self._engines.get(self._name, cast("LocalOptions", prompt.options)).stream(messages, tools, **options)


class Local(_Registered, llm.Model):
    """A model of this machine for llm's synchronous API."""

    def execute(self, prompt: llm.Prompt, stream: bool, response: Any, conversation: Any) -> Iterator[StreamEvent]:
        del stream, conversation
        calls: dict[int, ToolCallStart] = {}
        with self._start(prompt) as events:
            for event in events:
                yield from _as_llm(event, calls, response)


class AsyncLocal(_Registered, llm.AsyncModel):
    """A model of this machine for llm's asynchronous API."""

    async def execute(
        self, prompt: llm.Prompt, stream: bool, response: Any, conversation: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        del stream, conversation
        calls: dict[int, ToolCallStart] = {}
        async with await off_loop_or_undo(lambda: self._start(prompt), lambda unread: unread.cancel()) as events:
            async for event in events:
                for each in _as_llm(event, calls, response):
                    yield each


@llm.hookimpl
def register_models(register: Any) -> None:
    """Register the built-in model, any file (`-o file`), and what is on this disk: the models in the Hugging Face Hub's
    cache, and those of Ollama and LM Studio."""
    engines = Engines()
    cached = [model.name for model in cache.models() if model.variant is not None]
    theirs = [model.name for model in elsewhere.models() if not model.problem]
    for name in ("builtin", "file", *cached, *theirs):
        register(Local(name, engines), AsyncLocal(name, engines))


def _arguments(prompt: llm.Prompt) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Returns a prompt as messages, tools and options of `Engine.stream`."""
    given = cast("LocalOptions", prompt.options)
    options: dict[str, Any] = given.model_dump(exclude_none=True, exclude=_OF_LOADING)
    if given.reasoning in ("on", "off"):
        options["reasoning"] = given.reasoning == "on"
    if schema := cast("dict[str, Any] | None", prompt.schema):  # llm makes one of a pydantic model
        options["response_format"] = JsonSchema(schema)
    tools = [
        {"name": tool.name, "description": tool.description or "", "parameters": cast("Any", tool.input_schema)}
        for tool in prompt.tools
        if isinstance(tool, llm.Tool)
    ]
    return [message for each in prompt.messages for message in as_fields(each)], tools, options


def _as_llm(event: Event, calls: dict[int, ToolCallStart], response: Any) -> Iterator[StreamEvent]:
    """Yields an event as llm's; completed calls and the usage go into llm's response."""
    match event:
        case ReasoningDelta(text, part):
            yield StreamEvent("reasoning", text, part)
        case ContentDelta(text, part):
            yield StreamEvent("text", text, part)
        case ToolCallStart(index, id_, name, part):
            calls[index] = event
            yield StreamEvent("tool_call_name", name, part, id_ or None)
        case ToolCallDelta(index, text, part):
            yield StreamEvent("tool_call_args", text, part, calls[index].id or None)
        case ToolCallEnd(index, text, _, part):
            id_ = event.id or calls[index].id or None
            yield StreamEvent("tool_call_args", "", part, id_)  # some formats write the id last
            response.add_tool_call(llm.ToolCall(calls[index].name, _parsed(text), id_))
        case Finished(usage=Usage() as usage):
            details = {"reasoning_tokens": usage.reasoning_tokens, "cached_tokens": usage.cached_tokens}
            response.set_usage(input=usage.prompt_tokens, output=usage.completion_tokens, details=details)
        case _:
            pass


def as_fields(message: Message) -> Iterator[dict[str, Any]]:
    """Yields a message of llm's as fields of ours, with a separate message for each tool result. Raises RequestError
    for attachments."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    if any(isinstance(part, AttachmentPart) for part in message.parts) or any(each.attachments for each in results):
        raise RequestError("These models take text only, but a message has an attachment; send its text.")
    for result in results:
        yield {"role": "tool", "tool_call_id": result.tool_call_id, "name": result.name, "content": result.output}
    content = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    reasoning = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    calls = [
        {"id": part.tool_call_id, "name": part.name, "arguments": json.dumps(part.arguments)}
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    if content or reasoning or calls or not results:
        yield {"role": message.role, "content": content, "reasoning": reasoning or None, "tool_calls": calls}


def _parsed(arguments: str) -> dict[str, Any]:
    """Returns a call's arguments; like llm itself, keep text that is not a JSON object as `_raw`."""
    try:
        value: object = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        value = None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"_raw": arguments}
