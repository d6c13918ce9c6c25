"""What a Python user could take instead, beside this engine: python benchmarks/rivals.py model.gguf [--only NAME ...]

Each but llama-cpp-python, which is here, is installed by pip into a fresh virtual environment (seconds, and the size
of what came), and runs in a process of its own: from its start to the first token, the tokens a second of one answer
and of a prompt of about 2,000 tokens, an answer by a JSON schema, a tool that must be called, sixteen answers asked at
once by threads, and the most memory. All get the same file, greedy drawing and as many threads as there are processors.
What one cannot do here is printed as it said it. A process gets ten minutes; printed are medians of `--times`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"person": {"type": "string"}, "city": {"type": "string"}},
    "required": ["person", "city"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

OURS = """
from engine import Engine, JsonSchema
llm = Engine.load(PATH, n_ctx=8192, n_threads=THREADS, n_threads_batch=THREADS)
def ask(prompt, most):
    options = {"max_tokens": most, "temperature": 0, "ignore_eos": True, "repetition_limit": None}
    return llm.complete(prompt, **options).usage.completion_tokens
def typed(question):
    return llm.chat(question, response_format=JsonSchema(SCHEMA), temperature=0, max_tokens=64).content
def call(question):
    found = llm.chat(question, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=64).tool_calls[0]
    return found.name, found.arguments
"""
LLAMA = """
from llama_cpp import Llama
llm = Llama(PATH, n_ctx=8192, n_threads=THREADS, n_threads_batch=THREADS, verbose=False, logits_all=False)
def ask(prompt, most):
    return llm(prompt, max_tokens=most, temperature=0, logit_bias={llm.token_eos(): -1e9})["usage"]["completion_tokens"]
def answer(question, **more):
    asked = [{"role": "user", "content": question}]
    return llm.create_chat_completion(asked, temperature=0, max_tokens=64, **more)["choices"][0]["message"]
def typed(question):
    return answer(question, response_format={"type": "json_object", "schema": SCHEMA})["content"]
def call(question):
    choice = {"type": "function", "function": {"name": "get_weather"}}
    found = answer(question, tools=[TOOL], tool_choice=choice)["tool_calls"][0]["function"]
    return found["name"], found["arguments"]
"""
XLLAMACPP = """
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.verbosity = PATH, 8192, 16, -1
params.kv_unified, params.warmup = True, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
llm = xllamacpp.Server(params)
def said(found):
    found = json.loads(found) if isinstance(found, (str, bytes)) else found
    if "error" in found:
        raise RuntimeError(found["error"])
    return found
def ask(prompt, most):
    asked = {"prompt": prompt, "n_predict": most, "temperature": 0, "ignore_eos": True}
    return said(llm.handle_completions(asked))["usage"]["completion_tokens"]
def answer(question, **more):
    asked = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 64, **more}
    return said(llm.handle_chat_completions(asked))["choices"][0]["message"]
def typed(question):
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
    return answer(question, response_format=form)["content"]
def call(question):
    found = answer(question, tools=[TOOL], tool_choice="required")["tool_calls"][0]["function"]
    return found["name"], found["arguments"]
"""
MISTRALRS = """
import os
os.environ["RAYON_NUM_THREADS"] = str(THREADS)
from mistralrs import ChatCompletionRequest, CompletionRequest, Runner, ToolChoice, Which
folder, name = os.path.split(PATH)
llm = Runner(which=Which.GGUF(quantized_model_id=folder, quantized_filename=name), max_seqs=16)
def ask(prompt, most):
    asked = CompletionRequest(prompt=prompt, model="default", max_tokens=most, temperature=0.0, ignore_eos=True)
    return llm.send_completion_request(asked).usage.completion_tokens
def answer(question, **more):
    asked = [{"role": "user", "content": question}]
    request = ChatCompletionRequest(messages=asked, model="default", max_tokens=64, temperature=0.0, **more)
    return llm.send_chat_completion_request(request).choices[0].message
def typed(question):
    return answer(question, grammar=json.dumps(SCHEMA), grammar_type="json_schema").content
def call(question):
    found = answer(question, tool_schemas=[json.dumps(TOOL)], tool_choice=ToolChoice.Auto).tool_calls[0].function
    return found.name, found.arguments
"""
NOBODYWHO = """
import nobodywho
raise SystemExit("nobodywho can be imported here: this program only knows the error of one where it cannot")
"""
MEASURE = """
import json, resource, sys, time
from concurrent.futures import ThreadPoolExecutor
PATH, THREADS, SCHEMA, TOOL = json.loads(sys.argv[1])
begun, told = float(sys.argv[2]), {}
def tell(name, run):
    try:
        told[name] = run()
    except BaseException as error:
        told[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    print(json.dumps({name: told[name]}), flush=True)
def speed(run):
    start = time.perf_counter()
    tokens = run()
    return tokens / (time.perf_counter() - start)
def many():
    prompts = [f"{number} Tell me about the sea and the {number + 3} ships." for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        return sum(pool.map(lambda prompt: ask(prompt, 64), prompts))
def is_trip(text):
    found = json.loads(text)
    return found if set(found) == {"person", "city"} else f"not by the schema: {text}"
def called(found):
    name, arguments = found
    return {name: json.loads(arguments) if isinstance(arguments, str) else arguments}
exec(sys.argv[3])
tell("first token, s", lambda: ask("Hello", 1) and time.time() - begun)
tell("one, tokens/s", lambda: speed(lambda: ask("Tell me about the sea.", 128)))
tell("prompt, tokens/s", lambda: speed(lambda: ask("time year people way day " * 400, 1) and 2000))
tell("by a schema", lambda: is_trip(typed("Anna flies to Rome on Friday.")))
tell("a call", lambda: called(call("What is the weather in Rome?")))
tell("sixteen, tokens/s", lambda: speed(many))
tell("memory at most, MiB", lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""
RIVALS = {
    "llama-engine": ("", OURS),
    "llama-cpp-python": ("", LLAMA),
    "xllamacpp": ("xllamacpp", XLLAMACPP),
    "mistralrs": ("mistralrs", MISTRALRS),
    "nobodywho": ("nobodywho", NOBODYWHO),
}
"""What pip installs, and how it is asked. "": nothing, it is in this environment, where one build serves both."""


def installed(package: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Install a package into a fresh environment. Returns its Python, and what that took."""
    if not package:
        return Path(sys.executable), {}
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    start = time.perf_counter()
    pip = [folder / "bin" / "pip", "install", "--quiet", "--no-cache-dir", package]
    subprocess.run(pip, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return folder / "bin" / "python", {"install, s": seconds, "installed, MB": size / 1e6}


def measured(python: Path, code: str, model: Path) -> dict[str, Any]:
    """What a rival did, by the names of the rows."""
    given = json.dumps([str(model.resolve()), os.cpu_count(), SCHEMA, TOOL])
    command = [python, "-W", "ignore", "-c", MEASURE, given, str(time.time()), code]
    done = None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        out, error = done.stdout, done.stderr.strip().splitlines()
    except subprocess.TimeoutExpired as stopped:
        raw: Any = stopped.stdout or b""
        out, error = raw.decode() if isinstance(raw, bytes) else raw, ["more than ten minutes"]
    told: dict[str, Any] = {}
    for line in out.splitlines():
        if line.startswith("{"):
            told |= json.loads(line)
    if done is not None and done.returncode < 0:
        told["ended by"] = signal.Signals(-done.returncode).name
    return told or {"first token, s": error[-1] if error else "no word"}


def middle(values: list[Any]) -> Any:
    """The median of numbers; of anything else the first."""
    return median(values) if all(isinstance(value, float | int) for value in values) else values[0]


def cell(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            package, code = RIVALS[name]
            python, rows = installed(package, Path(folder, name))
            print(f"{name}", flush=True)
            several = [measured(python, code, options.model) for _ in range(options.times)]
            for row, value in (rows | {row: middle([each.get(row) for each in several]) for row in several[0]}).items():
                print(f"  {row}: {cell(value)}", flush=True)


if __name__ == "__main__":
    main()
