"""Weighs whole texts where a form leaves only a few: the likeliest first token may begin one that no model would write.

A model that would write "fantasy" takes the "f" of "find_phone", and all else is forced: so each text has its whole
probability, and its first token that of all texts that it begins.
"""

from collections.abc import Sequence
from math import exp, isfinite, log

from engine.runtime.loop.backend import Ahead, Backend, Row
from engine.runtime.loop.sequence import SequenceState
from engine.support.errors import DecodeError

MOST_WEIGHED = 5
"""Texts that are tried, the likeliest by their first tokens."""
_NEVER = -1e4


def weighed(backend: Backend, state: SequenceState, row: int, texts: Sequence[Sequence[int]]) -> Ahead | None:
    """Returns what the first tokens of these texts get, behind a sequence whose last token has the logits of `row`;
    afterwards it has those of row 0. None, with nothing changed, where one text is possible at most. First tokens of
    texts that were not tried get the mean of the others. Raises DecodeError, also where the sequence cannot forget a
    text."""
    heads = dict.fromkeys(text[0] for text in texts)
    entry = backend.logprobs(row, state.tokens[-1], tuple(heads))
    first = {each.token: each.logprob for each in entry.top}
    known = sorted((text for text in texts if isfinite(first[text[0]])), key=lambda text: -first[text[0]])
    if len(known) < 2:
        return None
    totals: dict[int, list[float]] = {}
    best = -float("inf")
    for text in known[:MOST_WEIGHED]:
        if first[text[0]] < best and text[0] not in totals:
            break  # no text that it begins is as likely as one that is known
        total = first[text[0]] + _rest(backend, state, text)
        best = max(best, total)
        totals.setdefault(text[0], []).append(total)
    place = len(state.tokens) - 1
    _forget(backend, state, place)
    backend.decode([Row(state.tokens[-1], place, state.sequence, True)])
    more = {token: _together(some) - first[token] for token, some in totals.items() if isfinite(max(some))}
    mean = sum(more.values()) / len(more) if more else 0.0
    tokens = tuple(dict.fromkeys(text[0] for text in known))
    return Ahead(tokens, tuple(more.get(token, mean if token not in totals else _NEVER) for token in tokens))


def _together(several: Sequence[float]) -> float:
    """Returns the log-probability of one of several texts, which may be too small to be a float."""
    best = max(several)
    return best + log(sum(exp(each - best) for each in several))


def _rest(backend: Backend, state: SequenceState, text: Sequence[int]) -> float:
    """Returns the log-probability of a text behind its first token, and forgets it again."""
    place = len(state.tokens)
    if len(text) == 1:
        return 0.0
    backend.decode([Row(token, place + at, state.sequence, True) for at, token in enumerate(text[:-1])])
    state.weighed += len(text) - 1
    total = sum(backend.logprobs(at, token, 0).drawn.logprob for at, token in enumerate(text[1:]))
    _forget(backend, state, place)
    return total


def _forget(backend: Backend, state: SequenceState, place: int) -> None:
    if not backend.trim(state.sequence, place):
        raise DecodeError("The context cannot forget what was tried.", "failed")
