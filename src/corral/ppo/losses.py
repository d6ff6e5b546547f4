"""PPO's losses, as pure functions of minibatch tensors [B]."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["approximate_kl", "clip_fraction", "policy_loss", "value_loss"]


def policy_loss(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """The clipped surrogate: no reward for moving a ratio further than ``clip_range`` from 1."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(advantages * ratio, advantages * clipped).mean()


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_range_vf: float | None) -> Tensor:
    """Squared error, of values held within ``clip_range_vf`` of the old ones if that is given."""
    if clip_range_vf is not None:
        values = old_values + (values - old_values).clamp(-clip_range_vf, clip_range_vf)
    return torch.nn.functional.mse_loss(values, returns)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Schulman's low-variance estimator of KL(old, new): mean of (ratio - 1) - log ratio."""
    return (log_ratio.expm1() - log_ratio).mean()


def clip_fraction(log_ratio: Tensor, clip_range: float) -> Tensor:
    """Share of steps whose ratio left the clip range."""
    return (log_ratio.expm1().abs() > clip_range).float().mean()
