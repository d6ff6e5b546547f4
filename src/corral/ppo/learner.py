"""The learner: PPO's update of a policy from one rollout (Schulman et al. 2017, arXiv:1707.06347).

The learner chooses the minibatches; an engine computes their gradients and changes the weights. ``ppo/engine_torch``
uses autograd, for any network on any device. ``ppo/mlp_engine`` is for the built-in MLP on the CPU, where it is three
times as fast. All randomness follows from (seed, iteration), so an update can be repeated exactly.

Shapes: a rollout has T * N rows. A row is one transition; that of step ``t`` of env ``n`` is row ``t * N + n``.
``minibatches`` is the number of minibatches in an update, all epochs together.
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
    """The weights or the statistics of an update are not finite, so that no further update can help."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Statistics of one update: means over the minibatches whose gradients were computed, unless stated otherwise."""

    loss: float
    """What was minimised: policy_gradient_loss + ent_coef * entropy_loss + vf_coef * value_loss, plus
    kl_ref_coef * kl_ref if there is a reference policy. In updates of the value function alone
    (``LossTerms.freeze_policy``), it is vf_coef * value_loss."""
    policy_gradient_loss: float
    value_loss: float
    entropy_loss: float
    """The negative entropy of the policy."""
    approx_kl: float
    """Estimate of KL(old || new): how far the policy moved from the one that collected the rollout."""
    clip_fraction: float
    """Fraction of rows whose probability ratio left the clip range."""
    grad_norm: float
    """Norm of the gradient before it is clipped; the mean over the minibatches whose gradients were applied."""
    explained_variance: float
    """Share of the variance of the returns that the rollout's values predicted: 1 is perfect, 0 or less is useless."""
    kl_ref: float | None = None
    """KL(reference || policy), the distance from a reference policy; None if the loss has no such term."""


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """Settings of one update that may differ from those of the update before."""

    iteration: int
    """Number of the iteration in the run; it seeds the order of rows, and dropout and the like."""
    learning_rate: float
    terms: LossTerms = NO_EXTRA_TERMS
    """Changes to the loss that the config defines: a term for the KL divergence from a reference policy, the loss of
    the value function only, and ``clip_range`` and ``ent_coef`` if a hook changed them."""


_ADJUSTABLE = ("learning_rate", "clip_range", "ent_coef")
"""Settings that a hook may change between updates."""
_MAY_BE_ZERO = ("learning_rate", "ent_coef")


def check_adjustable(name: str, value: Any) -> None:
    """Raise UsageError if a hook cannot change a setting between two updates, or cannot give it this value."""
    if name not in _ADJUSTABLE:
        raise UsageError(f"{short_repr(name)} cannot change during a run; {', '.join(_ADJUSTABLE)} can")
    number = _to_float(value)
    is_valid = 0 < number < math.inf or (number == 0 and name in _MAY_BE_ZERO)  # False for NaN
    if not is_valid:
        limit = "at least 0" if name in _MAY_BE_ZERO else "more than 0"
        raise UsageError(f"{name} {short_repr(value)}: should be a finite number, {limit}")


def _to_float(value: Any) -> float:
    """Return a number as a float, and NaN for any other value."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer that no float can hold
            return float(value)
    return math.nan


class Engine(Protocol):
    """The part of the learner that computes gradients of minibatches and applies them to the policy's weights.

    An update is one ``load``, then for each minibatch ``compute_gradient`` and ``apply``, then one ``finish``. The
    setting ``target_kl`` may skip the last minibatches, after a ``compute_gradient`` that has no ``apply``.
    """

    @property
    def n_shards(self) -> int | None:
        """How many shards a minibatch is split into, to compute their gradients in parallel; None if it is not split.

        The shards' gradients are added in order, so their number affects the last bits of a result. A run stores it,
        and so gets the same result on a machine with another number of cores.
        """
        ...

    def load(
        self,
        rollout: Rollout,
        returns: Floats,  # [T, N]
        minibatch_advantages: Floats,  # [minibatches, minibatch_size]
        minibatch_rows: npt.NDArray[np.int64],  # [minibatches, minibatch_size]
        terms: LossTerms = NO_EXTRA_TERMS,
    ) -> None:
        """Begin an update with a rollout.

        ``minibatch_rows`` has the row numbers of each minibatch, ``minibatch_advantages`` the advantages of these rows,
        already normalised if the config says so.
        """
        ...

    def set_reference(self, policy: Policy) -> None:
        """Set the fixed policy of the KL term (see ``LossTerms.kl_ref_coef``)."""
        ...

    def compute_gradient(self, minibatch: int) -> None:
        """Compute the gradient of a minibatch, which ``apply`` uses, and its statistics, one of which is ``kl``."""
        ...

    def kl(self) -> float:
        """Return the approximate KL(old || new) on the minibatch whose gradient was computed last."""
        ...

    def apply(self, learning_rate: float) -> None:
        """Clip the last gradient to ``max_grad_norm`` and take a step of Adam."""
        ...

    def finish(self, n_computed: int, n_applied: int) -> dict[str, float]:
        """End the update, and return its statistics: the fields of ``UpdateStats`` except ``explained_variance``.

        ``kl_ref`` is left out if the loss has no such term. ``grad_norm`` is the mean over the ``n_applied`` gradients
        (0 if there are none), all others are means over the ``n_computed`` ones.
        """
        ...

    def weights_are_finite(self) -> bool:
        """Return whether every weight is finite."""
        ...

    def log_probs_and_values(self, rollout: Rollout, every: int = 1) -> tuple[Floats, Floats]:
        """Return the log-probabilities of a rollout's actions and the values of its observations, with current weights.

        Both have the shape [ceil(T / every), N]: only the steps 0, ``every``, 2 * ``every``, ... are evaluated. With
        the setting ``overlap``, rollouts come from older weights, and the caller compares their log-probabilities with
        these.
        """
        ...

    def checkpoint_tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return copies of the weights and of Adam's state (moments and step count), by name, for a checkpoint."""
        ...

    def restore_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Set Adam's state to that of a checkpoint, whose weights are restored by ``policy.load_state_dict``."""
        ...


class Learner:
    """A policy and PPO's update of it."""

    def __init__(self, policy: Policy, config: TrainConfig, seed: int, device: torch.device, engine: Engine) -> None:
        self.policy = policy.eval()  # dropout and the like are off; the engine turns them on for gradient steps
        self.config = config
        self.seed = seed
        self.device = device
        self.engine = engine
        self.n_gradient_steps = 0
        """Gradient steps since the run began, restored by a resume. The metric ``train/n_updates`` is this number; in
        Stable-Baselines3, the metric of that name counts epochs."""
        self.reference: Mapping[str, Tensor] | None = None
        """Weights of the reference policy, near which the KL term of the loss keeps the policy."""

    def set_reference(self, weights: Weights) -> None:
        """Set the reference policy of the KL term to a copy with these weights.

        They are a ``state_dict``, with the mean and the standard deviation with which observations are normalized.
        """
        policy = copy.deepcopy(self.policy).requires_grad_(False)
        try:
            policy.load_state_dict({name: torch.as_tensor(weight) for name, weight in weights.items()})
        except RuntimeError as error:
            raise UsageError(f"the reference does not fit this run's policy: {error}") from None
        self.reference = policy.state_dict()
        self.engine.set_reference(policy)

    def update(self, rollout: Rollout, advantages: Advantages, settings: UpdateSettings) -> UpdateStats:
        """Make ``n_epochs`` passes over a rollout in shuffled minibatches, with a gradient step on each.

        ``advantages`` are the estimated advantages and returns [T, N] of the rollout. The setting ``target_kl`` may end
        the update early.
        """
        terms = settings.terms
        if terms.kl_ref_coef and self.reference is None:
            raise UsageError(f"kl_ref_coef {terms.kl_ref_coef:g} needs a reference policy; give one with set_reference")
        minibatch_rows = self._shuffle(settings.iteration)  # [minibatches, minibatch_size]
        minibatch_advantages = advantages.advantages.reshape(-1)[minibatch_rows]  # [minibatches, minibatch_size]
        if self.config.normalize_advantage and self.config.minibatch_size > 1:  # one row has no standard deviation
            minibatch_advantages = _normalize(minibatch_advantages)
        # Overflows print no warnings: ``_check_finite`` raises instead. Dropout and the like draw from torch's global
        # generators, seeded here on all devices; that of the CPU, which envs may use, is restored afterwards.
        with np.errstate(all="ignore"), torch.random.fork_rng(devices=[]):
            # + 1, because ``network_seed(seed, 0)`` has seeded the initial weights.
            torch.manual_seed(network_seed(self.seed, settings.iteration + 1))
            self.engine.load(rollout, advantages.returns, minibatch_advantages, minibatch_rows, terms)
            means = self._take_gradient_steps(len(minibatch_rows), settings.learning_rate)
        self._check_finite(means, settings)
        return UpdateStats(**means, explained_variance=_explained_variance(rollout.values, advantages.returns))

    def _shuffle(self, iteration: int) -> npt.NDArray[np.int64]:
        """Return the row numbers of each minibatch of all epochs, [minibatches, minibatch_size].

        Every epoch is a new permutation of the rollout. A recurrent policy learns from sequences of ``sequence_length``
        consecutive steps of one env: sequences are shuffled, and the rows of a sequence stay together, in order. The
        config ensures that ``minibatch_size`` divides T * N, and that ``sequence_length`` divides ``minibatch_size``
        and T.
        """
        c = self.config
        length = c.sequence_length or 1
        generator = minibatch_generator(self.seed, iteration)
        permutations = [generator.permutation(c.rollout_size // length) for _ in range(c.n_epochs)]
        # Sequence number k * N + n stands for the steps k * length to (k + 1) * length - 1 of env n.
        k, env = np.divmod(np.concatenate(permutations), c.n_envs)  # [epochs * T * N / length]
        first_rows = k * length * c.n_envs + env
        rows = first_rows[:, None] + np.arange(length) * c.n_envs  # [epochs * T * N / length, length]
        return rows.reshape(-1, c.minibatch_size)

    def _take_gradient_steps(self, n_minibatches: int, learning_rate: float) -> dict[str, float]:
        """Take a gradient step on each minibatch and return the means of the engine's statistics.

        With ``target_kl``, stop at the first minibatch on which the approximate KL is more than 1.5 * ``target_kl``,
        without a step on it, as Stable-Baselines3 does.
        """
        n_computed = n_applied = 0
        for minibatch in range(n_minibatches):
            self.engine.compute_gradient(minibatch)
            n_computed += 1
            if self.config.target_kl is not None and self.engine.kl() > 1.5 * self.config.target_kl:
                break
            self.engine.apply(learning_rate)
            n_applied += 1
        means = self.engine.finish(n_computed, n_applied)
        self.n_gradient_steps += n_applied
        return means

    def _check_finite(self, means: Mapping[str, float], settings: UpdateSettings) -> None:
        """Raise LearnerDiverged if a weight or a statistic is infinite or NaN."""
        if not self.engine.weights_are_finite() or not np.isfinite(list(means.values())).all():
            raise LearnerDiverged(
                f"loss, gradient or weights are not finite in iteration {settings.iteration} (learning_rate "
                f"{settings.learning_rate:g}); the last checkpoint is intact. Try a smaller --learning-rate, "
                "or normalize with --normalize-obs or --normalize-reward."
            )


def _normalize(advantages: Floats) -> Floats:
    """Return advantages [minibatches, minibatch_size] with mean 0 and standard deviation 1 in every minibatch.

    Normalisation by minibatch rather than by rollout is one of "The 37 Implementation Details of Proximal Policy
    Optimization" (Huang et al. 2022).
    """
    mean, deviation = advantages.mean(axis=1, keepdims=True), advantages.std(axis=1, ddof=1, keepdims=True)
    normalized: Floats = (advantages - mean) / (deviation + np.float32(1e-8))
    return normalized


def _explained_variance(values: Floats, returns: Floats) -> float:
    """Return 1 - Var(returns - values) / Var(returns) of arrays [T, N]; NaN if all returns are equal."""
    variance = float(np.var(returns))
    return float("nan") if variance == 0 else 1 - float(np.var(returns - values)) / variance
