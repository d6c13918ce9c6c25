"""Options as a tree of tokens: which tokens to ask for, where, so that each gets a probability by few readings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """A place where options part: the tokens before it, and those that go on. `ended`: the option that ends here, if
    one does."""

    path: Tokens
    children: Tokens
    ended: int | None = None


class OptionTree:
    """The tree of all spellings of all options; a place with one way on needs no reading. `spellings`: for each option
    the tokens of each of its spellings."""

    def __init__(self, spellings: Sequence[Sequence[Tokens]]) -> None:
        self._count = len(spellings)
        self._leaves: dict[Tokens, int] = {}
        self.branches: list[Branch] = []
        written = {tokens: option for option, several in enumerate(spellings) for tokens in several if tokens}
        self._grow((), written)

    def _grow(self, path: Tokens, written: Mapping[Tokens, int]) -> None:
        options = set(written.values())
        if path and len(options) == 1:
            self._leaves[path] = options.pop()
            return
        groups: dict[int, dict[Tokens, int]] = {}
        for tokens, option in written.items():
            if len(tokens) > len(path):
                groups.setdefault(tokens[len(path)], {})[tokens] = option
        self.branches.append(Branch(path, tuple(groups), written.get(path)))
        for token, group in groups.items():
            self._grow((*path, token), group)

    def probabilities(self, read: Mapping[Tokens, Mapping[int, float]]) -> tuple[list[float], float]:
        """Returns each option's probability among the options, and how much probability the model gave to their first
        tokens. `read`: for the path of each branch, the log-probability of each child.

        What a model writes after a shared beginning is known only for the options, so behind the first token the
        probabilities of the ways on are taken among one another; where an option ends, it has what is left over.
        """
        found = [0.0] * self._count
        mass = 1.0
        shares: dict[Tokens, float] = {(): 1.0}
        for branch in self.branches:  # each behind the one that leads to it
            chances = {token: exp(read[branch.path][token]) for token in branch.children}
            total = fsum(chances.values())
            if not branch.path:
                mass = total
            share = shares[branch.path]
            if branch.ended is not None:
                found[branch.ended] += share * max(0.0, 1.0 - total)
                total = max(1.0, total)
            for token, chance in chances.items():
                path, part = (*branch.path, token), share * chance / total if total else 0.0
                if (leaf := self._leaves.get(path)) is not None:
                    found[leaf] += part
                else:
                    shares[path] = part
        whole = fsum(found)
        return ([each / whole for each in found] if whole else found), min(mass, 1.0)
