"""What people write who come from other libraries: it works where it cannot be mistaken, else the error says what to
write. `MISTAKES` is the table."""

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import engine
from engine import (
    Agent,
    Choice,
    Completion,
    Conversation,
    Engine,
    Message,
    Run,
    SamplingParams,
    Step,
    ToolCall,
    ToolName,
    Usage,
)
from engine.runtime.stream.service import Stream
from engine.support.foreign import attributes
from engine.support.guided import Guided
from engine.types.messages import Messages
from engine.types.streams import Starting


class City(BaseModel):
    name: str


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"21 degrees and sunny in {city}"


class Weather:
    def get_weather(self, city: str) -> str:
        """Get the weather in a city."""
        return f"{self} {city}"


CALLS = Completion(parts=(ToolCall(id="1", name="get_weather", arguments='{"city": "Paris"}'),))
RESULT = engine.ToolResult(0, "call_1", "sunny")
SPOKEN = {"role": "user", "content": "Hello! Who are you?"}
THREE = '[{"role": "user", "content": "Hello"}, answer, {"role": "user", "content": "Who are you?"}]'

# What is written, and a part of the error that guides; or WORKS, and what its value must be.
WORKS = "works: "
MISTAKES: dict[str, dict[str, str]] = {
    "openai": {
        "answer.choices[0].message.content": "write .content",
        "answer.output_text": "write .content",
        "answer.text == answer.content": f"{WORKS}True",
        "answer.message['content']": "write .content",
        "answer.usage.input_tokens": "write .prompt_tokens",
        "answer.usage.output_tokens": "write .completion_tokens",
        "answer.usage.completion_tokens_details": "write .reasoning_tokens",
        "answer.refusal": "write .parse_error",
        "Message('user', 'hi')": "Message(role=..., content=...)",
        "engine.ToolName('w')": "ToolName takes its fields by name: ToolName(",
        "SamplingParams(0.2, 0.9)": "SamplingParams takes its fields by name: SamplingParams(temperature=...",
        "run.steps[0].tool_calls": "write .completion.tool_calls",
        "run.steps[0].output": "write .completion.content",
        "RESULT.output": "write .content",
        "RESULT.tool_call_id": "write .id",
        "answer.reasoning_content": "write .reasoning",
        "call.function.name": "write .name, and .parsed()",
        "llm.completions": "llm.openai_client().chat.completions.create",
        "llm.responses": "llm.openai_client()",
        "llm.embeddings": "llm.embed([...])",
        "engine.OpenAI": "llm.openai_client()",
        "engine.remote.Remote('http://localhost:8080/v1')": "openai.OpenAI(base_url=",
        "engine.chat": "llm = engine.Engine.load(...)",
        "llm.chat('x', model='gpt-4o')": "one model, the one that Engine.load loaded",
        "llm.chat('x', stream=True)": "call llm.stream(...)",
        "llm.chat('x', n=2)": "call llm.choices(..., n=...)",
        "llm.chat('x', max_completion_tokens=5)": "write max_tokens=",
        "llm.chat('x', reasoning_effort='low')": "write reasoning=",
        "llm.chat('x', extra_body={})": "by their names",
        "llm.chat('x', timeout=5)": "write deadline=",
        "llm.chat('x', api_key='x')": "no server and no key",
        "llm.chat('x', max_retries=2)": "no server and no key",
        "llm.chat('x', functions=[get_weather])": "write tools=",
        "llm.chat('x', tool_choice='get_weather', tools=[get_weather])": 'ToolName(name="get_weather")',
        "llm.chat('x', tool_choice=get_weather, tools=[get_weather])": 'ToolName(name="get_weather")',
        "llm.chat('x', tool_choice={'name': 'get_weather'}, tools=[get_weather])": 'ToolName(name="get_weather")',
        "llm.chat('x', response_format='json')": '{"type": "json_object"}',
        "llm.chat('x', response_format=City(name='a'))": "response_format=City",
        "llm.chat('x', response_format=City.model_json_schema(), max_tokens=60).content.strip()[:1]": f"{WORKS}'{{'",
        "llm.chat('x', response_format={'name': 'str'})": "JsonSchema({...})",
        f"isinstance(llm.chat({THREE}), Completion)": f"{WORKS}True",
        "llm.chat({'messages': [SPOKEN]})": 'request["messages"]',
        "conversation.history": "write .messages",
        "next(iter(llm.stream('x'))).choices": "match on the event's class",
        "next(iter(llm.stream('x')))['choices']": "match on the event's class",
    },
    "anthropic": {
        "answer.stop_reason": "write .finish_reason",
        "call.input": "write .parsed()",
        "llm.chat('x', tool_choice={'type': 'any'}, tools=[get_weather])": '"required"',
        "llm.chat('x', tools=[{'name': 'w', 'description': 'd', 'input_schema': {}}])": "parameters (the schema",
        "llm.chat('x', system='Be brief.')": "put a system message first",
        "llm.chat('x', stop_sequences=['a'])": "write stop=",
        "llm.chat('x', thinking={'budget_tokens': 10})": "write reasoning=",
        "llm.stream('x').text_stream": "ContentDelta",
        "llm.stream('x').get_final_message()": ".result()",
    },
    "langchain": {
        "llm.invoke('x')": 'write llm.chat("...")',
        "llm.ainvoke('x')": 'write await llm.achat("...")',
        "llm.batch(['x'])": "write llm.generate([...])",
        "llm.predict('x')": 'write llm.chat("...")',
        "llm.bind_tools([get_weather])": "write llm.run(..., tools=[...])",
        "llm.with_structured_output(City)": "response_format=City",
        "llm.bind(temperature=0)": "options are given to each call",
        "llm.embed_documents(['x'])": "write llm.embed([...])",
        "answer.usage_metadata": "write .usage",
        "answer.response_metadata": "write .usage",
        "answer.additional_kwargs": "write .tool_calls",
        "answer.message.pretty_print()": "print(message)",
        "call['args']": "write .parsed()",
        "call['name']": "write .name",
        "call.args": "write .parsed()",
        "llm.chat([('user', 'hi')])": "not a tuple",
        "llm.chat([{'role': 'human', 'content': 'hi'}])": "the role 'user' for 'human'",
        "llm.chat('x', tool_choice='any', tools=[get_weather])": '"required"',
        "llm.chat('x', callbacks=[print])": "call llm.stream(...)",
        "run.intermediate_steps": "write .steps",
        "run.return_values": "write .output",
        "llm.run('x', [get_weather], max_iterations=3)": "write max_steps=",
        "llm.run('x', [get_weather], recursion_limit=3)": "write max_steps=",
        "list(llm.astream('x'))": "read with `async for`",
        "llm.astream('x').content": "await it first",
        "conversation.invoke('x')": 'write .chat("...")',
        "engine.ChatOpenAI": "llm.openai_client()",
        "engine.HumanMessage": '{"role": "user"',
    },
    "pydantic-ai": {
        "run.output": f"{WORKS}'Hello.'",
        "run.content": f"{WORKS}'Hello.'",
        "run.data": "write .output",
        "run.result": "write .output",
        "run.final_output": "write .output",
        "run.all_messages()": "write .messages",
        "run.new_messages()": "write .messages",
        "run.usage()": ".steps[0].completion.usage",
        "run.tool_calls": ".steps[0].completion.tool_calls",
        "run.messages.append(SPOKEN)": "[*messages, ",
        "run['output']": "write .output",
        "Agent('openai:gpt-4o')": "by name: Agent(instructions=",
        "Agent(system_prompt='x')": "write instructions=",
        "Agent(system='x')": "write instructions=",
        "Agent(model=llm)": "agent.run(llm, ...)",
        "Agent(output_type=City)": "write output=",
        "Agent(temperature=0)": 'options={"temperature": 0}',
        "Agent(handoffs=[])": "other.run(llm, ...)",
        "Agent(tols=[])": "did you mean 'tools'?",
        "Agent().run_sync('x')": 'write agent.run(llm, "...")',
        "Agent().run('x')": 'agent.run(llm, "...")',
        "Agent().run('x', llm)": 'agent.run(llm, "...")',
        "Agent().run_stream('x')": 'agent.stream_run(llm, "...")',
        "Agent().tool": "write tools=[...]",
        "llm.run('x', [get_weather], max_turns=3)": "write max_steps=",
        "llm.chat('x', model_settings={})": "by their names",
    },
    "ollama": {
        "answer['message']['content']": "write .message",
        "answer['content']": "write .content",
        "answer.message.content == answer.content": f"{WORKS}True",
        "answer.eval_count": "write .usage.completion_tokens",
        "answer['done']": "write .finish_reason",
        "llm.chat('x', options={'temperature': 0})": "by their names",
        "llm.chat('x', format='json')": "write response_format=",
        "llm.chat('x', think=True)": "write reasoning=",
        "llm.chat('x', num_predict=5)": "write max_tokens=",
        "llm.chat('x', keep_alive=5)": "stays loaded",
        "isinstance(llm.chat('x', max_tokens=-1), Completion)": f"{WORKS}True",
        "isinstance(llm.chat('x', seed=-1), Completion)": f"{WORKS}True",
        "Engine.load('llama3')": "owner/repo:Q4_K_M",
        "Engine.load(num_ctx=512)": "write n_ctx=",
        "engine.pull('llama3')": "owner/repo:Q4_K_M",
        "engine.Client()": "write engine.Engine.load(...)",
    },
    "transformers": {
        "Engine.from_pretrained('a/b')": 'Engine.load("owner/repo:Q4_K_M")',
        "engine.load('x')": "write engine.Engine.load(...)",
        "engine.pipeline('text-generation')": "write engine.Engine.load(...)",
        "answer[0]['generated_text']": "write .content",
        "answer.generated_text": "write .content",
        "llm.tokenizer": "llm.tokenize(text)",
        "llm.apply_chat_template([SPOKEN])": "write llm.render(messages)",
        "llm.to('cuda')": "write n_gpu_layers=",
        "llm.generate('x')": "put this one in a list",
        "llm.chat('x', max_new_tokens=5)": "write max_tokens=",
        "llm.chat('x', do_sample=False)": "write temperature=0",
        "llm.chat('x', bad_words_ids=[[1]])": "logit_bias={token: -100}",
        "llm.chat('x', generation_config={})": "by their names",
        "llm.chat('x', streamer=print)": "call llm.stream(...)",
        "Engine.load(device_map='auto')": "write n_gpu_layers=",
        "Engine.load(torch_dtype='auto')": "owner/repo:Q4_K_M",
        "Engine.load(local_files_only=True)": "HF_HUB_OFFLINE to 1",
        "Engine.load(token='x')": "HF_TOKEN",
        "llm.config": "llm.inspect()",
    },
    "llama-cpp-python": {
        "Engine()": 'Engine.load("model.gguf")',
        "Engine('model.gguf')": 'Engine.load("model.gguf")',
        "Engine(model_path='model.gguf')": 'Engine.load("model.gguf")',
        "llm.create_chat_completion([SPOKEN])": 'write llm.chat("...")',
        "llm.create_completion('x')": 'write llm.complete("...")',
        "llm.create_embedding('x')": "write llm.embed([...])",
        "llm.reset()": "each call is a turn of its own",
        "llm.save_state()": "llm.pin(...)",
        "llm.n_vocab()": "llm.inspect()",
        "Engine.load(model_path='x')": "first argument of Engine.load",
        "Engine.load(n_ctx=0)": "leave it out for as many as fit",
        "Engine.load(n_gpu_layers='all')": "-1 is all layers",
        "Engine.load(n_ctx='0')": "leave it out for as many as fit",
        "Engine.load(n_ctx='many')": "it should be a valid integer; write a number of tokens",
        "Engine.load(n_ctx='512', n_threads=' 1', seed='7', preflight=False).n_ctx": f"{WORKS}512",
        "llm.chat('x', max_tokens='2', deadline='30.0').finish_reason": f"{WORKS}'length'",
        "llm.chat('x', deadline='soon')": "it should be a valid number",
        "len(list(llm.choices('x', '2')))": f"{WORKS}2",
        "llm.chat(prompt='x')": "Engine.chat begins with its messages: write .chat(messages), not prompt=...",
        "llm.stream()": "write .stream(messages).",
        "llm.generate(prompts=['x'])": "write .generate(rows), not prompts=...",
        "Engine.load(seed=-2)": "whole number from 0 on",
        "Engine.load(chat_format='chatml')": "write family= or chat_template=",
        "Engine.load(verbose=False)": "logging",
        "Engine.load(embedding=True)": "then use embed()",
        "engine.Llama": "write engine.Engine.load(...)",
        "engine.batch.__name__": f"{WORKS}'engine.batch'",
        "llm.chat('x', grammar='root ::= \"a\"')": "GBNF",
        "llm.chat('x', logprobs='all')": "logprobs=5",
        "llm.chat('x', logit_bias={'a': 1})": "llm.tokenize",
        "isinstance(llm.chat('x', top_k=-1), Completion)": f"{WORKS}True",
    },
    "vllm": {
        "engine.LLM": "write engine.Engine.load(...)",
        "answer.outputs[0].text": "write .content",
        "llm.generate(['x'], SamplingParams(temperature=0))": "by their names",
        "llm.chat('x', SamplingParams(temperature=0))": "by their names",
        "llm.chat('x', sampling_params=SamplingParams())": "by their names",
        "isinstance(llm.chat('x', min_tokens=5), Completion)": f"{WORKS}True",
        "isinstance(llm.chat('x', bad_words=['x']), Completion)": f"{WORKS}True",
        "llm.chat('x', guided_choice=['x'])": "response_format=Choice([...])",
        "llm.chat('x', lora_request=1)": 'adapters={"name": "path"}',
        "llm.encode('x')": "write llm.embed([...])",
        "llm.get_tokenizer()": "llm.tokenize(text)",
        "Engine.load(max_model_len=512)": "write n_ctx=",
        "Engine.load(gpu_memory_utilization=0.9)": "memory is planned",
        "Engine.load(tensor_parallel_size=2)": "write llama=LlamaOptions(tensor_split=...)",
        "len(llm.complete(['x', 'y'], max_tokens=2))": f"{WORKS}2",
    },
    "anyone": {
        "llm.chat('x', tools=get_weather)": "tools=[...]",
        "llm.chat('x', tools={'w': get_weather})": "tools=list(functions.values())",
        "llm.chat('x', tools=[get_weather('a')])": "itself, not called",
        "llm.chat('x', tools='get_weather')": "put the function itself in a list",
        "llm.chat('x', response_format=['yes', 'no']).parsed in ('yes', 'no')": f"{WORKS}True",
        "llm.chat('x', response_format=('yes', 'no')).parsed in ('yes', 'no')": f"{WORKS}True",
        "llm.chat('x', response_format={'yes', 'no'})": "Choice([...])",
        "Choice('yes', 'no')": 'Choice(["yes", "no"])',
        "llm.chat('x', stop=5)": 'stop=["\\n"]',
        "llm.chat('x', temperature='0').finish_reason": f"{WORKS}'stop'",
        "llm.chat('x', temperature='hot')": "temperature=0.7",
        "llm.chat('x', max_tokens=0)": "1 or more",
        "llm.chat('x', reasoning='none')": "reasoning=False",
        "llm.chat('x', temprature=0)": "did you mean 'temperature'?",
        "llm.chat('x', history=[])": "the messages are the first argument",
        "llm.chat(['hi', 'ho'])": "llm.generate([...])",
        "llm.chat([{'role': 'user', 'text': 'hi'}])": "'content' for 'text'",
        "llm.chat([{'from': 'human', 'value': 'hi'}])": "'role' for 'from' and 'content' for 'value'",
        "llm.chat([{'role': 'model', 'content': 'hi'}])": "the role 'assistant' for 'model'",
        "llm.stream('x').content": ".result().content",
        "llm.ask('x')": 'write llm.chat("...")',
        "conversation.send('x')": 'write .chat("...")',
        "conversation.append(SPOKEN)": "llm.conversation([...])",
        "conversation.messages.append(SPOKEN)": "[*messages, ",
        "llm('Hi')": 'write llm.chat("...")',
        "[event.text for event in llm.stream('Hi', max_tokens=3)]": "match on the event's class",
        "llm.complete(llm.render('x'))": "llm.complete(prompt.text)",
        "llm.embed({'text': 'a'})": "a list of texts; this is a dictionary",
        "llm.chat('x', tools=[Weather.get_weather])": "tools=[thing.get_weather]",
        "llm.chat('x', tools=[Weather().get_weather], max_tokens=2).finish_reason": f"{WORKS}'length'",
        "llm.chat('x', stop=[''])": "at least 1 character",
        "Engine.load('llama3.2')": "`llama-engine models suggest` names some",
        "Engine.load('gpt-4o')": "names of services mean nothing here",
    },
}
ROWS = [
    pytest.param(source, told, id=f"{of}: {source}") for of, rows in MISTAKES.items() for source, told in rows.items()
]
KINDS: dict[str, type] = {
    "Completion": Completion,
    "Message": Message,
    "ToolCall": ToolCall,
    "Usage": Usage,
    "Run": Run,
    "Step": Step,
    "Conversation": Conversation,
    "Messages": Messages,
    "Agent": Agent,
    "Engine": Engine,
    "Stream": Stream,
    "RunStream": engine.RunStream,
    "Starting": Starting,
    "ReasoningDelta": engine.ReasoningDelta,
    "ContentDelta": engine.ContentDelta,
    "ToolCallStart": engine.ToolCallStart,
    "ToolCallDelta": engine.ToolCallDelta,
    "ToolCallEnd": engine.ToolCallEnd,
    "ToolResult": engine.ToolResult,
    "Finished": engine.Finished,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.load(n_ctx=1024) as made:  # which ends the answer that a temperature makes endless
        yield made


@pytest.fixture(scope="module")
def names(llm: Engine) -> dict[str, Any]:
    answer = llm.chat("Hello! Who are you?", temperature=0)
    hello = Completion.model_validate({"content": "Hello."})
    run = Run(Messages([Message(role="user", content="Hi")]), (Step(hello),), "stop")
    conversation = llm.conversation()
    return {
        **globals(),
        "llm": llm,
        "answer": answer,
        "call": CALLS.tool_calls[0],
        "run": run,
        "conversation": conversation,
    }


@pytest.mark.parametrize(("source", "told"), ROWS)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_mistake_works_or_says_what_to_write(source: str, told: str, names: dict[str, Any]) -> None:
    try:
        said = f"{WORKS}{eval(source, names)!r}"
    except Exception as error:  # noqa: BLE001 - any error, if its text guides
        said = str(error)
    assert told in said, said
    assert told.startswith(WORKS) == said.startswith(WORKS)
    assert "?." not in said


def test_the_table_is_as_large_as_promised() -> None:
    assert sum(map(len, MISTAKES.values())) >= 150
    assert min(map(len, MISTAKES.values())) >= 9


def _attributes(kind: type) -> set[str]:
    return {*dir(kind), *getattr(kind, "model_fields", {}), *getattr(kind, "__dataclass_fields__", {})}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_no_hint_is_for_a_name_that_exists_and_each_names_one_that_does(name: str) -> None:
    kind = KINDS[name]
    assert issubclass(kind, Guided)
    assert not attributes()[name].keys() & _attributes(kind)
    for hint in attributes()[name].values():
        for owner, told in re.findall(r"(\bllm|\bagent|\bengine|^write |\(\)|^)\.(\w+)", hint):
            known = {"llm": Engine, "agent": Agent, "write ": kind, "": kind}.get(owner)
            if known is not None:
                assert told in _attributes(known) | {"openai"}, hint


def test_hints_are_known_for_kinds_that_exist() -> None:
    assert attributes().keys() == KINDS.keys() | {"type Engine", "module engine"}
    assert not attributes()["type Engine"].keys() & set(dir(Engine))
    assert not attributes()["module engine"].keys() & set(engine.__all__)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_nothing_has_the_attributes_that_are_only_hinted_at(name: str, llm: Engine) -> None:
    made: dict[str, Callable[[], Any]] = {
        "Engine": lambda: llm,
        "Conversation": llm.conversation,
        "Stream": lambda: llm.stream("Hi", max_tokens=1),
        "RunStream": lambda: llm.stream_run("Hi", max_tokens=1),
        "Starting": lambda: llm.astream("Hi"),
        **{type(each).__name__: partial(copy.copy, each) for each in OBJECTS},
    }
    each = made[name]()
    for told in attributes()[name]:
        assert not hasattr(each, told)
        assert getattr(each, told, "default") == "default"
    if isinstance(each, Starting):
        each.close()


OBJECTS: list[Any] = [
    CALLS,
    CALLS.message,
    CALLS.tool_calls[0],
    Usage(prompt_tokens=3),
    Run((CALLS.message,), (Step(CALLS),), "stop"),
    Messages([CALLS.message]),
    Agent(instructions="x", tools=[get_weather]),
    Step(CALLS),
    engine.ReasoningDelta("a"),
    engine.ContentDelta("a"),
    engine.ToolCallStart(0, "1", "w"),
    engine.ToolCallDelta(0, "{"),
    engine.ToolCallEnd(0, "{}"),
    engine.ToolResult(0, "1", "a"),
    engine.Finished("stop"),
    ToolName(name="w"),
    SamplingParams(seed=1),
    Choice(["a", "b"]),
]


@pytest.mark.parametrize("each", OBJECTS, ids=lambda each: type(each).__name__)
def test_records_are_copied_pickled_and_compared_as_ever(each: Any) -> None:
    for other in (copy.copy(each), copy.deepcopy(each), pickle.loads(pickle.dumps(each))):
        assert other == each
        assert type(other) is type(each)
    if isinstance(each, BaseModel):
        assert type(each).model_validate(each.model_dump()) == each
        assert type(each).model_validate_json(each.model_dump_json()) == each
        assert each.model_copy() == each
    if dataclasses.is_dataclass(each) and not isinstance(each, type):
        assert dataclasses.replace(each) == each


@pytest.mark.parametrize("each", OBJECTS, ids=lambda each: type(each).__name__)
def test_an_unknown_name_is_an_attribute_error_of_the_usual_words(each: Any) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = each.no_such_name


def test_an_error_inside_of_a_property_is_told_as_it_is() -> None:
    class Broken(Guided):
        @property
        def content(self) -> str:
            missing: Any = None
            return str(missing.text)

    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'text'"):
        _ = Broken().content


def test_what_is_told_of_types_is_so_for_type_checkers_too() -> None:
    """A list of texts is a `response_format`, as at run time."""
    format_: engine.ResponseFormatLike[Any] = ["yes", "no"]
    of_type: engine.ResponseFormatLike[Any] = Literal["yes", "no"]
    assert format_ != of_type
