"""`Image`: decoded once into pixels that never change.

Files are decoded by Pillow only, in a child process, never by llama.cpp: formats by name, the size checked before
anything is unpacked. Source: "Portable Network Graphics (PNG) Specification".
"""

import struct
import sys
import zlib
from collections.abc import Callable
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, cast

from engine.support.errors import RequestError
from engine.types.media.budget import MOST_PIXELS, MediaBudget, too_many
from engine.types.media.decoding import pixels_of
from engine.types.media.on_demand import OnDemand
from engine.types.media.source import Encoded, array_of, bytes_of, damaged, data_url_of, missing

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image as PillowImage

MOST_SHOWN = 16_000_000
"""The most pixels that a file is decoded to: no projector looks at as many, and a photo has 12 million."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_SHOWN = 512  # pixels of the longer side of a picture in a page

# A scan of a progressive JPEG takes ten bytes and goes through every pixel: usual files have ten scans.
_MOST_SCANNED = 64 * MOST_PIXELS
_ORIENTATION = 0x0112  # the tag of EXIF
_COLOURS = frozenset({"1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV"})
_ALPHA = frozenset({"RGBA", "LA", "PA", "RGBa", "La"})
_SIXTEEN = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N"})

_MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM")  # and RIFF....WEBP

ImageSource: TypeAlias = "str | Path | bytes | Image | PillowImage | NDArray[Any]"


class Image(OnDemand["_Pixels"]):
    """A picture: `width` x `height` pixels in RGB, eight bits each. Immutable; equal if the pixels are.

    source: a path; the bytes of a PNG, JPEG, WEBP, GIF or BMP file, or a `data:` URL of one; a Pillow image; a NumPy
        array of shape (height, width), (height, width, 1), (.., 3) or (.., 4), uint8 or float from 0 to 1.

    A picture is turned as its EXIF data says; what is transparent becomes white; of 16 bits the upper eight stay; of an
    animation the first frame. A file of more than 16 million pixels is scaled down to them. Raises RequestError for
    what is none of these, is damaged, has no pixels or more than 64 million, or more than 64 MiB of bytes, or takes too
    long to decode; and if Pillow is needed and missing.

    What came over the wire is decoded when a model takes it, or when its pixels are first asked for, which then raises
    RequestError.
    """

    __slots__ = ()

    def __init__(self, source: ImageSource) -> None:
        self._content: _Pixels | Encoded = source._decoded if isinstance(source, Image) else _pixels(source)
        self._sent = False

    @classmethod
    def undecoded(cls, file: Encoded) -> Self:
        """Returns the picture of a file that came over the wire. Raises RequestError for one of another format, or of
        too many bytes."""
        file.check_size()
        if not (file.head.startswith(_MAGIC) or (file.head[:4], file.head[8:12]) == (b"RIFF", b"WEBP")):
            raise _unknown(file.size)
        return cls._over_the_wire(file)

    @classmethod
    def sent(cls, data: bytes, budget: MediaBudget) -> Self:
        """Returns the picture of a file that came over the wire, decoded within what is left of the budget. Raises
        RequestError as `decode` does."""
        budget.take("parts")
        budget.take("bytes", len(data))
        return cls._over_the_wire(_of_file(data, budget))

    def _read(self, data: bytes, budget: MediaBudget) -> "_Pixels":
        return _of_file(data, budget)

    def count(self, budget: MediaBudget) -> None:
        """Count a picture that came over the wire and was decoded before."""
        if self._sent and self.is_decoded:
            budget.hold("pixels", self.width * self.height)

    @property
    def kind(self) -> Literal["image"]:
        return "image"

    @property
    def width(self) -> int:
        return self._decoded.width

    @property
    def height(self) -> int:
        return self._decoded.height

    @property
    def rgb(self) -> bytes:
        """The pixels row by row, three bytes each."""
        return self._decoded.rgb

    def _measure(self) -> str:
        return f"{self.width}x{self.height}"

    def png(self) -> bytes:
        """Returns the picture as a PNG file."""
        return _png(self.width, self.height, self.rgb)

    def data_url(self) -> str:
        """Returns the picture as the `data:` URL of a PNG file."""
        return data_url_of("image/png", self.png())

    def preview(self) -> str:
        """Returns the `data:` URL of the picture, scaled down to 512 pixels on its longer side if it is larger."""
        width, height, rgb, _ = self._decoded
        step = -(-max(width, height) // _SHOWN)
        if step == 1:
            return self.data_url()
        import numpy as np

        # The means of squares of pixels; of a side shorter than a square, of what is there.
        high, wide = min(step, height), min(step, width)
        rows, columns = height // high, width // wide
        pixels = np.frombuffer(rgb, np.uint8).reshape(height, width, 3)
        squares = pixels[: rows * high, : columns * wide].reshape(rows, high, columns, wide, 3)
        means = squares.mean((1, 3), dtype=np.float32).astype(np.uint8)
        return data_url_of("image/png", _png(columns, rows, means.tobytes()))

    def _repr_html_(self) -> str:
        return f'<img src="{self.preview()}" alt="{self.about}" style="max-width:100%">'

    def __repr__(self) -> str:
        return f"<Image{self.about.removeprefix('image')} {self.identity.hex()[:8]}>"


class _Pixels(NamedTuple):
    width: int
    height: int
    rgb: bytes
    digest: bytes


def _pixels(source: object) -> _Pixels:
    """Returns the pixels of any source but an `Image`. Raises RequestError."""
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(source, pillow.Image):
        image = cast("PillowImage", source)
        return _told(*_guarded(lambda: _converted(image)))
    if (array := array_of(source)) is not None:
        return _told(*_array_pixels(array))
    if (data := bytes_of(source)) is None:
        raise RequestError(
            f"a {type(source).__name__} is no source of an image; give a path, bytes, a data: URL, a Pillow image or a "
            "NumPy array."
        )
    return _of_file(data, MediaBudget())


def _told(width: int, height: int, rgb: bytes) -> _Pixels:
    found = sha256(b"image %d %d " % (width, height))
    found.update(rgb)
    return _Pixels(width, height, rgb, found.digest())


def _of_file(data: bytes, budget: MediaBudget) -> _Pixels:
    if find_spec("PIL") is None:
        raise missing("Pillow", "images")
    return _told(*pixels_of(data, budget))


def _unknown(size: int) -> RequestError:
    return RequestError(
        f"the image of {size:,} bytes is none of {', '.join(FORMATS)}, or is damaged; convert it first."
    )


def decoded(data: bytes, most: int, *, takes_large: bool) -> tuple[int, int, bytes, int] | None:
    """In a child: return the width, height and RGB of a picture's file, and how many pixels it has; `most` are left to
    its request. None, unless the child `takes_large` ones, for a picture that takes seconds: it is scaled down. Raises
    RequestError."""
    import PIL.Image

    try:
        opened = PIL.Image.open(BytesIO(data), formats=FORMATS)
    except MemoryError:
        raise
    except PIL.UnidentifiedImageError as error:
        raise _unknown(len(data)) from error
    except Exception as error:
        raise damaged("image", error) from error
    with opened:
        _check_size(*opened.size)
        if (pixels := opened.width * opened.height) > most:
            raise too_many("pixels")
        if opened.format in ("JPEG", "MPO") and data.count(b"\xff\xda") * pixels > _MOST_SCANNED:
            raise RequestError("the image goes over its pixels too often (scans of a JPEG); save it anew.")
        if pixels > MOST_SHOWN and not takes_large:
            return None
        return *_guarded(lambda: _converted(_scaled(opened), opened)), pixels


def _scaled(image: "PillowImage") -> "PillowImage":
    """Returns a picture of at most `MOST_SHOWN` pixels; a JPEG is scaled while it is decoded."""
    if (factor := (MOST_SHOWN / (image.width * image.height)) ** 0.5) >= 1:
        return image
    width, height = (max(1, int(side * factor)) for side in image.size)
    size = min(width, MOST_SHOWN // height), min(height, MOST_SHOWN // width)
    image.draft(None, size)
    return _eight_bits(image).resize(size, reducing_gap=2.0)


def _guarded(decode: "Callable[[], tuple[int, int, bytes]]") -> tuple[int, int, bytes]:
    """Returns what `decode` returns; Pillow raises errors of many kinds for damaged files."""
    try:
        return decode()
    except (RequestError, MemoryError):
        raise
    except Exception as error:
        raise damaged("image", error) from error


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise RequestError(f"the image has {width}x{height} pixels; it needs at least one.")
    if width * height > MOST_PIXELS:
        raise RequestError(
            f"the image has {width:,}x{height:,} pixels; scale it down to at most {MOST_PIXELS:,} in all."
        )


def _converted(image: "PillowImage", original: "PillowImage | None" = None) -> tuple[int, int, bytes]:
    """Returns the width, height and RGB of a picture, turned as its original says."""
    _check_size(*image.size)
    flat = _upright(_rgb(image), original or image)
    return flat.width, flat.height, flat.tobytes()


def _rgb(image: "PillowImage") -> "PillowImage":
    import PIL.Image

    shown = _eight_bits(image)
    if shown.mode != "RGBA":
        return shown if shown.mode == "RGB" else shown.convert("RGB")
    return PIL.Image.alpha_composite(PIL.Image.new("RGBA", shown.size, "white"), shown).convert("RGB")


def _eight_bits(image: "PillowImage") -> "PillowImage":
    """Returns a picture in a mode that can be scaled: RGBA if some of it may be transparent. Raises RequestError for a
    mode that is not read."""
    if image.mode in _ALPHA or (image.mode in _COLOURS and "transparency" in image.info):
        return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    if image.mode in _SIXTEEN:
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if image.mode not in _COLOURS:
        raise RequestError(f"the image's mode {image.mode!r} is not read; convert it to RGB first.")
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def _upright(flat: "PillowImage", image: "PillowImage") -> "PillowImage":
    from PIL.Image import Transpose

    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:  # noqa: BLE001 - pixels with damaged EXIF data are shown as they are, as browsers do
        return flat
    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turn = turns.get(orientation) if isinstance(orientation, int) else None
    return flat if turn is None else flat.transpose(turn)


def _array_pixels(array: "NDArray[Any]") -> tuple[int, int, bytes]:
    import numpy as np

    pixels = array[..., None] if array.ndim == 2 else array
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4):
        raise RequestError(
            f"an array of shape {array.shape} is no image; it must be (height, width), or (height, width, channels) "
            "with 1, 3 or 4 channels."
        )
    height, width, channels = pixels.shape
    _check_size(width, height)
    if np.issubdtype(pixels.dtype, np.floating):
        if not bool(((pixels >= 0) & (pixels <= 1)).all()):
            raise RequestError("an image of floats must lie between 0 and 1 everywhere; scale it.")
        pixels = np.rint(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise RequestError(f"an array of {pixels.dtype} is no image; convert it to uint8, or to floats from 0 to 1.")
    if channels == 4:
        alpha = pixels[..., 3:].astype(np.uint16)
        over_white = pixels[..., :3] * alpha + 255 * (255 - alpha) + 127
        pixels = (over_white // 255).astype(np.uint8)
    return width, height, np.broadcast_to(pixels, (height, width, 3)).tobytes()


def _png(width: int, height: int, rgb: bytes) -> bytes:
    """Returns a PNG file. It needs no Pillow, which is not there for pictures that came as arrays."""
    row = 3 * width
    packer = zlib.compressobj(6 if len(rgb) < 1 << 20 else 1)
    rows = b"".join(packer.compress(b"\0" + rgb[start : start + row]) for start in range(0, len(rgb), row))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", rows + packer.flush()), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
