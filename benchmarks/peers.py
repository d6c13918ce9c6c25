"""The other ways to run the same model: a bare loop over llama.cpp's functions, llama-cpp-python's own class,
llama-server over HTTP.

llama-server is built from the source that pip downloads for llama-cpp-python:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 && tar xf llama_cpp_python-0.3.36.tar.gz
    cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF
    cmake --build build -j --target llama-server

with the compiler flags that llama-cpp-python was built with (with gcc on a CPU with AMX, `CXXFLAGS` as in the README).
"""

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from engine.llama import lib as llama_lib
from engine.llama.gguf.gguf import read_gguf
from engine.llama.params import on_cpu
from engine.runtime.loop.config import FLASH_ATTENTION, ContextOptions
from engine.support.errors import DecodeError


@dataclass(frozen=True)
class Drawing:
    """How tokens are sampled; temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def options(self) -> dict[str, Any]:
        """The same as the engine's options, all of them, so that no family's default applies."""
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "min_p": 0.0}


GREEDY = Drawing()
NUCLEUS = Drawing(0.6, 20, 0.95)


class Bare:
    """Tokens in, tokens out: one model and one context, with the engine's own choice of attention and batches."""

    def __init__(self, path: Path, *, n_ctx: int, sequences: int, threads: int, unified: bool) -> None:
        options = on_cpu(read_gguf(path), replace(ContextOptions(), kv_unified=unified), n_ctx, sequences)
        lib: Any = llama_lib.library()
        self._lib = lib
        weights = lib.llama_model_default_params()
        weights.n_gpu_layers = 0
        self._model = lib.llama_model_load_from_file(str(path).encode(), weights)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, 2048, options.rows_at_once
        params.flash_attn_type = FLASH_ATTENTION[options.flash_attn]
        params.n_seq_max, params.n_outputs_max = sequences, max(16, sequences)
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = unified
        params.no_perf = True
        self._context = lib.llama_init_from_model(self._model, params)
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(2048, 0, 1)

    def close(self) -> None:
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def generate(self, prompts: Sequence[Sequence[int]], steps: int, drawing: Drawing, *, shared: int = 0) -> int:
        """Decode all prompts together, `steps` tokens each, from an empty memory; the number of tokens made.

        `shared`: the number of leading tokens that all prompts share, evaluated once and copied to the others.
        """
        lib = self._lib
        lib.llama_memory_clear(self._memory, True)
        chains = [self._chain(drawing, seed) for seed in range(len(prompts))]
        if shared:
            self._prefill(prompts[0][:shared], 0, 0)
            for sequence in range(1, len(prompts)):
                lib.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
        drawn = [0] * len(prompts)
        for sequence, prompt in enumerate(prompts):
            self._prefill(prompt[shared:], shared, sequence)
            drawn[sequence] = lib.llama_sampler_sample(chains[sequence], self._context, -1)
        for step in range(steps - 1):
            for sequence, prompt in enumerate(prompts):
                self._row(sequence, drawn[sequence], len(prompt) + step, sequence, output=True)
            self._decode(len(prompts))
            for sequence, chain in enumerate(chains):
                drawn[sequence] = lib.llama_sampler_sample(chain, self._context, sequence)
        for chain in chains:
            lib.llama_sampler_free(chain)
        return steps * len(prompts)

    def _prefill(self, tokens: Sequence[int], start: int, sequence: int) -> None:
        for at in range(0, len(tokens), 2048):
            chunk = tokens[at : at + 2048]
            for index, token in enumerate(chunk):
                self._row(index, token, start + at + index, sequence, output=index == len(chunk) - 1)
            self._decode(len(chunk))

    def _row(self, index: int, token: int, position: int, sequence: int, *, output: bool) -> None:
        batch = self._batch
        batch.token[index] = token
        batch.pos[index] = position
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = sequence
        batch.logits[index] = output

    def _decode(self, rows: int) -> None:
        self._batch.n_tokens = rows
        if code := self._lib.llama_decode(self._context, self._batch):
            raise DecodeError(f"llama_decode returned {code} for a batch of {rows} tokens.")

    def _chain(self, drawing: Drawing, seed: int) -> Any:
        """The sampler chain that llama.cpp's own tools build."""
        lib = self._lib
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        links: list[Any] = []
        if drawing.temperature == 0:
            links.append(lib.llama_sampler_init_greedy())
        else:
            if drawing.top_k:
                links.append(lib.llama_sampler_init_top_k(drawing.top_k))
            if drawing.top_p < 1:
                links.append(lib.llama_sampler_init_top_p(drawing.top_p, 1))
            links += [lib.llama_sampler_init_temp(drawing.temperature), lib.llama_sampler_init_dist(seed)]
        for link in links:
            lib.llama_sampler_chain_add(chain, link)
        return chain


class LlamaPython:
    """`llama_cpp.Llama`, one request after the other."""

    def __init__(self, path: Path, *, n_ctx: int, threads: int) -> None:
        import llama_cpp

        make: Any = llama_cpp.Llama
        self._llama = make(
            str(path), n_ctx=n_ctx, n_batch=2048, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def generate(self, prompts: Sequence[Sequence[int]], steps: int, drawing: Drawing) -> int:
        """Streams each prompt's answer to its end; the number of chunks with a token: the last one has none."""
        options = {"max_tokens": steps, "repeat_penalty": 1.0, "stream": True, **drawing.options}
        return sum(sum(1 for _ in self._llama.create_completion(list(prompt), **options)) - 1 for prompt in prompts)

    def tokens(self, text: str) -> list[int]:
        return self._llama.tokenize(text.encode())

    def chat(self, messages: Sequence[Any], steps: int) -> dict[str, int]:
        """The usage of one greedy answer, not streamed."""
        return self._llama.create_chat_completion(list(messages), max_tokens=steps, temperature=0.0)["usage"]

    def close(self) -> None:
        self._llama.close()


class LlamaServer:
    """A `llama-server` process with so many slots."""

    def __init__(
        self,
        binary: Path,
        path: Path,
        *,
        n_ctx: int,
        slots: int,
        threads: int,
        unified: bool = True,
        more: Sequence[str] = (),
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._process = subprocess.Popen(
            [
                *(str(binary), "-m", str(path), "-c", str(n_ctx), "-np", str(slots), "-b", "2048"),
                "--kv-unified" if unified else "--no-kv-unified",
                *("-ub", "512", "-t", str(threads), "-tb", str(threads), "--port", str(self._port), "--no-webui"),
                *more,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not self._healthy():
            if self._process.poll() is not None:
                raise RuntimeError(f"{binary} ended with exit code {self._process.returncode}")
            time.sleep(0.2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> str:
        """The base URL that a client of OpenAI's API takes."""
        return f"http://127.0.0.1:{self._port}/v1"

    def generate(self, prompts: Sequence[Sequence[int]], steps: int, drawing: Drawing) -> int:
        """All prompts at once; the number of tokens made."""

        def one(index: int) -> int:
            options: dict[str, Any] = {"n_predict": steps, "ignore_eos": True, "seed": index, "cache_prompt": True}
            options |= drawing.options
            if drawing is GREEDY:  # without a filter it goes through records of the whole vocabulary
                options["top_k"] = 1
            return self.post("/completion", {"prompt": list(prompts[index]), **options})["tokens_predicted"]

        with ThreadPoolExecutor(len(prompts)) as pool:
            return sum(pool.map(one, range(len(prompts))))

    def tokens(self, text: str) -> list[int]:
        return self.post("/tokenize", {"content": text, "add_special": True})["tokens"]

    def chat(self, messages: Sequence[Any], steps: int) -> dict[str, Any]:
        """The usage of one greedy answer, not streamed; call it from as many threads as there are slots, or more."""
        body = {"messages": list(messages), "max_tokens": steps, "temperature": 0, "cache_prompt": True}
        return self.post("/v1/chat/completions", body)["usage"]

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/health")
            return b'"ok"' in connection.getresponse().read()
        except OSError:
            return False
        finally:
            connection.close()
