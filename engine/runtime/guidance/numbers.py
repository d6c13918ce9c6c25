"""Numbers in JSON that a model would write without an end: 19 digits before the point, 21 behind it, 2 of an exponent.

An integer of 64 bits has 19 digits and a double 17 that count, behind up to four zeros if it is written without an
exponent; what is written within these limits is read back as a finite number. A JSON Schema has no words for them, and
llguidance lets digits follow each other for ever.
"""

_MOST_DIGITS = 19
_MOST_BEHIND_POINT = 21
_MOST_OF_EXPONENT = 2


class Digits:
    """Counts the digits at the end of what was written."""

    __slots__ = ("_most", "_run")

    def __init__(self, run: int = 0, most: int = _MOST_DIGITS) -> None:
        self._run = run
        self._most = most

    def feed(self, data: bytes) -> None:
        """Count on behind these bytes."""
        if not data.isdigit():
            for byte in data:
                self._take(byte)
        else:
            self._run += len(data)

    def _take(self, byte: int) -> None:
        if 48 <= byte <= 57:
            self._run += 1
        elif byte in b"eE" and self._run:
            self._run, self._most = 0, _MOST_OF_EXPONENT
        elif byte == 46 and self._run:
            self._run, self._most = 0, _MOST_BEHIND_POINT
        elif not (byte in b"+-" and self._most == _MOST_OF_EXPONENT and not self._run):
            self._run, self._most = 0, _MOST_DIGITS

    @property
    def follows_digit(self) -> bool:
        """Whether the last byte was a digit."""
        return self._run > 0

    @property
    def are_many(self) -> bool:
        """Whether a number may have no more digits here."""
        return self._run >= self._most

    def copy(self) -> "Digits":
        """Returns an independent count at the same place."""
        return Digits(self._run, self._most)
