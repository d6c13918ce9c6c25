"""`ChatTemplate`: a chat template with its family, and the parser that its prompts need; this package's public
interface.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Self

from engine.formats.families import (
    Detection,
    Families,
    Family,
    FamilyLike,
    Format,
    ResponseTemplate,
    ResponseTemplateLike,
    builtin_families,
    for_vocabulary,
)
from engine.formats.families.response_template import given_template
from engine.formats.parsing import Parser
from engine.formats.parsing.parser import ParserRecipe
from engine.formats.template.call_form import CallForm
from engine.formats.template.capabilities import Capabilities, probe
from engine.formats.template.derive.derivation import derivation, reads_back
from engine.formats.template.env import Template
from engine.formats.template.generic import with_generic_tools
from engine.formats.template.guard import Alphabets, words_of
from engine.formats.template.history import BUILTIN_VARIABLE, MessageWriter, builtin_records, check_builtin
from engine.formats.template.markers import Markers, merged, overlaps
from engine.formats.template.prompt import with_tail
from engine.formats.template.reasoning import NO_SWITCH, Switch, switch
from engine.formats.template.renderer import SECONDS, TemplateStoppedError
from engine.formats.template.rendering import Rendering, Setting
from engine.formats.template.stated_format import stated
from engine.formats.template.tool_forms import ToolForms
from engine.support import _data
from engine.support.display import counted
from engine.support.errors import MissingTemplateError, RequestError, TemplateError, did_you_mean, shown
from engine.support.own_file import read_regular
from engine.support.warning import warn
from engine.tools import ToolLike, as_tools
from engine.types.completion import Completion
from engine.types.conversation import check_last, conversation_of, documents_of
from engine.types.events import fold
from engine.types.messages import DocumentLike, Message, MessagesLike
from engine.types.prompt import Prompt, Span
from engine.types.sampling import DEFAULT_REASONING_FORMAT, Reasoning, ReasoningFormat
from engine.types.tools import AllowedChoice, AllowedTools, Tool, ToolChoice, ToolName

_LARGEST_FILE = 16 << 20
_PROBING = 10.0
"""The time limit, in seconds, for probing a template, which usually takes a hundredth of that."""
_OURS = frozenset(
    {"messages", "tools", "documents", BUILTIN_VARIABLE, "add_generation_prompt", "bos_token", "eos_token"}
)

_SOME_TOOL = Tool(
    name="look_up",
    description="Looks up a word.",
    parameters={"type": "object", "properties": {"word": {"type": "string", "description": "The word."}}},
)
"""The tool in the renders that show what a switch does; a caller's could be one that the template refuses."""


class ChatTemplate:
    """A chat template that knows its family.

    source: the template's text; None takes the family's own from `templates/`.
    bos_token, eos_token: the texts of these tokens, which some templates write.
    family: a family's name, a `Family` or a `Format`; or `Families` among which the template decides (None: the shipped
        ones).
    control_tokens: the texts of the vocabulary's control and user-defined tokens. None: not known; then any text that
        looks like a control token is guarded.
    trust_template: render it in this process. Otherwise a template that did not come with this package is rendered in
        a child process with limits on memory and time.
    response_template: Hugging Face's `response_template` (a dictionary, or a JSON file that holds one), which states
        the output's format; the family then says only what prompts show.

    Raises TemplateError for a broken or missing template, FamilyError for an unknown family.
    """

    def __init__(
        self,
        source: str | None,
        bos_token: str = "",
        eos_token: str = "",
        family: FamilyLike | None = None,
        *,
        control_tokens: frozenset[str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        trust_template: bool = False,
        response_template: ResponseTemplate | ResponseTemplateLike | None = None,
    ) -> None:
        self.detection = _detection(source, family, control_tokens or ())
        self.family = self.detection.family
        if source is None:
            source = _data.template_source(self.family.name)
            if source is None:
                raise MissingTemplateError(
                    f"There is no chat template: the model carries none, and the family {self.family.name!r} has none "
                    "of its own. Pass chat_template= (its text, or the path of a .jinja file), or another family=; "
                    "complete() needs no template."
                )
        self.source = source
        self.control_tokens = control_tokens
        fixed = {"bos_token": bos_token, "eos_token": eos_token}
        template = Template(source, now, trusted=trust_template or _data.is_own_template(source))
        probed = template.hurried(_PROBING)
        self.capabilities: Capabilities = probe(probed, fixed)
        if _recognises(family) and _is_known(self.detection):
            self.detection = _read_back(source, family, control_tokens or (), probed, fixed, self.capabilities)
        known, complaint = _is_known(self.detection), ""
        if _recognises(family) and not known:
            derived, complaint = _derived(probed, fixed, self.capabilities)
            self.detection = derived or self.detection
        if response_template is not None:
            told = isinstance(response_template, ResponseTemplate)
            given = response_template if told else given_template(response_template)
            self.detection = stated(self.detection, given, probed, fixed, self.capabilities, known=known)
            complaint = "" if self.detection.family.format.tools else complaint
        if complaint:
            warn(complaint)
        self.family = self.detection.family
        declared = self.family.format
        states = self.capabilities.tools or self.capabilities.tools_in_system
        self.format: Format = declared if states else with_generic_tools(declared)
        also = self.format.control if control_tokens else (*self.format.control, bos_token, eos_token)
        markers = Markers(control_tokens, also)
        words = words_of(source, markers)
        forms = ToolForms(template, fixed, parts=self.capabilities.content_parts)
        writer = MessageWriter(self.format, self.capabilities)
        self._setting = Setting(
            template, self.format, self.capabilities, fixed, markers, words, forms, writer, Alphabets(source)
        )
        self._call_form = CallForm(template, self.format, self.capabilities, fixed)
        self._with_tools: ChatTemplate | None = None
        self._with_documents: Callable[[], ChatTemplate] = lambda: self
        self._switches: dict[tuple[Reasoning, bool, bool], Switch] = {}

    def __repr__(self) -> str:
        return f"<ChatTemplate: {self.family.name}, {counted(len(self.source), 'character')}>"

    @classmethod
    def for_model(
        cls,
        embedded: str | None,
        bos_token: str = "",
        eos_token: str = "",
        family: FamilyLike | None = None,
        chat_template: str | Path | None = None,
        *,
        named: Mapping[str, str] | None = None,
        architecture: str = "",
        name: str = "",
        control_tokens: frozenset[str] | None = None,
        trust_template: bool = False,
        response_template: ResponseTemplate | ResponseTemplateLike | None = None,
    ) -> Self:
        """Choose the template for a model.

        The caller's `chat_template` (text, the path of a .jinja file, or "chatml" and the other names of `templates/`)
        wins; else the model's embedded template,
        unless `family` names another family than the template's: then that family's own. Requests with tools use the
        model's template named "tool_use" (`named` holds its further templates), or the family's own if the model's
        cannot state tools; requests with documents use the one named "rag", unless the template for tools can state
        both. A `response_template` beside a `family` that is no `Families` would be a second choice of the format:
        RequestError.
        """
        if not _recognises(family):
            response_template = _unless_chosen(response_template)
        source = embedded if chat_template is None else _text_of(chat_template)
        further = (named or {}) if chat_template is None else {}
        tool_use, rag = further.get("tool_use"), further.get("rag")
        known = family if isinstance(family, Families) else builtin_families()
        if _recognises(family) and source is None:
            family = known.detect(None, architecture, name).family
        elif _recognises(family) and tool_use is not None:
            family = max(map(known.detect, (source, tool_use)), key=_is_known).family
        elif chat_template is None and isinstance(family, str | Family) and embedded is not None:
            wanted = family if isinstance(family, str) else family.name
            if builtin_families().detect(embedded).family.name != wanted and _data.template_source(wanted) is not None:
                source = tool_use = rag = None

        def one(text: str | None, family: FamilyLike | None, stated: Any = None) -> Self:
            more: dict[str, Any] = {"trust_template": trust_template, "response_template": stated}
            return cls(text, bos_token, eos_token, family, control_tokens=control_tokens, **more)

        made = one(source, family, response_template)
        if made.capabilities.mute:
            _complain_of_mute(chat_template)
        if tool_use is None and chat_template is None and not made.capabilities.tools:
            tool_use = _data.template_source(made.family.name)
        if tool_use is not None and tool_use != made.source:
            made._with_tools = one(tool_use, made.family)
        if rag is not None:  # compiled on first use: few requests have documents
            made._with_documents = cache(lambda: one(rag, made.family))
        return made

    def render(
        self,
        messages: MessagesLike,
        tools: Sequence[ToolLike] | None = None,
        reasoning: Reasoning | None = None,
        tool_choice: AllowedChoice = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        *,
        documents: Sequence[DocumentLike] | None = None,
        builtin_tools: Sequence[str] = (),
        guard: bool = True,
        until: float | None = None,
    ) -> Prompt:
        """Render the prompt for a conversation.

        messages: a user's text, or a list of messages. tools: functions, pydantic models, `Tool`s, OpenAI dictionaries;
        the prompt states them unless `tool_choice` is "none". reasoning: None is the model's default. template_kwargs:
        variables for the template, which override its others; their text is guarded like that of messages. One that
        makes the template write calls in a form that is not read is refused where there are tools. documents: texts, or
        dictionaries such as {"title", "text"}, for templates that take documents. builtin_tools: names of tools that
        the model was trained with ("browser" and "python" of gpt-oss), which the template itself declares; give tools
        of the same names to run their calls. guard: keep control-token text that callers wrote as text. System and
        developer messages are trusted: such text in them becomes control tokens. until: when to stop an untrusted
        template, on `time.monotonic`'s clock; None: after `engine.formats.template.renderer.SECONDS`.

        Raises RequestError for messages, tools or options that are not valid, TemplateError if the template rejects
        them or is stopped.
        """
        conversation = conversation_of(messages)
        check_last(conversation, generates=add_generation_prompt, continues=continue_final_message, reasoning=reasoning)
        stated, given = stated_tools(tools, tool_choice), documents_of(documents)
        template = self._for(tools=bool(stated), documents=bool(given))
        variables, until = _free(template_kwargs), time.monotonic() + SECONDS if until is None else until
        if stated:
            template._call_form.check(variables, until)
        rendering = Rendering(
            template._setting,
            conversation,
            stated,
            variables=variables,
            switch=template._switch(reasoning, conversation, stated, until),
            documents=given,
            builtin=check_builtin(builtin_tools, template._setting.template),
            guarded=guard,
            until=until,
        )
        if continue_final_message:
            prompt = template._continued(rendering, reasoning, conversation, stated, until)
        elif not add_generation_prompt:
            return rendering.plain()
        else:
            prompt = rendering.answer()
            if rendering.switch.close or (reasoning is False and template._opens(prompt)):
                prompt = template._closed(prompt)
        return replace(prompt, opens=template._opens)

    def forgeries(self, prompt: Prompt) -> list[Span]:
        """Returns the spans of a prompt that would be control tokens if callers had not written part of them."""
        position, callers = 0, list[Span]()
        for piece in prompt.pieces:
            callers += [] if piece.trusted else [Span(position, position + len(piece.text))]
            position += len(piece.text)
        return merged(span for span in self._setting.markers.spans(prompt.text) if overlaps(span, callers))

    def _continued(
        self,
        rendering: Rendering,
        reasoning: Reasoning | None,
        conversation: Sequence[Message],
        tools: Sequence[Tool],
        until: float,
    ) -> Prompt:
        """Returns the prompt that continues the last message. If the template by default omits that message's
        reasoning, the message was written with reasoning on, and is continued with reasoning on."""
        prompt = rendering.continuation(self._holds)
        if reasoning is not None or not conversation[-1].reasoning or rendering.fits(self._holds):
            return prompt
        try:
            again = rendering.switched(self._switch(True, conversation, tools, until))
        except RequestError:
            return prompt  # there is no such switch
        return again.continuation(self._holds) if again.fits(self._holds) else prompt

    def _for(self, *, tools: bool, documents: bool) -> "ChatTemplate":
        """Returns the one of the model's templates that can state tools, documents or both."""
        if not documents:
            return self._with_tools or self if tools else self
        if tools and self._with_tools is not None and self._with_tools._reads_documents:
            return self._with_tools
        for template in (self._with_documents(), self):
            if template._reads_documents:
                return template
        raise RequestError(
            "This model's chat template takes no documents. Leave documents out, and put their text into a message, or "
            "into the result of a tool."
        )

    @property
    def _reads_documents(self) -> bool:
        return "documents" in self._setting.template.variables

    def _switch(
        self, reasoning: Reasoning | None, conversation: Sequence[Message], tools: Sequence[Tool], until: float
    ) -> Switch:
        """Returns the switch for `reasoning`. Cached: it depends on the request only by whether it has system text, and
        tools."""
        if reasoning is None:
            return NO_SWITCH
        system = any(message.role in ("system", "developer") for message in conversation)
        key = (reasoning, system, bool(tools))
        if key not in self._switches:
            question = [Message(role="system", content="Be brief.")] if system else []
            question.append(Message(role="user", content="Hello."))
            stated = (_SOME_TOOL,) if tools else ()

            def renders(turned: Switch) -> str | None:
                try:
                    with_it = Rendering(self._setting, question, stated, switch=turned, guarded=False, until=until)
                    return with_it.answer().text
                except TemplateStoppedError:
                    raise
                except TemplateError:
                    return None  # a refusal shows nothing about the switch

            self._switches[key] = switch(reasoning, self.format, self._setting.template.variables, renders)
        return self._switches[key]

    def parser(
        self,
        prompt: Prompt,
        tools: Sequence[ToolLike] | None = None,
        tool_choice: ToolChoice = "auto",
        reasoning_format: ReasoningFormat = DEFAULT_REASONING_FORMAT,
        json: bool = False,
        control_tokens: frozenset[str] | None = None,
        trace: bool = False,
        *,
        id_salt: str = "",
        builtin_tools: Sequence[str] = (),
    ) -> Parser:
        """Returns a parser for the output after `prompt`. `control_tokens` None is text mode (see `Parser`)."""
        recipe = self.parser_recipe(
            prompt,
            tools,
            tool_choice,
            reasoning_format=reasoning_format,
            json=json,
            control_tokens=control_tokens,
            id_salt=id_salt,
            builtin_tools=builtin_tools,
        )
        return replace(recipe, trace=trace)()

    def parser_recipe(
        self,
        prompt: Prompt,
        tools: Sequence[ToolLike] | None = None,
        tool_choice: ToolChoice = "auto",
        *,
        reasoning_format: ReasoningFormat = DEFAULT_REASONING_FORMAT,
        json: bool = False,
        control_tokens: frozenset[str] | None = None,
        exact: bool = False,
        id_salt: str = "",
        builtin_tools: Sequence[str] = (),
    ) -> ParserRecipe:
        """Returns what makes such a parser, also in another process. `json`, `exact`: see `Parser`."""
        stating = self._with_tools or self
        known = None if tools is None else as_tools(tools)
        known = None if known is None else (*known, *builtin_records(builtin_tools, known))
        return ParserRecipe(
            stating.format if tools else self.family.format,
            prompt.prefix,
            known,
            "none" if known == () else tool_choice,  # without tools, no text is a call
            reasoning_format,
            json,
            control_tokens,
            exact,
            id_salt=id_salt,
        )

    def _holds(self, prompt: Prompt) -> tuple[bool, Completion]:
        """Returns whether a prompt ends inside reasoning, and the part of the turn that it contains."""
        parser = Parser(self.format, control_tokens=self.control_tokens)
        held = fold([event for piece in prompt.prefix for event in parser.feed(piece.text, piece.special)])
        return parser.in_reasoning, held

    def _opens(self, prompt: Prompt) -> bool:
        return Parser(self.format, prompt.prefix, control_tokens=self.control_tokens).in_reasoning

    def _closed(self, prompt: Prompt) -> Prompt:
        """Close the prompt's reasoning ourselves, for a template that has no switch."""
        syntax = self.format.reasoning
        if syntax is None or (self.format.start and not prompt.prefix):
            return prompt  # the model continues a turn of its own, in which nothing is opened
        text = syntax.close if self._opens(prompt) else syntax.open + syntax.close
        return with_tail(prompt, text, self.format.control)


def stated_tools(tools: Sequence[ToolLike] | None, choice: AllowedChoice) -> tuple[Tool, ...]:
    """Returns the tools that the prompt states. Raises RequestError if the choice names an unknown tool."""
    known = as_tools(tools)
    there = {tool.name for tool in known}
    wanted = (
        (choice.name,) if isinstance(choice, ToolName) else choice.names if isinstance(choice, AllowedTools) else ()
    )
    if missing := [name for name in wanted if name not in there]:
        names = ", ".join(repr(tool.name) for tool in known) or "none"
        raise RequestError(f"tool_choice names {shown(missing[0])}, but the tools are: {names}. Name one of them.")
    if choice == "required" and not known:
        raise RequestError('tool_choice="required" needs tools; pass some, or leave it out.')
    return () if choice == "none" else known


def _detection(source: str | None, family: FamilyLike | None, tokens: Collection[str]) -> Detection:
    """Returns the family, its markers as the vocabulary spells them."""
    return _spelt(_as_stated(source, family), tokens)


def _read_back(
    source: str,
    family: FamilyLike | None,
    tokens: Collection[str],
    template: Template,
    fixed: Mapping[str, str],
    can: Capabilities,
) -> Detection:
    """Returns the first family that the template matches and that reads the template's own turns back: a few words in a
    template do not make it another family's. "content-only" if there is none. A row of the caller's own is taken as it
    is (`families check` compares it)."""
    shipped = builtin_families()
    candidates = (family if isinstance(family, Families) else shipped).candidates(source)
    refused: list[str] = []
    for given in candidates:
        detection, row = _spelt(given, tokens), given.family
        if not _is_known(detection):
            return replace(detection, reason=f"its chat template's own turns are not those of {', '.join(refused)}")
        try:
            fits = shipped.find(row.name) is not row or reads_back(detection.family.format, template, fixed, can)
        except (RecursionError, TemplateStoppedError):  # then nothing can be compared
            fits = True
        if fits:
            others = f"; its turns are not those of {', '.join(refused)}" if refused else ""
            return replace(detection, reason=f"{detection.reason}{others}")
        refused.append(repr(detection.family.name))
    raise AssertionError("content-only is always a candidate")


def _spelt(detection: Detection, tokens: Collection[str]) -> Detection:
    """Returns the detection with the family's markers as the vocabulary spells them."""
    row = for_vocabulary(detection.family, tokens)
    if row is detection.family:
        return detection
    return Detection(row, f"{detection.reason}; its vocabulary spells {detection.family.suffixed} with a suffix")


def _as_stated(source: str | None, family: FamilyLike | None) -> Detection:
    if family is None:
        return builtin_families().detect(source)
    if isinstance(family, Families):
        return family.detect(source)
    if isinstance(family, Family):
        return Detection(family, "the caller gave it")
    if isinstance(family, str):
        return Detection(builtin_families().get(family), "the caller named it")
    given = Family(name="given", title="a format given by the caller", verified="", format=family)
    return Detection(given, "the caller gave its format")


def _derived(template: Template, fixed: Mapping[str, str], can: Capabilities) -> tuple[Detection | None, str]:
    """Derive the format of a template that no family matches, as a family of its own; None if that fails. Returns also
    what to tell the caller if calls will not be found."""
    try:
        found = derivation(template, fixed, can)
    except RecursionError:  # the JSON in its renders nests too deep
        return None, ""
    format_, complaint = found.format, ""
    if can.tools and (format_ is None or not (format_.tools or format_.channels)):
        complaint = (
            "No family in models.toml matches this model's chat template, and the syntax of its calls could not be "
            f"derived ({'; '.join(found.missing)}): calls will arrive as content. Name a family of the same syntax "
            "with family=, or add one to models.toml."
        )
    if format_ is None:
        return None, complaint
    marks = format_.reasoning and (format_.reasoning.open.strip(), format_.reasoning.close.strip())
    shown = [
        "no reasoning" if marks is None else f"reasoning between {marks[0]!r} and {marks[1]!r}",
        f"calls of the shape {format_.tools.shape!r}"
        if format_.tools
        else "calls in channels"
        if format_.channels
        else "no calls",
    ]
    if format_.reasoning is not None and format_.reasoning.assumed:
        shown[0] = f"no reasoning (text between {' and '.join(map(repr, marks or ()))} is separated all the same)"
    family = Family(name="derived", title="derived from the chat template", verified="its own renders", format=format_)
    reason = f"no family in models.toml matches; comparing renders of its chat template shows {' and '.join(shown)}"
    return Detection(family, reason), complaint


def _recognises(family: FamilyLike | None) -> bool:
    """Whether the template decides the family."""
    return family is None or isinstance(family, Families)


def _unless_chosen(given: ResponseTemplate | ResponseTemplateLike | None) -> None:
    """Raise RequestError for a response template that the caller gave beside a family."""
    if given is not None and (not isinstance(given, ResponseTemplate) or given.chosen):
        raise RequestError("family= and response_template= both state the output's format; leave one out.")


def _is_known(detection: Detection) -> bool:
    return detection.family.name != "content-only"


def _complain_of_mute(given: str | Path | None) -> None:
    """The template's prompt lacks the user's question: raise TemplateError if the caller gave it, else warn."""
    ways = f"Write {', '.join(map(repr, _data.own_templates()))} for one of the built-in templates"
    if given is None:
        text = (
            "The model's own chat template writes prompts without the user's text, so that the model answers something "
            f"else. {ways}, with chat_template=."
        )
        warn(text)
        return
    path = "" if isinstance(given, Path) or "{" in given else " (a path of a template ends in .jinja)"
    raise TemplateError(
        f"The chat template {shown(str(given))} writes prompts without the user's text. "
        f"{did_you_mean(str(given)[:100], _data.own_templates(), f'{ways}, or its whole text{path}.')}"
    )


def _text_of(chat_template: str | Path) -> str:
    if isinstance(chat_template, str) and not chat_template.endswith(".jinja"):
        return _data.own_templates().get(chat_template, chat_template)
    try:
        return read_regular(Path(chat_template), _LARGEST_FILE).decode()
    except UnicodeDecodeError as error:
        raise TemplateError(f"The chat template {chat_template} is not UTF-8 text ({error}). Convert it.") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise TemplateError(
            f"The chat template {shown(str(chat_template))} cannot be read: {why}. Correct the path."
        ) from error


def _free(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    if taken := _OURS.intersection(variables or ()):
        raise RequestError(f"template_kwargs must not contain {sorted(taken)}; use render()'s own arguments for these.")
    return dict(variables or {})
