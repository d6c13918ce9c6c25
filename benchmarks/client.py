"""The in-process OpenAI client in figures: `python benchmarks/client.py [speed] [stalls] [cancellations]`.

- speed: seconds to the first event and tokens per second of one stream through the client, beside `llm.stream` and,
  with `--server BINARY`, beside the same client over HTTP to a llama-server (benchmarks/peers.py says how to build
  one); in turns within one run. All greedy, on the built-in model or `--model FILE`; medians of the rounds, and their
  ratios.
- stalls: how long an event loop that reads 16 streams stood still at most, beside how late a thread was that only
  sleeps, which tells what the machine itself was.
- cancellations: 1,000 requests whose tasks are cancelled at random moments; what was left of them.
"""

import argparse
import asyncio
import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import openai
from fakes.openai_clients import backend_of, scripted, wait_until_idle
from measuring import by_turns, report
from peers import LlamaServer

from engine import Engine
from engine.support import _data
from engine.types.events import Finished

N_CTX = 1024
PROMPT = "Repeat after me: " + ", ".join(f"word{number}" for number in range(40))


class Timed(NamedTuple):
    """One stream. The first event is the first that carries something; processor time is the whole process's, which a
    busy machine leaves alone."""

    seconds_to_first_event: float
    tokens_per_second: float
    processor_seconds_per_token: float


def timed(arrivals: Iterator[int | None]) -> Timed:
    """`arrivals` gives None for an event, the tokens drawn at the end."""
    begun, processor = time.perf_counter(), time.process_time()
    first, tokens = 0.0, 0
    for arrival in arrivals:
        first = first or time.perf_counter()
        tokens = arrival or tokens
    rate = (tokens - 1) / (time.perf_counter() - first)
    return Timed(first - begun, rate, (time.process_time() - processor) / tokens)


def in_round(way: Callable[[], Iterator[int | None]], _: int) -> Timed:
    return timed(way())


def by_stream(llm: Engine, tokens: int) -> Iterator[int | None]:
    for event in llm.stream(PROMPT, temperature=0, max_tokens=tokens, ignore_eos=True):
        if isinstance(event, Finished):
            assert event.usage
            yield event.usage.completion_tokens
        else:
            yield None


def by_client(client: Any, tokens: int) -> Iterator[int | None]:
    chunks = client.chat.completions.create(
        model="local",
        messages=[{"role": "user", "content": PROMPT}],
        temperature=0,
        max_completion_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    for chunk in chunks:
        if chunk.usage is not None:
            yield chunk.usage.completion_tokens
        elif chunk.choices[0].delta.content or getattr(chunk.choices[0].delta, "reasoning_content", None):
            yield None


def speed(rounds: int, tokens: int, model: Path, threads: int, binary: Path | None) -> None:
    with ExitStack() as stack:
        llm = stack.enter_context(Engine.load(model, n_sequences=1, n_ctx=N_CTX, n_threads=threads))
        client = stack.enter_context(llm.openai_client())
        ways = {"llm.stream": lambda: by_stream(llm, tokens), "client": lambda: by_client(client, tokens)}
        if binary is not None:
            server = stack.enter_context(LlamaServer(binary, model, n_ctx=N_CTX, slots=1, threads=threads))
            remote = stack.enter_context(openai.OpenAI(base_url=server.address, api_key="none"))
            ways["server"] = lambda: by_client(remote, tokens)
        runs = {name: partial(in_round, way) for name, way in ways.items()}
        by_turns(runs, 1)  # warms up
        times = by_turns(runs, rounds)
    for unit in Timed._fields:
        figures = {name: [getattr(each, unit) for each in some] for name, some in times.items()}
        report("one stream", figures, "client", unit.replace("_", " "))


async def stalls(streams: int, tokens: int) -> None:
    loop_late: list[float] = []
    thread_late: list[float] = []
    over = threading.Event()

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            loop_late.append(time.perf_counter() - before - 0.005)

    def sleep() -> None:
        while not over.is_set():
            before = time.perf_counter()
            time.sleep(0.005)
            thread_late.append(time.perf_counter() - before - 0.005)

    with Engine.load(n_sequences=streams) as llm:
        client: Any = llm.async_openai_client()

        async def read(number: int) -> int:
            chunks = await client.chat.completions.create(
                model="local",
                messages=[{"role": "user", "content": f"{number}: {PROMPT}"}],
                max_completion_tokens=tokens,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            return len([chunk async for chunk in chunks])

        watching, sleeping = asyncio.create_task(watch()), asyncio.create_task(asyncio.to_thread(sleep))
        chunks = await asyncio.gather(*(read(number) for number in range(streams)))
        watching.cancel()
        over.set()
        await sleeping
    print(
        f"stalls: {streams} streams, {sum(chunks)} chunks; the loop stood still for {1000 * max(loop_late):.1f} ms at "
        f"most (median {1000 * median(loop_late):.2f}), a thread that only sleeps for {1000 * max(thread_late):.1f}"
    )


async def cancellations(count: int, seed: int) -> None:
    choice = random.Random(seed)
    how: Counter[str] = Counter()
    threads = threading.active_count()
    with scripted(lambda _: "a" * 100_000, n_ctx=200_000, n_sequences=4, delay=0.0005) as llm:
        client: Any = llm.async_openai_client()

        async def request(stream: bool, n: int) -> int:
            asked = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "n": n, "stream": stream}
            found = await client.chat.completions.create(**asked)
            return len([chunk async for chunk in found])

        for _ in range(count // 10):
            tasks = [asyncio.create_task(request(choice.random() < 0.7, choice.randint(1, 2))) for _ in range(10)]
            for task in choice.sample(tasks, len(tasks)):
                await asyncio.sleep(choice.choice((0, 0, 0.0005, 0.002, 0.01, 0.03)))
                task.cancel()
            how.update(type(each).__name__ for each in await asyncio.gather(*tasks, return_exceptions=True))
        gc.collect()
        await asyncio.to_thread(wait_until_idle, llm)
        tasks_left = len(asyncio.all_tasks()) - 1
        running, samplers = llm.metrics.running, sum(not each.closed for each in backend_of(llm).samplers)
    pool = sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())  # asyncio's own, which stays
    left = threading.active_count() - pool - threads
    print(f"cancellations: {sum(how.values())} requests, seed {seed}: {dict(how)}")
    print(f"cancellations: left behind: {running} turns, {samplers} samplers, {tasks_left} tasks, {left} threads")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["speed", "stalls", "cancellations"])
    parser.add_argument("--model", type=Path, default=_data.builtin_model(), help="for speed")
    parser.add_argument("--threads", type=int, default=1, help="for speed")
    parser.add_argument("--server", type=Path, metavar="BINARY", help="llama-server, for speed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "speed" in options.parts:
        speed(options.rounds, options.tokens, options.model, options.threads, options.server)
    if "stalls" in options.parts:
        asyncio.run(stalls(16, options.tokens))
    if "cancellations" in options.parts:
        asyncio.run(cancellations(options.count, options.seed))


if __name__ == "__main__":
    main()
