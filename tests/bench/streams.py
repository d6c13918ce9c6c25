"""The parts `single`, `shared`, `distinct` and `threads` of `runtime.py`: streams beside a bare loop, llama-cpp-python
and llama-server, and with other numbers of threads.

In all but `single` each contender has the process to itself while it runs (`measuring.alone`), with the same
prompts as the others; in `single` they take turns.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from typing import Any

from bare import GREEDY, NUCLEUS, Drawing
from measuring import (
    STREAMS,
    Contender,
    Prompts,
    Setup,
    alone,
    ask,
    ask_all,
    in_the_loops_thread,
    in_turns,
    made_by,
    report,
    report_turns,
    timed,
    words,
)
from peers import LlamaPython, LlamaServer, batched_bench

from engine import Engine
from engine.llama.machine import batch_threads, default_threads

_RUNS = 3
"""Runs of a single stream in a round: it is short."""


class Field:
    """All contenders for one context size and one way to draw."""

    def __init__(self, setup: Setup, drawing: Drawing, *, n_ctx: int, sequences: int) -> None:
        self._setup = setup
        self._drawing = drawing
        self._n_ctx = n_ctx
        self._sequences = sequences

    def bare(self, *, unified: bool = True, shared: int = 0) -> Contender:
        """`shared`: leading tokens of all prompts that are computed once."""

        @contextmanager
        def opened() -> Generator[Callable[[Prompts], int]]:
            with self._setup.bare(n_ctx=self._n_ctx, sequences=self._sequences, unified=unified) as bare:
                yield lambda prompts: bare.generate(
                    prompts.tokens, self._setup.steps, self._drawing, shared=shared if len(prompts.tokens) > 1 else 0
                )

        return opened

    def engine(
        self, answer: Callable[[Engine, Sequence[str]], int], *, unified: bool = True, isolated: bool = False
    ) -> Contender:
        @contextmanager
        def opened() -> Generator[Callable[[Prompts], int]]:
            with self._setup.engine(
                n_ctx=self._n_ctx, sequences=self._sequences, unified=unified, isolated=isolated
            ) as llm:
                yield lambda prompts: answer(llm, prompts.texts)

        return opened

    def streams(self, *, unified: bool = True, isolated: bool = False) -> Contender:
        """One stream for each prompt, all at once; the model here or in a child process."""

        def answer(llm: Engine, texts: Sequence[str]) -> int:
            return ask_all(llm, texts, self._setup.steps, self._drawing)

        return self.engine(answer, unified=unified, isolated=isolated)

    def generate(self, *, unified: bool = True) -> Contender:
        """All prompts as one batch, whose ends are waited for."""
        options: dict[str, Any] = {"max_tokens": self._setup.steps, "seed": 0, **self._drawing.options}
        return self.engine(
            lambda llm, texts: sum(map(made_by, llm.generate(texts, on_error="raise", **options))), unified=unified
        )

    def python(self, *, count: int = 1) -> Contender:
        """llama-cpp-python, with the first `count` of the prompts, one after the other."""

        @contextmanager
        def opened() -> Generator[Callable[[Prompts], int]]:
            n_ctx = self._n_ctx // self._sequences
            with closing(LlamaPython(self._setup.path, n_ctx=n_ctx, threads=self._setup.threads)) as python:
                yield lambda prompts: python.generate(prompts.tokens[:count], self._setup.steps, self._drawing)

        return opened

    def server(self, *, unified: bool = True) -> Contender:
        @contextmanager
        def opened() -> Generator[Callable[[Prompts], int]]:
            setup = self._setup
            assert setup.server is not None, "the caller has looked"
            with LlamaServer(
                setup.server,
                setup.path,
                n_ctx=self._n_ctx,
                slots=self._sequences,
                threads=setup.threads,
                unified=unified,
            ) as server:
                yield lambda prompts: server.generate(prompts.tokens, setup.steps, self._drawing)

        return opened


def rendered(setup: Setup, texts: Iterable[Sequence[str]]) -> list[Prompts]:
    """The texts as prompts, with their tokens."""
    with setup.engine(n_ctx=512) as llm:
        return [Prompts(each, [llm.tokenize(llm.render(text).text, special=True) for text in each]) for each in texts]


def single(setup: Setup) -> None:
    """One stream: the engine, the bare loop, llama-cpp-python's own streaming, in turns, all in the engine's thread.

    So all of them decode with the same OpenMP workers, and no more than a second lies between what is compared.
    """
    warmup, *prompts = rendered(setup, ([words(64, seed)] for seed in range(1 + _RUNS * setup.rounds)))
    n_ctx = 4096
    for drawing in (GREEDY, NUCLEUS):
        with (
            setup.engine(n_ctx=n_ctx) as llm,
            setup.bare(n_ctx=n_ctx) as bare,
            closing(LlamaPython(setup.path, n_ctx=n_ctx, threads=setup.threads)) as python,
        ):
            contenders: dict[str, Callable[[Prompts], tuple[int, float]]] = {
                "bare loop": lambda prompt, bare=bare, drawing=drawing, llm=llm: in_the_loops_thread(
                    llm, lambda: bare.generate(prompt.tokens, setup.steps, drawing)
                ),
                "engine.stream": lambda prompt, drawing=drawing, llm=llm: timed(
                    lambda: ask(llm, prompt.texts[0], setup.steps, drawing)
                ),
                "llama-cpp-python stream": lambda prompt, python=python, drawing=drawing, llm=llm: in_the_loops_thread(
                    llm, lambda: python.generate(prompt.tokens, setup.steps, drawing)
                ),
            }
            for run in contenders.values():
                run(warmup)
            title = f"single stream, {_label(drawing)}, {setup.steps} tokens, in turns in one thread"
            report_turns(title, in_turns(contenders, prompts), "bare loop")


def shared(setup: Setup) -> None:
    """Sixteen streams at once that share a prefix of 128 tokens."""
    for drawing in (GREEDY, NUCLEUS):
        _sixteen(setup, "a shared prefix of 128 tokens", drawing, common=128, own=16)
    if setup.batched is None:
        print("  llama-batched-bench is not there: --batched-bench names it")
        return
    speed = batched_bench(
        setup.batched, setup.path, prompt=128, steps=setup.steps, sequences=STREAMS, threads=setup.threads
    )
    print(f"  llama-batched-bench, which draws nothing and counts no prompts: {speed:.1f} tokens/s")


def distinct(setup: Setup) -> None:
    """Sixteen streams at once with prompts of 512 tokens that have nothing in common."""
    _sixteen(setup, "512 tokens of their own", GREEDY, common=0, own=512)


def _sixteen(setup: Setup, title: str, drawing: Drawing, *, common: int, own: int) -> None:
    """All contenders with such prompts, in one KV buffer and in separate ones."""
    warmup, *prompts = rendered(setup, [["hello"], *(_texts(common, own, seed) for seed in range(setup.rounds))])
    field = Field(setup, drawing, n_ctx=STREAMS * (1100 + setup.steps), sequences=STREAMS)
    label = f"{STREAMS} streams, {title}, {_label(drawing)}, {setup.steps} tokens each"
    for layout in setup.layouts:
        unified = layout == "one"
        contenders = {
            "bare loop": field.bare(unified=unified, shared=120 if common else 0),
            "engine": field.streams(unified=unified),
            "engine.generate": field.generate(unified=unified),
            "engine in a child": field.streams(unified=unified, isolated=True),
        }
        if setup.server is not None:
            contenders["llama-server over HTTP"] = field.server(unified=unified)
        contenders["llama-cpp-python one by one"] = field.python(count=2)
        measured = alone(contenders, warmup, [[each] for each in prompts])
        peers = [name for name in contenders if name.startswith("llama-")]
        report(label if unified else f"{label}, kv_unified=False", measured, "bare loop", ours="engine", beside=peers)
    if setup.server is None:
        print("  llama-server is not there: --server names it")


def threads(setup: Setup) -> None:
    """The engine's own choice of threads beside one thread a core and one a logical CPU."""
    chosen: dict[str, dict[str, Any]] = {
        "one a core": {"n_threads": default_threads()},
        "the default": {},
        "one a logical CPU": {"n_threads": batch_threads()},
    }
    streams = [_texts(128, 16, seed) for seed in range(setup.rounds)]
    kinds: dict[str, tuple[list[list[str]], int]] = {
        "a prompt of 512 tokens, and one token more": ([[words(500, seed)] for seed in range(setup.rounds)], 1),
        f"one stream of {setup.steps} tokens": ([[words(16, seed)] for seed in range(setup.rounds)], setup.steps),
        f"{STREAMS} streams of {setup.steps} tokens, a shared prefix of 128": (streams, setup.steps),
    }
    for title, (texts, steps) in kinds.items():
        warmup, *prompts = rendered(setup, [["hello"], *texts])
        contenders = {name: _with(setup, options, steps) for name, options in chosen.items()}
        report(f"{title}, prompts counted", alone(contenders, warmup, [[each] for each in prompts]), "one a core")


def _with(setup: Setup, options: dict[str, Any], steps: int) -> Contender:
    @contextmanager
    def opened() -> Generator[Callable[[Prompts], int]]:
        with Engine.load(setup.path, n_ctx=700, n_sequences=STREAMS, preflight=False, **options) as llm:
            yield (
                lambda prompts: (
                    ask_all(llm, prompts.texts, steps, GREEDY) + sum(len(tokens) for tokens in prompts.tokens)
                )
            )

    return opened


def _texts(common: int, own: int, seed: int) -> list[str]:
    return [f"{words(common, seed)} {at} {words(own, seed * 97 + at)}" for at in range(STREAMS)]


def _label(drawing: Drawing) -> str:
    if drawing is GREEDY:
        return "greedy"
    return f"temperature {drawing.temperature:g}, top-k {drawing.top_k}, top-p {drawing.top_p:g}"
