"""Imitation (behaviour cloning): supervised learning of a policy from demonstrations, before PPO starts.

The built-in MLP learns in numpy, as in ``mlp_engine``; any other network by autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from corral.core.actions import ACTION_FEATURES, Head
from corral.core.errors import UsageError
from corral.core.seeding import minibatch_generator
from corral.core.sums import add_up
from corral.core.types import Leaves
from corral.policy import array_distributions, distributions
from corral.policy.mlp import Gradient, Mlp
from corral.policy.policy import FEATURES, Policy
from corral.policy.scoring import Scored
from corral.ppo.adam import EPSILON, Adam

__all__ = ["Demonstrations", "ImitationStats", "imitate"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
_EVALUATED_ROWS = 512  # of one forward pass


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """R observations and the actions that an expert took there."""

    observations: Leaves  # each [R, ...]
    actions: Array  # [R] or [R, D], encoded as in a rollout
    masks: Flags | None = None  # [R, A]
    returns: Floats | None = None  # [R], targets of the value function

    def checked(self, policy: Policy) -> Demonstrations:
        """Return the same with actions [R, D]; raise UsageError if shapes or masks do not fit the policy."""
        codec, rows = policy.codec, len(next(iter(self.observations.values())))
        actions = self.actions.reshape(rows, -1)
        _check_shape("actions", actions, (rows, codec.n_actions))
        if self.masks is not None:
            _check_shape("masks", self.masks, (rows, codec.n_mask))
            for head in codec.heads:
                if head.kind == "categorical":
                    legal = np.take_along_axis(self.masks[:, head.mask], actions[:, head.actions].astype(np.int64), 1)
                    if not legal.all():
                        row = int(np.flatnonzero(~legal[:, 0])[0])
                        raise UsageError(f"row {row} shows action {actions[row]}, which its mask forbids")
        if self.returns is not None:
            _check_shape("returns", self.returns, (rows,))
        return Demonstrations(self.observations, actions, self.masks, self.returns)


@dataclass(frozen=True, slots=True)
class ImitationStats:
    """How well a policy imitates after all epochs, on the rows that it learned from and on held-out rows."""

    loss: float
    """Mean cross-entropy."""
    accuracy: float
    """Fraction of rows whose most likely action is the expert's, by its discrete parts; NaN if there are none."""
    held_out_loss: float
    held_out_accuracy: float
    held_out_value_loss: float | None
    """Mean squared error of the values; None without returns."""
    rows: int
    """Number of rows that the policy learned from."""


class _Scores(NamedTuple):
    """Sums or means over rows."""

    loss: float
    accuracy: float
    value_loss: float


class _Imitator(Protocol):
    """Trains a policy on rows of the demonstrations and evaluates it on others."""

    def learn(self, rows: Indices, learning_rate: float) -> None:
        """Take one gradient step on these rows."""
        ...

    def evaluate(self, rows: Indices) -> _Scores:
        """Return sums over these rows."""
        ...

    def finish(self) -> None:
        """Write the trained weights to the policy, if they are not there yet."""
        ...


def imitate(
    policy: Policy,
    demonstrations: Demonstrations,
    *,
    epochs: int = 10,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    seed: int = 0,
    held_out: float = 0.1,
    vf_coef: float = 0.5,
) -> ImitationStats:
    """Train the policy, in place, to take the demonstrated actions, and to predict the returns if there are any.

    A fraction ``held_out`` of the rows is not learned from; it measures how well the policy generalises.
    """
    demonstrations = demonstrations.checked(policy)
    order = minibatch_generator(seed, 0).permutation(len(demonstrations.actions))
    n_held_out = int(len(order) * held_out)
    test_rows, train_rows = np.sort(order[:n_held_out]), np.sort(order[n_held_out:])
    if not len(train_rows):
        raise UsageError(f"{len(order)} demonstrations leave none to learn from; give more, or a smaller held_out")
    in_numpy = policy.log_std.device.type == "cpu" and policy.mlp_shape() is not None
    imitator: _Imitator = (_ArrayStudent if in_numpy else _TorchImitator)(policy, demonstrations, vf_coef)
    for epoch in range(epochs):
        order = minibatch_generator(seed, epoch + 1).permutation(train_rows)
        for start in range(0, len(order), batch_size):
            imitator.learn(order[start : start + batch_size], learning_rate)
    train, test = _evaluate_all(imitator, train_rows), _evaluate_all(imitator, test_rows)
    imitator.finish()
    return ImitationStats(
        loss=train.loss,
        accuracy=train.accuracy,
        held_out_loss=test.loss,
        held_out_accuracy=test.accuracy,
        held_out_value_loss=None if demonstrations.returns is None else test.value_loss,
        rows=len(train_rows),
    )


def _evaluate_all(imitator: _Imitator, rows: Indices) -> _Scores:
    """Return means over the rows; NaN if there are none."""
    if not len(rows):
        return _Scores(float("nan"), float("nan"), float("nan"))
    starts = range(0, len(rows), _EVALUATED_ROWS)
    parts = [imitator.evaluate(rows[start : start + _EVALUATED_ROWS]) for start in starts]
    return _Scores(*(add_up(map(float, column)) / len(rows) for column in zip(*parts, strict=True)))


class _Seen(NamedTuple):
    """A forward pass in numpy."""

    features: Floats
    heads: tuple[Head, ...]
    params: Floats
    values: Floats
    taken: Array
    masks: Flags | None
    scored: Scored | None


class _ArrayStudent:
    """The built-in network, in numpy."""

    def __init__(self, policy: Policy, demonstrations: Demonstrations, vf_coef: float) -> None:
        shape = policy.mlp_shape()
        assert shape is not None
        self._policy, self._shown, self._vf_coef = policy, demonstrations, vf_coef
        self._mlp, self._adam = Mlp(shape), Adam(shape)
        self._mlp.load({name: parameter.detach().numpy() for name, parameter in policy.named_parameters()})
        self._flat = np.zeros(shape.size, np.float32)
        self._gradient = Gradient(self._mlp, self._flat)
        features = policy.features(demonstrations.observations)
        self._features, self._described = features[FEATURES], features.get(ACTION_FEATURES)

    def learn(self, rows: Indices, learning_rate: float) -> None:
        n, seen = len(rows), self._look(rows)
        known = array_distributions.likelihood(seen.heads, seen.params, self._mlp.log_std, seen.taken, seen.masks)
        d_params, d_values = np.empty_like(seen.params), np.zeros(n, np.float32)
        weight = np.full(n, -1 / n, np.float32)
        array_distributions.gradient(seen.heads, known, weight, 0.0, d_params, self._gradient.log_std)
        if self._shown.returns is not None:
            d_values[...] = (seen.values - self._shown.returns[rows]) * np.float32(2 * self._vf_coef / n)
        if seen.scored is not None and self._mlp.scorer is not None and self._gradient.scorer is not None:
            d_params = self._mlp.scorer.backward(seen.scored, d_params, self._gradient.scorer)
        self._mlp.backward(seen.features, d_params, d_values, self._gradient)
        self._adam.step(self._mlp.flat, self._flat, learning_rate)

    def evaluate(self, rows: Indices) -> _Scores:
        seen = self._look(rows)
        known = array_distributions.likelihood(seen.heads, seen.params, self._mlp.log_std, seen.taken, seen.masks)
        likely = array_distributions.mode(seen.heads, seen.params, seen.masks)
        right = _count_matches(seen.heads, likely, seen.taken)
        error = 0.0 if self._shown.returns is None else float(np.square(seen.values - self._shown.returns[rows]).sum())
        return _Scores(-float(known.log_probs.sum(dtype=np.float64)), right, error)

    def finish(self) -> None:
        with torch.no_grad():
            for name, parameter in self._policy.named_parameters():
                parameter.copy_(torch.from_numpy(self._mlp.parameters()[name]))

    def _look(self, rows: Indices) -> _Seen:
        demonstrations, features = self._shown, self._features[rows]
        heads, taken = self._policy.codec.heads, demonstrations.actions[rows]
        masks = None if demonstrations.masks is None else demonstrations.masks[rows]
        params, values = self._mlp.forward(features)
        if self._mlp.scorer is None or self._described is None:
            return _Seen(features, heads, params, values, taken, masks, None)
        scored = self._mlp.scorer.forward(params, masks, self._described, rows)
        choices = scored.choices
        return _Seen(features, choices.heads, scored.table, values, choices.columns_of(taken), None, scored)


class _RowLosses(NamedTuple):
    """A forward pass of autograd over n rows."""

    losses: Tensor  # [n] cross-entropies
    value_losses: Tensor | None  # [n] squared errors, if there are returns
    params: Tensor  # [n, P]


class _TorchImitator:
    """Trains any network by autograd."""

    def __init__(self, policy: Policy, demonstrations: Demonstrations, vf_coef: float) -> None:
        self._policy, self._vf_coef = policy, vf_coef
        self._inputs = policy.prepare(demonstrations.observations)
        self._actions = self._tensor(demonstrations.actions)
        self._masks, self._returns = self._optional(demonstrations.masks), self._optional(demonstrations.returns)
        fused = policy.log_std.device.type in ("cpu", "cuda")
        self._optimizer = torch.optim.Adam(policy.parameters(), eps=EPSILON, fused=fused)

    def learn(self, rows: Indices, learning_rate: float) -> None:
        """Take one step of Adam on these rows."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        losses, value_losses, _ = self._forward(rows)
        loss = losses.mean() if value_losses is None else losses.mean() + self._vf_coef * value_losses.mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    @torch.no_grad()
    def evaluate(self, rows: Indices) -> _Scores:
        """Return sums over these rows."""
        losses, value_losses, params = self._forward(rows)
        heads, masks = self._policy.codec.heads, None if self._masks is None else self._masks[rows]
        most_likely = distributions.mode(heads, params, masks).cpu().numpy()
        matches = _count_matches(heads, most_likely, self._actions[rows].cpu().numpy())
        return _Scores(float(losses.sum()), matches, 0.0 if value_losses is None else float(value_losses.sum()))

    def finish(self) -> None:
        """Free the gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def _forward(self, rows: Indices) -> _RowLosses:
        inputs = {name: column[rows] for name, column in self._inputs.items()}
        masks = None if self._masks is None else self._masks[rows]
        evaluation = self._policy.evaluate(inputs, self._actions[rows], masks)
        value_losses = None if self._returns is None else (evaluation.values - self._returns[rows]) ** 2
        return _RowLosses(-evaluation.log_probs, value_losses, evaluation.params)

    def _tensor(self, column: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(column)).to(self._policy.log_std.device)

    def _optional(self, column: Array | None) -> Tensor | None:
        return None if column is None else self._tensor(column)


def _count_matches(heads: tuple[Head, ...], most_likely: Array, taken: Array) -> float:
    """Return the number of rows [R, D] that are equal in all discrete columns; NaN if there are no such columns."""
    columns = [head.actions for head in heads if head.kind != "gaussian"]
    if not columns:
        return float("nan")
    return float(np.all([(most_likely[:, part] == taken[:, part]).all(axis=1) for part in columns], axis=0).sum())


def _check_shape(name: str, array: Array, expected: tuple[int, ...]) -> None:
    if array.shape != expected:
        raise UsageError(f"the demonstrations' {name} have shape {array.shape}, expected {expected}")
