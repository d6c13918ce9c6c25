"""Fields that other servers added to OpenAI's API, as one table: the engine's option that each is, or why it does
nothing here. The names are those of llama.cpp's server, llama-cpp-python's, vLLM, SGLang, Qwen's API and ollama."""

from collections.abc import Mapping
from typing import Any, cast

from engine.openai.parameters import fields_of, read_effort
from engine.openai.problems import bad
from engine.openai.request import Field, Reader, Table
from engine.support.errors import shown
from engine.types.answer_formats import GBNF, Choice, JsonSchema, Lark, Regex


def _read_text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise bad(f"{field} must be a string, not {shown(value)}.", field, "invalid_type")
    return value


def _read_schema(value: Any, field: str) -> JsonSchema:
    return JsonSchema(value if isinstance(value, bool) else fields_of(value, field))


def _read_choice(value: Any, field: str) -> Choice:
    if not isinstance(value, list):
        raise bad(f"{field} must be a list of texts, not {shown(value)}.", field, "invalid_type")
    return Choice(tuple(cast("list[str]", value)))


def _read_regex(value: Any, field: str) -> Regex:
    return Regex(_read_text(value, field))


def _read_gbnf(value: Any, field: str) -> GBNF:
    return GBNF(_read_text(value, field))


def _read_grammar(value: Any, field: str) -> GBNF | Lark:
    """Returns a grammar in either notation: only GBNF writes `::=`."""
    text = _read_text(value, field)
    return GBNF(text) if "::=" in text else Lark(text)


_FORMS: Mapping[str, Reader] = {
    "json": _read_schema,
    "regex": _read_regex,
    "choice": _read_choice,
    "grammar": _read_grammar,
}


def _read_structured(value: Any, field: str) -> object:
    """Returns the form that vLLM's `structured_outputs` asks for."""
    forms = {name: form for name, form in fields_of(value, field).items() if form is not None and form is not False}
    if list(forms) == ["json_object"]:
        return JsonSchema({"type": "object"})
    if len(forms) != 1 or not (read := _FORMS.get(name := next(iter(forms)))):
        raise bad(f"{field} must have one of json, regex, choice, grammar and json_object.", field)
    return read(forms[name], f"{field}.{name}")


def _read_thinking(value: Any, field: str) -> object:
    """Returns the engine's `reasoning` for true, false or an effort."""
    return value if isinstance(value, bool) else read_effort(value, field)


def _read_samplers(value: Any, field: str) -> object:
    """Replace "typ_p", the name in llama.cpp's server."""
    del field
    names = cast("list[object]", value)
    return ["typical_p" if name == "typ_p" else name for name in names] if isinstance(value, list) else value


def _read_all(value: Any, field: str) -> object:
    """Replace -1, which means the whole context in llama.cpp's server."""
    del field
    return _WHOLE if value == -1 else value


def read_off(value: Any, field: str) -> object:
    """Replace -1, which means no limit in other servers."""
    del field
    return 0 if value == -1 else value


def _renamed(name: str, option: str, neutral: tuple[object, ...] = ()) -> Field:
    return Field(name, "honoured", Any, f"the engine's `{option}`", neutral, option)


def _form(name: str, kind: str, read: Reader, neutral: tuple[object, ...] = ()) -> Field:
    return Field(name, "honoured", Any, f"the answer's form: {kind}", neutral, "response_format", read)


def _idle(note: str, *names: str, neutral: tuple[object, ...] = ()) -> tuple[Field, ...]:
    return tuple(Field(name, "ignored", Any, note, neutral) for name in names)


_WHOLE = 2**20
"""The most tokens that penalties look back on."""
_NO_MIROSTAT = "there is no such sampler; use `top_p`, `min_p` or `typical_p`"
_THINKING = "the engine's `reasoning`: true, false or an effort"
_ROWS = (
    _renamed("repetition_penalty", "repeat_penalty"),
    Field("repeat_last_n", "honoured", Any, "the engine's `penalty_last_n`; -1: all", (), "penalty_last_n", _read_all),
    Field("dry_penalty_last_n", "honoured", Any, "the engine's `dry_last_n`; -1: all", (), "dry_last_n", _read_all),
    _renamed("dry_sequence_breakers", "dry_breakers"),
    _renamed("stop_token_ids", "stop_tokens", ([],)),
    _renamed("n_predict", "max_tokens", (-1,)),
    _renamed("n_probs", "logprobs", (0,)),
    _renamed("thinking_budget", "reasoning_budget"),
    Field("samplers", "honoured", Any, "the engine's option, also with `typ_p`", (), "samplers", _read_samplers),
    Field("enable_thinking", "honoured", Any, _THINKING, (), "reasoning", _read_thinking),
    Field("think", "honoured", Any, _THINKING, (), "reasoning", _read_thinking),
    _form("grammar", "a grammar in GBNF", _read_gbnf, ("",)),
    _form("json_schema", "JSON that fits this schema", _read_schema),
    _form("regex", "a regular expression", _read_regex),
    _form("ebnf", "a grammar in GBNF", _read_gbnf),
    _form("guided_json", "JSON that fits this schema", _read_schema),
    _form("guided_regex", "a regular expression", _read_regex),
    _form("guided_choice", "one of these texts", _read_choice),
    _form("guided_grammar", "a grammar in GBNF or Lark", _read_grammar),
    _form("structured_outputs", "`json`, `regex`, `choice`, `grammar` or `json_object`", _read_structured, ({},)),
    *_idle("prefixes are reused by themselves", "cache_prompt", neutral=(True,)),
    *_idle("prefixes are reused by themselves", "n_cache_reuse", neutral=(0,)),
    *_idle("a prefix is found wherever it is", "id_slot", neutral=(-1,)),
    *_idle("read `llm.metrics`", "timings_per_token", "return_progress", neutral=(False,)),
    *_idle("log-probabilities are the model's, before any filter", "post_sampling_probs", neutral=(False,)),
    *_idle("use `overflow`", "n_keep", "n_discard", "truncate_prompt_tokens", neutral=(0, -1)),
    *_idle("there is no such filter", "min_keep", neutral=(0,)),
    *_idle(_NO_MIROSTAT, "mirostat", "mirostat_mode", neutral=(0,)),
    *_idle(_NO_MIROSTAT, "mirostat_tau", neutral=(5.0,)),
    *_idle(_NO_MIROSTAT, "mirostat_eta", neutral=(0.1,)),
    *_idle("answers are sampled, not searched for", "length_penalty", "early_stopping", neutral=(1.0,)),
    *_idle("answers are sampled, not searched for", "use_beam_search", neutral=(False,)),
    *_idle("calls are always read", "parse_tool_calls", neutral=(True,)),
    *_idle("the template writes its markers", "add_special_tokens", "skip_special_tokens", neutral=(True, False)),
    *_idle("the answer begins anew, or use `continue_final_message`", "add_generation_prompt", neutral=(True,)),
    *_idle("a stop text is never part of the answer", "include_stop_str_in_output", neutral=(False,)),
    *_idle("texts only; use `llm.tokenize`", "return_tokens", "return_token_ids", neutral=(False,)),
    *_idle("llguidance holds every form", "guided_decoding_backend", "guided_whitespace_pattern"),
    *_idle("the model is loaded until `llm.close()`", "keep_alive"),
    *_idle("each request has its own id", "request_id"),
)
SERVER_FIELDS: Table = {row.name: row for row in _ROWS}
"""Every field of other servers, by its name."""
