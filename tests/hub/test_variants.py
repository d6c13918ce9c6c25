"""Which files of a repository a name means."""

from collections.abc import Mapping, Sequence

import pytest

from engine.hub.names import Name
from engine.hub.variants import File, Variant, projector_of, quantization_of, select, size_text, variants_of
from engine.support.errors import ModelLoadError

GB = 10**9


def repository(sizes: Mapping[str, float]) -> list[Variant]:
    return variants_of(File(path, int(size * GB)) for path, size in sizes.items())


def chosen(
    name: Name, variants: Sequence[Variant], memory: float | None = None, here: Sequence[str] = ()
) -> tuple[str, str]:
    """The first path of what is selected, and why."""
    available = None if memory is None else int(memory * GB)
    variant, why = select(name, variants, available, lambda variant: variant.path in here)
    return variant.path, why


QWEN = {
    "Qwen3-8B-Q2_K.gguf": 3.28,
    "Qwen3-8B-Q3_K_M.gguf": 4.12,
    "Qwen3-8B-Q4_K_M.gguf": 5.03,
    "Qwen3-8B-Q5_K_M.gguf": 5.85,
    "Qwen3-8B-Q8_0.gguf": 8.71,
    "BF16/Qwen3-8B-BF16-00001-of-00002.gguf": 10.0,
    "BF16/Qwen3-8B-BF16-00002-of-00002.gguf": 6.4,
    "Qwen3-8B-UD-Q4_K_XL.gguf": 5.13,
    "mmproj-Qwen3-8B-F16.gguf": 1.2,
    "imatrix_unsloth.gguf": 0.01,
    "README.md": 0.0,
}


@pytest.mark.parametrize(
    ("path", "quantization"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Qwen3-30B-A3B-UD-IQ1_S.gguf", "UD-IQ1_S"),
        ("Llama-3.2-3B-Instruct-IQ3_XXS.gguf", "IQ3_XXS"),
        ("mistral-7b.Q8_0.gguf", "Q8_0"),
        ("mistral-7b-fp16.gguf", "F16"),
        ("model-BF16-00001-of-00002.gguf", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("x-NVFP4.gguf", "NVFP4"),
        ("bitnet-TQ1_0.gguf", "TQ1_0"),
        ("gemma-3-4b-it-qat-q4_0.gguf", "Q4_0"),
        ("old-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("model-IQ4_NL.gguf", "IQ4_NL"),
        ("model-Q3_K_XL.gguf", "Q3_K_XL"),
        ("model.f16.Q6_K.gguf", "Q6_K"),
        ("model-Q6_K-f32.gguf", "Q6_K"),
        ("Q4_K_M/model-00001-of-00003.gguf", "Q4_K_M"),
        ("model-Q4_K_M-imat.gguf", "Q4_K_M"),
        ("model_q5_k_s_v2.gguf", "Q5_K_S"),
        ("QwQ-32B.gguf", ""),
        ("Phi-4-F15.gguf", ""),
        ("model.gguf", ""),
    ],
)
def test_quantisations_in_file_names(path: str, quantization: str) -> None:
    assert quantization_of(path) == quantization


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ("Q4_K_M", "Qwen3-8B-Q4_K_M.gguf"),
        ("q4_k_m", "Qwen3-8B-Q4_K_M.gguf"),
        ("q4-k-m", "Qwen3-8B-Q4_K_M.gguf"),
        ("Q4_K_XL", "Qwen3-8B-UD-Q4_K_XL.gguf"),
        ("ud-q4_k_xl", "Qwen3-8B-UD-Q4_K_XL.gguf"),
        ("bf16", "BF16/Qwen3-8B-BF16-00001-of-00002.gguf"),
    ],
)
def test_a_quantisation_is_found_in_any_case(wanted: str, path: str) -> None:
    assert chosen(Name("o/r", quantization=wanted), repository(QWEN)) == (path, "")


def test_a_missing_quantisation_names_those_there_are_with_sizes() -> None:
    with pytest.raises(ModelLoadError) as error:
        chosen(Name("o/r", quantization="Q6_K"), repository(QWEN))
    assert str(error.value) == (
        "o/r has no quantisation 'Q6_K'. It has Q2_K (3.28 GB), Q3_K_M (4.12 GB), Q4_K_M (5.03 GB), "
        "UD-Q4_K_XL (5.13 GB), Q5_K_M (5.85 GB), Q8_0 (8.71 GB), BF16 (16.4 GB)."
    )


def test_two_models_of_one_quantisation_are_ambiguous() -> None:
    both = repository({"small-Q4_K_M.gguf": 1, "large-Q4_K_M.gguf": 4})
    for name in (Name("o/r", quantization="Q4_K_M"), Name("o/r")):
        with pytest.raises(
            ModelLoadError, match=r"large-Q4_K_M\.gguf \(4\.00 GB\), small.* Name one: o/r/large-Q4_K_M\.gguf"
        ):
            chosen(name, both)
    assert chosen(Name("o/r", pattern="small*"), both) == ("small-Q4_K_M.gguf", "")
    assert chosen(Name("o/r"), both, here=["small-Q4_K_M.gguf"])[0] == "small-Q4_K_M.gguf"


def test_files_and_globs() -> None:
    there = repository(QWEN)
    assert chosen(Name("o/r", pattern="Qwen3-8B-Q8_0.gguf"), there)[0] == "Qwen3-8B-Q8_0.gguf"
    assert chosen(Name("o/r", pattern="qwen3-8b-q8_0.GGUF"), there)[0] == "Qwen3-8B-Q8_0.gguf"
    assert chosen(Name("o/r", pattern="*Q5*.gguf"), there)[0] == "Qwen3-8B-Q5_K_M.gguf"
    assert chosen(Name("o/r", pattern="BF16/*"), there)[0] == "BF16/Qwen3-8B-BF16-00001-of-00002.gguf"
    with pytest.raises(ModelLoadError, match="several files that"):
        chosen(Name("o/r", pattern="*Q4*.gguf"), there)
    with pytest.raises(ModelLoadError, match=r"has no GGUF file 'x\.gguf'. It has BF16/.*Q2_K\.gguf \(3\.28 GB\)"):
        chosen(Name("o/r", pattern="x.gguf"), there)
    assert chosen(Name("o/r", pattern="[1].gguf"), repository({"[1].gguf": 1, "1.gguf": 1}))[0] == "[1].gguf"


def test_what_is_no_chat_model_is_taken_only_by_its_name() -> None:
    there = repository(QWEN)
    assert chosen(Name("o/r", pattern="mmproj*"), there)[0] == "mmproj-Qwen3-8B-F16.gguf"
    with pytest.raises(ModelLoadError, match="no quantisation 'F16'"):
        chosen(Name("o/r", quantization="F16"), there)
    with pytest.raises(
        ModelLoadError, match=r"no chat model among its GGUF files: ggml-vocab-x\.gguf.*o/r/ggml-vocab-x\.gguf"
    ):
        chosen(Name("o/r"), repository({"ggml-vocab-x.gguf": 1, "my-lora-Q8_0.gguf": 1}))
    with pytest.raises(ModelLoadError, match=r"has no GGUF file.*base_model:quantized:o/r"):
        chosen(Name("o/r"), repository({"model.safetensors": 1}))


def test_parts_of_a_split_model_belong_together() -> None:
    there = repository({f"m-Q8_0-0000{part}-of-00003.gguf": part for part in (3, 1, 2)})
    assert [file.path for file in there[0].files] == [f"m-Q8_0-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    assert there[0].size == 6 * GB
    assert chosen(Name("o/r", pattern="m-Q8_0-00002-of-00003.gguf"), there)[0] == "m-Q8_0-00001-of-00003.gguf"
    assert chosen(Name("o/r", pattern="*.gguf"), there)[0] == "m-Q8_0-00001-of-00003.gguf"


def test_a_split_model_with_a_part_missing_is_refused() -> None:
    there = repository({"m-Q8_0-00001-of-00003.gguf": 1, "m-Q8_0-00003-of-00003.gguf": 1, "m-Q4_0.gguf": 1})
    with pytest.raises(ModelLoadError, match="lacks part 2 of the split model m-Q8_0-00001"):
        chosen(Name("o/r", quantization="Q8_0"), there)
    assert chosen(Name("o/r"), there)[0] == "m-Q4_0.gguf"


@pytest.mark.parametrize(
    ("memory", "path"),
    [
        (None, "Qwen3-8B-Q4_K_M.gguf"),
        (100, "Qwen3-8B-Q4_K_M.gguf"),
        (5.6, "Qwen3-8B-Q4_K_M.gguf"),
        (5.5, "Qwen3-8B-Q3_K_M.gguf"),
        (4.0, "Qwen3-8B-Q2_K.gguf"),
    ],
)
def test_a_quantisation_is_chosen_by_the_memory(memory: float | None, path: str) -> None:
    got, why = chosen(Name("o/r"), repository(QWEN), memory)
    assert got == path
    assert why.startswith(f"{quantization_of(path)}, one of 7 (")
    assert ("of memory are available" in why) == (memory is not None)


@pytest.mark.parametrize(
    ("paths", "path"),
    [
        ({"m-Q8_0.gguf": 8, "m-F16.gguf": 16}, "m-Q8_0.gguf"),
        ({"m-Q5_K_M.gguf": 5, "m-Q3_K_M.gguf": 3}, "m-Q5_K_M.gguf"),
        ({"m-Q4_0.gguf": 4.3, "m-Q4_K_S.gguf": 4.2, "m-IQ4_XS.gguf": 4}, "m-Q4_K_S.gguf"),
        ({"m-MXFP4.gguf": 12, "m-F16.gguf": 13}, "m-MXFP4.gguf"),
        ({"m-Q2_K.gguf": 2, "m-Q3_K_L.gguf": 3, "m-TQ1_0.gguf": 1}, "m-Q3_K_L.gguf"),
        ({"model.gguf": 8}, "model.gguf"),
    ],
)
def test_the_nearest_to_four_bits_is_taken_where_there_is_no_q4_k_m(paths: dict[str, float], path: str) -> None:
    assert chosen(Name("o/r"), repository(paths), 64)[0] == path


def test_nothing_fits() -> None:
    with pytest.raises(
        ModelLoadError, match=r"memory available, 2\.00 GB: it has Q2_K \(3\.28 GB\).*anyway: o/r:Q2_K$"
    ):
        chosen(Name("o/r"), repository(QWEN), 2)
    assert chosen(Name("o/r", quantization="Q8_0"), repository(QWEN), 2)[0] == "Qwen3-8B-Q8_0.gguf"


def test_what_was_downloaded_before_is_taken_where_it_fits() -> None:
    there, name = repository(QWEN), Name("o/r")
    assert chosen(name, there, 64, ["Qwen3-8B-Q8_0.gguf"])[0] == "Qwen3-8B-Q8_0.gguf"
    assert "downloaded before" in chosen(name, there, 64, ["Qwen3-8B-Q8_0.gguf"])[1]
    assert chosen(name, there, 6, ["Qwen3-8B-Q8_0.gguf"])[0] == "Qwen3-8B-Q4_K_M.gguf"
    assert chosen(name, there, 64, ["Qwen3-8B-Q8_0.gguf", "Qwen3-8B-Q2_K.gguf"])[0] == "Qwen3-8B-Q8_0.gguf"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (4_920_000_000, "4.92 GB"),
        (45_100_000, "45.1 MB"),
        (999_400_000, "999 MB"),
        (999_600_000, "1.00 GB"),
        (2 * 10**13, "20.0 TB"),
        (None, "size unknown"),
    ],
)
def test_sizes_are_shown_as_the_hub_shows_them(size: int | None, text: str) -> None:
    assert size_text(size) == text


# --- projectors

PROJECTORS = {"mmproj-F32.gguf": 2.6, "mmproj-BF16.gguf": 1.3, "mmproj-F16.gguf": 1.3, "mmproj-Q8_0.gguf": 0.7}


def projector(
    files: Mapping[str, float], model: str = "m-Q4_K_M.gguf", room: float | None = None, here: str = ""
) -> str:
    available = None if room is None else int(room * GB)
    there = repository({model: 5, **files})
    found, why = projector_of(model, there, available, lambda each: each.path == here, "o/r")
    assert why.startswith(found.path)
    return found.path


@pytest.mark.parametrize(
    ("left_out", "room", "chosen"),
    [
        ("", None, "F16"),
        ("", 1.4, "F16"),
        ("", 1.0, "Q8_0"),
        ("F16", 9, "BF16"),
        ("F16 BF16", 9, "Q8_0"),
        ("F16 BF16 Q8_0", 9, "F32"),
        ("Q8_0", 1.0, "BF16"),
        ("", 0.1, "Q8_0"),
    ],
)
def test_a_projector_is_f16_unless_memory_is_short(left_out: str, room: float | None, chosen: str) -> None:
    without = {f"mmproj-{each}.gguf" for each in left_out.split()}
    there = {path: size for path, size in PROJECTORS.items() if path not in without}
    assert projector(there, room=room) == f"mmproj-{chosen}.gguf"


def test_a_projector_that_is_here_is_kept_if_it_fits() -> None:
    assert projector(PROJECTORS, room=2, here="mmproj-Q8_0.gguf") == "mmproj-Q8_0.gguf"
    assert projector(PROJECTORS, room=1, here="mmproj-F16.gguf") == "mmproj-Q8_0.gguf"


def test_projectors_of_several_models_are_told_apart_by_their_names() -> None:
    both = {"mmproj-small-F16.gguf": 1, "large-mmproj-f16.gguf": 2}
    assert projector(both, "large-Q4_K_M.gguf") == "large-mmproj-f16.gguf"
    assert projector(both, "Small-Q8_0-00001-of-00001.gguf") == "mmproj-small-F16.gguf"
    named = r"several projectors: large-mmproj-f16\.gguf \(2\.00 GB\), mmproj-small-F16.*Name the one for other-Q8_0"
    with pytest.raises(ModelLoadError, match=named):
        projector(both, "other-Q8_0.gguf")
    with pytest.raises(ModelLoadError, match="several projectors"):
        projector({"mmproj-F16.gguf": 1, "mmproj_F16.gguf": 1})
    folders = {"a/mmproj-F16.gguf": 1, "b/mmproj-F16.gguf": 1}
    assert projector(folders, "b/m-Q4_K_M.gguf") == "b/mmproj-F16.gguf"
    assert projector({"mmproj-F16.gguf": 1}, "BF16/m-BF16-00001-of-00002.gguf") == "mmproj-F16.gguf"


def test_what_has_no_projector() -> None:
    with pytest.raises(ModelLoadError, match=r"o/r has no projector \(mmproj-\*\.gguf\) for m-Q4_K_M\.gguf"):
        projector({"lora-F16.gguf": 1, "imatrix.gguf": 1})


def test_a_projector_is_never_the_model() -> None:
    there = repository({**PROJECTORS, "m-Q8_0.gguf": 5, "m-mmproj-Q4_K_M.gguf": 1})
    assert chosen(Name("o/r"), there, memory=2**20)[0] == "m-Q8_0.gguf"
    assert chosen(Name("o/r", pattern="*8_0*"), there)[0] == "m-Q8_0.gguf"
    for quantization in ("F16", "Q4_K_M"):
        with pytest.raises(ModelLoadError, match=r"no quantisation.* It has Q8_0 \(5\.00 GB\)\."):
            chosen(Name("o/r", quantization=quantization), there)
    with pytest.raises(ModelLoadError, match="has no chat model among its GGUF files"):
        chosen(Name("o/r"), repository(PROJECTORS))
