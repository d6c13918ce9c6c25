"""langgraph: a graph of two nodes, the model and its tools.

pip install '.[openai]' langgraph langchain-openai
python examples/frameworks/with_langgraph.py [MODEL.gguf]
"""

import openai
import task
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import SecretStr

import engine.openai
from engine import Engine


def answer(llm: Engine, extra_body: dict[str, object] | None = None) -> str:
    with openai.DefaultHttpxClient(transport=engine.openai.transport(llm)) as http:
        model = ChatOpenAI(
            model="local",
            temperature=0,
            api_key=SecretStr("in-process"),
            base_url="http://in-process/v1",
            http_client=http,
            max_retries=0,
            extra_body=extra_body,
        )
        tools = [task.get_weather, task.multiply]
        bound = model.bind_tools(tools)
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        found = graph.compile().invoke({"messages": [{"role": "user", "content": task.QUESTION}]})
    return str(found["messages"][-1].text)


if __name__ == "__main__":
    task.main(answer)
