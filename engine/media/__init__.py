"""Pictures and sounds, from any source, as pixels and samples."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.media.audio import Audio, AudioSource
from engine.media.image import Image, ImageSource
from engine.media.source import from_base64, from_url

__all__ = ["Audio", "AudioSource", "EncodedMedia", "Image", "ImageSource", "Media", "MediaKind", "image_at", "sound_at"]

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


def image_at(address: str) -> Image:
    """Returns the picture of an address that came over the wire: only `data:` URLs are read, never a path of this
    machine. Raises RequestError for any other, and as `Image` does."""
    # An option of the engine that allows http(s) addresses would fetch them here.
    return Image(from_url(address))


def sound_at(address: str) -> Audio:
    """Returns the sound of a `data:` URL, or of base64, that came over the wire. Raises RequestError for any other
    address, and as `Audio` does."""
    return Audio(from_url(address) if ":" in address[:16] else from_base64(address))
