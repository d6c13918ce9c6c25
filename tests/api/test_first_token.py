"""What a program does until its first token."""

import subprocess
import sys
from pathlib import Path

import pytest

LOADED = """
import sys
from engine import Engine

with Engine.load(sys.argv[1], n_ctx=256, n_threads=1, preflight=False, trust_template=True) as llm:
    llm.chat("Hello", max_tokens=1)
print(*sys.modules)
"""


@pytest.mark.parametrize("unneeded", [{"jsonschema", "referencing", "llguidance", "huggingface_hub", "mcp", "openai"}])
def test_a_load_imports_no_more_than_it_needs(builtin_model_path: Path, unneeded: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(builtin_model_path)], capture_output=True, text=True, check=True
    )
    assert unneeded & set(done.stdout.split()) == set()
