"""What belongs to the project, as git tells."""

import subprocess
from pathlib import Path


def tracked_files(root: Path) -> list[str]:
    """The files that git tracks, whatever else lies in the checkout: a second virtual environment, notes, models."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached"], cwd=root, capture_output=True, text=True, encoding="utf-8", check=True
    )
    return sorted(name for name in done.stdout.split("\0") if name and (root / name).is_file())
