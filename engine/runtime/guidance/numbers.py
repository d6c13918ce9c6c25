"""Numbers in JSON that a model would write without an end: 19 digits before the point, 19 behind it, 2 of an exponent.

An integer of 64 bits has 19 digits and a double 17 that count; what is written within these limits is read back as a
finite number. A JSON Schema has no words for them, and llguidance lets digits follow each other for ever.
"""

_MOST_DIGITS = 19
_MOST_OF_EXPONENT = 2


class Digits:
    """Counts the digits at the end of what was written."""

    __slots__ = ("_exponent", "_run")

    def __init__(self, run: int = 0, *, exponent: bool = False) -> None:
        self._run = run
        self._exponent = exponent

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
            self._run, self._exponent = 0, True
        elif not (byte in b"+-" and self._exponent and not self._run):
            self._run, self._exponent = 0, False

    @property
    def are_many(self) -> bool:
        """Whether a number may have no more digits here."""
        return self._run >= (_MOST_OF_EXPONENT if self._exponent else _MOST_DIGITS)

    def copy(self) -> "Digits":
        """Returns an independent count at the same place."""
        return Digits(self._run, exponent=self._exponent)
