"""The bytes of a picture or a sound, wherever they come from: a path, a `data:` URL (RFC 2397), base64."""

import base64
import binascii
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from engine.support.errors import RequestError, shown
from engine.support.extras import install

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_BYTES = 64 << 20
"""The most bytes of a picture or a sound before it is decoded."""


_HEAD = 256
"""Characters of base64 that are looked at before anything is decoded: they show the format."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file as base64, as it came over the wire: the text from `start` on."""

    text: str
    start: int = 0

    @property
    def size(self) -> int:
        """About how many bytes the file has."""
        return (len(self.text) - self.start) * 3 // 4

    @property
    def head(self) -> bytes:
        """The first bytes. Raises RequestError if they are not base64."""
        whole = self.start + _HEAD >= len(self.text)
        text = _unspaced(self.text[self.start : self.start + _HEAD])
        return _bytes(text if whole else text[: len(text) // 4 * 4])

    @property
    def digest(self) -> bytes:
        """SHA-256 over the text."""
        found = sha256()
        for start in range(self.start, len(self.text), MOST_BYTES >> 6):
            found.update(self.text[start : start + (MOST_BYTES >> 6)].encode(errors="surrogatepass"))
        return found.digest()

    def data(self) -> bytes:
        """The file's bytes. Raises RequestError for what is not base64, and for too many."""
        self.check_size()
        return _bytes(_unspaced(self.text[self.start :]))

    def check_size(self) -> None:
        if len(self.text) - self.start > MOST_BYTES * 3 // 2:
            raise too_many_bytes()


def _unspaced(text: str) -> str:
    return "".join(text.split())


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"the data is not base64: {error}. Send the file's bytes as base64.") from error


def of_url(address: str) -> Encoded:
    """Returns the file in a `data:` URL. Raises RequestError for any other address."""
    head = address[: address.find(",") + 1]
    if not address[:5].lower() == "data:":
        raise RequestError(
            f"the address {shown(address)} is not read: on the wire only data: URLs are, and links to pictures, never "
            'paths. Send "data:image/png;base64,..."; in Python, Image(path) reads a file.'
        )
    if not head.lower().endswith(";base64,"):
        raise RequestError('a data: URL must hold base64: "data:image/png;base64,...".')
    return Encoded(address, len(head))


def data_url_of(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def too_many_bytes() -> RequestError:
    return RequestError(f"the file has more than {MOST_BYTES >> 20} MiB; make it smaller.")


def bytes_of(source: object) -> bytes | None:
    """Returns the bytes of a path, a `data:` URL or bytes; None for anything else. Raises RequestError."""
    if isinstance(source, str):
        scheme = source[:8].lower().partition(":")[0]
        if scheme == "data":
            return of_url(source).data()
        if scheme in ("http", "https", "file"):
            raise RequestError(
                f"{shown(source)} is a link, which is not followed: download the file, and give its path or its bytes."
            )
    if isinstance(source, str | Path):
        return _read(Path(source))
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(cast("bytes", source))
        if len(data) > MOST_BYTES:
            raise too_many_bytes()
        return data
    return None


def _read(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a FIFO or a terminal would wait for ever
            raise RequestError(f"{path} is not a file; give the path of one.")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RequestError(f"{shown(str(path))} cannot be read: {error}. Correct the path.") from error
    if len(data) > MOST_BYTES:
        raise too_many_bytes()
    return data


def array_of(source: object) -> "NDArray[Any] | None":
    """Returns a NumPy array, or what can become one (a tensor); None for anything else."""
    if not hasattr(source, "__array__") or not hasattr(source, "shape"):
        return None
    import numpy as np

    return np.asarray(source)


def damaged(what: str, error: Exception) -> RequestError:
    return RequestError(f"the {what} cannot be decoded ({type(error).__name__}: {shown(str(error))}); save it anew.")


def missing(package: str, extra: str) -> RequestError:
    return RequestError(f"{package} is needed to read this, and is not installed: {install(extra)}.")
