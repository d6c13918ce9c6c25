"""`ImageLink`: a picture that a message names by its http(s) address, not read yet."""

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Literal

from engine.support.errors import RequestError, shown
from engine.types.media.image import Image
from engine.types.media.urls import MediaUrls, fetched


class ImageLink:
    """A picture at an address, in a message as it came over the wire. Immutable; equal if the addresses are.

    An engine with `media_urls` reads it once, when a turn shows it to the model; so the turns of one conversation see
    the same pixels.
    """

    __slots__ = ("_address", "_image")

    def __init__(self, address: str) -> None:
        self._address = address
        self._image: Image | None = None

    @property
    def kind(self) -> Literal["image"]:
        return "image"

    @property
    def about(self) -> str:
        """The picture in a word, for people."""
        return "image at a link"

    @property
    def digest(self) -> bytes:
        """SHA-256 over the address."""
        return sha256(b"link " + self._address.encode(errors="surrogatepass")).digest()

    def data_url(self) -> str:
        """Returns the address: what is not read stays a link."""
        return self._address

    def read(self, urls: MediaUrls, until: float) -> Image:
        """Returns the picture, fetched unless it was before. Raises RequestError as `fetched` and `Image` do."""
        if self._image is None:
            data = fetched(self._address, urls, until)
            try:
                self._image = Image(data)
            except RequestError as error:
                raise RequestError(f"the picture at {shown(self._address)} was not read: {error}") from error
        return self._image

    def refusal(self) -> RequestError:
        return RequestError(
            f"the picture at {shown(self._address)} is a link, which this engine does not follow: load it with a "
            "projector and media_urls=MediaUrls(), or send the picture's bytes as a data: URL."
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImageLink) and self._address == other._address

    def __hash__(self) -> int:
        return hash(self._address)

    def __repr__(self) -> str:
        return f"<ImageLink {shown(self._address)}>"


def read_links(links: Sequence[ImageLink], urls: MediaUrls, until: float | None) -> list[Image]:
    """Returns the pictures of one request's links; one that stands several times is fetched once. `until`: the
    request's deadline on `time.monotonic`'s clock; None for none. Raises RequestError."""
    limit = time.monotonic() + urls.seconds
    limit = limit if until is None else min(limit, until)
    if len(different := dict.fromkeys(links)) > urls.max_links:
        raise RequestError(
            f"the conversation has {len(different):,} links to pictures; send at most {urls.max_links:,}."
        )
    found = {link: link.read(urls, limit) for link in different}
    return [found[link] for link in links]
