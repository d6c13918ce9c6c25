"""A run as JSON: saved while it goes on, loaded another day, resumed in the middle of a step."""

from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import Field, ValidationError

from engine.support.errors import RequestError
from engine.support.output_file import naming, write_file
from engine.support.own_file import read_regular
from engine.types.messages import Message, MessagesLike
from engine.types.parts import Record, ResultPart, Text

RunEnd: TypeAlias = Literal[
    "stop",
    "length",
    "cancelled",
    "deadline",
    "error",
    "pending",
    "max_steps",
    "max_total_tokens",
    "stop_on",
    "overflow",
    "repeated",
]
_SHOWN = 200
_LONGEST = 1 << 32
"""Bytes of a file."""


class CallRecord(Record):
    """The state of one call of the last turn.

    `state`: "waiting", it has not begun; "started", its tool was called; "done", `result` is what the model reads, and
    `error` whether it failed; `parts` is the same if it has pictures or sounds. `index` counts the calls of the turn
    from 0.
    """

    index: int = Field(ge=0)
    state: Literal["waiting", "started", "done"] = "waiting"
    result: Text | None = None
    error: bool = False
    parts: tuple[ResultPart, ...] = ()


class Transcript(Record):
    """A run in a form that JSON can hold: `transcript.save(path)`, `Transcript.load(path)`, `llm.run(transcript,
    tools)`.

    `messages` is the history. In the middle of a step, the last message is the assistant's, and `calls` has the state
    of each of its calls; otherwise `calls` is empty. `steps` turns were generated, which took `total_tokens`; `stopped`
    is why the run ended, None while it goes on. Tools and options are not part of it.
    """

    version: Literal[1] = 1
    messages: tuple[Message, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    steps: int = Field(default=0, ge=0)
    total_tokens: int = Field(default=0, ge=0)
    stopped: RunEnd | None = None

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Returns the transcript that `model_dump_json` wrote. Raises RequestError if the text is not a transcript."""
        try:
            transcript = cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(step) for step in first["loc"])
            reason = f"{place}: {first['msg']}" if place else first["msg"]
            raise RequestError(f"This is not the transcript of a run: {reason[:_SHOWN]}.") from error
        transcript.check()
        return transcript

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a transcript from a regular file. Raises RequestError for a file that is not a transcript, OSError for
        one that cannot be read, or is a FIFO or a device."""
        with naming(path):
            data = read_regular(Path(path), _LONGEST)
        return cls.from_json(data)

    def save(self, path: str | Path) -> None:
        """Write the transcript to a file. Whenever the process dies, the file holds either the old transcript or the
        new one. Links are followed, and the permissions of an old file kept. Raises OSError if it cannot be written,
        and for a FIFO or a device."""
        write_file(path, self.model_dump_json().encode())

    def check(self) -> None:
        """Raise RequestError for records that do not belong to the last message's calls."""
        if not self.calls:
            return
        made = self.messages[-1].tool_calls if self.messages else ()
        if [record.index for record in self.calls] != list(range(len(self.calls))) or len(made) < len(self.calls):
            raise RequestError(
                f"This transcript has records of {len(self.calls)} calls, but its last message makes {len(made)}; it "
                "was changed, or written by something else. Use the file that a run saved."
            )
        if any(record.state == "done" and record.result is None for record in self.calls):
            raise RequestError(
                "This transcript has a call that is done without a result; it was changed. Use the file that a run "
                "saved."
            )


RunInput: TypeAlias = "MessagesLike | Transcript"
"""The input of a run: a user's text, messages, or the transcript of a run to resume."""
