"""Imitation: supervised learning of a policy from what somebody did, so that a run need not start from nothing.

The built-in network learns in numpy, as in ``mlp_engine``; any other by autograd.
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
_JUDGED = 512  # rows at a time


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """What was seen, and what was done there, in R rows."""

    observations: Leaves  # each [R, ...]
    actions: Array  # [R] or [R, D], as a rollout has them
    masks: Flags | None = None  # [R, A]
    returns: Floats | None = None  # [R], for the value function to learn

    def checked(self, policy: Policy) -> Demonstrations:
        """The same with actions [R, D], or a UsageError that says what does not fit."""
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
    """How well a policy imitates, after all epochs: on rows that it learned from, and on rows that it did not."""

    loss: float
    """Mean cross-entropy."""
    accuracy: float
    """Share of rows where the most likely action is the one shown; of continuous actions nothing is asked."""
    held_out_loss: float
    held_out_accuracy: float
    held_out_value_loss: float | None
    """Mean squared error of the values, if there were returns."""
    rows: int
    """Learned from."""


class _Verdict(NamedTuple):
    """Sums over rows."""

    loss: float
    right: float
    value_loss: float


class _Student(Protocol):
    """A policy that learns from some rows of the demonstrations, and is judged on some."""

    def learn(self, rows: Indices, learning_rate: float) -> None: ...

    def judge(self, rows: Indices) -> _Verdict: ...

    def finish(self) -> None: ...


def imitate(
    policy: Policy,
    shown: Demonstrations,
    *,
    epochs: int = 10,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    seed: int = 0,
    held_out: float = 0.1,
    vf_coef: float = 0.5,
) -> ImitationStats:
    """Teach the policy, in place, to do what was shown; ``held_out`` is the share of rows kept to judge it by."""
    shown = shown.checked(policy)
    order = minibatch_generator(seed, 0).permutation(len(shown.actions))
    n_held = int(len(order) * held_out)
    kept, known = np.sort(order[:n_held]), np.sort(order[n_held:])
    if not len(known):
        raise UsageError(f"{len(order)} demonstrations leave none to learn from; give more, or a smaller held_out")
    in_numpy = policy.log_std.device.type == "cpu" and policy.mlp_shape() is not None
    student: _Student = _ArrayStudent(policy, shown, vf_coef) if in_numpy else _TensorStudent(policy, shown, vf_coef)
    for epoch in range(epochs):
        order = minibatch_generator(seed, epoch + 1).permutation(known)
        for start in range(0, len(order), batch_size):
            student.learn(order[start : start + batch_size], learning_rate)
    loss, accuracy, _ = _means(student, known)
    held_loss, held_accuracy, held_value_loss = _means(student, kept)
    student.finish()
    values = None if shown.returns is None else held_value_loss
    return ImitationStats(loss, accuracy, held_loss, held_accuracy, values, len(known))


def _means(student: _Student, rows: Indices) -> _Verdict:
    if not len(rows):
        return _Verdict(float("nan"), float("nan"), float("nan"))
    parts = [student.judge(rows[start : start + _JUDGED]) for start in range(0, len(rows), _JUDGED)]
    return _Verdict(*(add_up(map(float, column)) / len(rows) for column in zip(*parts, strict=True)))


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

    def __init__(self, policy: Policy, shown: Demonstrations, vf_coef: float) -> None:
        shape = policy.mlp_shape()
        assert shape is not None
        self._policy, self._shown, self._vf_coef = policy, shown, vf_coef
        self._mlp, self._adam = Mlp(shape), Adam(shape)
        self._mlp.load({name: parameter.detach().numpy() for name, parameter in policy.named_parameters()})
        self._flat = np.zeros(shape.size, np.float32)
        self._gradient = Gradient(self._mlp, self._flat)
        features = policy.features(shown.observations)
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

    def judge(self, rows: Indices) -> _Verdict:
        seen = self._look(rows)
        known = array_distributions.likelihood(seen.heads, seen.params, self._mlp.log_std, seen.taken, seen.masks)
        likely = array_distributions.mode(seen.heads, seen.params, seen.masks)
        right = _agree(seen.heads, likely, seen.taken)
        error = 0.0 if self._shown.returns is None else float(np.square(seen.values - self._shown.returns[rows]).sum())
        return _Verdict(-float(known.log_probs.sum(dtype=np.float64)), right, error)

    def finish(self) -> None:
        with torch.no_grad():
            for name, parameter in self._policy.named_parameters():
                parameter.copy_(torch.from_numpy(self._mlp.parameters()[name]))

    def _look(self, rows: Indices) -> _Seen:
        shown, features = self._shown, self._features[rows]
        heads, taken = self._policy.codec.heads, shown.actions[rows]
        masks = None if shown.masks is None else shown.masks[rows]
        params, values = self._mlp.forward(features)
        if self._mlp.scorer is None or self._described is None:
            return _Seen(features, heads, params, values, taken, masks, None)
        scored = self._mlp.scorer.forward(params, masks, self._described, rows)
        choices = scored.choices
        return _Seen(features, choices.heads, scored.table, values, choices.columns_of(taken), None, scored)


class _TensorStudent:
    """Any network, by autograd."""

    def __init__(self, policy: Policy, shown: Demonstrations, vf_coef: float) -> None:
        self._policy, self._vf_coef = policy, vf_coef
        self._inputs = policy.prepare(shown.observations)
        self._actions = self._tensor(shown.actions)
        self._masks, self._returns = self._optional(shown.masks), self._optional(shown.returns)
        fused = policy.log_std.device.type in ("cpu", "cuda")
        self._optimizer = torch.optim.Adam(policy.parameters(), eps=EPSILON, fused=fused)

    def learn(self, rows: Indices, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        losses, _, errors = self._look(rows)
        loss = losses.mean() if errors is None else losses.mean() + self._vf_coef * errors.mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    @torch.no_grad()
    def judge(self, rows: Indices) -> _Verdict:
        losses, params, errors = self._look(rows)
        masks = None if self._masks is None else self._masks[rows]
        likely = distributions.mode(self._policy.codec.heads, params, masks).cpu().numpy()
        right = _agree(self._policy.codec.heads, likely, self._actions[rows].cpu().numpy())
        return _Verdict(float(losses.sum()), right, 0.0 if errors is None else float(errors.sum()))

    def finish(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def _look(self, rows: Indices) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cross-entropies [n], action parameters [n, P], and squared errors of the values [n]."""
        inputs = {name: column[rows] for name, column in self._inputs.items()}
        masks = None if self._masks is None else self._masks[rows]
        now = self._policy.evaluate(inputs, self._actions[rows], masks)
        return -now.log_probs, now.params, None if self._returns is None else (now.values - self._returns[rows]) ** 2

    def _tensor(self, column: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(column)).to(self._policy.log_std.device)

    def _optional(self, column: Array | None) -> Tensor | None:
        return None if column is None else self._tensor(column)


def _agree(heads: tuple[Head, ...], likely: Array, taken: Array) -> float:
    """How many rows have the same choices in all their discrete parts."""
    columns = [head.actions for head in heads if head.kind != "gaussian"]
    if not columns:
        return float("nan")
    return float(np.all([(likely[:, part] == taken[:, part]).all(axis=1) for part in columns], axis=0).sum())


def _check_shape(what: str, given: Array, expected: tuple[int, ...]) -> None:
    if given.shape != expected:
        raise UsageError(f"the demonstrations' {what} have shape {given.shape}, expected {expected}")
