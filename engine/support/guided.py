"""Attributes under the names of other libraries: the error says what to write here."""

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any

from engine.support.foreign import attributes


def hint_of(kind: type, name: str, prefix: str = "") -> str | None:
    """Returns what to write for a name that objects of this class lack; None if it is not known."""
    if name.startswith("_"):  # asked for by Python, pydantic or a notebook, often
        return None
    return next(
        (found for each in kind.__mro__ if (found := attributes().get(prefix + each.__name__, {}).get(name))), None
    )


class Guided:
    """The base of objects whose missing attributes, items and iterators are told with what to write instead."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if (hint := hint_of(type(self), name)) is not None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}; {hint}.")
            above = getattr(super(), "__getattr__", super().__getattribute__)
            return above(name)

        def __getitem__(self, key: object) -> Any:
            hint = hint_of(type(self), key) if isinstance(key, str) else hint_of(type(self), "choices")
            if isinstance(key, str) and key in dir(self):
                hint = f"write .{key}"
            known = hint or "its fields are attributes"
            raise TypeError(f"{type(self).__name__!r} object is not subscriptable; {known}.")


class GuidedClass(type):
    """The class of classes whose missing attributes are told so."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            hint = hint_of(cls, name, "type ")
            raise AttributeError(
                f"type object {cls.__name__!r} has no attribute {name!r}{f'; {hint}.' if hint else ''}"
            )


def door(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a public method that, called without its first argument, which may have another name elsewhere, says how
    to write it. An interrupt is raised here: where the method waited tells its caller nothing."""
    first = list(signature(method).parameters)[1]

    def check(values: tuple[object, ...], named: dict[str, object]) -> None:
        if not values and first not in named:
            instead = f", not {next(iter(named))}=..." if named else ""
            raise TypeError(
                f"{method.__qualname__} begins with its {first}: write .{method.__name__}({first}){instead}."
            )

    @wraps(method)
    def opened(self: object, *values: object, **named: object) -> Any:
        check(values, named)
        try:
            return method(self, *values, **named)
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None

    @wraps(method)
    async def opened_in_loop(self: object, *values: object, **named: object) -> Any:
        check(values, named)
        return await method(self, *values, **named)

    return opened_in_loop if iscoroutinefunction(method) else opened
