"""Log-probabilities of answers that a form holds: of every token, whether it was drawn or forced, beside one decode of
the whole text by llama.cpp's calls alone."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes.openai_clients import scripted
from files import model_files
from files.vector_files import ScoredAlone

from engine import Completion, Engine, ToolName
from engine.types.answer_formats import Choice, JsonSchema

SCHEMA = JsonSchema({
    "type": "object",
    "properties": {"name": {"enum": ["northern", "southern"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"],
})  # fmt: skip
TEXT = "The answer as JSON: "


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


OPTIONS: dict[str, dict[str, Any]] = {
    "free": {},
    "schema": {"response_format": SCHEMA},
    "cut": {"response_format": SCHEMA, "max_tokens": 9},
    "choice": {"response_format": Choice(["a long choice", "a longer choice"])},
    "sampled": {"response_format": SCHEMA, "temperature": 1.5, "seed": 3},
    "stopped": {"response_format": SCHEMA, "stop": ['"n"']},
}


@pytest.fixture(scope="module", params=["builtin", "mamba", "lfm2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, builtin_model_path: Path) -> Path:
    """The built-in model; one whose memory cannot be cut; one with both kinds of layers."""
    if request.param == "builtin":
        return builtin_model_path
    return model_files.write(tmp_path_factory.mktemp("forced") / f"{request.param}.gguf", request.param)


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[ScoredAlone]:
    scored = ScoredAlone(model)
    yield scored
    scored.close()


def ask(llm: Engine, options: dict[str, Any]) -> Completion[Any]:
    complete: Any = llm.complete
    return complete(TEXT, **{"temperature": 0, "max_tokens": 40, **options})


def check(prompt: Sequence[int], answer: Completion[Any], alone: ScoredAlone) -> None:
    said = answer.logprobs
    tokens = [each.token for each in said]
    expected = alone.logprobs([*prompt, *tokens])[len(prompt) - 1 :]
    assert [each.logprob for each in said] == pytest.approx(expected, abs=0.5)  # batches of other sizes round otherwise
    assert answer.content in b"".join(bytes(each.bytes) for each in said).decode(errors="replace")
    assert answer.usage.completion_tokens in (len(said), len(said) - 1)
    assert all(len(each.top) == 1 for each in said)


@pytest.mark.parametrize("draft_max", [0, 6])
def test_each_token_has_its_own(model: Path, alone: ScoredAlone, draft_max: int) -> None:
    """Alone and beside others; the second time most of the prompt, and what was forced behind it, is in the cache."""
    with Engine.load(model, n_ctx=512, n_sequences=4, draft_max=draft_max, family="content-only") as llm:
        prompt = llm.tokenize(TEXT, add_bos=True)
        all_asked = [{**options, "logprobs": 1} for options in OPTIONS.values()] * 2
        for asked in all_asked:
            check(prompt, ask(llm, asked), alone)
        with ThreadPoolExecutor(6) as pool:
            for answer in pool.map(partial(ask, llm), all_asked):
                check(prompt, answer, alone)


def test_an_answer_is_the_same_whether_or_not_they_are_asked_for(model: Path) -> None:
    with Engine.load(model, n_ctx=512, family="content-only") as llm:
        for options in OPTIONS.values():
            one, other = ask(llm, options), ask(llm, {**options, "logprobs": 0})
            assert (one.content, one.finish_reason, one.usage.completion_tokens) == (
                other.content, other.finish_reason, other.usage.completion_tokens,
            )  # fmt: skip
            assert one.logprobs == ()


@pytest.mark.parametrize("isolated", [False, True])
def test_reasoning_that_is_closed_and_calls_that_are_forced_have_theirs(
    builtin_model_path: Path, *, isolated: bool
) -> None:
    alone = ScoredAlone(builtin_model_path)
    with Engine.load(n_ctx=1024, isolated=isolated) as llm:
        for options in (
            {"reasoning_budget": 3, "response_format": SCHEMA},
            {"tools": [get_weather], "tool_choice": "required"},
            {"tools": [get_weather], "tool_choice": ToolName(name="get_weather"), "max_tokens": 12},
        ):
            asked: dict[str, Any] = {"temperature": 0, **options}
            prompt = llm.tokenize(llm.render("Hello!", **asked).text, add_bos=True)
            check(prompt, llm.chat("Hello!", logprobs=1, **asked), alone)
    alone.close()


def test_a_form_up_to_the_end_of_the_context(builtin_model_path: Path) -> None:
    """The forced text ends behind the context's end."""
    alone, form = ScoredAlone(builtin_model_path), Choice(["x" * 40 + str(number) for number in range(9)])
    with Engine.load(n_ctx=256) as llm:
        room = 256
        for size in range(room - 50, room - 5, 5):
            prompt = [*llm.tokenize(TEXT, add_bos=True), *llm.tokenize(" a" * room, special=False)][:size]
            answer = llm.complete(prompt, response_format=form, temperature=0, logprobs=1)
            check(prompt, answer, alone)
    alone.close()


def test_in_a_stream_the_tokens_of_a_content_chunk_are_its_text() -> None:
    with Engine.load(n_ctx=1024) as llm:
        client: Any = llm.openai_client()
        asked: dict[str, Any] = {
            "model": "m", "messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "logprobs": True,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA.schema}},
        }  # fmt: skip
        whole = client.chat.completions.create(**asked)
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **asked)]
    entries = [entry for each in chunks if each.logprobs for entry in each.logprobs.content]
    assert entries == whole.choices[0].logprobs.content
    said = [each for each in chunks if each.delta.content]
    assert "".join(each.delta.content for each in said) == whole.choices[0].message.content
    spelt = [each for each in said if each.logprobs]
    for each in spelt:
        assert "".join(entry.token for entry in each.logprobs.content) == each.delta.content
    assert len(spelt) > len(said) / 2, "a token that begins before the content has a chunk of its own"


def test_a_script_names_every_token_too() -> None:
    with scripted(lambda _: '{"name": "northern", "n": 7}') as llm:
        answer = llm.chat("Hello!", response_format=SCHEMA, reasoning=False, logprobs=1)
        assert "".join(each.text for each in answer.logprobs).startswith(answer.content)
        assert len(answer.logprobs) == answer.usage.completion_tokens
