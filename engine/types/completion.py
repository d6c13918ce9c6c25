"""One complete assistant turn, and what it cost."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, cast

from pydantic import computed_field, model_validator
from pydantic_core import from_json

from engine.support.display import Block, counted, page_html, page_markdown, record_html, short
from engine.types.answer_formats import Answer_co
from engine.types.blocks import part_blocks
from engine.types.messages import Message
from engine.types.parts import Part, Record, ToolCall, calls_in, content_of, reasoning_of
from engine.types.sampling import FinishReason, Limit, TokenLogprob, logprobs_html

_LIMITS = {
    "max_tokens": "The answer was cut off at {:,} tokens, the most allowed (max_tokens).",
    "context": "The answer was cut off at {:,} tokens: the conversation reached the end of the context (n_ctx).",
    "repetition": "The answer was cut off at {:,} tokens: its end is one text again and again (repetition_limit). "
    "repeat_penalty=1.1 or dry_multiplier=0.8 makes that rarer.",
}
_ENDINGS = {
    "length": "The answer was cut off: it reached the most tokens allowed (max_tokens), or the end of the context.",
    "cancelled": "The answer was cancelled.",
    "deadline": "The answer was cut off: its deadline passed.",
    "error": "An error ended the answer.",
    "pending": "The run waits for the results of calls that no function here answers (run.pending).",
    "stop_on": "A tool that ends the run was called.",
    "max_steps": "The run ended after the most turns allowed (max_steps), before the model answered.",
    "max_total_tokens": "The run ended after the most tokens allowed (max_total_tokens), before the model answered.",
    "overflow": "The run ended: the conversation is longer than the context.",
    "repeated": "The run ended, since the model went in a circle.",
}


class Usage(Record):
    """Counts and times of one request. Times are seconds; a speed is None until there is something to measure.

    `drafted_tokens` were guessed ahead (speculation), of which `accepted_tokens` were right; `undrafted_tokens` were
    drawn without a guess, because guesses did not pay. `dropped_messages` were left out of the prompt
    (`overflow="truncate_oldest"`), `shortened_results` are in it only in part (`overflow="shorten_results"`),
    `summarised_messages` only as a summary (`overflow="summarise"`), which took `summarising_tokens`, read and written,
    where this turn had to write it.
    `dropped_calls` are neither shown nor run: with `tool_choice="none"` all; otherwise one that ended its turn, as it
    repeats another where calls were demanded, or was one too many with `parallel_tool_calls=False`.
    `limit` is what cut off an answer that ended by "length": `max_tokens`, `repetition_limit`, or the end of the
    context. `sampling` tells what the tokens were drawn with, and who said so: "temperature 0.6 (the caller); top_k 40
    (the file)". The engine wrote the last `closed_characters` of a JSON answer, to close it (`close_at_limit`).
    `weighed_tokens` were tried where a form leaves a few texts, to choose one as a whole.
    A usage is false where nothing was counted: a server need not tell.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    time_to_first_token: float | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    undrafted_tokens: int = 0
    dropped_messages: int = 0
    shortened_results: int = 0
    summarised_messages: int = 0
    summarising_tokens: int = 0
    dropped_calls: int = 0
    limit: Limit | None = None
    sampling: str = ""
    closed_characters: int = 0
    weighed_tokens: int = 0

    def __bool__(self) -> bool:
        return self.total_tokens > 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def _repr_html_(self) -> str:
        return record_html(self)

    @property
    def decode_tokens_per_second(self) -> float | None:
        return (self.completion_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else None


def figures(usages: Iterable[Usage | None]) -> str:
    """Returns one line of figures over one or more turns."""
    known = [usage for usage in usages if usage]
    written = sum(usage.completion_tokens for usage in known)
    asked = sum(usage.prompt_tokens for usage in known)
    reused = sum(usage.cached_tokens for usage in known)
    seconds = sum(usage.decode_seconds for usage in known)
    drawn = sum(max(0, usage.completion_tokens - 1) for usage in known if usage.decode_seconds > 0)
    speed = f"{drawn / seconds:.0f} tokens/s" if seconds > 0 else "speed not measured"
    spoken = f"{counted(written, 'token')} in {counted(len(known), 'turn')}, {speed}"
    return f"{spoken}; prompt {counted(asked, 'token')}, {reused:,} of them reused from the prefix cache"


def summarised(messages: int, failure: str = "") -> str:
    """What became of old messages, as a sentence: see the event `Summarised`."""
    if failure:
        return f"The oldest {counted(messages, 'message')} were dropped: they could not be summarised ({failure})."
    return f"The oldest {counted(messages, 'message')} became a summary."


def ending(reason: str, usage: Usage | None = None) -> str:
    """Why a turn or a run ended, as a sentence: of the ends that a finish reason or `Run.stopped` names. `usage` is the
    turn's, and tells which limit cut it off."""
    if reason == "length" and usage is not None and usage.limit in _LIMITS:
        return _LIMITS[usage.limit].format(usage.completion_tokens)
    return _ENDINGS.get(reason, f"The answer ended: {reason}.")


class Completion(Record, Generic[Answer_co]):
    """One complete assistant turn: the fold of its events.

    `reasoning` joins its spans with newlines, `content` joins its spans directly; each is "" if there is none. `parts`
    has the same in the order written. `logprobs` has all tokens, forced ones and the end token included, if they were
    requested; no event has them. `parsed` is the answer converted as `response_format` requires; `parse_error` says why
    it is None. `Completion[Invoice]` is one whose `parsed` is an `Invoice`, or None.
    """

    parts: tuple[Part, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    logprobs: tuple[TokenLogprob, ...] = ()
    parsed: Answer_co | None = None
    parse_error: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_dump(cls, value: object) -> object:
        """Drop the computed fields of a `model_dump`, or make the parts from them."""
        if not isinstance(value, Mapping):
            return value
        data = dict(cast("Mapping[str, Any]", value))
        if data.get("usage", ...) is None:  # as dumps of 0.1 say that nothing was counted
            del data["usage"]
        flat = {name: data.pop(name, None) for name in ("reasoning", "content", "tool_calls")}
        if "parts" not in data and any(flat.values()):
            texts = [{"type": "reasoning", "text": flat["reasoning"]}, {"type": "text", "text": flat["content"]}]
            calls = [{"type": "tool_call", **call} for call in flat["tool_calls"] or ()]
            data["parts"] = [*(part for part in texts if part["text"]), *calls]
        return data

    @computed_field(repr=False)
    @property
    def reasoning(self) -> str:
        return reasoning_of(self.parts)

    @computed_field(repr=False)
    @property
    def content(self) -> str:
        return content_of(self.parts)

    @computed_field(repr=False)
    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return calls_in(self.parts)

    @property
    def text(self) -> str:
        """The same as `content`."""
        return self.content

    @property
    def made_up(self) -> tuple[str, ...]:
        """The places in a JSON answer whose values the engine wrote, since the tokens were used up (`close_at_limit`):
        "stars", "rooms.2.name"."""
        closed = self.usage.closed_characters
        if not closed:
            return ()
        try:
            whole = from_json(self.content)
            written = from_json(self.content[:-closed], allow_partial="trailing-strings")
        except ValueError:  # nothing of it is the model's, or it is no JSON
            return ()
        return tuple(_beyond(whole, written, ""))

    @property
    def message(self) -> Message:
        """This turn as a message for the history, with nothing lost, not even reasoning."""
        return Message(
            role="assistant",
            content=self.content,
            reasoning=self.reasoning or None,
            tool_calls=self.tool_calls,
            parts=self.parts,
        )

    def __str__(self) -> str:
        """Returns the answer's text, for `print`; where there is none, the same as `repr`."""
        return self.content or repr(self)

    def __repr__(self) -> str:
        """Returns a short form for interactive use; `model_dump()` has every field."""
        told = [f"finish_reason={self.finish_reason!r}"]
        answer = ("reasoning", "content") if self.parsed is None else ("reasoning",)
        told += [f"{name}={short(text)!r}" for name in answer if (text := getattr(self, name))]
        told += [f"parsed={short(repr(self.parsed))}"] if self.parsed is not None else []
        told += [f"tool_calls={[call.name for call in self.tool_calls]}"] if self.tool_calls else []
        told += [f"dropped_calls={self.usage.dropped_calls}"] if self.usage.dropped_calls else []
        told += [f"completion_tokens={self.usage.completion_tokens}"] if self.usage else []
        return f"Completion({', '.join(told)})"

    def _repr_html_(self) -> str:
        footer = figures([self.usage]) if self.usage else ""
        details = logprobs_html(self.logprobs) if self.logprobs else ""
        return page_html(blocks_of(self), footer, details)

    def _repr_markdown_(self) -> str:
        return page_markdown(blocks_of(self), figures([self.usage]) if self.usage else "")


def blocks_of(completion: Completion) -> list[Block]:
    """Returns the parts of a turn for display, and a notice if it ended abnormally."""
    blocks = part_blocks(completion.parts)
    if completion.parsed is not None:
        blocks = [replace(each, kind="fields") if each.kind == "content" else each for each in blocks]
    if completion.finish_reason not in ("stop", "tool_calls"):
        blocks.append(Block("notice", ending(completion.finish_reason, completion.usage), failed=True))
    if dropped := completion.usage.dropped_calls:
        blocks.append(Block("notice", f'left out, since tool_choice is "none": {counted(dropped, "tool call")}'))
    if completion.parse_error:
        blocks.append(Block("notice", completion.parse_error, failed=True))
    return blocks


def _beyond(whole: Any, written: Any, place: str) -> Iterator[str]:
    """Yields the places in a JSON value that a part of it does not reach."""
    if isinstance(whole, dict) and isinstance(written, dict):
        for name, value in cast("dict[str, Any]", whole).items():
            there = name in written
            yield from _beyond(value, written[name], f"{place}{name}.") if there else [f"{place}{name}"]
    elif isinstance(whole, list) and isinstance(written, list):
        items, begun = cast("list[Any]", whole), cast("list[Any]", written)
        for number, value in enumerate(items):
            there = number < len(begun)
            yield from _beyond(value, begun[number], f"{place}{number}.") if there else [f"{place}{number}"]
