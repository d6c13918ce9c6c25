"""Training batches: groups of conversations that share a trunk, packed into rows.

A group is several conversations in one setting (system text, tools) and one family. Their token sequences begin alike;
that beginning is the trunk, what follows in each is a branch. Branches are packed end to end into rows of one batch,
each seeing its own trunk and itself only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from conversations import Setting, choose_turns, make_conversation, make_setting, make_turn
from model import Batch
from rendering import (
    FAMILIES,
    ONE_CALL_A_MESSAGE,
    TARGETS,
    Options,
    choose_options,
    conversation_texts,
    first_prompt,
    look_ups,
    sequences,
)
from tokenizer import CONTROL, USER_DEFINED
from tokenizers import Tokenizer
from torch import Tensor
from values import text_value

FAMILY_WEIGHTS = dict(zip(FAMILIES, (0.28, 0.18, 0.12, 0.17, 0.12, 0.13), strict=True))
LONGEST = 1600
DRILLS = 0.55  # groups that end with the first call: the choice of tool and keys is what takes longest to learn
DRILL_TWO = 0.25  # drills that ask for two calls
SHORT = 0.5  # drills that end with the first key of the last call: the look-ups, without what is only copied
USER = "\ue000"  # where a request goes in a prompt that many share
_CONTROL = re.compile("|".join(map(re.escape, CONTROL)))


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
    # Without tools the prompts of Qwen3 and Qwen3-Coder are the same, and one of them reasons.
    with_tools = family == "qwen3-coder" or rng.random() < 0.93
    drill = with_tools and rng.random() < DRILLS
    setting = make_setting(rng, False, with_tools, drill)
    options = choose_options(rng, family)
    found = _drills(tokenizer, rng, setting, options) if drill else _whole(tokenizer, rng, setting, options)
    members = [member for member in found if len(member.ids) <= LONGEST]
    return Group(common_prefix(members), members) if members else None


def _whole(tokenizer: Tokenizer, rng: random.Random, setting: Setting, options: Options) -> Iterator[Sequence]:
    """Conversations to their ends."""
    turns = choose_turns(rng)
    count = rng.randint(5, 9) if setting.tools else 3
    for _ in range(max(1, count // turns)):
        parallel = options.family not in ONE_CALL_A_MESSAGE
        conversation = make_conversation(rng, setting, False, parallel, turns)
        for pieces in sequences(conversation_texts(conversation, options)):
            ids: list[int] = []
            written: list[bool] = []
            for piece in pieces:
                tokens = tokenizer.encode(piece.text, add_special_tokens=False).ids
                ids += tokens
                written += [piece.written] * len(tokens)
            yield Sequence(ids, written)


def _drills(tokenizer: Tokenizer, rng: random.Random, setting: Setting, options: Options) -> Iterator[Sequence]:
    """Many requests against one tool list, each as far as the assistant's first message or its look-ups.

    What the requests share is rendered and cut into tokens once: up to the last control token or line break.
    """
    short = rng.random() < SHORT
    before, after = first_prompt(setting, options, USER).split(USER)
    edge = max(before.rfind("\n") + 1, *(found.end() for found in _CONTROL.finditer(before)), 0)
    shared = tokenizer.encode(before[:edge], add_special_tokens=False).ids
    for _ in range(rng.randint(18, 28) if short else rng.randint(10, 16)):
        turn = make_turn(rng, setting, False, options.family not in ONE_CALL_A_MESSAGE, DRILL_TWO)
        target = TARGETS[options.family](turn.steps[0], options, 1, False)
        if short:
            target = look_ups(target, turn.steps[0].calls)
        prompt = tokenizer.encode(before[edge:] + turn.user + after, add_special_tokens=False).ids
        said = tokenizer.encode(target, add_special_tokens=False).ids
        yield Sequence(shared + prompt + said, [False] * (len(shared) + len(prompt)) + [True] * len(said))


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


def up(length: int) -> int:
    """Lengths are multiples of 32."""
    return max(1, -(-length // 32)) * 32


class BatchMaker:
    """Makes batches for ever, never the same twice."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random, budget: int) -> None:
        self.tokenizer, self.rng, self.budget = tokenizer, rng, budget
        self.plain = tokenizer.get_vocab_size() - len(CONTROL) - len(USER_DEFINED)
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
        return max(up(longest), 128)

    def _size(self, groups: list[Group]) -> int:
        length = self._length(groups)
        rows = sum(len(pack(group.members, group.shared, length)) for group in groups)
        return max(group.shared for group in groups) * len(groups) + rows * length

    def _collate(self, groups: list[Group]) -> Batch:
        length = self._length(groups)
        packed = [
            (number, row) for number, group in enumerate(groups) for row in pack(group.members, group.shared, length)
        ]
        trunk = torch.zeros(len(groups), up(max(group.shared for group in groups)), dtype=torch.long)
        for number, group in enumerate(groups):
            trunk[number, : group.shared] = torch.tensor(group.trunk, dtype=torch.long)
            self.worth += sum(len(member.ids) for member in group.members)
        rows = torch.zeros(len(packed), length, dtype=torch.long)
        positions, branch = torch.zeros_like(rows), torch.full_like(rows, -1)
        next_ids, counts = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
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
                counts[line, at : end - 1] = written
                at = end
        group = torch.tensor([number for number, _ in packed])
        shared = torch.tensor([each.shared for each in groups])[group]
        mask = visible(branch, shared, trunk.shape[1])
        used = int((branch >= 0).sum()) + sum(each.shared for each in groups)
        return Batch(trunk, rows, group, positions, mask, next_ids[counts], counts.reshape(-1).nonzero()[:, 0], used)

    def _stretch(self, length: int, hard: bool) -> list[int]:
        """Random tokens, a few tokens again and again (what follows one is then no clue), or random values."""
        roll = self.rng.random()
        if roll < 0.3:
            return [self.rng.randrange(self.plain) for _ in range(length)]
        if hard and roll < 0.55:
            few = [self.rng.randrange(self.plain) for _ in range(self.rng.randint(4, 12))]
            return self.rng.choices(few, k=length)
        ids: list[int] = []
        while len(ids) < length:
            ids += self.tokenizer.encode(" " + text_value(self.rng, "any", False), add_special_tokens=False).ids
        return ids[:length]

    def copying(self, longest: int, hard: bool = False) -> Batch:
        """Before, a stretch, between, the same stretch again: only the repetition counts."""
        length = self.rng.randint(6, longest)
        count = max(1, self.budget // 3 // (3 * length))
        lines: list[list[int]] = []
        for _ in range(count):
            stretch, before = self._stretch(length, hard), self.rng.randint(0, length)
            lines.append(self._stretch(before, hard) + stretch + self._stretch(length - before, hard) + stretch)
        rows = torch.tensor(lines)
        whole = rows.shape[1]
        positions = torch.arange(whole).expand(count, -1) + torch.randint(0, 600, (count, 1))
        next_ids, counts = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
        next_ids[:, :-1] = rows[:, 1:]
        counts[:, whole - length : -1] = True
        trunk, group = torch.zeros(2, 32, dtype=torch.long), torch.zeros(count, dtype=torch.long)
        mask = visible(torch.zeros_like(rows), torch.zeros(count, dtype=torch.long), trunk.shape[1])
        return Batch(
            trunk, rows, group, positions, mask, next_ids[counts], counts.reshape(-1).nonzero()[:, 0], rows.numel()
        )


def visible(branch: Tensor, shared: Tensor, trunk_length: int) -> Tensor:
    """Which of [trunk, row] each position of a row may attend to, as a mask to add."""
    count, length = branch.shape
    mask = torch.zeros(count, 1, length, trunk_length + length, dtype=torch.bfloat16)
    past = torch.arange(trunk_length) >= shared[:, None]
    mask[..., :trunk_length].masked_fill_(past[:, None, None], float("-inf"))
    own = branch[:, None, :, None] != branch[:, None, None]
    own |= torch.ones(length, length, dtype=torch.bool).triu(1)
    mask[..., trunk_length:].masked_fill_(own, float("-inf"))
    return mask
