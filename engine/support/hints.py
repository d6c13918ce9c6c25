"""Names of options in other libraries, and what to write here: for the messages about unknown options."""

from collections.abc import Iterable
from types import MappingProxyType

from engine.support.errors import did_you_mean

_GROUPS = {
    # written here as
    "n_ctx=": "num_ctx ctx_size max_model_len max_seq_len context_length",
    "n_gpu_layers=": "num_gpu gpu_layers ngl device device_map main_device",
    "n_threads=": "num_thread threads",
    "n_batch=": "num_batch batch_size",
    "n_ubatch=": "ubatch_size",
    "n_sequences=": "parallel n_parallel max_num_seqs n_seq_max",
    "type_k=": "cache_type_k f16_kv kv_cache_dtype",
    "type_v=": "cache_type_v",
    "flash_attn=": "flash_attention flash_attn_type attn_implementation",
    "use_mlock=": "mlock",
    "use_mmap=": "mmap no_mmap",
    "rope_freq_base=": "rope_theta",
    "tensor_split=": "tensor_parallel_size",
    "chat_template=": "template",
    "family= or chat_template=": "chat_format chat_template_file",
    "trust_template=": "trust_remote_code",
    "max_tokens=": "n_predict num_predict max_new_tokens max_completion_tokens max_output_tokens max_length",
    "penalty_last_n=": "repeat_last_n last_n_tokens_size",
    "repeat_penalty=": "repetition_penalty",
    "mirostat=": "mirostat_mode",
    "dry_last_n=": "dry_penalty_last_n",
    "dry_breakers=": "dry_sequence_breakers dry_sequence_breaker",
    "logits_processors=": "logits_processor",
    "logprobs=": "n_probs top_logprobs logits_all",
    "stop=": "stop_strings stop_words stop_sequences",
    "stop_tokens=": "stop_token_ids eos_token_id",
    "logit_bias=": "bad_words_ids",
    "min_tokens=": "min_new_tokens",
    "temperature=0": "do_sample greedy",
    "reasoning=": "reasoning_effort enable_thinking think thinking",
    "reasoning_budget=": "thinking_budget thinking_budget_tokens budget_tokens",
    "template_kwargs=": "chat_template_kwargs",
    "tool_choice=": "function_call",
    "max_steps=": "max_turns max_iterations max_iter recursion_limit max_rounds",
    "max_total_tokens=": "total_tokens_limit",
    "tools=": "functions",
    "deadline=": "timeout max_time request_timeout",
    "overflow=": "num_keep n_keep truncation context_shift",
    "response_format=": "format output_type response_model structured_outputs text_format",
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
    "call llm.stream(...), whose events come as they are made": "stream streamer",
    "call llm.choices(..., n=...)": "n num_return_sequences best_of",
    "put a system message first: Message(role='system', content=...); an Agent takes instructions=":
        "system system_prompt instructions system_message",
    "the messages are the first argument": "messages prompt input inputs conversation",
    "it was removed: stop strings are searched in the content; for others read the stream and leave it": "stop_in",
    "call llm.complete(...), which uses no template": "raw echo suffix",
    "logs go to Python's logging: logging.getLogger('engine.llama')": "verbose log_level logger",
    "leave the `with` block, call stream.cancel(), or give deadline=": "stopping_criteria",
    "it is always on here": "cache_prompt enable_prefix_caching cont_batching use_cache",
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
    "llama.cpp does not sample like that; see the options of SamplingParams":
        "num_beams beam_width use_beam_search tfs_z penalize_nl penalize_newline penalty_alpha no_repeat_ngram_size "
        "guidance_scale early_stopping length_penalty dynatemp_range",
}  # fmt: skip
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
    return f"There is no option {name!r}; {hint.removesuffix('.')}."
