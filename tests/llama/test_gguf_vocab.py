"""Vocabularies that llama.cpp would end the process over, or take all memory for; every real one passes."""

import os
import time
import tracemalloc
from pathlib import Path

import model_zoo
import pytest
from gguf_bytes import ARRAY, I32, STRING, Array, Document

from engine.errors import ModelLoadError
from engine.llama.gguf import GgufFile, read_gguf
from engine.llama.gguf_header import read_header
from engine.llama.gguf_vocab import check_vocabulary

FOLDER = os.environ.get("LLAMA_CPP_MODELS", "")
VOCABULARIES = sorted(Path(FOLDER).glob("ggml-vocab-*.gguf")) if FOLDER else []
TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
NORMAL, CONTROL, BYTE = 1, 3, 6


def read(document: Document, folder: Path) -> GgufFile:
    path = folder / "m.gguf"
    path.write_bytes(document.encoded())
    return read_gguf(path)


def refused(document: Document, folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read(document, folder)
    return str(caught.value)


def with_token(document: Document, place: int, text: bytes, kind: int | None = None) -> Document:
    texts, kinds = document.texts(TOKENS), list(document.array(TYPES).items)
    texts[place] = text
    kinds[place] = kinds[place] if kind is None else kind
    return document.put(TOKENS, ARRAY, Array(STRING, texts)).put(TYPES, ARRAY, Array(I32, kinds))


@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem)
def test_real_vocabularies_pass(path: Path) -> None:
    header = read_header(path)
    assert len(header.tokens) > 1000
    kind = header.text("tokenizer.ggml.model")
    said = check_vocabulary(path, header)
    assert said == ("" if kind in ("llama", "gpt2", "gemma4") else f"its tokenizer is of the kind {kind!r}")


@pytest.mark.parametrize("text", [b"<s>", b"a", b"</s>\0 and more"])
def test_a_text_that_two_tokens_have_is_refused(tmp_path: Path, text: bytes) -> None:
    says = refused(with_token(model_zoo.model("llama"), 270, text), tmp_path)
    assert "of tokenizer.ggml.tokens have the same text" in says


def test_empty_texts_are_not_the_same_text(tmp_path: Path) -> None:
    document = with_token(with_token(model_zoo.model("llama"), 270, b""), 271, b"\0")
    assert read(document, tmp_path).unverified == ""


def test_a_control_token_that_is_too_long_is_refused(tmp_path: Path) -> None:
    document = model_zoo.model("llama")
    assert read(with_token(document, 259, b"x" * 1024), tmp_path).unverified == ""
    says = refused(with_token(document, 259, b"x" * 1025), tmp_path)
    assert "the control or user-defined token 259, 'xxx" in says
    assert "has 1,025 bytes, above the limit of 1,024" in says
    says = refused(with_token(document, 270, b"x" * 60_000, NORMAL), tmp_path)
    assert "has 60,000 bytes, above the limit of 4,096" in says


def test_many_long_control_tokens_are_refused(tmp_path: Path) -> None:
    document = model_zoo.model("llama")
    texts = [b"%d" % index + b"x" * 1000 for index in range(len(document.texts(TOKENS)))]
    document = document.put(TOKENS, ARRAY, Array(STRING, texts))
    document = document.put(TYPES, ARRAY, Array(I32, [CONTROL] * len(texts)))
    assert "too many and too long" in refused(document, tmp_path)


def test_tokens_that_llama_cpp_writes_out_for_each_of_their_characters(tmp_path: Path) -> None:
    document = model_zoo.model("qwen2")
    tokens = document.texts(TOKENS)
    long = [f"{index} ".encode() + "ж".encode() * 1000 for index in range(256)]
    texts = [*long[:31], *tokens[31:]]
    assert read(document.put(TOKENS, ARRAY, Array(STRING, texts)), tmp_path).unverified == ""
    texts = [*long[:40], *tokens[40:]]
    says = refused(document.put(TOKENS, ARRAY, Array(STRING, texts)), tmp_path)
    assert "would take more than 64 MiB decoded" in says


@pytest.mark.parametrize("model", ["none", "no_vocab", "test"])
def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path, model: str) -> None:
    says = refused(model_zoo.model("llama").put("tokenizer.ggml.model", STRING, model.encode()), tmp_path)
    assert "text cannot become tokens" in says


def test_a_split_by_white_space_needs_its_own_tokenizer(tmp_path: Path) -> None:
    says = refused(model_zoo.model("qwen2").put("tokenizer.ggml.pre", STRING, b"whitespace"), tmp_path)
    assert "tokenizer.ggml.pre is 'whitespace'" in says


def test_a_byte_in_a_wordpiece_vocabulary_is_refused(tmp_path: Path) -> None:
    says = refused(with_token(model_zoo.model("llama", "wpm"), 9, b"<0x41>", BYTE), tmp_path)
    assert "makes token 9 a byte" in says


def test_a_world_vocabulary_without_a_byte_that_tokens_begin_with_is_refused(tmp_path: Path) -> None:
    document = model_zoo.model("llama", "rwkv")
    assert "'rwkv'" in read(document, tmp_path).unverified
    says = refused(with_token(document, 1 + ord("h"), b"gone"), tmp_path)
    assert "begin with the byte b'h', but none that is this byte" in says


@pytest.mark.parametrize(
    ("old", "new", "passes"),
    [
        (None, 0, True),
        ("root", 0xFFFFFFFF, False),  # every text begins there
        ("leaf", 1 << 31 | 9999, False),  # a replacement behind the last
        ("leaf", 1 << 31 | 4, False),  # the NUL that ends the last one is the last byte
        ("filler", 0xFFFFFFFE, True),  # no text gets there
    ],
)
def test_a_replacement_map_that_leads_outside_is_refused(
    tmp_path: Path, old: str | None, new: int, passes: bool
) -> None:
    document = model_zoo.model("llama", "ugm")
    blob = bytearray(int(item) & 0xFF for item in document.array("tokenizer.ggml.precompiled_charsmap").items)
    units = [int.from_bytes(blob[at : at + 4], "little") for at in range(4, len(blob) - 8, 4)]
    places = {"root": 0, "leaf": next(n for n, unit in enumerate(units) if unit >> 31), "filler": units.index(0xFF)}
    if old is not None:
        blob[4 + 4 * places[old] : 8 + 4 * places[old]] = new.to_bytes(4, "little")
    if new == 1 << 31 | 4:
        blob = blob[:-1] + b"x"  # unterminated
    items = [byte - 256 if byte > 127 else byte for byte in blob]
    document = document.put("tokenizer.ggml.precompiled_charsmap", ARRAY, Array(1, items))
    if passes:
        assert "'t5'" in read(document, tmp_path).unverified
    else:
        assert "precompiled_charsmap leads outside of its own" in refused(document, tmp_path)


def test_types_that_do_not_reach_all_tokens_are_left_to_a_child(tmp_path: Path) -> None:
    document = model_zoo.model("llama").put(TYPES, ARRAY, Array(I32, [1, 2]))
    assert "token_type is shorter" in read(document, tmp_path).unverified


def test_reading_a_large_vocabulary_takes_time_and_memory_in_proportion(tmp_path: Path) -> None:
    def cost(tokens: int) -> tuple[float, int]:
        words = model_zoo.VOCABULARIES["spm"]()
        texts = (*words.tokens, *(b"token %d" % index for index in range(tokens)))
        words = words._replace(tokens=texts, types=(*words.types, *[CONTROL] * tokens), scores=())
        path = tmp_path / "m.gguf"
        path.write_bytes(model_zoo.model("llama", words, sizes={"E": 1}).encoded())
        tracemalloc.start()
        begun = time.perf_counter()
        check_vocabulary(path, read_header(path))
        seconds, (_, peak) = time.perf_counter() - begun, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return seconds, peak

    small, large = cost(20_000), cost(80_000)
    assert large[1] < 4.8 * small[1]
    assert large[0] < 12 * small[0]
