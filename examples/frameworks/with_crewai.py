"""crewai: one agent of its own over Chat Completions.

pip install '.[openai]' crewai
python examples/frameworks/with_crewai.py [MODEL.gguf]
"""

from typing import Any

import task
from crewai import Agent
from crewai.llms.providers.openai.completion import OpenAICompletion
from crewai.tools import tool

import engine.openai
from engine import Engine


class Local(OpenAICompletion):
    """crewai makes a sync and an async client of the same arguments, so these are made here."""

    def _build_sync_client(self) -> Any:
        return engine.openai.OpenAI(**self.client_params)

    def _build_async_client(self) -> Any:
        return engine.openai.AsyncOpenAI(**self.client_params)


def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    params = {"extra_body": extra_body} if extra_body else {}
    model = Local(model="local", client_params={"engines": llm}, temperature=0, additional_params=params)
    tools = [tool(task.get_weather), tool(task.multiply)]
    agent = Agent(role="Clerk", goal="Answer.", backstory="You answer.", llm=model, tools=tools)
    return str(agent.kickoff(task.QUESTION).raw)


if __name__ == "__main__":
    task.main(answer)
