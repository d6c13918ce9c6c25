"""Do reasoning, tool choices, schemas and streams keep their form together? Every combination is asked once, greedily.
Source: OpenAI API reference, "Chat"; `chat_template_kwargs` is what llama-server, vLLM and SGLang read."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, cast

from benchmarks.check.answer import Answer, read_answer
from benchmarks.check.exchange import Exchange, Reply, check_plain
from benchmarks.check.markers import family_markers
from benchmarks.check.records import Record, Verdict
from engine.support.errors import shown
from engine.tools import as_tools

Json: TypeAlias = dict[str, Any]

REASONING: Mapping[str, Json] = {
    "as it is": {},
    "on": {"chat_template_kwargs": {"enable_thinking": True}},
    "off": {"chat_template_kwargs": {"enable_thinking": False}},
}


def _object(**properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_WEATHER = _object(city={"type": "string"}, unit={"type": "string", "enum": ["celsius", "fahrenheit"]})
_NUMBERS = _object(a={"type": "integer"}, b={"type": "integer"})
_PARAMETERS = {"get_weather": _WEATHER, "multiply": _NUMBERS}
_CITY = _object(city={"type": "string"}, large={"type": "boolean"})


def _function(name: str, parameters: Json) -> Json:
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


_TOOLS: Json = {"tools": list(itertools.starmap(_function, _PARAMETERS.items()))}
_ASKS_FOR_A_CALL = "What is the weather in Paris, in celsius?"
CHOICES: Mapping[str, tuple[Json, str]] = {
    "no tools": ({}, "Name a city."),
    "auto": ({**_TOOLS, "tool_choice": "auto"}, _ASKS_FOR_A_CALL),
    "none": ({**_TOOLS, "tool_choice": "none"}, _ASKS_FOR_A_CALL),
    "required": ({**_TOOLS, "tool_choice": "required"}, "Hello! Who are you?"),
    "named": ({**_TOOLS, "tool_choice": {"type": "function", "function": {"name": "multiply"}}}, _ASKS_FOR_A_CALL),
}
"""What is sent, and a question that makes a model want something else."""
FORMS: Mapping[str, Json] = {
    "any": {},
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": _CITY}}
    },
}


@cache
def _checks() -> Mapping[str, Callable[[Any], str | None] | None]:
    """Returns what says what is wrong with a value, by the name of its schema."""
    schemas = {**_PARAMETERS, "city": _CITY}
    return {tool.name: tool.check for tool in as_tools(list(itertools.starmap(_function, schemas.items())))}


def forms(exchange: Exchange, *, max_tokens: int = 1024) -> Iterator[Record]:
    """Yields a record for each combination: `ok`, `failed` (and why), `refused`, `unknown`. Raises RemoteError if the
    server cannot be reached, or does not answer a plain question."""
    check_plain(exchange, {"max_tokens": 16})
    markers = tuple(family_markers())
    for reasoning, choice, form, streamed in itertools.product(REASONING, CHOICES, FORMS, ("no", "yes")):
        fields, question = CHOICES[choice]
        content = question if form == "any" else f"{question} If you answer yourself, answer in JSON."
        body = {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": streamed == "yes",
            **REASONING[reasoning],
            **fields,
            **FORMS[form],
        }
        case = {"reasoning": reasoning, "tools": choice, "format": form, "stream": streamed}
        yield Record("forms", case, *_judged(exchange.send(body), case, markers))


def _judged(reply: Reply, case: Mapping[str, str], markers: Sequence[str]) -> tuple[Verdict, str]:
    """Returns the verdict on the answer to one combination, and why."""
    if reply.status in (0, 429, 503):
        return "unknown", reply.told
    if reply.refused:
        return "refused", reply.told
    if reply.status != 200:
        return "failed", f"answer: {reply.told}"
    answer = read_answer(reply, streamed=case["stream"] == "yes")
    whole = answer.finish in ("stop", "tool_calls")
    faults = [*answer.faults, *_channel_faults(answer, markers), *_choice_faults(answer, case["tools"], whole=whole)]
    if whole:
        faults += [
            *_call_faults(answer),
            *_content_faults(answer, case["format"]),
            *_finish_faults(answer, case["tools"]),
        ]
    if faults:
        return "failed", "; ".join(faults)
    if not whole:
        return "unknown", f"the answer ended by {answer.finish!r}: allow more tokens (--max-tokens)"
    if not (answer.content or answer.calls):
        return "unknown", "the answer is empty"
    if case["reasoning"] == "off" and answer.reasoning:
        return "unknown", "reasoning was turned off and is there; the server may not know chat_template_kwargs"
    return "ok", ""


def _channel_faults(answer: Answer, markers: Sequence[str]) -> Iterator[str]:
    if leaked := [marker for marker in markers if marker in answer.content]:
        yield f"channel: {', '.join(leaked)} in the content"


def _choice_faults(answer: Answer, choice: str, *, whole: bool) -> Iterator[str]:
    names = [call.name for call in answer.calls]
    if choice in ("no tools", "none") and names:
        yield f"tool_choice: {choice}, yet {names[0]} was called"
    if choice in ("required", "named") and whole and not names:
        yield f"tool_choice: {choice}, yet nothing was called"
    if choice == "named" and set(names) - {"multiply"}:
        yield f"tool_choice: multiply was named, yet {', '.join(names)} was called"


def _call_faults(answer: Answer) -> Iterator[str]:
    for call in answer.calls:
        if call.name not in _PARAMETERS:
            yield f"call: there is no tool {call.name!r}"
        elif complaint := _misfit(call.arguments, call.name):
            yield f"arguments: {complaint}"
    ids = [call.id for call in answer.calls]
    if "" in ids or len(set(ids)) < len(ids):
        yield "call: an id is missing, or stands twice"


def _content_faults(answer: Answer, form: str) -> Iterator[str]:
    if (
        form != "any"
        and not answer.calls
        and (complaint := _misfit(answer.content, "" if form == "json_object" else "city"))
    ):
        yield f"content: {complaint}"


def _finish_faults(answer: Answer, choice: str) -> Iterator[str]:
    right = "tool_calls" if answer.calls else "stop"
    if answer.finish != right and choice != "named":  # OpenAI's own API says "stop" after a call that was named
        yield f"finish_reason: {answer.finish}, {'with' if answer.calls else 'without'} a call"


def _misfit(text: str, schema: str) -> str:
    """Returns what is wrong with a JSON text; "" if nothing is. `schema`: the name in `_checks`; "" for any object."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return f"{shown(text)} is not JSON"
    if not isinstance(value, dict):
        return f"{shown(text)} is not an object"
    check = _checks().get(schema)
    return (check and check(cast("Json", value))) or ""
