"""The learner: turns a rollout into gradient steps. All randomness comes in as (seed, iteration).

What a gradient step is made of differs: ``engine_torch`` takes any network and device, ``mlp_engine`` the built-in
network on the CPU, much faster. The update is the same for both.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from corral.config.schema import TrainConfig
from corral.core.errors import CorralError, UsageError
from corral.core.seeding import minibatch_generator, network_seed
from corral.core.suggestions import short_repr
from corral.core.types import Rollout, Weights
from corral.policy.policy import Policy
from corral.ppo.gae import Advantages
from corral.ppo.loss_terms import NO_EXTRA_TERMS, LossTerms

__all__ = ["Engine", "Learner", "LearnerDiverged", "UpdateSettings", "UpdateStats", "check_adjustable"]

Floats = npt.NDArray[np.float32]


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
    kl_ref: float | None = None
    """How far the policy is from its reference, if that was asked."""


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """What one update learns with, besides the config."""

    iteration: int
    """Its number in the run, which decides how rows are shuffled."""
    learning_rate: float
    terms: LossTerms = NO_EXTRA_TERMS


_ADJUSTABLE = {"learning_rate": (0.0, "at least"), "clip_range": (0.0, "more than"), "ent_coef": (0.0, "at least")}


def check_adjustable(name: str, value: Any) -> None:
    """Refuse a setting that cannot change between two updates, and a value that it cannot have."""
    if name not in _ADJUSTABLE:
        raise UsageError(f"{short_repr(name)} cannot change during a run; {', '.join(_ADJUSTABLE)} can")
    least, words = _ADJUSTABLE[name]
    number = math.nan
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # a whole number that no float can hold
            number = float(value)
    if not least <= number < math.inf or (number == least and words == "more than"):
        raise UsageError(f"{name} {short_repr(value)}: should be a number of {words} {least:g}")


class Engine(Protocol):
    """Computes gradients and applies them."""

    @property
    def n_shares(self) -> int | None:
        """Parts of a minibatch that are computed side by side, where there are any; part of the result."""
        ...

    def load(
        self,
        rollout: Rollout,
        estimate: Advantages,
        advantages: Floats,
        order: npt.NDArray[np.int64],
        terms: LossTerms = NO_EXTRA_TERMS,
    ) -> None:
        """Take in a rollout; ``advantages`` and ``order`` [minibatches, minibatch] are as they will be used."""
        ...

    def set_reference(self, policy: Policy) -> None:
        """Compare with this policy, where an update asks for it."""
        ...

    def gradient(self, minibatch: int) -> None:
        """Compute the gradient of a minibatch."""
        ...

    def kl(self) -> float:
        """How far the last minibatch says the policy moved."""
        ...

    def apply(self, learning_rate: float) -> None:
        """Take a step along the gradient."""
        ...

    def finish(self, gradients: int, applied: int) -> dict[str, float]:
        """End the update: the means of what was measured."""
        ...

    def finite(self) -> bool:
        """Whether every weight is a number."""
        ...

    def evaluate(self, rollout: Rollout, every: int = 1) -> tuple[Floats, Floats]:
        """Log-probabilities and values [T, N] of actions under the weights as they are now; of every so many steps."""
        ...

    def copies(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parameters, and the optimiser's moments, by name; copied, for they will change."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from moments that ``copies`` gave."""
        ...


class Learner:
    """A policy, its optimiser, and PPO's update."""

    def __init__(self, policy: Policy, config: TrainConfig, seed: int, device: torch.device, engine: Engine) -> None:
        self.policy = policy.eval()  # dropout and the like are for gradient steps alone
        self.config = config
        self.seed = seed
        self.device = device
        self.engine = engine
        self.n_updates = 0
        self.reference: Mapping[str, Tensor] | None = None
        """The weights of the policy that ``kl_ref_coef`` stays near."""

    def set_reference(self, weights: Weights) -> None:
        """Stay near the policy with these weights (and statistics of observations), which are copied."""
        policy = copy.deepcopy(self.policy).requires_grad_(False)
        try:
            policy.load_state_dict({name: torch.as_tensor(weight) for name, weight in weights.items()})
        except RuntimeError as error:
            raise UsageError(f"the reference does not fit this run's policy: {error}") from None
        self.reference = policy.state_dict()
        self.engine.set_reference(policy)

    def update(self, rollout: Rollout, estimate: Advantages, settings: UpdateSettings) -> UpdateStats:
        """Make ``n_epochs`` passes over the rollout in shuffled minibatches."""
        iteration, learning_rate, terms = settings.iteration, settings.learning_rate, settings.terms
        if terms.kl_ref and self.reference is None:
            raise UsageError(f"kl_ref_coef {terms.kl_ref:g} needs a reference policy; give one with set_reference")
        order = self._order(iteration)  # [minibatches, minibatch]
        advantages = estimate.advantages.reshape(-1)[order]
        if self.config.normalize_advantage and order.shape[1] > 1:  # a single one has no deviation
            advantages = _normalized(advantages)
        gradients = applied = 0
        with torch.random.fork_rng(devices=[]), np.errstate(all="ignore"):  # what is not finite is found below
            torch.manual_seed(network_seed(self.seed, iteration + 1))  # for networks that draw numbers, such as dropout
            self.engine.load(rollout, estimate, advantages, order, terms)
            for minibatch in range(len(order)):
                self.engine.gradient(minibatch)
                gradients += 1
                if self.config.target_kl is not None and self.engine.kl() > 1.5 * self.config.target_kl:
                    break
                self.engine.apply(learning_rate)
                applied += 1
            measured = self.engine.finish(gradients, applied)
        self.n_updates += applied
        if not self.engine.finite() or not np.isfinite(list(measured.values())).all():
            raise LearnerDiverged(
                f"loss or weights are not finite in iteration {iteration} (learning_rate {learning_rate:g}); the last "
                "checkpoint is intact. Try a smaller --learning-rate, --normalize-obs or --normalize-reward."
            )
        return UpdateStats(**measured, explained_variance=_explained_variance(rollout.values, estimate.returns))

    def _order(self, iteration: int) -> npt.NDArray[np.int64]:
        generator, c = minibatch_generator(self.seed, iteration), self.config
        length = c.sequence_length or 1  # a policy with a memory learns from whole sequences, row after row
        epochs = [generator.permutation(c.rollout_size // length) for _ in range(c.n_epochs)]
        first, env = np.divmod(np.concatenate(epochs), c.n_envs)
        rows = (first * length * c.n_envs + env)[:, None] + np.arange(length) * c.n_envs  # [sequences, length]
        return rows.reshape(-1, c.minibatch_size)


def _normalized(advantages: Floats) -> Floats:
    """Mean 0 and deviation 1 in every minibatch, [minibatches, minibatch]."""
    mean, deviation = advantages.mean(axis=1, keepdims=True), advantages.std(axis=1, ddof=1, keepdims=True)
    normalized: Floats = (advantages - mean) / (deviation + np.float32(1e-8))
    return normalized


def _explained_variance(values: Floats, returns: Floats) -> float:
    variance = float(np.var(returns))
    return float("nan") if variance == 0 else 1 - float(np.var(returns - values)) / variance
