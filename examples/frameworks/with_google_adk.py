"""google-adk: its agent over litellm, which gets the engine's client.

pip install '.[openai]' google-adk litellm
python examples/frameworks/with_google_adk.py [MODEL.gguf]
"""

import task
from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

import engine.openai
from engine import Engine


async def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    async with engine.openai.AsyncOpenAI(llm) as client:
        model = LiteLlm("openai/local", client=client, temperature=0, extra_body=extra_body)
        agent = Agent(name="clerk", model=model, tools=[task.get_weather, task.multiply])
        runner = InMemoryRunner(agent)
        session = await runner.session_service.create_session(app_name=runner.app_name, user_id="me")
        question = types.Content(role="user", parts=[types.Part(text=task.QUESTION)])
        found = ""
        async for event in runner.run_async(user_id="me", session_id=session.id, new_message=question):
            for part in (event.content and event.content.parts) or []:
                if part.thought:
                    print("reasoning:", part.text)
                elif part.text:
                    found = part.text
    return found


if __name__ == "__main__":
    task.main(answer)
