"""The `openai` client's embeddings over a scripted model: what a real client sends and reads."""

import asyncio
import base64
from collections.abc import Iterator

import numpy as np
import pytest

from engine import ChatTemplate, Engine
from engine.testing.scripted import ScriptedBackend

openai = pytest.importorskip("openai")


@pytest.fixture
def llm() -> Iterator[Engine]:
    with Engine.over(ScriptedBackend([], n_ctx=64, dimensions=32), ChatTemplate(None, family="qwen3")) as llm:
        yield llm


def test_texts_become_the_vectors_that_the_engine_makes(llm: Engine) -> None:
    answer = llm.openai_client().embeddings.create(model="any", input=["red apple", "green apple"])
    assert [each.index for each in answer.data] == [0, 1]
    assert np.allclose([each.embedding for each in answer.data], llm.embed(["red apple", "green apple"]))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (20, 20)


def test_one_text_tokens_and_both_encodings(llm: Engine) -> None:
    client = llm.openai_client()
    plain = client.embeddings.create(model="any", input="apple", encoding_format="float").data[0].embedding
    text: object = client.embeddings.create(model="any", input="apple", encoding_format="base64").data[0].embedding
    tokens = client.embeddings.create(model="any", input=[llm.tokenize("apple"), llm.tokenize("pear")])
    assert isinstance(text, str)
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == plain
    assert tokens.data[0].embedding == plain
    assert len(tokens.data) == 2
    assert client.embeddings.create(model="any", input=llm.tokenize("apple")).data[0].embedding == plain


def test_fields_of_the_engine_and_dimensions_are_honoured(llm: Engine) -> None:
    client = llm.openai_client()
    short = client.embeddings.create(model="any", input="red apple", dimensions=8).data[0].embedding
    assert np.allclose(short, llm.embed("red apple", dimensions=8))
    raw = client.embeddings.create(model="any", input="b", extra_body={"prefix": "a ", "normalize": False})
    assert np.allclose(raw.data[0].embedding, llm.embed("a b", normalize=False))
    cut = client.embeddings.create(model="any", input="word " * 40, extra_body={"truncate": True})
    assert cut.usage.prompt_tokens == 64


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        ({"input": []}, "input", "input is missing"),
        ({"input": "word " * 40}, "input", "Text 0 has 200 tokens, and one text may have 64"),
        ({"input": "a", "dimensions": 33}, "dimensions", "dimensions=33 is more"),
        ({"input": "a", "dimensions": 0}, "dimensions", "dimensions=0 is not valid"),
        ({"input": [[10**9]]}, "input", "There is no token"),
        ({"input": "a", "extra_body": {"input_type": "query"}}, "input_type", "not known"),
        ({"input": "a", "extra_body": {"dimension": 3}}, "dimension", "did you mean"),
    ],
)
def test_what_cannot_be_served_is_a_400_that_names_the_field(
    llm: Engine, fields: dict[str, object], param: str, problem: str
) -> None:
    arguments: dict[str, object] = {"model": "any", "encoding_format": "float", **fields}
    with pytest.raises(openai.BadRequestError, match=problem) as error:
        llm.openai_client().embeddings.create(**arguments)  # pyright: ignore[reportArgumentType]
    assert error.value.param == param


def test_many_requests_of_an_async_client_are_served_together(llm: Engine) -> None:
    async def ask() -> list[list[float]]:
        client = llm.async_openai_client()
        answers = await asyncio.gather(
            *(client.embeddings.create(model="any", input=f"text {number}") for number in range(50))
        )
        return [answer.data[0].embedding for answer in answers]

    assert np.allclose(asyncio.run(ask()), llm.embed([f"text {number}" for number in range(50)]))
