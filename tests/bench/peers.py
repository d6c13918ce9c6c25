"""The other ways to run the same model: llama-cpp-python's own class, llama-server over HTTP, llama-batched-bench.

The native tools are built from the source that pip downloads for llama-cpp-python:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 && tar xf llama_cpp_python-0.3.36.tar.gz
    cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF
    cmake --build build -j --target llama-server llama-batched-bench

with the compiler flags that llama-cpp-python was built with (with gcc on a CPU with AMX, `CXXFLAGS` as in the README).
"""

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from bare import Drawing


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
        return sum(sum(1 for _ in self.stream(prompt, steps, drawing)) - 1 for prompt in prompts)

    def stream(self, prompt: Sequence[int], steps: int, drawing: Drawing) -> Iterator[object]:
        """A chunk for each token, and a last one without any."""
        return self._llama.create_completion(
            list(prompt),
            max_tokens=steps,
            temperature=drawing.temperature,
            top_k=drawing.top_k,
            top_p=drawing.top_p,
            min_p=0.0,
            repeat_penalty=1.0,
            stream=True,
        )

    def chat(self, messages: Sequence[Any], steps: int) -> dict[str, int]:
        """The usage of one greedy answer, not streamed."""
        return self._llama.create_chat_completion(list(messages), max_tokens=steps, temperature=0.0)["usage"]

    def close(self) -> None:
        self._llama.close()


class LlamaServer:
    """A `llama-server` process with so many slots."""

    def __init__(self, binary: Path, path: Path, *, n_ctx: int, slots: int, threads: int, unified: bool = True) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._process = subprocess.Popen(
            [
                *(str(binary), "-m", str(path), "-c", str(n_ctx), "-np", str(slots), "-b", "2048"),
                "--kv-unified" if unified else "--no-kv-unified",
                *("-ub", "512", "-t", str(threads), "-tb", str(threads), "--port", str(self._port), "--no-webui"),
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
        self._process.terminate()
        self._process.wait(30)

    def generate(self, prompts: Sequence[Sequence[int]], steps: int, drawing: Drawing) -> int:
        """All prompts at once, streamed; the number of tokens made."""
        made = [0] * len(prompts)

        def one(index: int) -> None:
            body = {
                "prompt": list(prompts[index]),
                "n_predict": steps,
                "stream": True,
                "ignore_eos": True,
                "temperature": drawing.temperature,
                # With no filter it goes through records of the whole vocabulary, also where the best token is wanted.
                "top_k": drawing.top_k if drawing.temperature else 1,
                "top_p": drawing.top_p,
                "min_p": 0.0,
                "seed": index,
                "cache_prompt": True,
            }
            made[index] = self._completion(body)

        threads = [threading.Thread(target=one, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(made)

    def chat(self, messages: Sequence[Any], steps: int) -> dict[str, Any]:
        """The usage of one greedy answer, not streamed; call it from as many threads as there are slots, or more."""
        body = {"messages": list(messages), "max_tokens": steps, "temperature": 0, "cache_prompt": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        found = json.loads(connection.getresponse().read())
        connection.close()
        return found["usage"]

    @property
    def address(self) -> str:
        """The base URL that a client of OpenAI's API takes."""
        return f"http://127.0.0.1:{self._port}/v1"

    def forget(self) -> None:
        """Empty the slots' caches, so that no run profits from the one before."""
        for slot in json.loads(self._get("/slots") or "[]"):
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            connection.request("POST", f"/slots/{slot['id']}?action=erase")
            connection.getresponse().read()
            connection.close()

    def _completion(self, body: dict[str, Any]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        made = 0
        for line in connection.getresponse():
            if line.startswith(b"data: ") and b'"stop":true' in line:
                made = json.loads(line[6:])["tokens_predicted"]
        connection.close()
        return made

    def _healthy(self) -> bool:
        return '"ok"' in self._get("/health")

    def _get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except OSError:
            return ""
        finally:
            connection.close()


def batched_bench(binary: Path, path: Path, *, prompt: int, steps: int, sequences: int, threads: int) -> float:
    """Tokens made per second by `llama-batched-bench`, which does not draw them; prompts not shared, not counted."""
    done = subprocess.run(
        [
            *(str(binary), "-m", str(path), "-c", str(sequences * (prompt + steps)), "-b", "2048", "-ub", "512"),
            *("-npp", str(prompt), "-ntg", str(steps), "-npl", str(sequences), "-t", str(threads)),
            *("-tb", str(threads), "--output-format", "jsonl"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return float(json.loads(line)["speed_tg"])
