"""The ends of messages about options that are unknown or have a value that is not valid."""

from collections.abc import Iterable

from engine.support.errors import did_you_mean, shown
from engine.support.foreign import foreign, values


def value_hint(name: str) -> str:
    """Returns what to write for an option, as the end of a sentence; "" if its check says it all."""
    return f"; {values()[name]}" if name in values() else ""


def unknown_option(name: str, known: Iterable[str], elsewhere: str = "") -> str:
    """Returns the message about an option that is not one of `known`. `elsewhere`: where it is an option."""
    names = sorted(known)
    hint = elsewhere or foreign("options").get(name) or did_you_mean(name, names, f"the options are {', '.join(names)}")
    return f"There is no option {shown(name)}; {hint}{'' if hint.endswith(('.', '?')) else '.'}"
