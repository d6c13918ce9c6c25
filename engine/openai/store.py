"""Stores responses for `previous_response_id`: the most recently used, in this process's memory."""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from engine.openai.parameters import Json
from engine.openai.problems import Problem
from engine.support.errors import shown

MOST_RESPONSES = 1000
MOST_BYTES = 64 << 20


class Stored(NamedTuple):
    """A response. `before`: the earlier items of its conversation; `own`: the items of its request."""

    response: Json
    before: Sequence[Json]
    own: Sequence[Json]

    @property
    def conversation(self) -> list[Json]:
        """The items that the next request continues."""
        return [*self.before, *self.own, *self.response["output"]]


class ResponseStore:
    """The most recently used responses. May be used from any thread."""

    def __init__(self, responses: int = MOST_RESPONSES, size: int = MOST_BYTES) -> None:
        self._most, self._size, self._room = responses, size, size
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Stored, int]] = OrderedDict()

    def put(self, stored: Stored) -> None:
        """Store a response with its whole conversation; the least recently used ones make room. A response larger than
        the whole store is not kept."""
        size = len(json.dumps([stored.response, [*stored.before, *stored.own]]))
        if size > self._size:
            return
        with self._lock:
            self._kept[stored.response["id"]] = stored, size
            self._room -= size
            while self._room < 0 or len(self._kept) > self._most:
                self._room += self._kept.popitem(last=False)[1][1]

    def get(self, id_: str, param: str | None = None) -> Stored:
        """Returns a response. Raises Problem if it is not stored."""
        with self._lock:
            if id_ in self._kept:
                self._kept.move_to_end(id_)
                return self._kept[id_][0]
        raise Problem(
            404,
            f"There is no response {shown(id_)}: it was not stored, or made room for others. Send the whole "
            "conversation.",
            param=param,
            code="previous_response_not_found" if param else "response_not_found",
        )

    def delete(self, id_: str) -> None:
        """Delete a response. Raises Problem if it is not stored."""
        self.get(id_)
        with self._lock:
            if entry := self._kept.pop(id_, None):
                self._room += entry[1]
