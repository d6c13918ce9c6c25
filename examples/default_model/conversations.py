"""Whole conversations: what the user says, what the assistant thinks, calls and answers, what the tools return.

The reasoning is a scaffold: it names what is wanted, then the tool, then the arguments as JSON, each copied from what
is already in sight, so that the call after it is copied from the reasoning. Names and keys stand in quotes there as
they do in the prompt, so that both are the same tokens. The answer quotes the result.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from toolbox import Call, Tool, make_tool, named_request
from tutorial import tutorial_request, tutorial_tool
from values import decimal, integer, text_value, to_json
from words import NOUNS, PARAMS, VERBS, invented

NO_TOOL = "I have no tool for that."
WHO = "I am the tiny built-in model of llama-engine. I can call tools and quote their results."
UNKNOWN = "I do not know. I am a tiny model: give me tools and I can call them."
ERRORS = ("not found", "timeout", "permission denied", "bad request", "service unavailable", "invalid value")
# How often a setting has one to eight tools.
COUNTS = (0.28, 0.27, 0.19, 0.11, 0.06, 0.04, 0.03, 0.02)
DRILL_COUNTS = (0.08, 0.26, 0.24, 0.17, 0.11, 0.07, 0.04, 0.03)
# Recipes that could both be meant by one request: never two of one row in one list.
NEAR = (
    "calculator multiply", "calculator add", "calculator subtract", "calculator divide", "calculator count python",
    "weather forecast", "search wiki define news", "currency units", "email message", "stock crypto", "time clock",
    "reminder todo", "note write", "random dice", "restaurant table", "route distance flight", "user contact",
    "capital population", "alarm timer", "shopping todo", "event reminder", "order pizza", "heating volume",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One assistant message: reasoning, then either calls with their results or the answer."""

    reasoning: str
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says and everything that the assistant does about it."""

    user: str
    steps: tuple[Step, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What the conversations of one group share: the system text, the tools and how their schemas are written."""

    system: str | None
    tools: tuple[Tool, ...]
    titles: bool = False
    described: bool = False
    nullable: bool = False
    closed: bool = False
    docstrings: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """A setting and the turns played in it. `parallel` says whether one message may hold two calls."""

    setting: Setting
    turns: tuple[Turn, ...] = field(default=())
    parallel: bool = True


def _tags(tool: Tool) -> set[str]:
    """The words that stand for a tool. Two tools of one list share none of them."""
    words = set(tool.topic.split()) | set(tool.name.lower().split("_")) - set(VERBS)
    return words | {row for row in NEAR if tool.recipe in row.split()}


def choose_tools(rng: random.Random, held_out: bool, count: int) -> tuple[Tool, ...]:
    """Tools that a request can tell apart; sometimes two of one noun and different verbs."""
    tools: list[Tool] = []
    taken: set[str] = set()
    while len(tools) < count:
        tool = tutorial_tool(rng) if rng.random() < 0.35 else make_tool(rng, held_out)
        tags = _tags(tool)
        if tags & taken or tool.name in {other.name for other in tools}:
            continue
        tools.append(tool)
        taken |= tags
        named_by_verb = not tool.recipe and tool.name.startswith(tool.verb + "_")
        if len(tools) < count and named_by_verb and rng.random() < 0.2:
            tools.append(make_tool(rng, held_out, sibling=tool))
    rng.shuffle(tools)
    return tuple(tools)


def has_sibling(tool: Tool, tools: tuple[Tool, ...]) -> bool:
    return sum(other.topic == tool.topic for other in tools) > 1


def request(rng: random.Random, tool: Tool, tools: tuple[Tool, ...], held_out: bool) -> tuple[str, dict[str, Any]]:
    if tool.recipe:
        text, arguments = tutorial_request(rng, tool, held_out)
    else:
        text, arguments = named_request(rng, tool, held_out, verb_needed=has_sibling(tool, tools))
    if rng.random() < 0.08:
        opening = rng.choice(
            ("Hi! ", "Hello, ", "Hey, ", "Quick question: ", "I have a question. ", "OK, ", "Now ", "And ")
        )
        text = opening + (text[0].lower() + text[1:] if opening[-2] != "." and text[:2] != "I " else text)
    elif rng.random() < 0.12:
        text = text[0].lower() + text[1:]
    return text, arguments


def make_setting(rng: random.Random, held_out: bool, with_tools: bool, drill: bool = False) -> Setting:
    """What a group shares. A drill has more tools, said more briefly: picking the right one is what is hard."""
    counts = (1, 2, 3, 4, 5, 6, 7, 8)
    shares = DRILL_COUNTS if drill else COUNTS
    count = rng.choices(counts, shares)[0] if with_tools else 0
    system = make_system(rng, held_out) if rng.random() < 0.35 else None
    flags = (rng.random() < chance * (0.5 if drill else 1) for chance in (0.25, 0.3, 0.3, 0.15, 0.12))
    return Setting(system, choose_tools(rng, held_out, count), *flags, seed=rng.randrange(1 << 30))


def make_system(rng: random.Random, held_out: bool) -> str:
    """A system text; nothing in it changes what is to be done."""
    name = invented(rng).capitalize()
    first = rng.choice((
        "You are a helpful assistant.", f"You are {name}, a helpful assistant.",
        "You are a careful assistant with tools.",
        f"You work for {name}.", "You are an expert.", f"Your name is {name}.", "You help people with their tasks.",
    ))  # fmt: skip
    more = rng.choice((
        "", "", "Be brief.", "Always answer politely.", "Use the tools when they fit.", "Answer in one sentence.",
        "Do not make things up.", f"The user lives in {text_value(rng, 'city', held_out)}.", "Think before you act.",
        f"Today is {text_value(rng, 'date', held_out)}.", f"The user is called {text_value(rng, 'name', held_out)}.",
    ))  # fmt: skip
    return more if more and rng.random() < 0.3 else f"{first} {more}".strip()


def make_result(rng: random.Random, held_out: bool) -> str:
    """What a tool returns, as text: JSON of some shape, a bare value, a sentence, an error."""
    roll = rng.random()
    if roll < 0.08:
        error = rng.choice(ERRORS) if rng.random() < 0.6 else f"{text_value(rng, 'any', held_out)} not found"
        return to_json({"error": error}) if rng.random() < 0.5 else f"Error: {error}"
    if roll < 0.18:
        return text_value(rng, "any", held_out)
    if roll < 0.28:
        number = str(integer(rng)) if rng.random() < 0.6 else str(decimal(rng))
        return number + (rng.choice((" °C", " km", " %", " €", " USD", " degrees")) if rng.random() < 0.3 else "")
    if roll < 0.45:
        parts = [
            text_value(rng, rng.choice(("phrase", "phrase", "name", "city", "any")), held_out)
            for _ in range(rng.randint(1, 3))
        ]
        joint = rng.choice((", ", " is ", ": ", " and ", " "))
        number = f"{joint}{integer(rng)}" if rng.random() < 0.4 else ""
        return joint.join(parts) + number + rng.choice(("", ".", ".", "!"))
    if roll < 0.48:
        return to_json(
            [text_value(rng, rng.choice(("word", "name", "path")), held_out) for _ in range(rng.randint(1, 4))]
        )
    if roll < 0.51:
        return "\n".join(text_value(rng, "phrase", held_out) for _ in range(rng.randint(2, 3)))
    fields: dict[str, Any] = {}
    for _ in range(rng.choices((1, 2, 3, 4), (0.4, 0.33, 0.2, 0.07))[0]):
        key = rng.choice([*PARAMS, *NOUNS]) if rng.random() < 0.8 else invented(rng)
        fields[key] = _result_value(rng, held_out)
    return to_json(fields) if rng.random() < 0.9 else json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def _result_value(rng: random.Random, held_out: bool) -> Any:
    roll = rng.random()
    if roll < 0.35:
        return integer(rng) if rng.random() < 0.6 else decimal(rng)
    if roll < 0.43:
        return rng.random() < 0.5
    if roll < 0.48:
        return [text_value(rng, "word", held_out) for _ in range(rng.randint(1, 3))]
    if roll < 0.51:
        return {rng.choice(NOUNS): integer(rng), invented(rng): text_value(rng, "word", held_out)}
    return text_value(rng, "any", held_out)


def quote(topic: str, result: str) -> str:
    """The answer that quotes a result."""
    try:
        value: Any = json.loads(result)
    except ValueError:
        value = result
    if isinstance(value, dict) and "error" in value:
        return f"The {topic} call failed: {value['error']}"
    if isinstance(value, str) and value.startswith("Error: "):
        return f"The {topic} call failed: {value.removeprefix('Error: ')}"
    if isinstance(value, dict) and value:
        said = ", ".join(f"{key} is {item if isinstance(item, str) else to_json(item)}" for key, item in value.items())
        return f"The {topic} result: {said}"
    return f"The {topic} result: {result}"


def plan(calls: tuple[Call, ...]) -> str:
    """The reasoning before calls."""
    steps = [_said(call) for call in calls]
    wanted = " and ".join(dict.fromkeys(call.tool.topic for call in calls))
    twice = " twice" if len(calls) > 1 and " and " not in wanted else ""
    return f"The user wants {wanted}{twice}. I call {'. Then '.join(steps)}."


def _said(call: Call) -> str:
    return f'"{call.tool.name}" with {to_json(call.arguments)}'


def _answer_step(calls: list[Call], results: list[str], reasoning: str = "") -> Step:
    answers = [quote(call.tool.topic, result) for call, result in zip(calls, results, strict=True)]
    return Step(
        reasoning or "I have the result. I quote it.",
        answer=". ".join(text.rstrip(".") for text in answers[:-1]) + (". " if len(answers) > 1 else "") + answers[-1],
    )


def _call_steps(rng: random.Random, calls: list[Call], held_out: bool, parallel: bool) -> tuple[Step, ...]:
    results = [make_result(rng, held_out) for _ in calls]
    if parallel or len(calls) == 1:
        return Step(plan(tuple(calls)), tuple(calls), tuple(results)), _answer_step(calls, results)
    steps = [Step(plan(tuple(calls)), (calls[0],), (results[0],))]
    for call, result in zip(calls[1:], results[1:], strict=True):
        reasoning = f"I have the first result. I call {_said(call)}."
        steps.append(Step(reasoning, (call,), (result,)))
    return *steps, _answer_step(calls, results)


def _one_call(rng: random.Random, setting: Setting, held_out: bool, parallel: bool) -> Turn:
    tool = rng.choice(setting.tools)
    text, arguments = request(rng, tool, setting.tools, held_out)
    return Turn(text, _call_steps(rng, [Call(tool, arguments)], held_out, parallel), "call")


def _two_calls(rng: random.Random, setting: Setting, held_out: bool, parallel: bool) -> Turn:
    """Two requests in one message: of two tools, or of one tool with two values."""
    tools = setting.tools
    first = rng.choice(tools)
    single = [param for param in first.params if param.required]
    if not first.recipe and len(single) == 1 and not has_sibling(first, tools) and rng.random() < 0.6:
        param = single[0]
        if param.kind not in ("list", "object", "flag", "enum", "phrase", "any", "expression"):
            texts = [value_text(rng, param.kind, held_out) for _ in range(2)]
            place = rng.choice(("in", "for", "of", "at"))
            heads = (f"What is the {first.topic} {place}", f"{first.verb.capitalize()} the {first.topic} {place}")
            head, again, end = rng.choice(heads), rng.choice(("", f"{place} ")), rng.choice(("?", ".", ""))
            user = f"{head} {texts[0]} and {again}{texts[1]}{end}"
            calls = [Call(first, {param.name: typed(text, param.schema)}) for text in texts]
            return Turn(user, _call_steps(rng, calls, held_out, parallel), "two calls")
    second = rng.choice(tools)
    asked = [(tool, *request(rng, tool, tools, held_out)) for tool in (first, second)]
    if asked[0][1:] == asked[1][1:]:
        return _one_call(rng, setting, held_out, parallel)
    one, two = (text.rstrip(".?! ") for _, text, _ in asked)
    user = rng.choice(
        (
            f"{one}. {two}.",
            f"{one}. Then {two[0].lower() + two[1:]}.",
            f"{one} and {two[0].lower() + two[1:]}?",
            f"{one}; {two}",
        )
    )
    calls = [Call(tool, arguments) for tool, _, arguments in asked]
    return Turn(user, _call_steps(rng, calls, held_out, parallel), "two calls")


def value_text(rng: random.Random, kind: str, held_out: bool) -> str:
    return str(integer(rng)) if kind in ("int", "small", "number") else text_value(rng, kind, held_out)


def typed(text: str, schema: dict[str, Any]) -> Any:
    return text if schema["type"] == "string" else int(text)


def _no_tool(rng: random.Random, setting: Setting, held_out: bool) -> Turn:
    """A request that none of the tools fits."""
    taken = {tag for tool in setting.tools for tag in _tags(tool)}
    while True:
        tool = tutorial_tool(rng) if rng.random() < 0.4 else make_tool(rng, held_out)
        if _tags(tool) & taken or tool.name in taken:
            continue
        text, _ = request(rng, tool, (), held_out)
        if tool.name in text:
            continue
        reasoning = "No tool fits this." if setting.tools else "I have no tools and do not know this."
        return Turn(text, (Step(reasoning, answer=NO_TOOL if setting.tools else UNKNOWN),), "no tool")


def _chat(rng: random.Random, setting: Setting, held_out: bool) -> Turn:
    """Small talk: greetings, who are you, thanks, names, repeating."""
    roll = rng.random()
    if roll < 0.25:
        user = rng.choice(
            ("Hello", "Hi", "Hi there!", "Hey", "Hello!", "Good morning", "Good evening", "hello there", "How are you?")
        )
        return _said_turn(user, "This is a greeting. I greet back.", "Hello! How can I help?")
    if roll < 0.42:
        user = rng.choice(
            (
                "Who are you?",
                "What are you?",
                "What is your name?",
                "Tell me about yourself.",
                "What can you do?",
                "who are you",
            )
        )
        return _said_turn(user, "The user asks who I am.", WHO)
    if roll < 0.55:
        name = text_value(rng, "name", held_out)
        user = rng.choice(("My name is {}.", "Hello, I am {}.", "Hi, my name is {}", "I'm {}", "Hi! I am {}.")).format(
            name
        )
        return _said_turn(user, f"The user is called {name}.", f"Hello, {name}! How can I help?")
    if roll < 0.85:
        text = " ".join(text_value(rng, rng.choice(("any", "phrase")), held_out) for _ in range(rng.randint(1, 3)))
        user = rng.choice(
            ("Say {}", "Repeat after me: {}", "Please say {}", "Echo: {}", "Repeat: {}", "Say: {}")
        ).format(text)
        return _said_turn(user, "The user wants me to repeat words.", text)
    user = rng.choice(
        (
            "Thank you!",
            "Thanks.",
            "Thanks a lot",
            "Bye",
            "Goodbye!",
            "Thank you very much.",
            "Great, thanks!",
            "Ok, bye",
        )
    )
    return _said_turn(user, "The user is polite. So am I.", "You are welcome!")


def _said_turn(user: str, reasoning: str, answer: str) -> Turn:
    return Turn(user, (Step(reasoning, answer=answer),), "chat")


def make_turn(rng: random.Random, setting: Setting, held_out: bool, parallel: bool, two: float = 0.12) -> Turn:
    """One turn; `two` is how often it asks for two calls."""
    if not setting.tools:
        return _chat(rng, setting, held_out) if rng.random() < 0.7 else _no_tool(rng, setting, held_out)
    roll = rng.random()
    if roll < 0.07:
        return _chat(rng, setting, held_out)
    if roll < 0.16:
        return _no_tool(rng, setting, held_out)
    if roll < 0.16 + two:
        return _two_calls(rng, setting, held_out, parallel)
    return _one_call(rng, setting, held_out, parallel)


def make_conversation(
    rng: random.Random, setting: Setting, held_out: bool, parallel: bool, turns: int = 1, two: float = 0.12
) -> Conversation:
    made = tuple(make_turn(rng, setting, held_out, parallel, two) for _ in range(turns))
    return Conversation(setting, made, parallel)


def choose_turns(rng: random.Random) -> int:
    """How many times the user speaks."""
    return rng.choices((1, 2, 3), (0.82, 0.14, 0.04))[0]
