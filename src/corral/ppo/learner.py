"""The learner: turns a rollout into gradient steps. All randomness comes in as (seed, iteration)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from corral.core.config import TrainConfig
from corral.core.errors import CorralError
from corral.core.seeding import minibatch_generator, network_seed
from corral.core.types import Rollout
from corral.policy.policy import Policy
from corral.ppo import losses
from corral.ppo.gae import Advantages

__all__ = ["Learner", "LearnerDiverged", "UpdateStats"]

_ADAM_EPSILON = 1e-5  # Stable-Baselines3's, and the original implementation's
_STATE_NAMES = ("exp_avg", "exp_avg_sq", "step")
_MEASURED = ("loss", "policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction", "grad_norm")


class LearnerDiverged(CorralError):
    """The loss is no longer a number: nothing learned after this would mean anything."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one update did: means over its minibatches."""

    loss: float
    policy_gradient_loss: float
    value_loss: float
    entropy_loss: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    explained_variance: float


@dataclass(frozen=True, slots=True)
class _Batch:
    """A rollout with time and envs joined, [T * N, ...], as tensors on the learner's device."""

    inputs: dict[str, Tensor]
    actions: Tensor
    masks: Tensor | None
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def take(self, rows: Tensor) -> _Batch:
        """A minibatch."""
        return _Batch(
            {name: column[rows] for name, column in self.inputs.items()},
            self.actions[rows],
            None if self.masks is None else self.masks[rows],
            self.log_probs[rows],
            self.values[rows],
            self.advantages[rows],
            self.returns[rows],
        )


class Learner:
    """A policy, its optimiser, and PPO's update."""

    def __init__(self, policy: Policy, config: TrainConfig, seed: int, device: torch.device) -> None:
        self.policy = policy.to(device).eval()  # dropout and the like are for gradient steps alone
        self.config = config
        self.seed = seed
        self.device = device
        self.optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=config.learning_rate, eps=_ADAM_EPSILON, fused=device.type in ("cpu", "cuda")
        )
        self.n_updates = 0

    def update(self, rollout: Rollout, estimate: Advantages, iteration: int, learning_rate: float) -> UpdateStats:
        """``n_epochs`` passes over the rollout in shuffled minibatches."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        batch = self._to_batch(rollout, estimate)
        totals = torch.zeros(len(_MEASURED), device=self.device)
        done = 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(network_seed(self.seed, iteration + 1))  # for networks that draw numbers, such as dropout
            self.policy.train()
            for rows in self._minibatches(len(batch.returns), iteration):
                measured, go_on = self._gradient_step(batch.take(rows))
                totals += measured
                done += 1
                if not go_on:
                    break
            self.policy.eval()
        self.n_updates += done
        means = (totals / max(done, 1)).tolist()  # the one moment of an update that waits for the device
        finite = all(bool(torch.isfinite(parameter).all()) for parameter in self.policy.parameters())
        if not finite or not np.isfinite(means).all():
            raise LearnerDiverged(
                f"loss or weights are not finite in iteration {iteration} (learning_rate {learning_rate:g}); the last "
                "checkpoint is intact. Try a smaller --learning-rate, --normalize-obs or --normalize-reward."
            )
        stats = dict(zip(_MEASURED, means, strict=True))
        return UpdateStats(**stats, explained_variance=_explained_variance(rollout.values, estimate.returns))

    def _gradient_step(self, batch: _Batch) -> tuple[Tensor, bool]:
        """One minibatch: its measurements, and whether the update should go on."""
        c = self.config
        now = self.policy.evaluate(batch.inputs, batch.actions, batch.masks)
        log_ratio = now.log_probs - batch.log_probs
        advantages = losses.normalized(batch.advantages) if c.normalize_advantage else batch.advantages
        policy_loss = losses.policy_loss(log_ratio, advantages, c.clip_range)
        value_loss = losses.value_loss(now.values, batch.values, batch.returns, c.clip_range_vf)
        entropy_loss = -now.entropy.mean()
        loss = policy_loss + c.ent_coef * entropy_loss + c.vf_coef * value_loss
        with torch.no_grad():
            kl = losses.approximate_kl(log_ratio)
            clipped = losses.clip_fraction(log_ratio, c.clip_range)
        too_far = c.target_kl is not None and kl.item() > 1.5 * c.target_kl
        norm = torch.zeros((), device=self.device)
        if not too_far:
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), c.max_grad_norm)
            self.optimizer.step()
        # in the order of _MEASURED
        measured = torch.stack([x.detach() for x in (loss, policy_loss, value_loss, entropy_loss, kl, clipped, norm)])
        return measured, not too_far

    def _minibatches(self, size: int, iteration: int) -> Iterator[Tensor]:
        generator = minibatch_generator(self.seed, iteration)
        for _ in range(self.config.n_epochs):
            order = torch.from_numpy(generator.permutation(size)).to(self.device)
            yield from torch.split(order, self.config.minibatch_size)

    def _to_batch(self, rollout: Rollout, estimate: Advantages) -> _Batch:
        def joined(column: npt.NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(column.reshape(-1, *column.shape[2:])).to(self.device)

        with torch.no_grad():
            inputs = self.policy.prepare({path: joined(column) for path, column in rollout.observations.items()})
        return _Batch(
            inputs,
            joined(rollout.actions),
            None if rollout.masks is None else joined(rollout.masks),
            joined(rollout.log_probs),
            joined(rollout.values),
            joined(estimate.advantages),
            joined(estimate.returns),
        )

    # ---- what a checkpoint holds -----------------------------------------------------------------------------

    def optimizer_state(self) -> dict[str, Tensor]:
        """Adam's moments by parameter name."""
        state = {}
        for name, parameter in self.policy.named_parameters():
            for key in _STATE_NAMES:
                if key in self.optimizer.state[parameter]:
                    state[f"{key}.{name}"] = self.optimizer.state[parameter][key]
        return state

    def restore_optimizer(self, state: Mapping[str, Tensor]) -> None:
        """Go on from moments that ``optimizer_state`` gave."""
        for name, parameter in self.policy.named_parameters():
            found = {key: state[f"{key}.{name}"] for key in _STATE_NAMES if f"{key}.{name}" in state}
            if found:
                on_device = {key: value.clone().to(self.device) for key, value in found.items()}
                self.optimizer.state[parameter] = on_device
            else:
                self.optimizer.state.pop(parameter, None)


def _explained_variance(values: npt.NDArray[np.float32], returns: npt.NDArray[np.float32]) -> float:
    variance = float(np.var(returns))
    return float("nan") if variance == 0 else 1 - float(np.var(returns - values)) / variance
