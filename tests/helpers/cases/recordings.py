"""Real outputs of the built-in model, token by token, in the formats it speaks. As a script, this records them anew:

    python tests/recordings.py

A recording is a prompt's prefix and the pieces of the output, as the vocabulary brought them: what a parser is fed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from engine.formats.template.chat_template import ChatTemplate
from engine.llama.context import LlamaBackend
from engine.llama.model import Model
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support import _data
from engine.types.prompt import Piece, Prompt
from engine.types.sampling import SamplingParams

FILE = Path(__file__).parent / "recordings.json"
FAMILIES = ("qwen3", "gpt-oss", "deepseek-r1", "llama-3", "mistral-nemo", "qwen3-coder")
LONGEST = 200


def _tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    schema = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _tool("get_weather", "Get the weather in a city", city="string"),
    _tool("multiply", "Multiply two numbers", a="integer", b="integer"),
    _tool("send_message", "Send a message", to="string", text="string"),
]
QUESTIONS = (
    "What is the weather in Paris?",
    "Multiply 12 by 34.",
    "Send a message to Ann saying see you soon.",
    "What is the weather in Oslo and Rome?",
    "Hello!",
    "Who are you?",
)


class Recording(TypedDict):
    """One output: the family it was asked for in, the prompt's prefix, the pieces of the output."""

    family: str
    question: str
    tools: bool
    prefix: list[tuple[str, bool]]
    pieces: list[tuple[str, bool]]


def load() -> list[Recording]:
    """The recordings."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def record(path: Path) -> Iterator[Recording]:
    """Ask the model every question in every family, greedily but for the last, with tools and without."""
    with Model.load(path, ModelOptions()) as model:
        backend = model.backend(ContextOptions(n_ctx=2048, n_threads=1))
        for family in FAMILIES:
            template = ChatTemplate(None, model.info.bos_text, model.info.eos_text, family)
            for number, question in enumerate(QUESTIONS):
                tools = TOOLS if number < 4 else None
                prompt = template.render(question, tools=tools)
                sampling = SamplingParams(temperature=0 if number % 3 else 0.8, seed=number)
                yield Recording(
                    family=family,
                    question=question,
                    tools=tools is not None,
                    prefix=[(text, special) for text, special, _ in prompt.prefix],
                    pieces=[(text, special) for text, special, _ in _generate(backend, prompt, sampling)],
                )


def _generate(backend: LlamaBackend, prompt: Prompt, sampling: SamplingParams) -> list[Piece]:
    """The output's tokens as pieces, the end of generation included where the parser is fed it."""
    vocab = backend.vocab
    tokens = vocab.encode(prompt.texts, add_bos=False)
    backend.trim(0, 0)
    rows = [Row(token, at, 0, at == len(tokens) - 1) for at, token in enumerate(tokens)]
    for start in range(0, len(rows), backend.info.n_batch):
        backend.decode(rows[start : start + backend.info.n_batch])
    sampler, row = backend.sampler(sampling), (len(rows) - 1) % backend.info.n_batch
    pieces: list[Piece] = []
    for position in range(len(tokens), len(tokens) + LONGEST):
        token = backend.sample(sampler, row)
        text = vocab.token_bytes(token).decode("utf-8", "replace")
        if vocab.is_end(token):
            pieces.extend([Piece(text, True)] if text == "<|call|>" else [])
            break
        pieces.append(Piece(text, vocab.is_special(token)))
        backend.decode([Row(token, position, 0, True)])
        row = 0
    sampler.close()
    return pieces


if __name__ == "__main__":
    lines = [json.dumps(recording, ensure_ascii=False) for recording in record(_data.builtin_model())]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
