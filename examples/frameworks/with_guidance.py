"""guidance: a record, held to its schema.

pip install '.[openai]' guidance
python examples/frameworks/with_guidance.py [MODEL.gguf]
"""

from typing import Literal

import openai
import task
from guidance import assistant, user
from guidance import json as as_json
from guidance.models import OpenAI
from pydantic import BaseModel, ConfigDict, Field

import engine.openai
from engine import Engine


class Report(BaseModel):
    model_config = ConfigDict(extra="forbid")

    weather: Literal["cold", "warm"]
    product: int = Field(ge=1000, le=9999)


def answer(llm: Engine) -> str:
    question = f'Write the report with weather "{task.get_weather("Oslo")}" and product {task.multiply(127, 46)}.'
    with openai.DefaultHttpxClient(transport=engine.openai.transport(llm)) as http:
        model = OpenAI(
            "local",
            api_key="in-process",
            base_url="http://in-process/v1",
            http_client=http,
            max_retries=0,
        )
        with user():
            model += question
        with assistant():
            model += as_json("report", schema=Report)
    return repr(Report.model_validate_json(model["report"]))


if __name__ == "__main__":
    task.main(answer)
