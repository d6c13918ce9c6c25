"""`llama-engine chat`: a conversation at a prompt or from a pipe."""

import asyncio
import contextlib
import inspect
import json
import mimetypes
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engine.agent.run import RunStream
from engine.cli.confirm import confirmed
from engine.cli.prompt import reader
from engine.cli.screen import Screen
from engine.cli.tool_files import watched
from engine.engine import Engine
from engine.errors import EngineError, RequestError, did_you_mean
from engine.events import Event, ReasoningDelta
from engine.media import Audio, Image, Media
from engine.options import TurnOptions
from engine.output_file import write_file
from engine.tools import error_text
from engine.types import Completion, Message, Tool, ToolCall

HELP = {
    "/help": "show these commands",
    "/think on|off|show|hide": "reason or not; show the reasoning, or only its length",
    "/model NAME": "let another of the given models answer",
    "/file FILE": "show a picture, a sound or a text with the next question",
    "/save FILE": "write the conversation to a file",
    "/load FILE": "go on with the conversation of a file",
    "/clear": "forget the conversation, but for the system message",
    "/quit": "end; so does Ctrl-D",
}
_OTHER_NAMES = {"/reset": "/clear", "/exit": "/quit"}
_MESSAGES = TypeAdapter(list[Message])


class Chat:
    """One conversation. `confirms`: ask before each call of a tool. `file`: the file to read the conversation from, if
    it exists, and to save it to after each turn. `models`: those that may answer, by name. Raises RequestError for a
    file that cannot be read."""

    def __init__(
        self,
        screen: Screen,
        llm: Engine,
        *,
        head: Sequence[Message] = (),
        turn: TurnOptions,
        tools: Sequence[Tool] = (),
        confirms: bool = True,
        file: Path | None = None,
        models: Mapping[str, Engine] | None = None,
    ) -> None:
        self._screen = screen
        self._llm = llm
        self._head = list(head)
        self._turn = turn
        self._tools = [watched(tool, self._call) for tool in tools]
        self._confirms = confirms
        self._in_tool = False
        self._file = file
        self._models = models or {}
        self._shown: list[Media | str] = []
        self._shows_reasoning = True
        self._interactive = sys.stdin.isatty()
        self.history: list[Message] = list(head)
        if file is not None and file.exists():
            self._load(file)

    def run(self, greeting: Callable[[], str]) -> None:
        """Answer line by line until the input ends. An interactive chat starts by showing the greeting."""
        for text in self._lines(greeting):
            try:
                if text.startswith("/") and not text.startswith("//"):
                    if not self._command(text):
                        return
                else:
                    self._answer(text.removeprefix("/") if text.startswith("//") else text)
            except EngineError as error:
                if not self._interactive:
                    raise
                self._screen.prose(f"{error}", "red")

    def _lines(self, greeting: Callable[[], str]) -> Iterator[str]:
        """Yields the user's texts: typed at a prompt, or the lines of a pipe."""
        if not self._interactive:
            for line in sys.stdin:
                if text := line.strip():
                    self._screen.said("question", text)
                    yield text
            return
        self._screen.prose(greeting(), "dim")
        ask = reader([message.content or "" for message in self.history if message.role == "user"], list(HELP))
        while True:
            try:
                text = ask().strip()
            except KeyboardInterrupt:
                self._screen.line("\n(Ctrl-D or /quit ends the chat.)", "dim")
                continue
            except EOFError:
                self._screen.line()
                return
            if text:
                yield text

    def _command(self, line: str) -> bool:
        """Run a command; returns False to end the chat. Raises RequestError for an unknown or incomplete command."""
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        match _OTHER_NAMES.get(name, name), argument:
            case "/help", "":
                width = max(map(len, HELP))
                for command, about in HELP.items():
                    self._screen.line(f"  {command:<{width}}  {about}")
            case "/think", "on" | "off":
                reasoning = argument == "on"
                _ = self._llm.render("Hello", reasoning=reasoning)  # raises if this model has no such switch
                self._turn["reasoning"] = reasoning
                self._note(f"reasoning is {argument} from now on")
            case "/think", "show" | "hide":
                self._shows_reasoning = argument == "show"
                self._note(f"reasoning is {'shown' if self._shows_reasoning else 'hidden'} from now on")
            case "/model", _ if argument:
                self._switch(argument)
            case "/file", _ if argument:
                self._shown.append(shown := _file_content(Path(argument)))
                about = f"a text of {len(shown):,} characters" if isinstance(shown, str) else shown.about
                self._note(f"{argument}, {about}, goes with the next question")
            case "/save", _ if argument:
                self._save(Path(argument))
                self._screen.line(f"{len(self.history)} messages saved to {argument}", "dim")
            case "/load", _ if argument:
                self._load(Path(argument))
            case "/clear", "":
                self.history, self._shown = list(self._head), []
                self._save(self._file)
                self._note("the conversation begins anew")
            case "/quit", "":
                return False
            case _:
                raise RequestError(_misunderstood(name, argument))
        return True

    def _switch(self, name: str) -> None:
        """Let another model answer from now on. Raises RequestError for one that was not given, and what loading it
        raises."""
        if name not in self._models:
            listed = f"the models are {', '.join(self._models)}" if self._models else "name several after `chat`"
            raise RequestError(f"There is no model {name!r} here; {did_you_mean(name, self._models, f'{listed}.')}")
        _ = self._models[name].template  # loads it, and raises if it cannot chat
        self._llm = self._models[name]
        self._note(f"{name} answers from now on")

    def _note(self, text: str) -> None:
        """Tell who types a command that it was done."""
        if self._interactive:
            self._screen.line(f"({text})", "dim")

    def _answer(self, text: str) -> None:
        """Run one turn and its calls, shown as they come. Ctrl-C stops it; what was written until then stays."""
        question = Message.model_validate({"role": "user", "content": [*self._shown, text]})
        asked = [*self.history, question]
        view = _View(self._screen, shows_reasoning=self._shows_reasoning)
        steps = 8 if self._tools else 1
        with (
            contextlib.closing(view),
            self._llm.stream_run(asked, self._tools, steps, approve=self._approve, **self._turn) as stream,
            self._interruptible(stream),
        ):
            try:
                for event in stream:
                    view.show(event)
            except KeyboardInterrupt:
                stream.cancel()
                for event in stream:
                    view.show(event)
        run = stream.run
        if not any(step.completion.parts for step in run.steps):  # stopped before the model wrote anything
            return
        self._shown = []
        history = list(run.messages)
        self.history = [*history, *_unanswered(history)]
        self._save(self._file)
        if self._interactive and run.steps:
            self._status(run.steps[-1].completion)

    @contextlib.contextmanager
    def _interruptible(self, stream: RunStream) -> Generator[None]:
        """Let Ctrl-C end the answer as a cancellation, so that what was written is kept. In a tool, which nothing else
        would stop, and the second time, it raises KeyboardInterrupt."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        times = 0

        def stop(*_: object) -> None:
            nonlocal times
            times += 1
            if self._in_tool or times > 1:
                raise KeyboardInterrupt
            stream.cancel()

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _call(self, call: Callable[[], Any]) -> Any:
        """Run a tool's call."""
        self._in_tool = True
        try:
            result = call()
            return asyncio.run(_waited(result)) if inspect.isawaitable(result) else result
        finally:
            self._in_tool = False

    def _approve(self, call: ToolCall) -> bool | str:
        """Returns True, or why the call is not to run. The user is shown its arguments as they are, all of them: a
        value's `repr` may leave something out."""
        if not self._confirms:
            return True
        arguments = json.dumps(json.loads(call.arguments), ensure_ascii=False)
        self._in_tool = True  # Ctrl-C interrupts the question
        try:
            agreed = confirmed(self._screen, f"run {call.name} {arguments}", "Run it?")
        finally:
            self._in_tool = False
        return agreed or "the user refused this call"

    def _status(self, last: Completion) -> None:
        """Show the last turn's figures, in one line."""
        if (usage := last.usage) is None:
            return
        speed = usage.decode_tokens_per_second
        context = usage.prompt_tokens + usage.completion_tokens
        self._screen.prose(
            f"[{usage.completion_tokens:,} tokens{f', {speed:.0f} tokens/s' if speed else ''}"
            f" | context {100 * context // self._llm.n_ctx} % of {self._llm.n_ctx:,}"
            f" | prefix {100 * usage.cached_tokens // max(usage.prompt_tokens, 1)} % reused]",
            "dim",
        )

    def _save(self, path: Path | None) -> None:
        """Write the conversation completely: an existing file is replaced once the new one is complete."""
        if path is None:
            return
        data = _MESSAGES.dump_json(self.history, indent=1, exclude_defaults=True)
        try:
            write_file(path, data)
        except OSError as error:
            raise RequestError(f"The conversation cannot be saved to {path}: {error}. Give another file.") from error

    def _load(self, path: Path) -> None:
        try:
            self.history = _MESSAGES.validate_json(path.read_bytes())
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error}. Correct the path.") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise RequestError(
                f"{path} is not a saved conversation: {first['msg']}. Give a file from /save."
            ) from error
        asked = sum(message.role == "user" for message in self.history)
        self._screen.line(f"going on after {asked} question{'' if asked == 1 else 's'} of {path}", "dim")


def _file_content(path: Path) -> Media | str:
    """Returns a picture, a sound, or the text of any other file. Raises RequestError for one that cannot be read."""
    kind = (mimetypes.guess_type(path.name)[0] or "").partition("/")[0]
    if kind in ("image", "audio"):
        return Image(path) if kind == "image" else Audio(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read: {error}. Give a picture, a sound or a text in UTF-8.") from error


class _View:
    """Shows events on a screen; hidden reasoning becomes one line, which ends with its length."""

    def __init__(self, screen: Screen, *, shows_reasoning: bool) -> None:
        self._screen = screen
        self._shows_reasoning = shows_reasoning
        self._hidden: list[str] = []

    def show(self, event: Event) -> None:
        if isinstance(event, ReasoningDelta) and not self._shows_reasoning:
            if not self._hidden:
                self._screen.show(ReasoningDelta("", event.part, event.step))  # it has begun, and may take a while
            self._hidden.append(event.text)
            return
        self._unfold()
        self._screen.show(event)

    def close(self) -> None:
        self._unfold()
        self._screen.settle()

    def _unfold(self) -> None:
        if self._hidden:
            words = len("".join(self._hidden).split())
            self._hidden = []
            self._screen.write(f"{words:,} word{'' if words == 1 else 's'}, hidden (/think show)", "dim")
            self._screen.settle()


async def _waited(awaitable: Awaitable[Any]) -> Any:
    """Returns the result of an async tool, awaited here so that Ctrl-C reaches it."""
    return await awaitable


def _misunderstood(name: str, argument: str) -> str:
    known = next((usage for usage in HELP if usage.split()[0] == name), None)
    if known is None:
        return (
            f"There is no command {name}. /help lists the commands; to send a text that begins with a slash, begin it "
            "with two."
        )
    return f"{name} does not take {argument!r}; write {known}." if argument else f"{name} is incomplete; write {known}."


def _unanswered(history: Sequence[Message]) -> list[Message]:
    """Returns results for the calls of the last assistant turn that have none, because the run was stopped."""
    turns = [number for number, message in enumerate(history) if message.role == "assistant"]
    if not turns:
        return []
    answered = {message.tool_call_id for message in history[turns[-1] :] if message.role == "tool"}
    text = error_text("the user stopped this call.")
    return [
        Message(role="tool", tool_call_id=call.id, name=call.name, content=text)
        for call in history[turns[-1]].tool_calls
        if call.id not in answered
    ]
