"""Attributes under the names of other libraries: the error says what to write here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

_EVENT = {
    "match on the event's class: case ContentDelta(text): ...": "choices delta message response type data event "
    "reasoning reasoning_content thinking tool_calls parsed chunk token output_text",
}
_STREAM = {
    "its answer is .result().content": "content text message choices output_text response answer output outputs",
    "its answer's value is .result().parsed": "parsed data",
    ".result() reads it to the end and returns the answer": "get_final_message get_final_completion get_final_text "
    "get_final_response collect read until_done wait get_output usage tool_calls reasoning finish_reason messages",
    "its texts are those of its ContentDelta events": "text_stream stream_text iter_text text_deltas",
    "cancel() stops it": "close aclose stop abort",
}
_ENGINE = {
    'write llm.chat("...")': "invoke predict ask prompt respond answer send message call query "
    "create_chat_completion chat_completion chat_complete completions_with_messages call_as_llm",
    'write await llm.achat("...")': "ainvoke apredict acall acreate ask_async chat_async",
    'write llm.complete("..."), which uses no template': "create_completion completion text_completion infill",
    "write llm.generate([...]), which takes many conversations": "batch chat_batch generate_batch batch_chat map "
    "abatch batch_generate generate_many",
    'write llm.stream("...")': "stream_chat chat_stream generate_stream stream_generate stream_events astream_events",
    "write llm.embed([...])": "create_embedding embedding embeddings encode embed_documents embed_query "
    "get_embeddings get_text_embedding vectors",
    "write await off_loop(llm.embed, [...]), with engine.off_loop and this method": "aembed arerank ascore aclassify "
    "apin acomplete aembeddings acompletion",
    "write await llm.agenerate([...]), or await off_loop(next, rows) of generate_iter": "agenerate_iter",
    "write llm.chat(..., response_format=City)": "with_structured_output structured_predict generate_json parse "
    "as_structured_llm structured",
    "write llm.run(..., tools=[...])": "bind_tools with_tools run_tools agent run_agent act run_sync",
    "write llm.openai_client().chat.completions.create(...)": "completions responses beta",
    "write llm.tokenize(text) and llm.detokenize(tokens)": "tokenizer get_tokenizer token_count count_tokens "
    "get_num_tokens decode",
    "write llm.render(messages), which returns the prompt": "apply_chat_template format_messages chat_template",
    "write llm.conversation()": "start_chat chat_session session new_conversation create_conversation chat_history "
    "history messages memory",
    "leave its `with` block, or call llm.close()": "unload shutdown free release_memory delete stop",
    "llm.inspect() shows what is known of the model": "config metadata model model_path desc model_desc model_name "
    "name n_params parameters generation_config",
    "there is nothing to reset: each call is a turn of its own": "reset clear kv_cache_clear reset_chat",
    "write n_gpu_layers= in Engine.load": "to cuda cpu half device eval float",
    "write llm.pin(...), or StateStore(path=...) in Engine.load": "save_state load_state save_session load_session",
    "the vocabulary's size is in llm.inspect()": "n_vocab vocab_size token_eos token_bos",
    'write adapters={"name": "path"} in Engine.load, or llm.load_adapter(name, path)': "load_lora set_adapter "
    "add_adapter load_lora_adapter set_lora",
    "options are given to each call: llm.chat(..., temperature=0)": "bind with_config temperature set_params "
    "sampling_params options",
}
_NAMES: Mapping[str, Mapping[str, str]] = {
    "Completion": {
        "write .content": "choices outputs output_text generated_text response completion candidates generations "
        "answer string delta message_content chat_message results output_message body reply",
        "write .parsed for its value, .content for its text": "output data result value output_parsed object instance",
        "write .message": "messages message_dict new_messages",
        "write .message.role": "role",
        "write .reasoning": "reasoning_content thinking reasoning_text thoughts thinking_content reasoning_details",
        "write .finish_reason": "stop_reason done_reason done finish_details status incomplete_details stopped",
        "write .tool_calls": "function_call tool_call function_calls calls tools additional_kwargs tool_uses",
        "write .usage": "usage_metadata response_metadata token_usage timings metrics stats",
        "write .usage.prompt_tokens": "prompt_eval_count input_tokens prompt_tokens",
        "write .usage.completion_tokens": "eval_count output_tokens completion_tokens",
        "write .usage.decode_seconds": "eval_duration total_duration",
        "write .parse_error": "refusal error validation_error",
    },
    "Message": {
        "write .content": "text output_text body",
        "write .tool_calls": "function_call tool_call calls additional_kwargs",
        "write .openai() for a dictionary in OpenAI's form": "to_dict as_dict to_openai",
        "write .reasoning": "reasoning_content thinking",
        "write .role": "type sender author",
        "print(message) shows it": "pretty_print pretty_repr",
    },
    "ToolCall": {
        "write .name, and .parsed() for the arguments": "function tool",
        "write .parsed(), which returns the arguments as Python values": "args input parameters kwargs params "
        "args_dict args_as_dict argument arguments_dict",
        "write .name": "tool_name function_name",
        "write .id": "tool_call_id call_id tool_use_id",
        "write .openai() for a dictionary in OpenAI's form": "to_dict as_dict",
    },
    "Usage": {
        "write .prompt_tokens": "input_tokens prompt_eval_count request_tokens n_prompt_tokens prompt_n",
        "write .completion_tokens": "output_tokens eval_count response_tokens generated_tokens predicted_n",
        "write .cached_tokens": "prompt_tokens_details input_tokens_details cache_read_tokens cache_read_input_tokens",
        "write .reasoning_tokens": "completion_tokens_details output_tokens_details thinking_tokens",
        "write .total_tokens": "tokens total n_tokens",
        "write .decode_tokens_per_second": "tokens_per_second tps speed predicted_per_second",
        "write .decode_seconds": "eval_duration duration total_duration seconds",
        "it costs nothing: the model runs here": "cost total_cost",
    },
    "Run": {
        "write .output": "final_output result data response answer value outputs final final_answer return_values "
        "parsed",
        "write .content": "text output_text final_text",
        "write .completion": "message final_message last_message chat_message choices",
        "write .messages": "history all_messages new_messages to_input_list chat_history conversation",
        "write .steps[0].completion.tool_calls, for each of its steps": "tool_calls calls actions",
        "write .steps": "intermediate_steps turns trace nodes new_items raw_responses",
        "each step has its own: .steps[0].completion.usage; .transcript.total_tokens is the sum":
            "usage total_tokens context_wrapper token_usage",
        "write .stopped": "finish_reason stop_reason status done",
        "write .completion.reasoning": "reasoning thinking",
    },
    "Step": {
        "write .completion.tool_calls": "tool_calls calls actions",
        "write .completion.content": "content text output message response thought",
        "write .completion.reasoning": "reasoning thinking",
        "write .completion.usage": "usage",
        "write .results": "result outputs observations observation tool_results",
    },
    "ToolResult": _EVENT | {
        "write .content": "result output text value",
        "write .name": "tool tool_name function_name",
        "write .error, which says whether it failed": "is_error failed success status",
        "write .id": "tool_call_id call_id tool_use_id",
    },
    "Conversation": {
        "write .messages": "history turns memory chat_history transcript conversation",
        'write .chat("...")': "send ask say invoke generate run prompt respond complete send_message predict",
        "chat(...) adds what is said, and the answer; llm.conversation([...]) begins with messages":
            "append add add_message add_user_message add_system_message system",
        "begin another: llm.conversation()": "clear reset delete",
        "write .fork()": "copy clone branch",
        "write .messages[-1]": "last latest last_message",
    },
    "Messages": {
        'these do not change; write [*messages, {"role": "user", "content": "..."}]': "append extend insert add "
        "add_message",
        "these do not change; take a part of them: messages[:-1]": "pop remove clear",
    },
    "Agent": {
        'write agent.run(llm, "...")': "run_sync invoke chat ask execute kickoff generate query",
        'write await agent.arun(llm, "...")': "ainvoke run_async",
        'write agent.stream_run(llm, "...")': "run_stream stream iter astream run_streamed",
        "write tools=[...] in Agent(...)": "tool tool_plain add_tool register_tool toolset",
        "write instructions= in Agent(...)": "system_prompt system",
        "an agent knows no model: agent.run(llm, ...)": "model llm engine client",
    },
    "Engine": _ENGINE,
    "Stream": _STREAM,
    "RunStream": _STREAM | {
        "its run is .result()": "final_output result_output get_output stream_output",
    },
    "Starting": {
        "await it first: stream = await llm.astream(...); answer = await stream": "result content text completion "
        "cancel parsed partial events",
    },
    **dict.fromkeys(
        ("ReasoningDelta", "ContentDelta", "ToolCallStart", "ToolCallDelta", "ToolCallEnd", "Finished"),
        _EVENT,
    ),
    "type Engine": {
        'write Engine.load("model.gguf"), or Engine.load("owner/repo:Q4_K_M")': "from_pretrained open from_file "
        "from_gguf from_hub create load_model start connect from_path init from_config",
    },
    "module engine": {
        "write engine.Engine.load(...)": "load load_model from_pretrained LLM Llama Model AutoModel "
        "AutoModelForCausalLM pipeline Client Ollama ChatModel LlamaCpp ChatLlamaCpp AsyncLLMEngine LLMEngine",
        'load a model first: llm = engine.Engine.load(...); llm.chat("...")': "chat generate complete completion "
        "stream embed embeddings ask run acompletion responses",
        "write llm.openai_client(), or engine.openai.OpenAI(llm)": "OpenAI AsyncOpenAI ChatOpenAI",
        "give the function itself: tools=[get_weather]": "tool function_tool tools StructuredTool FunctionTool",
        "write the command `llama-engine models list`": "list models list_models",
        'write Engine.load("owner/repo:Q4_K_M"), which downloads it': "pull download",
        'write {"role": "user", "content": "..."}, or Message(role="user", content="...")': "UserMessage HumanMessage "
        "AIMessage SystemMessage AssistantMessage ChatMessage ToolMessage",
    },
}  # fmt: skip
ATTRIBUTES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        kind: MappingProxyType({name: hint for hint, names in hints.items() for name in names.split()})
        for kind, hints in _NAMES.items()
    }
)
"""What to write, for each kind of object and each name."""


def hint_of(kind: type, name: str, prefix: str = "") -> str | None:
    """Returns what to write for a name that objects of this class lack; None if it is not known."""
    return next(
        (found for each in kind.__mro__ if (found := ATTRIBUTES.get(prefix + each.__name__, {}).get(name))), None
    )


class Guided:
    """The base of objects whose missing attributes, items and iterators are told with what to write instead."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if (hint := hint_of(type(self), name)) is not None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}; {hint}.")
            above = getattr(super(), "__getattr__", super().__getattribute__)
            return above(name)

        def __getitem__(self, key: object) -> Any:
            hint = hint_of(type(self), key) if isinstance(key, str) else hint_of(type(self), "choices")
            if isinstance(key, str) and key in dir(self):
                hint = f"write .{key}"
            known = hint or "its fields are attributes"
            raise TypeError(f"{type(self).__name__!r} object is not subscriptable; {known}.")


class GuidedClass(type):
    """The class of classes whose missing attributes are told so."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            hint = hint_of(cls, name, "type ")
            raise AttributeError(
                f"type object {cls.__name__!r} has no attribute {name!r}{f'; {hint}.' if hint else ''}"
            )
