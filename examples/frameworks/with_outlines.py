"""outlines, as for a vLLM server, whose fields the engine understands: schemas, choices, expressions, grammars.

pip install '.[openai]' outlines
python examples/frameworks/with_outlines.py [MODEL.gguf]
"""

from typing import Literal

import outlines
import task
from pydantic import BaseModel, Field

import engine.openai
from engine import Engine


class Report(BaseModel):
    weather: Literal["cold", "warm"]
    product: int = Field(ge=1000, le=9999)


def answer(llm: Engine) -> str:
    question = f'Write the report with weather "{task.get_weather("Oslo")}" and product {task.multiply(127, 46)}.'
    with engine.openai.OpenAI(llm) as client:
        model = outlines.from_vllm(client, "local")
        found = model(question, Report, temperature=0)
        parity = model("Is 5842 even or odd?", Literal["even", "odd"], temperature=0)
        number = model("What is 127 times 46?", outlines.types.Regex("[0-9]{4}"), temperature=0)
    return f"{Report.model_validate_json(found)!r} {parity} {number}"


if __name__ == "__main__":
    task.main(answer)
