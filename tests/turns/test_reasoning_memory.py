"""Reasoning that a client dropped comes back where it was, and nowhere else."""

import threading

from engine.turns.reasoning_memory import ReasoningMemory
from engine.types.messages import Message
from engine.types.parts import ToolCall


def user(text: str) -> Message:
    return Message(role="user", content=text)


def turn(content: str = "", *, why: str | None = None, arguments: str | None = None) -> Message:
    calls = (ToolCall(id="call_0", name="look", arguments=arguments),) if arguments else ()
    return Message(role="assistant", content=content, reasoning=why, tool_calls=calls)


RESULT = Message(role="tool", tool_call_id="call_0", content="4")


def test_dropped_reasoning_is_put_back() -> None:
    memory = ReasoningMemory()
    asked = [user("Weather?")]
    memory.remember(asked, turn(why="Look first.", arguments='{"city": "Oslo", "n": 1}'))
    later = [*asked, turn(why="Look first.", arguments='{"city": "Oslo", "n": 1}'), RESULT]
    memory.remember(later, turn("Cold.", why="It says 4."))
    dropped = [user("Weather?"), turn(arguments='{"n":1,"city":"Oslo"}'), RESULT, turn(" Cold.\n"), user("And?")]
    messages, numbers = memory.restore(dropped)
    assert numbers == (1, 3)
    assert [message.reasoning for message in messages] == [None, "Look first.", None, "It says 4.", None]
    assert [part.type for part in messages[1].parts] == []
    assert messages[0] is dropped[0]


def test_what_the_caller_sends_wins() -> None:
    memory = ReasoningMemory()
    memory.remember([user("Hi")], turn("Hello.", why="Greet."))
    sent = [user("Hi"), turn("Hello.", why="My own.")]
    assert memory.restore(sent)[0] == tuple(sent)
    assert memory.restore(sent)[1] == ()


def test_conversations_with_equal_ids_never_exchange_reasoning() -> None:
    memory = ReasoningMemory()
    call = '{"city": "Oslo"}'
    for name in ("first", "second"):
        memory.remember([user(name)], turn(why=f"Of the {name}.", arguments=call))
    for name in ("first", "second"):
        assert memory.restore([user(name), turn(arguments=call)])[0][1].reasoning == f"Of the {name}."
    assert memory.restore([user("third"), turn(arguments=call)])[1] == ()
    assert memory.restore([user("first"), turn(arguments='{"city": "Rome"}')])[1] == ()


def test_an_ambiguous_turn_restores_nothing() -> None:
    memory = ReasoningMemory()
    for why in ("One way.", "Another."):
        memory.remember([user("Hi")], turn("Hello.", why=why))
    assert memory.restore([user("Hi"), turn("Hello.")])[1] == ()
    memory.remember([user("Hi")], turn("Hello.", why="One way."))
    assert memory.restore([user("Hi"), turn("Hello.")])[1] == (), "it stays ambiguous"
    memory.remember([user("Hi")], turn("Hello there."))
    assert memory.restore([user("Hi"), turn("Hello there.")])[1] == ()


def test_it_forgets_what_was_longest_unused() -> None:
    memory = ReasoningMemory(characters=3 * 74)
    for name in "abc":
        memory.remember([user(name)], turn("Hello.", why=name * 10))
    assert memory.restore([user("a"), turn("Hello.")])[1] == (1,)
    memory.remember([user("d")], turn("Hello.", why="d" * 10))
    kept = [name for name in "abcd" if memory.restore([user(name), turn("Hello.")])[1]]
    assert kept == ["a", "c", "d"]
    memory.remember([user("e")], turn("Hello.", why="e" * 200))
    assert not [name for name in "abcde" if memory.restore([user(name), turn("Hello.")])[1]]


def test_broken_arguments_and_threads() -> None:
    memory = ReasoningMemory()

    def work(number: int) -> None:
        for step in range(50):
            memory.remember([user(f"{number} {step}")], turn(why=f"{number}", arguments='{"ci'))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert memory.restore([user(f"{number} 49"), turn(arguments='{"ci')])[0][1].reasoning == f"{number}"
