"""The real llama.cpp library, with a few functions that answer otherwise."""

from typing import Any

from engine.llama import lib as llama_lib
from engine.llama import lib as llama_log


class Pretending:
    """`answers` by name of function. `says` is logged as an error whenever one of them is called."""

    def __init__(self, says: str = "", **answers: object) -> None:
        self._says = says
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        if name not in self._answers:
            return getattr(llama_lib.library(), name)

        def answer(*_: object) -> object:
            if self._says:
                llama_log.CALLBACK(4, self._says.encode() + b"\n", None)
            return self._answers[name]

        return answer
