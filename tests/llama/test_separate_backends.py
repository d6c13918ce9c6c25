"""A library that keeps what computes in separate files beside it, as a wheel for any processor does."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.llama.lib import _load_backends  # pyright: ignore[reportPrivateUsage]
from engine.support.errors import EngineError

COMPILER = shutil.which("cc") or shutil.which("gcc")
CODE = """
#include <stdio.h>
#include <stddef.h>
static size_t loaded = 0;
size_t ggml_backend_dev_count(void) { return loaded; }
void ggml_backend_load_all_from_path(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/libggml-cpu-any.so", folder);
    FILE *file = fopen(path, "r");
    if (file) { loaded = 1; fclose(file); }
}
"""


@pytest.fixture
def module(tmp_path: Path) -> Any:
    """llama_cpp's module of functions over such a library."""
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "ggml.c").write_text(CODE, encoding="utf-8")
    library = tmp_path / "libllama.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, tmp_path / "ggml.c"], check=True)
    return SimpleNamespace(_lib=ctypes.CDLL(str(library)))


def test_the_backends_beside_the_library_are_loaded(module: Any, tmp_path: Path) -> None:
    (tmp_path / "libggml-cpu-any.so").touch()
    _load_backends(module, None)
    assert module._lib.ggml_backend_dev_count() == 1


def test_a_library_without_any_backend_is_refused(module: Any) -> None:
    with pytest.raises(EngineError, match=r"has none that can be loaded\. Install it again"):
        _load_backends(module, None)
