"""Conversations with several sets of adapters on one engine, and what each should have said: by an engine of each set's
own, and by llama.cpp's calls alone."""

import ctypes
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fakes.inside import parts
from numpy.typing import NDArray

from engine import Completion, Engine, Message
from engine.runtime.adapters.adapters import Adapters
from engine.runtime.cache.slots import common_prefix
from engine.runtime.loop.request import Request

Set = Mapping[str, float]
"""The adapters of a conversation by name, with their scales."""
Part = tuple[Sequence[int], Set]
"""Tokens, and the adapters that compute them."""
QUESTIONS = ("Hello! Who are you?", "What is the capital of France?", "Count to five.", "Tell me a story.", "And now?")
LONGEST = 5  # turns of a conversation, after which it begins anew
ANSWER = 16  # tokens


class BareAdapted:
    """A context for one sequence by llama.cpp's calls alone, with adapters by name. `flash`: with flash attention, as
    an engine with a shared pool has it."""

    def __init__(self, model: Path, adapters: Mapping[str, Path], n_ctx: int = 1024, *, flash: bool = False) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model: Any = llama_cpp.llama_model_load_from_file(str(model).encode(), params)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = n_ctx
        context.n_ubatch, context.n_seq_max, context.flash_attn_type = 256, 1, int(flash)
        context.n_threads = context.n_threads_batch = 1
        self._context: Any = llama_cpp.llama_init_from_model(self._model, context)
        self._adapters: dict[str, Any] = {
            name: llama_cpp.llama_adapter_lora_init(self._model, str(path).encode()) for name, path in adapters.items()
        }
        self._size: int = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(self._model))

    def logits(self, parts: Sequence[Part], rows: int = 1024) -> NDArray[np.float32]:
        """Returns the logits after these parts, each evaluated `rows` tokens at a time, or less."""
        lib, place = self._lib, 0
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        for tokens, scales in parts:
            handles = (lib.llama_adapter_lora_p_ctypes * len(scales))(*(self._adapters[name] for name in scales))
            assert not lib.llama_set_adapters_lora(
                self._context, handles, len(scales), (ctypes.c_float * len(scales))(*scales.values())
            )
            for start in range(0, len(tokens), rows):
                self._decode(tokens[start : start + rows], place + start)
            place += len(tokens)
        found: NDArray[np.float32] = np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, -1), (self._size,))
        return found.copy()

    def _decode(self, tokens: Sequence[int], place: int) -> None:
        lib, count = self._lib, len(tokens)
        batch = lib.llama_batch_init(count, 0, 1)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, place + row, 1
            batch.seq_id[row][0], batch.logits[row] = 0, row == count - 1
        batch.n_tokens = count
        assert lib.llama_decode(self._context, batch) == 0
        lib.llama_batch_free(batch)

    def close(self) -> None:
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)


@dataclass(frozen=True)
class Turn:
    """A turn: what it was asked, with which adapters; the prompt's tokens, what computed them, and the answer."""

    name: str
    messages: tuple[Message, ...]
    request: Request
    answer: Completion

    @property
    def cached(self) -> int:
        assert self.answer.usage
        return self.answer.usage.cached_tokens


def converse(llm: Engine, sets: Mapping[str, Set], turns: int, at_once: int = 4) -> list[Turn]:
    """Hold two conversations with each set, `at_once` of them at a time, in random order; all ask the same."""
    rng, made = random.Random(4), list[Turn]()
    runner: Any = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
    submit, requests = runner.submit, list[Request]()

    def recorded(request: Request) -> None:
        requests.append(request)
        submit(request)

    runner.submit = recorded
    talks: dict[tuple[str, int], list[Message]] = {(name, number): [] for name in sets for number in range(2)}
    while len(made) < turns:
        chosen = rng.sample(sorted(talks), at_once)
        started: list[tuple[tuple[str, int], tuple[Message, ...], Any]] = []
        for key in chosen:
            talk = talks[key]
            if len(talk) >= 2 * LONGEST:
                talk.clear()
            talk.append(Message(role="user", content=QUESTIONS[len(talk) // 2]))
            started.append((key, tuple(talk), llm.stream(talk, **options(sets[key[0]]))))
        for (key, messages, stream), request in zip(started, requests, strict=True):
            answer: Completion = stream.result()
            talks[key].append(answer.message)
            made.append(Turn(key[0], messages, request, answer))
        requests.clear()
    runner.submit = submit
    return made


def options(adapters: Set) -> Any:
    return {"temperature": 0, "max_tokens": ANSWER, "reasoning": False, "adapters": adapters, "logprobs": 2}


def hits_across(turns: Sequence[Turn], at_once: int = 4) -> int:
    """Returns the tokens that turns reused although no earlier turn, nor one at the same time, had computed them with
    the same adapters."""
    held = [([*turn.request.tokens, *_drawn(turn.answer)], turn.request.adapters) for turn in turns]
    across = 0
    for number, turn in enumerate(turns):
        tokens = turn.request.tokens
        others = held[:number] + held[number + 1 : number - number % at_once + at_once]
        could = [common_prefix(kept, tokens, _alike(turn.request.adapters, of, len(tokens))) for kept, of in others]
        across += max(0, turn.cached - max(could, default=0))
    return across


def _alike(one: Adapters, other: Adapters, length: int) -> int:
    """Returns how many positions two sets compute alike, counted one by one."""
    return next((place for place in range(length) if one.at(place) != other.at(place)), length)


def _drawn(answer: Completion) -> list[int]:
    return [entry.token for entry in answer.logprobs or ()]


@dataclass(frozen=True)
class Difference:
    """Where an answer first differs from its reference: how far the bare loop's two best logits lie apart there, and
    how far its logits are off, at most, if it evaluates the same tokens in pieces of one to eight."""

    name: str
    margin: float
    noise: float

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains it: each of the two best logits may be off by the noise, in opposite directions."""
        return self.margin <= 2 * self.noise


def differences(
    turns: Sequence[Turn], references: Mapping[str, Engine], sets: Mapping[str, Set], bare: BareAdapted
) -> Iterator[Difference]:
    """Yields the turns whose answer is not that of their set's own engine."""
    for turn in turns:
        expected = references[turn.name].chat(turn.messages, **options(sets[turn.name]))
        left, right = _drawn(turn.answer), _drawn(expected)
        if left == right:
            continue
        same = common_prefix(left, right, len(left))
        adapters, tokens = turn.request.adapters, [*turn.request.tokens, *left[:same]]
        start = adapters.start if adapters.scales else len(tokens)
        parts: list[Part] = [(tokens[:start], {}), (tokens[start:], sets[turn.name])]
        parts = [part for part in parts if part[0]]
        whole = bare.logits(parts)
        best = np.sort(whole)[-2:]
        noise = max(float(np.abs(whole - bare.logits(parts, rows=rows)).max()) for rows in (1, 2, 3, 4, 8))
        yield Difference(turn.name, float(best[1] - best[0]), noise)


def engines(model: Path, adapters: Mapping[str, Path], sets: Mapping[str, Set], **load: Any) -> dict[str, Engine]:
    """Returns an engine of each set's own, which holds its adapters only."""
    return {
        name: Engine.load(model, adapters={each: adapters[each] for each in scales}, n_sequences=2, **load)
        for name, scales in sets.items()
    }


def compared(
    model: Path, adapters: Mapping[str, Path], sets: Mapping[str, Set], turns: int, **load: Any
) -> tuple[list[Turn], list[Difference]]:
    """Returns the turns of `converse` on one engine, and how they differ from engines of each set's own."""
    with Engine.load(model, adapters=adapters, n_sequences=6, **load) as llm:
        made = converse(llm, sets, turns)
    own = engines(model, adapters, sets, **load)
    with closing(BareAdapted(model, adapters, flash=load.get("kv_unified", False))) as bare:
        found = list(differences(made, own, sets, bare))
    for llm in own.values():
        llm.close()
    return made, found
