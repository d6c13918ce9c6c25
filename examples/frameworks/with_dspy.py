"""dspy: an engine for its language models over `Engine.chat`, which holds answers to the schema of their signature.

pip install llama-engine dspy
python examples/frameworks/with_dspy.py [MODEL.gguf]
"""

from typing import Any, Literal

import dspy
import task
from dspy import lm15

from engine import Engine


class Local:
    """Answers dspy's requests with a model of this process."""

    supports_response_schema = True
    supported_params = ("response_format",)

    def __init__(self, llm: Engine, **options: Any) -> None:
        self._llm = llm
        self._options = options

    def complete(self, request: lm15.Request) -> lm15.Response:
        messages = [{"role": message.role, "content": message.text} for message in request.messages]
        if request.system:
            messages.insert(0, {"role": "system", "content": request.system})
        form = request.config.response_format
        found = self._llm.chat(messages, response_format=form, **self._options)
        usage = lm15.Usage(found.usage.prompt_tokens, found.usage.completion_tokens)
        message = lm15.Message.assistant(found.content)
        return lm15.Response(None, request.model, message, found.finish_reason, usage)


class Report(dspy.Signature):
    """Write the report."""

    weather: str = dspy.InputField()
    product: int = dspy.InputField()
    weather_is: Literal["cold", "warm"] = dspy.OutputField()
    product_is: Literal["even", "odd"] = dspy.OutputField()


def answer(llm: Engine) -> str:
    model = dspy.LM("local", engine=Local(llm, temperature=0, max_tokens=200), cache=False)
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        report = dspy.Predict(Report)(weather=task.get_weather("Oslo"), product=task.multiply(127, 46))
    return f"Report(weather_is={report.weather_is!r}, product_is={report.product_is!r})"


if __name__ == "__main__":
    task.main(answer)
