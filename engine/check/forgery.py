"""Does text of a caller become control tokens? Seen by the server's own counts of the prompt's tokens: each further copy
of a control token adds exactly one, each further copy of the same characters as text adds several."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from engine.check.exchange import Exchange, Reply, check_plain
from engine.check.markers import markers_of
from engine.check.records import Record, Verdict
from engine.remote.wire import mapping_of

Json: TypeAlias = dict[str, Any]

PLACES = ("user", "system", "assistant", "reasoning", "argument", "tool result", "tool description", "tool name")
"""Where a caller's text stands in a request."""
_FEW, _MANY = 2, 6
_LENGTH = 64
_ESTIMATED = "the server's counts are constant, or estimated from the text's length"


def forgery(
    exchange: Exchange, markers: Sequence[str] | None = None, places: Sequence[str] = PLACES
) -> Iterator[Record]:
    """Yields a record for each place and marker: `text` (good), `control token` (a fault), `removed`, `refused`,
    `unknown`. `markers`: None takes those of the server's own template, if it tells it, and the usual ones. Raises
    RemoteError if the server cannot be reached, or does not answer a plain question."""
    tried = markers_of(exchange.markup()) if markers is None else markers
    blind = _why_blind(exchange)
    for place in places:
        for marker in tried:
            verdict, why = ("unknown", blind) if blind else _judged(exchange, place, marker)
            yield Record("forgery", {"place": place, "marker": marker}, verdict, why)


def _why_blind(exchange: Exchange) -> str:
    """Returns why the server's counts tell nothing; "" if they do. Texts of one length are seldom as many tokens, unless
    each character is one."""
    if _prompt_tokens(check_plain(exchange, {"max_tokens": 1})) is None:
        return "the server reports no usage.prompt_tokens"
    texts = "", "the " * (_LENGTH // 4), "~^#|" * (_LENGTH // 4)
    counts = [_prompt_tokens(exchange.send(_request("user", text))) for text in texts]
    if None in counts:
        return "the server does not always report usage.prompt_tokens"
    none, words, signs = (count or 0 for count in counts)
    return _ESTIMATED if words == signs and words - none < _LENGTH - 2 else ""


def _judged(exchange: Exchange, place: str, marker: str) -> tuple[Verdict, str]:
    """Returns the verdict on one marker at one place, and why."""
    middle = (len(marker) + 1) // 2
    grown: list[float] = []
    for text in (marker, f"{marker[:middle]} {marker[middle:]}"):
        counts: list[int] = []
        for copies in (_FEW, _MANY):
            reply = exchange.send(_request(place, text * copies))
            if (count := _prompt_tokens(reply)) is None:
                return ("refused" if reply.status in (400, 413, 422) else "unknown"), _untold(reply)
            counts.append(count)
        grown.append((counts[1] - counts[0]) / (_MANY - _FEW))
    whole, broken = grown
    if whole == 0:
        return "removed", "nothing at this place reaches the prompt" if broken == 0 else ""
    if broken < 2 or 0 < whole < 1 or 1 < whole < 2 or whole < 0:
        return "unknown", f"each copy adds {whole:g} tokens, each copy with a space inside {broken:g}"
    if whole == 1:
        return "control token", f"each copy adds 1 token; with a space inside, {broken:g}"
    return "text", ""


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
