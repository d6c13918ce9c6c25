"""What callers write for a model on the Hub: understood, taken for a path, or refused with the right spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.hub.names import Name, parse
from engine.support.errors import ModelLoadError

REPO = "Qwen/Qwen3-0.6B-GGUF"
FILE = "Qwen3-0.6B-Q8_0.gguf"
PAGE = f"https://huggingface.co/{REPO}"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (REPO, Name(REPO)),
        (f"{REPO}:Q8_0", Name(REPO, quantization="Q8_0")),
        (f"{REPO}:ud-q4_k_xl", Name(REPO, quantization="ud-q4_k_xl")),
        (f"{REPO}:", Name(REPO)),
        (f"{REPO}/", Name(REPO)),
        (f"{REPO}/{FILE}", Name(REPO, pattern=FILE)),
        (f"{REPO}/Q8_0/{FILE}", Name(REPO, pattern=f"Q8_0/{FILE}")),
        (f"{REPO}:{FILE}", Name(REPO, pattern=FILE)),
        (f"{REPO}/*Q5*.gguf", Name(REPO, pattern="*Q5*.gguf")),
        (f"{REPO}@v1.0:Q8_0", Name(REPO, "v1.0", "Q8_0")),
        (f"{REPO}@refs/pr/3/{FILE}", Name(REPO, "refs/pr/3", pattern=FILE)),
        (f"{REPO}@refs%2Fpr%2F3", Name(REPO, "refs/pr/3")),
        (f"hf://{REPO}", Name(REPO)),
        (f"hf://models/{REPO}:Q8_0", Name(REPO, quantization="Q8_0")),
        (f"hf://{REPO}@main/{FILE}", Name(REPO, "main", pattern=FILE)),
        ("hf://owner/model.gguf", Name("owner/model.gguf")),
        (f"hf.co/{REPO}:Q8_0", Name(REPO, quantization="Q8_0")),
        (f"huggingface.co/{REPO}/blob/main/{FILE}", Name(REPO, "main", pattern=FILE)),
        (PAGE, Name(REPO)),
        (f"{PAGE}/tree/main", Name(REPO, "main")),
        (f"{PAGE}/tree/main/BF16", Name(REPO, "main", pattern="BF16/*")),
        (f"{PAGE}/blob/main/{FILE}", Name(REPO, "main", pattern=FILE)),
        (f"{PAGE}/resolve/main/{FILE}?download=true", Name(REPO, "main", pattern=FILE)),
        (f"{PAGE}/raw/refs%2Fpr%2F3/{FILE}#L1", Name(REPO, "refs/pr/3", pattern=FILE)),
        (f"{PAGE}/resolve/main/a%20b.gguf", Name(REPO, "main", pattern="a b.gguf")),
        (f"{PAGE}/discussions/7", Name(REPO)),
        (f"http://hf.co/{REPO}/blob/abc/x/{FILE}", Name(REPO, "abc", pattern=f"x/{FILE}")),
    ],
)
def test_spellings(text: str, name: Name) -> None:
    assert parse(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model",
        "model.gguf",
        "models/model.gguf",
        "models/Model.GGUF",
        "./models/model",
        "../models/model",
        "~/models/model",
        "/models/model",
        "C:\\models\\model",
        "C:/models/model",
        "owner\\repo",
        "a b/c d",
    ],
)
def test_paths(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("https://example.org/model.gguf", "not an address of the Hugging Face Hub"),
        ("https://[hf.co/a/b", "is not an address"),
        ("ftp://huggingface.co/a/b", "not an address of the Hugging Face Hub"),
        ("s3://bucket/model.gguf", "not an address of the Hugging Face Hub"),
        ("https://huggingface.co/", "does not name a repository"),
        ("https://huggingface.co/Qwen", "does not name a repository"),
        ("https://huggingface.co/datasets/a/b", "names a data set"),
        ("https://huggingface.co/spaces/a/b", "names a Space"),
        ("https://huggingface.co/collections/a/b", "names a collection"),
        ("hf://datasets/a/b/c.gguf", "names a data set"),
        ("hf://buckets/a/b", "names a bucket"),
        ("hf://Qwen", "does not name a repository"),
        ("hf.co/Qwen", "does not name a repository"),
    ],
)
def test_what_is_no_model_is_refused_with_the_right_spelling(text: str, told: str) -> None:
    with pytest.raises(ModelLoadError, match=told) as error:
        parse(text)
    assert '"owner/repo:Q4_K_M"' in str(error.value)


def test_the_address_of_another_endpoint_counts_where_it_is_one() -> None:
    address = "https://mirror.example/owner/repo/resolve/main/x.gguf"
    assert parse(address, frozenset({"mirror.example"})) == Name("owner/repo", "main", pattern="x.gguf")


@given(st.text(max_size=60) | st.text("abQ48_KM/:@.-*hf", max_size=40).map(lambda text: f"hf://{text}"))
def test_any_text_is_a_name_a_path_or_refused(text: str) -> None:
    try:
        name = parse(text)
    except ModelLoadError:
        return
    if name is not None:
        owner, _, repo = name.repo.partition("/")
        assert owner, text
        assert repo, text
        assert ".." not in (owner, repo), text
        assert parse(f"hf://{name}") == name or name.pattern is not None or name.quantization is not None
