"""inspect-ai over a model in this process: a task with a tool, found by the provider's name."""

import gc
from pathlib import Path
from typing import Any

import pytest

inspect_ai = pytest.importorskip("inspect_ai")
pytestmark = pytest.mark.filterwarnings("default")  # its own


def test_a_task_with_a_tool_is_evaluated(tmp_path: Path) -> None:
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    import engine.plugins.inspect_ai  # noqa: F401 - the provider

    @tool
    def get_weather() -> Any:
        async def execute(city: str) -> str:
            """Get the weather in a city.

            Args:
                city: the city's name
            """
            return f"21 degrees and sunny in {city}"

        return execute

    samples = [
        Sample(input="What is the weather in Paris?", target="21 degrees and sunny in Paris"),
        Sample(input="Hello! Who are you?", target="built-in model"),
    ]
    task = Task(dataset=samples, solver=[use_tools(get_weather()), generate()], scorer=includes())
    options: dict[str, Any] = {"display": "none", "log_dir": str(tmp_path), "model_args": {"n_ctx": 1024}}
    (log,) = inspect_ai.eval(task, model="llama-engine/builtin", temperature=0, **options)
    gc.collect()  # what inspect-ai left open warns here, where it is forgiven
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    first, *_ = [each for sample in log.samples for each in sample.messages if each.role == "assistant"]
    assert [part.type for part in first.content][:1] == ["reasoning"]
