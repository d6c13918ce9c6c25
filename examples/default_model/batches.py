"""Training batches: groups of conversations that share a trunk, packed into rows.

A group is several conversations in one setting (system text, tools) and one family. Their token sequences begin alike;
that beginning is the trunk, what follows in each is a branch. Branches are packed end to end into rows of one batch,
each seeing its own trunk and itself only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from conversations import choose_turns, make_conversation, make_setting
from model import Batch
from rendering import FAMILIES, ONE_CALL_A_MESSAGE, choose_options, conversation_texts, sequences
from tokenizer import CONTROL, USER_DEFINED
from tokenizers import Tokenizer
from torch import Tensor
from values import text_value

FAMILY_WEIGHTS = dict(zip(FAMILIES, (0.24, 0.11, 0.18, 0.15, 0.13, 0.19), strict=True))
LONGEST = 1600


@dataclass(frozen=True, slots=True)
class Sequence:
    """Token ids, and for each whether the assistant wrote it."""

    ids: list[int]
    written: list[bool]


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences whose first `shared` tokens are the same."""

    shared: int
    members: list[Sequence]

    @property
    def trunk(self) -> list[int]:
        return self.members[0].ids[: self.shared]


def common_prefix(members: list[Sequence]) -> int:
    """How many tokens all members share, none of them written by the assistant."""
    first = members[0]
    limit = min(sequence.written.index(True) - 1 for sequence in members)
    for place in range(limit):
        if any(sequence.ids[place] != first.ids[place] for sequence in members):
            return place
    return limit


def make_group(tokenizer: Tokenizer, rng: random.Random, family: str) -> Group | None:
    """Some conversations of one family in one setting."""
    setting = make_setting(rng, False, rng.random() < 0.93)
    options = choose_options(rng, family)
    members: list[Sequence] = []
    turns = choose_turns(rng)
    for _ in range(max(1, (rng.randint(5, 9) if setting.tools else 3) // turns)):
        conversation = make_conversation(rng, setting, False, family not in ONE_CALL_A_MESSAGE, turns)
        for pieces in sequences(conversation_texts(conversation, options)):
            ids: list[int] = []
            written: list[bool] = []
            for piece in pieces:
                tokens = tokenizer.encode(piece.text, add_special_tokens=False).ids
                ids += tokens
                written += [piece.written] * len(tokens)
            if len(ids) <= LONGEST:
                members.append(Sequence(ids, written))
    return Group(common_prefix(members), members) if members else None


def pack(members: list[Sequence], shared: int, length: int) -> list[list[Sequence]]:
    """Branches into rows of at most `length` tokens, longest first into the fullest row that takes them."""
    rows: list[tuple[int, list[Sequence]]] = []
    for member in sorted(members, key=lambda sequence: -len(sequence.ids)):
        need = len(member.ids) - shared
        place = next((i for i, (used, _) in enumerate(rows) if used + need <= length), None)
        if place is None:
            rows.append((need, [member]))
        else:
            rows[place] = (rows[place][0] + need, [*rows[place][1], member])
    return [row for _, row in rows]


class BatchMaker:
    """Makes batches for ever, never the same twice."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random, budget: int) -> None:
        self.tokenizer, self.rng, self.budget = tokenizer, rng, budget
        self.plain = tokenizer.get_vocab_size() - len(CONTROL) - len(USER_DEFINED)
        self.prompt_weight = 0.1  # of the tokens that others wrote
        self.worth = 0  # tokens that training one sequence at a time would have read
        self._batches = self._endless()

    def next(self) -> Batch:
        return next(self._batches)

    def _endless(self) -> Iterator[Batch]:
        while True:
            families = self.rng.choices(list(FAMILY_WEIGHTS), list(FAMILY_WEIGHTS.values()), k=160)
            made = (make_group(self.tokenizer, self.rng, family) for family in families)
            groups = [group for group in made if group]
            groups.sort(key=lambda group: (self._length([group]) // 32, group.shared))
            planned: list[list[Group]] = [[]]
            for group in groups:
                if planned[-1] and self._size([*planned[-1], group]) > self.budget:
                    planned.append([])
                planned[-1].append(group)
            self.rng.shuffle(planned)
            for chosen in planned:
                yield self._collate(chosen)

    @staticmethod
    def _length(groups: list[Group]) -> int:
        longest = max(len(member.ids) - group.shared for group in groups for member in group.members)
        return max(longest, 128)

    def _size(self, groups: list[Group]) -> int:
        length = self._length(groups)
        rows = sum(len(pack(group.members, group.shared, length)) for group in groups)
        return max(group.shared for group in groups) * len(groups) + rows * length

    def _collate(self, groups: list[Group]) -> Batch:
        length = self._length(groups)
        packed = [
            (number, row) for number, group in enumerate(groups) for row in pack(group.members, group.shared, length)
        ]
        trunk = torch.zeros(len(groups), max(1, *(group.shared for group in groups)), dtype=torch.long)
        for number, group in enumerate(groups):
            trunk[number, : group.shared] = torch.tensor(group.trunk, dtype=torch.long)
            self.worth += sum(len(member.ids) for member in group.members)
        rows = torch.zeros(len(packed), length, dtype=torch.long)
        positions, branch = torch.zeros_like(rows), torch.full_like(rows, -1)
        next_ids, next_weights = torch.zeros_like(rows), torch.zeros(len(packed), length)
        for line, (number, row) in enumerate(packed):
            at, shared = 0, groups[number].shared
            for place, member in enumerate(row):
                ids = torch.tensor(member.ids[shared:])
                end = at + len(ids)
                rows[line, at:end] = ids
                positions[line, at:end] = torch.arange(shared, shared + len(ids))
                branch[line, at:end] = place
                next_ids[line, at : end - 1] = ids[1:]
                written = torch.tensor(member.written[shared + 1 :])
                next_weights[line, at : end - 1] = torch.where(written, 1.0, self.prompt_weight)
                at = end
        group = torch.tensor([number for number, _ in packed])
        shared = torch.tensor([each.shared for each in groups])[group]
        mask = visible(branch, shared, trunk.shape[1])
        used = int((branch >= 0).sum()) + sum(each.shared for each in groups)
        return Batch(trunk, rows, group, positions, mask, *self._targets(next_ids, next_weights), used)

    @staticmethod
    def _targets(next_ids: Tensor, next_weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Ids to predict, their places and weights: all that the assistant writes and a quarter of the rest."""
        flat = next_weights.reshape(-1)
        chosen = (flat >= 1) | ((flat > 0) & (torch.rand_like(flat) < 0.25))
        places = chosen.nonzero()[:, 0]
        return next_ids.reshape(-1)[places], places, flat[places]

    def _stretch(self, length: int) -> list[int]:
        """Random tokens, or tokens of random values."""
        if self.rng.random() < 0.5:
            return [self.rng.randrange(self.plain) for _ in range(length)]
        ids: list[int] = []
        while len(ids) < length:
            ids += self.tokenizer.encode(" " + text_value(self.rng, "any", False), add_special_tokens=False).ids
        return ids[:length]

    def copying(self, longest: int) -> Batch:
        """Before, a stretch, between, the same stretch again: only the repetition counts."""
        length = self.rng.randint(6, longest)
        count = max(1, self.budget // 3 // (3 * length))
        lines: list[list[int]] = []
        for _ in range(count):
            stretch, before = self._stretch(length), self.rng.randint(0, length)
            lines.append(self._stretch(before) + stretch + self._stretch(length - before) + stretch)
        rows = torch.tensor(lines)
        whole = rows.shape[1]
        positions = torch.arange(whole).expand(count, -1) + torch.randint(0, 600, (count, 1))
        next_ids, next_weights = torch.zeros_like(rows), torch.zeros(count, whole)
        next_ids[:, :-1] = rows[:, 1:]
        next_weights[:, whole - length : -1] = 1.0
        mask = visible(torch.zeros_like(rows), torch.zeros(count, dtype=torch.long), 1)
        trunk, group = torch.zeros(1, 1, dtype=torch.long), torch.zeros(count, dtype=torch.long)
        return Batch(trunk, rows, group, positions, mask, *self._targets(next_ids, next_weights), rows.numel())


def visible(branch: Tensor, shared: Tensor, trunk_length: int) -> Tensor:
    """Which of [trunk, row] each position of a row may attend to, as a mask to add."""
    count, length = branch.shape
    own = (branch[:, :, None] == branch[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril()
    past = (torch.arange(trunk_length) < shared[:, None])[:, None, :].expand(count, length, trunk_length)
    seen = torch.cat([past, own], dim=2)[:, None]
    return torch.zeros(seen.shape, dtype=torch.bfloat16).masked_fill_(~seen, float("-inf"))
