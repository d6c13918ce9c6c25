"""What is done at the end of a block whatever interrupts it."""

from collections.abc import Callable


class Afterwards:
    """`with done, done:` calls a function at the end of the block; twice, since an exception of a signal handler may
    come in the middle of the first call, or before it. The function may be called again at any place where it was
    left, and does nothing once all is done."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._function()
