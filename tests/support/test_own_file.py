"""Files where strangers may have left something: bounded, and regular."""

from pathlib import Path

import pytest

from engine.support.own_file import read_regular


def test_a_regular_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10)
    assert read_regular(path, 10) == b"x" * 10
    with pytest.raises(ValueError, match="more than 9 bytes"):
        read_regular(path, 9)
    with pytest.raises(OSError, match=r"not a regular file|directory"):
        read_regular(tmp_path, 9)
    with pytest.raises(ValueError, match="null"):
        read_regular(Path("\0"), 9)
