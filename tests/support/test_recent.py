"""engine.support.recent: what is remembered has a bound in bytes."""

import pytest

from engine.support.recent import characters, recent


def test_it_holds_as_many_bytes_as_it_may() -> None:
    asked: list[str] = []

    @recent(10_000, characters)
    def shout(text: str) -> str:
        asked.append(text)
        return text.upper()

    for number in range(100):
        assert shout(f"{number}{'x' * 200}") == f"{number}{'X' * 200}"
    assert len(asked) == 100
    asked.clear()
    for number in reversed(range(100)):
        shout(f"{number}{'x' * 200}")
    assert 90 < len(asked) < 100, "the last few were known"


def test_what_is_large_is_not_kept() -> None:
    asked: list[str] = []

    @recent(100_000, characters)
    def read(text: str) -> int:
        asked.append(text)
        return len(text)

    for _ in range(3):
        assert read("small") == 5
        assert read("x" * 10_000) == 10_000
    assert len(asked) == 4


def _eight(_: int) -> int:
    return 8


def test_what_raises_leaves_nothing() -> None:
    asked: list[int] = []

    @recent(10_000, _eight)
    def half(number: int) -> int:
        asked.append(number)
        if number % 2:
            raise ValueError(number)
        return number // 2

    for _ in range(2):
        assert half(4) == 2
        with pytest.raises(ValueError, match="3"):
            half(3)
    assert asked == [4, 3, 3]
