"""A minibatch's gradient in shares: each a fixed part of its rows, computed by whichever process, summed in order.

The number of shares belongs to the run, not to the machine, so the result does not depend on who computes them. All
data lies in plain arrays, which may be shared memory: a helper needs nothing else, and no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from corral.core.actions import Head
from corral.policy import array_distributions
from corral.policy.mlp import Gradient, Mlp, MlpShape
from corral.ppo.loss_terms import LossTerms

__all__ = ["MEASURED", "Alone", "Crew", "ShareSetup", "Shares", "split"]

Array = npt.NDArray[Any]
MEASURED = ("policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction", "kl_ref")
_SCALARS = 3  # columns of a batch row: log-probability, value, return
_ONE = np.float32(1)


@dataclass(frozen=True, slots=True)
class ShareSetup:
    """What a process must know to compute shares: sizes and coefficients, as plain data."""

    shape: MlpShape
    heads: tuple[Head, ...]
    n_actions: int
    n_mask: int
    """0 where the envs do not mask."""
    n_reference: int
    """Action parameters of a reference policy; 0 where there is none."""
    n_rows: int
    minibatch: int
    n_epochs: int
    shares: int
    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float

    @property
    def n_minibatches(self) -> int:
        """Gradient steps in an update."""
        return self.n_epochs * (self.n_rows // self.minibatch)

    def arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name, shape and dtype of everything an update reads and writes."""
        width = self.shape.n_features + self.n_actions + _SCALARS + self.n_mask + self.n_reference
        return {
            "batch": ((self.n_rows, width), "<f4"),
            "order": ((self.n_minibatches, self.minibatch), "<i8"),
            "advantages": ((self.n_minibatches, self.minibatch), "<f4"),
            "weights": ((self.shape.size,), "<f4"),
            "terms": ((4,), "<f8"),
            "reference_log_std": ((self.shape.n_log_std if self.n_reference else 0,), "<f4"),
            "gradients": ((self.shares, self.shape.size), "<f4"),
            "measured": ((self.shares, len(MEASURED)), "<f8"),
        }


class Shares:
    """Computes shares from arrays that somebody else fills."""

    def __init__(self, setup: ShareSetup, arrays: Mapping[str, Array]) -> None:
        self.setup = setup
        self.arrays = arrays
        self.action_features: Array | None = None
        """What the rollout's actions are, [rows, A, k], if they are scored: to be set before an update."""
        self._mlp = Mlp(setup.shape, arrays["weights"])
        self._gradients = [Gradient(self._mlp, flat) for flat in arrays["gradients"]]
        self._bounds = split(setup.minibatch, setup.shares)
        features, actions = setup.shape.n_features, setup.n_actions
        self._features = slice(0, features)
        self._actions = slice(features, features + actions)
        self._scalars = features + actions
        self._masks = slice(self._scalars + _SCALARS, self._scalars + _SCALARS + setup.n_mask)
        self._reference = slice(self._masks.stop, self._masks.stop + setup.n_reference)
        rows, width = max(len(part) for part in self._bounds), arrays["batch"].shape[1]
        self._taken = np.empty((rows, width), np.float32)
        self._d_params = np.empty((rows, setup.shape.n_params), np.float32)

    @classmethod
    def here(cls, setup: ShareSetup) -> Shares:
        """With arrays of this process's own."""
        return cls(setup, {name: np.zeros(shape, dtype) for name, (shape, dtype) in setup.arrays().items()})

    @property
    def features(self) -> Array:
        """The batch's features [rows, F], to be written."""
        return self.arrays["batch"][:, self._features]

    def fill(self, actions: Array, log_probs: Array, values: Array, returns: Array) -> None:
        """Write a batch of rows; features are written to ``features``, masks with ``fill_masks``."""
        batch = self.arrays["batch"]
        batch[:, self._actions] = actions
        for i, column in enumerate((log_probs, values, returns)):
            batch[:, self._scalars + i] = column

    def fill_masks(self, masks: Array) -> None:
        """Write the masks of a batch."""
        self.arrays["batch"][:, self._masks] = masks

    @property
    def reference(self) -> Array:
        """The reference's action parameters for the batch, [rows, P], to be written."""
        return self.arrays["batch"][:, self._reference]

    def set_terms(self, terms: LossTerms) -> None:
        """What the next update asks for."""
        assert self.setup.n_reference or not terms.kl_ref_coef
        clip_range = self.setup.clip_range if terms.clip_range is None else terms.clip_range
        ent_coef = self.setup.ent_coef if terms.ent_coef is None else terms.ent_coef
        self.arrays["terms"][:] = terms.kl_ref_coef, terms.freeze_policy, clip_range, ent_coef

    def compute(self, minibatch: int, share: int) -> None:
        """The gradient of one share of a minibatch, into its row of ``gradients``; and what was measured on the way."""
        s, part, gradient = self.setup, self._bounds[share], self._gradients[share]
        n = len(part)
        order = self.arrays["order"][minibatch, part.start : part.stop]
        rows = np.take(self.arrays["batch"], order, axis=0, out=self._taken[:n], mode="clip")
        advantages = self.arrays["advantages"][minibatch, part.start : part.stop]
        old_log_probs, old_values, returns = (rows[:, self._scalars + i] for i in range(_SCALARS))
        masks = rows[:, self._masks] > 0 if s.n_mask else None
        features = rows[:, self._features]

        heads, scorer, scored = s.heads, self._mlp.scorer, None
        taken: Array = rows[:, self._actions]
        params, values = self._mlp.forward(features)
        if scorer is not None:
            assert self.action_features is not None
            scored = scorer.forward(params, masks, self.action_features, order)
            heads, params, masks = scored.choices.heads, scored.table, None
            taken = scored.choices.columns_of(taken)
        known = array_distributions.likelihood(heads, params, self._mlp.log_std, taken, masks)
        log_ratio = known.log_probs - old_log_probs
        ratio = np.exp(log_ratio)
        gain = advantages * ratio
        kl_coef, freeze_policy, clip_range, ent_coef = self.arrays["terms"].tolist()
        lowest, highest = np.float32(1 - clip_range), np.float32(1 + clip_range)
        clipped_gain = advantages * np.minimum(np.maximum(ratio, lowest), highest)
        error = values - returns
        open_ = None
        if s.clip_range_vf is not None:
            limit = np.float32(s.clip_range_vf)
            moved = values - old_values
            open_ = np.abs(moved) <= limit
            error = old_values + np.clip(moved, -limit, limit) - returns

        scale = np.float32(1 / s.minibatch)
        d_log_probs = np.where(gain <= clipped_gain, gain, np.float32(0)) * -scale
        d_values = error * np.float32(2 * s.vf_coef / s.minibatch)
        if open_ is not None:
            d_values *= open_
        d_params = self._d_params[:n] if scored is None else np.empty_like(params)
        kl_ref = 0.0
        array_distributions.gradient(heads, known, d_log_probs, -ent_coef / s.minibatch, d_params, gradient.log_std)
        if kl_coef:
            fixed = rows[:, self._reference] if scored is None else scored.choices.narrow(rows[:, self._reference])
            reference = array_distributions.Reference(fixed, self.arrays["reference_log_std"])
            policy = heads, known, params, self._mlp.log_std, masks
            weight = kl_coef / s.minibatch
            away = array_distributions.add_divergence(*policy, reference, weight, d_params, gradient.log_std)
            kl_ref = float(away.sum(dtype=np.float64))
        if freeze_policy:
            d_params[...], gradient.log_std[...] = 0, 0
        if scorer is not None and scored is not None and gradient.scorer is not None:
            d_params = scorer.backward(scored, d_params, gradient.scorer)
        self._mlp.backward(features, d_params, d_values, gradient)

        self.arrays["measured"][share] = (
            -np.minimum(gain, clipped_gain).sum(dtype=np.float64),
            np.dot(error, error),
            -known.entropy.sum(dtype=np.float64),
            (ratio - _ONE - log_ratio).sum(dtype=np.float64),
            np.count_nonzero(np.abs(ratio - _ONE) > clip_range),
            kl_ref,
        )


class Crew(Protocol):
    """Whoever computes the shares of a minibatch."""

    def begin(self) -> None:
        """An update begins: batch, order and advantages are filled."""
        ...

    def compute(self, minibatch: int) -> None:
        """Return when every share of the minibatch is in its row."""
        ...

    def end(self) -> None:
        """The update is over."""
        ...


class Alone:
    """All shares, one after the other, in this process."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares

    def begin(self) -> None:
        """Nothing to prepare."""

    def compute(self, minibatch: int) -> None:
        """Every share in turn."""
        for share in range(self._shares.setup.shares):
            self._shares.compute(minibatch, share)

    def end(self) -> None:
        """Nothing to tidy up."""


def split(n: int, parts: int) -> list[range]:
    """Consecutive ranges of 0 to n, as even as they can be, none of them empty."""
    edges = [n * i // parts for i in range(parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(edges) if b > a]
