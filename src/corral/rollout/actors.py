"""Actors: the policy as the collector sees it, numpy in and numpy out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from corral.core.types import Acts, Leaves
from corral.policy import distributions
from corral.policy.policy import Policy

__all__ = ["TorchActor"]

Array = npt.NDArray[Any]


class TorchActor:
    """Runs a torch policy, on whatever device it is."""

    def __init__(self, policy: Policy, device: torch.device) -> None:
        self.policy = policy
        self.device = device

    @torch.inference_mode()
    def act(self, observations: Leaves, masks: Array | None, noise: npt.NDArray[np.float32]) -> Acts:
        """Sample actions, with their log-probabilities and the values of the observations."""
        policy, mask = self.policy, self._mask(masks)
        params, values = policy(self._prepare(observations))
        heads = policy.codec.heads
        actions = distributions.sample(heads, params, policy.log_std, mask, self._tensor(noise))
        known = distributions.likelihood(heads, params, policy.log_std, actions, mask)
        return Acts(actions.cpu().numpy(), known.log_probs.cpu().numpy(), values.cpu().numpy())

    @torch.inference_mode()
    def best(self, observations: Leaves, masks: Array | None) -> Array:
        """The most likely actions."""
        params, _ = self.policy(self._prepare(observations))
        return distributions.mode(self.policy.codec.heads, params, self._mask(masks)).cpu().numpy()

    @torch.inference_mode()
    def values(self, observations: Leaves) -> npt.NDArray[np.float32]:
        """The values of the observations."""
        _, values = self.policy(self._prepare(observations))
        found: npt.NDArray[np.float32] = values.cpu().numpy()
        return found

    def _prepare(self, observations: Leaves) -> dict[str, Tensor]:
        return self.policy.prepare({path: self._tensor(leaf) for path, leaf in observations.items()})

    def _mask(self, masks: Array | None) -> Tensor | None:
        return None if masks is None else self._tensor(masks)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)
