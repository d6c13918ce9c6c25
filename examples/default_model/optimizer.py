"""Muon: momentum whose update is made orthogonal by a few Newton-Schulz steps, for the weight matrices."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def orthogonal(update: Tensor, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices of a stack, roughly: all singular values near one."""
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Matrices of one shape are stacked and updated together."""

    def __init__(self, matrices: list[nn.Parameter], momentum: float = 0.95, decay: float = 0.01) -> None:
        self.momentum, self.decay = momentum, decay
        self.groups: dict[torch.Size, list[nn.Parameter]] = {}
        for matrix in matrices:
            self.groups.setdefault(matrix.shape, []).append(matrix)
        self.means = {shape: torch.zeros(len(group), *shape) for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self.groups.items():
            gradient = torch.stack([p.grad if p.grad is not None else torch.zeros_like(p) for p in group])
            mean = self.means[shape].lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(mean, self.momentum)) * max(1.0, shape[0] / shape[1]) ** 0.5
            for matrix, change in zip(group, update, strict=True):
                matrix.mul_(1 - rate * self.decay).add_(change, alpha=-rate)
