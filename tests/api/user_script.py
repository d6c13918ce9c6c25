"""A user's script with planted mistakes, each marked at its line; test_user_script.py has type checkers read it.

Nothing here runs.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, assert_type

from pydantic import BaseModel

from engine import (
    Agent,
    Choice,
    Completion,
    Engine,
    EngineError,
    JsonSchema,
    Message,
    MessagesLike,
    Regex,
    Run,
    Stream,
    ToolResult,
)
from engine.openai import transport
from engine.testing.scripted import ScriptedEngine, call


class Invoice(BaseModel):
    number: str
    total: float


def get_order(order: int) -> str:
    """Look an order up."""
    return f"order {order} is on its way"


def invoices(llm: Engine, text: str) -> float:
    answer = llm.chat(text, response_format=Invoice, temperature=0)
    assert_type(answer, Completion[Invoice])
    wrong = answer.parsed.total  # mistake: it may be None
    if answer.parsed is None:
        raise ValueError(answer.parse_error)
    answer.parsed.totl  # mistake: no such field
    llm.chat(text, response_format=Invoice, temprature=0)  # mistake: no such option
    llm.chat(text, response_format="json")  # mistake: no form of an answer
    return answer.parsed.total + wrong


def labels(llm: Engine, text: str) -> str:
    mood = llm.chat(text, response_format=Choice(["glad", "sad"])).parsed
    code = llm.complete(text, response_format=Regex("[a-z]{3}"), max_tokens=5).parsed
    assert mood is not None
    number: int = mood  # mistake: a choice is a text
    if code is None:
        return f"{mood} {number}"
    literal = llm.chat(text, response_format=Literal["a", "b"])
    union = llm.chat(text, response_format=Invoice | None)
    free = llm.chat(text, response_format=JsonSchema({"type": "object"}))
    openai = llm.chat(text, response_format={"type": "json_object"})
    return mood.upper() + code + literal.content + union.content + free.content + openai.content


def many(llm: Engine, texts: Sequence[str]) -> list[float]:
    rows = [f"Invoice: {text}" for text in texts]
    sure = llm.generate(rows, response_format=Invoice)
    maybe = llm.generate(rows, response_format=Invoice, on_error="return")
    print(maybe[0].parsed)  # mistake: it may be an error
    pairs = [(text, {"seed": number}) for number, text in enumerate(rows)]
    for number, answer in llm.generate_iter(pairs, response_format=list[int]):
        if isinstance(answer, EngineError):
            print(number, str(answer))
        elif answer.parsed is not None:
            print(answer.parsed[0].bit_length())
    llm.generate(rows, on_error="ignore")  # mistake: no such policy
    return [each.parsed.total for each in sure if each.parsed is not None]


def history(llm: Engine) -> tuple[Message, ...]:
    asked = [{"role": "user", "content": "Where is order 7?"}]
    answer = llm.chat(asked, [get_order])
    llm.chat([*asked, answer.message, {"role": "user", "content": "And order 8?"}])
    messages: list[Message | dict[str, Any]] = [*asked]
    messages.append(answer.message)
    llm.chat(messages)
    llm.chat([answer.message])
    llm.chat(42)  # mistake: no messages
    run = llm.run(messages, [get_order], max_tokens=50)
    llm.run([*run.messages, {"role": "user", "content": "Thanks."}])
    talk = llm.conversation([{"role": "system", "content": "Be brief."}])
    total = talk.chat("Invoice 7: 5 euro", response_format=Invoice).parsed
    talk.chat(total)  # mistake: a value, no message
    return run.messages


def asked_with(llm: Engine, messages: MessagesLike, options: dict[str, Any]) -> Completion:
    return llm.chat(messages, **options)


CLERK = Agent(instructions="Extract the invoice.", tools=[get_order], output=Invoice)
HELPER = Agent(instructions="Help.", tools=[get_order])
BROKEN = Agent(instruction="Help.")  # mistake: no such field


def agents(llm: Engine) -> Run[Invoice]:
    run = CLERK.run(llm, "Invoice 7: 5 euro")
    if (invoice := run.completion.parsed) is not None:
        invoice.total.upper()  # mistake: a number has no letters
    for event in HELPER.stream_run(llm, "Where is order 7?"):
        if isinstance(event, ToolResult):
            print(event.name.upper(), event.content)
            print(event.result)  # mistake: no such field
    HELPER.run("Where is order 7?", llm)  # mistake: the wrong order
    chosen = llm.run("Glad or sad?", response_format=Choice(["glad", "sad"]))
    assert_type(chosen, Run[str])
    return llm.run("Glad?", response_format=Choice(["yes"])) if chosen.steps else run  # mistake: another answer


async def streams(llm: Engine) -> None:
    async for event in llm.astream("Hello"):
        print(event.step)
    stream = await llm.astream("Invoice 7", response_format=Invoice)
    assert_type(stream, Stream[Invoice])
    assert_type(await stream, Completion[Invoice])
    async with llm.astream("Hello") as left:
        left.cancel()
    for _ in llm.astream("Hello"):  # mistake: it is for an event loop
        pass
    answers = await llm.agenerate(["a", "b"], response_format=Invoice)
    assert_type(answers, list[Completion[Invoice]])
    tasks = [asyncio.create_task(llm.achat(text)) for text in ("a", "b")]
    print([answer.content for answer in await asyncio.gather(*tasks)])
    print(llm.achat("Hello").content)  # mistake: await is missing


def tests() -> None:
    with ScriptedEngine([call("get_order", order=7), "It is on its way."]) as llm:
        print(HELPER.run(llm, "Where is order 7?").completion.content, llm.script.prompts[0].upper(), transport(llm))
    ScriptedEngine([7])  # mistake: no reply
