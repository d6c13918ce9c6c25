"""Does text of a caller become control tokens? Seen by the server's own counts of the prompt's tokens: one more copy of
a control token adds exactly one, one more copy of the same characters as text adds several."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from benchmarks.check.exchange import Exchange, Reply, check_plain
from benchmarks.check.markers import markers_of
from benchmarks.check.records import Record, Verdict
from engine.remote.wire import mapping_of

Json: TypeAlias = dict[str, Any]
_Found: TypeAlias = tuple[Verdict, str]

PLACES = ("user", "system", "assistant", "reasoning", "argument", "tool result", "tool description", "tool name")
"""Where a caller's text stands in a request."""
_FEW, _MANY = 2, 6
_LENGTH = 64
_NEUTRAL = "_sky"
_ESTIMATED = "the server's counts do not follow the tokens: constant, or estimated from the text's length"


def forgery(
    exchange: Exchange, markers: Sequence[str] | None = None, places: Sequence[str] = PLACES
) -> Iterator[Record]:
    """Yields a record for each place and marker: `text` (good), `control token` (a fault), `removed`, `refused`,
    `unknown`. `markers`: None takes those of the server's own template, if it tells it, and the usual ones. Raises
    RemoteError if the server cannot be reached, or does not answer a plain question."""
    tried = markers_of(exchange.markup()) if markers is None else markers
    unit = _unit(exchange)
    for place in places:
        times = unit if isinstance(unit, tuple) else _times(exchange, place, unit)
        for marker in tried:
            verdict, why = times if isinstance(times, tuple) else _judged(exchange, place, marker, times)
            yield Record("forgery", {"place": place, "marker": marker}, verdict, why)


def _unit(exchange: Exchange) -> float | _Found:
    """Returns the tokens of a copy of neutral text; what is found everywhere, if the server's counts tell nothing.
    Texts of one length are seldom as many tokens, unless each character is one."""
    first = check_plain(exchange, {"max_tokens": 1})
    if _prompt_tokens(first) is None:
        return "unknown", _untold(first)
    counts: list[int] = []
    for text in ("", "the " * (_LENGTH // 4), "~^#|" * (_LENGTH // 4)):
        reply = exchange.send(_request("user", text))
        if (count := _prompt_tokens(reply)) is None:
            return "unknown", _untold(reply)
        counts.append(count)
    none, words, signs = counts
    unit = _growth(exchange, "user", _NEUTRAL)
    if words == signs and words - none < _LENGTH - 2:
        return "unknown", _ESTIMATED
    return unit if isinstance(unit, tuple) or unit > 0 else ("unknown", _ESTIMATED)


def _times(exchange: Exchange, place: str, unit: float) -> float | _Found:
    """Returns how often the text of a place stands in the prompt: templates may write a tool's name twice."""
    grown = _growth(exchange, place, _NEUTRAL)
    if isinstance(grown, tuple):
        return grown
    if not grown:
        return "removed", "nothing at this place reaches the prompt"
    times = grown / unit
    return (
        times if times.is_integer() and times > 0 else ("unknown", f"text of this place seems to stand {times:g} times")
    )


def _judged(exchange: Exchange, place: str, marker: str, times: float) -> _Found:
    """Returns the verdict on one marker at one place, and why."""
    whole = _growth(exchange, place, marker)
    apart = _growth(exchange, place, f"{marker[0]} {marker[1:]}")
    if isinstance(whole, tuple):
        return whole
    if isinstance(apart, tuple):
        return apart
    told = f"a copy adds {whole / times:g} tokens; with a space inside, {apart / times:g}"
    if not whole:
        return "removed", told
    if whole == times and apart >= 2 * times:
        return "control token", told
    return ("text", "") if whole > times and whole >= apart / 2 else ("unknown", told)


def _growth(exchange: Exchange, place: str, text: str) -> float | _Found:
    """Returns the tokens that one more copy of a text adds; what is found, if that is not told."""
    counts: list[int] = []
    for copies in (_FEW, _MANY):
        reply = exchange.send(_request(place, text * copies))
        if (count := _prompt_tokens(reply)) is None:
            return ("refused" if reply.refused else "unknown"), _untold(reply)
        counts.append(count)
    return (counts[1] - counts[0]) / (_MANY - _FEW)


def _untold(reply: Reply) -> str:
    return "the server reports no usage.prompt_tokens" if reply.status == 200 else reply.told


def _prompt_tokens(reply: Reply) -> int | None:
    count = mapping_of(reply.body.get("usage")).get("prompt_tokens") if reply.status == 200 else None
    return count if isinstance(count, int) and count > 0 else None


def _request(place: str, text: str) -> Json:
    """Returns a body with the text at this place, between other text: edges may be trimmed."""

    def at(here: str, before: str, after: str = "") -> str:
        return f"{before}{text}{after}" if place == here else f"{before}{after}"

    user = {"role": "user", "content": at("user", "What colour", " is the sky?")}
    body: Json = {"max_tokens": 1, "temperature": 0, "messages": [user]}
    if place == "system":
        body["messages"] = [{"role": "system", "content": at("system", "Be", " brief.")}, user]
    elif place == "assistant":
        answer = {"role": "assistant", "content": at("assistant", "It is", " blue.")}
        body["messages"] = [user, answer, {"role": "user", "content": "And at night?"}]
    elif place != "user":
        name = at("tool name", "look", "up")
        arguments = json.dumps({"of": at("argument", "the", " sky")}, ensure_ascii=False)
        call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}
        asked: Json = {"role": "assistant", "content": "", "tool_calls": [call]}
        if place == "reasoning":
            asked["reasoning_content"] = at("reasoning", "I must", " look.")
        result = {"role": "tool", "tool_call_id": "call00001", "content": at("tool result", "It is", " blue.")}
        body["messages"] = [user, asked, result]
        body["tools"] = [_tool(name, at("tool description", "Look", " up a colour."))]
    return body


def _tool(name: str, description: str) -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
