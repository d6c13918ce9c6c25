"""A cache that counts bytes: what strangers send may fill it, but not make it grow."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_R = TypeVar("_R")
_ENTRY = 1000
"""Bytes of an entry besides its texts."""
_MISSING = object()


def recent(most: int, size: Callable[..., int]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function to remember its most recently used results, which take `most` bytes together.

    `size`: the bytes that an entry takes, its arguments and its result, from the arguments; an entry larger than a
    quarter of `most` is not kept. The arguments are positional and hashable. What raises leaves nothing. Thread-safe.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        kept: OrderedDict[tuple[Any, ...], tuple[_R, int]] = OrderedDict()
        lock = threading.Lock()
        taken = 0

        @wraps(function)
        def found(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            nonlocal taken
            with lock:
                known = kept.get(args, _MISSING)
                if known is not _MISSING:
                    kept.move_to_end(args)
                    return cast("tuple[_R, int]", known)[0]
            made, needed = function(*args, **kwargs), _ENTRY + size(*args)
            with lock:
                if args not in kept and 4 * needed <= most:
                    kept[args] = made, needed
                    taken += needed
                while taken > most:
                    taken -= kept.popitem(last=False)[1][1]
            return made

        return found

    return decorate


def characters(*texts: str) -> int:
    """Returns how many bytes texts may take: four for each character."""
    return 4 * sum(map(len, texts))
