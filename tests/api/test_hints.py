"""Options under the names of other libraries: the message says what to write here."""

import re
from dataclasses import fields
from typing import Any

import pytest

from engine import Agent, ChatTemplate, Engine, LlamaOptions, RequestError
from engine.agent.limits import RunArguments
from engine.support.foreign import foreign
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.turns.options import AgentOptions, ContextLoadOptions, LoadArguments, LoadOptions, settings

OWN = (
    {
        name
        for kind in (AgentOptions, LoadOptions, LoadArguments, ContextLoadOptions)
        for name in (*kind.__optional_keys__, *kind.__required_keys__)
    }
    | {"n_ctx", "n_gpu_layers", "draft", "tools", "n", "content"}
    | {field.name for field in fields(LlamaOptions)}
)


def test_every_hint_names_options_that_exist() -> None:
    named = {name for hint in foreign("options").values() for name in re.findall(r"(\w+)=", hint)}
    run = RunArguments.__optional_keys__ | {field.name for field in fields(Agent)} | {"max_steps"}
    assert named - {"role"} <= OWN | run
    assert not set(foreign("options")) & (AgentOptions.__optional_keys__ | LoadOptions.__optional_keys__)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("reasoning_effort", "write reasoning="),
        ("mirostat_mode", "top_p=, min_p= or typical_p="),
        ("num_predict", "write max_tokens="),
        ("enable_thinking", "write reasoning="),
        ("timeout", "write deadline="),
        ("grammar", "GBNF"),
        ("system", "system message"),
        ("max_turns", "write max_steps="),
        ("max_iterations", "write max_steps="),
        ("system_prompt", "instructions="),
        ("stream", "llm.stream"),
        ("n", "llm.choices"),
        ("n_ctx", "it is one of Engine.load"),
        ("temprature", "did you mean 'temperature'"),
    ],
)
def test_an_option_of_a_turn_under_another_name(name: str, hint: str) -> None:
    backend = ScriptedBackend(["Yes."], vocab=ByteVocab(["<|im_start|>"]))
    options: dict[str, Any] = {name: 1}
    with (
        Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm,
        pytest.raises(RequestError, match=f"There is no option '{name}'; .*{hint}"),
    ):
        llm.chat("Hello", **options)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num_ctx", "write n_ctx="),
        ("verbose", "logging"),
        ("model_path", "first argument"),
        ("lora_path", "write adapters="),
        ("mmproj", "write projector="),
        ("temperature", "each turn"),
        ("swa_full", r"write llama=LlamaOptions\(swa_full=\.\.\.\), with engine"),
        ("n_ubatch", "n_batch="),
        ("embedding_tokens", "write n_ctx="),
        ("n_gpu_layer", "did you mean 'n_gpu_layers'"),
    ],
)
def test_an_option_of_loading_under_another_name(name: str, hint: str) -> None:
    with pytest.raises(RequestError, match=f"There is no option '{name}'; .*{hint}"):
        settings({name: 1})


def test_shares_for_more_devices_than_llama_cpp_knows_are_refused() -> None:
    with pytest.raises(RequestError, match=r"tensor_split=.* at most 16 items"):
        LlamaOptions(tensor_split=(1,) * 1000)
