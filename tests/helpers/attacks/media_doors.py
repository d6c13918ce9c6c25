"""Pictures and sounds of a stranger at every door of the engine: files of few bytes that unpack to much, one, a few or
many in one request, with and without a projector.

Run as a program, it asks all of them and writes a line of JSON for each: `door`, `kind`, `projector`, `count`, what was
`said`, the seconds, and the MiB that this process and its decoding child took more than before.
"""

import argparse
import base64
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import pytest
from attacks.hostile_media import png, wav
from fakes.picture_server import Pictures, answer, serving
from fakes.scripts import VOCAB, said

from engine import ChatTemplate, Engine, EngineError, MediaUrls, as_tool, batch
from engine.openai import OpenAI
from engine.runtime.loop.config import LoopOptions
from engine.runtime.media.media import MediaChunk, PromptPart
from engine.testing.scripted import ScriptedBackend
from engine.tools import ToolOutcome
from engine.types.media import EncodedMedia, Media, MediaKind, decoding

SIDE = 8000
KINDS = ("WEBP", "PNG", "JPEG", "GIF", "BMP", "FLAC", "OGG", "MP3", "WAV")
SOUNDS = ("FLAC", "OGG", "MP3", "WAV")


class Takes:
    """A projector of the scripted backend that takes both kinds: each is a unit of nine rows."""

    kinds: frozenset[MediaKind] = frozenset({"image", "audio"})

    def read(self, media: Media) -> Sequence[PromptPart]:
        return (MediaChunk(media.digest, 9, 9, True),)

    def encode(self, unit: MediaChunk) -> Any:
        return np.zeros((unit.rows, 1), np.float32)


@cache
def bomb(kind: str) -> bytes:
    """A file of a picture of one colour, or of half an hour of silence; a small one where nothing is packed."""
    file = io.BytesIO()
    if kind == "WAV":
        return wav(bytes(1 << 20), rate=48_000, bits=8)
    if kind in SOUNDS:
        import soundfile  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]

        rate = 44_100 if kind == "MP3" else 48_000
        with soundfile.SoundFile(file, "w", rate, 1, format=kind) as sound:
            for _ in range(30 * 60 - 1):  # a second at a time: libsndfile's encoder of Vorbis crashes over much more
                sound.write(np.zeros(rate, np.float32))  # pyright: ignore[reportUnknownMemberType]
        return file.getvalue()
    if kind == "PNG":
        return png(SIDE, SIDE, 1, 0, bytes(SIDE * (SIDE // 8 + 1)))
    side = SIDE // 4 if kind == "BMP" else SIDE
    PIL.Image.new("1" if kind == "BMP" else "L", (side, side)).save(file, kind, lossless=True)
    return file.getvalue()


def engine(*replies: str, projector: bool) -> Engine:
    backend = ScriptedBackend(list(replies), vocab=VOCAB, projector=Takes() if projector else None)
    template = ChatTemplate(None, family="qwen3", control_tokens=VOCAB.control_tokens)
    return Engine.over(
        backend, template, options=LoopOptions(media_urls=MediaUrls(max_links=100) if projector else None)
    )


class Asked(NamedTuple):
    """Files in one request. `server`: where links to them lead."""

    files: Sequence[bytes]
    kind: str
    server: Pictures

    def part(self, file: bytes, *, responses: bool = False) -> dict[str, Any]:
        data = base64.b64encode(file).decode()
        if self.kind in SOUNDS:
            return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        url = f"data:image/png;base64,{data}"
        return (
            {"type": "input_image", "image_url": url} if responses else {"type": "image_url", "image_url": {"url": url}}
        )

    def messages(self) -> list[Any]:
        return [{"role": "user", "content": [self.part(file) for file in self.files]}]


def python(llm: Engine, asked: Asked) -> str:
    return llm.chat(asked.messages()).content


def chat(llm: Engine, asked: Asked) -> str:
    client = OpenAI(llm)
    return str(client.chat.completions.create(model="m", messages=asked.messages()).choices[0].message.content)


def responses(llm: Engine, asked: Asked) -> str:
    parts: Any = [asked.part(file, responses=True) for file in asked.files]
    return OpenAI(llm).responses.create(model="m", input=[{"role": "user", "content": parts}]).output_text


def row(llm: Engine, asked: Asked) -> str:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        batch.run([{"messages": asked.messages()}], out, llm, quiet=True)
        return "".join(path.read_text(encoding="utf-8") for path in Path(folder).iterdir() if path.is_file())


def tool(llm: Engine, asked: Asked) -> str:
    kind: MediaKind = "audio" if asked.kind in SOUNDS else "image"
    parts = tuple(EncodedMedia(kind, base64.b64encode(file).decode(), "a bomb") for file in asked.files)

    def look() -> ToolOutcome:
        """Looks."""
        return ToolOutcome("seen", parts=parts)

    run = llm.run("Look.", [as_tool(look)])
    results = "".join(message.content or "" for message in run.messages if message.role == "tool")
    return f"{run.completion.content} {results[-200:]}"


def link(llm: Engine, asked: Asked) -> str:
    parts: list[Any] = []
    for number, file in enumerate(asked.files):
        asked.server.replies[f"/{number}"] = lambda _, file=file: [answer(file)]
        parts.append({"type": "image_url", "image_url": {"url": f"http://pictures.example/{number}"}})
    return llm.chat([{"role": "user", "content": parts}]).content


DOORS: dict[str, Callable[[Engine, Asked], str]] = {
    "python": python,
    "chat": chat,
    "responses": responses,
    "batch": row,
    "tool": tool,
    "link": link,
}


def ask(door: str, kind: str, count: int, *, projector: bool, server: Pictures) -> str:
    """Returns the answer of an engine to so many files of a kind, or its error."""
    replies = (said("look"), "Done.") if door == "tool" else ("Done.",)
    with engine(*replies, projector=projector) as llm:
        try:
            return DOORS[door](llm, Asked([bomb(kind)] * count, kind, server))
        except EngineError as error:
            return str(error)
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "openai":
                raise
            return str(error)


def cells(kinds: Sequence[str], doors: Sequence[str], counts: Sequence[int]) -> Iterator[tuple[str, str, bool, int]]:
    for door in doors:
        for kind in kinds:
            if door == "link" and kind in SOUNDS:
                continue
            for projector in (False, True):
                for count in counts:
                    yield door, kind, projector, count


def _peak(pid: int | str) -> float:
    """Returns the most MiB that a process has held since `_forget`; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def _forget(pid: int | str) -> None:
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def _children() -> list[int]:
    return [child.process.pid for child in decoding._children.values() if child.alive]  # pyright: ignore[reportPrivateUsage]


def measured(door: str, kind: str, projector: bool, count: int, server: Pictures) -> dict[str, Any]:
    bomb(kind)
    for pid in ("self", *_children()):
        _forget(pid)
    before, began = _peak("self"), time.perf_counter()
    answered = ask(door, kind, count, projector=projector, server=server)
    seconds = time.perf_counter() - began
    return {
        "door": door,
        "kind": kind,
        "projector": projector,
        "count": count,
        "seconds": round(seconds, 2),
        "mib": round(_peak("self") - before),
        "child_mib": round(max(map(_peak, _children()), default=0)),
        "said": answered[-160:],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--doors", nargs="+", default=list(DOORS))
    parser.add_argument("--counts", nargs="+", type=int, default=(1, 16, 100))
    options = parser.parse_args()
    with pytest.MonkeyPatch.context() as patch, serving(patch) as server:
        for door in options.doors:
            ask(door, "PNG", 0, projector=True, server=server)  # imports
        for door, kind, projector, count in cells(options.kinds, options.doors, options.counts):
            found = measured(door, kind, projector, count, server)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
