"""Pictures and sounds, from any source, as pixels and samples."""

from dataclasses import dataclass
from typing import TypeAlias

from engine.types.media.audio import Audio, AudioSource
from engine.types.media.budget import MediaBudget
from engine.types.media.decoding import prepare as prepare_decoding
from engine.types.media.image import Image, ImageSource
from engine.types.media.link import ImageLink, read_media
from engine.types.media.on_demand import MediaKind
from engine.types.media.source import Encoded, of_url
from engine.types.media.urls import MediaUrls

__all__ = [
    "Audio",
    "AudioSource",
    "EncodedMedia",
    "Image",
    "ImageLink",
    "ImageSource",
    "Media",
    "MediaBudget",
    "MediaKind",
    "MediaUrls",
    "image_at",
    "prepare_decoding",
    "read_media",
    "sound_at",
]

Media: TypeAlias = Image | Audio


@dataclass(frozen=True, slots=True)
class EncodedMedia:
    """A picture or sound of a tool as base64 of a file, which may be neither. `about`: what it is, in a word."""

    kind: MediaKind
    data: str
    about: str

    def decoded(self, budget: MediaBudget) -> Media:
        """Returns what it holds. Raises RequestError as `Image` and `Audio` do, and for more than what is left of the
        budget."""
        file = Encoded(self.data)
        return (Image.undecoded(file) if self.kind == "image" else Audio.undecoded(file)).decode(budget)


def image_at(address: str) -> Image | ImageLink:
    """Returns the picture of an address that came over the wire: of a `data:` URL, or of an http(s) address, which is
    not read yet; never a path of this machine. Raises RequestError for any other, and for one of another format."""
    is_link = address[:8].lower().startswith(("http://", "https://"))
    return ImageLink(address) if is_link else Image.undecoded(of_url(address))


def sound_at(address: str) -> Audio:
    """Returns the sound of a `data:` URL, or of base64, that came over the wire. Raises RequestError for any other
    address, and for one of another format."""
    return Audio.undecoded(of_url(address) if ":" in address[:16] else Encoded(address))
