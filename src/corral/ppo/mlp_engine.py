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

from corral.config.schema import TrainConfig
from corral.core.actions import ACTION_FEATURES
from corral.core.frame_stacks import ObservationView
from corral.core.types import Leaves, Rollout
from corral.policy import array_distributions
from corral.policy.mlp import Mlp, MlpShape
from corral.policy.policy import FEATURES, Policy
from corral.ppo.adam import Adam
from corral.ppo.loss_terms import NO_EXTRA_TERMS, LossTerms
from corral.ppo.moments import check_moments
from corral.ppo.shares import MEASURED, Alone, Crew, Shares, ShareSetup

__all__ = ["MlpEngine", "numpy_shape", "share_setup"]

Floats = npt.NDArray[np.float32]
_EVALUATED, _SCORED = 4096, 512  # rows that are evaluated at a time, and rows of actions that are scored


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
        n_reference=codec.n_params if config.kl_ref_coef else 0,
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
        self._gradient = np.zeros(self._mlp.flat.size, np.float32)
        self._adam = Adam(self._mlp.shape)
        self._terms = NO_EXTRA_TERMS
        self._reference: tuple[Policy, Mlp] | None = None
        self._totals = np.zeros(len(MEASURED))
        self._norms = 0.0

    @property
    def n_shards(self) -> int | None:
        """Parts of a minibatch."""
        return self.shares.setup.shares

    def load(
        self,
        rollout: Rollout,
        returns: Floats,
        minibatch_advantages: Floats,
        minibatch_rows: npt.NDArray[np.int64],
        terms: LossTerms = NO_EXTRA_TERMS,
    ) -> None:
        """Take in a rollout; advantages and rows [minibatches, minibatch_size] are as they will be used."""
        rows = self.config.rollout_size
        leaves = ObservationView(rollout).all()
        self.policy.features(leaves, self.shares.features)
        self.shares.action_features = leaves.get(ACTION_FEATURES)
        self.shares.fill(
            rollout.actions.reshape(rows, -1),
            rollout.log_probs.reshape(-1),
            rollout.values.reshape(-1),
            returns.reshape(-1),
        )
        masks = None if rollout.masks is None else _joined(rollout.masks)
        if masks is not None:
            self.shares.fill_masks(masks)
        if terms.kl_ref_coef:
            self._write_reference(leaves, masks)
        self._terms = terms
        self.shares.set_terms(terms)
        self.shares.arrays["order"][...] = minibatch_rows
        self.shares.arrays["advantages"][...] = minibatch_advantages
        self._totals[:], self._norms = 0, 0.0
        self.crew.begin()

    def compute_gradient(self, minibatch: int) -> None:
        """Compute the gradient of a minibatch."""
        self.crew.compute(minibatch)
        self._totals += np.add.reduce(self.shares.arrays["measured"], axis=0)

    def kl(self) -> float:
        """How far the last minibatch says the policy moved."""
        return float(self.shares.arrays["measured"][:, 3].sum()) / self.config.minibatch_size

    def apply(self, learning_rate: float) -> None:
        """Adam, with the gradient scaled down to ``max_grad_norm``."""
        g = self._gradient
        np.add.reduce(self.shares.arrays["gradients"], axis=0, out=g)
        norm = float(np.sqrt(np.dot(g, g)))
        self._norms += norm
        limit = self.config.max_grad_norm / (norm + 1e-6)
        if limit < 1:
            g *= np.float32(limit)
        self._adam.step(self._mlp.flat, g, learning_rate, self._terms.freeze_policy)

    def finish(self, n_computed: int, n_applied: int) -> dict[str, float]:
        """End the update: the means of what was measured."""
        self.crew.end()
        c, size = self.config, self.config.minibatch_size
        means = self._totals / (size * max(n_computed, 1))
        policy_loss, value_loss, entropy_loss, kl, clipped, kl_ref = means.tolist()
        ent_coef = c.ent_coef if self._terms.ent_coef is None else self._terms.ent_coef
        of_policy = policy_loss + ent_coef * entropy_loss + self._terms.kl_ref_coef * kl_ref
        return {
            "loss": c.vf_coef * value_loss + (0.0 if self._terms.freeze_policy else of_policy),
            "policy_gradient_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": entropy_loss,
            "approx_kl": kl,
            "clip_fraction": clipped,
            "grad_norm": self._norms / max(n_applied, 1),
            **({"kl_ref": kl_ref} if self._terms.kl_ref_coef else {}),
        }

    def weights_are_finite(self) -> bool:
        """Whether every weight is a number."""
        return bool(np.isfinite(self._mlp.flat).all())

    def log_probs_and_values(self, rollout: Rollout, every: int = 1) -> tuple[Floats, Floats]:
        """Log-probabilities and values [T, N] of actions under the weights as they are now; of every so many steps."""
        features = self.policy.features(ObservationView(rollout)[rollout.rows_of_steps(every)])
        described, actions = features.get(ACTION_FEATURES), _joined(rollout.actions[::every])
        masks = None if rollout.masks is None else _joined(rollout.masks[::every])
        log_probs, found = np.empty(len(actions), np.float32), np.empty(len(actions), np.float32)
        for part in _parts(len(actions), self._mlp):
            params, values = self._mlp.forward(features[FEATURES][part])
            heads, taken, legal = self.policy.codec.heads, actions[part], None if masks is None else masks[part]
            if self._mlp.scorer is not None and described is not None:
                scored = self._mlp.scorer.forward(params, legal, described[part])
                heads, params, legal = scored.choices.heads, scored.table, None
                taken = scored.choices.columns_of(taken)
            known = array_distributions.likelihood(heads, params, self._mlp.log_std, taken, legal)
            log_probs[part], found[part] = known.log_probs, values
        return log_probs.reshape(-1, rollout.n_envs), found.reshape(-1, rollout.n_envs)

    # ---- a reference to stay near ----------------------------------------------------------------------------

    def set_reference(self, policy: Policy) -> None:
        """Compare with this policy, which does not change."""
        mlp = Mlp(self._mlp.shape)
        mlp.load({name: parameter.detach().cpu().numpy() for name, parameter in policy.named_parameters()})
        self._reference = policy, mlp

    def _write_reference(self, leaves: Leaves, masks: npt.NDArray[np.bool_] | None) -> None:
        """What the reference would do in every row of the batch."""
        assert self._reference is not None
        policy, mlp = self._reference
        features, out = policy.features(leaves), self.shares.reference
        for part in _parts(len(out), mlp):
            params = mlp.params(features[FEATURES][part])
            if mlp.scorer is not None:
                legal = None if masks is None else masks[part]
                scored = mlp.scorer.forward(params, legal, features[ACTION_FEATURES][part])
                params = scored.choices.wide(scored.table)
            out[part] = params
        self.shares.arrays["reference_log_std"][...] = mlp.log_std

    # ---- what a checkpoint holds -----------------------------------------------------------------------------

    def checkpoint_tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parameters, and Adam's moments as torch's own Adam keeps them, by name; copied, for they will change."""
        copy = torch.from_numpy(self._mlp.flat.copy())
        weights = {name: copy[place].view(shape) for name, (place, shape) in self._mlp.shape.places().items()}
        return weights, {name: torch.as_tensor(array) for name, array in self._adam.state().items()}

    def restore_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Go on from moments that ``checkpoint_tensors`` gave."""
        check_moments(moments, self.policy.named_parameters())
        self._adam.restore({name: tensor.numpy() for name, tensor in moments.items()})


def _parts(rows: int, mlp: Mlp) -> list[slice]:
    size = _EVALUATED if mlp.scorer is None else _SCORED
    return [slice(start, start + size) for start in range(0, rows, size)]


def _joined(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return column.reshape(-1, *column.shape[2:])
