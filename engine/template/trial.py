"""A chat template from a stranger is rendered once in a child process, under limits that the system enforces.

Knows: how to start the child, what it may use, and how to remember a template that passed. Does not know: where such
memories are kept (the caller says), families. The budget in `engine.template.limits` stops every hostile template that
we know of; this stops the others before they run in the caller's process.
"""

import hashlib
import json
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.errors import EngineWarning, TemplateError

SECONDS = 20
"""How long the child may take: a template takes milliseconds, starting Python on a busy machine some seconds."""
_MEMORY = 1 << 30


def try_template(
    source: str,
    fixed: Mapping[str, str],
    passed: Path,
    *,
    command: Sequence[str] | None = None,
    seconds: float = SECONDS,
) -> None:
    """Render the template's probes in a child process, unless one with this fingerprint has passed before.

    `fixed` are the variables of every render; `passed` is a directory where passing fingerprints are kept; `command`
    starts the child (this interpreter, if None). Raises TemplateError when the child runs out of time or memory, or
    dies. Where no child can be started, one warning.
    """
    record = passed / hashlib.sha256(source.encode()).hexdigest()
    if record.is_file():
        return
    child = _run(command or _interpreter(), json.dumps({"source": source, "fixed": dict(fixed)}), seconds)
    if child is None:
        return
    if child.returncode != 0:
        last = child.stderr.strip().rpartition("\n")[2] or f"exit status {child.returncode}"
        raise TemplateError(
            f"The chat template failed in a trial: {last}. Do not trust this model file; pass another template with "
            "chat_template=."
        )
    passed.mkdir(parents=True, exist_ok=True)
    record.touch()


def _interpreter() -> list[str]:
    if not sys.executable or getattr(sys, "frozen", False):
        return []
    return [sys.executable, "-m", "engine.template.trial"]


def _run(command: Sequence[str], request: str, seconds: float) -> subprocess.CompletedProcess[str] | None:
    try:
        if not command:
            raise OSError("this program has no Python interpreter of its own")
        return subprocess.run(command, input=request, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise TemplateError(
            f"The chat template did not finish within {seconds:g} seconds in a trial. Do not trust this model file; "
            "pass another template with chat_template=."
        ) from error
    except OSError as error:
        text = f"The chat template could not be tried in a child process ({error}); its step budget must do."
        warnings.warn(text, EngineWarning, stacklevel=4)
        return None


def _limit() -> None:
    """Bound this process's memory and CPU time, where the system can."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> int:
    """The child: read the request from standard input, render the probes, say on standard error what went wrong."""
    from engine.template.capabilities import probe
    from engine.template.env import Template

    request = json.load(sys.stdin)
    _limit()
    try:
        probe(Template(request["source"]), request["fixed"])
    except TemplateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except MemoryError:
        sys.stderr.write("it used more memory than a template may\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
