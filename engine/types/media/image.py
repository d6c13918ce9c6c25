"""`Image`: decoded once into pixels that never change.

Strangers' bytes are decoded by Pillow only, never by llama.cpp: formats by name, the size checked before anything is
unpacked. Source: "Portable Network Graphics (PNG) Specification".
"""

import struct
import sys
import zlib
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from engine.support.errors import RequestError
from engine.types.media.source import array_of, bytes_of, damaged, data_url_of, missing

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image as PillowImage

MOST_PIXELS = 64_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_SHOWN = 512  # pixels of the longer side of a picture in a page

# A scan of a progressive JPEG takes ten bytes and goes through every pixel: usual files have ten scans.
_MOST_SCANNED = 64 * MOST_PIXELS
_ORIENTATION = 0x0112  # the tag of EXIF
_COLOURS = frozenset({"1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV"})
_ALPHA = frozenset({"RGBA", "LA", "PA", "RGBa", "La"})
_SIXTEEN = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N"})

ImageSource: TypeAlias = "str | Path | bytes | Image | PillowImage | NDArray[Any]"


class Image:
    """A picture: `width` x `height` pixels in RGB, eight bits each. Immutable; equal if the pixels are.

    source: a path; the bytes of a PNG, JPEG, WEBP, GIF or BMP file, or a `data:` URL of one; a Pillow image; a NumPy
        array of shape (height, width), (height, width, 1), (.., 3) or (.., 4), uint8 or float from 0 to 1.

    A picture is turned as its EXIF data says; what is transparent becomes white; of 16 bits the upper eight stay; of an
    animation the first frame. Raises RequestError for what is none of these, is damaged, has no pixels or more than 64
    million, or more than 64 MiB of bytes; and if Pillow is needed and missing.
    """

    __slots__ = ("_digest", "_height", "_rgb", "_width")

    def __init__(self, source: ImageSource) -> None:
        self._width, self._height, self._rgb = _pixels(source)
        self._digest = sha256(b"image %d %d " % (self._width, self._height) + self._rgb).digest()

    @property
    def kind(self) -> Literal["image"]:
        return "image"

    @property
    def width(self) -> int:
        return self._width

    @property
    def height(self) -> int:
        return self._height

    @property
    def rgb(self) -> bytes:
        """The pixels row by row, three bytes each."""
        return self._rgb

    @property
    def digest(self) -> bytes:
        """SHA-256 over the kind, the size and the pixels."""
        return self._digest

    @property
    def about(self) -> str:
        """The picture in a word, for people: "image 64x40"."""
        return f"image {self._width}x{self._height}"

    def png(self) -> bytes:
        """Returns the picture as a PNG file."""
        return _png(self._width, self._height, self._rgb)

    def data_url(self) -> str:
        """Returns the picture as the `data:` URL of a PNG file."""
        return data_url_of("image/png", self.png())

    def preview(self) -> str:
        """Returns the `data:` URL of the picture, scaled down to 512 pixels on its longer side if it is larger."""
        step = -(-max(self._width, self._height) // _SHOWN)
        if step == 1:
            return self.data_url()
        import numpy as np

        # The means of squares of pixels; of a side shorter than a square, of what is there.
        high, wide = min(step, self._height), min(step, self._width)
        rows, columns = self._height // high, self._width // wide
        pixels = np.frombuffer(self._rgb, np.uint8).reshape(self._height, self._width, 3)
        squares = pixels[: rows * high, : columns * wide].reshape(rows, high, columns, wide, 3)
        means = squares.mean((1, 3), dtype=np.float32).astype(np.uint8)
        return data_url_of("image/png", _png(columns, rows, means.tobytes()))

    def _repr_html_(self) -> str:
        return f'<img src="{self.preview()}" alt="{self.about}" style="max-width:100%">'

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"<Image {self._width}x{self._height} {self._digest.hex()[:8]}>"


def _pixels(source: object) -> tuple[int, int, bytes]:
    """Returns width, height and RGB. Raises RequestError."""
    if isinstance(source, Image):
        return source.width, source.height, source.rgb
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(source, pillow.Image):
        image = cast("PillowImage", source)
        return _guarded(lambda: _converted(image))
    if (array := array_of(source)) is not None:
        return _array_pixels(array)
    if (data := bytes_of(source)) is None:
        raise RequestError(
            f"a {type(source).__name__} is no source of an image; give a path, bytes, a data: URL, a Pillow image or a "
            "NumPy array."
        )
    return _decoded(data)


def _decoded(data: bytes) -> tuple[int, int, bytes]:
    try:
        import PIL.Image
    except ImportError as error:
        raise missing("Pillow", "images") from error
    try:
        opened = PIL.Image.open(BytesIO(data), formats=FORMATS)
    except PIL.UnidentifiedImageError as error:
        raise RequestError(
            f"the image of {len(data):,} bytes is none of {', '.join(FORMATS)}, or is damaged; convert it first."
        ) from error
    except Exception as error:
        raise damaged("image", error) from error
    with opened:
        _check_size(*opened.size)
        scanned = data.count(b"\xff\xda") * opened.width * opened.height
        if opened.format in ("JPEG", "MPO") and scanned > _MOST_SCANNED:
            raise RequestError("the image goes over its pixels too often (scans of a JPEG); save it anew.")
        return _guarded(lambda: _converted(opened))


def _guarded(decode: "Callable[[], tuple[int, int, bytes]]") -> tuple[int, int, bytes]:
    """Returns what `decode` returns; Pillow raises errors of many kinds for damaged files."""
    try:
        return decode()
    except RequestError:
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


def _converted(image: "PillowImage") -> tuple[int, int, bytes]:
    _check_size(*image.size)
    flat = _upright(_rgb(image), image)
    _check_size(*flat.size)
    return flat.width, flat.height, flat.tobytes()


def _rgb(image: "PillowImage") -> "PillowImage":
    import PIL.Image

    if image.mode in _ALPHA or (image.mode in _COLOURS and "transparency" in image.info):
        straight = image.convert("LA") if image.mode == "La" else image
        white = PIL.Image.new("RGBA", image.size, "white")
        return PIL.Image.alpha_composite(white, straight.convert("RGBA")).convert("RGB")
    if image.mode in _SIXTEEN:
        import numpy as np

        upper = np.asarray(image).clip(0, 0xFFFF) >> 8
        return PIL.Image.fromarray(upper.astype(np.uint8)).convert("RGB")
    if image.mode not in _COLOURS:
        raise RequestError(f"the image's mode {image.mode!r} is not read; convert it to RGB first.")
    return image.convert("RGB")


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
