"""Headers that llama.cpp would end the process over: refused by the key or token; and which files are verified."""

from dataclasses import replace
from pathlib import Path

import gguf
import gguf_mutants
import model_zoo
import pytest
from gguf_bytes import ARRAY, BOOL, F32, I32, STRING, U16, U32, Array, Document, Tensor, Value, decoded
from gguf_fuzz import write_parts

from engine import _data
from engine.errors import ModelLoadError
from engine.llama.gguf import GgufFile, read_gguf

VERIFIED = ("llama", "qwen2", "qwen3", "wide", "gemma", "gemma2", "gemma3", "phi3", "olmo2")


def read(document: Document, folder: Path) -> GgufFile:
    path = folder / "m.gguf"
    path.write_bytes(document.encoded())
    return read_gguf(path)


def refused(document: Document, folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read(document, folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "key", "type_", "value", "says"),
    [
        ("llama", "block_count", U32, 0, "block_count is 0; 1 to 512 are possible"),
        ("llama", "block_count", U32, 513, "block_count is 513; 1 to 512"),
        ("llama", "block_count", F32, 2.0, "block_count is of the type f32, but must be u32"),
        ("llama", "nextn_predict_layers", U32, 2, "nextn_predict_layers is 2, but it has only 2 layers in all"),
        ("llama", "expert_used_count", U32, 2, "expert_used_count is 2, of llama.expert_count 0"),
        ("llama", "expert_count", U32, 4, "expert_used_count is 0, of llama.expert_count 4"),
        ("mixtral", "expert_count", U32, 1025, "expert_count is 1025; 0 to 1024"),
        ("mixtral", "expert_used_count", U32, 5, "expert_used_count is 5, of llama.expert_count 4"),
        ("mixtral", "expert_used_count", ARRAY, Array(I32, [1, 9]), "expert_used_count is 9, of llama.expert_count 4"),
        ("mixtral", "expert_group_count", U32, 4, "expert_group_count is 4, of which 0 are used, for 4 experts"),
        ("mixtral", "expert_group_count", U32, 3, "expert_group_count is 3"),
        ("llama", "rope.scaling.type", STRING, b"spiral", "is 'spiral'; possible are none, linear, yarn, longrope"),
        (
            "llama",
            "attention.layer_norm_rms_epsilon",
            F32,
            -1.0,
            "layer_norm_rms_epsilon is -1.0; it must be at least 0, and finite",
        ),
        ("llama", "attention.layer_norm_rms_epsilon", F32, float("nan"), "layer_norm_rms_epsilon is nan"),
        ("llama", "attention.causal", BOOL, False, "looks at a text in both directions"),
    ],
)
def test_a_number_that_llama_cpp_would_die_of_is_refused_by_its_key(
    tmp_path: Path, kind: str, key: str, type_: int, value: Value, says: str
) -> None:
    assert says in refused(model_zoo.model(kind).put(f"llama.{key}", type_, value), tmp_path)


def test_a_required_key_that_is_missing_is_named(tmp_path: Path) -> None:
    assert "llama.block_count is missing" in refused(model_zoo.model("llama").without("llama.block_count"), tmp_path)


def test_one_expert_is_none_where_llama_cpp_says_so(tmp_path: Path) -> None:
    document = model_zoo.model("llama").put("general.architecture", STRING, b"hunyuan-dense")
    for pair in model_zoo.model("llama").pairs:
        if pair.name.startswith("llama."):
            document = document.without(pair.name).put(
                pair.name.replace("llama.", "hunyuan-dense."), pair.kind, pair.value
            )
    assert read(document.put("hunyuan-dense.expert_count", U32, 1), tmp_path).architecture == "hunyuan-dense"


@pytest.mark.parametrize("name", ["blk.0.attn_norm.weight", "output_norm.weight", "blk.1.ffn_norm.weight"])
def test_a_norm_of_another_type_is_refused(tmp_path: Path, name: str) -> None:
    document = model_zoo.model("llama")
    tensors = tuple(
        Tensor(tensor.name, tensor.shape, bytes(2 * tensor.shape[0]), 1) if tensor.name.decode() == name else tensor
        for tensor in document.tensors
    )
    says = refused(replace(document, tensors=tensors), tmp_path)
    assert f"the tensor '{name}' is of the type F16, but must be F32" in says


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


@pytest.mark.parametrize(("kind", "value"), [(U32, 1), (I32, 1), (ARRAY, Array(I32, [1]))])
def test_a_part_whose_number_has_another_type_is_refused(tmp_path: Path, kind: int, value: Value) -> None:
    change = gguf_mutants.put("type", "", "split.no", kind, value)
    with pytest.raises(ModelLoadError, match=r"split\.no of part 2 is of the type"):
        read_gguf(write_parts(tmp_path, model_zoo.model("llama"), 3, change))


def test_which_models_are_verified(tmp_path: Path) -> None:
    """The plain dense architectures, with the usual tokenizers; of every other a child has to try the file."""
    for kind in model_zoo.KINDS:
        said = read(model_zoo.model(kind), tmp_path).unverified
        assert bool(said) == (kind not in VERIFIED), f"{kind}: {said}"
    for words in ("wpm", "ugm", "rwkv", "plamo2"):
        assert "its tokenizer is of the kind" in read(model_zoo.model("llama", words), tmp_path).unverified
    assert read_gguf(_data.builtin_model()).unverified == ""


@pytest.mark.parametrize(
    ("key", "type_", "value", "says"),
    [
        ("attention.head_count", U32, 3, "no multiple of llama.attention.head_count_kv 2"),
        ("attention.head_count", ARRAY, Array(I32, [2, 2]), "is of the type array of i32"),
        ("attention.head_count", U32, 0, "attention.head_count is 0"),
        ("attention.key_length", U32, 64, "attention.key_length is 64, and llama.attention.value_length another"),
        ("rope.dimension_count", U32, 16, "rope.dimension_count is 16, of heads of 32"),
        ("rope.freq_base", F32, float("nan"), "rope.freq_base is nan"),
        ("rope.scaling.factor", F32, float("inf"), "rope.scaling.factor is inf"),
        ("context_length", U32, 0, "context_length is 0"),
        ("feed_forward_length", U32, 0, "feed_forward_length is 0"),
        ("attention.sliding_window_pattern", U32, 1, "attention.sliding_window_pattern is unusual"),
        ("attention.sliding_window", U32, 2**31 - 1, "attention.sliding_window is 2147483647"),
        ("embedding_length_out", U32, 7, "embedding_length_out is unusual"),
    ],
)
def test_what_is_not_certain_is_left_to_a_child(tmp_path: Path, key: str, type_: int, value: Value, says: str) -> None:
    document = model_zoo.model("llama").put("llama.attention.head_count_kv", U32, 2)
    assert says in read(document.put(f"llama.{key}", type_, value), tmp_path).unverified


def test_a_tensor_that_is_not_known_or_of_an_odd_type_is_left_to_a_child(tmp_path: Path) -> None:
    document = model_zoo.model("llama")
    scale = Tensor(b"blk.0.attn_q.scale", (1,), bytes(4))
    assert "blk.0.attn_q.scale" in read(replace(document, tensors=(*document.tensors, scale)), tmp_path).unverified
    whole = replace(document, tensors=(document.tensors[0]._replace(kind=26), *document.tensors[1:]))
    assert "is of the type I32" in read(whole, tmp_path).unverified


@pytest.mark.parametrize(("kind", "lacking"), [("phi3", "attn_qkv"), ("llama", "attn_q"), ("llama", "attn_v")])
def test_a_layer_without_attention_is_left_to_a_child(tmp_path: Path, kind: str, lacking: str) -> None:
    document = model_zoo.model(kind)
    name = f"blk.1.{lacking}.weight".encode()
    kept = tuple(tensor for tensor in document.tensors if tensor.name != name)
    assert len(kept) == len(document.tensors) - 1
    assert not read(document, tmp_path).unverified
    assert "layer 1 has no attn_qkv" in read(replace(document, tensors=kept), tmp_path).unverified


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.attn_q.weight"])
def test_files_of_the_usual_quantised_types_are_verified(tmp_path: Path, name: str) -> None:
    document = model_zoo.model("wide")
    place = next(index for index, tensor in enumerate(document.tensors) if tensor.name.decode() == name)
    for kind in ("F16", "BF16", "Q4_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ2_XXS", "IQ4_XS", "TQ2_0", "MXFP4"):
        tensor = gguf_mutants.converted(document.tensors[place], gguf.GGMLQuantizationType[kind])
        tensors = (*document.tensors[:place], tensor, *document.tensors[place + 1 :])
        assert read(replace(document, tensors=tensors), tmp_path).unverified == "", kind


def test_taken_apart_and_put_together_a_file_is_the_same() -> None:
    data = _data.builtin_model().read_bytes()
    assert decoded(data).encoded() == data
