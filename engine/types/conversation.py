"""Checks and completes callers' conversations: every call gets an id, every result belongs to a call."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from engine.support.errors import RequestError, shown
from engine.types.completion import Completion
from engine.types.messages import DocumentLike, Message, MessagesLike
from engine.types.sampling import Reasoning


def conversation_of(messages: MessagesLike) -> tuple[Message, ...]:
    """Validate the messages, and fill in the ids of calls and the function names of results.

    Raises RequestError with the number of the wrong message.
    """
    if isinstance(messages, str):
        return (Message(role="user", content=messages),)
    try:
        items: list[object] = [messages] if isinstance(messages, Message | Mapping) else list(messages)
    except TypeError as error:
        raise RequestError(f"messages must be a text, a message or a list of messages ({error}).") from error
    if not items:
        raise RequestError("The conversation is empty; give at least one message.")
    return _matched([_message(number, item) for number, item in enumerate(items)])


def documents_of(documents: Iterable[DocumentLike] | None) -> list[dict[str, Any]]:
    """Returns the documents as templates read them. Raises RequestError for one that is neither a text nor a
    dictionary."""
    if isinstance(documents, str | Mapping):
        raise RequestError("documents must be a list; put the one document in a list: documents=[...].")
    found: list[dict[str, Any]] = []
    given: list[object] = list(documents or ())
    for number, item in enumerate(given, 1):
        fields = {"doc_id": number, "title": f"Document {number}", "text": item} if isinstance(item, str) else item
        if not isinstance(fields, Mapping):
            raise RequestError(
                f"documents[{number - 1}] is a {type(item).__name__}; a document is a text, or a dictionary such as "
                '{"title": "...", "text": "..."}.'
            )
        found.append({str(key): value for key, value in cast("Mapping[Any, Any]", fields).items()})
    return found


def _message(number: int, item: object) -> Message:
    if isinstance(item, Message):
        return item
    if isinstance(item, Completion):
        return item.message
    try:
        return Message.model_validate(item)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise RequestError(
            f"messages[{number}] is not valid{f' at {place}' if place else ''}: {said}. A message looks like "
            f'{{"role": "user", "content": "..."}}{_meant(item)}.'
        ) from error


_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "bot": "assistant", "function": "tool"}
_FIELDS = {"text": "content", "value": "content", "from": "role", "type": "role", "author": "role", "sender": "role"}


def _meant(item: object) -> str:
    """Returns what a message in another library's form is here, as the end of a sentence."""
    if isinstance(item, str):
        return "; of many texts, llm.generate([...]) makes a conversation each"
    if isinstance(item, tuple):
        return ", not a tuple"
    given = as_mapping(item) or {}
    if isinstance(given.get("messages"), list):
        return '; give the list itself: llm.chat(request["messages"])'
    role = str(given.get("role", given.get("from", getattr(item, "type", ""))))
    fields = [f"{_FIELDS[name]!r} for {name!r}" for name in given if name in _FIELDS and _FIELDS[name] not in given]
    fields += [f"the role {_ROLES[role]!r} for {role!r}"] if role in _ROLES else []
    return f": write {' and '.join(fields)}" if fields else ""


def _matched(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Match results to calls. Calls without an id get one; a result without an id, or with an unknown one although its
    call had none, belongs to the next open call. Fill in each result's function, and put results in the order of their
    calls."""
    known: dict[str, str] = {}
    made: set[str] = set()
    open_: list[str] = []
    matched: list[Message] = []
    for number, given in enumerate(messages):
        message = given
        if message.role == "assistant":
            message = _with_ids(number, message)
            if message is not given:
                made |= {call.id for call in message.tool_calls} - {call.id for call in given.tool_calls}
            open_ = [call.id for call in message.tool_calls] or open_
            known |= {call.id: call.name for call in message.tool_calls}
        elif message.tool_calls:
            raise RequestError(
                f"messages[{number}]: only assistant messages have tool_calls, this one is {shown(message.role)}."
            )
        elif message.role == "tool":
            if message.tool_call_id not in known and open_ and open_[0] in made:
                message = message.model_copy(update={"tool_call_id": open_[0]})
            message = _with_call(number, message, known, open_)
        matched.append(message)
    return tuple(_in_order(matched))


def _in_order(messages: Sequence[Message]) -> list[Message]:
    """Sort each run of results in the order of the preceding calls: some templates show no ids, so that only the order
    shows which call a result belongs to."""
    ordered: list[Message] = []
    places: dict[str | None, int] = {}
    run: list[Message] = []
    for message in messages:
        if message.role == "tool":
            run.append(message)
            continue
        ordered += sorted(run, key=lambda result: places.get(result.tool_call_id, len(places)))
        run = []
        if message.tool_calls:
            places = {call.id: place for place, call in enumerate(message.tool_calls)}
        ordered.append(message)
    return ordered + sorted(run, key=lambda result: places.get(result.tool_call_id, len(places)))


def _with_ids(number: int, message: Message) -> Message:
    if all(call.id for call in message.tool_calls):
        return message
    calls = (
        call if call.id else call.model_copy(update={"id": f"call_{number}_{index}"})
        for index, call in enumerate(message.tool_calls)
    )
    return message.model_copy(update={"tool_calls": tuple(calls), "parts": ()})


def _with_call(number: int, message: Message, known: Mapping[str, str], open_: list[str]) -> Message:
    id_ = message.tool_call_id
    if not id_:
        if not open_:
            raise RequestError(
                f"messages[{number}] is a tool result, but no tool call is waiting for one. Append the assistant "
                "message with the call before its result."
            )
        id_ = open_[0]
    if id_ not in known:
        calls = ", ".join(map(repr, known)) or "none"
        raise RequestError(
            f"messages[{number}]: tool_call_id {shown(id_)} matches no tool call before it. Calls so far: {calls}. "
            "Append the assistant message with the call before its result."
        )
    if id_ in open_:
        open_.remove(id_)
    return message.model_copy(update={"tool_call_id": id_, "name": message.name or known[id_]})


def check_last(
    messages: Sequence[Message], *, generates: bool, continues: bool, reasoning: Reasoning | None = None
) -> None:
    """Raise RequestError if the last message does not fit the request."""
    last = messages[-1]
    if continues and reasoning is False and last.reasoning and not (last.content or last.tool_calls):
        raise RequestError(
            "reasoning=False cannot continue the last message, which stops inside its reasoning: leave reasoning= out, "
            "or remove that message's reasoning."
        )
    if continues and last.role != "assistant":
        raise RequestError(
            f"continue_final_message=True continues an assistant message, but the last one is {last.role!r}: append "
            "the beginning of the answer, or leave the option out."
        )
    if generates and not continues and last.role == "assistant":
        raise RequestError(
            "The last message is the assistant's, so there is nothing to answer: append a user message or a tool "
            "result, or pass continue_final_message=True to let the model continue it."
        )


def with_answer(messages: Sequence[Message], completion: Completion) -> tuple[Message, ...]:
    """Returns the conversation with an answer, which may continue its last message."""
    *before, last = messages
    if last.role == "assistant":
        return (*before, last.continued(completion.parts))
    return (*messages, completion.message)


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """Returns the value if it is a JSON object, else None."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None
