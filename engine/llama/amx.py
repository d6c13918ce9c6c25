"""Leaving AMX out: weights that are loaded afterwards are laid out for llama.cpp's other kernels."""

import ctypes
import threading
from itertools import takewhile
from typing import Any

from engine.support import threads

_NAME = b"AMX"  # of the layout: ggml-cpu/amx/amx.cpp
_CPU = 0  # enum ggml_backend_dev_type (ggml-backend.h)
_lock = threading.Lock()


@threads.after_fork
def _after_fork() -> None:
    """Replace the lock, which threads of the parent may hold."""
    global _lock  # noqa: PLW0603 - a process has one
    _lock = threading.Lock()


def leave_out_amx(dll: Any) -> None:
    """Leave AMX out in this process. `dll`: the library that llama_cpp has loaded. Nothing happens if it has no AMX.

    Whenever llama.cpp loads weights it asks `ggml_backend_dev_get_extra_bufts` (ggml-backend.h) for the layouts that
    this CPU has kernels for, and takes the first that fits a tensor. The reply is an array of ggml-cpu's own that ends
    with NULL: the entry for AMX is taken out of it. Weights that are laid out for AMX already go on as they are.
    """
    with _lock:
        layouts, name = _layouts(dll)
        kept = list(takewhile(bool, layouts or ()))  # an array in C, which ends with NULL
        if any(name(layout) == _NAME for layout in kept):
            for place, layout in enumerate([*(each for each in kept if name(each) != _NAME), None]):
                layouts[place] = layout


def _layouts(dll: Any) -> tuple[Any, Any]:
    """Returns the array of the CPU's extra buffer types, None if there is none, and the function that names one."""
    pointer = ctypes.c_void_p
    try:
        by_type = ctypes.CFUNCTYPE(pointer, ctypes.c_int)(("ggml_backend_dev_by_type", dll))
        registry = ctypes.CFUNCTYPE(pointer, pointer)(("ggml_backend_dev_backend_reg", dll))
        address = ctypes.CFUNCTYPE(pointer, pointer, ctypes.c_char_p)(("ggml_backend_reg_get_proc_address", dll))
        name = ctypes.CFUNCTYPE(ctypes.c_char_p, pointer)(("ggml_backend_buft_name", dll))
    except AttributeError:  # a library of the caller's may keep its symbols to itself
        return None, None
    device = by_type(_CPU)
    found = address(registry(device), b"ggml_backend_dev_get_extra_bufts") if device else None
    return (ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(found)(device) if found else None), name
