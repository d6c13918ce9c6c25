"""Every option by every kind of wrong value: a RequestError that names it, or an answer; nobody else is disturbed."""

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from files import model_files

from engine import Engine, RequestError
from engine.formats.template.chat_template import ChatTemplate
from engine.llama.model import Model
from engine.runtime.loop.config import ContextOptions, LlamaOptions, LoopOptions, ModelOptions
from engine.support.errors import ContextOverflowError, EngineError, QueueFullError
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.turns.options import LoadOptions, RawOptions, TurnOptions


class Hostile:
    """An object that nothing can be done with."""

    def __repr__(self) -> str:
        raise RuntimeError("no name")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equal")

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def nested(depth: int = 20_000) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


WRONG: dict[str, Any] = {
    "None": None,
    "text": "x",
    "digits": "5",
    "no text": "",
    "NUL": "\0",
    "surrogate": "\ud800",
    "bytes": b"x",
    "truth": True,
    "NaN": math.nan,
    "infinite": math.inf,
    "less than nothing": -1,
    "far less": -(10**30),
    "huge": 10**30,
    "endless": 10**5000,  # which Python refuses to print
    "tiny": 1e-300,
    "half": 0.5,
    "complex": 1j,
    "list": [1],
    "texts": ["x", None],
    "nested": nested(),
    "dictionary": {"x": 1},
    "cyclic": None,
    "function": print,
    "class": int,
    "object": object(),
    "hostile": Hostile(),
    "long text": "x" * 200_001,
    "many": ["x"] * 5000,
}
_cyclic: list[Any] = []
_cyclic.append(_cyclic)
WRONG["cyclic"] = _cyclic
VOCAB = ByteVocab(["<|im_start|>", "<tool_call>", "</tool_call>"], end=["<|im_end|>"])


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    backend = ScriptedBackend(lambda _: "yes", vocab=VOCAB, n_sequences=2, rewrite=True)
    with Engine.over(backend, ChatTemplate(None, family="qwen3", control_tokens=VOCAB.control_tokens)) as llm:
        yield llm


def tried(name: str, value: Any, call: Callable[..., Any]) -> str:
    """How the call ended with this option: "served", or "refused" by an error that names it."""
    refusal: Exception | None = None
    try:
        call(**{name: value})
    except (ContextOverflowError, QueueFullError):
        return "refused"
    except RequestError as error:
        refusal = error
    if refusal is None:
        return "served"
    assert name in str(refusal)
    assert len(str(refusal)) < 2000, "a message, not a copy of the value"
    return "refused"


def every(names: frozenset[str] | set[str], call: Callable[..., Any], between: Callable[[], object]) -> dict[str, int]:
    """Each name with each wrong value; `between` must go on working."""
    counts = {"served": 0, "refused": 0}
    wrong: list[str] = []
    for name in sorted(names):
        for kind, value in WRONG.items():
            if name == "progress" and callable(value):
                continue  # what it raises is raised
            try:
                counts[tried(name, value, call)] += 1
            except BaseException as error:  # noqa: BLE001 - that is what is looked for
                wrong.append(f"{name} = {kind}: {type(error).__name__}: {str(error)[:200]}")
        between()
    assert not wrong, "\n".join(wrong)
    assert sum(counts.values()) >= len(names) * (len(WRONG) - 1)
    return counts


def limited(call: Callable[..., Any], **option: Any) -> None:
    call("x", **{"max_tokens": 4, **option})


def test_turns(llm: Engine) -> None:
    def still_there() -> None:
        assert llm.chat("x").content == "yes"

    names = TurnOptions.__optional_keys__ - {"documents", "template_kwargs"}
    counts = every(names, partial(limited, llm.chat), still_there)
    assert counts["refused"] > counts["served"], counts
    for call in (llm.pin, llm.render, llm.run):
        every({"priority", "deadline", "reasoning", "seed"}, partial(call, "x"), still_there)


def test_raw_prompts(llm: Engine) -> None:
    names = RawOptions.__optional_keys__
    counts = every(names, partial(limited, llm.complete), lambda: llm.chat("x"))
    assert counts["refused"] > counts["served"], counts


def test_what_is_asked(llm: Engine) -> None:
    """Arguments by position, where an error need not repeat their names."""
    wrong: list[str] = []
    calls: dict[str, Callable[[Any], Any]] = {
        "chat": llm.chat,
        "chat of one": lambda value: llm.chat([value]),
        "generate": lambda value: llm.generate([value]),
        "generate several": lambda value: llm.generate(["x", value]),
        "complete": lambda value: cast("Any", llm).complete(value, max_tokens=2),
        "tokenize": llm.tokenize,
        "detokenize": llm.detokenize,
        "choices": lambda value: llm.choices("x", value),
    }
    for name, call in calls.items():
        for kind, value in WRONG.items():
            try:
                call(value)
            except EngineError:
                continue
            except BaseException as error:  # noqa: BLE001 - that is what is looked for
                wrong.append(f"{name}({kind}): {type(error).__name__}: {str(error)[:120]}")
    assert not wrong, "\n".join(wrong)
    assert llm.chat("x").content == "yes"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_files.write(tmp_path_factory.mktemp("fuzz") / "m.gguf")


def test_loading(tiny: Path) -> None:
    """The records; then the face, for a few."""
    for record in (ModelOptions, ContextOptions, LlamaOptions, LoopOptions):
        names = {field.name for field in fields(record)}
        counts = every(names, record, lambda: None)
        assert counts["refused"] > counts["served"], counts

    def load(**option: Any) -> None:
        options: dict[str, Any] = {"n_threads": 1, "n_ctx": 256, "preflight": False, **option}
        Engine.load(tiny, **options).close()

    for name, value in (
        ("n_ctx", "five"),
        ("n_ctx", 10**30),
        ("n_threads", 10_000),
        ("n_threads_batch", True),
        ("llama", {"swa_full": False}),
        ("llama", "x"),
        ("max_waiting", -1),
        ("draft_max", "-4"),
        ("seed", "x"),
        ("seed", -1),
        ("seed", 2**32),
        ("preflight", "no"),
        ("isolated", 1),
        ("progress", 5),
        ("chat_template", 5),
        ("family", 5),
        ("kv_unified", "yes"),
        ("no_such", 1),
    ):
        with pytest.raises(EngineError) as caught:
            load(**{name: value})
        assert name in str(caught.value) or name in ("chat_template", "family"), str(caught.value)
    assert set(LoadOptions.__optional_keys__) >= {"kv_tokens", "max_waiting"}


def test_sizes_that_are_right_but_too_large(tiny: Path) -> None:
    with Model.load(tiny) as model, pytest.raises(ContextOverflowError, match="n_ctx=2,147,483,647"):
        model.backend(ContextOptions(n_ctx=2**31 - 1, n_sequences=256))


LOAD: Any = Engine.load
MISSPELT: list[tuple[str, str, Callable[[Any], object]]] = [
    ("n_ctxx", "n_ctx", lambda _: LOAD(n_ctxx=1)),
    ("n_sequence", "n_sequences", lambda _: LOAD(n_sequence=1)),
    ("chat_templat", "chat_template", lambda _: LOAD(chat_templat="x")),
    ("temperatur", "temperature", lambda llm: llm.chat("x", temperatur=0)),
    ("max_token", "max_tokens", lambda llm: llm.stream("x", max_token=1)),
    ("topp", "top_p", lambda llm: llm.complete("x", topp=1)),
    ("max_step", "max_steps", lambda llm: llm.run("x", max_step=1)),
    ("stop_onn", "stop_on", lambda llm: llm.run("x", stop_onn=["f"])),
    ("qwen33", "qwen3", lambda _: ChatTemplate(None, family="qwen33")),
    ("gpt_oss", "gpt-oss", lambda _: LOAD(family="gpt_oss")),
]


@pytest.mark.parametrize(("given", "meant", "call"), MISSPELT, ids=[case[0] for case in MISSPELT])
def test_a_misspelt_name_is_told_the_right_one(
    llm: Engine, given: str, meant: str, call: Callable[[Any], object]
) -> None:
    with pytest.raises(EngineError, match=f"'{given}'; did you mean '{meant}'"):
        call(llm)


def test_a_name_far_from_all_gets_the_list(llm: Engine) -> None:
    misspelt: Any = {"zzz": 1}
    with pytest.raises(RequestError, match=r"no option 'zzz'; the options are .*answer_reserve, "):
        llm.chat("x", **misspelt)
    with pytest.raises(RequestError, match=r"no option 'zzz'; the options are .*, n_batch, "):
        LOAD(**misspelt)
