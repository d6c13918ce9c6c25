"""Models of Ollama and LM Studio: their stores are read as they stand, and what a stranger put there is refused."""

import json
import os
import socket
from collections.abc import Callable
from contextlib import chdir, redirect_stderr
from io import StringIO
from pathlib import Path

import pytest
from files import model_files
from files.projector_files import KINDS, write_projector
from files.store_files import blob, layer, manifest, ollama
from huggingface_hub import constants

from engine import Engine, Engines
from engine.api import on_disk
from engine.api.loading import located
from engine.cli import main, suggestions
from engine.hub import elsewhere, stored
from engine.llama.plan.plan import Machine
from engine.support.errors import ModelLoadError, RequestError
from engine.support.packaged import PACKAGED

LIBRARY = "registry.ollama.ai/library"
GB = 10**9


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, no packages with models, an empty cache, no network."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr("engine.hub.ollama._SYSTEM", tmp_path / "service")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in list(PACKAGED):
        monkeypatch.delitem(PACKAGED, name)
    return tmp_path


@pytest.fixture
def store(home: Path) -> Path:
    """Ollama's, empty."""
    folder = home / ".ollama" / "models"
    (folder / "blobs").mkdir(parents=True)
    (folder / "manifests").mkdir()
    return folder


@pytest.fixture
def studio(home: Path) -> Path:
    """LM Studio's, empty."""
    folder = home / ".lmstudio" / "models"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def weights(builtin_model_path: Path) -> bytes:
    return builtin_model_path.read_bytes()


def names() -> list[str]:
    return [each.name for each in elsewhere.models() if not each.problem]


def test_a_model_of_ollamas_is_loaded_by_its_name(store: Path, weights: bytes) -> None:
    ollama(store, f"{LIBRARY}/toy/4b", model=weights, template=b"{{ .Prompt }}", license=b"free")
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    with Engine.load("ollama:toy:4b", n_ctx=512, preflight=False) as llm:
        assert "built-in model" in llm.chat("Hello! Who are you?", temperature=0).content
        assert llm.info is not None
        assert llm.info.path.parent == (store / "blobs").resolve()
    assert before == {path: path.stat().st_mtime_ns for path in store.rglob("*")}, "the store is only read"


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (f"{LIBRARY}/toy/latest", "toy"),
        (f"{LIBRARY}/toy/latest", "toy:latest"),
        (f"{LIBRARY}/toy/4b-Q8_0", "TOY:4B-q8_0"),
        ("registry.ollama.ai/somebody/toy/7b", "somebody/toy:7b"),
        ("hf.co/owner/toy-GGUF/Q4_K_M", "hf.co/owner/toy-GGUF:Q4_K_M"),
        ("localhost:5000/library/toy/1b", "localhost:5000/library/toy:1b"),
    ],
)
def test_names_are_those_of_ollama_list(store: Path, weights: bytes, place: str, name: str) -> None:
    ollama(store, place, model=weights)
    (listed,) = elsewhere.models()
    assert located(f"ollama:{name}", None) == located(listed.name, None) == listed.path
    assert listed.name.lower().removesuffix(":latest") == f"ollama:{name}".lower().removesuffix(":latest")


def test_what_ollama_does_not_have(home: Path, weights: bytes) -> None:
    with pytest.raises(ModelLoadError, match=r"there is no folder .*\.ollama/models.*`ollama pull toy:4b`"):
        located("ollama:toy:4b", None)
    store = home / "service"  # the service's, where the user has none
    ollama(store, f"{LIBRARY}/toy/4b", model=weights)
    assert names() == ["ollama:toy:4b"]
    with pytest.raises(ModelLoadError, match=r"which has toy:4b; did you mean 'toy:4b'\?"):
        located("ollama:toy:3b", None)
    with pytest.raises(ModelLoadError, match="write ollama:toy:4b for what Ollama has"):
        located("toy:4b", None)
    with pytest.raises(RequestError, match="revision"):
        located("ollama:toy:4b", "main")


def test_the_variable_names_another_store(
    store: Path, home: Path, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ollama(store, f"{LIBRARY}/toy/1b", model=weights)
    ollama(home / "elsewhere", f"{LIBRARY}/toy/2b", model=weights)
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    assert names() == ["ollama:toy:2b"]
    (home / "link").symlink_to(home / "elsewhere")  # the store itself may be one
    monkeypatch.setenv("OLLAMA_MODELS", "~/link")
    assert located("ollama:toy:2b", None).is_file()


def test_the_projector_that_a_manifest_names_is_found(store: Path, home: Path, weights: bytes) -> None:
    projector = write_projector(home / "mmproj.gguf", KINDS["llava"]).read_bytes()
    ollama(store, f"{LIBRARY}/seeing/1b", model=weights, projector=projector)
    manifest(store, f"{LIBRARY}/broken/1b", b"{")
    with Engine.load("ollama:seeing:1b", projector="auto", family="qwen3", n_ctx=2048, preflight=False) as llm:
        assert "image" in llm.inspect().media
    blind = weights + b"\0"
    ollama(store, f"{LIBRARY}/blind/1b", model=blind)
    with pytest.raises(ModelLoadError, match="has no projector for"):
        Engine.load("ollama:blind:1b", projector="auto")
    ollama(store, f"{LIBRARY}/seeing/2b", model=weights, projector=projector + b"\0")
    with pytest.raises(ModelLoadError, match="several projectors"):
        Engine.load("ollama:seeing:1b", projector="auto")


def test_a_model_with_an_adapter_says_how_it_is_loaded(store: Path, weights: bytes) -> None:
    ollama(store, f"{LIBRARY}/tuned/1b", model=weights, adapter=b"GGUF adapter")
    with pytest.raises(ModelLoadError, match=r"Engine\.load\('.*sha256-.*', adapters=\{\"it\": '.*sha256-"):
        located("ollama:tuned:1b", None)


def test_a_model_of_lm_studios_is_loaded_by_its_file(studio: Path, weights: bytes) -> None:
    folder = studio / "own" / "toy-GGUF"
    folder.mkdir(parents=True)
    for name in ("toy-Q8_0.gguf", "toy-Q4_K_M.gguf", "mmproj-toy-F16.gguf", "notes.txt"):
        (folder / name).write_bytes(weights)
    whole = (folder / "toy-Q8_0.gguf").resolve()
    for name in ("own/toy-GGUF/toy-Q8_0.gguf", "own/toy-GGUF/toy-Q8_0", "own/toy-GGUF:q8_0"):
        assert located(f"lmstudio:{name}", None) == whole
    assert located("lmstudio:own/toy-GGUF", None).name == "toy-Q4_K_M.gguf"
    assert located("lmstudio:own/toy-GGUF/mmproj-toy-F16", None).name == "mmproj-toy-F16.gguf"
    with Engine.load("lmstudio:own/toy-GGUF", n_ctx=512, preflight=False) as llm:
        assert llm.chat("Hello!", max_tokens=3).usage.completion_tokens
    with pytest.raises(ModelLoadError, match=r"lmstudio:own/toy-GGUF has no quantisation 'Q2_K'"):
        located("lmstudio:own/toy-GGUF:Q2_K", None)
    with pytest.raises(ModelLoadError, match=r"no model own/toy here .* did you mean 'own/toy-GGUF'"):
        located("lmstudio:own/toy", None)


def test_lm_studios_folder_is_where_its_own_files_say(home: Path, weights: bytes) -> None:
    for place, name in ((".lmstudio/models", "a"), (".cache/lm-studio/models", "b"), ("moved/models", "c"), ("d", "d")):
        (home / place / "own" / name).mkdir(parents=True)
        (home / place / "own" / name / "m.gguf").write_bytes(weights)
    assert names() == ["lmstudio:own/a/m.gguf", "lmstudio:own/b/m.gguf"]
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'moved'}\n")
    assert names() == [f"lmstudio:own/{each}/m.gguf" for each in "abc"]
    (home / ".lmstudio" / "settings.json").write_text(json.dumps({"downloadsFolder": str(home / "d")}))
    assert names() == [f"lmstudio:own/{each}/m.gguf" for each in "bcd"]
    for text in ('{"downloadsFolder": 7}', '{"downloadsFolder": "relative"}', "[" * 100_000, "{", "[]", '"\\u0000"'):
        (home / ".lmstudio" / "settings.json").write_text(text)
        assert names() == [f"lmstudio:own/{each}/m.gguf" for each in "abc"]


def test_a_pointer_that_is_none_costs_only_what_it_points_to(studio: Path, home: Path, weights: bytes) -> None:
    (studio / "own" / "a").mkdir(parents=True)
    (studio / "own" / "a" / "m.gguf").write_bytes(weights)
    (home / ".lmstudio-home-pointer").write_bytes(b"a" * (1 << 21))
    assert names() == ["lmstudio:own/a/m.gguf"]


def test_split_models_have_all_their_parts(studio: Path, weights: bytes) -> None:
    folder = studio / "own" / "split"
    folder.mkdir(parents=True)
    for part in (1, 2):
        (folder / f"s-Q8_0-0000{part}-of-00002.gguf").write_bytes(weights)
    assert located("lmstudio:own/split:Q8_0", None).name == "s-Q8_0-00001-of-00002.gguf"
    (folder / "s-Q8_0-00002-of-00002.gguf").unlink()
    with pytest.raises(ModelLoadError, match="lacks part 2"):
        located("lmstudio:own/split:Q8_0", None)
    assert names() == []


def test_every_command_takes_such_a_name(
    store: Path, studio: Path, weights: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    ollama(store, f"{LIBRARY}/toy/1b", model=weights)
    manifest(store, f"{LIBRARY}/broken/1b", b"{")
    (studio / "own" / "toy").mkdir(parents=True)
    (studio / "own" / "toy" / "m-Q8_0.gguf").write_bytes(weights)
    assert main(["models", "list", "--json"]) == 0
    rows = {row["name"]: (row["size"], row["quantization"]) for row in json.loads(capsys.readouterr().out)}
    assert rows == {
        "ollama:broken:1b": (0, "(damaged)"),
        "ollama:toy:1b": (len(weights), "Q8_0"),
        "lmstudio:own/toy/m-Q8_0.gguf": (len(weights), "Q8_0"),
    }
    for name in ("ollama:toy:1b", "lmstudio:own/toy", "auto"):
        assert main(["run", name, "Hello!"]) == 0
        assert main(["models", "fit", name]) == 0
        assert main(["inspect", name]) == 0
    capsys.readouterr()
    assert main(["models", "download", "ollama:toy:1b"]) == 0
    assert "sha256-" in capsys.readouterr().out
    assert main(["models", "remove", "ollama:toy:1b", "--yes"]) == 1
    assert "remove it there" in capsys.readouterr().err
    assert main(["chat", "ollama:broken:1b"]) == 1
    assert "is not JSON" in capsys.readouterr().err


def test_models_suggest_marks_what_is_here(
    store: Path, studio: Path, weights: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ollama(store, f"{LIBRARY}/toy/1b", model=weights)
    folder = studio / "Qwen" / "Qwen3-0.6B-GGUF"
    folder.mkdir(parents=True)
    (folder / "Qwen3-0.6B-Q8_0.gguf").write_bytes(weights)
    monkeypatch.setattr(suggestions, "this_machine", lambda: Machine(14 * GB))
    assert main(["models", "suggest"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Already here: qwen3-0.6b (lmstudio:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf)." in out
    assert "Others on this disk: ollama:toy:1b (" in out
    assert main(["models", "suggest", "--json"]) == 0
    here = {row["name"]: row["here"] for row in json.loads(capsys.readouterr().out)["models"]}
    assert [name for name, where in here.items() if where] == ["qwen3-0.6b"]


def test_auto_takes_the_best_that_is_here_and_says_so(store: Path, studio: Path, weights: bytes, home: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no chat model on this disk that fits, among 0\. .*models suggest"):
        Engine.load("auto")
    small = model_files.write(home / "small.gguf").read_bytes()
    ollama(store, f"{LIBRARY}/small/1b", model=small)
    ollama(store, f"{LIBRARY}/broken/1b", model=b"GGUF")
    (studio / "own" / "toy").mkdir(parents=True)
    (studio / "own" / "toy" / "m-Q8_0.gguf").write_bytes(weights)
    told = StringIO()
    with redirect_stderr(told), Engine.load("auto", n_ctx=512, preflight=False) as llm:
        assert llm.info is not None
        assert llm.info.path.name == "m-Q8_0.gguf"
    assert "auto: lmstudio:own/toy/m-Q8_0.gguf (" in told.getvalue()
    assert "the best of 2 here that fit" in told.getvalue()
    room = len(weights)  # the larger one leaves no room for a context
    assert on_disk.best(Machine(10 * len(small) + room)) == ("ollama:small:1b", None)
    with pytest.raises(ModelLoadError, match=r"among 3: .*are more than the"):
        on_disk.best(Machine(1000))
    with pytest.raises(RequestError, match=r'"auto" chooses'):
        Engine.load("auto", revision="main")
    with Engines({"one": {"model": "auto", "n_ctx": 512, "preflight": False}}) as engines:
        assert engines["one"].chat("Hello!", max_tokens=3).usage.completion_tokens


def test_auto_takes_a_model_of_the_hub_at_the_commit_that_is_here(home: Path, weights: bytes) -> None:
    commit = "a" * 40
    folder = home / "hub" / "models--own--repo" / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "m-Q8_0.gguf").write_bytes(weights)
    assert on_disk.best(Machine(None)) == ("own/repo/m-Q8_0.gguf", commit)
    with Engine.load("auto", n_ctx=512, preflight=False) as llm:
        assert llm.info is not None
        assert llm.info.path == folder / "m-Q8_0.gguf"


def _raw(data: bytes) -> Callable[[Path, Path, bytes], object]:
    return lambda store, outside, weights: manifest(store, f"{LIBRARY}/bad/1b", data)


def _layers(*layers: object) -> Callable[[Path, Path, bytes], object]:
    return _raw(json.dumps({"layers": layers}).encode())


def _digest(text: object, size: object = 9) -> Callable[[Path, Path, bytes], object]:
    return _layers(layer("model", text, size))


def _placed(make: Callable[[Path, Path], object]) -> Callable[[Path, Path, bytes], object]:
    """A whole model whose blob is put there by `make(path, outside)`."""

    def write(store: Path, outside: Path, weights: bytes) -> None:
        path = store / "blobs" / f"sha256-{'c' * 64}"
        ollama(store, f"{LIBRARY}/bad/1b", layer("model", f"sha256:{'c' * 64}", len(weights)))
        make(path, outside)

    return write


def _socket(path: Path, _: Path) -> None:
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)  # the path of a socket is short


def _linked_manifest(store: Path, outside: Path, weights: bytes) -> None:
    written = ollama(store, f"{LIBRARY}/bad/2b", model=weights)
    moved = outside.with_name("manifest")
    written.rename(moved)
    written.with_name("1b").symlink_to(moved)


def _linked_blobs(store: Path, outside: Path, weights: bytes) -> None:
    ollama(store, f"{LIBRARY}/bad/1b", model=weights)
    (store / "blobs").rename(outside.with_name("blobs"))
    (store / "blobs").symlink_to(outside.with_name("blobs"))


def _twice(store: Path, _: Path, weights: bytes) -> None:
    one, two = (layer("model", blob(store, data), len(data)) for data in (weights, weights + b"1"))
    ollama(store, f"{LIBRARY}/bad/1b", one, two)


def _circle(path: Path, _: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


HOSTILE: dict[str, tuple[Callable[[Path, Path, bytes], object], str]] = {
    "an empty manifest": (_raw(b""), "is not JSON"),
    "no JSON": (_raw(b"\x00\xff\xfe"), "is not JSON"),
    "deep lists": (_raw(b"[" * 200_000), "is not JSON|no list of layers"),
    "deep objects": (_raw(b'{"layers":' * 100_000), "is not JSON"),
    "a number of a million digits": (_raw(b'{"layers": ' + b"1" * 1_000_000 + b"}"), "is not JSON|no list"),
    "a list": (_raw(b"[]"), "no list of layers"),
    "a null": (_raw(b"null"), "no list of layers"),
    "layers that are a text": (_raw(b'{"layers": "sha256:00"}'), "no list of layers"),
    "layers that are numbers": (_layers(1, 2), "without media type, digest or size"),
    "no layers": (_layers(), "has no GGUF file here"),
    "nothing but tensors": (_layers(layer("tensor", "sha256:" + "0" * 64, 4)), "has no GGUF file here"),
    "a manifest of two megabytes": (_raw(b" " * (2 << 20)), "more than 1,048,576 bytes"),
    "a digest that climbs": (_digest("sha256:../../../outside.gguf"), "a digest that is none"),
    "a digest that climbs behind 64 digits": (
        _digest("sha256:" + "0" * 64 + "/../../outside"),
        "a digest that is none",
    ),
    "a digest that is a path": (_digest("/etc/passwd"), "a digest that is none"),
    "a digest of another kind": (_digest("md5:" + "0" * 32), "a digest that is none"),
    "a digest in capitals": (_digest("sha256:" + "A" * 64), "a digest that is none"),
    "a digest with a line's end": (_digest("sha256:" + "0" * 64 + "\n"), "a digest that is none"),
    "a digest of other digits": (_digest("sha256:" + "\u0664" * 64), "a digest that is none"),
    "a digest that is a number": (_digest(7), "without media type, digest or size"),
    "a size that is a text": (_digest("sha256:" + "0" * 64, "9"), "without media type, digest or size"),
    "a size that is true": (_digest("sha256:" + "0" * 64, size=True), "without media type, digest or size"),
    "a negative size": (_digest("sha256:" + "0" * 64, -1), "is not there"),
    "a blob that is not there": (_digest("sha256:" + "0" * 64), "is not there"),
    "a blob cut off": (_placed(lambda path, _: path.write_bytes(b"GGUF")), "has 4 of"),
    "a blob that is a folder": (_placed(lambda path, _: path.mkdir()), "is not there"),
    "a blob that is a pipe": (_placed(lambda path, _: os.mkfifo(path)), "is not there"),
    "a blob that is a socket": (_placed(_socket), "is not there"),
    "a blob that links out": (_placed(lambda path, out: path.symlink_to(out)), "is a link out of"),
    "a blob that links to a device": (_placed(lambda path, _: path.symlink_to("/dev/zero")), "is a link out of"),
    "a blob that links in a circle": (_placed(_circle), "cannot be followed|is not there|is a link"),
    "blobs that link out": (_linked_blobs, "is a link out of"),
    "a manifest that links out": (_linked_manifest, "is a link out of"),
    "two files of weights": (_twice, "has 2 files of weights"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_store_is_refused_and_the_rest_of_it_is_read(
    store: Path, home: Path, weights: bytes, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = home / "outside.gguf"
    outside.write_bytes(weights)
    make, told = HOSTILE[kind]
    make(store, outside, weights)
    with pytest.raises(ModelLoadError, match=told):
        located("ollama:bad:1b", None)
    if not (store / "blobs").is_symlink():
        ollama(store, f"{LIBRARY}/good/1b", model=weights)
        assert names() == ["ollama:good:1b"]
        assert on_disk.best(Machine(None)) == ("ollama:good:1b", None)
    assert main(["models", "list", "--json"]) == 0
    rows = {row["name"]: row["quantization"] for row in json.loads(capsys.readouterr().out)}
    assert rows["ollama:bad:1b"] == "(damaged)"


@pytest.mark.parametrize(
    "name",
    ["", "../x", "a/../b", "a/b/c/d", "/etc/passwd", "a b", "a:b:c", "a//b", "x:", "a:../b", "\0", "x" * 200, "a\n"],
)
@pytest.mark.usefixtures("store", "studio")
def test_what_is_no_name_is_said_to_be_none(name: str) -> None:
    with pytest.raises(ModelLoadError, match=r"is not a name of Ollama's|is not a readable path"):
        located(f"ollama:{name}", None)
    with pytest.raises(ModelLoadError, match=r"is not a model of LM Studio's|has no model|is not a readable path"):
        located(f"lmstudio:{name}", None)


def test_manifests_at_other_places_are_no_models(store: Path, weights: bytes) -> None:
    for place in ("toy", "library/toy", f"{LIBRARY}/toy/a/b", f"{LIBRARY}/-/1b", f"{LIBRARY}/to y/1b"):
        path = ollama(store, place, model=weights)
        assert elsewhere.models() == []
        path.unlink()


def test_a_store_of_many_files_is_read_to_a_bound(store: Path, weights: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MOST", 20)
    for number in range(30):
        ollama(store, f"{LIBRARY}/toy{number % 3}/{number:02}", model=weights)
    assert len(elsewhere.models()) == 20
    assert located("ollama:toy2:29", None).is_file(), "by its name it is found at once"


def test_links_out_of_lm_studios_folder_are_refused(studio: Path, home: Path, weights: bytes) -> None:
    outside = home / "outside.gguf"
    outside.write_bytes(weights)
    folder = studio / "own" / "toy"
    folder.mkdir(parents=True)
    (folder / "m-Q8_0.gguf").symlink_to(outside)
    (folder / "m-Q4_0.gguf").write_bytes(weights)
    (folder / "m-Q5_0.gguf").symlink_to("m-Q4_0.gguf")
    (studio / "linked").symlink_to(home)
    with pytest.raises(ModelLoadError, match="is a link out of"):
        located("lmstudio:own/toy:Q8_0", None)
    assert located("lmstudio:own/toy:Q5_0", None).name == "m-Q4_0.gguf"
    assert names() == ["lmstudio:own/toy/m-Q4_0.gguf", "lmstudio:own/toy/m-Q5_0.gguf"]
