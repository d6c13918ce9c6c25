"""Which files are verified by their header, and which are left to a child; the layouts that are refused by name."""

import os
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from attacks import gguf_mutants
from attacks.gguf_fuzz import write_parts
from files import model_zoo
from files.gguf_bytes import ARRAY, BOOL, F32, I32, STRING, U16, U32, Array, Document, Tensor, Value, decoded

from engine.llama.gguf.gguf import GgufFile, read_gguf
from engine.llama.gguf.gguf_header import Header, read_header
from engine.llama.gguf.gguf_rules import verified
from engine.support import _data
from engine.support.errors import ModelLoadError

FOLDER = os.environ.get("LLAMA_CPP_MODELS", "")
VOCABULARIES = sorted(Path(FOLDER).glob("ggml-vocab-*.gguf")) if FOLDER else []
TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
VERIFIED = ("llama", "qwen2", "qwen3", "wide", "gemma", "gemma2", "gemma3", "phi3", "olmo2")


def read(document: Document, folder: Path) -> GgufFile:
    path = folder / "m.gguf"
    path.write_bytes(document.encoded())
    return read_gguf(path)


def refused(document: Document, folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read(document, folder)
    return str(caught.value)


def is_verified(document: Document, folder: Path) -> bool:
    """Whether the rules say so, also of a file that is refused for another reason."""
    path = folder / "m.gguf"
    path.write_bytes(document.encoded())
    return verified([read_header(path)])


def with_texts(document: Document, texts: dict[int, bytes]) -> Document:
    changed = [texts.get(place, text) for place, text in enumerate(document.texts(TOKENS))]
    return document.put(TOKENS, ARRAY, Array(STRING, changed))


def test_which_models_are_verified(tmp_path: Path) -> None:
    """The plain dense architectures, with the usual tokenizers; of every other a child has to try the file."""
    for kind in model_zoo.KINDS:
        assert read(model_zoo.model(kind), tmp_path).is_verified == (kind in VERIFIED), kind
    for words in ("wpm", "ugm", "rwkv", "plamo2"):
        assert not read(model_zoo.model("llama", words), tmp_path).is_verified, words
    assert read_gguf(_data.builtin_model()).is_verified


@pytest.mark.parametrize(
    ("key", "type_", "value"),
    [
        ("block_count", U32, 0),
        ("block_count", F32, 2.0),
        ("nextn_predict_layers", U32, 2),
        ("expert_count", U32, 4),
        ("expert_used_count", U32, 2),
        ("rope.scaling.type", STRING, b"new"),
        ("rope.freq_base", F32, float("nan")),
        ("rope.scaling.factor", F32, float("inf")),
        ("rope.dimension_count", U32, 16),
        ("attention.layer_norm_rms_epsilon", F32, -1.0),
        ("attention.layer_norm_rms_epsilon", F32, float("nan")),
        ("attention.causal", BOOL, False),
        ("attention.head_count", U32, 3),
        ("attention.head_count", ARRAY, Array(I32, [2, 2])),
        ("attention.head_count", U32, 0),
        ("attention.key_length", U32, 64),
        ("attention.sliding_window_pattern", U32, 1),
        ("attention.sliding_window", U32, 2**31 - 1),
        ("context_length", U32, 0),
        ("feed_forward_length", U32, 0),
        ("embedding_length_out", U32, 7),
    ],
)
def test_an_unusual_number_is_left_to_a_child(tmp_path: Path, key: str, type_: int, value: Value) -> None:
    document = model_zoo.model("llama").put("llama.attention.head_count_kv", U32, 2)
    assert is_verified(document, tmp_path)
    assert not is_verified(document.put(f"llama.{key}", type_, value), tmp_path)


def test_a_required_key_that_is_missing_is_left_to_a_child(tmp_path: Path) -> None:
    assert not is_verified(model_zoo.model("llama").without("llama.feed_forward_length"), tmp_path)


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor(b"blk.0.attn_q.scale", (1,), bytes(4)),
        Tensor(b"blk.0.attn_q.bias", (64,), bytes(128), 1),
        Tensor(b"blk.0.attn_q_norm.weight", (64,), bytes(128), 1),
        Tensor(b"output.weight", (64, 1), bytes(256), 26),
    ],
)
def test_an_unusual_tensor_is_left_to_a_child(tmp_path: Path, tensor: Tensor) -> None:
    document = model_zoo.model("llama")
    kept = tuple(each for each in document.tensors if each.name != tensor.name)
    assert not read(replace(document, tensors=(*kept, tensor)), tmp_path).is_verified


@pytest.mark.parametrize(("kind", "lacking"), [("phi3", "attn_qkv"), ("llama", "attn_q"), ("llama", "attn_v")])
def test_a_layer_without_attention_is_left_to_a_child(tmp_path: Path, kind: str, lacking: str) -> None:
    document = model_zoo.model(kind)
    name = f"blk.1.{lacking}.weight".encode()
    kept = tuple(tensor for tensor in document.tensors if tensor.name != name)
    assert len(kept) == len(document.tensors) - 1
    assert not read(replace(document, tensors=kept), tmp_path).is_verified


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.attn_q.weight"])
def test_files_of_the_usual_quantised_types_are_verified(tmp_path: Path, name: str) -> None:
    document = model_zoo.model("wide")
    place = next(index for index, tensor in enumerate(document.tensors) if tensor.name.decode() == name)
    for kind in ("F16", "BF16", "Q4_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ2_XXS", "IQ4_XS", "TQ2_0", "MXFP4"):
        tensor = gguf_mutants.converted(document.tensors[place], gguf.GGMLQuantizationType[kind])
        tensors = (*document.tensors[:place], tensor, *document.tensors[place + 1 :])
        assert read(replace(document, tensors=tensors), tmp_path).is_verified, kind


@pytest.mark.parametrize(("kind", "value"), [(U32, 1), (I32, 1), (ARRAY, Array(I32, [1]))])
def test_a_part_whose_number_has_another_type_is_left_to_a_child(tmp_path: Path, kind: int, value: Value) -> None:
    document = model_zoo.model("llama")
    assert read_gguf(write_parts(tmp_path, document, 3)).is_verified
    change = gguf_mutants.put("type", "", "split.no", kind, value)
    assert not read_gguf(write_parts(tmp_path, document, 3, change)).is_verified


@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem)
def test_real_vocabularies_are_verified(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = read_header(path)
    assert len(header.tokens) > 1000
    assert sound_vocabulary(header) == (header.text("tokenizer.ggml.model") in ("llama", "gpt2", "gemma4"))


def sound_vocabulary(header: Header) -> bool:
    from engine.llama.gguf import gguf_rules

    return gguf_rules._has_sound_vocabulary(header)  # pyright: ignore[reportPrivateUsage]


def test_an_unusual_vocabulary_is_left_to_a_child(tmp_path: Path) -> None:
    llama, qwen = model_zoo.model("llama"), model_zoo.model("qwen2")
    sound = {
        "two empty texts": with_texts(llama, {270: b"", 271: b"\0"}),
        "a long token": with_texts(llama, {270: b"x" * 1024}),
        "some long tokens": with_texts(qwen, {place: b"%d" % place + b"x" * 1000 for place in range(60)}),
    }
    unusual = {
        "the text of another token": with_texts(llama, {270: b"<s>"}),
        "the same text before a NUL": with_texts(llama, {270: b"</s>\0 and more"}),
        "a very long token": with_texts(llama, {270: b"x" * 1025}),
        "many long tokens": with_texts(qwen, {place: b"%d" % place + b"x" * 1000 for place in range(70)}),
        "too few types": llama.put(TYPES, ARRAY, Array(I32, [1, 2])),
        "split by white space": qwen.put("tokenizer.ggml.pre", STRING, b"whitespace"),
        "no tokens": llama.put(TOKENS, ARRAY, Array(STRING, [])),
    }
    assert [name for name, document in sound.items() if not read(document, tmp_path).is_verified] == []
    assert [name for name, document in unusual.items() if read(document, tmp_path).is_verified] == []


def test_a_large_vocabulary_takes_time_and_memory_in_proportion(tmp_path: Path) -> None:
    def cost(tokens: int) -> tuple[float, int]:
        words = model_zoo.VOCABULARIES["spm"]()
        texts = (*words.tokens, *(b"token %d" % index for index in range(tokens)))
        words = words._replace(tokens=texts, types=(*words.types, *[1] * tokens), scores=())
        path = tmp_path / "m.gguf"
        path.write_bytes(model_zoo.model("llama", words, sizes={"E": 1}).encoded())
        tracemalloc.start()
        begun = time.perf_counter()
        sound_vocabulary(read_header(path))
        seconds, (_, peak) = time.perf_counter() - begun, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return seconds, peak

    small, large = cost(20_000), cost(80_000)
    assert large[1] < 4.8 * small[1]
    assert large[0] < 12 * small[0]


def test_a_layout_that_llama_cpp_does_not_take_is_refused_by_name(tmp_path: Path) -> None:
    document = model_zoo.model("llama")
    first = document.tensors[0]
    wrong = {
        "holds a NUL": document.put("general.name\0x", STRING, b"a"),
        "'general.architecture' twice": replace(document, pairs=(*document.pairs, document.pairs[0])),
        "'token_embd.weight' twice": replace(document, tensors=(*document.tensors, first)),
        "general.alignment is 48, but must be a power of 2": document.put("general.alignment", U32, 48),
        "must be a power of 2 of type u32": document.put("general.alignment", U16, 64),
    }
    tensors = {
        "is at 64, but must be at 0": first._replace(offset=64),
        "has the impossible shape": first._replace(shape=(2**40, 2**40)),
        "has 5 dimensions": first._replace(shape=(1, 1, 1, 1, 1)),
        "not a multiple of 32, the block size of Q8_0": first._replace(shape=(63, 2), kind=8),
        "is longer than 63 bytes": first._replace(name=b"t" * 64),
        "is empty or holds a NUL": first._replace(name=b""),
    }
    for says, tensor in tensors.items():
        wrong[says] = replace(document, tensors=(tensor, *document.tensors[1:]))
    for says, damaged in wrong.items():
        assert says in refused(damaged, tmp_path)


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
        assert not read(document, tmp_path).is_verified
    else:
        assert "precompiled_charsmap leads outside of its own" in refused(document, tmp_path)


def test_taken_apart_and_put_together_a_file_is_the_same() -> None:
    data = _data.builtin_model().read_bytes()
    assert decoded(data).encoded() == data
