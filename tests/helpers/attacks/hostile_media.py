"""Pictures and sounds as strangers may send them: damaged, lying about their sizes, bombs. Run as a program, it decodes
all of them and prints one line of JSON: how many were refused, how many decoded, what else happened, and what it cost.
"""

import io
import json
import random
import resource
import struct
import sys
import time
import zlib
from collections.abc import Iterator

import numpy as np
import PIL.Image

from engine.support.errors import RequestError
from engine.types.media import Audio, Image

SEED = 36


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (31, 17), **options: object) -> bytes:
    """A file of noise that Pillow wrote."""
    noise = np.random.default_rng(SEED).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(noise).convert(mode).save(file, kind, **options)
    return file.getvalue()


def sound(kind: str, seconds: float = 0.2, rate: int = 8000) -> bytes:
    """A file of a tone that soundfile wrote."""
    import soundfile  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]

    file = io.BytesIO()
    tone = np.sin(np.arange(int(seconds * rate)) / 5).astype(np.float32) / 2
    soundfile.write(file, tone, rate, format=kind)  # pyright: ignore[reportUnknownMemberType]
    return file.getvalue()


def wav(
    data: bytes, tag: int = 1, channels: int = 1, rate: int = 8000, bits: int = 16, *, size: int | None = None
) -> bytes:
    """A WAV file that says what it is told to."""
    frame = channels * bits // 8
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, tag, channels, rate, rate * frame & 0xFFFFFFFF, frame & 0xFFFF, bits)
    body = form + struct.pack("<4sI", b"data", len(data) if size is None else size) + data
    return struct.pack("<4sI4s", b"RIFF", 4 + len(body), b"WAVE") + body


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *more: bytes) -> bytes:
    """A PNG file that says what it is told to."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    data = png_chunk(b"IDAT", zlib.compress(rows, 9))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + data + png_chunk(b"IEND", b"")


def many_scans(times: int) -> bytes:
    """A progressive JPEG of 25 million pixels whose last scan comes again and again."""
    file = picture("JPEG", size=(64, 64), progressive=True)
    start = file.rindex(b"\xff\xda")
    frame = file.index(b"\xff\xc2")
    large = file[: frame + 5] + struct.pack(">HH", 5000, 5000) + file[frame + 9 : start]
    return large + file[start:-2] * times + b"\xff\xd9"


def whole() -> dict[str, bytes]:
    """Files without a fault, by name."""
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    frames = [PIL.Image.new("RGB", (31, 17), (number, 9, 9)) for number in range(30)]
    animated = io.BytesIO()
    frames[0].save(animated, "GIF", save_all=True, append_images=frames[1:])
    return {
        "png": picture("PNG"),
        "png, palette": picture("PNG", "P"),
        "png, 1 bit": picture("PNG", "1"),
        "jpeg": picture("JPEG", exif=exif),
        "jpeg, progressive": picture("JPEG", progressive=True),
        "jpeg, cmyk": picture("JPEG", "CMYK"),
        "webp": picture("WEBP"),
        "gif": picture("GIF", "P"),
        "gif, animated": animated.getvalue(),
        "bmp": picture("BMP"),
        "wav": wav(bytes(range(256)) * 4),
        "wav, float": wav(np.sin(np.arange(400)).astype("<f4").tobytes(), 3, bits=32),
        "flac": sound("FLAC"),
        "ogg": sound("OGG"),
        "mp3": sound("MP3"),
    }


def lies() -> Iterator[tuple[str, bytes]]:
    """Files whose headers promise what is not there, or what no one should unpack."""
    for width, height in ((0, 4), (4, 0), (60_000, 60_000), (2**31 - 1, 2**31 - 1), (64_000_001, 1), (2**31, 1)):
        yield f"png of {width}x{height}", png(width, height, 8, 2, b"\0" * 64)
    yield "png, 8000x8001 black", png(8000, 8001, 8, 0, b"\0" * 8001 * 8001)
    yield "png, 8000x8000 black", png(8000, 8000, 8, 0, b"\0" * 8000 * 8001)
    bomb = zlib.compress(b"A" * (200 << 20), 9)
    yield "png, text bomb", png(1, 1, 8, 2, b"\0" * 4, png_chunk(b"zTXt", b"k\0\0" + bomb))
    yield "png, profile bomb", png(1, 1, 8, 2, b"\0" * 4, png_chunk(b"iCCP", b"k\0\0" + bomb))
    yield "png, data bomb", png(1, 1, 8, 2, b"\0" * (200 << 20))
    file = whole()
    for size in (0, 0x7FFFFFFF, 0xFFFFFFFF):
        at = file["png"].index(b"IDAT")
        yield f"png, chunk of {size}", file["png"][: at - 4] + struct.pack(">I", size) + file["png"][at:]
    for size in (0, 0xFFFF):
        pair = struct.pack("<HH", size, size)
        yield f"gif of {size}", file["gif"][:6] + pair + file["gif"][10:]
        frame = file["jpeg"].index(b"\xff\xc0")
        yield f"jpeg of {size}", file["jpeg"][: frame + 5] + struct.pack(">HH", size, size) + file["jpeg"][frame + 9 :]
        yield f"webp of {size}", file["webp"][:26] + pair + file["webp"][30:]
    for size in (0, -1, 2**31 - 1, -(2**31)):
        yield f"bmp of {size}", file["bmp"][:18] + struct.pack("<ii", size, size) + file["bmp"][26:]
    yield "jpeg of 20,000 scans", many_scans(20_000)
    yield "jpeg of 60 scans", many_scans(60)
    noise = random.Random(SEED).randbytes(4000)
    yield "jpeg, broken exif", picture("JPEG", exif=b"Exif\0\0" + noise)
    yield from sounds_that_lie()


def sounds_that_lie() -> Iterator[tuple[str, bytes]]:
    tone = bytes(range(256)) * 4
    for name, file in (
        ("empty", wav(b"")),
        ("no channels", wav(tone, channels=0)),
        ("65,535 channels", wav(tone, channels=65_535)),
        ("no rate", wav(tone, rate=0)),
        ("a rate of 4 GHz", wav(tone, rate=2**32 - 1)),
        ("12 bits", wav(tone, bits=12)),
        ("no bits", wav(tone, bits=0)),
        ("mu-law", wav(tone, tag=7, bits=8)),
        ("data of 4 GiB", wav(tone, size=0xFFFFFFFF)),
        ("no data", wav(tone).replace(b"data", b"junk")),
        ("no format", wav(tone).replace(b"fmt ", b"junk")),
        ("NaN", wav(np.full(64, np.nan, "<f4").tobytes(), 3, bits=32)),
        ("infinity", wav(np.full(64, np.inf, "<f8").tobytes(), 3, bits=64)),
        ("31 minutes", wav(bytes(31 * 60 * 1000), rate=1000, bits=8)),
    ):
        yield f"wav, {name}", file
    flac = bytearray(sound("FLAC"))
    flac[21:26] = b"\x0f\xff\xff\xff\xff"  # 2**36 samples in the stream's header
    yield "flac of 2**36 samples", bytes(flac)
    yield "mp3 of headers only", b"\xff\xfb\x90\x00" * 5000
    yield "ogg of pages only", b"OggS" * 5000


def mutants() -> Iterator[tuple[str, bytes]]:
    """Every file: the whole ones cut, with flipped bytes, with parts of each other; noise; and those that lie."""
    chance = random.Random(SEED)
    yield from lies()
    files = whole()
    for name, file in files.items():
        for _ in range(7):
            yield f"{name}, cut", file[: chance.randrange(len(file))]
        for count in (1, 1, 2, 4, 8, 16, 32, 64):
            data = bytearray(file)
            for _ in range(count):
                data[chance.randrange(len(data))] = chance.randrange(256)
            yield f"{name}, {count} bytes changed", bytes(data)
        for _ in range(3):
            other, at = files[chance.choice(list(files))], chance.randrange(len(file))
            yield f"{name}, spliced", file[:at] + other[chance.randrange(len(other)) :]
        yield f"{name}, noise behind its head", file[:12] + chance.randbytes(3000)
        yield f"{name}, doubled", file + file
    for size in (0, 1, 3, 4, 100, 10_000):
        yield f"noise of {size} bytes", chance.randbytes(size)


def main() -> None:
    counts = {"refused": 0, "decoded": 0}
    odd: list[str] = []
    slowest = (0.0, "")
    for name, file in mutants():
        kind = Audio if name.split()[0].strip(",") in ("wav", "flac", "ogg", "mp3") else Image
        began = time.perf_counter()
        try:
            decoded = kind(file)
            size = decoded.width * decoded.height * 3 if isinstance(decoded, Image) else len(decoded.samples)
            held = len(decoded.rgb) if isinstance(decoded, Image) else len(decoded.samples)
            counts["decoded" if size == held > 0 else "wrong"] += 1
        except RequestError:
            counts["refused"] += 1
        except Exception as error:  # noqa: BLE001 - this is what must not happen
            odd.append(f"{name}: {error!r}")
        slowest = max(slowest, (time.perf_counter() - began, name))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    sys.stdout.write(json.dumps({**counts, "odd": odd, "slowest": slowest, "peak_mib": peak}) + "\n")


if __name__ == "__main__":
    main()
