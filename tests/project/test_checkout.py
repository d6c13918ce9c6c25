"""What the tests take for the project's files."""

import subprocess
from pathlib import Path

from checkout import tracked_files


def test_what_git_does_not_track_is_none_of_the_projects_files(tmp_path: Path) -> None:
    for name in ("code.py", "env2/lib/site.py", "gone.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "code.py", "gone.py"], cwd=tmp_path, check=True)
    (tmp_path / "gone.py").unlink()
    assert tracked_files(tmp_path) == ["code.py"]
