"""Sounds from every source, as the right samples; resampling; what is refused, and how it says so."""

import pickle
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attacks.hostile_media import sound, wav

from engine import Audio, RequestError

TONE = (np.sin(np.arange(800) / 5) * 0.5).astype(np.float32)


def as_integers(bits: int) -> bytes:
    """The tone as a WAV file stores it."""
    whole = np.rint(TONE.astype(np.float64) * (2 ** (bits - 1) - 1)).astype(np.int64)
    if bits == 8:
        return (whole + 128).astype(np.uint8).tobytes()
    return b"".join(int(value).to_bytes(bits // 8, "little", signed=True) for value in whole)


def test_one_sound_from_every_source_is_one_sound(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    whole = Audio(TONE, rate=8000)
    path.write_bytes(whole.wav())
    sources: list[Any] = [path, str(path), whole.wav(), whole, whole.data_url()]
    assert {Audio(source) for source in sources} == {whole}
    assert (whole.rate, whole.seconds, whole.samples.dtype) == (8000, 0.1, np.float32)
    assert (whole.samples == TONE).all()
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert whole != Audio(TONE, rate=16000)
    with pytest.raises(ValueError, match="read-only"):
        whole.samples[0] = 1


def test_a_caller_s_array_may_change_afterwards() -> None:
    mine = TONE.copy()
    kept = Audio(mine, 8000)
    mine[:] = 0
    assert (kept.samples == TONE).all()


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_wav_of_integers(bits: int) -> None:
    assert abs(Audio(wav(as_integers(bits), bits=bits)).samples - TONE).max() < 2.0 / 2 ** (min(bits, 24) - 1)


@pytest.mark.parametrize("bits", [32, 64])
def test_wav_of_floats(bits: int) -> None:
    assert (Audio(wav(TONE.astype(f"<f{bits // 8}").tobytes(), 3, bits=bits)).samples == TONE).all()


def test_wav_that_python_wrote(tmp_path: Path) -> None:
    path = str(tmp_path / "a.wav")
    with wave.open(path, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44100)
        file.writeframes(np.array([[1000, 3000], [-2000, 0]], "<i2").tobytes())
    read = Audio(path)
    assert (read.rate, read.samples.tolist()) == (44100, [2000 / 32768, -1000 / 32768])


def test_the_extensible_header_names_the_format() -> None:
    plain = wav(TONE.tobytes(), 3, bits=32)
    form = plain[20:36].replace(b"\x03\0", b"\xfe\xff", 1) + b"\x16\0\x20\0\4\0\0\0" + b"\x03\0" + bytes(14)
    body = b"WAVE" + b"fmt " + len(form).to_bytes(4, "little") + form + plain[36:]
    assert (Audio(b"RIFF" + len(body).to_bytes(4, "little") + body).samples == TONE).all()


def test_a_wav_that_was_cut_off_ends_where_it_ends() -> None:
    file = wav(as_integers(16), size=0xFFFFFFFF)
    assert len(Audio(file[:-101]).samples) == 800 - 51


@pytest.mark.parametrize(("kind", "loss"), [("FLAC", 1e-4), ("OGG", 0.2)])
def test_compressed_formats(kind: str, loss: float) -> None:
    read = Audio(sound(kind))
    tone = np.sin(np.arange(1600) / 5) / 2
    assert (read.rate, len(read.samples)) == (8000, 1600)
    assert abs(read.samples - tone).max() < loss


def test_mp3() -> None:
    read = Audio(sound("MP3", seconds=2))
    assert read.rate == 8000
    assert 2.0 <= read.seconds < 2.4
    assert 0.3 < abs(read.samples[4000:12000]).max() < 0.7


def test_silence_is_a_sound_and_one_sample_too() -> None:
    assert Audio(np.zeros(8000), 8000).seconds == 1
    assert len(Audio(wav(b"\0\0")).samples) == 1


RATES = [(44100, 16000), (48000, 16000), (8000, 16000), (22050, 24000), (44101, 16000)]


@pytest.mark.parametrize(("old", "new"), RATES)
def test_a_tone_is_the_same_tone_at_another_rate(old: int, new: int) -> None:
    times = np.arange(old) / old
    heard = Audio(np.sin(2 * np.pi * 440 * times), old).resampled(new)
    wanted = np.sin(2 * np.pi * 440 * np.arange(len(heard)) / new)
    assert len(heard) == new
    assert abs(heard - wanted)[new // 50 : -new // 50].max() < 1e-4


def test_what_the_lower_rate_cannot_hold_is_gone() -> None:
    times = np.arange(44100) / 44100
    heard = Audio(np.sin(2 * np.pi * 12000 * times), 44100).resampled(16000)
    assert abs(heard[800:-800]).max() < 1e-4, "it would come back as a tone of 4,000 Hz"
    kept = Audio(TONE, 16000)
    assert kept.resampled(16000) is kept.samples
    with pytest.raises(RequestError, match="rate=3 is not valid"):
        kept.resampled(3)


def test_one_sample_at_every_rate() -> None:
    one = Audio(np.ones(1, np.float32), 8000)
    assert [len(one.resampled(rate)) for rate in (1000, 8000, 11025, 48000)] == [1, 1, 2, 6]


@pytest.mark.parametrize(
    ("source", "rate", "said"),
    [
        (TONE, None, "rate of an array of samples is missing"),
        (TONE, 0, "rate=0 is not valid"),
        (TONE, 10**9, "rate=1000000000 is not valid"),
        (wav(b"\0\0"), 8000, "rate is for arrays"),
        (np.zeros(0, np.float32), 8000, "no samples"),
        (np.zeros((4, 4, 4), np.float32), 8000, r"shape \(4, 4, 4\)"),
        (np.zeros((4, 99), np.float32), 8000, "at most 32 channels"),
        (np.zeros(4, np.complex64), 8000, "convert it to float32"),
        (np.array([0, np.nan]), 8000, "NaN or infinity"),
        (np.array([0, np.inf]), 8000, "NaN or infinity"),
        (np.zeros(31 * 60 * 1000, np.float32), 1000, "takes 1,860 seconds"),
        (wav(bytes(31 * 60 * 1000), rate=1000, bits=8), None, "takes 1,860 seconds"),
        (sound("FLAC", seconds=30.5 * 60, rate=1000), None, "takes more than 1,800 seconds"),
        (wav(b"\0\0", tag=7, bits=8), None, "format 7 with 8 bits"),
        (b"RIFF\0\0\0\0WAVE", None, "no format or no data"),
        (b"fLaC" + bytes(99), None, "cannot be decoded"),
        (b"ID3", None, "cannot be decoded"),
        (b"MThd", None, "none of WAV, FLAC, OGG, MP3"),
        (3, None, "a int is no source of audio"),
        ("http://example.org/a.wav", None, "is a link"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else type(value).__name__,
)
def test_what_is_refused_says_why(source: Any, rate: int | None, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        Audio(source, rate)


def test_without_soundfile_wav_works_and_flac_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    flac = sound("FLAC")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert (Audio(Audio(TONE, 8000).wav()).samples == TONE).all()
    with pytest.raises(RequestError, match=r"soundfile is needed.*pip install '\.\[audio\]'"):
        Audio(flac)
