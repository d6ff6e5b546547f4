"""Gradient steps for the built-in network in numpy, on the CPU: about three times as fast as autograd.

The policy's torch parameters become views of one flat vector, so that checkpoints and evaluation see every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from corral.core.config import TrainConfig
from corral.core.types import Rollout
from corral.policy import array_distributions
from corral.policy.mlp import Mlp, MlpShape
from corral.policy.policy import FEATURES, Policy
from corral.policy.scoring import ACTION_FEATURES
from corral.ppo.gae import Advantages
from corral.ppo.shares import Alone, Crew, Shares, ShareSetup

__all__ = ["MlpEngine", "numpy_shape", "share_setup"]

Floats = npt.NDArray[np.float32]
_BETA1, _BETA2, _EPSILON = np.float32(0.9), np.float32(0.999), np.float32(1e-5)
_EVALUATED, _SCORED = 4096, 512  # rows that are evaluated at a time


def numpy_shape(policy: Policy, config: TrainConfig, device: torch.device) -> MlpShape | None:
    """The shape of the network, if this is what learns with it."""
    return policy.mlp_shape() if config.learner != "torch" and device.type == "cpu" else None


def share_setup(policy: Policy, shape: MlpShape, config: TrainConfig, masked: bool) -> ShareSetup:
    """Everything that decides a gradient, as plain data."""
    codec = policy.codec
    return ShareSetup(
        shape=shape,
        heads=codec.heads,
        n_actions=codec.n_actions,
        n_mask=codec.n_mask if masked else 0,
        n_rows=config.rollout_size,
        minibatch=config.minibatch_size,
        n_epochs=config.n_epochs,
        shares=config.shares,
        clip_range=config.clip_range,
        clip_range_vf=config.clip_range_vf,
        ent_coef=config.ent_coef,
        vf_coef=config.vf_coef,
    )


class MlpEngine:
    """Adam on a flat vector, with gradients from shares."""

    def __init__(self, policy: Policy, config: TrainConfig, shares: Shares, crew: Crew | None = None) -> None:
        self.policy = policy
        self.config = config
        self.shares = shares
        self.crew = Alone(shares) if crew is None else crew
        self._mlp = Mlp(shares.setup.shape, shares.arrays["weights"])
        self._mlp.load({name: parameter.detach().cpu().numpy() for name, parameter in policy.named_parameters()})
        for name, parameter in policy.named_parameters():
            parameter.data = torch.from_numpy(self._mlp.parameters()[name])
        size = self._mlp.flat.size
        self._mean, self._square = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._gradient, self._scratch = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._steps = 0
        self._totals = np.zeros(5)
        self._norms = 0.0

    def load(self, rollout: Rollout, estimate: Advantages, advantages: Floats, order: npt.NDArray[np.int64]) -> None:
        """Take in a rollout; ``advantages`` and ``order`` [minibatches, minibatch] are as they will be used."""
        rows = self.config.rollout_size
        leaves = {path: _joined(leaf) for path, leaf in rollout.observations.items()}
        self.policy.features(leaves, self.shares.features)
        self.shares.action_features = leaves.get(ACTION_FEATURES)
        self.shares.fill(
            rollout.actions.reshape(rows, -1),
            rollout.log_probs.reshape(-1),
            rollout.values.reshape(-1),
            estimate.returns.reshape(-1),
        )
        if rollout.masks is not None:
            self.shares.fill_masks(_joined(rollout.masks))
        self.shares.arrays["order"][...] = order
        self.shares.arrays["advantages"][...] = advantages
        self._totals[:], self._norms = 0, 0.0
        self.crew.begin()

    def gradient(self, minibatch: int) -> None:
        """Compute the gradient of a minibatch."""
        self.crew.compute(minibatch)
        self._totals += np.add.reduce(self.shares.arrays["measured"], axis=0)

    def kl(self) -> float:
        """How far the last minibatch says the policy moved."""
        return float(self.shares.arrays["measured"][:, 3].sum()) / self.config.minibatch_size

    def apply(self, learning_rate: float) -> None:
        """Adam, with the gradient scaled down to ``max_grad_norm``."""
        g, scratch = self._gradient, self._scratch
        np.add.reduce(self.shares.arrays["gradients"], axis=0, out=g)
        norm = float(np.sqrt(np.dot(g, g)))
        self._norms += norm
        limit = self.config.max_grad_norm / (norm + 1e-6)
        if limit < 1:
            g *= np.float32(limit)
        self._steps += 1
        self._mean *= _BETA1
        np.multiply(g, np.float32(1 - _BETA1), out=scratch)
        self._mean += scratch
        self._square *= _BETA2
        np.multiply(g, g, out=scratch)
        scratch *= np.float32(1 - _BETA2)
        self._square += scratch
        np.sqrt(self._square, out=scratch)
        scratch *= np.float32(1 / np.sqrt(1 - 0.999**self._steps))
        scratch += _EPSILON
        np.divide(self._mean, scratch, out=scratch)
        scratch *= np.float32(learning_rate / (1 - 0.9**self._steps))
        self._mlp.flat -= scratch

    def finish(self, gradients: int, applied: int) -> dict[str, float]:
        """End the update: the means of what was measured."""
        self.crew.end()
        c, size = self.config, self.config.minibatch_size
        policy_loss, value_loss, entropy_loss, kl, clipped = (self._totals / (size * max(gradients, 1))).tolist()
        return {
            "loss": policy_loss + c.ent_coef * entropy_loss + c.vf_coef * value_loss,
            "policy_gradient_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": entropy_loss,
            "approx_kl": kl,
            "clip_fraction": clipped,
            "grad_norm": self._norms / max(applied, 1),
        }

    def finite(self) -> bool:
        """Whether every weight is a number."""
        return bool(np.isfinite(self._mlp.flat).all())

    def evaluate(self, rollout: Rollout) -> tuple[Floats, Floats]:
        """Log-probabilities and values [T, N] of a rollout's actions under the weights as they are now."""
        features = self.policy.features({path: _joined(leaf) for path, leaf in rollout.observations.items()})
        columns, described = features[FEATURES], features.get(ACTION_FEATURES)
        actions = rollout.actions.reshape(len(columns), -1)
        masks = None if rollout.masks is None else _joined(rollout.masks)
        log_probs, found = np.empty(len(columns), np.float32), np.empty(len(columns), np.float32)
        size = _EVALUATED if described is None else _SCORED
        for start in range(0, len(columns), size):
            part = slice(start, start + size)
            params, values = self._mlp.forward(columns[part])
            heads, taken, legal = self.policy.codec.heads, actions[part], None if masks is None else masks[part]
            if self._mlp.scorer is not None and described is not None:
                scored = self._mlp.scorer.forward(params, legal, described[part])
                heads, params, legal = scored.choices.heads, scored.table, None
                taken = scored.choices.columns_of(taken)
            known = array_distributions.likelihood(heads, params, self._mlp.log_std, taken, legal)
            log_probs[part], found[part] = known.log_probs, values
        return log_probs.reshape(rollout.log_probs.shape), found.reshape(rollout.values.shape)

    # ---- what a checkpoint holds -----------------------------------------------------------------------------

    def copies(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parameters, and Adam's moments as torch's own Adam keeps them, by name; copied, for they will change."""
        places = self._mlp.shape.places()

        def views(flat: Floats) -> dict[str, Tensor]:
            copy = torch.from_numpy(flat.copy())
            return {name: copy[place].view(shape) for name, (place, shape) in places.items()}

        weights = views(self._mlp.flat)
        if not self._steps:
            return weights, {}
        moments = {"exp_avg": views(self._mean), "exp_avg_sq": views(self._square)}
        state = {f"{key}.{name}": tensor for key, tensors in moments.items() for name, tensor in tensors.items()}
        return weights, {**state, **{f"step.{name}": torch.tensor(float(self._steps)) for name in places}}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from moments that ``copies`` gave."""
        self._steps = 0
        for name, (place, _) in self._mlp.shape.places().items():
            if f"step.{name}" in state:
                self._mean[place] = state[f"exp_avg.{name}"].numpy().ravel()
                self._square[place] = state[f"exp_avg_sq.{name}"].numpy().ravel()
                self._steps = int(state[f"step.{name}"].item())


def _joined(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return column.reshape(-1, *column.shape[2:])
