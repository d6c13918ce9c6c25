"""Pictures and sounds of strangers: each is refused by name or decoded, in bounded time and memory, without a crash."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from attacks import hostile_media

SECONDS = 30  # for the slowest file; on a quiet machine it takes one
PEAK = 1500  # MiB, with the files themselves, two bombs of 200 MiB among them


def test_no_file_of_a_stranger_does_more_than_it_may(
    repository: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    program = Path(hostile_media.__file__)
    code = "import sys; sys.path[:0] = sys.argv[1:]; from attacks import hostile_media; hostile_media.main()"
    command = [sys.executable, "-W", "ignore", "-c", code, str(repository), str(program.parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["odd"] == []
    assert found.get("wrong", 0) == 0
    assert found["refused"] + found["decoded"] >= 300
    assert found["refused"] > 150
    assert found["decoded"] > 50, "damage that leaves pixels is no reason to refuse"
    assert found["slowest"][0] < SECONDS, found["slowest"]
    assert found["peak_mib"] < PEAK
    record_testsuite_property("hostile media", found)
