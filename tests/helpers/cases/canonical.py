"""The canonical turns: what a model may mean, each stated once. `writer` spells them in a family's format."""

import json
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Call:
    """A call as it is meant. `arguments` is their JSON text; `error` what a parser says of it."""

    name: str
    arguments: str = "{}"
    error: str = ""


@dataclass(frozen=True)
class Turn:
    """What a turn says: reasoning, then text and calls in their order.

    `prompt`: the prompt has opened reasoning, or opened and closed it; `again`: the model opens it once more.
    `unclosed`: a call ends reasoning. `quotes`: the reasoning holds this call's markup, in the place of its braces.
    `cut`: the output ends behind the last of this text.
    """

    name: str
    parts: tuple[str | Call, ...] = ()
    reasoning: str = ""
    prompt: Literal["", "open", "closed"] = ""
    again: bool = False
    unclosed: bool = False
    quotes: Call | None = None
    cut: str = ""

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(part for part in self.parts if isinstance(part, Call))

    @property
    def content(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    def kept(self, text: str) -> str:
        """What the cut leaves of a text that it cuts."""
        return text[: text.rindex(self.cut) + len(self.cut)] if self.cut and self.cut in text else text


def _weather(error: str = "", **arguments: Any) -> Call:
    return Call("get_weather", json.dumps(arguments), error)


PING = Call("ping")
PARIS = _weather(city="Paris")
ROME = _weather(city="Rome")
EVERYTHING = (
    '{"s": "x y", "i": 9007199254740993, "f": 1.5, "b": true, "n": null, "a": [1, "2", {"k": []}],'
    ' "o": {"k": "v", "m": {"x": -1}}}'
)
ESCAPES = r'{"s": "a \"q\" \\ back\nnew\ttab é 日本 🎉"}'

TURNS = (
    Turn("content", ("Hello!\nHow are you?",)),
    Turn("content with white space at its edges", ("  Hello \n\n",)),
    Turn("reasoning and content", ("Answer.",), reasoning="First,\n\nthink."),
    Turn("reasoning and call", (PARIS,), reasoning="I need it."),
    Turn("a call ends open reasoning", (PARIS,), reasoning="I need it.", unclosed=True),
    Turn("call markup inside reasoning is quoted", ("No",), reasoning="I may write {} here.", quotes=PING),
    Turn("reasoning of white space only", ("Hi",), reasoning=" \n"),
    Turn("reasoning forced open", ("Yes",), reasoning="So.", prompt="open"),
    Turn("reasoning forced open, and opened again", ("Yes",), reasoning="So.", prompt="open", again=True),
    Turn("reasoning forced open and cut", reasoning="So.", prompt="open", cut="So"),
    Turn("reasoning closed by the prompt", ("Yes",), prompt="closed"),
    Turn("one call", (PARIS,)),
    Turn("no arguments", (PING,)),
    Turn("two calls", (PARIS, _weather(city="Rome", days=2))),
    Turn("text before a call", ("Let me look.", PARIS)),
    Turn("text after a call", (PARIS, "Done.")),
    Turn("text between calls", (PARIS, "And now:", ROME)),
    Turn("every JSON type", (Call("everything", EVERYTHING),)),
    Turn("escapes and unicode", (Call("everything", ESCAPES),)),
    *(
        Turn(f"a string that looks otherwise: {text!r}", (_weather(city=text),))
        for text in ("02134", "null", "true", "")
    ),
    Turn("marker text inside an argument", (_weather(city="a </other> <b> b"),)),
    Turn("unknown tool", (Call("nope", '{"x": 1}', "unknown_tool"),)),
    Turn("arguments of another type", (_weather("invalid_arguments", city="Rome", days=[1]),)),
    Turn("cut inside the arguments", (_weather("truncated", city="Rome"),), cut="Ro"),
    Turn("malformed arguments, then a good call", (Call("get_weather", '{"city": nowhere}', "malformed"), PING)),
)
