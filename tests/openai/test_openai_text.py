"""Completions, the older endpoint: prompts in every form, streamed and not, and what it refuses."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai_clients import scripted, wait_until_idle

from engine import Engine, EngineWarning

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with scripted(lambda prompt: f"<{prompt[-3:]}>" * 10, n_ctx=4096, n_sequences=4) as llm:
        yield llm


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("abc", ["<abc><abc><abc><"]),
        (["abc", "xyz"], ["<abc><abc><abc><", "<xyz><xyz><xyz><"]),
        ([97, 98, 99], ["<abc><abc><abc><"]),
        ([[97, 98, 99], [100, 101, 102]], ["<abc><abc><abc><", "<def><def><def><"]),
    ],
)
def test_prompts(llm: Engine, prompt: Any, texts: list[str], stream: bool) -> None:
    client: Any = llm.openai_client()
    for n in (1, 2):
        told = client.completions.create(model="m", prompt=prompt, n=n, stream=stream)
        found: dict[int, str] = {}
        ends: dict[int, str] = {}
        for each in told if stream else [told]:
            assert each.object == "text_completion"
            for choice in each.choices:
                found[choice.index] = found.get(choice.index, "") + choice.text
                ends |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
        assert found == {number: texts[number // n] for number in range(n * len(texts))}
        assert set(ends.values()) == {"length"}, "16 tokens, as OpenAI's API has it"
        assert len(ends) == len(found)


def test_options_echo_and_usage(llm: Engine) -> None:
    client: Any = llm.openai_client()
    asked: dict[str, Any] = {"model": "m", "prompt": "abc", "max_tokens": 30, "temperature": 0}
    stopped = client.completions.create(**asked, stop="c>", echo=True).choices[0]
    assert (stopped.text, stopped.finish_reason) == ("abc<ab", "stop")
    chunks = list(client.completions.create(**asked, n=2, stream=True, stream_options={"include_usage": True}))
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 60, 63)
    echoed = client.completions.create(**asked, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in echoed).startswith("abc<abc>")
    asked["max_tokens"] = -1
    assert client.completions.create(**asked).choices[0].text == "<abc>" * 10
    with pytest.warns(EngineWarning, match="cache_prompt"):
        raw = client.completions.with_raw_response.create(**asked, extra_body={"cache_prompt": False})
    assert raw.headers["x-ignored-fields"] == "cache_prompt"
    wait_until_idle(llm)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "missing_required_parameter"),
    ({"prompt": []}, "prompt", "missing_required_parameter"),
    ({"prompt": "x" * 5000}, "prompt", "context_length_exceeded"),
    ({"prompt": [10**9]}, "prompt", "invalid_value"),
    ({"suffix": "end"}, "suffix", "invalid_value"),
    ({"logprobs": 3}, "logprobs", "unsupported_parameter"),
    ({"best_of": 3}, "best_of", "unsupported_parameter"),
    ({"prompt": [97], "echo": True}, "echo", "unsupported_parameter"),
    ({"n": 0}, "n", "invalid_value"),
    ({"prompt": ["a", "b"], "n": 65}, "n", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"temperature": -1}, "temperature", "invalid_value"),
    ({"messages": []}, "messages", "unknown_parameter"),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
def test_what_is_refused(llm: Engine, fields: dict[str, Any], param: str, code: str) -> None:
    client: Any = llm.openai_client()
    with pytest.raises(openai.BadRequestError) as told:
        client.post("/completions", body={"model": "m", "prompt": "abc", **fields}, cast_to=object)
    assert (told.value.param, told.value.code) == (param, code)


def test_every_parameter_of_the_sdk_has_its_row() -> None:
    from openai.types.completion_create_params import CompletionCreateParamsBase

    from engine.openai.fields import COMPLETIONS_FIELDS

    assert {*CompletionCreateParamsBase.__annotations__, "stream"} <= COMPLETIONS_FIELDS.keys()


async def test_an_async_client(llm: Engine) -> None:
    client: Any = llm.async_openai_client()
    told = await client.completions.create(model="m", prompt=["abc", "xyz"], seed=3)
    assert [choice.text[:5] for choice in told.choices] == ["<abc>", "<xyz>"]
