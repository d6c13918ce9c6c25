"""What a type checker knows of `completion.parsed`: checked by basedpyright (`.ci/run` runs it); nothing here runs."""

from typing import Any, Literal, assert_type

from pydantic import BaseModel

from engine import Completion, Engine, JsonSchema, Lark, Run, Stream


class Mood(BaseModel):
    mood: Literal["glad", "calm"]


def parsed_is_typed(llm: Engine) -> None:
    assert_type(llm.chat("?", response_format=Mood, temperature=0, max_tokens=5).parsed, Mood | None)
    assert_type(llm.chat("?", response_format=JsonSchema({})).parsed, Any | None)
    assert_type(llm.chat("?", temperature=1), Completion)
    assert_type(llm.complete("?", response_format=Lark('start: "a"')).parsed, str | None)
    assert_type(llm.choices("?", 2, response_format=Mood), list[Stream[Mood]])
    assert_type(llm.stream_run("?", response_format=Mood).result(), Run[Mood])
    assert_type(llm.conversation().chat("?", response_format=Mood), Completion[Mood])


async def parsed_is_typed_for_an_event_loop(llm: Engine) -> None:
    assert_type((await llm.achat("?", response_format=int)).parsed, int | None)
