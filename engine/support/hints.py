"""Names of options in other libraries, and what to write here: for the messages about unknown options."""

from collections.abc import Iterable
from types import MappingProxyType

from engine.support.errors import did_you_mean

_GROUPS = {
    # written here as
    "n_ctx=": "num_ctx ctx_size max_model_len max_seq_len context_length",
    "n_gpu_layers=": "num_gpu gpu_layers ngl device device_map main_device use_gpu gpu cuda",
    "n_threads=": "num_thread threads",
    "n_batch=": "num_batch batch_size",
    "n_sequences=": "parallel n_parallel max_num_seqs n_seq_max",
    "type_k=": "cache_type_k f16_kv kv_cache_dtype",
    "type_v=": "cache_type_v",
    "flash_attn=": "flash_attention flash_attn_type attn_implementation",
    "use_mlock=": "mlock",
    "use_mmap=": "mmap no_mmap",
    "llama=LlamaOptions(rope_freq_base=...)": "rope_theta",
    "llama=LlamaOptions(tensor_split=...)": "tensor_parallel_size",
    "chat_template=": "template",
    "family= or chat_template=": "chat_format chat_template_file",
    "trust_template=": "trust_remote_code",
    "max_tokens=": "n_predict num_predict max_new_tokens max_completion_tokens max_output_tokens max_length",
    "penalty_last_n=": "repeat_last_n last_n_tokens_size",
    "repeat_penalty=": "repetition_penalty",
    "dry_last_n=": "dry_penalty_last_n",
    "dry_breakers=": "dry_sequence_breakers dry_sequence_breaker",
    "logits_processors=": "logits_processor",
    "logprobs=": "n_probs top_logprobs logits_all",
    "stop=": "stop_strings stop_words stop_sequences",
    "stop_tokens=": "stop_token_ids eos_token_id",
    "logit_bias={token: -100}, with the ids of llm.tokenize(...)": "bad_words_ids suppress_tokens allowed_token_ids",
    "min_tokens=": "min_new_tokens",
    "continue_final_message=True, with the beginning as the assistant's message": "prefill assistant_prefix partial",
    "temperature=0": "do_sample greedy",
    "reasoning=": "reasoning_effort enable_thinking think thinking",
    "reasoning_budget=": "thinking_budget thinking_budget_tokens budget_tokens",
    "template_kwargs=": "chat_template_kwargs",
    "tool_choice=": "function_call",
    "max_steps=": "max_turns max_iterations max_iter recursion_limit max_rounds",
    "max_total_tokens=": "total_tokens_limit",
    "tools=": "functions tool toolset toolsets",
    "deadline=": "timeout max_time request_timeout",
    "overflow=": "num_keep n_keep truncation context_shift",
    "response_format=": "format output_type response_model structured_outputs text_format result_type output_schema "
    "pydantic_model",
    'response_format={"type": "json_object"}': "json_mode json json_object json_output",
    "response_format=JsonSchema({...})": "json_schema guided_json schema",
    "response_format=GBNF(...) or Lark(...)": "grammar guided_grammar",
    "response_format=Regex(...)": "guided_regex",
    "response_format=Choice([...])": "guided_choice",
    "control_vectors=": "control_vector control_vector_scaled",
    "draft=": "draft_model model_draft speculative_config",
    "draft_max=": "num_draft prompt_lookup_num_tokens",
    "projector=": "mmproj mmproj_path clip_model_path chat_handler",
    "media_urls=MediaUrls()": "allowed_media_domains",
}
_SENTENCES = {
    "give the path, or owner/repo:Q4_K_M, as the first argument of Engine.load":
        "model_path pretrained_model_name_or_path model_name repo_id filename hf_repo hf_file",
    "models are kept in the Hugging Face Hub's cache: set HF_HOME": "cache_dir local_dir download_dir",
    "the quantisation is part of the name: owner/repo:Q4_K_M":
        "quantization torch_dtype dtype load_in_4bit load_in_8bit quantization_config",
    "call llm.stream(...), whose events come as they are made": "stream streamer streaming callback callbacks "
    "on_token stream_options callback_manager stream_callback event_handler",
    "give options by their names: llm.chat(..., temperature=0.7, max_tokens=100)":
        "options sampling_params generation_config model_kwargs extra_body config params kwargs settings "
        "model_settings generate_kwargs sampling extra_headers request_options generation_kwargs",
    "an engine is one model, the one that Engine.load loaded; Engines has several": "model model_id llm engine",
    "there is no server and no key: the model runs in this process":
        "api_key base_url api_base host endpoint organization api_version max_retries retries client",
    "memory is planned by itself: n_ctx= and n_sequences= say how much is wanted": "gpu_memory_utilization swap_space "
        "low_vram offload_folder max_memory cpu_offload_gb enforce_eager max_num_batched_tokens",
    "set HF_TOKEN, or log in with `hf auth login`": "token use_auth_token hf_token",
    "set the environment variable HF_HUB_OFFLINE to 1": "local_files_only offline_mode",
    "call llm.choices(..., n=...)": "n num_return_sequences best_of",
    "put a system message first: Message(role='system', content=...); an Agent takes instructions=":
        "system system_prompt instructions system_message",
    "the messages are the first argument": "messages prompt input inputs conversation history chat_history question "
        "query user_prompt text prompts message message_history",
    "call llm.complete(...), which uses no template": "raw echo suffix",
    "logs go to Python's logging: logging.getLogger('engine.llama')": "verbose log_level logger",
    "leave the `with` block, call stream.cancel(), or give deadline=": "stopping_criteria",
    "it is always on here": "cache_prompt enable_prefix_caching cont_batching use_cache op_offload use_extra_bufts "
        "no_perf",
    "the plan chooses it; n_batch= limits the rows of one decode": "ubatch_size n_ubatch",
    "it is always off here; `llama-engine models list` shows which files are whole": "check_tensors",
    "write n_ctx=, which is the longest text too": "embedding_tokens max_seq_length",
    "a conversation finds its place in the cache by itself": "id_slot slot_id cache_slot",
    "the figures are in completion.usage": "timings_per_token return_timings",
    "the model stays loaded until llm.close(), or the end of its `with` block": "keep_alive",
    "the vocabulary of the GGUF file is used": "tokenizer tokenizer_path skip_special_tokens",
    "the prompt always ends where the answer begins": "add_generation_prompt",
    "messages are a list; nothing is stored": "store user metadata",
    'write adapters={"name": "path"} in Engine.load, and adapters=["name"] in a turn':
        "lora_path lora_base lora_scale lora_adapters lora adapter lora_request",
    "put Image(...) and Audio(...) into the content of a message":
        "images image audio",
    "embedding models are loaded like any other; then use embed()": "embedding embeddings",
    "write pooling=": "pooling_type",
    "this is not there yet: a file's header is used as it is": "kv_overrides override_kv",
    "this is not there yet: a model runs on the devices of one machine": "rpc_servers rpc",
    "there is no such sampler; cut the tail off with top_p=, min_p= or typical_p=":
        "mirostat mirostat_mode mirostat_tau mirostat_eta",
    "llama.cpp does not sample like that; see the options of SamplingParams":
        "num_beams beam_width use_beam_search tfs_z penalize_nl penalize_newline penalty_alpha no_repeat_ngram_size "
        "guidance_scale early_stopping length_penalty",
}  # fmt: skip
_VALUES = {
    "stop": 'write a text, or a list of texts: stop=["\\n"]',
    "max_tokens": "write 1 or more, or leave it out for no limit",
    "temperature": "write a number from 0 on: temperature=0.7",
    "seed": "write a whole number from 0 on, or leave it out for a random one",
    "top_k": "write a whole number; 0 is off",
    "top_p": "write a number above 0, at most 1; temperature=0 takes the likeliest token each time",
    "reasoning": 'write reasoning=False for none, or True, "low", "medium" or "high"',
    "logit_bias": 'write {token: number}, with the ids of llm.tokenize("...")',
    "logprobs": "write how many alternatives are reported beside each token: logprobs=5",
    "deadline": "write seconds, or leave it out",
    "n_ctx": "write a number of tokens: n_ctx=8192; leave it out for as many as fit, up to 8,192",
    "n_gpu_layers": "write a whole number; -1 is all layers; leave it out for as many as fit",
    "n_threads": "write a whole number: n_threads=8; leave it out for one a core",
    "n_sequences": "write a whole number: n_sequences=8; leave it out for as many as fit, up to 4",
    "n": "write a whole number from 1 on: n=3",
    "llama": "write llama=LlamaOptions(swa_full=False), with engine.LlamaOptions",
}
"""What to write where the value of an option is not valid."""


def value_hint(name: str) -> str:
    """Returns what to write for an option, as the end of a sentence; "" if its check says it all."""
    return f"; {_VALUES[name]}" if name in _VALUES else ""


FOREIGN = MappingProxyType(
    {
        **{name: f"write {here}" for here, names in _GROUPS.items() for name in names.split()},
        **{name: hint for hint, names in _SENTENCES.items() for name in names.split()},
    }
)
"""What to do instead, for each name."""


def unknown_option(name: str, known: Iterable[str], elsewhere: str = "") -> str:
    """Returns the message about an option that is not one of `known`. `elsewhere`: where it is an option."""
    names = sorted(known)
    hint = elsewhere or FOREIGN.get(name) or did_you_mean(name, names, f"the options are {', '.join(names)}")
    return f"There is no option {name!r}; {hint}{'' if hint.endswith(('.', '?')) else '.'}"
