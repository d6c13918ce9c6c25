"""`ImageLink`: a picture that a message names by its http(s) address, not read yet."""

import time
from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import Literal

from engine.support.errors import RequestError, shown
from engine.types.media.audio import Audio
from engine.types.media.budget import MediaBudget
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

    @property
    def identity(self) -> bytes:
        """What tells it from others: the digest."""
        return self.digest

    def read(self, urls: MediaUrls, until: float, budget: MediaBudget) -> Image:
        """Returns the picture, fetched unless it was before. Raises RequestError as `fetched` and `Image.decode` do."""
        if self._image is not None:
            return self._image.decode(budget)
        data = fetched(self._address, urls, until)
        try:
            self._image = Image.sent(data, budget)
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


def read_media(
    media: Sequence[Audio | Image | ImageLink], kinds: Collection[str], urls: MediaUrls | None, until: float | None
) -> list[Audio | Image | ImageLink]:
    """Returns the pictures and sounds of one request, decoded one after the other within one budget: those of `kinds`,
    links too if there are `urls`. All others stay as they are. A link that stands several times is fetched once.
    `until`: the request's deadline on `time.monotonic`'s clock; None for none. Raises RequestError."""
    budget = MediaBudget(until)
    links = {each for each in media if isinstance(each, ImageLink) and "image" in kinds}
    if urls is not None and len(links) > urls.max_links:
        raise RequestError(f"the conversation has {len(links):,} links to pictures; send at most {urls.max_links:,}.")
    limit = time.monotonic() + (0.0 if urls is None else urls.seconds)
    limit = limit if until is None else min(limit, until)
    read: dict[ImageLink, Image] = {}
    found: list[Audio | Image | ImageLink] = []
    for number, each in enumerate(media, 1):
        if not isinstance(each, ImageLink):
            found.append(_decoded(each, number, budget) if each.kind in kinds else each)
            continue
        if each in links and each not in read and urls is not None:
            read[each] = each.read(urls, limit, budget)
        found.append(read.get(each, each))
    return found


def _decoded(media: Audio | Image, number: int, budget: MediaBudget) -> Audio | Image:
    try:
        return media.decode(budget)
    except RequestError as error:
        raise RequestError(f"picture or sound {number} of the conversation was not decoded: {error}") from error
