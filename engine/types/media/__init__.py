"""Pictures and sounds, from any source, as pixels and samples."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.types.media.audio import Audio, AudioSource
from engine.types.media.image import Image, ImageSource
from engine.types.media.link import ImageLink, read_links
from engine.types.media.source import from_base64, from_url
from engine.types.media.urls import MediaUrls

__all__ = [
    "Audio",
    "AudioSource",
    "EncodedMedia",
    "Image",
    "ImageLink",
    "ImageSource",
    "Media",
    "MediaKind",
    "MediaUrls",
    "image_at",
    "read_links",
    "sound_at",
]

MediaKind: TypeAlias = Literal["image", "audio"]
Media: TypeAlias = Image | Audio


@dataclass(frozen=True, slots=True)
class EncodedMedia:
    """A picture or sound as base64 of a file, not decoded yet. `about`: what it is, in a word."""

    kind: MediaKind
    data: str
    about: str

    def decoded(self) -> Media:
        """Returns what it holds. Raises RequestError as `Image` and `Audio` do."""
        data = from_base64(self.data)
        return Image(data) if self.kind == "image" else Audio(data)


def image_at(address: str) -> Image | ImageLink:
    """Returns the picture of an address that came over the wire: of a `data:` URL, or of an http(s) address, which is
    not read yet; never a path of this machine. Raises RequestError for any other, and as `Image` does."""
    is_link = address[:8].lower().startswith(("http://", "https://"))
    return ImageLink(address) if is_link else Image(from_url(address))


def sound_at(address: str) -> Audio:
    """Returns the sound of a `data:` URL, or of base64, that came over the wire. Raises RequestError for any other
    address, and as `Audio` does."""
    return Audio(from_url(address) if ":" in address[:16] else from_base64(address))
