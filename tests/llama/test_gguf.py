"""Which files are models, read without llama.cpp; what is wrong with the others."""

import ctypes
import mmap
import os
import random
import struct
import sys
from pathlib import Path

import gguf
import pytest
from files import model_files, model_zoo
from files.gguf_bytes import ARRAY, I32, STRING, Array

from engine.llama.gguf import gguf_header as gguf_types
from engine.llama.gguf.gguf import NamedTemplate, read_gguf
from engine.llama.lib import library
from engine.support.errors import ModelLoadError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_files.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_model_is_described(tiny: Path) -> None:
    model = read_gguf(tiny)
    shape = model_files.Shape()
    reader = gguf.GGUFReader(tiny)
    assert model.path == tiny
    assert model.parts == (tiny,)
    assert (model.architecture, model.name, model.quantization) == ("llama", "tiny", "F32")
    assert model.parameters == sum(int(tensor.n_elements) for tensor in reader.tensors)
    assert model.weights == sum(int(tensor.n_bytes) for tensor in reader.tensors)
    assert (model.shape.n_ctx_train, model.shape.n_embd, model.shape.n_ff, model.shape.n_head) == (512, 64, 96, 2)
    assert model.tokens.n_vocab == len(model_files.vocabulary().tokens)
    keys = shape.n_rot * shape.n_head_kv
    assert [(layer.keys, layer.values, layer.windowed, layer.head) for layer in model.shape.layers] == [
        (keys, keys, False, shape.n_rot)
    ] * 2
    assert sum(layer.weights for layer in model.shape.layers) < model.weights
    assert model.tokens.chat_template == model_files.TEMPLATE
    assert model.tokens.named_templates == ()


def test_the_path_may_be_text(tiny: Path) -> None:
    assert read_gguf(str(tiny)) == read_gguf(tiny)


def test_named_templates(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_string("tokenizer.chat_template.tool_use", "T")
        writer.add_string("tokenizer.chat_template.rag", "R")

    model = read_gguf(model_files.write(tmp_path / "m.gguf", change=change))
    assert model.tokens.named_templates == (NamedTemplate("rag", "R"), NamedTemplate("tool_use", "T"))


def test_without_a_file_type_the_largest_tensor_type_is_the_quantization(tmp_path: Path) -> None:
    path = model_files.write(tmp_path / "m.gguf")
    data = path.read_bytes()
    key = b"general.file_type"
    path.write_bytes(data.replace(key, b"general.file_typo"))
    assert read_gguf(path).quantization == "F32"


@pytest.mark.parametrize("kind", list(gguf.GGMLQuantizationType))
def test_tensor_types_are_those_of_llama_cpp(kind: gguf.GGMLQuantizationType) -> None:
    ggml = library()._lib
    ggml.ggml_type_size.restype = ggml.ggml_row_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    block = ggml.ggml_blck_size(kind.value)
    assert gguf_types.tensor_type_name(kind.value) == kind.name
    assert gguf_types.tensor_bytes(kind.value, 10 * block) == 10 * ggml.ggml_type_size(kind.value)


def test_an_unknown_tensor_type_has_no_size_that_could_be_checked() -> None:
    assert gguf_types.tensor_bytes(999, 10) == 0
    assert gguf_types.tensor_type_name(999) == "type 999"


@pytest.mark.parametrize(("kind", "name"), [(15, "Q4_K_M"), (7, "Q8_0"), (38, "MXFP4"), (1024, None)])
def test_file_type_names(kind: int, name: str | None) -> None:
    assert gguf_types.file_type_name(kind) == name


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="There is no file"):
        read_gguf(tmp_path / "absent.gguf")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
def test_what_is_no_readable_file_is_named_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(ModelLoadError, match="is a pipe, a socket or a device"):
        read_gguf(pipe)
    with pytest.raises(ModelLoadError, match="is a pipe, a socket or a device"):
        read_gguf("/dev/null")
    with pytest.raises(ModelLoadError, match=r"'a\\x00b' is not a path \(.*null.*\)"):
        read_gguf("a\0b")
    with pytest.raises(ModelLoadError, match=r"cannot be read \(File name too long"):
        read_gguf("x" * 5000)
    with pytest.raises(ModelLoadError, match="There is no file"):
        read_gguf(pipe / "below.gguf")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(ModelLoadError, match=r"cannot be read \(Permission denied\); check the path"):
        read_gguf(tmp_path / "secret" / "m.gguf")


def test_a_directory_names_a_model_in_it(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"is a directory.*tiny.gguf"):
        read_gguf(tiny.parent)
    with pytest.raises(ModelLoadError, match=r"pass the path of a \.gguf file"):
        read_gguf(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"GGUF", "not a GGUF file: it ends after 4 bytes"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "was downloaded instead of the model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git-lfs pointer"),
        (b"PK\x03\x04" + bytes(40), "must be converted first"),
        (b"\x00" * 100, r"it begins with b'\\x00\\x00\\x00\\x00', not with b'GGUF'"),
    ],
)
def test_files_that_are_no_gguf(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=says):
        read_gguf(path)


def test_safetensors_must_be_converted(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 20) + b'{"__metadata__": {}}')
    with pytest.raises(ModelLoadError, match="must be converted first"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("version", "says"),
    [(b"\x00\x00\x00\x03", "big-endian"), (b"\x01\x00\x00\x00", "version 1;"), (b"\x09\x00\x00\x00", "version 9;")],
)
def test_versions_that_are_not_supported(tiny: Path, tmp_path: Path, version: bytes, says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + version + tiny.read_bytes()[8:])
    with pytest.raises(ModelLoadError, match=says):
        read_gguf(path)


def test_a_file_cut_off_anywhere_is_refused(tiny: Path, tmp_path: Path) -> None:
    data = tiny.read_bytes()
    path = tmp_path / "cut.gguf"
    # Every length up to the end of the metadata is too many; a stride that is no multiple of any field's width visits
    # all.
    for length in (*range(24, 9000, 37), len(data) // 2, len(data) - 33):
        path.write_bytes(data[:length])
        with pytest.raises(ModelLoadError, match="cut off"):
            read_gguf(path)


def test_damaged_numbers_are_refused(tiny: Path, tmp_path: Path) -> None:
    data = bytearray(tiny.read_bytes())
    path = tmp_path / "damaged.gguf"
    for position in (8, 16, 24):  # the count of tensors, of pairs, the length of the first key
        broken = bytearray(data)
        broken[position : position + 8] = b"\xff" * 8
        path.write_bytes(broken)
        with pytest.raises(ModelLoadError, match="damaged"):
            read_gguf(path)


@pytest.mark.parametrize("kind", [9, 77])
def test_arrays_of_arrays_and_unknown_types_are_damage(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "m.gguf"
    pair = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, kind, 1) + bytes(64)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
    with pytest.raises(ModelLoadError, match="damaged"):
        read_gguf(path)
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77) + bytes(64)
    )
    with pytest.raises(ModelLoadError, match="damaged"):
        read_gguf(path)


def test_an_alignment_that_makes_no_sense_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    key = b"general.alignment"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair + bytes(64))
    with pytest.raises(ModelLoadError, match="damaged"):
        read_gguf(path)


def test_a_tensor_of_many_dimensions_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"t" + struct.pack("<I", 99) + bytes(900)
    )
    with pytest.raises(ModelLoadError, match="damaged"):
        read_gguf(path)


def test_a_file_that_may_not_be_read(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(mmap, "mmap", denied)
    with pytest.raises(ModelLoadError, match=r"cannot be read.*Permission denied"):
        read_gguf(tiny)


def test_an_encoder_is_an_embedding_model(tmp_path: Path) -> None:
    file = read_gguf(model_files.write(tmp_path / "m.gguf", "bert"))
    assert file.embeds
    assert not file.shape.is_causal


def test_a_chat_architecture_with_pooling_is_an_embedding_model(tmp_path: Path) -> None:
    def pool(writer: gguf.GGUFWriter) -> None:
        writer.add_pooling_type(gguf.PoolingType.LAST)

    file = read_gguf(model_files.write(tmp_path / "m.gguf", "qwen3", change=pool))
    assert (file.embeds, file.shape.pooling, file.shape.is_causal) == (True, "last", True)


def test_no_pooling_is_no_embedding_model(tmp_path: Path) -> None:
    def pool(writer: gguf.GGUFWriter) -> None:
        writer.add_pooling_type(gguf.PoolingType.NONE)

    assert read_gguf(model_files.write(tmp_path / "m.gguf", "qwen3", change=pool)).architecture == "qwen3"


def test_pooling_that_llama_cpp_saved_as_minus_one_is_none(tmp_path: Path) -> None:
    def pool(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("qwen3.pooling_type", 2**32 - 1)

    assert read_gguf(model_files.write(tmp_path / "m.gguf", "qwen3", change=pool)).architecture == "qwen3"


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    def adapter(writer: gguf.GGUFWriter) -> None:
        writer.add_type(gguf.GGUFType.ADAPTER)

    with pytest.raises(ModelLoadError, match="a LoRA adapter"):
        read_gguf(model_files.write(tmp_path / "m.gguf", change=adapter))


def test_a_vocabulary_only_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="a vocabulary only"):
        read_gguf(model_files.write(tmp_path / "m.gguf", tensors=False))


def test_a_file_without_architecture_is_refused(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.read_bytes().replace(b"general.architecture", b"general.architektur3"[:20]))
    with pytest.raises(ModelLoadError, match="does not name its architecture"):
        read_gguf(path)


@pytest.mark.parametrize("layers", [0, 513, 2**32 - 1])
def test_a_number_of_layers_that_llama_cpp_would_die_of(tmp_path: Path, layers: int) -> None:
    path = model_files.write(tmp_path / "m.gguf")
    key = b"llama.block_count" + struct.pack("<I", 4)
    data = path.read_bytes()
    assert data.count(key + struct.pack("<I", 2)) == 1
    path.write_bytes(data.replace(key + struct.pack("<I", 2), key + struct.pack("<I", layers)))
    with pytest.raises(ModelLoadError, match=f"block_count is {layers}; 1 to 512 are possible"):
        read_gguf(path)


@pytest.mark.parametrize("tokenizer", ["none", "no_vocab", "test"])
def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path, tokenizer: str) -> None:
    path = tmp_path / "m.gguf"
    document = model_zoo.model("llama").put("tokenizer.ggml.model", STRING, tokenizer.encode())
    path.write_bytes(document.encoded())
    with pytest.raises(ModelLoadError, match="text cannot become tokens"):
        read_gguf(path)


@pytest.mark.parametrize(("count", "length"), [(1, 12_000), (200, 1000)])
def test_many_long_control_tokens_are_refused(tmp_path: Path, count: int, length: int) -> None:
    document = model_zoo.model("llama")
    texts, kinds = document.texts("tokenizer.ggml.tokens"), list(document.array("tokenizer.ggml.token_type").items)
    for place in range(count):
        texts[place], kinds[place] = b"%d" % place + b"x" * length, 3
    path = tmp_path / "m.gguf"
    for kind, refused in ((1, False), (3, True)):
        kinds[:count] = [kind] * count
        changed = document.put("tokenizer.ggml.tokens", ARRAY, Array(STRING, texts))
        path.write_bytes(changed.put("tokenizer.ggml.token_type", ARRAY, Array(I32, kinds)).encoded())
        if refused:
            with pytest.raises(ModelLoadError, match="control and user-defined tokens are too many and too long"):
                read_gguf(path)
        else:
            assert not read_gguf(path).is_verified


def test_any_damage_to_the_header_is_refused_or_harmless(tiny: Path, tmp_path: Path) -> None:
    """What the reader says of a damaged file is a ModelLoadError or nothing, and it says so soon."""
    data = tiny.read_bytes()
    path = tmp_path / "m.gguf"
    chance = random.Random(4)
    vocabulary = range(data.index(b"tokenizer.ggml.tokens") + 40, data.index(b"tokenizer.ggml.bos"))
    places = [place for place in range(8, data.index(b"blk.1.")) if place not in vocabulary]
    refused = 0
    for _ in range(500):
        broken = bytearray(data)
        broken[chance.choice(places)] = chance.choice([0, 1, 127, 128, 255])
        path.write_bytes(broken)
        try:
            read_gguf(path)
        except ModelLoadError:
            refused += 1
    assert refused > 100


def split_model(directory: Path) -> list[Path]:
    model_files.write(directory / "m.gguf", split_bytes=20_000)
    parts = sorted(directory.glob("m-*.gguf"))
    assert len(parts) > 2
    return parts


def test_a_split_model_is_read_whole(tmp_path: Path, tiny: Path) -> None:
    parts = split_model(tmp_path)
    model = read_gguf(parts[0])
    assert model.parts == tuple(parts)
    assert model.weights == read_gguf(tiny).weights


def test_a_split_model_with_a_part_missing(tmp_path: Path) -> None:
    parts = split_model(tmp_path)
    parts[1].unlink()
    with pytest.raises(ModelLoadError, match=f"{parts[1].name} is missing"):
        read_gguf(parts[0])


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    parts = split_model(tmp_path)
    with pytest.raises(ModelLoadError, match=f"pass .*{parts[0].name}"):
        read_gguf(parts[1])


def test_a_split_model_with_a_part_cut_off(tmp_path: Path) -> None:
    parts = split_model(tmp_path)
    parts[2].write_bytes(parts[2].read_bytes()[:-40])
    with pytest.raises(ModelLoadError, match=f"{parts[2].name} is cut off"):
        read_gguf(parts[0])


def test_a_renamed_part_cannot_find_the_others(tmp_path: Path) -> None:
    parts = split_model(tmp_path)
    with pytest.raises(ModelLoadError, match="rename the parts"):
        read_gguf(parts[0].rename(tmp_path / "model.gguf"))


def test_layers_of_unusual_models(tmp_path: Path) -> None:
    def latent(writer: gguf.GGUFWriter) -> None:
        writer.add_key_length(24)
        writer.add_value_length(16)
        writer.add_key_length_mla(12)
        writer.add_value_length_mla(12)

    def interval(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("llama.full_attention_interval", 2)

    def shared(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("llama.attention.shared_kv_layers", 1)

    def windows(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window_pattern([True, False])
        writer.add_sliding_window(64)

    path = tmp_path / "m.gguf"
    kept = [
        (layer.keys, layer.values, layer.head)
        for layer in read_gguf(model_files.write(path, change=latent)).shape.layers
    ]
    assert kept == [(24, 0, 24)] * 2
    assert [layer.keys for layer in read_gguf(model_files.write(path, change=interval)).shape.layers] == [0, 32]
    assert [layer.keys for layer in read_gguf(model_files.write(path, change=shared)).shape.layers] == [32, 0]
    model = read_gguf(model_files.write(path, change=windows))
    assert [layer.windowed for layer in model.shape.layers] == [True, False]
    assert model.shape.sliding_window == 64


def test_recurrent_models_keep_a_state(tmp_path: Path) -> None:
    mamba = read_gguf(model_files.write(tmp_path / "mamba.gguf", "mamba"))
    assert [layer.keys for layer in mamba.shape.layers] == [0, 0]
    assert [layer.state for layer in mamba.shape.layers] == [1408, 1408]
    hybrid = read_gguf(model_files.write(tmp_path / "lfm2.gguf", "lfm2"))
    assert [layer.keys for layer in hybrid.shape.layers] == [0, 32]
    assert [layer.state for layer in hybrid.shape.layers] == [128, 0]
