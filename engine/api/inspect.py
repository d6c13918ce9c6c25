"""Everything that the engine understood about a model, as one record."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from engine.formats.families import Format, TaggedArgumentsSyntax
from engine.formats.grammar.demand import closing
from engine.formats.template.chat_template import ChatTemplate
from engine.llama.model import ModelInfo
from engine.runtime.loop.backend import ContextInfo
from engine.support import _data
from engine.support.display import counted
from engine.support.report import RowReport
from engine.turns.embedding import VectorFacts

MarkerKind: TypeAlias = Literal["control token", "text and control tokens", "text"]
TemplateSource: TypeAlias = Literal["", "model", "family", "caller"]


def engine_facts(info: ModelInfo | None, family: str, n_ctx: int, *, closed: bool) -> list[tuple[str, str]]:
    """Returns a few facts about an engine as names and values; None is a backend without a file."""
    facts = [("model", "a backend without a file")]
    if info is not None:
        facts = [
            ("model", info.name or info.path.name),
            ("weights", f"{info.parameters / 1e6:,.1f} M parameters, {info.quantization}"),
            ("path", str(info.path)),
        ]
    facts += [("family", family), ("context", f"{n_ctx:,} tokens a conversation")]
    return [*facts, ("state", "closed: load it again")] if closed else facts


@dataclass(frozen=True, slots=True)
class Marker:
    """A literal of the family's format: its role, and how this vocabulary spells it.

    `missing`: the family expects one control token, but this vocabulary has none; the marker matches as text.
    """

    role: str
    text: str
    kind: MarkerKind
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Inspection(RowReport):
    """The facts. `n_ctx`: maximum number of tokens in one conversation here, `n_ctx_train`: the training length.
    `positions`: how far the model's positions reach. `n_sequences` conversations are decoded at once; `kv_tokens` is
    the pool that they share, 0 if each has a buffer of its own. `generates`: False for an embedding model or a
    reranker, for which the facts about chatting, from `family` on, are empty, as they are for a base model without a
    chat template. `sampling`: how answers are drawn where a caller does not say it. `vectors`: how it makes vectors or
    ranks, None for a backend that makes none. `media`: what it reads besides text, through its projector."""

    path: str
    name: str
    architecture: str
    quantization: str
    parameters: int
    size_bytes: int
    n_ctx: int
    n_ctx_train: int
    positions: str
    n_sequences: int
    kv_tokens: int
    vocabulary: int
    generates: bool
    vectors: VectorFacts | None
    media: tuple[str, ...] = ()
    sampling: str = ""
    family: str = ""
    title: str = ""
    reason: str = ""
    response_template: str = ""
    template_source: TemplateSource = ""
    reasoning: str = ""
    starts_in_reasoning: bool = False
    history: str = ""
    tool_calls: str = ""
    constraints: str = ""
    markers: tuple[Marker, ...] = ()
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        return f"<Inspection: {self.name or self.path}, {self.family or self._kind()}>"

    def rows(self) -> list[tuple[str, str]]:
        trained = f", {self.positions}" if self.positions else ""
        return [
            ("model", f"{self.name or 'unnamed'} at {self.path}"),
            (
                "weights",
                f"{self.parameters / 1e6:,.1f} M parameters, {self.quantization}, {self.size_bytes / 1e6:,.1f} MB",
            ),
            ("architecture", f"{self.architecture}, vocabulary of {self.vocabulary:,}"),
            ("context", f"{self.n_ctx:,} tokens a {'conversation' if self.generates else 'text'}{trained}"),
            ("vectors", "none" if self.vectors is None else self.vectors.text()),
            *(self._chat_rows() if self.generates else [("made for", f"{self._kind()}; it does not chat")]),
        ]

    def _kind(self) -> str:
        ranks = self.vectors is not None and self.vectors.pooling == "rank"
        return "reranking: llm.rerank" if ranks else "embeddings: llm.embed"

    def _chat_rows(self) -> list[tuple[str, str]]:
        common = [
            ("KV cache", self._layout()),
            ("reads", ", ".join(("text", *self.media))),
            ("sampling", self.sampling),
        ]
        if not self.family:
            return [*common, ("chat template", _NO_TEMPLATE)]
        return [
            *common,
            ("family", f"{self.family} ({self.title}): {self.reason}"),
            *([("response template", self.response_template)] if self.response_template else []),
            ("chat template", _SOURCES[self.template_source] + (_MUTE if self.capabilities.get("mute") else "")),
            ("reasoning", self.reasoning),
            ("starts in reasoning", "yes: the prompt leaves it open" if self.starts_in_reasoning else "no"),
            ("past reasoning", self.history),
            ("tool calls", self.tool_calls),
            ("constraints", self.constraints),
            *self._marker_rows(),
            ("template takes", self._capable(_TAKES)),
            *([("template needs", needs)] if (needs := self._capable(_NEEDS)) else []),
            ("reads reasoning from", ", ".join(self.capabilities["reasoning_fields"]) or "no field"),
        ]

    def _layout(self) -> str:
        if self.kv_tokens:
            return f"one pool of {self.kv_tokens:,} tokens for {counted(self.n_sequences, 'conversation')} at once"
        return f"a buffer for each of {counted(self.n_sequences, 'conversation')} at once"

    def _marker_rows(self) -> Iterator[tuple[str, str]]:
        heading = "markers"
        for marker in self.markers:
            expected = " (the family expects a control token)" if marker.missing else ""
            yield heading, f"{marker.role}: {marker.text!r} is {marker.kind}{expected}"
            heading = ""

    def _capable(self, phrases: Mapping[str, str]) -> str:
        return ", ".join(phrase for name, phrase in phrases.items() if self.capabilities[name])


_MUTE = ', whose prompts lack the user\'s text: chat_template="chatml" is a way out'
_NO_TEMPLATE = "none: a base model, which continues texts (llm.complete); chat_template= or family= makes it chat"
_TAKES = {
    "plain": "text",
    "system": "system messages",
    "developer": "developer messages",
    "repeats": "two user messages in a row",
    "tools": "tools",
    "tools_in_system": "tools in the system message",
    "calls": "earlier calls",
    "parallel_calls": "several in one message",
    "results": "their results",
    "both": "content and reasoning beside a call",
}
_NEEDS = {
    "content_parts": "content as a list of parts",
    "empty_tools": "an empty list for no tools",
    "null_content": "null content beside calls",
    "short_ids": "call ids of nine letters and digits",
}


def inspect_model(
    template: ChatTemplate | None,
    info: ModelInfo,
    context: ContextInfo,
    vectors: VectorFacts | None,
    vocabulary: int,
    sampling: str = "",
) -> Inspection:
    """Returns the facts about a loaded model; `template` is None for one without a chat template. Raises
    TemplateError if its template cannot render a plain question."""
    known = Inspection(
        path=str(info.path),
        name=info.name,
        architecture=info.architecture,
        quantization=info.quantization,
        parameters=info.parameters,
        size_bytes=info.size_bytes,
        n_ctx=context.n_ctx,
        n_ctx_train=info.n_ctx_train,
        positions=context.positions,
        n_sequences=context.n_sequences,
        kv_tokens=context.kv_tokens,
        vocabulary=vocabulary,
        generates=context.generates,
        vectors=vectors,
        media=context.media,
        sampling=sampling,
    )
    if template is None:
        return known
    format_ = template.format
    return replace(
        known,
        family=template.family.name,
        title=template.family.title,
        reason=template.detection.reason,
        response_template=template.detection.response_template,
        template_source=_source(template, info),
        reasoning=_reasoning(format_),
        starts_in_reasoning=template.render("Hello").in_reasoning,
        history=_HISTORY[format_.reasoning.history] if format_.reasoning else "there is none",
        tool_calls=_tool_calls(format_),
        constraints=_constraints(template),
        markers=tuple(_markers(format_, template.control_tokens or frozenset())),
        capabilities=asdict(template.capabilities),
    )


def _source(template: ChatTemplate, info: ModelInfo) -> TemplateSource:
    if template.source == info.chat_template:
        return "model"
    return "family" if template.source == _data.template_source(template.family.name) else "caller"


_SOURCES: dict[TemplateSource, str] = {
    "": "none",
    "model": "the model's own",
    "family": "the family's, from templates/",
    "caller": "the caller's",
}
_HISTORY = {
    "none": "dropped from later prompts",
    "last_user": "fed back after the last user message",
    "last_answer": "fed back since the last final answer",
    "all": "always fed back",
    "unknown": "unknown to the template",
}


def _reasoning(format_: Format) -> str:
    syntax = format_.reasoning
    if syntax is None:
        return "none: the family does not mark any"
    if syntax.assumed:
        return f"none known; text between {syntax.open.strip()} and {syntax.close.strip()} is separated all the same"
    gate = syntax.gate
    if gate is None:
        return "always, no switch in the template"
    positions = [name for name in ("on", "off", "low", "medium", "high") if getattr(gate, name) is not None]
    switch = gate.kwarg if gate.place == "variable" else f"words in the {gate.place} message"
    return f"switched by {switch}: {', '.join(positions)}; {gate.default} by default"


def _tool_calls(format_: Format) -> str:
    if format_.channels:
        return "messages with a recipient"
    if format_.tools is None:
        return "none: the family writes none"
    several = "several in a turn" if format_.tools.parallel else "one in a turn"
    return f"{format_.tools.shape.replace('_', ' ')}, {several}"


def _constraints(template: ChatTemplate) -> str:
    """Returns what answers and calls can be constrained to, and whether reasoning can be closed for them."""
    format_ = template.format
    several = "one call in a turn" if format_.tools is not None and not format_.tools.parallel else "calls"
    held = f"answers of a form; {several}, required, named or some of the tools"
    if format_.reasoning is None and format_.channels is None:
        return held
    close = closing(format_)
    return f"{held}; behind reasoning, which {f'is closed by {close!r}' if close else 'cannot be closed'} in time"


def _markers(format_: Format, vocabulary: frozenset[str]) -> Iterator[Marker]:
    """Yields every literal once, with its role."""
    seen: set[str] = set()
    for role, text in _literals(format_):
        bare = text.strip()
        if not bare or bare in seen:
            continue
        seen.add(bare)
        kind: MarkerKind = "text"
        if bare in vocabulary:
            kind = "control token"
        elif any(token in bare for token in vocabulary):
            kind = "text and control tokens"
        yield Marker(role, bare, kind, missing=bare in format_.control and bare not in vocabulary)


def _literals(format_: Format) -> Iterator[tuple[str, str]]:
    yield "start of the turn", format_.start
    if syntax := format_.reasoning:
        yield "reasoning opens", syntax.open
        yield "reasoning closes", syntax.close
    if tools := format_.tools:
        yield "calls open", tools.section[0]
        yield "calls close", tools.section[1]
        yield "call opens", tools.call_marks[0]
        yield "call closes", tools.call_marks[1]
        if isinstance(tools, TaggedArgumentsSyntax):
            yield "argument opens", tools.argument[0]
            yield "argument closes", tools.argument[1]
    if channels := format_.channels:
        yield "message starts", channels.start
        yield "channel", channels.channel
        yield "constrain", channels.constrain
        yield "body", channels.message
        yield "call ends", channels.call_end
        for end in channels.ends:
            yield "message ends", end
    for stop in format_.stops:
        yield "end of the turn", stop
