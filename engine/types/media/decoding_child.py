"""The child process that decodes files of pictures and sounds, under limits that the system enforces.

An order is two frames: an object in JSON, `{"kind", "most", "seconds"}`, and the file. `most` pixels or samples are
left to its request; `seconds` bounds the processor time. The first order decides for which kind the child is.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import FileIO
from typing import Any

from engine.support.child import ends, read_frame, write_frame
from engine.support.errors import RequestError
from engine.support.limits import limit_resources, limit_time
from engine.types.media.decoding import DATA, DONE, LARGE, PIECE, REFUSAL

MEMORY = 3 << 29
"""Bytes of address space: 64 million pixels with transparency take a half of it while they are decoded."""
_LIMITS = {"AS": MEMORY, "CORE": 0, "FSIZE": 0, "NOFILE": 0, "NPROC": 0}
_LONGEST_REFUSAL = 2000


def main() -> int:
    """Serve one parent until it closes the connection."""
    orders, answers = ends()
    limited = False
    while True:
        try:
            order: dict[str, Any] = json.loads(read_frame(orders))
            data = read_frame(orders)
        except EOFError:
            return 0
        decode = _samples if order["kind"] == "audio" else partial(_pixels, order["kind"] == "large image")
        if not limited:
            _import_all(order["kind"])
            limit_resources(**_LIMITS)
            limited = True
        limit_time(order["seconds"])
        try:
            for frame in decode(data, order["most"]):
                write_frame(answers, frame)
        except MemoryError:
            _refuse(answers, f"the {order['kind']} takes too much memory to decode; make it smaller, or save it anew.")
            return 0
        except RequestError as error:
            _refuse(answers, str(error))


def _refuse(answers: FileIO, why: str) -> None:
    write_frame(answers, REFUSAL + why[:_LONGEST_REFUSAL].encode(errors="replace"))


def _pixels(takes_large: bool, data: bytes, most: int) -> Iterator[bytes]:
    from engine.types.media.image import decoded

    if (found := decoded(data, most, takes_large=takes_large)) is None:
        yield LARGE
        return
    width, height, rgb, pixels = found
    for start in range(0, len(rgb), PIECE):
        yield DATA + rgb[start : start + PIECE]
    yield DONE + json.dumps({"width": width, "height": height, "pixels": pixels}).encode()


def _samples(data: bytes, most: int) -> Iterator[bytes]:
    from engine.types.media.audio import decoded

    rate, blocks = decoded(data, most)
    for block in blocks:
        yield DATA + block.tobytes()
    yield DONE + json.dumps({"rate": rate}).encode()


def _import_all(kind: str) -> None:
    """Import what the libraries import late: a child may open no file."""
    with suppress(ImportError, OSError, RequestError):  # the decode says what is missing
        if kind != "audio":
            import PIL.Image

            PIL.Image.init()
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = "1"  # each of numpy's threads takes address space
            import soundfile  # pyright: ignore[reportMissingImports, reportMissingTypeStubs, reportUnusedImport]  # noqa: F401
