"""A model provider for inspect-ai, which finds it by the entry point `inspect_ai`: `inspect eval task.py --model
llama-engine/FILE`; `llama-engine/builtin` is the built-in model. `-M` arguments are those of `Engine.load`."""

from typing import Any

from inspect_ai.model import (
    ChatMessage,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    messages_to_openai,
    model_output_from_openai,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolFunction, ToolInfo

from engine.api.engine import Engine

_SEQUENCES = 8
_NAMES = {
    **{name: name for name in ("frequency_penalty", "presence_penalty", "seed", "temperature", "top_k", "top_p")},
    **{name: name for name in ("logit_bias", "logprobs", "top_logprobs", "parallel_tool_calls", "reasoning_effort")},
    "max_tokens": "max_completion_tokens",
    "num_choices": "n",
    "stop_seqs": "stop",
    "reasoning_tokens": "reasoning_budget",
}
"""inspect-ai's names of options, and those of Chat Completions."""
_BODY = ("top_k", "reasoning_budget")
"""Fields that the SDK has no argument for."""


@modelapi(name="llama-engine")
class EngineAPI(ModelAPI):
    """A GGUF model in this process, behind the `openai` client's types that inspect-ai converts to and from."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - as the base class has it
        *,
        n_sequences: int = _SEQUENCES,
        **options: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        self._sequences = n_sequences
        path = None if model_name == "builtin" else model_name
        self._llm = Engine.load(path, n_sequences=n_sequences, **options)
        self._client = self._llm.async_openai_client()

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """Returns the model's answer, or its calls of the tools."""
        fields = _fields(config)
        if tools:
            fields["tools"] = [{"type": "function", "function": tool.model_dump(exclude_none=True)} for tool in tools]
            fields["tool_choice"] = _choice(tool_choice)
        body = {name: fields.pop(name) for name in _BODY if name in fields}
        messages = await messages_to_openai(input)
        completion = await self._client.chat.completions.create(
            model=self.model_name, messages=messages, extra_body=body or None, **fields
        )
        return await model_output_from_openai(completion)

    def max_connections(self) -> int:
        """Returns how many requests inspect-ai may have open: enough that no sequence is idle."""
        return 2 * self._sequences

    async def aclose(self) -> None:
        await self._client.close()
        await self._llm.aclose()


def _fields(config: GenerateConfig) -> dict[str, Any]:
    """Returns the configuration as fields of Chat Completions."""
    fields = {field: getattr(config, name) for name, field in _NAMES.items()}
    if (schema := config.response_schema) is not None:
        described = {"name": schema.name, "schema": schema.json_schema.model_dump(exclude_none=True)}
        fields["response_format"] = {"type": "json_schema", "json_schema": {**described, "strict": schema.strict}}
    return {name: value for name, value in fields.items() if value is not None}


def _choice(choice: ToolChoice) -> Any:
    if isinstance(choice, ToolFunction):
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice == "any" else choice
