"""Gradient steps by autograd: for any network, on any device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from corral.config.schema import TrainConfig
from corral.core.frame_stacks import ObservationView
from corral.core.types import Rollout
from corral.policy import distributions
from corral.policy.policy import Policy
from corral.policy.recurrent import SequenceStart
from corral.ppo import losses
from corral.ppo.adam import EPSILON
from corral.ppo.gae import Advantages
from corral.ppo.loss_terms import NO_EXTRA_TERMS, LossTerms
from corral.ppo.minibatch_shards import ShardThreads, shares_of
from corral.ppo.moments import check_moments

__all__ = ["TorchEngine"]

Floats = npt.NDArray[np.float32]
_STATE_NAMES = ("exp_avg", "exp_avg_sq", "step")
_MEASURED = (
    "loss",
    "policy_gradient_loss",
    "value_loss",
    "entropy_loss",
    "approx_kl",
    "clip_fraction",
    "kl_ref",
    "grad_norm",
)
_EVALUATED, _BYTES = 4096, 2**25  # rows that are evaluated at a time, and bytes of their observations


class TorchEngine:
    """Torch's Adam. Measurements stay on the device until the update is over."""

    def __init__(self, policy: Policy, config: TrainConfig, device: torch.device) -> None:
        self.policy = policy
        self.config = config
        self.device = device
        self.optimizer = torch.optim.Adam(
            policy.parameters(), lr=config.learning_rate, eps=EPSILON, fused=device.type in ("cpu", "cuda")
        )
        # None if not compiled: a method of one's own, held, would keep this and its threads alive
        self._compiled = torch.compile(self._compute_loss) if config.compile else None
        self._totals = torch.zeros(len(_MEASURED), device=device)
        self._reference: Policy | None = None
        self._length = config.sequence_length or 1
        """Rows of a minibatch that are one sequence of a policy with a memory."""
        self._shard_threads = ShardThreads(shares_of(policy, config), config.learner_threads)

    @property
    def n_shares(self) -> int | None:
        """Parts of a minibatch, where there are any."""
        return None if self.policy.pictures is None or self.config.compile else self._shard_threads.shares

    def load(
        self,
        rollout: Rollout,
        estimate: Advantages,
        advantages: Floats,
        order: npt.NDArray[np.int64],
        terms: LossTerms = NO_EXTRA_TERMS,
    ) -> None:
        """Take in a rollout; ``advantages`` and ``order`` [minibatches, minibatch] are as they will be used."""
        self._inputs = self._prepare(rollout)
        self._actions = self._joined(rollout.actions)
        self._masks = None if rollout.masks is None else self._joined(rollout.masks)
        scalars = (rollout.log_probs, rollout.values, estimate.returns)
        self._scalars = torch.stack([self._joined(column) for column in scalars], dim=1)  # [T * N, 3]
        self._order = torch.from_numpy(order).to(self.device)
        self._advantages = torch.from_numpy(advantages).to(self.device)
        self._terms = terms
        self._sequence_starts = self._find_sequence_starts(rollout)
        self._weight = torch.tensor(terms.kl_ref, device=self.device)  # a number would be compiled in
        self._fixed = self._ask_reference(rollout) if terms.kl_ref else None
        self._held = self._policy_parameters() if terms.freeze_policy else []
        self._totals.zero_()
        self.policy.train()

    def gradient(self, minibatch: int) -> None:
        """Compute the gradient of a minibatch."""
        rows, advantages = self._order[minibatch], self._advantages[minibatch]
        self.optimizer.zero_grad(set_to_none=True)
        if self._shard_threads.shares == 1:
            loss, measured = self._loss_of(rows, advantages)
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            measured = self._gather_shares(rows, advantages)
        for parameter in self._held:
            parameter.grad = None
        self._kl = measured[4]
        self._totals[:7] += measured

    def _gather_shares(self, rows: Tensor, advantages: Tensor) -> Tensor:
        """The gradient as a sum of parts; what was measured is one too."""
        parameters = list(self.policy.parameters())

        def share(part: slice) -> list[Tensor | None]:
            loss, measured = self._loss_of(rows[part], advantages[part])
            weight = (part.stop - part.start) / len(rows)
            gradients = torch.autograd.grad(loss * weight, parameters, allow_unused=True)
            return [measured * weight, *(None if found is None else found.contiguous() for found in gradients)]

        length, shares_ = self._length, self._shard_threads.shares
        edges = [len(rows) // length * i // shares_ * length for i in range(shares_ + 1)]  # no sequence is cut
        shares = self._shard_threads.map(share, [slice(a, b) for a, b in itertools.pairwise(edges)])
        measured, *gradients = (_total(column) for column in zip(*shares, strict=True))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        assert measured is not None
        return measured

    def _loss_of(self, rows: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        masks = None if self._masks is None else self._masks[rows]
        fixed = None if self._fixed is None else self._fixed[rows]
        loss, start = self._compiled or self._compute_loss, self._sequence_starts(rows, self._length)
        return loss(self._inputs(rows), self._actions[rows], masks, self._scalars[rows], advantages, fixed, start)

    def kl(self) -> float:
        """How far the last minibatch says the policy moved; waits for the device."""
        return float(self._kl.item())

    def apply(self, learning_rate: float) -> None:
        """Adam, with the gradient scaled down to ``max_grad_norm``."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self._totals[7] += torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
        self.optimizer.step()

    def finish(self, gradients: int, applied: int) -> dict[str, float]:
        """End the update: the means of what was measured. The one moment that waits for the device."""
        self.policy.eval()
        *totals, norms = self._totals.tolist()
        means = [total / max(gradients, 1) for total in totals]
        measured = dict(zip(_MEASURED, [*means, norms / max(applied, 1)], strict=True))
        if not self._terms.kl_ref:
            del measured["kl_ref"]
        return measured

    def finite(self) -> bool:
        """Whether every weight is a number."""
        return all(bool(torch.isfinite(parameter).all()) for parameter in self.policy.parameters())

    @torch.no_grad()
    def evaluate(self, rollout: Rollout, every: int = 1) -> tuple[Floats, Floats]:
        """Log-probabilities and values [T, N] of actions under the weights as they are now; of every so many steps.

        With a memory: given what was remembered then.
        """
        memories = self._find_sequence_starts(rollout)
        inputs, actions = self._prepare(rollout), self._joined(rollout.actions)
        masks = None if rollout.masks is None else self._joined(rollout.masks)

        @torch.no_grad()
        def ask(part: Tensor) -> Tensor:
            mask = None if masks is None else masks[part]
            now = self.policy.evaluate(inputs(part), actions[part], mask, memories(part, 1))
            return torch.stack([now.log_probs, now.values])

        found = self._shard_threads.map(
            ask, self._parts(torch.from_numpy(rollout.rows_of_steps(every)).to(self.device))
        )
        log_probs, values = torch.cat(found, dim=1).cpu().numpy()
        return log_probs.reshape(-1, rollout.n_envs), values.reshape(-1, rollout.n_envs)

    def _compute_loss(
        self,
        inputs: dict[str, Tensor],
        actions: Tensor,
        masks: Tensor | None,
        scalars: Tensor,
        advantages: Tensor,
        fixed: Tensor | None,
        start: SequenceStart | None,
    ) -> tuple[Tensor, Tensor]:
        c, terms = self.config, self._terms
        clip_range = c.clip_range if terms.clip_range is None else terms.clip_range
        ent_coef = c.ent_coef if terms.ent_coef is None else terms.ent_coef
        old_log_probs, old_values, returns = scalars.unbind(1)
        now = self.policy.evaluate(inputs, actions, masks, start)
        log_ratio = now.log_probs - old_log_probs
        policy_loss = losses.policy_loss(log_ratio, advantages, clip_range)
        value_loss = losses.value_loss(now.values, old_values, returns, c.clip_range_vf)
        entropy_loss = -now.entropy.mean()
        loss, kl_ref = policy_loss + ent_coef * entropy_loss + c.vf_coef * value_loss, torch.zeros_like(value_loss)
        if fixed is not None and self._reference is not None:
            both = now.params, self.policy.log_std, fixed, self._reference.log_std
            kl_ref = distributions.divergence(self.policy.codec.heads, *both, masks).mean()
            loss = loss + self._weight * kl_ref
        if terms.freeze_policy:
            loss = c.vf_coef * value_loss
        with torch.no_grad():
            kl = losses.approximate_kl(log_ratio)
            clipped = losses.clip_fraction(log_ratio, clip_range)
            # in the order of _MEASURED
            measured = torch.stack([loss, policy_loss, value_loss, entropy_loss, kl, clipped, kl_ref])
        return loss, measured

    def _prepare(self, rollout: Rollout, policy: Policy | None = None) -> Callable[[Tensor], dict[str, Tensor]]:
        """What gives the policy's inputs for some rows: all are prepared here, unless that means to unfold stacks."""
        policy, seen = policy or self.policy, ObservationView(rollout)
        if rollout.stacks:
            return lambda rows: policy.prepare(seen[rows.cpu().numpy()])
        inputs = policy.prepare(seen.all())
        return lambda rows: {name: column[rows] for name, column in inputs.items()}

    def _find_sequence_starts(self, rollout: Rollout) -> Callable[[Tensor, int], SequenceStart | None]:
        """What gives the memory that goes with some rows, which are sequences of a length."""
        if rollout.states is None:
            return lambda rows, length: None
        states, begins = self._joined(rollout.states), np.zeros((rollout.n_steps, rollout.n_envs), np.bool_)
        begins[1:] = (rollout.terminated | rollout.truncated)[:-1]
        flags = self._joined(begins)
        return lambda rows, length: SequenceStart(states[rows[::length]], flags[rows])

    def _parts(self, rows: Tensor) -> list[Tensor]:
        """Few enough rows at a time: those of pictures are large."""
        row_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self.policy.layout.leaves)
        at_a_time = min(_EVALUATED, max(64, _BYTES // max(row_bytes, 1)))
        return list(torch.split(rows, max(1, at_a_time // self._length) * self._length))

    def _joined(self, column: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(column.reshape(-1, *column.shape[2:])).to(self.device)

    # ---- a reference to stay near, and a policy to leave as it is ----------------------------------------------

    def set_reference(self, policy: Policy) -> None:
        """Compare with this policy, which does not change."""
        self._reference = policy

    @torch.no_grad()
    def _ask_reference(self, rollout: Rollout) -> Tensor:
        """The reference's action parameters for every row; its sequences start from what the policy remembered."""
        assert self._reference is not None
        inputs, masks, length = self._prepare(rollout, self._reference), self._masks, self._length
        rows = torch.arange(len(self._actions), device=self.device)
        rows = rows.view(-1, length, rollout.n_envs).transpose(1, 2).reshape(-1)  # whole sequences
        found = torch.empty(len(rows), self.policy.codec.n_params, device=self.device)
        for part in self._parts(rows):
            mask = None if masks is None else masks[part]
            found[part] = self._reference(inputs(part), mask, self._sequence_starts(part, length))[0]
        return found

    def _policy_parameters(self) -> list[Tensor]:
        """Those that the action depends on, also where the value does too."""
        rows = self._order[0]
        params, _ = self.policy(self._inputs(rows), start=self._sequence_starts(rows, self._length))
        parameters = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        found = torch.autograd.grad(params.sum(), parameters, allow_unused=True)
        return [parameter for parameter, grad in zip(parameters, found, strict=True) if grad is not None]

    # ---- what a checkpoint holds -----------------------------------------------------------------------------

    def copies(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parameters, and Adam's moments, by name; copied, for they will change."""
        weights, state = {}, {}
        for name, parameter in self.policy.named_parameters():
            weights[name] = parameter.detach().clone()
            for key in _STATE_NAMES:
                if key in self.optimizer.state[parameter]:
                    state[f"{key}.{name}"] = self.optimizer.state[parameter][key].clone()
        return weights, state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from moments that ``copies`` gave."""
        check_moments(state, self.policy.named_parameters())
        for name, parameter in self.policy.named_parameters():
            found = {key: state[f"{key}.{name}"] for key in _STATE_NAMES if f"{key}.{name}" in state}
            if found:
                self.optimizer.state[parameter] = {key: value.clone().to(self.device) for key, value in found.items()}
            else:
                self.optimizer.state.pop(parameter, None)


def _total(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum, in order; None of what no part depends on."""
    found = [part for part in parts if part is not None]
    for part in found[1:]:
        found[0] += part
    return found[0] if found else None
