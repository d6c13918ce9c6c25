"""Completions, the older endpoint: prompts in every form, streamed and not, and what it refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.openai_clients import scripted, wait_until_idle

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


@pytest.mark.parametrize(("asked", "stated"), [(3, True), (2**32 - 1, True), (None, False), (-1, False)])
def test_answers_have_seeds_of_their_own(
    llm: Engine, monkeypatch: pytest.MonkeyPatch, asked: int | None, stated: bool
) -> None:
    given: list[Any] = []
    complete = llm.stream_complete

    def noted(prompt: str, **options: Any) -> Any:
        given.append(options.get("seed"))
        return complete(prompt, **options)

    monkeypatch.setattr(llm, "stream_complete", noted)
    client: Any = llm.openai_client()
    for _ in range(2):
        client.completions.create(model="m", prompt="a", n=3, seed=asked, max_tokens=1)
    assert (given[:3] == given[3:]) is stated
    assert given[0] == asked
    if asked is not None and stated:
        assert given[:3] == [(asked + number) % 2**32 for number in range(3)]


def test_options_and_usage(llm: Engine) -> None:
    client: Any = llm.openai_client()
    asked: dict[str, Any] = {"model": "m", "prompt": "abc", "max_tokens": 30, "temperature": 0}
    stopped = client.completions.create(**asked, stop="c>").choices[0]
    assert (stopped.text, stopped.finish_reason) == ("<ab", "stop")
    chunks = list(client.completions.create(**asked, n=2, stream=True, stream_options={"include_usage": True}))
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 60, 63)
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
    ({"logprobs": 21}, "logprobs", "invalid_value"),
    ({"logprobs": -1}, "logprobs", "invalid_value"),
    ({"logprobs": True}, "logprobs", "invalid_type"),
    ({"n_probs": 3}, "n_probs", "unsupported_parameter"),
    ({"echo": True}, "echo", "unsupported_parameter"),
    ({"best_of": 3}, "best_of", "unsupported_parameter"),
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


@pytest.fixture(scope="module")
def model(builtin_model_path: Path) -> Iterator[Engine]:
    with Engine.load(builtin_model_path, n_ctx=512, n_sequences=4, flash_attn="off") as llm:
        yield llm


PROMPTS = ["The weather in Paris is 21 degrees", "a", "<|im_start|>user\nGrüße aus Zürich 🦙!<|im_end|>"]


def joined(told: Any) -> Any:
    """The choices of a stream or of one object: text, tokens, log-probabilities, alternatives, offsets, the end."""
    choices: dict[int, list[Any]] = {}
    for each in told:
        for choice in each.choices:
            whole = choices.setdefault(choice.index, ["", [], [], [], [], None])
            whole[0] += choice.text
            if choice.logprobs is not None:
                whole[1] += choice.logprobs.tokens
                whole[2] += choice.logprobs.token_logprobs
                whole[3] += choice.logprobs.top_logprobs
                whole[4] += choice.logprobs.text_offset
            whole[5] = choice.finish_reason or whole[5]
    return [choices[index] for index in sorted(choices)]


@pytest.mark.parametrize("as_tokens", [False, True])
def test_log_probabilities_are_those_of_the_answer(model: Engine, as_tokens: bool) -> None:
    """They are the engine's; streamed or not, the same."""
    client: Any = model.openai_client()
    prompts: Any = [model.tokenize(prompt, add_bos=True) for prompt in PROMPTS] if as_tokens else PROMPTS
    ask = {"model": "m", "prompt": prompts, "temperature": 0, "max_tokens": 8, "logprobs": 2}
    whole = joined([client.completions.create(**ask)])
    streamed = joined(client.completions.create(**ask, stream=True))
    assert [(each[0], each[1], each[4], each[5]) for each in streamed] == [(*each[:2], *each[4:]) for each in whole]
    for prompt, each in zip(PROMPTS, whole, strict=True):
        text, tokens, logprobs, tops, offsets, finish = each
        drawn = model.complete(prompt, temperature=0, max_tokens=8, logprobs=2)
        entries = drawn.logprobs or ()
        assert text == drawn.content
        assert len(tokens) == len(logprobs) == len(tops) == len(offsets) == len(entries) > 0
        assert logprobs == pytest.approx([entry.logprob for entry in entries], abs=2e-3)
        assert all(2 <= len(top) <= 3 for top in tops)
        assert all(top[token] == logprob for token, logprob, top in zip(tokens, logprobs, tops, strict=True))
        plain = [(token, at) for token, at in zip(tokens, offsets, strict=True) if not token.startswith("bytes:")]
        end = drawn.finish_reason == "stop"
        assert all(text[at : at + len(token)] == token for token, at in (plain[:-1] if end else plain))
        assert finish == ("stop" if end else "length")


def test_an_incomplete_character_is_its_bytes() -> None:
    with scripted(["a🦙b"]) as llm:
        client: Any = llm.openai_client()
        told = client.completions.create(model="m", prompt="x", logprobs=0).choices[0]
    assert told.text == "a🦙b"
    assert (told.logprobs.tokens[0], told.logprobs.tokens[5]) == ("a", "b")
    assert told.logprobs.tokens[1:5] == [f"bytes:\\x{byte:02x}" for byte in "🦙".encode()]
    assert told.logprobs.text_offset[:6] == [0, *[1] * 4, 2]
    assert told.logprobs.top_logprobs is None


async def test_an_async_client_gets_log_probabilities(model: Engine) -> None:
    client: Any = model.async_openai_client()
    ask = {"model": "m", "prompt": "The weather", "max_tokens": 3, "temperature": 0, "logprobs": 1}
    whole = joined([await client.completions.create(**ask)])
    streamed = joined([chunk async for chunk in await client.completions.create(**ask, stream=True)])
    assert whole[0][:2] == streamed[0][:2]
    assert whole[0][2] == pytest.approx(streamed[0][2], abs=2e-3)
    assert not model.metrics.running


async def test_an_async_client(llm: Engine) -> None:
    client: Any = llm.async_openai_client()
    told = await client.completions.create(model="m", prompt=["abc", "xyz"], seed=3)
    assert [choice.text[:5] for choice in told.choices] == ["<abc>", "<xyz>"]
