"""Follows a JSON text while a model writes it: what is open, for how long, and which keys each open object has."""

from collections.abc import Collection
from dataclasses import dataclass, field

_QUOTE, _ESCAPE = b'"\\'
_OBJECT, _LIST = b"{["


@dataclass(slots=True)
class _Open:
    """An object or a list that is open, since byte `start`. `keys`: those of an object; None for a list."""

    start: int
    keys: set[bytes] | None


@dataclass(slots=True)
class JsonPlace:
    """A place in a JSON text. `in_string`: inside a string; `doubled`: how many keys their object had already."""

    in_string: bool = False
    doubled: int = 0
    _escaped: bool = False
    _open: list[_Open] = field(default_factory=list["_Open"])
    _key: bytes | None = None
    """What was written of the key at hand."""
    _wants_key: bool = False
    _size: int = 0
    _string_start: int = 0
    _last: int = 0

    @property
    def escaped(self) -> bool:
        """Whether the last byte was a backslash that escapes the next."""
        return self._escaped

    @property
    def is_open(self) -> bool:
        """Whether a string, an object or a list is open."""
        return self.in_string or bool(self._open)

    @property
    def run(self) -> int:
        """The bytes of what could be closed here: the list at hand, else the string, else the object. 0 in a key, and
        behind a comma or a colon."""
        if self._key is not None or (not self.in_string and self._last in b",:"):
            return 0
        in_list = bool(self._open) and self._open[-1].keys is None
        return self._size - (self._string_start if self.in_string and not in_list else self._open[-1].start)

    @property
    def begins_text(self) -> bool:
        """Whether the last byte was the quote that opens a text, no key."""
        return self.in_string and self._key is None and self._size == self._string_start

    def feed(self, data: bytes) -> None:
        """Read on."""
        if self.in_string and self._key is None and not self._escaped and not {*data} & {_QUOTE, _ESCAPE}:
            self._size += len(data)
            return
        for byte in data:
            self._size += 1
            if self.in_string:
                self._take_of_string(byte)
            elif byte not in b" \t\r\n":
                self._take(byte)

    def _take_of_string(self, byte: int) -> None:
        ends = byte == _QUOTE and not self._escaped
        self._escaped = byte == _ESCAPE and not self._escaped
        if not ends:
            self._key = None if self._key is None else self._key + bytes([byte])
            return
        if self._key is not None and self._open and (keys := self._open[-1].keys) is not None:
            self.doubled += self._key in keys
            keys.add(self._key)
        self.in_string, self._key, self._wants_key, self._last = False, None, False, byte

    def _take(self, byte: int) -> None:
        self._last = byte
        if byte == _QUOTE:
            self.in_string, self._key, self._string_start = True, b"" if self._wants_key else None, self._size
        elif byte in (_OBJECT, _LIST):
            self._open.append(_Open(self._size, set() if byte == _OBJECT else None))
            self._wants_key = byte == _OBJECT
        elif byte in b"]}" and self._open:
            self._open.pop()
            self._wants_key = False
        elif byte in b",":
            self._wants_key = bool(self._open) and self._open[-1].keys is not None

    def taken(self) -> list[bytes]:
        """Returns what would end the key that is being written as one that its object has already: the rest of that
        key and the quote."""
        if self._key is None or not self._open:
            return []
        begun = self._key
        return [key[len(begun) :] + b'"' for key in self._open[-1].keys or () if key.startswith(begun)]

    @property
    def known(self) -> Collection[bytes]:
        """The keys of the object at hand, where its next key may begin; none elsewhere."""
        begins = self._wants_key and not self.in_string and bool(self._open)
        return (self._open[-1].keys or ()) if begins else ()

    def doubles(self, data: bytes) -> bool:
        """Whether these bytes would end a key that its object has already."""
        then = self.copy()
        then.feed(data)
        return then.doubled > self.doubled

    def copy(self) -> "JsonPlace":
        """Returns an independent one at the same place."""
        opened = [_Open(each.start, None if each.keys is None else set(each.keys)) for each in self._open]
        return JsonPlace(
            self.in_string,
            self.doubled,
            self._escaped,
            opened,
            self._key,
            self._wants_key,
            self._size,
            self._string_start,
            self._last,
        )
