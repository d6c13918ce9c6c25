"""Pictures from every source, as the right pixels; what is refused, and how it says so."""

import io
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from attacks.hostile_media import many_scans, picture, png

from engine import Image, RequestError
from engine.types.media.image import MOST_PIXELS

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
CORNERS = np.array([[RED, GREEN, GREEN], [BLUE, WHITE, BLACK]], np.uint8)
"""Three wide and two high; every turn of it looks different."""


def pixels(image: Image) -> np.ndarray[Any, Any]:
    return np.frombuffer(image.rgb, np.uint8).reshape(image.height, image.width, 3)


def saved(image: PIL.Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_one_picture_from_every_source_is_one_picture(tmp_path: Path) -> None:
    made = PIL.Image.fromarray(CORNERS)
    file = saved(made)
    path = tmp_path / "a.png"
    path.write_bytes(file)
    whole = Image(CORNERS)
    floats = CORNERS.astype(np.float32) / 255
    sources: list[Any] = [file, bytearray(file), str(path), path, made, floats, whole, whole.png(), whole.data_url()]
    assert {Image(source) for source in sources} == {whole}
    assert (whole.width, whole.height, whole.rgb) == (3, 2, CORNERS.tobytes())
    assert len(whole.digest) == 32
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert whole != Image(CORNERS.reshape(3, 2, 3)), "the same bytes of another size are another picture"
    with pytest.raises(AttributeError):
        whole.rgb = b""  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF"])
def test_formats_that_lose_nothing_give_their_pixels(kind: str) -> None:
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    assert (pixels(Image(saved(PIL.Image.fromarray(CORNERS), kind, **options))) == CORNERS).all()


def test_a_jpeg_is_near_its_pixels() -> None:
    large = np.repeat(np.repeat(CORNERS, 32, 0), 32, 1)
    for mode in ("RGB", "CMYK"):
        file = saved(PIL.Image.fromarray(large).convert(mode), "JPEG", quality=95, subsampling=0)
        middles = pixels(Image(file))[16::32, 16::32].astype(int)
        assert abs(middles - CORNERS).max() < 12, mode


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_exif_says(orientation: int) -> None:
    """The stored pixels are those that the orientation turns into the picture (EXIF 2.32, tag 274)."""
    stored = {
        1: CORNERS,
        2: CORNERS[:, ::-1],
        3: CORNERS[::-1, ::-1],
        4: CORNERS[::-1],
        5: CORNERS.transpose(1, 0, 2),
        6: np.rot90(CORNERS, 1),
        7: np.rot90(CORNERS, 2).transpose(1, 0, 2),
        8: np.rot90(CORNERS, -1),
    }[orientation]
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    image = PIL.Image.fromarray(np.ascontiguousarray(stored))
    assert (pixels(Image(saved(image, exif=exif))) == CORNERS).all()


def test_broken_exif_leaves_the_pixels() -> None:
    file = picture("JPEG", exif=b"Exif\0\0" + bytes(range(200)))
    assert (Image(file).width, Image(file).height) == (31, 17)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "RGBa", "La"])
def test_what_is_transparent_is_white(mode: str) -> None:
    clear = PIL.Image.new("RGBA", (1, 1), (9, 9, 9, 0))
    if mode == "PA":
        image = PIL.Image.new("PA", (1, 1))  # Pillow's own conversion makes it opaque
        image.putpalette([9, 9, 9])
    else:
        image = clear.convert(mode) if mode in ("RGBA", "RGBa") else clear.convert("LA").convert(mode)
    assert Image(image).rgb == bytes(WHITE)


def test_alpha_is_mixed_with_white() -> None:
    half = np.array([[[200, 100, 0, 128]]], np.uint8)
    mixed = bytes(round((value * 128 + 255 * 127) / 255) for value in (200, 100, 0))
    assert Image(half).rgb == mixed
    assert Image(saved(PIL.Image.fromarray(half))).rgb == mixed


def test_a_transparent_colour_of_a_palette_is_white() -> None:
    palette = PIL.Image.new("P", (2, 1))
    palette.putpalette([*RED, *BLUE])
    palette.putdata([0, 1])
    assert Image(saved(palette, transparency=0)).rgb == bytes((*WHITE, *BLUE))
    assert Image(saved(palette, "GIF", transparency=1)).rgb == bytes((*RED, *WHITE))


@pytest.mark.parametrize(
    ("mode", "value", "grey"),
    [("1", 1, 255), ("1", 0, 0), ("L", 77, 77), ("I;16", 0x8034, 0x80), ("I;16", 0xFFFF, 255), ("I", 0x4F00, 0x4F)],
)
def test_grey_of_any_depth(mode: str, value: int, grey: int) -> None:
    image = PIL.Image.new(mode, (2, 2), value)
    assert Image(image).rgb == bytes([grey]) * 12
    if mode != "I":  # which Pillow does not write any more
        assert Image(saved(image)).rgb == bytes([grey]) * 12


def test_sixteen_bits_of_each_colour() -> None:
    rows = b"\0" + bytes([0x12, 0xFF, 0x80, 0x00, 0xFF, 0x01])
    assert Image(png(1, 1, 16, 2, rows)).rgb == bytes([0x12, 0x80, 0xFF])


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation(kind: str) -> None:
    first, second = (PIL.Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE))
    file = saved(first, kind, save_all=True, append_images=[second], duration=10, lossless=True)
    assert Image(file).rgb == bytes(RED) * 16


def test_one_pixel_is_a_picture() -> None:
    assert Image(png(1, 1, 8, 2, b"\0\1\2\3")).rgb == b"\1\2\3"
    assert Image(np.zeros((1, 1), np.uint8)).rgb == b"\0\0\0"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"", "none of PNG, JPEG, WEBP, GIF, BMP"),
        (b"GIF89a but no more", "none of PNG"),
        (saved(PIL.Image.new("RGB", (4, 4)), "TIFF"), "none of PNG"),
        (picture("PNG")[:-300], "cannot be decoded"),
        (png(8000, 8001, 8, 0, b""), "scale it down to at most 64,000,000"),
        (3, "a int is no source of an image"),
        ("https://example.org/a.png", "is a link, which is not followed"),
        ("file:///etc/passwd", "is a link, which is not followed"),
        ("no such file.png", "cannot be read.*Correct the path"),
        (os.devnull, "is not a file"),
        ("a\0b", "cannot be read"),
        ("data:image/png,abc", "must hold base64"),
        ("data:image/png;base64,?", "is not base64"),
        (np.zeros((4, 4, 2), np.uint8), r"shape \(4, 4, 2\)"),
        (np.zeros((0, 4, 3), np.uint8), "4x0 pixels; it needs at least one"),
        (np.full((2, 2), 1.5), "between 0 and 1"),
        (np.full((2, 2), np.nan), "between 0 and 1"),
        (np.zeros((2, 2), np.int64), "convert it to uint8"),
        (PIL.Image.new("F", (2, 2)), "mode 'F' is not read"),
        (PIL.Image.new("RGB", (0, 2)), "0x2 pixels"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else type(value).__name__,
)
def test_what_is_refused_says_why(source: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        Image(source)


def test_a_jpeg_of_too_many_scans_is_refused() -> None:
    with pytest.raises(RequestError, match="goes over its pixels too often"):
        Image(many_scans(1000))
    assert Image(many_scans(3)).width == 4000, "25 million pixels are shown as 16"


def test_too_many_bytes_are_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    for source in (path, path.read_bytes(), "data:image/png;base64," + "A" * (100 << 20)):
        with pytest.raises(RequestError, match="more than 64 MiB"):
            Image(source)


def test_the_largest_picture_is_taken_and_one_pixel_more_is_not() -> None:
    side = 8000
    assert side * side == MOST_PIXELS
    assert Image(np.broadcast_to(np.uint8(7), (side, side))).rgb[:3] == b"\7\7\7"
    with pytest.raises(RequestError, match="8,000x8,001"):
        Image(np.broadcast_to(np.uint8(7), (side + 1, side)))


def test_without_pillow_arrays_work_and_files_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Image(CORNERS).png()
    for name in [name for name in sys.modules if name.split(".")[0] == "PIL"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert Image(CORNERS).data_url().startswith("data:image/png;base64,")
    with pytest.raises(RequestError, match=r"Pillow is needed.*pip install '\.\[images\]'"):
        Image(file)


def test_a_preview_is_small_and_has_the_colours() -> None:
    large = Image(np.repeat(np.repeat(CORNERS, 1000, 0), 1000, 1))
    small = Image(large.preview())
    assert max(small.width, small.height) <= 512
    assert (pixels(small)[:: small.height - 1, :: small.width - 1] == CORNERS[:, ::2]).all()
    assert Image(Image(CORNERS).preview()) == Image(CORNERS)
    assert Image(Image(np.zeros((1, 5000), np.uint8)).preview()).height == 1
    assert large._repr_html_().startswith('<img src="data:image/png;base64,')  # pyright: ignore[reportPrivateUsage]
