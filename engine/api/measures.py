"""What can be measured with a model besides letting it answer: vectors, ranks and scores of texts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from engine.llama.model import ModelInfo
from engine.runtime.stream.pending import PendingVectors
from engine.runtime.stream.raw import detokenize, tokenize
from engine.runtime.stream.service import Service
from engine.support.errors import NotCopied
from engine.support.offloop import off_loop
from engine.tools import ToolLike
from engine.turns.options import EmbedOptions, RerankOptions, ScoreOptions, TurnOptions, checked
from engine.turns.scoring import Classification, Score, Scorer, TextOrTokens, classification
from engine.turns.turns import Turns
from engine.turns.vectors import Embedder, Ranked, matrix, ranking
from engine.types.messages import MessagesLike
from engine.types.prompt import Prompt

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Measures(NotCopied):
    """The methods of `Engine` that generate nothing."""

    _instead = (
        "The model lives in this process: share the object, which is thread-safe, and in another process call "
        "Engine.load(...) there."
    )

    def __init__(self, service: Service, turns: Turns, info: ModelInfo | None) -> None:
        self._service = service
        self._turns = turns
        self.scorer = Scorer(service)
        """What `score` and `classify` ask for log-probabilities."""
        self.embedder = Embedder.of(service, info)
        """What `embed` and `rerank` ask for vectors."""

    def tokenize(self, text: str, *, special: bool = True, add_bos: bool = False) -> list[int]:
        """Returns the tokens of a text. `special`: control-token text becomes control tokens; `add_bos`: put the BOS
        token first, if this model's prompts have one."""
        self._service.check()
        return tokenize(self._service.vocab, text, special=special, add_bos=add_bos)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, including control tokens; invalid UTF-8 becomes U+FFFD. Raises RequestError for a
        token that the model does not have."""
        self._service.check()
        return detokenize(self._service.vocab, tokens)

    def embed(self, texts: str | Iterable[str | Sequence[int]], **options: Unpack[EmbedOptions]) -> "NDArray[Any]":
        """Returns the vector of a text, shape (d,), or of several, shape (n, d), as float32; see `EmbedOptions`. An
        embedding model makes them, or, far worse, a chat model, in a context of its own. Raises RequestError for what
        is not valid, ContextOverflowError if the context does not fit into memory, EngineError if closed."""
        return matrix(self.embedder.start(texts, options).result(), options, one=isinstance(texts, str))

    async def aembed(
        self, texts: str | Iterable[str | Sequence[int]], **options: Unpack[EmbedOptions]
    ) -> "NDArray[Any]":
        """`embed` for an event loop; cancelling the task cancels the request."""
        pending = await off_loop(lambda: self.embedder.start(texts, options), PendingVectors.cancel)
        return matrix(await pending, options, one=isinstance(texts, str))

    def rerank(self, query: str, documents: Iterable[str], **options: Unpack[RerankOptions]) -> list[Ranked]:
        """Returns the places and scores of the documents, the best answer to the query first; see `RerankOptions`.
        Needs a reranking model. Raises what `embed` raises."""
        return ranking(self.embedder.start_rank(query, documents, options).result(), options)

    async def arerank(self, query: str, documents: Iterable[str], **options: Unpack[RerankOptions]) -> list[Ranked]:
        """`rerank` for an event loop; cancelling the task cancels the request."""
        pending = await off_loop(lambda: self.embedder.start_rank(query, documents, options), PendingVectors.cancel)
        return ranking(await pending, options)

    def score(
        self, prompt: TextOrTokens | Prompt, continuations: Sequence[TextOrTokens], **options: Unpack[ScoreOptions]
    ) -> list[Score]:
        """Returns how likely each continuation is after a prompt, in order; texts or tokens. The prompt is read once,
        `n_sequences` continuations at a time. With `special`, control-token text in the prompt becomes control tokens,
        as in a prompt that was rendered; else a text stays a text. The model's BOS token is put before a text. A prompt
        that `Engine.render` returned may have pictures and sounds in it. Raises
        RequestError for what is not text or tokens, or if nothing stands before the first token that is scored,
        ContextOverflowError for more tokens than a conversation holds, EngineError if the engine is closed."""
        given = checked(options, ScoreOptions)
        pairs = self.scorer.pairs(prompt, continuations, special=given.get("special", False))
        return self.scorer.scores(pairs, given.get("adapters"), self.scorer.media(prompt))

    async def ascore(
        self, prompt: TextOrTokens | Prompt, continuations: Sequence[TextOrTokens], **options: Unpack[ScoreOptions]
    ) -> list[Score]:
        """`score` for an event loop."""
        return await off_loop(lambda: self.score(prompt, continuations, **options), bool)

    def classify(
        self,
        messages: MessagesLike,
        labels: Sequence[str],
        tools: Sequence[ToolLike] | None = None,
        **options: Unpack[TurnOptions],
    ) -> Classification:
        """Returns which of these labels the model would answer, with their probabilities among one another; nothing is
        generated, and there is no reasoning. Ask for one of the labels in the messages; of two of which one begins the
        other, the shorter wins. Raises what `score` and `stream` raise."""
        tokens, media = self._turns.answer_prefix(messages, tools, options)
        pairs = self.scorer.labels(tokens, labels)
        return classification(labels, self.scorer.scores(pairs, options.get("adapters"), media))

    async def aclassify(
        self,
        messages: MessagesLike,
        labels: Sequence[str],
        tools: Sequence[ToolLike] | None = None,
        **options: Unpack[TurnOptions],
    ) -> Classification:
        """`classify` for an event loop."""
        return await off_loop(lambda: self.classify(messages, labels, tools, **options), bool)
