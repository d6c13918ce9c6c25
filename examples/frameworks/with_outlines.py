"""outlines: a record, held to its schema.

pip install 'llama-engine[openai]' outlines
python examples/frameworks/with_outlines.py [MODEL.gguf]
"""

import outlines
import task
from pydantic import BaseModel

import engine.openai
from engine import Engine


class Report(BaseModel):
    weather: str
    product: int


def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    question = f'Write the report with weather "{task.get_weather("Oslo")}" and product {task.multiply(127, 46)}.'
    with engine.openai.OpenAI(llm) as client:
        model = outlines.from_openai(client, "local")
        found = model(question, Report, temperature=0, extra_body=extra_body)
    return repr(Report.model_validate_json(found))


if __name__ == "__main__":
    task.main(answer)
