"""A model for lm-evaluation-harness: `python -m engine.plugins.lm_eval --model llama-engine --model_args model=FILE`.

The arguments of `--model_args` are those of `Engine.load`; the rest is lm_eval's own command line.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from engine.api.engine import Engine
from engine.runtime.stream.stream import Stream
from engine.support.errors import RequestError

_SEQUENCES = 8
_TOKENS = 256
"""The most tokens of an answer where a task does not say."""
_NOT_OURS = frozenset({"batch_size", "max_batch_size", "device"})
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")


@register_model("llama-engine")
class EngineLM(LM):
    """A GGUF model in this process. `model`: what `Engine.load` takes, None for the built-in model."""

    def __init__(self, model: str | None = None, *, n_sequences: int = _SEQUENCES, **options: Any) -> None:
        super().__init__()
        self._llm = Engine.load(
            model, n_sequences=n_sequences, **{name: value for name, value in options.items() if name not in _NOT_OURS}
        )
        self._special = False
        self._most = 2 * n_sequences

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Returns the log-probability of each continuation, and whether it is what greedy decoding would write. White
        space at a context's end belongs to its continuation, as in the harness's own models."""
        arguments = [request.args for request in requests]
        pairs = [self._fitted(*self._pair(context, continuation)) for context, continuation in arguments]
        order = sorted(range(len(pairs)), key=lambda index: pairs[index][0])  # contexts that begin alike are read once
        scores = self._llm.scorer.scores([pairs[index] for index in order])
        results: dict[int, tuple[float, bool]] = {}
        for index, score in zip(order, scores, strict=True):
            results[index] = score.logprob, score.greedy
            self.cache_hook.add_partial("loglikelihood", arguments[index], results[index])
        return [results[index] for index in range(len(pairs))]

    def _pair(self, context: str, continuation: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        text = context.rstrip()
        ((before, scored),) = self._llm.scorer.pairs(text, [context[len(text) :] + continuation], special=self._special)
        return before or (self._first(),), scored

    def _fitted(self, before: tuple[int, ...], scored: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the pair without the beginning of a context that is too long."""
        room = self._llm.n_ctx + 1 - len(scored)
        return before[-max(1, room) :], scored

    def _first(self) -> int:
        """Returns the token that stands before a text which nothing precedes: BOS, or the end of a text."""
        info = self._llm.info
        for text in (info.bos_text, info.eos_text):
            if text and len(tokens := self._llm.tokenize(text, special=True)) == 1:
                return tokens[0]
        raise RequestError("This vocabulary has neither a BOS nor an EOS token, so the first token cannot be scored.")

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Returns the log-probability of each whole text; a long one in windows of the context's length."""
        sums: list[float] = []
        for (text,) in (request.args for request in requests):
            tokens = self._llm.tokenize(text, special=False)
            windows = get_rolling_token_windows(tokens, self._first(), self._llm.n_ctx, 1)
            pairs = [tuple(map(tuple, make_disjoint_window(window))) for window in windows]
            sums.append(sum(score.logprob for score in self._llm.scorer.scores(pairs)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), sums[-1])
        return sums

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Returns what the model writes after each context, up to one of the texts in `until`."""
        arguments = [request.args for request in requests]
        texts = list(self._continued(arguments))
        for argument, text in zip(arguments, texts, strict=True):
            self.cache_hook.add_partial("generate_until", argument, text)
        return texts

    def _continued(self, arguments: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
        running: deque[Stream] = deque()
        for context, options in arguments:
            if len(running) == self._most:
                yield running.popleft().result().content
            running.append(self._started(context, options))
        while running:
            yield running.popleft().result().content

    def _started(self, context: str, options: Mapping[str, Any]) -> Stream:
        until = options.get("until") or ()
        most = int(options.get("max_gen_toks", _TOKENS))
        sampling = {name: value for name, value in options.items() if name in _SAMPLING and value is not None}
        if not options.get("do_sample", sampling.get("temperature", 0) > 0):
            sampling = {"temperature": 0}
        ((before, _),) = self._llm.scorer.pairs(context, [[0]], special=self._special)
        prompt = (before or (self._first(),))[-max(1, self._llm.n_ctx - most) :]
        stop = [until] if isinstance(until, str) else list(until)
        return self._llm.stream_complete(prompt, max_tokens=most, stop=stop, **sampling)

    @property
    def tokenizer_name(self) -> str:
        return f"{self._llm.info.name} {self._llm.family.name}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Returns the model's own chat template, if one is wanted."""
        return self._llm.info.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns a conversation in the model's own template. From now on control tokens in contexts are taken as
        such."""
        self._special = True
        return self._llm.render(chat_history, continue_final_message=not add_generation_prompt).text


def main() -> None:
    """Run lm_eval's command line, which then has this model."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
