"""Muon, the optimizer of the bundled models' weight matrices.

Knows how to orthogonalise an update (Newton-Schulz, in fp32, which a CPU without bf16 units
needs) and nothing of models or data. After Keller Jordan's Muon (2024); embeddings and norms
belong to AdamW.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch


def orthogonalise(update: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The matrices of `update` (..., rows, columns) with singular values moved near 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update.mT if update.size(-2) > update.size(-1) else update
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if update.size(-2) > update.size(-1) else x


class Muon(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped to mypy here
    """Momentum, then an orthogonal step. Only for 2-d weights; `lr` is the step's spectral norm."""

    def __init__(
        self, params: Iterable[torch.nn.Parameter], lr: float = 0.02, momentum: float = 0.95
    ) -> None:
        super().__init__(list(params), {"lr": lr, "momentum": momentum})

    def step(self, closure: None = None) -> None:
        """One update of every parameter; same shapes go in one batch."""
        with torch.no_grad():
            for group in self.param_groups:
                shapes: dict[tuple[int, ...], list[torch.nn.Parameter]] = defaultdict(list)
                for parameter in group["params"]:
                    shapes[tuple(parameter.shape)].append(parameter)
                for parameters in shapes.values():
                    self._step(parameters, group["lr"], group["momentum"])

    def _step(self, parameters: list[torch.nn.Parameter], lr: float, momentum: float) -> None:
        updates = []
        for parameter in parameters:
            state = self.state[parameter]
            mean = state.setdefault("momentum", torch.zeros_like(parameter))
            mean.lerp_(parameter.grad, 1 - momentum)
            updates.append(parameter.grad.lerp(mean, momentum))
        rows, columns = parameters[0].shape
        scale = max(1.0, rows / columns) ** 0.5
        for parameter, update in zip(parameters, orthogonalise(torch.stack(updates)), strict=True):
            parameter.add_(update, alpha=-lr * scale)
