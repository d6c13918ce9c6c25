"""Attributes under the names of other libraries: the error says what to write here."""

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
