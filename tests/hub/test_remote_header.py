"""The header of a GGUF on the Hub, read by ranges before any download."""

import random
from functools import partial
from pathlib import Path

import pytest
from fakes.hub_server import Hub

from engine.hub import blobs, find, named, read
from engine.hub.names import Name
from engine.llama.gguf.gguf_header import Header, read_header, read_header_by_ranges
from engine.support.errors import ModelLoadError


def header_of(name: str) -> Header:
    """The header of a model's first file, without its download."""
    (blob, *_) = blobs(find(asked(name)))
    return read_header_by_ranges(Path(f"{blob.repo}/{blob.path}"), blob.size, partial(read, blob))


def asked(text: str) -> Name:
    name = named(text)
    assert name is not None
    return name


def facts(header: Header) -> object:
    keys = header.keys_under("")
    told = [
        (key, header.text(key), header.integers(key, -1), header.number(key, -1), header.count(key)) for key in keys
    ]
    return header.tensors, header.file_size, header.expected_size, told


def test_it_is_the_header_of_the_file_and_little_else_is_read(hub: Hub, builtin_model_path: Path) -> None:
    data = builtin_model_path.read_bytes()
    hub.add("own/repo", {"m-Q8_0.gguf": data})
    assert facts(header_of("own/repo")) == facts(read_header(builtin_model_path))
    ranges = [each.start for each in hub.requests if each.path.startswith("/cdn/")]
    assert ranges == [0]
    assert not list(Path(hub.address).rglob("*.gguf"))


def test_a_header_longer_than_the_first_range(
    hub: Hub, builtin_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = builtin_model_path.read_bytes()
    hub.add("own/repo", {"m-Q8_0.gguf": data})
    for first in (24, 100, 1000, 10_000):
        monkeypatch.setattr("engine.llama.gguf.gguf_header._FIRST", first)
        hub.requests.clear()
        assert facts(header_of("own/repo")) == facts(read_header(builtin_model_path)), first
        starts = hub.content_starts()
        assert starts == [0, *(first << number for number in range(len(starts) - 1))], first


def test_a_server_that_ignores_ranges(hub: Hub, builtin_model_path: Path) -> None:
    hub.add("own/repo", {"m-Q8_0.gguf": builtin_model_path.read_bytes()})
    hub.ignores_ranges = True
    assert header_of("own/repo").text("general.architecture") == "qwen3"


def test_ranges_of_bytes(hub: Hub) -> None:
    data = random.Random(1).randbytes(10_000)
    hub.add("own/repo", {"m-Q8_0.gguf": data})
    (blob,) = blobs(find(asked("own/repo")))
    for start, length in ((0, 10), (5_000, 100), (9_990, 50), (10_000, 5), (0, 10_000), (3, 0)):
        assert read(blob, start, length) == data[start : start + length]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "empty"),
        (b"GGUF\3\0\0\0", "it ends after 8 bytes"),
        (b"<!DOCTYPE html>" * 100, "not a GGUF file"),
        (b"GGUF\4\0\0\0" + bytes(2_000), "version 4"),
        (b"GGUF\3\0\0\0" + b"\xff" * 2_000, "cut off or damaged"),
    ],
)
def test_what_is_no_whole_header_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(ModelLoadError, match=told) as error:
        read_header_by_ranges(Path("own/repo/m.gguf"), len(data), lambda start, length: data[start : start + length])
    assert "own/repo/m.gguf" in str(error.value)


def test_a_reader_that_stops_is_not_asked_for_ever(builtin_model_path: Path) -> None:
    data = builtin_model_path.read_bytes()
    with pytest.raises(ModelLoadError, match=r"ended after 5,000 of 2,000,000 bytes"):
        read_header_by_ranges(Path("m.gguf"), 2_000_000, lambda start, length: data[:5_000][start : start + length])
