"""A stream in a cell: one display, few updates, interrupts, errors."""

# IPython's protocol is made of methods that begin with an underscore.
# pyright: reportPrivateUsage=false

import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from fakes.scripts import scripted

from engine import (
    ContentDelta,
    Engine,
    EngineError,
    Event,
    Finished,
    ReasoningDelta,
    RequestError,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)
from engine.types.live import Page, draw

CALL = '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
ANSWER = "<think>\nI know.\n</think>\n\nIt is **3**. <script>alert(1)</script>"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def load(replies: Sequence[str] | Callable[[str], str], delay: float = 0.0) -> Engine:
    return scripted(replies, delay=delay)


class Display:
    """IPython's `display`: it keeps every state of its one handle."""

    def __init__(self, on_update: Callable[[int], None] | None = None) -> None:
        self.made = 0
        self.states: list[dict[str, str]] = []
        self._on_update = on_update

    def __call__(self, data: dict[str, str], *, raw: bool, display_id: bool) -> "Display":
        assert raw
        assert display_id
        self.made += 1
        self.states.append(data)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.states.append(data)
        if self._on_update:
            self._on_update(len(self.states))

    @property
    def html(self) -> str:
        return self.states[-1]["text/html"]


class Given:
    """A stream of given events, each of which takes some seconds of a clock of its own."""

    def __init__(self, events: Sequence[Event], seconds: float = 0.0) -> None:
        self.now = 0.0
        self.cancelled = False
        self._events = events
        self._seconds = seconds

    def __iter__(self) -> Iterator[Event]:
        for event in self._events:
            self.now += self._seconds
            yield event

    def cancel(self) -> None:
        self.cancelled = True


def test_a_run_is_drawn_in_one_display_with_cards() -> None:
    with load([CALL, ANSWER]) as llm:
        display = Display()
        stream = llm.stream_run("What is 1 + 2?", tools=[add])
        draw(stream, display)
        assert display.made == 1
        assert "<b>call</b> <code>add</code>" in display.html
        assert "<b>result</b> <span" in display.html, "with its time"
        assert display.html.count("<details>") == 3
        assert display.html.index("What is 1 + 2?") < display.html.index("<b>call</b>"), "the question stands above"
        assert "It is <strong>3</strong>. &lt;script&gt;" in display.html
        assert "in 2 turns" in display.html
        assert display.html == stream.run._repr_html_(), "the page at the end is the record's own"
        again = Display()
        draw(stream, again)
        assert again.html == display.html, "shown again, it is still there"


def test_a_result_joins_its_call_while_the_run_goes_on() -> None:
    page = Page()
    for index, name in enumerate(("first", "second")):
        page.take(ToolCallStart(index, str(index), name, part=index))
        page.take(ToolCallEnd(index, "{}", part=index))
    page.take(ToolResult(0, "0", "seen", ran=(0.0, 0.5)))
    html = page.data()["text/html"]
    assert html.index("first") < html.index("0.50 s") < html.index("seen") < html.index("second")
    page.take(ToolResult(1, "1", "missed", error=True))
    html = page.data()["text/html"]
    assert html.index("second") < html.index("missed")


def test_reasoning_shows_its_last_lines_while_it_is_written_and_is_folded_then() -> None:
    """A page that is replaced all the time cannot be unfolded."""
    page = Page()
    page.take(ReasoningDelta("first line\n" + "more\n" * 300 + "the last line"))
    html = page.data()["text/html"]
    assert "<details open>" in html
    assert "the last line" in html
    assert "first line" not in html
    page.take(ContentDelta("Yes."))
    html = page.data()["text/html"]
    assert "<details open>" not in html
    assert "first line" in html


def test_at_most_ten_updates_a_second() -> None:
    given = Given([ContentDelta("word ")] * 1000, seconds=0.01)
    display = Display()
    draw(given, display, lambda: given.now)
    assert 90 <= len(display.states) <= 103, "ten seconds of events"
    assert display.html.count("word") == 1000


def test_drawing_takes_at_most_a_fifth_of_the_time() -> None:
    given = Given([ContentDelta("word ")] * 1000, seconds=0.01)

    def slow(_: int) -> None:
        given.now += 0.5

    display = Display(slow)
    draw(given, display, lambda: given.now)
    assert len(display.states) <= 10


def test_an_interrupt_cancels_the_request_and_leaves_the_engine_usable() -> None:
    with load(
        lambda prompt: "Second." if "two" in prompt else " ".join(f"word {n}" for n in range(1200)), delay=0.001
    ) as llm:

        def interrupt(count: int) -> None:
            if count == 3:
                raise KeyboardInterrupt

        display = Display(interrupt)
        stream = llm.stream("one", reasoning=False)
        with pytest.raises(KeyboardInterrupt):
            draw(stream, display)
        began = time.monotonic()
        assert stream.result().finish_reason == "cancelled"
        assert time.monotonic() - began < 1
        assert "word" in display.html
        assert "Interrupted" in display.html
        assert llm.chat("two", reasoning=False).content == "Second."


def test_an_interrupt_cancels_a_stream_that_goes_on_unread() -> None:
    def interrupt(count: int) -> None:
        if count == 2:
            raise KeyboardInterrupt

    stream = Given([ContentDelta("So far")] * 3, 1.0)
    with pytest.raises(KeyboardInterrupt):
        draw(stream, Display(interrupt))
    assert stream.cancelled


def test_a_stream_that_was_read_before_shows_what_it_came_to() -> None:
    with load([ANSWER]) as llm:
        stream = llm.stream("Hello")
        completion = stream.result()
        display = Display()
        draw(stream, display)
        assert display.html == completion._repr_html_()


def test_an_error_is_shown_below_what_came_before() -> None:
    class Failing(Given):
        def __iter__(self) -> Iterator[Event]:
            yield ContentDelta("So far")
            raise EngineError("no more <b>memory</b>")

    display = Display()
    draw(Failing([]), display)
    assert display.html.index("So far") < display.html.index("EngineError: no more &lt;b&gt;memory")


def test_a_stream_that_a_coroutine_reads_says_so() -> None:
    with load([ANSWER]) as llm:
        run = llm.stream_run("Hello")
        run.__aiter__()
        display = Display()
        draw(run, display)
        assert "read with `async for`" in display.html.replace("&#x27;", "'")


def test_outside_of_a_notebook_only_the_repr_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with load([ANSWER]) as llm:
        stream = llm.stream("Hello")
        stream._ipython_display_()  # pyright: ignore[reportPrivateUsage]
        assert capsys.readouterr().out == "<Stream: not over, 0 events read>\n"
        assert "3" in stream.result().content


def test_the_page_grows_in_linear_time() -> None:
    page = Page()
    began = time.perf_counter()
    for _ in range(200_000):
        page.take(ContentDelta("word "))
    page.take(Finished("length"))
    assert time.perf_counter() - began < 5
    assert [block.kind for block in page.blocks()] == ["content", "notice"]


def test_errors_show_the_callers_lines_and_the_message() -> None:
    with load([ANSWER]) as llm, pytest.raises(RequestError) as caught:
        llm.chat("Hello", temperature=-1)
    lines = caught.value._render_traceback_()
    assert any("llm.chat(" in line for line in lines)
    assert lines[-1].startswith("RequestError: ")
    assert "temperature" in lines[-1]
    assert len(lines) <= 3
    assert EngineError("a\x1b[2J\nb")._render_traceback_() == ["EngineError: a\\x1b[2J\nb"]
