"""PPO's losses (Schulman et al. 2017, arXiv:1707.06347), as pure functions of minibatch tensors [B].

``log_ratio`` is log pi_new(a|s) - log pi_old(a|s), where pi_old chose the actions of the rollout.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["approximate_kl", "clip_fraction", "policy_loss", "value_loss"]


def policy_loss(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """Return the clipped surrogate loss (equation 7 of PPO).

    An action gains nothing more once its probability ratio is further than ``clip_range`` from 1.
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(advantages * ratio, advantages * clipped).mean()


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_range_vf: float | None) -> Tensor:
    """Return the mean squared error of the values.

    With ``clip_range_vf``, values are first clipped to that distance from the rollout's values: a detail of PPO
    implementations that the paper does not mention (Engstrom et al. 2020, arXiv:2005.12729).
    """
    if clip_range_vf is not None:
        values = old_values + (values - old_values).clamp(-clip_range_vf, clip_range_vf)
    return torch.nn.functional.mse_loss(values, returns)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Return the estimate mean((ratio - 1) - log ratio) of KL(old || new).

    It is unbiased, never negative and of low variance: Schulman 2020, "Approximating KL divergence",
    http://joschu.net/blog/kl-approx.html.
    """
    return (log_ratio.expm1() - log_ratio).mean()


def clip_fraction(log_ratio: Tensor, clip_range: float) -> Tensor:
    """Return the fraction of rows whose ratio is further than ``clip_range`` from 1."""
    return (log_ratio.expm1().abs() > clip_range).float().mean()
