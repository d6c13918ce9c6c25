"""Many prompts, no server: requests in natural language become rows of typed arguments, several decoded at once.

python examples/batch.py [MODEL.gguf]
"""

import sys

from pydantic import BaseModel, Field

from engine import Engine


class create_event(BaseModel):  # noqa: N801 - the class's name is the tool's
    """Create a calendar event."""

    title: str = Field(description="what it is called")
    date: str = Field(description="the day, as YYYY-MM-DD")


REQUESTS = [
    "Create an event budget review on 2026-03-14",
    "Schedule team lunch on 2026-04-02",
    "Put dentist in my calendar on 2026-05-21",
    "Add an event called summer party on 2026-07-09",
    "Create an event code freeze on 2026-08-30",
    "Schedule board meeting on 2026-11-17",
]


def main(model: str | None = None) -> None:
    with Engine.load(model, n_sequences=4) as llm:
        completions = llm.generate(REQUESTS, tools=[create_event], temperature=0, max_tokens=200)
    for request, completion in zip(REQUESTS, completions, strict=True):
        events = [create_event.model_validate_json(call.arguments) for call in completion.tool_calls if not call.error]
        print(request)
        for event in events:
            print(f"    {event.date}  {event.title}")
        if not events:
            print(f"    no event: {completion.content or completion.tool_calls}")
    tokens = sum(completion.usage.completion_tokens for completion in completions if completion.usage)
    print(f"{len(completions)} answers, {tokens} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:2])
