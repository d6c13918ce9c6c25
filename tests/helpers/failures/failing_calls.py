"""Kinds of calls below the engine whose n-th one fails: each kind says how its call is made to fail in an engine."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes.inside import parts

from engine import Engine
from engine.support.errors import DecodeError, EngineError

Failure = Callable[[], Any]
"""Raises, or returns what a failed call returns."""
MEMORY = MemoryError("no memory")


def is_named(error: BaseException) -> bool:
    """Whether an error says by its type and its text what happened: one of ours, with a sentence."""
    return isinstance(error, EngineError) and len(str(error).split()) > 4 and str(error).rstrip().endswith((".", ")"))


@dataclass
class Breaker:
    """Lets the n-th of the calls that it guards fail, or with `lasting` every one from the n-th on. `reached`: how many
    failed."""

    number: int
    lasting: bool = False
    calls: int = 0
    reached: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fails(self) -> bool:
        with self._lock:
            self.calls += 1
            hit = self.calls == self.number or (self.lasting and self.calls > self.number)
            self.reached += hit
            return hit

    def guard(self, call: Callable[..., Any], failure: Failure) -> Callable[..., Any]:
        """Returns the call, which fails when its turn has come."""

        def guarded(*arguments: Any, **options: Any) -> Any:
            return failure() if self.fails() else call(*arguments, **options)

        return guarded

    def guard_method(self, patch: pytest.MonkeyPatch, owner: Any, name: str, failure: Failure) -> None:
        """Let a method of an object, or of all objects of a class, fail."""
        patch.setattr(owner, name, self.guard(getattr(owner, name), failure))


class Library:
    """llama.cpp's functions, some of them replaced."""

    def __init__(self, lib: Any, **replaced: Callable[..., Any]) -> None:
        self._lib = lib
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)


def raising(error: BaseException) -> Failure:
    def fail() -> Any:
        raise type(error)(*error.args)

    return fail


def decode_error(reason: Any) -> Failure:
    def fail() -> Any:
        raise DecodeError("A decode failed, as it was told to.", reason)

    return fail


def returning(value: object) -> Failure:
    return lambda: value


Install = Callable[[Engine, Breaker, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Kind:
    """A kind of call. `may_end`: how many requests one failure may end. `breaks`: the engine may say that it is broken,
    and all requests with it. `real`: only a real engine has such calls; `scripted`: only a scripted one."""

    install: Install
    may_end: int | None = 1
    breaks: bool = False
    real: bool | None = None


def runner_of(llm: Engine) -> Any:
    return parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]


def backend_of(llm: Engine) -> Any:
    return runner_of(llm)._backend


def method(name: str, failure: Failure) -> Install:
    """A method of the backend fails."""

    def install(llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        breaker.guard_method(patch, backend_of(llm), name, failure)

    return install


def function(name: str, failure: Failure) -> Install:
    """A function of llama.cpp fails, as the backend calls it."""

    def install(llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        backend = backend_of(llm)
        lib = backend._lib
        patch.setattr(backend, "_lib", Library(lib, **{name: breaker.guard(getattr(lib, name), failure)}))

    return install


def vectors(name: str, failure: Failure) -> Install:
    def install(llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        breaker.guard_method(patch, backend_of(llm).vectors(), name, failure)

    return install


def vector_decode(code: int) -> Install:
    def install(llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        context = backend_of(llm).vectors()
        lib = context._lib
        patch.setattr(context, "_lib", Library(lib, llama_decode=breaker.guard(lib.llama_decode, returning(code))))

    return install


def vocab(name: str, failure: Failure) -> Install:
    def install(llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        runner_of(llm)._loop._tokens.clear()
        breaker.guard_method(patch, backend_of(llm).vocab, name, failure)

    return install


def of_module(module: str, name: str, failure: Failure) -> Install:
    """A function or a class of one of our modules fails, wherever that module calls it."""

    def install(_llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        owner = pytest.importorskip(module)
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        breaker.guard_method(patch, owner, last, failure)

    return install


def arrays(llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
    """numpy finds no memory for an array in the engine's thread."""
    import numpy as np

    thread = runner_of(llm)._thread
    for name in ("zeros", "empty", "frombuffer", "asarray", "ascontiguousarray", "flatnonzero"):
        usual = getattr(np, name)

        def guarded(*arguments: Any, usual: Any = usual, **options: Any) -> Any:
            if threading.current_thread() is thread and breaker.fails():
                raise MemoryError("Unable to allocate an array")
            return usual(*arguments, **options)

        patch.setattr(np, name, guarded)


def deliver(llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
    breaker.guard_method(patch, runner_of(llm), "_deliver", raising(MemoryError()))
