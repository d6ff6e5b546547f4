"""The torch engine: gradient steps by autograd, for any network on any device."""

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
from corral.policy.policy import Inputs, Policy
from corral.policy.recurrent import SequenceStart
from corral.ppo import losses
from corral.ppo.adam import EPSILON
from corral.ppo.loss_terms import NO_EXTRA_TERMS, LossTerms
from corral.ppo.minibatch_shards import ShardThreads, shard_count
from corral.ppo.moments import MOMENTS, check_moments

__all__ = ["TorchEngine"]

Floats = npt.NDArray[np.float32]
_LOSS_METRICS = (
    "loss",
    "policy_gradient_loss",
    "value_loss",
    "entropy_loss",
    "approx_kl",
    "clip_fraction",
    "kl_ref",
)
_APPROX_KL = _LOSS_METRICS.index("approx_kl")
_EVALUATED_ROWS = 4096
"""The most rows of one forward pass without gradients ..."""
_EVALUATED_BYTES = 2**25
"""... and the most bytes of their observations, unless that is less than 64 rows."""


class TorchEngine:
    """Computes gradients with autograd and applies them with torch's Adam.

    Metrics stay on the device until the update ends, because reading them would wait for the device.
    """

    def __init__(self, policy: Policy, config: TrainConfig, device: torch.device) -> None:
        self.policy = policy
        self.config = config
        self.device = device
        self.optimizer = torch.optim.Adam(
            policy.parameters(), lr=config.learning_rate, eps=EPSILON, fused=device.type in ("cpu", "cuda")
        )
        # None if not compiled: an attribute that held the bound method would be a reference cycle, which would keep
        # the engine and its threads alive.
        self._compiled_loss = torch.compile(self._compute_loss) if config.compile else None
        self._totals = torch.zeros(len(_LOSS_METRICS) + 1, device=device)  # sums of the loss metrics and grad_norm
        self._reference: Policy | None = None
        self._length = config.sequence_length or 1
        """Consecutive rows of a minibatch that are one sequence of a recurrent policy."""
        self._shard_threads = ShardThreads(shard_count(policy, config), config.learner_threads)

    @property
    def n_shards(self) -> int | None:
        """Number of shards of a minibatch; None without images or with ``compile``, where minibatches are not split."""
        return None if self.policy.pictures is None or self.config.compile else self._shard_threads.n_shards

    def load(
        self,
        rollout: Rollout,
        returns: Floats,
        minibatch_advantages: Floats,
        minibatch_rows: npt.NDArray[np.int64],
        terms: LossTerms = NO_EXTRA_TERMS,
    ) -> None:
        """Begin an update with minibatches of these rows and advantages, both [minibatches, minibatch_size]."""
        self._inputs_of = self._prepare_inputs(rollout)
        self._starts_of = self._prepare_sequence_starts(rollout)
        self._actions = self._flatten(rollout.actions)  # [T * N, D]
        self._masks = None if rollout.masks is None else self._flatten(rollout.masks)  # [T * N, A]
        scalars = (rollout.log_probs, rollout.values, returns)
        self._scalars = torch.stack([self._flatten(column) for column in scalars], dim=1)  # [T * N, 3]
        self._minibatch_rows = torch.from_numpy(minibatch_rows).to(self.device)
        self._minibatch_advantages = torch.from_numpy(minibatch_advantages).to(self.device)
        self._terms = terms
        self._kl_coef = torch.tensor(terms.kl_ref_coef, device=self.device)  # a float would be compiled as a constant
        self._reference_params = self._evaluate_reference(rollout) if terms.kl_ref_coef else None  # [T * N, P]
        self._frozen = self._find_policy_parameters() if terms.freeze_policy else []
        self._totals.zero_()
        self.policy.train()

    def compute_gradient(self, minibatch: int) -> None:
        """Compute the gradient of the minibatch with this number, and keep it for ``kl`` and ``apply``."""
        rows, advantages = self._minibatch_rows[minibatch], self._minibatch_advantages[minibatch]
        self.optimizer.zero_grad(set_to_none=True)
        if self._shard_threads.n_shards == 1:
            loss, metrics = self._loss_of_rows(rows, advantages)
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            metrics = self._sum_shard_gradients(rows, advantages)
        for parameter in self._frozen:
            parameter.grad = None
        self._kl = metrics[_APPROX_KL]
        self._totals[:-1] += metrics

    def _sum_shard_gradients(self, rows: Tensor, advantages: Tensor) -> Tensor:
        """Set the gradient to the sum of the shards' gradients, and return the sum of their metrics, both weighted."""
        parameters = list(self.policy.parameters())

        def compute_shard(shard: slice) -> list[Tensor | None]:
            loss, metrics = self._loss_of_rows(rows[shard], advantages[shard])
            weight = (shard.stop - shard.start) / len(rows)
            gradients = torch.autograd.grad(loss * weight, parameters, allow_unused=True)
            return [metrics * weight, *(None if gradient is None else gradient.contiguous() for gradient in gradients)]

        length, n_shards = self._length, self._shard_threads.n_shards
        edges = [len(rows) // length * i // n_shards * length for i in range(n_shards + 1)]  # between sequences
        shards = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
        metrics, *gradients = map(_sum_in_order, zip(*self._shard_threads.map(compute_shard, shards), strict=True))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        assert metrics is not None
        return metrics

    def _loss_of_rows(self, rows: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the metrics of these rows of the rollout."""
        compute = self._compiled_loss or self._compute_loss
        return compute(
            self._inputs_of(rows),
            self._actions[rows],
            None if self._masks is None else self._masks[rows],
            self._scalars[rows],
            advantages,
            None if self._reference_params is None else self._reference_params[rows],
            self._starts_of(rows, self._length),
        )

    def kl(self) -> float:
        """Return the approximate KL(old || new) on the last minibatch; this waits for the device."""
        return float(self._kl.item())

    def apply(self, learning_rate: float) -> None:
        """Clip the last gradient to ``max_grad_norm`` and take a step of Adam."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self._totals[-1] += torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
        self.optimizer.step()

    def finish(self, n_computed: int, n_applied: int) -> dict[str, float]:
        """End the update and return means over minibatches; this waits for the device."""
        self.policy.eval()
        *totals, norms = self._totals.tolist()
        means = {name: total / max(n_computed, 1) for name, total in zip(_LOSS_METRICS, totals, strict=True)}
        means["grad_norm"] = norms / max(n_applied, 1)
        if not self._terms.kl_ref_coef:
            del means["kl_ref"]
        return means

    def weights_are_finite(self) -> bool:
        """Return whether every weight is finite."""
        return all(bool(torch.isfinite(parameter).all()) for parameter in self.policy.parameters())

    @torch.no_grad()
    def log_probs_and_values(self, rollout: Rollout, every: int = 1) -> tuple[Floats, Floats]:
        """Return log-probabilities and values [ceil(T / every), N] of a rollout's actions under the current weights.

        A recurrent policy starts each step from the state that the rollout recorded.
        """
        starts_of = self._prepare_sequence_starts(rollout)
        inputs_of, actions = self._prepare_inputs(rollout), self._flatten(rollout.actions)
        masks = None if rollout.masks is None else self._flatten(rollout.masks)

        @torch.no_grad()  # which each thread needs for itself
        def evaluate_rows(rows: Tensor) -> Tensor:
            mask = None if masks is None else masks[rows]
            evaluation = self.policy.evaluate(inputs_of(rows), actions[rows], mask, starts_of(rows, 1))
            return torch.stack([evaluation.log_probs, evaluation.values])  # [2, rows]

        rows = torch.from_numpy(rollout.rows_of_steps(every)).to(self.device)
        results = self._shard_threads.map(evaluate_rows, self._split_rows(rows))
        log_probs, values = torch.cat(results, dim=1).cpu().numpy()
        return log_probs.reshape(-1, rollout.n_envs), values.reshape(-1, rollout.n_envs)

    def _compute_loss(
        self,
        inputs: Inputs,
        actions: Tensor,  # [B, D]
        masks: Tensor | None,  # [B, A]
        scalars: Tensor,  # [B, 3] log-probability, value and return
        advantages: Tensor,  # [B]
        reference_params: Tensor | None,  # [B, P]
        start: SequenceStart | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of B rows, and their metrics in the order of ``_LOSS_METRICS``."""
        c, terms = self.config, self._terms
        clip_range = c.clip_range if terms.clip_range is None else terms.clip_range
        ent_coef = c.ent_coef if terms.ent_coef is None else terms.ent_coef
        old_log_probs, old_values, returns = scalars.unbind(1)
        new = self.policy.evaluate(inputs, actions, masks, start)
        log_ratio = new.log_probs - old_log_probs
        policy_loss = losses.policy_loss(log_ratio, advantages, clip_range)
        value_loss = losses.value_loss(new.values, old_values, returns, c.clip_range_vf)
        entropy_loss = -new.entropy.mean()
        loss, kl_ref = policy_loss + ent_coef * entropy_loss + c.vf_coef * value_loss, torch.zeros_like(value_loss)
        if reference_params is not None and self._reference is not None:
            kl_ref = distributions.kl_divergence(
                self.policy.codec.heads,
                params=new.params,
                log_std=self.policy.log_std,
                reference=reference_params,
                reference_log_std=self._reference.log_std,
                masks=masks,
            ).mean()
            loss = loss + self._kl_coef * kl_ref
        if terms.freeze_policy:
            loss = c.vf_coef * value_loss
        with torch.no_grad():
            kl = losses.approximate_kl(log_ratio)
            clip_fraction = losses.clip_fraction(log_ratio, clip_range)
            metrics = torch.stack([loss, policy_loss, value_loss, entropy_loss, kl, clip_fraction, kl_ref])
        return loss, metrics

    def _prepare_inputs(self, rollout: Rollout, policy: Policy | None = None) -> Callable[[Tensor], Inputs]:
        """Return a function that gives the policy's inputs for rows of a rollout.

        All inputs are prepared here, except stacked frames: unfolded, they would take several times the memory.
        """
        policy, observations = policy or self.policy, ObservationView(rollout)
        if rollout.stacks:
            return lambda rows: policy.prepare(observations[rows.cpu().numpy()])
        inputs = policy.prepare(observations.all())
        return lambda rows: {name: column[rows] for name, column in inputs.items()}

    def _prepare_sequence_starts(self, rollout: Rollout) -> Callable[[Tensor, int], SequenceStart | None]:
        """Return a function that gives the starts of rows that are sequences of a length; None if not recurrent."""
        if rollout.states is None:
            return lambda rows, length: None
        states = self._flatten(rollout.states)  # [T * N, S] before each step
        begins = np.zeros((rollout.n_steps, rollout.n_envs), np.bool_)  # [T, N]
        begins[1:] = (rollout.terminated | rollout.truncated)[:-1]
        flat_begins = self._flatten(begins)
        return lambda rows, length: SequenceStart(states[rows[::length]], flat_begins[rows])

    def _split_rows(self, rows: Tensor) -> list[Tensor]:
        """Return the rows in pieces of whole sequences that are small enough for one forward pass."""
        row_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self.policy.layout.leaves)
        max_rows = min(_EVALUATED_ROWS, max(64, _EVALUATED_BYTES // max(row_bytes, 1)))
        return list(torch.split(rows, max(1, max_rows // self._length) * self._length))

    def _flatten(self, column: npt.NDArray[Any]) -> Tensor:
        """Return [T, N, ...] as a tensor [T * N, ...] on the device."""
        return torch.from_numpy(column.reshape(-1, *column.shape[2:])).to(self.device)

    # ---- a reference policy, and a frozen policy ---------------------------------------------------------------

    def set_reference(self, policy: Policy) -> None:
        """Set the fixed policy of the KL term."""
        self._reference = policy

    @torch.no_grad()
    def _evaluate_reference(self, rollout: Rollout) -> Tensor:
        """Return the reference's action parameters [T * N, P]; its sequences start from the policy's states."""
        assert self._reference is not None
        inputs_of, length = self._prepare_inputs(rollout, self._reference), self._length
        rows = torch.arange(len(self._actions), device=self.device)
        rows = rows.view(-1, length, rollout.n_envs).transpose(1, 2).reshape(-1)  # sequence after sequence
        params = torch.empty(len(rows), self.policy.codec.n_params, device=self.device)
        for piece in self._split_rows(rows):
            mask = None if self._masks is None else self._masks[piece]
            params[piece] = self._reference(inputs_of(piece), mask, self._starts_of(piece, length))[0]
        return params

    def _find_policy_parameters(self) -> list[Tensor]:
        """Return the parameters that actions depend on, including those that values depend on too."""
        rows = self._minibatch_rows[0]
        params, _ = self.policy(self._inputs_of(rows), start=self._starts_of(rows, self._length))
        parameters = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(params.sum(), parameters, allow_unused=True)
        return [parameter for parameter, gradient in zip(parameters, gradients, strict=True) if gradient is not None]

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def checkpoint_tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return copies of the weights and of Adam's moments, by name, for a checkpoint."""
        weights, state = {}, {}
        for name, parameter in self.policy.named_parameters():
            weights[name] = parameter.detach().clone()
            for moment in MOMENTS:
                if moment in self.optimizer.state[parameter]:
                    state[f"{moment}.{name}"] = self.optimizer.state[parameter][moment].clone()
        return weights, state

    def restore_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Set Adam's moments to those of a checkpoint."""
        check_moments(moments, self.policy.named_parameters())
        for name, parameter in self.policy.named_parameters():
            state = {moment: moments[f"{moment}.{name}"] for moment in MOMENTS if f"{moment}.{name}" in moments}
            if state:
                self.optimizer.state[parameter] = {key: value.clone().to(self.device) for key, value in state.items()}
            else:
                self.optimizer.state.pop(parameter, None)


def _sum_in_order(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Return the sum of the shards' tensors, in order and in place; None for a parameter that no shard depends on."""
    tensors = [part for part in parts if part is not None]
    for tensor in tensors[1:]:
        tensors[0] += tensor
    return tensors[0] if tensors else None
