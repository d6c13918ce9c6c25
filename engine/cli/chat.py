"""`llama-engine chat`: a conversation at a prompt or from a pipe."""

import asyncio
import contextlib
import inspect
import itertools
import json
import mimetypes
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.agent.run import RunStream
from engine.api.engine import Engine
from engine.cli.confirm import confirmed
from engine.cli.prompt import reader
from engine.cli.screen import Screen
from engine.cli.sessions import read, write
from engine.cli.settings import NAMES, changed, described
from engine.cli.standard import complain, loading
from engine.cli.tool_files import watched
from engine.cli.wording import spoken
from engine.support import paths
from engine.support.display import counted
from engine.support.errors import EngineError, RequestError, did_you_mean, shown
from engine.support.own_file import read_regular
from engine.tools import error_text
from engine.turns.options import TurnOptions
from engine.types.completion import Completion, Usage, figures
from engine.types.events import Event, ReasoningDelta
from engine.types.media import Audio, Image, Media, MediaKind
from engine.types.messages import Message
from engine.types.parts import ToolCall
from engine.types.tools import Tool

HELP = {
    "/help": "show these commands",
    "/show": "show the system message, the options, the tokens used and the context left",
    "/system [TEXT|off]": "show, set or remove the system message",
    "/set [NAME VALUE]": "set an option of sampling, max_tokens or reasoning; `default` takes it back",
    "/think on|off|show|hide": "reason or not; show the reasoning, or only its length",
    "/model [NAME]": "show the models, or let another of them answer",
    "/file FILE": "show a picture, a sound or a text with the next question",
    "/retry": "ask the last question again",
    "/undo": "forget the last question and its answer",
    "/save FILE": "write the conversation to a file",
    "/load FILE": "go on with the conversation of a file",
    "/clear": "forget the conversation, but for the system message",
    "/quit": "end; so does Ctrl-D",
}
_OTHER_NAMES = {"/reset": "/clear", "/exit": "/quit"}
_COMMAND = re.compile(r"/\w+")
_OFF = "off"
_LONGEST_TEXT = 16 << 20  # in bytes


class Chat:
    """One conversation. `system`: its system message, also where it is continued. `confirms`: ask before each call of
    a tool. `file`: the file to read the conversation from, if it exists, and to save it to after each turn, with the
    `names` of its models. `models`: those that may answer, by name. `commands`: piped lines may be commands. Raises
    RequestError for a file that cannot be read."""

    def __init__(
        self,
        screen: Screen,
        llm: Engine,
        *,
        system: str | None = None,
        turn: TurnOptions,
        tools: Sequence[Tool] = (),
        confirms: bool = True,
        file: Path | None = None,
        names: Sequence[str] = (),
        models: Mapping[str, Engine] | None = None,
        commands: bool = False,
    ) -> None:
        self._screen = screen
        self._llm = llm
        self._turn = turn
        self._tools = [watched(tool, self._call) for tool in tools]
        self._confirms = confirms
        self._in_tool = False
        self._file = file
        self._names = names
        self._models = models or {}
        self._name = next(iter(self._models), "")
        self._usages: list[Usage] = []
        self._shown: list[Media | str] = []
        self._shows_reasoning = True
        self._interactive = sys.stdin.isatty()
        self._takes_commands = commands or self._interactive
        self._warned = False
        self.history: list[Message] = []
        if file is not None and paths.exists(file):
            self._load(file)
        if system is not None:
            self._set_system(system)

    def run(self, greeting: Callable[[], str]) -> None:
        """Answer line by line until the input ends. An interactive chat starts by showing the greeting."""
        for text in self._lines(greeting):
            try:
                if self._takes_commands and text.startswith("/") and not text.startswith("//"):
                    if not self._command(text):
                        return
                else:
                    said = text.removeprefix("/") if self._takes_commands and text.startswith("//") else text
                    self._ask(self.history, said)
            except EngineError as error:
                if not self._interactive:
                    raise
                self._screen.prose(spoken(str(error), chat=True), "red")

    def _lines(self, greeting: Callable[[], str]) -> Iterator[str]:
        """Yields the user's texts: typed at a prompt, or the lines of a pipe."""
        if not self._interactive:
            for line in _piped_lines():
                if text := line.strip():
                    self._screen.said("question", text)
                    self._warn_of_a_command(text.split()[0])
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
                    self._screen.prose(f"  {command:<{width}}  {about}", hang=width + 4)
            case "/show", "":
                self._show()
            case "/system", _:
                self._system(argument)
            case "/set", _ if len(argument.split(None, 1)) != 1:
                self._set(*argument.split(None, 1))
            case "/think", "on" | "off":
                self._set("reasoning", argument)
            case "/think", "show" | "hide":
                self._shows_reasoning = argument == "show"
                self._note(f"reasoning is {'shown' if self._shows_reasoning else 'hidden'} from now on")
            case "/model", _:
                self._switch(argument)
            case "/file", _ if argument:
                with self._llm.source.lease() as parts:
                    takes = parts.service.info.media
                self._shown.append(shown := _file_content(Path(argument), takes))
                about = f"a text of {len(shown):,} characters" if isinstance(shown, str) else shown.about
                self._note(f"{argument}, {about}, goes with the next question")
            case "/retry" | "/undo", "":
                self._go_back(again=name == "/retry")
            case "/save" | "/load", _ if argument:
                self._transfer(Path(argument), saves=name == "/save")
            case "/clear", "":
                self.history, self._shown = self._system_messages(), []
                self._save()
                self._note("the conversation begins anew")
            case "/quit", "":
                return False
            case _:
                raise RequestError(_misunderstood(name, argument))
        return True

    def _warn_of_a_command(self, word: str) -> None:
        """Say once that a piped line which looks like a command is sent as text."""
        if not (self._takes_commands or self._warned) and _COMMAND.fullmatch(word):
            self._warned = True
            known = any(usage.split()[0] == _OTHER_NAMES.get(word, word) for usage in HELP)
            complain(
                f"{word} is {'sent as text' if known else 'no command, and sent as text'}: piped lines are messages. "
                "--commands runs those that begin with / as commands."
            )

    def _system_messages(self) -> list[Message]:
        """Returns the messages before the first question."""
        return list(itertools.takewhile(lambda message: message.role in ("system", "developer"), self.history))

    def _set_system(self, text: str) -> None:
        rest = self.history[len(self._system_messages()) :]
        self.history = [*([Message(role="system", content=text)] if text else []), *rest]

    def _system(self, argument: str) -> None:
        """Show the system message; set it to a text, or remove it."""
        if not argument:
            shown = "\n".join(message.content or "" for message in self._system_messages())
            self._screen.line(shown or "There is no system message; /system TEXT sets one.")
            return
        self._set_system("" if argument == _OFF else argument)
        self._save()
        self._note("there is no system message from now on" if argument == _OFF else "the system message is set")

    def _set(self, name: str = "", value: str = "") -> None:
        """Set an option of the turns, or list what can be set."""
        if not name:
            self._screen.prose(f"Set: {described(self._turn) or 'nothing, so the defaults of the model'}")
            self._screen.prose(f"Options: {', '.join(NAMES)}")
            return
        turn = changed(self._turn, name, value)
        if name == "reasoning" and name in turn:
            _ = self._llm.render("Hello", reasoning=turn[name])  # raises if this model has no such switch
        self._turn = turn
        self._note(f"{name} is {value} from now on")

    def _show(self) -> None:
        """Show what the next question is asked with, and what was used so far."""
        system = "\n".join(message.content or "" for message in self._system_messages())
        following = [*self.history, Message(role="user", content=".")]
        prompt = self._llm.render(following, self._tools, **self._turn).texts
        used = len(self._llm.tokenize("".join(piece.text for piece in prompt)))
        context = self._llm.n_ctx
        asked = sum(message.role == "user" for message in self.history)
        rows = [
            ("model", self._name or model_name(self._llm)),
            ("format", self._llm.family.title),
            ("system", system or "none"),
            ("options", described(self._turn) or "the defaults of the model"),
            ("tools", ", ".join(tool.name for tool in self._tools) or "none"),
            ("messages", f"{len(self.history)}, of which {counted(asked, 'question')}"),
            ("used", figures(self._usages) if self._usages else "no tokens yet"),
            ("context", f"about {used:,} of {context:,} tokens, {max(0, context - used):,} left"),
        ]
        for name, value in rows:
            self._screen.prose(f"{name:<10}{value}", hang=10)
        self._screen.line(f"saved to  {self._file or 'nothing; /save FILE saves it'}")

    def _go_back(self, *, again: bool) -> None:
        """Forget the last question and all that followed it; ask it `again` if wanted."""
        last = max((number for number, each in enumerate(self.history) if each.role == "user"), default=None)
        if last is None:
            raise RequestError("There is no question yet.")
        if again:
            self._ask(self.history[:last], self.history[last])
            return
        self.history = self.history[:last]
        self._save()
        self._note("the last question is forgotten")

    def _switch(self, name: str) -> None:
        """Let another model answer from now on; without a name, list them. Raises RequestError for one that was not
        given, and what loading it raises."""
        listed = f"the models are {', '.join(self._models)}" if self._models else "name several after `chat`"
        if not name:
            self._screen.line(f"{self._name or model_name(self._llm)} answers; {listed}.")
            return
        if name not in self._models:
            raise RequestError(
                f"There is no model {shown(name)} here; {did_you_mean(name, self._models, f'{listed}.')}"
            )
        with loading(name):
            _ = self._models[name].template  # loads it, and raises if it cannot chat
        self._llm, self._name = self._models[name], name
        self._note(f"{name} answers from now on")

    def _note(self, text: str) -> None:
        """Tell who types a command that it was done."""
        if self._interactive:
            self._screen.line(f"({text})", "dim")

    def _ask(self, before: Sequence[Message], said: str | Message) -> None:
        """Run one turn and its calls, shown as they come. Ctrl-C stops it; what was written until then stays."""
        shown = {"role": "user", "content": [*self._shown, said]}
        question = said if isinstance(said, Message) else Message.model_validate(shown)
        asked = [*before, question]
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
        if run.stopped not in ("stop", "pending", run.completion.finish_reason):
            self._screen.write(f"[{run.ending}]\n", "red")
        if isinstance(said, str):
            self._shown = []
        self._usages += [step.completion.usage for step in run.steps if step.completion.usage]
        history = list(run.messages)
        self.history = [*history, *_unanswered(history)]
        self._save()
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
        if not (usage := last.usage):
            return
        speed = usage.decode_tokens_per_second
        context = usage.prompt_tokens + usage.completion_tokens
        self._screen.prose(
            f"[{counted(usage.completion_tokens, 'token')}{f', {speed:.0f} tokens/s' if speed else ''}"
            f" | context {100 * context // self._llm.n_ctx} % of {self._llm.n_ctx:,}"
            f" | prefix {100 * usage.cached_tokens // max(usage.prompt_tokens, 1)} % reused]",
            "dim",
        )

    def _save(self) -> None:
        """Write the conversation to its file, if it has one."""
        if self._file is not None:
            write(self._file, self.history, self._names)

    def _transfer(self, path: Path, *, saves: bool) -> None:
        if saves:
            write(path, self.history)
            self._screen.line(f"{counted(len(self.history), 'message')} saved to {path}", "dim")
        else:
            self._load(path)

    def _load(self, path: Path) -> None:
        self.history = list(read(path).messages)
        asked = sum(message.role == "user" for message in self.history)
        self._screen.line(f"going on after {asked} question{'' if asked == 1 else 's'} of {path}", "dim")


def model_name(llm: Engine) -> str:
    """Returns the name of a model: the one in its file, otherwise the file's; its family's for one without a file."""
    try:
        return llm.info.name or llm.info.path.name
    except RequestError:
        return llm.family.title


def _file_content(path: Path, takes: Collection[MediaKind]) -> Media | str:
    """Returns a picture, a sound, or the text of any other file. Raises RequestError for one that cannot be read, and
    for a picture or a sound that the model does not take."""
    kind = (mimetypes.guess_type(path.name)[0] or "").partition("/")[0]
    if kind in ("image", "audio"):
        if kind not in takes:
            seen = "pictures" if kind == "image" else "sounds"
            raise RequestError(
                f"{path} cannot be read: this model takes no {seen}. Take one that does, with its projector: "
                "--projector auto."
            )
        return Image(path) if kind == "image" else Audio(path)
    try:
        return read_regular(path, _LONGEST_TEXT).decode()
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
        near = did_you_mean(name, [usage.split()[0] for usage in HELP], "/help lists the commands.")
        return f"There is no command {name}; {near} To send a text that begins with a slash, begin it with two."
    return (
        f"{name} does not take {shown(argument)}; write {known}."
        if argument
        else f"{name} is incomplete; write {known}."
    )


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


def _piped_lines() -> Iterator[str]:
    try:
        yield from sys.stdin
    except UnicodeDecodeError as error:
        raise RequestError(f"Standard input is not UTF-8 text: {error}. Save it as UTF-8.") from error
