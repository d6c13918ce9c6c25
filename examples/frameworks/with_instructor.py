"""instructor: the calls of a question as pydantic models, then what came of them as one.

pip install '.[openai]' instructor
python examples/frameworks/with_instructor.py [MODEL.gguf]
"""

from collections.abc import Iterable

import instructor
import task
from pydantic import BaseModel

import engine.openai
from engine import Engine


class get_weather(BaseModel):  # noqa: N801 - the tool's name
    """Get the current weather."""

    city: str

    def result(self) -> str:
        return task.get_weather(self.city)


class multiply(BaseModel):  # noqa: N801
    """Multiply two numbers."""

    a: int
    b: int

    def result(self) -> str:
        return str(task.multiply(self.a, self.b))


class Report(BaseModel):
    """Write the report."""

    weather: str
    product: int


def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    with engine.openai.OpenAI(llm) as client:
        parallel = instructor.from_openai(client, mode=instructor.Mode.PARALLEL_TOOLS)
        calls = parallel.chat.completions.create(
            model="local",
            messages=[{"role": "user", "content": task.QUESTION}],
            response_model=Iterable[get_weather | multiply],
            temperature=0,
            extra_body=extra_body,
        )
        weather, product = (call.result() for call in calls)
        single = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
        report, completion = single.chat.completions.create_with_completion(
            model="local",
            messages=[{"role": "user", "content": f'Write the report with weather "{weather}" and product {product}.'}],
            response_model=Report,
            temperature=0,
            extra_body=extra_body,
        )
    print("reasoning:", completion.choices[0].message.reasoning_content)
    return repr(report)


if __name__ == "__main__":
    task.main(answer)
