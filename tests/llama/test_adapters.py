"""Adapters and control vectors on the built-in model, against llama.cpp's calls alone and engines of their own."""

import json
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases.adapted_turns import BareAdapted, Part, compared, hits_across
from files.adapter_files import LAYERS, WIDTH, write_adapter, write_adapter_of, write_control_vector

from engine import Completion, Engine, StateStore, batch
from engine.api.loading import TemplateChoice, load
from engine.llama.gguf.adapter_file import read_adapter, read_control_vectors
from engine.llama.plan.plan import Machine
from engine.support import _data
from engine.support.errors import ContextOverflowError, EngineWarning, ModelLoadError, RequestError
from engine.turns.options import settings

MODEL = _data.builtin_model()
QUESTION = "Hello! Who are you?"
GREEDY: Any = {"temperature": 0, "max_tokens": 12, "reasoning": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, Path]:
    with Engine.load(n_ctx=512) as llm:
        invocation = llm.tokenize("<|im_start|>assistant\n")
    return {
        "a": write_adapter(folder / "a.gguf", seed=1, strength=1.0),
        "b": write_adapter(folder / "b.gguf", seed=2, strength=1.0),
        "late": write_adapter(folder / "late.gguf", seed=3, strength=1.0, invocation=invocation),
    }


@pytest.fixture(scope="module")
def llm(files: dict[str, Path]) -> Iterator[Engine]:
    with Engine.load(adapters=files, n_ctx=1024, n_threads=1, n_sequences=4, kv_unified=False) as llm:
        yield llm


def said(llm: Engine, **options: Any) -> str:
    return llm.chat(QUESTION, **{**GREEDY, **options}).content or ""


@pytest.mark.parametrize("unified", [False, True])
def test_conversations_say_what_engines_of_their_own_say(files: dict[str, Path], *, unified: bool) -> None:
    sets = {"a": {"a": 1.0}, "half": {"b": 0.5}, "late": {"late": 1.0}, "none": {}}
    load: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "kv_unified": unified, "preflight": False}
    made, found = compared(MODEL, files, sets, 28, **load)
    assert [each for each in found if not each.is_rounding] == []
    assert hits_across(made) == 0
    first = {turn.name: turn.answer.content for turn in made if len(turn.messages) == 1}
    assert len(set(first.values())) == 4, "the sets answer alike, so this shows nothing"
    assert sum(turn.cached for turn in made) > 1000


def test_an_activated_lora_continues_the_prefix_of_the_model_alone(llm: Engine, files: dict[str, Path]) -> None:
    messages = [{"role": "user", "content": "Tell me something about rivers, and about mountains too."}]
    base = llm.chat(messages, **GREEDY)
    assert base.usage
    answer = llm.chat(messages, **GREEDY | {"max_tokens": 1}, adapters=["late"], logprobs=20)
    tokens = llm.tokenize(llm.render(messages, reasoning=False).text, add_bos=True)
    invocation = list(llm.adapters["late"].invocation_tokens)
    start = max(at for at in range(len(tokens)) if tokens[at : at + len(invocation)] == invocation)
    assert answer.usage
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (len(tokens), start)
    with closing(BareAdapted(MODEL, files)) as bare:
        parts: list[Part] = [(tokens[:start], {}), (tokens[start:], {"late": 1.0})]
        right, whole = bare.logits(parts), bare.logits([(tokens, {"late": 1.0})])
        noise = np.abs(right - bare.logits(parts, rows=1)).max()
    assert answer.logprobs is not None
    drawn = answer.logprobs[0].top
    theirs = [float(right[each.token] - right.max()) for each in drawn]
    ours = [each.logprob - drawn[0].logprob for each in drawn]
    assert np.abs(np.subtract(ours, theirs)).max() <= 2 * noise + 1e-4
    others = [float(whole[each.token] - whole.max()) for each in drawn]
    assert np.abs(np.subtract(ours, others)).max() > 100 * noise, "it makes no difference where it begins"


def test_a_prompt_without_the_invocation_is_the_models_own(llm: Engine) -> None:
    text = "<|im_start|>user\nHello! Who are you?<|im_end|>\n<|im_start|>"
    alone = llm.complete(text, temperature=0, max_tokens=8)
    assert llm.complete(text, temperature=0, max_tokens=8, adapters=["late"]).content == alone.content
    assert llm.complete(text, temperature=0, max_tokens=8, adapters=["a"]).content != alone.content


def test_every_way_of_generating_takes_adapters(llm: Engine) -> None:
    plain, adapted = said(llm), said(llm, adapters=["a"])
    assert plain != adapted
    assert said(llm, adapters={"a": 0.0}) == said(llm, adapters=[]) == said(llm, adapters=None) == plain
    assert llm.stream(QUESTION, adapters={"a": 1}, **GREEDY).result().content == adapted
    assert [each.result().content for each in llm.choices(QUESTION, 2, adapters=["a"], **GREEDY)] == [adapted] * 2
    rows: list[Any] = [(QUESTION, {"adapters": ["a"]}), QUESTION, (QUESTION, {"adapters": ["b"]})]
    assert [each.content for each in llm.generate(rows, on_error="raise", **GREEDY)] == [
        adapted,
        plain,
        said(llm, adapters=["b"]),
    ]
    assert llm.run(QUESTION, adapters=["a"], **GREEDY).completion.content == adapted
    (alone,), (scored,) = (llm.score(QUESTION, [" I am"], adapters=each) for each in (None, ["a"]))
    assert abs(alone.logprob - scored.logprob) > 0.1
    spread = [llm.decide(QUESTION, "It is so.", adapters=each)["answer"].rows for each in (None, ["a"])]
    assert spread[0] != spread[1]
    with pytest.raises(RequestError, match=r"'x'\. Loaded are: 'a', 'b', 'late'"):
        llm.chat(QUESTION, adapters=["x"])
    with pytest.raises(RequestError, match=r"0 to 4\)\. Loaded are: 'a', 'b', 'late'"):
        llm.chat(QUESTION, adapters={"a": float("nan")})
    with pytest.raises(RequestError, match="adapters"):
        llm.embed(QUESTION, adapters=["a"])  # pyright: ignore[reportCallIssue]


def test_the_openai_client_and_batches_take_adapters(llm: Engine, tmp_path: Path) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    adapted = said(llm, adapters={"a": 0.5})
    with llm.openai_client() as client:
        body = {"adapters": {"a": 0.5}, "reasoning": False}
        answer = client.chat.completions.create(
            model="", messages=messages, temperature=0, max_tokens=12, extra_body=body
        )
        assert answer.choices[0].message.content == adapted
        with pytest.raises(Exception, match="There is no adapter 'x'"):
            client.chat.completions.create(model="", messages=messages, extra_body={"adapters": ["x"]})
    body = {"messages": messages, "temperature": 0, "max_tokens": 12, "reasoning": False}
    rows = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": {**body, **own}}
        for number, own in enumerate(({"adapters": {"a": 0.5}}, {}, {"adapters": ["x"]}))
    ]
    report = batch.run(rows, tmp_path / "out.jsonl", llm, quiet=True)
    assert report.failed == 1
    lines = map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines())
    texts = {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in lines}
    assert texts == {"0": adapted, "1": said(llm)}


def test_what_is_loaded_is_told(llm: Engine, files: dict[str, Path]) -> None:
    adapters = llm.adapters
    assert list(adapters) == ["a", "b", "late"]
    assert (adapters["a"].path, adapters["a"].architecture, adapters["a"].rank) == (files["a"], "qwen3", 4)
    assert (adapters["a"].invocation_tokens, len(adapters["late"].invocation_tokens)) == ((), 3)
    assert adapters["a"].size_bytes < files["a"].stat().st_size


def test_adapters_come_and_go_while_others_run(files: dict[str, Path]) -> None:
    with Engine.load(n_ctx=1024, n_threads=1, n_sequences=4, preflight=False) as llm:
        running = llm.stream("A story?", ignore_eos=True, temperature=0, max_tokens=150)
        llm.load_adapter("x", files["a"], scale=0.5)
        half = said(llm, adapters=["x"])
        assert half == said(llm, adapters={"x": 0.5}) != said(llm, adapters={"x": 1.0})
        using = llm.stream("A story?", adapters=["x"], ignore_eos=True, max_tokens=60)
        llm.drop_adapter("x")
        assert using.result().usage.completion_tokens == 60  # pyright: ignore[reportOptionalMemberAccess]
        with pytest.raises(RequestError, match="no adapter 'x'"):
            llm.chat(QUESTION, adapters=["x"])
        llm.load_adapter("x", files["b"])
        with pytest.raises(RequestError, match="There is an adapter 'x' already"):
            llm.load_adapter("x", files["a"])
        other = said(llm, adapters=["x"])
        assert running.result().usage.completion_tokens == 150  # pyright: ignore[reportOptionalMemberAccess]
    with Engine.load(adapters={"b": files["b"]}, n_ctx=1024, n_threads=1, preflight=False) as llm:
        assert said(llm, adapters=["b"]) == other
    with pytest.raises(Exception, match="closed"):
        llm.load_adapter("y", files["a"])


def test_an_isolated_model_loads_them_in_its_process(llm: Engine, files: dict[str, Path], folder: Path) -> None:
    vector = write_control_vector(folder / "isolated.gguf")
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "n_sequences": 4, "kv_unified": False, "preflight": False}
    with Engine.load(adapters={"a": files["a"]}, isolated=True, **options) as isolated:
        isolated.load_adapter("late", files["late"])
        for adapters in ({}, {"a": 0.5}, {"late": 1.0}):
            assert said(isolated, adapters=adapters) == said(llm, adapters=adapters)
        isolated.drop_adapter("late")
        with pytest.raises(ModelLoadError, match="does not exist in base model"):
            isolated.load_adapter("c", write_adapter(folder / "layers.gguf", layers=LAYERS + 2))
    with Engine.load(control_vectors={vector: 20.0}, isolated=True, **options) as isolated:
        assert said(isolated) != said(llm)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("architecture", {"architecture": "llama"}, r"architecture 'llama', but builtin-q8_0.gguf is 'qwen3'"),
        ("shape", {"width": WIDTH // 2}, "has incorrect shape"),
        ("layers", {"layers": LAYERS + 2}, "does not exist in base model"),
    ],
)
def test_a_file_for_another_model_is_refused_with_the_reason(
    llm: Engine, tmp_path: Path, name: str, options: dict[str, Any], says: str
) -> None:
    path = write_adapter(tmp_path / f"{name}.gguf", **options)
    with pytest.raises(ModelLoadError, match=says):
        llm.load_adapter(name, path)
    with pytest.raises(ModelLoadError, match=says):
        Engine.load(adapters={name: path}, n_ctx=512, preflight=False)
    assert name not in llm.adapters
    assert said(llm)


def test_what_is_no_adapter_is_refused_with_the_reason(llm: Engine, files: dict[str, Path], tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(files["a"].read_bytes()[:-500])
    (tmp_path / "adapter_model.safetensors").touch()
    for path, says in (
        (cut, "cut off"),
        (tmp_path / "missing.gguf", "There is no file"),
        (MODEL, "is not an adapter"),
        (tmp_path, "convert_lora_to_gguf.py"),
        (tmp_path / "adapter_model.safetensors", "convert_lora_to_gguf.py"),
    ):
        with pytest.raises(ModelLoadError, match=says):
            llm.load_adapter("new", path)
    wrong: Any
    for wrong, says in ((3, "must be a str or Path"), (None, "must be a str or Path")):
        with pytest.raises(RequestError, match=says):
            llm.load_adapter("new", wrong)
    for wrong in ("", 3):
        with pytest.raises(RequestError, match="name of an adapter must be a text"):
            llm.load_adapter(wrong, files["a"])
    with pytest.raises(RequestError, match="scale of the adapter 'new' is nan"):
        llm.load_adapter("new", files["a"], scale=float("nan"))
    for wrong in (["a.gguf"], "a.gguf", 3):
        with pytest.raises(RequestError, match="adapters="):
            Engine.load(adapters=wrong)


def test_a_file_that_ends_llama_cpp_ends_a_child(llm: Engine, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "deadly.gguf", alpha=False)
    with pytest.raises(ModelLoadError, match=r"deadly.gguf is not loaded. .*died by SIGABRT"):
        llm.load_adapter("deadly", path)
    assert said(llm)


@pytest.mark.parametrize("number", [float("nan"), 1e38])
def test_a_file_that_makes_no_numbers_is_refused(
    number: float, llm: Engine, builtin_model_path: Path, tmp_path: Path
) -> None:
    path = write_adapter_of(tmp_path / "spoiled.gguf", builtin_model_path, number)
    for _ in range(2):  # and remembered
        with pytest.raises(ModelLoadError, match=r"spoiled.gguf is not loaded: with it the model computes NaN"):
            llm.load_adapter("spoiled", path)
    assert said(llm)


def test_what_llama_cpp_does_not_apply_is_a_warning(llm: Engine, tmp_path: Path) -> None:
    norms = write_adapter(tmp_path / "norms.gguf", more=["blk.0.attn_norm.weight"])
    with pytest.warns(EngineWarning, match=r"does not apply 1 of the tensors in .*norms.gguf \(blk.0.attn_norm.weight"):
        llm.load_adapter("norms", norms)
    llm.drop_adapter("norms")


def test_an_adapter_of_an_embedding_matrix_that_is_the_output_too_is_refused(llm: Engine, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "words.gguf", words=llm.inspect().vocabulary)
    with pytest.raises(ModelLoadError, match=r"adapts the embedding matrix.*would end the process there"):
        llm.load_adapter("words", path)


def test_an_adapter_that_does_not_fit_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    size = read_adapter(files["a"]).size_bytes
    room = Machine(available=1 << 30)
    assert room.without(1 << 29).room == Machine(available=1 << 29).room
    small = [Machine(available=1 << 40)]
    loaded = load(
        None, settings({"n_ctx": 512}), TemplateChoice(trust_template=True), machine=lambda: small[0], preflight=False
    )
    small[0] = Machine(available=size)
    with pytest.raises(ContextOverflowError, match="drop another"):
        loaded.adapters.tried(files["a"])
    small[0] = Machine(available=2 * size)
    assert loaded.adapters.tried(files["a"]).size_bytes == size
    loaded.weights.close()


def test_a_kept_prefix_belongs_to_its_adapters_and_control_vectors(files: dict[str, Path], folder: Path) -> None:
    about = "You answer questions about rivers and mountains, as short as you can. " * 4
    system = [{"role": "system", "content": about}]
    vector = write_control_vector(folder / "state.gguf")
    talk = [*system, {"role": "user", "content": "Which is the longest?"}]

    def opened(adapters: dict[str, Path], **options: Any) -> Engine:
        states = StateStore(0, folder / "states", 1 << 30)
        return Engine.load(adapters=adapters, n_ctx=1024, n_threads=1, n_sequences=4, states=states, **options)

    def cached(answer: Completion) -> int:
        assert answer.usage is not None
        return answer.usage.cached_tokens

    with opened({"x": files["a"]}) as llm, llm.pin(system, adapters=["x"]) as prefix:
        expected = llm.chat(talk, adapters=["x"], **GREEDY)
    with opened({"x": files["a"]}, control_vectors={vector: 1.0}) as llm:
        assert cached(llm.chat(talk, adapters=["x"], **GREEDY)) == 0
    with opened({"other": files["a"], "b": files["b"]}) as llm:
        answers = [llm.chat(talk, adapters=each, **GREEDY) for each in (["b"], [], ["other"])]
    assert [cached(each) for each in answers[:2]] == [0, 0]
    assert cached(answers[2]) >= prefix.tokens
    assert answers[2].content == expected.content
    with opened({"x": files["b"]}) as llm:
        assert llm.chat(talk, adapters=["x"], **GREEDY).content == answers[0].content


def test_control_vectors_add_up(llm: Engine, folder: Path) -> None:
    one, two = (write_control_vector(folder / f"{seed}.gguf", seed=seed) for seed in (1, 2))
    last = write_control_vector(folder / "last.gguf", seed=1, layers=[LAYERS - 1])
    same: Any = {"n_ctx": 1024, "n_threads": 1}
    answers: list[str] = []
    for vectors in ({one: 0.0}, {one: 10.0}, {last: 200.0}, {one: 10.0, two: 10.0}):
        with Engine.load(control_vectors=vectors, **same) as steered:
            answers.append(said(steered))
    assert answers[0] == said(llm)
    assert len(set(answers)) == 4
    both = read_control_vectors([(str(one), 2.0), (str(two), -1.0)], WIDTH, LAYERS)
    apart = [read_control_vectors([(str(path), 1.0)], WIDTH, LAYERS) for path in (one, two)]
    assert both is not None
    assert apart[0] is not None
    assert apart[1] is not None
    assert np.allclose(both, 2 * apart[0] - apart[1])
    alone = read_control_vectors([(str(last), 1.0)], WIDTH, LAYERS)
    assert alone is not None
    assert (alone[:-1] == 0).all()
    assert alone[-1].any()


def test_control_vectors_of_another_model_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    wide = write_control_vector(tmp_path / "wide.gguf", width=2 * WIDTH)
    deep = write_control_vector(tmp_path / "deep.gguf", layers=[1, LAYERS])
    good = write_control_vector(tmp_path / "good.gguf")
    vectors: Any
    for vectors, says in (
        ({wide: 1.0}, r"direction of shape \[512\] for layer 1"),
        ({deep: 1.0}, "for layer 7"),
        ({files["a"]: 1.0}, "is not a control vector"),
        ({tmp_path / "missing": 1.0}, "There is no file"),
        ({good: 1e39}, "not finite"),
    ):
        with pytest.raises(ModelLoadError, match=says):
            Engine.load(control_vectors=vectors)
    for vectors in ({good: float("nan")}, {good: "1"}, [good], 3):
        with pytest.raises(RequestError, match="control_vectors="):
            Engine.load(control_vectors=vectors)


def test_a_model_that_only_makes_vectors_takes_neither(tmp_path: Path, files: dict[str, Path]) -> None:
    from files.vector_files import KINDS, write

    path = write(tmp_path / "bert.gguf", KINDS["bert-mean"])
    with pytest.raises(RequestError, match="this one only makes vectors"):
        Engine.load(path, adapters=files)
    with pytest.raises(RequestError, match="this one only makes vectors"):
        Engine.load(path, control_vectors={"x": 1.0})


def test_an_open_llama_takes_adapters(files: dict[str, Path], llm: Engine) -> None:
    import llama_cpp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        llama = llama_cpp.Llama(str(MODEL), n_ctx=1024, n_threads=1, verbose=False)
    with Engine.from_llama(llama, n_sequences=4) as over:
        over.load_adapter("a", files["a"])
        assert said(over, adapters=["a"]) == said(llm, adapters=["a"])
    llama.close()
