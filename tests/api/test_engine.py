"""The face: Engine over a scripted backend, and over the built-in model."""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from fakes.doubles import guess_always
from fakes.inside import parts

import engine
from engine import ChatTemplate, Engine, ModelLoadError, RequestError
from engine.llama.lib import library
from engine.llama.model import Model
from engine.runtime.loop.config import ContextOptions, LlamaOptions, LoopOptions, MediaOptions, ModelOptions
from engine.runtime.loop.loop import Loop
from engine.runtime.loop.request import Request
from engine.runtime.loop.runner import Runner
from engine.support.errors import ContextOverflowError, EngineError, EngineWarning
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.turns.options import LoadOptions, RawOptions, SamplingOptions, ScoreOptions, TurnOptions
from engine.types.completion import Completion
from engine.types.conversation import conversation_of
from engine.types.events import ContentDelta, Finished, ToolCallEnd, ToolCallStart, ToolResult, fold
from engine.types.messages import Message
from engine.types.sampling import SamplingParams
from engine.types.turn_settings import TurnSettings

VOCAB = ByteVocab(["<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"], end=["<|im_end|>"])
CALL = '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
ANSWER = "<think>\nI know it.\n</think>\n\nIt is 3."


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def scripted(
    replies: Sequence[str] | Callable[[str], str], family: str = "qwen3", seed: int | None = None, **options: Any
) -> Engine:
    backend = ScriptedBackend(replies, vocab=VOCAB, **options)
    return Engine.over(backend, ChatTemplate(None, family=family, control_tokens=VOCAB.control_tokens), seed=seed)


def backend_of(llm: Engine) -> ScriptedBackend:
    runner = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
    assert isinstance(runner, Runner)
    backend = runner._backend  # pyright: ignore[reportPrivateUsage]
    assert isinstance(backend, ScriptedBackend)
    return backend


def test_chat() -> None:
    with scripted([ANSWER]) as llm:
        completion = llm.chat("What is 1 + 2?")
    assert (completion.reasoning, completion.content) == ("I know it.", "It is 3.")
    assert completion.finish_reason == "stop"
    assert completion.usage
    assert completion.usage.completion_tokens > 0
    assert completion.message.reasoning == "I know it."


def test_chat_with_tools_gives_the_call() -> None:
    with scripted([CALL]) as llm:
        completion = llm.chat([{"role": "user", "content": "Add."}], tools=[add])
    (call,) = completion.tool_calls
    assert (call.name, call.arguments, call.error) == ("add", '{"a": 1, "b": 2}', None)
    assert completion.finish_reason == "tool_calls"
    assert call.id.startswith("call_")


def test_run_calls_the_tool_and_feeds_reasoning_back() -> None:
    asked: list[str] = []

    def reply(prompt: str) -> str:
        asked.append(prompt)
        return ANSWER if "<tool_response>" in prompt else CALL

    with scripted(reply) as llm:
        run = llm.run("What is 1 + 2?", tools=[add])
    assert run.stopped == "stop"
    assert run.completion.content == "It is 3."
    assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert run.messages[2].content == "3"
    assert "I add." in asked[1]
    assert "<tool_response>\n3\n</tool_response>" in asked[1]
    first, second = (step.completion.usage for step in run.steps)
    assert first is not None
    assert second is not None
    assert second.cached_tokens >= first.prompt_tokens


def test_metrics_are_sums_over_turns() -> None:
    with scripted([CALL, ANSWER]) as llm:
        usages = [step.completion.usage for step in llm.run("Add.", tools=[add]).steps]
        metrics = llm.metrics
    written = sum(usage.completion_tokens for usage in usages if usage)
    assert metrics.completion_tokens == written
    assert f"{written}" in metrics.prometheus()


def test_stream_run_marks_steps() -> None:
    with scripted([CALL, ANSWER]) as llm, llm.stream_run("Add.", tools=[add], max_steps=2) as stream:
        events = list(stream)
    assert [event.step for event in events if isinstance(event, Finished)] == [0, 1]
    assert [event.content for event in events if isinstance(event, ToolResult)] == ["3"]


def test_stream_events_fold_to_the_completion() -> None:
    with scripted([CALL]) as llm:
        stream = llm.stream("Add.", tools=[add])
        events = list(stream)
        assert fold(events) == stream.completion


def test_a_tool_that_is_not_declared() -> None:
    with scripted([CALL, CALL]) as llm:
        assert llm.chat("Add.").tool_calls == ()  # without tools a text stays a text
        assert llm.chat("Add.", tools=[{"name": "subtract"}]).tool_calls[0].error == "unknown_tool"


def test_arguments_are_checked() -> None:
    wrong = CALL.replace('"b": 2', '"b": "two"')
    with scripted([wrong, ANSWER]) as llm:
        run = llm.run("Add.", tools=[add])
    assert run.steps[0].completion.tool_calls[0].error == "invalid_arguments"
    assert "'b': Input should be a valid integer" in run.steps[0].results[0].content


def test_tool_choice_none() -> None:
    with scripted([CALL, CALL]) as llm:
        completion = llm.chat("Add.", tools=[add], tool_choice="none")
        assert not completion.tool_calls
        assert not completion.content
        assert (completion.usage.dropped_calls, completion.finish_reason) == (1, "stop")
        assert "dropped_calls=1" in repr(completion)
        assert "left out" in completion._repr_markdown_()  # pyright: ignore[reportPrivateUsage]
        assert all(
            not isinstance(event, ToolCallStart) for event in llm.stream("Add.", tools=[add], tool_choice="none")
        )
        assert "add" not in llm.render("Hello.", tools=[add], tool_choice="none").text


def test_a_constrained_answer_may_hold_the_text_of_a_call() -> None:
    held = '"<tool_call>{}</tool_call>"'
    vocab = ByteVocab(["<|im_start|>", "<think>", "</think>"])
    backend = ScriptedBackend([f"<think>\n\n</think>\n\n{held}"], vocab=vocab)
    with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm:
        completion = llm.chat("Quote.", tools=[add], tool_choice="none", response_format=str)
    assert completion.content == held


def test_reasoning_switch_and_template_kwargs() -> None:
    with scripted(["Yes."]) as llm:
        assert llm.render("Hello.", reasoning=False).text.endswith("<think>\n\n</think>\n\n")
        assert llm.render("Hello.", template_kwargs={"enable_thinking": False}).text.endswith("</think>\n\n")
        completion = llm.chat("Hello.", reasoning=False)
    assert (completion.reasoning, completion.content) == ("", "Yes.")


def test_reasoning_format() -> None:
    with scripted(lambda _: ANSWER) as llm:
        assert llm.chat("x", reasoning_format="exclude").reasoning == ""
        assert "I know it." in llm.chat("x", reasoning_format="none").content


def test_calls_handed_over_are_answered_by_the_caller() -> None:
    def reply(prompt: str) -> str:
        return ANSWER if "<tool_response>" in prompt else CALL

    remote: dict[str, Any] = {"name": "add", "parameters": {"type": "object", "required": ["a", "b"]}}
    with scripted(reply) as llm:
        run = llm.run("Add.", tools=[remote])
        assert run.stopped == "pending"
        results = [Message(role="tool", tool_call_id=call.id, content="3") for call in run.pending]
        again = llm.run([*run.messages, *results], tools=[remote])
    assert again.stopped == "stop"
    assert again.completion.content == "It is 3."
    assert again.messages[: len(run.messages)] == run.messages


def test_generate_keeps_the_order_and_decodes_together() -> None:
    def reply(prompt: str) -> str:
        return prompt.rsplit("user\n", 1)[1].split("<|im_end|>", maxsplit=1)[0].upper()

    prompts = [f"prompt {letter}" for letter in "abcdef"]
    with scripted(reply, n_sequences=4) as llm:
        completions = llm.generate(prompts, reasoning=False)
        most = max(backend_of(llm).batches)
        alone = ScriptedBackend(["x"]).batches
    assert [completion.content for completion in completions] == [prompt.upper() for prompt in prompts]
    assert most > 1
    assert not alone


def test_only_generate_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool] = []
    plain = Loop.submit

    def spy(self: Loop, request: Request) -> None:
        said.append(request.offline)
        plain(self, request)

    monkeypatch.setattr(Loop, "submit", spy)
    with scripted(lambda _: ANSWER) as llm:
        llm.generate(["one", "two"])
        llm.chat("three")
        llm.stream("four").result()
    assert said == [True, True, False, False]


def test_choices_share_the_prefill_and_have_seeds_of_their_own() -> None:
    with scripted(lambda _: ANSWER, n_sequences=3, seed=2**32 - 2) as llm:
        backend = backend_of(llm)
        streams = llm.choices("What is 1 + 2? " * 9, 3)
        completions = [stream.result() for stream in streams]
        prompt = completions[0].usage.prompt_tokens if completions[0].usage else 0
        assert [completion.content for completion in completions] == ["It is 3."] * 3
        assert backend.evaluated < prompt + 2 + 3 * (len(ANSWER) + 1)
        assert [sampler.params.seed for sampler in backend.samplers] == [2**32 - 2, 2**32 - 1, 0]
        before = backend.evaluated
        short = [stream.result() for stream in llm.choices("x", 3, max_tokens=1)]
        prompt = short[0].usage.prompt_tokens if short[0].usage else 0
        assert backend.evaluated - before <= prompt + 2, "a short prompt is evaluated once, too"
        first, second = llm.choices("x", 2, tools=[add], seed=5)
        assert {first.result().content, second.result().content} == {"It is 3."}
        assert len(llm.choices("x", 1)) == 1
        for n in (0, -1):
            with pytest.raises(RequestError, match=f"n={n} is not valid"):
                llm.choices("x", n)


def decoded_beside_a_prompt(*, offline: bool) -> int:
    """How many tokens an answer got while another conversation's prompt of 3,000 tokens was evaluated."""
    with scripted(lambda _: "a" * 5000, n_sequences=2, n_ctx=20_000, n_batch=64) as llm:
        backend, places = backend_of(llm), list[tuple[int, int]]()
        (stream,) = llm.choices("x", 1, offline=offline, repetition_limit=0)
        reading = iter(stream)
        assert next(reading)
        llm.chat("y" * 3000, max_tokens=1, progress=lambda done, _: places.append((done, backend.evaluated)))
        (first, before), (last, after) = places[0], places[-1]
        return (after - before) - (last - first)


def test_choices_that_nobody_reads_along_wait_for_prompts() -> None:
    online, offline = (decoded_beside_a_prompt(offline=offline) for offline in (False, True))
    assert online >= 30, "one in each of the steps that evaluate the prompt"
    assert offline <= online / 8, (online, offline)


def test_log_probabilities_reach_the_caller() -> None:
    with scripted(lambda _: "ab") as llm:
        completion = llm.chat("x", reasoning=False, logprobs=1)
        stream = llm.stream("x", reasoning=False, logprobs=0)
        events = list(stream)
        assert fold(events).parts == stream.completion.parts
        assert llm.chat("x", reasoning=False).logprobs == ()
    assert [entry.text for entry in completion.logprobs] == ["a", "b", "<|im_end|>"]
    assert [entry.top[0].text for entry in completion.logprobs] == ["a", "b", "<|im_end|>"]
    assert [entry.top for entry in stream.logprobs] == [(), (), ()]
    assert Completion.model_validate_json(completion.model_dump_json()) == completion


def test_what_ends_a_turn() -> None:
    def reply(prompt: str) -> str:
        return "<think>\none END two\n</think>\n\nthree END four"

    with scripted(reply) as llm:
        content = llm.chat("x", stop="END")
        token = llm.chat("x", stop_tokens=[ord("w")])
        endless = llm.chat("x", ignore_eos=True, max_tokens=100)
    assert (content.reasoning, content.content) == ("one END two", "three ")
    assert (token.reasoning, token.finish_reason) == ("one END t", "stop")
    assert (endless.content, endless.finish_reason) == ("three END four", "length")


def test_generate_takes_a_list_and_stops_at_a_mistake() -> None:
    with scripted(lambda _: ANSWER) as llm:
        assert llm.generate([]) == []
        with pytest.raises(RequestError, match="list of conversations"):
            llm.generate("one prompt")
        with pytest.raises(ContextOverflowError):
            llm.generate(["short", "long " * 5000])
        assert llm.chat("still there").content == "It is 3."


def test_sampling_options_reach_the_backend() -> None:
    with scripted(lambda _: ANSWER, seed=7) as llm:
        llm.chat("x", temperature=0.1, top_k=5, stop="never", max_tokens=50)
        llm.chat("x", seed=9, top_p=None)
        first, second = (sampler.params for sampler in backend_of(llm).samplers)
    assert (first.temperature, first.top_k, first.top_p, first.seed, first.max_tokens) == (0.1, 5, 0.95, 7, 50)
    assert first.stop == ("never",)
    assert (second.temperature, second.top_k, second.top_p, second.seed) == (0.6, 20, 0.95, 9)


def test_every_sampling_parameter_is_an_option() -> None:
    assert set(SamplingParams.model_fields) == SamplingOptions.__optional_keys__
    declared = {
        field.name for record in (ModelOptions, ContextOptions, MediaOptions, LoopOptions) for field in fields(record)
    }
    declared -= {field.name for field in fields(LlamaOptions)}
    by_the_engine = {"amx", "n_ubatch", "outputs_per_sequence", "use_extra_bufts"}
    assert declared - {"n_ctx", "n_gpu_layers"} - by_the_engine == LoadOptions.__optional_keys__ - {"llama"}


def test_every_option_of_a_turn_is_in_its_settings() -> None:
    named = {name for kind in (TurnOptions, RawOptions, ScoreOptions) for name in kind.__annotations__}
    own = {field.name for field in fields(TurnSettings)}
    assert named - SamplingParams.model_fields.keys() == own - {"sampling", "given"}


def test_a_reasoning_budget_closes_reasoning() -> None:
    def reply(prompt: str) -> str:
        return "Answer." if prompt.endswith("</think>\n\n") else "<think>\nOn and on and on and on."

    with scripted(reply) as llm:
        completion = llm.chat("x", reasoning_budget=9)
        assert completion.reasoning in ("On and o", "On and ")
        assert completion.content == "Answer."
    with scripted([], family="llama-3") as llama, pytest.raises(RequestError, match="budget"):
        llama.chat("x", reasoning_budget=9)


def test_ids_repeat_where_the_answer_does() -> None:
    with scripted(lambda _: CALL) as llm:
        same = {llm.chat("x", [add], seed=1).tool_calls[0].id for _ in range(2)}
        greedy = {llm.chat("x", [add], temperature=0).tool_calls[0].id for _ in range(2)}
        drawn = {llm.chat("x", [add]).tool_calls[0].id for _ in range(2)}
        assert (len(same), len(greedy), len(drawn)) == (1, 1, 2)
        assert llm.chat("another", [add], seed=1).tool_calls[0].id not in same


def test_options_that_make_no_sense() -> None:
    with scripted([]) as llm:
        for options, words in (
            ({"temperature": -1}, "temperature=-1 is not valid"),
            ({"temprature": 1}, "no option 'temprature'; did you mean 'temperature'"),
            ({"tool_choice": "required"}, 'tool_choice="required" needs tools'),
            ({"tool_choice": "requird"}, "is not valid; use"),
            ({"response_format": {"type": "json"}}, "for a JSON Schema write JsonSchema"),
            ({"max_tokens": 0}, "max_tokens=0"),
            ({"deadline": -1.0}, "deadline"),
            ({"reasoning": "high"}, "reasoning='high'"),
            ({"samplers": ["top_q"]}, "is not valid"),
            ({"top_k": -2}, "top_k=-2 is not valid"),
            ({"top_p": 2}, "top_p=2 is not valid"),
            ({"temperature": float("nan")}, "temperature=nan is not valid"),
            ({"seed": -2}, "seed=-2 is not valid"),
            ({"logprobs": 101}, "logprobs=101 is not valid"),
            ({"penalty_last_n": 0}, "penalty_last_n=0 is not valid"),
            ({"logit_bias": {3: float("nan")}}, "logit_bias={3: nan} is not valid"),
            ({"logit_bias": {300: 1.0}}, "logit_bias names token 300; this model has the tokens 0 to 261"),
            ({"stop_tokens": [-1]}, "stop_tokens"),
            ({"stop_tokens": [300]}, "stop_tokens names token 300"),
            ({"overflow": "drop"}, "overflow='drop' is not valid"),
            ({"reasoning_budget": -1}, "reasoning_budget=-1"),
        ):
            for call in (llm.chat, llm.run):
                with pytest.raises(RequestError) as caught:
                    call("x", **options)  # pyright: ignore[reportArgumentType, reportCallIssue]
                assert words in str(caught.value)
        assert not backend_of(llm).decodes, "all of that is refused before any decode"
        with pytest.raises(RequestError, match="no option 'n_contexts'"):
            Engine.load("x.gguf", n_contexts=1)  # pyright: ignore[reportCallIssue]


def test_a_closed_engine_says_so() -> None:
    llm = scripted([ANSWER])
    assert not llm.closed
    llm.close()
    llm.close()
    assert llm.closed
    with pytest.raises(EngineError, match="closed"):
        llm.chat("x")
    assert backend_of(llm).closed


def test_an_engine_nobody_holds_is_closed() -> None:
    llm = scripted([])
    backend = backend_of(llm)
    del llm
    gc.collect()
    limit = time.monotonic() + 5
    while not backend.closed:
        assert time.monotonic() < limit
        time.sleep(0.005)


async def test_async_chat_and_run() -> None:
    async def add_later(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    call = CALL.replace("add", "add_later")
    with scripted([ANSWER, call, ANSWER, call, ANSWER]) as llm:
        assert (await llm.stream("x")).content == "It is 3."
        run = await llm.stream_run("x", tools=[add_later])
        assert (run.completion.content, run.steps[0].results[0].content) == ("It is 3.", "3")
        events = [event async for event in llm.stream_run("x", tools=[add_later])]
        assert [type(event) for event in events if isinstance(event, ToolCallEnd | ToolResult)] == [
            ToolCallEnd,
            ToolResult,
        ]


def test_no_information_without_a_file() -> None:
    with scripted([]) as llm:
        assert llm.family.name == "qwen3"
        assert llm.n_ctx == 4096
        with pytest.raises(RequestError, match="not from a model file"):
            _ = llm.info


def test_a_path_that_is_not_there_is_no_name(tmp_path: Path) -> None:
    for path in ("models/missing.gguf", str(tmp_path / "missing"), "missing"):
        with pytest.raises(ModelLoadError, match="There is no file"):
            Engine.load(path)


def test_a_path_that_is_none_is_named() -> None:
    with pytest.raises(ModelLoadError, match="The path of the model is empty"):
        Engine.load("")
    with pytest.raises(ModelLoadError, match="is not a readable path"):
        Engine.load("~nobody-of-this-name/m.gguf")
    with pytest.raises(ModelLoadError, match=r"'a\\x00b\.gguf' is not a"):
        Engine.load("a\0b.gguf")
    with pytest.raises(RequestError, match=r"model=b'm\.gguf' must be the path of a \.gguf file"):
        Engine.load(b"m.gguf")  # pyright: ignore[reportArgumentType]


def test_layers_for_a_gpu_that_the_build_cannot_use_are_warned_of_once() -> None:
    if library().llama_supports_gpu_offload():
        pytest.skip("this build can use a GPU")
    with pytest.warns(EngineWarning, match=r"n_gpu_layers=-1 does nothing: .* computes on the CPU only") as caught:
        Engine.load(n_gpu_layers=-1).close()
    (warning,) = [each for each in caught if "n_gpu_layers" in str(each.message)]
    assert warning.filename == __file__


def test_public_names() -> None:
    assert dir(engine) == sorted(engine.__all__)
    assert {"LoadOptions", "TurnOptions", "RawOptions", "AgentOptions"} < set(engine.__all__)
    for name in engine.__all__:
        assert getattr(engine, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = engine.Motor  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


# On real weights


@pytest.fixture(scope="module")
def llm(builtin_model_path: Path) -> Iterator[Engine]:
    with Engine.load(builtin_model_path, n_threads=1, n_sequences=4) as loaded:
        yield loaded


def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: The city's name.
    """
    return f"17 degrees in {city}"


def test_the_main_job(llm: Engine) -> None:
    run = llm.run("What is the weather in Paris?", tools=[get_weather], temperature=0, max_steps=4)
    assert run.stopped == "stop"
    (call,) = run.steps[0].completion.tool_calls
    assert (call.name, call.parsed(), call.error) == ("get_weather", {"city": "Paris"}, None)
    assert run.steps[0].completion.reasoning
    assert "17" in run.completion.content
    usage = run.completion.usage
    assert usage is not None
    assert usage.cached_tokens > usage.prompt_tokens // 2


def test_fewer_than_no_drafts_are_refused(builtin_model_path: Path) -> None:
    with pytest.raises(RequestError, match="draft_max=-5 is not valid"):
        Engine.load(builtin_model_path, draft_max=-5)


def test_drafts_change_nothing_but_the_number_of_decodes(
    monkeypatch: pytest.MonkeyPatch, builtin_model_path: Path, llm: Engine
) -> None:
    guess_always(monkeypatch)
    asked = "Say one two three one two three one two three one two three"
    with Engine.load(builtin_model_path, n_ctx=512, draft_max=4) as drafting:
        drafted = drafting.chat(asked, temperature=0, max_tokens=60)
    plain = llm.chat(asked, temperature=0, max_tokens=60)
    assert drafted.parts == plain.parts
    assert drafted.usage
    assert drafted.usage.drafted_tokens >= drafted.usage.accepted_tokens > 0


def test_a_seed_repeats(llm: Engine) -> None:
    def drawn(seed: int) -> object:
        # So hot, and with no filter, that the tokens are dice.
        return llm.chat("Hello!", temperature=50, top_k=0, top_p=1.0, min_p=0.0, max_tokens=20, seed=seed).parts

    first, again = drawn(5), drawn(5)
    others = {drawn(seed) for seed in range(6, 9)}
    assert first == again
    assert others - {first}


def test_many_at_once_are_the_same_as_one_by_one(llm: Engine) -> None:
    prompts = ["Hello!", "Who are you?", "What is the weather in Rome?"]
    together = llm.generate(prompts, tools=[get_weather], temperature=0, max_tokens=150)
    one_by_one = [llm.chat(prompt, tools=[get_weather], temperature=0, max_tokens=150) for prompt in prompts]
    assert [item.content for item in together] == [item.content for item in one_by_one]
    assert [[call.arguments for call in item.tool_calls] for item in together] == [
        [call.arguments for call in item.tool_calls] for item in one_by_one
    ]


def test_inspection(llm: Engine) -> None:
    found = llm.inspect()
    assert (found.family, found.architecture, found.template_source) == ("qwen3", "qwen3", "model")
    assert found.starts_in_reasoning is False
    kinds = {marker.text: marker.kind for marker in found.markers}
    assert kinds["<think>"] == kinds["<tool_call>"] == "control token"
    assert not any(marker.missing for marker in found.markers)
    text = found.text()
    assert "enable_thinking: on, off; on by default" in text
    assert f"{llm.n_ctx:,} tokens" in text
    assert "earlier calls, several in one message, their results" in text
    assert "reads reasoning from  reasoning_content" in text


@pytest.mark.parametrize("family", ["gpt-oss", "deepseek-r1", "llama-3", "mistral-nemo", "qwen3-coder", "content-only"])
def test_inspection_of_every_family(builtin_model_path: Path, family: str) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}" if family == "content-only" else None
    with Engine.load(builtin_model_path, family=family, chat_template=template, n_ctx=512, n_threads=1) as other:
        found = other.inspect()
    assert (found.family, found.template_source, found.n_ctx) == (family, "caller" if template else "family", 512)
    assert found.starts_in_reasoning is (family == "deepseek-r1")
    texts = {marker.text for marker in found.markers}
    assert ("<|channel|>" in texts) is (family == "gpt-oss")
    assert found.text().startswith("model  ")


@pytest.mark.parametrize(("options", "restored"), [({}, (1,)), ({"max_tokens": 45}, ()), ({"stop": ["sunny"]}, (1,))])
def test_reasoning_is_remembered_of_turns_that_ended_by_themselves(
    options: dict[str, Any], restored: tuple[int, ...]
) -> None:
    with scripted(["<think>\nI look out of the window.\n</think>\n\nIt is very sunny in Oslo."]) as llm:
        answer = llm.chat("How is Oslo?", **options)
        assert answer.reasoning
        assert answer.content
        history = conversation_of(
            [{"role": "user", "content": "How is Oslo?"}, {"role": "assistant", "content": answer.content}]
        )
        assert parts(llm).turns.memory.restore(history)[1] == restored  # pyright: ignore[reportPrivateUsage]


def test_a_deeply_nested_call_ends_its_turn_and_no_other() -> None:
    deep = '<tool_call>\n{"name": "get_weather", "arguments": {"city": ' + "[" * 5000 + "}}\n</tool_call>"
    with scripted([f"<think>\nhm\n</think>\n\n{deep}", "Hello."], n_ctx=16384) as llm:
        assert llm.chat("How is Oslo?", [get_weather], repetition_limit=0).finish_reason == "tool_calls"
        assert llm.chat("Hello?").content == "Hello."


def test_closing_gives_the_memory_back(builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path, n_ctx=256, n_threads=1) as other:
        weights = parts(other).model  # pyright: ignore[reportPrivateUsage]
        assert isinstance(weights, Model)
    with pytest.raises(EngineError, match="closed"):
        _ = weights.handle


def test_loading_tells_its_progress_and_may_be_stopped(builtin_model_path: Path) -> None:
    told: list[float] = []

    def progress(fraction: float) -> bool:
        told.append(fraction)
        return False

    with pytest.raises(ModelLoadError, match="stopped"):
        Engine.load(builtin_model_path, progress=progress)
    assert told


def test_llama_cpp_is_quiet(
    builtin_model_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), Engine.load(builtin_model_path, n_ctx=256, n_threads=1) as other:
        other.chat("Hello!", max_tokens=5)
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    assert caplog.records


def test_an_engine_over_a_llama(builtin_model_path: Path, llm: Engine) -> None:
    import llama_cpp

    llama: Any = llama_cpp.Llama(str(builtin_model_path), n_ctx=512, n_threads=1, verbose=False)
    with Engine.from_llama(llama, n_sequences=2) as other:
        assert other.n_ctx == 512
        assert other.family.name == "qwen3"
        asked = "What is the weather in Paris?"
        assert (
            other.chat(asked, [get_weather], temperature=0).parts == llm.chat(asked, [get_weather], temperature=0).parts
        )
        llama.eval(llama.tokenize(b"Hello!"))
    assert llama.n_tokens > 0, "the Llama is as it was"
    with Engine.from_llama(llama, n_ctx=256, family="llama-3", type_k="f32") as other:
        assert (other.n_ctx, other.family.name) == (256, "llama-3")
    with pytest.raises(RequestError, match="use_mmap is an option of the weights"):
        Engine.from_llama(llama, use_mmap=False)  # pyright: ignore[reportCallIssue]
    with pytest.raises(RequestError, match="n_batch=0 is not valid"):
        Engine.from_llama(llama, n_batch=0)
    llama.close()
    with pytest.raises(EngineError, match="closed"):
        Engine.from_llama(llama)
    with pytest.raises(ModelLoadError, match="not an open llama_cpp"):
        Engine.from_llama("model.gguf")


class TestRaw:
    def test_text_goes_in_as_it_is(self) -> None:
        with scripted(lambda prompt: f"[{prompt}]") as llm:
            done = llm.complete("Once <|im_start|>upon")
            assert done.content == "[Once <|im_start|>upon]"
            backend = backend_of(llm)
            assert list(backend.tokens(0)[:5]) == list(b"Once ")
            assert VOCAB.is_special(backend.tokens(0)[5])
            assert [event.text for event in llm.stream_complete("a") if isinstance(event, ContentDelta)] == list("[a]")

    def test_markup_in_the_output_is_content(self) -> None:
        with scripted(["<think>\nhm</think>{} <tool_call>"]) as llm:
            assert llm.complete("x").content == "<think>\nhm</think>{} <tool_call>"

    def test_tokens_go_in_as_they_are(self) -> None:
        with scripted(lambda prompt: prompt[::-1], seed=3) as llm:
            odd = [ord("a"), 0xC3, ord("b")]
            done = llm.complete(odd, temperature=0.5, stop=["b"])
            backend = backend_of(llm)
            assert backend.tokens(0)[:3] == odd
            assert (done.usage and done.usage.prompt_tokens, done.finish_reason) == (3, "stop")
            params = backend.samplers[0].params
            assert (params.seed, params.temperature) == (3, 0.5)

    def test_there_and_back(self) -> None:
        with scripted(["x"]) as llm:
            text = "é <|im_end|> 你"
            assert llm.detokenize(llm.tokenize(text)) == text
            assert len(llm.tokenize(text)) < len(llm.tokenize(text, special=False))
            assert llm.detokenize(llm.tokenize(text, special=False)) == text
            assert llm.detokenize([0xC3]) == "\ufffd"

    def test_bad_input(self) -> None:
        with scripted(["x"], n_ctx=64) as llm:
            with pytest.raises(RequestError, match="no token 99999"):
                llm.complete([1, 99999])
            with pytest.raises(RequestError, match="no token -1"):
                llm.detokenize([-1])
            for odd in (7, [1.5], None, {"a": 1}):
                with pytest.raises(RequestError, match="Tokens must be a list of integers"):
                    llm.complete(odd)  # pyright: ignore[reportArgumentType, reportCallIssue]
            with pytest.raises(RequestError, match="empty"):
                llm.complete("")
            with pytest.raises(RequestError, match="empty"):
                llm.complete([])
            with pytest.raises(RequestError, match="no option 'reasoning'"):
                llm.complete("x", reasoning=True)  # pyright: ignore[reportCallIssue]
            with pytest.raises(ContextOverflowError):
                llm.complete("x" * 65)

    def test_a_model_continues(self, llm: Engine) -> None:
        prompt = llm.render("Hello!", reasoning=False)
        tokens = llm.tokenize(prompt.text, add_bos=True)
        one = llm.complete(prompt.text, temperature=0, max_tokens=20)
        assert one.content == llm.complete(tokens, temperature=0, max_tokens=20).content
        assert one.content == llm.chat("Hello!", reasoning=False, temperature=0, max_tokens=20).content


def test_choices_of_a_model_differ(llm: Engine) -> None:
    streams = llm.choices("Hello!", 3, temperature=50, top_k=0, top_p=1.0, min_p=0.0, max_tokens=12, seed=7)
    assert len({str(stream.result().parts) for stream in streams}) == 3


def test_log_probabilities_of_a_model(llm: Engine) -> None:
    completion = llm.chat("Hello!", temperature=0, logprobs=3, max_tokens=8)
    assert len(completion.logprobs) == 8
    for entry in completion.logprobs:
        assert len(entry.top) == 3
        assert (entry.token, entry.logprob) == (entry.top[0].token, entry.top[0].logprob), "greedy draws the best"
        assert sum(2.71828182846**other.logprob for other in entry.top) <= 1.0001
