"""What a chat template can do, found out by rendering probes with it. A probe holds what the template insists on, so
that it is not refused for another reason than the one that it asks about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.formats.families import REASONING_FIELDS
from engine.formats.template.env import Template, values
from engine.formats.template.renderer import TemplateStoppedError
from engine.support.errors import TemplateError

_ID = "p1q2r3s4t"
_LONG_ID = "call_p1q2r3s4t5u6v7w8x9y0z1a2"
_NO_ROLE = "probe_role"
_RESULT_ROLES = ("observation", "environment", "ipython", "function")
"""The other roles of results in known templates."""
_NOTHING: Mapping[str, Any] = {}
_REASONING_ON: Mapping[str, Any] = {"thinking": True, "enable_thinking": True}
"""The usual names of the reasoning switch: some templates read earlier reasoning only if it is on."""
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "Probes.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "A city."}}},
    },
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template does with each kind of input.

    - `plain`: renders a user's text at all; `content_parts`: accepts content only as a list of typed parts;
    - `system`: shows messages of that role, `later_system` also after the first message; `developer`: knows that role
      wherever it stands, rather than printing any role's name;
    - `tools`: states tools; `empty_tools`: needs `[]` for no tools;
    - `tools_in_system`: states tools that are given as a text in the system message's field `tools`;
    - `calls`, `results`: shows earlier calls and their results; `parallel_calls`: several calls in one message;
    - `arguments`: the forms of arguments, "object" and "string", that it renders correctly; `any_text`: shows a text
      that is no JSON object too, rather than parse it;
    - `text_beside`: shows the calls of a message that has a text;
    - `result_role`: the role of a call's result;
    - `null_content`: shows calls only if the message's content is null;
    - `reasoning_fields`: the message fields from which it reads reasoning; `both`: accepts content and reasoning
      together with a call; `needs_reasoning`: refuses an answer that has none of these fields;
    - `short_ids`: requires ids of nine letters and digits;
    - `repeats`: accepts two messages of one role in a row, and a question right behind a result; `silence`: accepts an
      answer without text.
    """

    plain: bool = True
    content_parts: bool = False
    system: bool = True
    later_system: bool = True
    developer: bool = False
    tools: bool = True
    empty_tools: bool = False
    tools_in_system: bool = False
    calls: bool = True
    results: bool = True
    text_beside: bool = True
    result_role: str = "tool"
    parallel_calls: bool = True
    arguments: frozenset[str] = frozenset({"object", "string"})
    any_text: bool = True
    null_content: bool = False
    reasoning_fields: tuple[str, ...] = ()
    both: bool = True
    needs_reasoning: bool = False
    short_ids: bool = False
    repeats: bool = True
    silence: bool = True
    mute: bool = False


def probe(template: Template, fixed: Mapping[str, str]) -> Capabilities:
    """Returns the capabilities of a template. `fixed` are the variables that every render has (bos_token, eos_token).

    Raises TemplateError if a render was stopped because of its time or memory.
    """
    return _Probe(template, fixed).run()


class _Probe:
    def __init__(self, template: Template, fixed: Mapping[str, str]) -> None:
        self._template = template
        self._fixed = fixed
        self._no_tools: list[Any] | None = None
        self._parts = False
        self._unsaid = ""
        """The field of reasoning that an answer may not leave out."""

    def run(self) -> Capabilities:
        user = _says("user", "USERTEXT")
        empty_tools = self._render([user]) is None
        self._no_tools = [] if empty_tools else None
        self._parts = not self._shows([user], "USERTEXT")
        plain = not self._parts or self._shows([user], "USERTEXT")
        mute = not plain and self._render([user]) is not None
        self._parts = self._parts and plain
        self._unsaid = self._needed_reasoning(user)
        arguments = self._arguments(user)
        null_content = not arguments and bool(arguments := self._arguments(user, content=None))
        form = "string" if "string" in arguments and "object" not in arguments else "object"
        call = self._call("ARGVALUE", form, content=None if null_content else "")
        second = {**self._call("ARGSECOND", form)["tool_calls"][0], "id": "u1v2w3x4y"}
        role = self._result_role(user, call)
        fields = tuple(field for field in REASONING_FIELDS if self._reads(field, user, call))
        return Capabilities(
            plain=plain,
            mute=mute,
            content_parts=self._parts,
            system=self._shows([_says("system", "SYSTEMTEXT"), user], "SYSTEMTEXT"),
            developer=self._knows_developer(user),
            later_system=self._shows(
                [_says("system", "SYSTEMTEXT"), _says("system", "SECONDTEXT"), user], "SYSTEMTEXT", "SECONDTEXT"
            )
            and self._shows([user, _says("assistant", "SAID"), _says("system", "SYSTEMTEXT"), user], "SYSTEMTEXT"),
            tools=self._shows([user], "probe_tool", "city", tools=[_TOOL]),
            tools_in_system=self._shows(
                [{**_says("system", "SYSTEMTEXT"), "tools": '[{"name": "probe_tool"}]'}, user],
                "SYSTEMTEXT",
                "probe_tool",
            ),
            empty_tools=empty_tools,
            calls=bool(arguments),
            text_beside=not arguments or self._shows([user, {**call, "content": "SAID"}, _result("R")], "ARGVALUE"),
            results=role is not None,
            result_role=role or "tool",
            parallel_calls=self._shows(
                [
                    user,
                    {**call, "tool_calls": [*call["tool_calls"], second]},
                    _result("RESULTTEXT"),
                    {**_result("SECONDTEXT"), "tool_call_id": "u1v2w3x4y"},
                ],
                "ARGVALUE",
                "ARGSECOND",
                tools=[_TOOL],
            ),
            arguments=arguments or frozenset({"object", "string"}),
            any_text="string" not in arguments or self._shows_any_text(user, call),
            null_content=null_content,
            reasoning_fields=fields,
            both=not fields or self._takes_both(fields[0], user, call),
            needs_reasoning=bool(fields and self._unsaid),
            short_ids=bool(arguments) and self._needs_short_ids(user, call),
            repeats=self._repeats(user, call if arguments and role == "tool" else None),
            silence=self._shows([user, _says("assistant", ""), _says("user", "SECONDTEXT")], "SECONDTEXT"),
        )

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, generates: bool = True, **variables: Any
    ) -> str | None:
        if self._parts:
            messages = [_with_parts(message) for message in messages]
        if self._unsaid:
            messages = [self._with_reasoning(message) for message in messages]
        given = values(self._template, self._fixed, messages, tools or self._no_tools, generates=generates)
        try:
            return self._template.render({**given, **variables})
        except TemplateStoppedError:
            raise
        except TemplateError:
            if tools is None and any("tool_calls" in message for message in messages):
                return self._render(messages, [_TOOL], generates, **variables)  # calls of tools that nobody stated
            return None  # a refusal is the answer to the probe

    def _with_reasoning(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns an answer without reasoning as the template insists on it."""
        if message["role"] != "assistant" or any(field in message for field in REASONING_FIELDS):
            return message
        return {**message, self._unsaid: ""}

    def _shows(
        self,
        messages: Sequence[Mapping[str, Any]],
        *texts: str,
        tools: Any = None,
        generates: bool = True,
        **variables: Any,
    ) -> bool:
        rendered = self._render(messages, tools, generates, **variables)
        return rendered is not None and all(text in rendered for text in texts)

    def _call(self, value: str, form: str, content: str | None = "") -> dict[str, Any]:
        arguments: Any = {"city": value} if form == "object" else '{"city": "' + value + '"}'
        call = {"id": _ID, "type": "function", "function": {"name": "probe_tool", "arguments": arguments}}
        return {"role": "assistant", "content": content, "tool_calls": [call]}

    def _arguments(self, user: Mapping[str, Any], content: str | None = "") -> frozenset[str]:
        """Returns the forms of arguments that are rendered correctly: neither in Python's notation nor as a quoted
        string."""
        forms: set[str] = set()
        for form, spoilt in (("object", "'city': 'ARGVALUE"), ("string", '\\"ARGVALUE')):
            messages = [user, self._call("ARGVALUE", form, content), _result("RESULTTEXT")]
            rendered = self._render(messages, [_TOOL])
            if rendered is not None and "ARGVALUE" in rendered and "probe_tool" in rendered and spoilt not in rendered:
                forms.add(form)
        return frozenset(forms)

    def _shows_any_text(self, user: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
        """Whether arguments that are a text, but no JSON object, are shown."""
        made = call["tool_calls"][0]
        function = {**made["function"], "arguments": "ARGVALUE"}
        return self._shows([user, {**call, "tool_calls": [{**made, "function": function}]}, _result("R")], "ARGVALUE")

    def _result_role(self, user: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
        """Returns the role under which results are shown: the usual one, or another that the template knows."""

        def shown(role: str) -> str | None:
            text = self._render([user, call, {**_result("RESULTTEXT"), "role": role}])
            return text if text is not None and "RESULTTEXT" in text else None

        if shown("tool") is not None:
            return "tool"
        unknown = shown(_NO_ROLE) or ""
        return next(
            (role for role in _RESULT_ROLES if shown(role) not in (None, unknown.replace(_NO_ROLE, role))), None
        )

    def _knows_developer(self, user: Mapping[str, Any]) -> bool:
        """Whether messages of this role are shown wherever they stand, and otherwise than those of a role that nobody
        knows."""
        answer = _says("assistant", "SAID")

        def knows(*before: Mapping[str, Any]) -> bool:
            text, unknown = (
                self._render([*before, _says(role, "SYSTEMTEXT"), user]) for role in ("developer", _NO_ROLE)
            )
            shown = text is not None and "SYSTEMTEXT" in text
            return shown and (unknown is None or text != unknown.replace(_NO_ROLE, "developer"))

        return knows() and knows(user, answer)

    def _reads(self, field: str, user: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
        """Whether reasoning in this field is shown, before a call or in a last answer."""
        before_call = [user, {**call, field: "WHYTEXT"}, _result("RESULTTEXT")]
        answer = [user, {**_says("assistant", "SAIDTEXT"), field: "WHYTEXT"}]
        return any(
            self._shows(before_call, "WHYTEXT", **variables)
            or self._shows(answer, "WHYTEXT", generates=False, **variables)
            for variables in (_NOTHING, _REASONING_ON)
        )

    def _repeats(self, user: Mapping[str, Any], call: Mapping[str, Any] | None) -> bool:
        second = _says("user", "SECONDTEXT")
        answers = [_says("assistant", "SAID"), _says("assistant", "SAIDTOO")]
        after_result = call is None or self._shows([user, call, _result("R"), second], "SECONDTEXT", tools=[_TOOL])
        return (
            after_result
            and self._shows([user, second], "USERTEXT", "SECONDTEXT")
            and self._shows([user, *answers, second], "SAIDTOO", "SECONDTEXT")
        )

    def _takes_both(self, field: str, user: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
        return self._shows([user, {**call, field: "WHY", "content": "SAID"}, _result("R")], "ARGVALUE")

    def _needed_reasoning(self, user: Mapping[str, Any]) -> str:
        """Returns the field without which an answer is refused; "" if none is needed."""
        answer = _says("assistant", "SAIDTEXT")
        if self._shows([user, answer], "SAIDTEXT", generates=False):
            return ""
        for field in REASONING_FIELDS:
            if self._shows([user, {**answer, field: ""}], "SAIDTEXT", generates=False):
                return field
        return ""

    def _needs_short_ids(self, user: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
        calls = [{**call["tool_calls"][0], "id": _LONG_ID}]
        messages = [user, {**call, "tool_calls": calls}, {**_result("R"), "tool_call_id": _LONG_ID}]
        return self._render(messages, [_TOOL]) is None


def _says(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _result(text: str) -> dict[str, Any]:
    return {"role": "tool", "name": "probe_tool", "tool_call_id": _ID, "content": text}


def _with_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message
