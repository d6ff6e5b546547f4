"""The learner: PPO's update of a policy from one rollout (Schulman et al. 2017, arXiv:1707.06347).

The update is the same for every engine. An engine computes and applies the gradient of one minibatch: ``engine_torch``
for any network on any device, ``mlp_engine`` for the built-in MLP on the CPU, which is much faster. All randomness
follows from (seed, iteration), so an update can be repeated exactly.

Shapes: T steps in N envs are T * N rows; a row is one step of one env, numbered t * N + env.
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
    """The loss or the weights are not finite, so that no further update can be of use."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Statistics of one update: means over its minibatches."""

    loss: float
    """What was minimised: the sum of the terms below, with their coefficients."""
    policy_gradient_loss: float
    value_loss: float
    entropy_loss: float
    """The negative entropy of the policy."""
    approx_kl: float
    """Estimate of KL(old || new): how far the policy moved from the one that collected the rollout."""
    clip_fraction: float
    """Fraction of rows whose probability ratio left the clip range."""
    grad_norm: float
    """Norm of the gradient before it is clipped."""
    explained_variance: float
    """Share of the variance of the returns that the rollout's values predicted: 1 is perfect, 0 or less is useless."""
    kl_ref: float | None = None
    """KL(reference || policy); None if the loss has no such term."""


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """Settings of one update that may differ from those of the update before."""

    iteration: int
    """Number of the iteration in the run; it determines how rows are shuffled."""
    learning_rate: float
    terms: LossTerms = NO_EXTRA_TERMS


_ADJUSTABLE = {"learning_rate": "at least", "clip_range": "more than", "ent_coef": "at least"}
"""Settings that a hook may change between updates, and how their values compare with 0."""


def check_adjustable(name: str, value: Any) -> None:
    """Raise UsageError if a setting cannot change between two updates, or cannot have this value."""
    if name not in _ADJUSTABLE:
        raise UsageError(f"{short_repr(name)} cannot change during a run; {', '.join(_ADJUSTABLE)} can")
    number = math.nan
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer that no float can hold
            number = float(value)
    comparison = _ADJUSTABLE[name]
    if not 0 <= number < math.inf or (number == 0 and comparison == "more than"):
        raise UsageError(f"{name} {short_repr(value)}: should be a number of {comparison} 0")


class Engine(Protocol):
    """Computes gradients of minibatches and applies them to the policy's weights.

    An update is one ``load``, then for each minibatch ``gradient`` and ``apply``, then one ``finish``.
    """

    @property
    def n_shards(self) -> int | None:
        """Number of shards that a minibatch is split into; None if the engine does not split.

        A gradient is the sum of its shards' gradients, in order, so their number affects the last bits of a result.
        """
        ...

    def load(
        self,
        rollout: Rollout,
        estimate: Advantages,
        advantages: Floats,
        order: npt.NDArray[np.int64],
        terms: LossTerms = NO_EXTRA_TERMS,
    ) -> None:
        """Begin an update with a rollout.

        ``order`` [minibatches, batch_size] are the rows of each minibatch. ``advantages`` [minibatches, batch_size]
        are the advantages of those rows, normalised if the config says so; ``estimate`` has the returns.
        """
        ...

    def set_reference(self, policy: Policy) -> None:
        """Set the fixed policy of the KL term (see ``LossTerms.kl_ref``)."""
        ...

    def gradient(self, minibatch: int) -> None:
        """Compute the gradient of a minibatch."""
        ...

    def kl(self) -> float:
        """Return the approximate KL(old || new) on the last minibatch."""
        ...

    def apply(self, learning_rate: float) -> None:
        """Clip the last gradient to ``max_grad_norm`` and take a step of Adam."""
        ...

    def finish(self, gradients: int, applied: int) -> dict[str, float]:
        """End the update: return means over the gradients that were computed and applied, by field of UpdateStats."""
        ...

    def weights_are_finite(self) -> bool:
        """Return whether every weight is finite."""
        ...

    def evaluate(self, rollout: Rollout, every: int = 1) -> tuple[Floats, Floats]:
        """Return log-probabilities and values [T / every, N] of a rollout's actions under the current weights.

        Of the rollout's steps, it takes the first of every ``every``.
        """
        ...

    def checkpoint_tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return copies of the weights and of Adam's moments, by name, for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Set Adam's moments to those of a checkpoint."""
        ...


class Learner:
    """A policy and PPO's update of it."""

    def __init__(self, policy: Policy, config: TrainConfig, seed: int, device: torch.device, engine: Engine) -> None:
        self.policy = policy.eval()  # dropout and the like are active in gradient steps only
        self.config = config
        self.seed = seed
        self.device = device
        self.engine = engine
        self.n_updates = 0
        """Gradient steps since the run began."""
        self.reference: Mapping[str, Tensor] | None = None
        """The weights of the policy that ``kl_ref_coef`` keeps the policy near."""

    def set_reference(self, weights: Weights) -> None:
        """Keep the policy near one with these weights (and statistics of observations), which are copied."""
        policy = copy.deepcopy(self.policy).requires_grad_(False)
        try:
            policy.load_state_dict({name: torch.as_tensor(weight) for name, weight in weights.items()})
        except RuntimeError as error:
            raise UsageError(f"the reference does not fit this run's policy: {error}") from None
        self.reference = policy.state_dict()
        self.engine.set_reference(policy)

    def update(self, rollout: Rollout, estimate: Advantages, settings: UpdateSettings) -> UpdateStats:
        """Make ``n_epochs`` passes over a rollout in shuffled minibatches, with a gradient step on each."""
        terms = settings.terms
        if terms.kl_ref and self.reference is None:
            raise UsageError(f"kl_ref_coef {terms.kl_ref:g} needs a reference policy; give one with set_reference")
        order = self._shuffle(settings.iteration)  # [minibatches, batch_size] of rows
        advantages = estimate.advantages.reshape(-1)[order]  # [minibatches, batch_size]
        if self.config.normalize_advantage and order.shape[1] > 1:  # one row alone has no standard deviation
            advantages = _normalize(advantages)
        with torch.random.fork_rng(devices=[]), np.errstate(all="ignore"):  # _check_finite looks for overflows
            torch.manual_seed(network_seed(self.seed, settings.iteration + 1))  # for dropout and the like
            self.engine.load(rollout, estimate, advantages, order, terms)
            means = self._take_gradient_steps(len(order), settings.learning_rate)
        self._check_finite(means, settings)
        return UpdateStats(**means, explained_variance=_explained_variance(rollout.values, estimate.returns))

    def _shuffle(self, iteration: int) -> npt.NDArray[np.int64]:
        """Return the rows of each minibatch of all epochs, [minibatches, batch_size].

        Every epoch is a new permutation of the rollout. A recurrent policy learns from whole sequences: the rollout is
        cut into pieces of ``sequence_length`` steps of one env, pieces are shuffled, and the rows of a piece stay
        together, in order.
        """
        c = self.config
        length = c.sequence_length or 1
        generator = minibatch_generator(self.seed, iteration)
        permutations = [generator.permutation(c.rollout_size // length) for _ in range(c.n_epochs)]
        piece, env = np.divmod(np.concatenate(permutations), c.n_envs)  # each [epochs * T * N / length]
        first_rows = piece * length * c.n_envs + env
        rows = first_rows[:, None] + np.arange(length) * c.n_envs  # [epochs * T * N / length, length]
        return rows.reshape(-1, c.minibatch_size)

    def _take_gradient_steps(self, n_minibatches: int, learning_rate: float) -> dict[str, float]:
        """Take a gradient step on each minibatch and return the means of the engine's statistics.

        With ``target_kl``, stop before the first step whose minibatch shows that the policy has moved 1.5 times as far,
        as Stable-Baselines3 does.
        """
        computed = applied = 0
        for minibatch in range(n_minibatches):
            self.engine.gradient(minibatch)
            computed += 1
            if self.config.target_kl is not None and self.engine.kl() > 1.5 * self.config.target_kl:
                break
            self.engine.apply(learning_rate)
            applied += 1
        means = self.engine.finish(computed, applied)
        self.n_updates += applied
        return means

    def _check_finite(self, means: Mapping[str, float], settings: UpdateSettings) -> None:
        """Raise LearnerDiverged if a weight or a statistic is infinite or NaN."""
        if not self.engine.weights_are_finite() or not np.isfinite(list(means.values())).all():
            raise LearnerDiverged(
                f"loss or weights are not finite in iteration {settings.iteration} (learning_rate "
                f"{settings.learning_rate:g}); the last checkpoint is intact. Try a smaller --learning-rate, "
                "--normalize-obs or --normalize-reward."
            )


def _normalize(advantages: Floats) -> Floats:
    """Return advantages [minibatches, batch_size] with mean 0 and standard deviation 1 in every minibatch.

    Normalisation by minibatch rather than by rollout is one of "The 37 Implementation Details of Proximal Policy
    Optimization" (Huang et al. 2022).
    """
    mean, deviation = advantages.mean(axis=1, keepdims=True), advantages.std(axis=1, ddof=1, keepdims=True)
    normalized: Floats = (advantages - mean) / (deviation + np.float32(1e-8))
    return normalized


def _explained_variance(values: Floats, returns: Floats) -> float:
    """Return 1 - Var(returns - values) / Var(returns), both [T, N]; NaN if all returns are equal."""
    variance = float(np.var(returns))
    return float("nan") if variance == 0 else 1 - float(np.var(returns - values)) / variance
