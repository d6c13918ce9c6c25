"""`Audio`: decoded once into samples that never change.

Files are decoded by soundfile only, in a child process, never by llama.cpp: formats by name, within limits. WAV is read
here, since Python 3.11's `wave` reads neither floats nor the extensible header. Sources: "Multimedia Programming
Interface and Data Specifications 1.0", "Multiple Channel Audio Data and WAVE Files".
"""

import math
import struct
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from engine.support.errors import RequestError, shown
from engine.types.media.budget import MOST_SAMPLES, MOST_SECONDS, MediaBudget, too_many
from engine.types.media.decoding import PIECE, samples_of
from engine.types.media.on_demand import OnDemand
from engine.types.media.source import Encoded, array_of, bytes_of, damaged, data_url_of, missing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples: TypeAlias = NDArray[np.float32]

MOST_CHANNELS = 32
_RATES = range(1_000, 384_001)
_ZEROS = 16  # zero crossings of the resampling filter on each side
_ROWS = 1 << 16  # windows that are filtered at once: 25 MB

AudioSource: TypeAlias = "str | Path | bytes | Audio | NDArray[Any]"


class Audio(OnDemand["_Sound"]):
    """A sound: float32 samples of one channel. Immutable; equal if rate and samples are.

    source: a path; the bytes of a WAV, FLAC, OGG or MP3 file, or a `data:` URL of one; a NumPy array of samples, or of
        shape (samples, channels), with `rate` in Hz: floats from -1 to 1, or integers of their full range.

    Channels are averaged. Raises RequestError for what is none of these, is damaged, has no samples, holds NaN or
    infinity, takes more than 30 minutes (or 86.4 million samples) or 64 MiB of bytes, or too long to decode; and if
    soundfile is needed and missing.

    What came over the wire is decoded when a model takes it, or when its samples are first asked for, which then raises
    RequestError.
    """

    __slots__ = ()

    def __init__(self, source: AudioSource, rate: int | None = None) -> None:
        self._content: _Sound | Encoded = _told(*_sound(source, rate))
        self._sent = False

    @classmethod
    def undecoded(cls, file: Encoded) -> Self:
        """Returns the sound of a file that came over the wire. Raises RequestError for one of another format, or of too
        many bytes."""
        file.check_size()
        if not (_is_wav(file.head) or _is_compressed(file.head)):
            raise _unknown(file.size)
        return cls._over_the_wire(file)

    def _read(self, data: bytes, budget: MediaBudget) -> "_Sound":
        return _told(*_of_file(data, budget))

    def count(self, budget: MediaBudget) -> None:
        """Count a sound that came over the wire and was decoded before."""
        if self._sent and self.is_decoded:
            budget.hold("samples", len(self.samples))

    @property
    def kind(self) -> Literal["audio"]:
        return "audio"

    @property
    def samples(self) -> "Samples":
        """The samples, read-only."""
        return self._decoded.samples

    @property
    def rate(self) -> int:
        """Samples per second."""
        return self._decoded.rate

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    def _measure(self) -> str:
        return f"{self.seconds:.1f} s"

    def wav(self) -> bytes:
        """Returns the sound as a WAV file of floats, which loses nothing."""
        data = self.samples.astype("<f4").tobytes()
        form = struct.pack("<4sIHHIIHH", b"fmt ", 16, _FLOAT, 1, self.rate, 4 * self.rate, 4, 32)
        return b"".join(
            (b"RIFF", struct.pack("<I", 36 + len(data)), b"WAVE", form, struct.pack("<4sI", b"data", len(data)), data)
        )

    def data_url(self) -> str:
        """Returns the sound as the `data:` URL of a WAV file."""
        return data_url_of("audio/wav", self.wav())

    def resampled(self, rate: int) -> "Samples":
        """Returns the samples at another rate (Hz), through a windowed sinc filter that removes what the lower of both
        rates cannot hold."""
        return self.samples if rate == self.rate else _resampled(self.samples, self.rate, rate)

    def __repr__(self) -> str:
        at = f" at {self._content.rate} Hz" if isinstance(self._content, _Sound) else ""
        return f"<{self.about.capitalize()}{at} {self.identity.hex()[:8]}>"


class _Sound(NamedTuple):
    rate: int
    samples: "Samples"
    digest: bytes


def _told(rate: int, samples: "Samples") -> _Sound:
    samples.flags.writeable = False
    found = sha256(b"audio %d " % rate)
    found.update(samples.data)
    return _Sound(rate, samples, found.digest())


_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


def _sound(source: object, rate: int | None) -> "tuple[int, Samples]":
    """Returns the rate and the samples, which are the caller's alone. Raises RequestError."""
    if isinstance(source, Audio):
        return source.rate, source.samples.copy()
    if (array := array_of(source)) is not None:
        if rate is None:
            raise RequestError("the rate of an array of samples is missing: Audio(array, rate=16000).")
        return _checked_sound(_checked_rate(rate), _mono(_scaled(array)))
    if rate is not None:
        raise RequestError("rate is for arrays; a file has its own. Leave it out.")
    if (data := bytes_of(source)) is None:
        raise RequestError(
            f"a {type(source).__name__} is no source of audio; give a path, bytes, or a NumPy array with rate=."
        )
    return _of_file(data, MediaBudget())


def _is_wav(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def _is_compressed(data: bytes) -> bool:
    return data[:4] in (b"fLaC", b"OggS") or data[:3] == b"ID3" or (data[:1] == b"\xff" and data[1:2] >= b"\xe0")


def _unknown(size: int) -> RequestError:
    return RequestError(f"the audio of {size:,} bytes is none of WAV, FLAC, OGG, MP3; convert it first.")


def _of_file(data: bytes, budget: MediaBudget) -> "tuple[int, Samples]":
    if _is_wav(data):
        return _wav(data, budget)
    if not _is_compressed(data):
        raise _unknown(len(data))
    if find_spec("soundfile") is None:
        raise missing("soundfile", "audio")
    return _checked_sound(*samples_of(data, budget))


def _checked_rate(rate: object) -> int:
    if not isinstance(rate, int) or rate not in _RATES:
        raise RequestError(
            f"rate={shown(rate)} is not valid; give samples per second, {_RATES[0]:,} to {_RATES[-1]:,}."
        )
    return rate


def _scaled(array: "NDArray[Any]") -> "Samples":
    import numpy as np

    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] > MOST_CHANNELS):
        raise RequestError(
            f"an array of shape {array.shape} is no audio; it must be (samples,) or (samples, channels), with at most "
            f"{MOST_CHANNELS} channels."
        )
    _check_length(len(array))
    if np.issubdtype(array.dtype, np.floating):
        return array.astype(np.float32)
    if array.dtype.name not in ("uint8", "int16", "int32"):
        raise RequestError(f"an array of {array.dtype} is no audio; convert it to float32, int16, int32 or uint8.")
    samples = array.astype(np.float32)
    samples -= 128 if array.dtype == np.uint8 else 0
    samples /= np.float32(2 ** (8 * array.dtype.itemsize - 1))
    return samples


def _check_length(samples: int) -> None:
    if samples < 1:
        raise RequestError("the audio has no samples; it needs at least one.")
    if samples > MOST_SAMPLES:
        raise RequestError(f"the audio has {samples:,} samples; cut it, or resample it to at most {MOST_SAMPLES:,}.")


def _mono(samples: "NDArray[Any]") -> "Samples":
    import numpy as np

    mixed = samples if samples.ndim == 1 else samples.mean(1, dtype=np.float32)
    if not bool(np.isfinite(mixed).all()):
        raise RequestError("the audio holds NaN or infinity; repair it first.")
    return np.ascontiguousarray(mixed, np.float32)


def _checked_sound(rate: int, samples: "Samples") -> "tuple[int, Samples]":
    _check_length(len(samples))
    if len(samples) > MOST_SECONDS * rate:
        raise RequestError(f"the audio takes {len(samples) / rate:,.0f} seconds; cut it to at most {MOST_SECONDS:,}.")
    return rate, samples


def _wav(data: bytes, budget: MediaBudget) -> "tuple[int, Samples]":
    form, sound = None, None
    for name, body in _chunks(data):
        if name == b"fmt " and len(body) >= 16:
            form = struct.unpack_from("<HHIIHH", body), bytes(body[24:26])
        elif name == b"data" and sound is None:
            sound = body
    if form is None or sound is None:
        raise RequestError("the WAV file has no format or no data; save it anew.")
    (tag, channels, rate, _, frame, bits), subtype = form
    if tag == _EXTENSIBLE:
        tag = int.from_bytes(subtype, "little")
    if (tag, bits) not in _WAV_KINDS or not 1 <= channels <= MOST_CHANNELS or frame != channels * bits // 8:
        raise RequestError(
            f"a WAV file of format {tag} with {bits} bits and {channels} channels is not read; save it as PCM of 8 to "
            f"32 bits or as floats, with at most {MOST_CHANNELS} channels."
        )
    _check_length(len(sound) // frame)
    budget.take("samples", len(sound) // frame)
    samples = _wav_samples(sound[: len(sound) // frame * frame], tag, bits)
    return _checked_sound(_checked_rate(rate), _mono(samples.reshape(-1, channels)))


_WAV_KINDS = frozenset({(_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64)})


def _chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the chunks of a RIFF file. One that is longer than the file (a recorder that was cut off, or did not know
    the length) ends with it."""
    position, whole = 12, memoryview(data)
    while position + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, position)
        yield name, whole[position + 8 : position + 8 + size]
        position += 8 + size + size % 2


def _wav_samples(sound: memoryview, tag: int, bits: int) -> "NDArray[Any]":
    import numpy as np

    if tag == _FLOAT:
        return np.frombuffer(sound, f"<f{bits // 8}").astype(np.float32)
    if bits != 24:
        return _scaled(np.frombuffer(sound, np.uint8 if bits == 8 else f"<i{bits // 8}"))
    wide = np.zeros((len(sound) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(sound, np.uint8).reshape(-1, 3)
    return _scaled(wide.view("<i4")[:, 0])


def decoded(data: bytes, most: int) -> "tuple[int, Iterator[Samples]]":
    """In a child: return the rate of a sound's file, and its samples in blocks; `most` are left to its request. Both
    raise RequestError."""
    opened: Any = None
    try:
        opened = _opened(data)
        rate, channels, kind = opened.samplerate, opened.channels, opened.format
    except (RequestError, MemoryError):
        raise
    except Exception as error:
        raise damaged("audio", error) from error
    if kind not in ("FLAC", "OGG", "MP3", "MPEG") or not 1 <= channels <= MOST_CHANNELS:
        raise RequestError(f"audio of format {kind} with {channels} channels is not read; convert it to WAV.")
    return _checked_rate(rate), _blocks(opened, most)


def _blocks(opened: Any, most: int) -> "Iterator[Samples]":
    """Yields the samples of one channel. By blocks: what a header says of the length may be a lie."""
    longest, count = min(MOST_SECONDS * opened.samplerate, MOST_SAMPLES), 0
    try:
        while len(block := opened.read(PIECE // 4 // opened.channels, dtype="float32", always_2d=True)):
            count += len(block)
            if count > longest:
                raise RequestError(f"the audio takes more than {longest / opened.samplerate:,.0f} seconds; cut it.")
            if count > most:
                raise too_many("samples")
            yield _mono(block)
    except (RequestError, MemoryError):
        raise
    except Exception as error:
        raise damaged("audio", error) from error
    finally:
        opened.close()


def _opened(data: bytes) -> Any:
    try:
        import soundfile  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    except (ImportError, OSError) as error:  # OSError: without its library
        raise missing("soundfile", "audio") from error
    return soundfile.SoundFile(BytesIO(data))  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


def _resampled(samples: "Samples", old: int, new: int) -> "Samples":
    """Each output lies between inputs at one of `new / gcd` places, and each place has a filter of its own: a sinc cut
    off at the lower rate, under a Blackman window."""
    import numpy as np
    from numpy.lib.stride_tricks import sliding_window_view

    _checked_rate(new)
    shared = math.gcd(old, new)
    up, down = new // shared, old // shared
    cutoff = min(1.0, new / old)
    half = math.ceil(_ZEROS / cutoff)
    length = -(-len(samples) * up // down)
    windows = sliding_window_view(np.pad(samples, (half, half + down)), 2 * half + 1)
    out = np.empty(length, np.float32)
    taps = np.arange(-half, half + 1)
    for place in range(min(up, length)):
        first, between = divmod(place * down, up)
        distance = (taps - between / up) * cutoff
        edge = np.pi * np.clip(distance / _ZEROS, -1, 1)
        filter_ = np.sinc(distance) * (0.42 + 0.5 * np.cos(edge) + 0.08 * np.cos(2 * edge))
        weights = (filter_ / filter_.sum()).astype(np.float32)
        inputs, outputs = windows[first::down], out[place::up]
        for start in range(0, len(outputs), _ROWS):
            rows = slice(start, min(start + _ROWS, len(outputs)))
            outputs[rows] = np.ascontiguousarray(inputs[rows]) @ weights  # a copy, since overlapping rows are slow
    return out
