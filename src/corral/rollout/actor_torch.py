"""The actor for any network: it runs a torch policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle
import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from corral.core.entry_points import import_file
from corral.core.types import ActionSample, GreedyAction, Leaves, Weights
from corral.policy import distributions
from corral.policy.policy import Policy
from corral.rollout.batch_layout import (
    FIXED_BATCHES,
    MAX_TESTED_WEIGHTS,
    SINGLE_ROW,
    BatchLayout,
    RowLayout,
    find_batch_layout,
)

__all__ = ["TorchActor", "TorchActorSpec", "find_torch_batch_layout"]


Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TorchActorSpec:
    """What a process needs to build the policy and its actor, except for the weights."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    options: Mapping[str, Any]
    """Keyword arguments of ``Policy``."""
    network: bytes | None
    """The user's factory of the network, cloudpickled; None for the built-in network."""
    network_file: str | None
    """The file that defines that factory. It has to be imported before the factory can be unpickled."""
    network_content: bytes | None
    """The content of that file, for processes on other machines."""
    device: str
    batch_layout: BatchLayout
    n_state: int
    """Numbers in the policy's recurrent state of one env; 0 for a policy that is not recurrent."""

    def build(self, first_env: int, n_envs: int) -> TorchActor:
        """Return an actor with a new policy, for ``n_envs`` envs of the run from ``first_env`` on."""
        with torch.random.fork_rng(devices=[]):
            if self.network_file is not None:
                import_file(self.network_file, "policy", self.network_content)
            network = None if self.network is None else cloudpickle.loads(self.network)
            policy = Policy(self.observation_space, self.action_space, network=network, **self.options)
            policy = policy.to(torch.device(self.device)).eval()
            if self.network is not None:
                _test_outputs(policy)  # gives lazy layers their shapes
        return TorchActor(policy, self.batch_layout, first_env, n_envs)


class _Output(NamedTuple):
    """The network's outputs for B observations."""

    params: Tensor  # [B, P] parameters of the action distributions
    values: Tensor  # [B]
    next_states: Floats | None  # [B, S] the recurrent states afterwards, a new array; None without recurrence


class TorchActor:
    """Runs a torch policy on its device, with one thread: another number of threads could change the last bits."""

    defers_values = False
    value_leaves: frozenset[str] | None = None

    def __init__(self, policy: Policy, batch_layout: BatchLayout, first_env: int = 0, n_envs: int = 1) -> None:
        self.policy = policy
        self.batch_layout = batch_layout
        self.n_state = policy.n_state
        self._n_envs = n_envs
        self._row_layout = batch_layout.rows_of(range(first_env, first_env + n_envs))

    def load(self, weights: Weights) -> None:
        """Copy these weights into the policy."""
        policy_weights = self.policy.state_dict()
        for name, weight in weights.items():
            policy_weights[name].copy_(torch.as_tensor(weight))

    @torch.inference_mode()
    def act(
        self, observations: Leaves, masks: Array | None, noise: Floats, states: Floats | None = None
    ) -> ActionSample:
        """Sample actions from ``noise`` [N, D], with their log-probabilities and the values of the observations."""
        policy, mask = self.policy, self._mask(masks)
        is_own_envs = len(noise) == self._n_envs
        row_layout = self._row_layout if is_own_envs else self.batch_layout.rows_of(range(len(noise)))
        output = self._forward(observations, row_layout, states)
        heads = policy.codec.heads
        actions = distributions.sample(heads, output.params, policy.log_std, mask, self._tensor(noise))
        likelihood = distributions.likelihood(heads, output.params, policy.log_std, actions, mask)
        return ActionSample(
            actions=actions.cpu().numpy(),
            log_probs=likelihood.log_probs.cpu().numpy(),
            values=output.values.cpu().numpy(),
            states=output.next_states,
        )

    @torch.inference_mode()
    def act_greedy(self, observations: Leaves, masks: Array | None, states: Floats | None = None) -> GreedyAction:
        """Return the most likely action of each env."""
        n_rows = len(next(iter(observations.values())))
        output = self._forward(observations, self.batch_layout.rows_of(range(n_rows)), states)
        actions = distributions.mode(self.policy.codec.heads, output.params, self._mask(masks))
        return GreedyAction(actions.cpu().numpy(), output.next_states)

    @torch.inference_mode()
    def values(self, observations: Leaves, envs: npt.NDArray[np.int64], states: Floats | None = None) -> Floats:
        """Return the values [B] of observations; ``envs`` [B] are the envs that showed them."""
        values: Floats = self._forward(observations, self.batch_layout.rows_of(envs), states).values.cpu().numpy()
        return values

    def _forward(self, observations: Leaves, row_layout: RowLayout, states: Floats | None) -> _Output:
        """Run the network on padded batches, and return the outputs of the observations' rows."""
        must_copy = self.policy.is_custom  # a user's network may write into its inputs
        leaves = {path: _padded(leaf, row_layout, must_copy) for path, leaf in observations.items()}
        inputs = self.policy.prepare(leaves)  # each [padded rows, ...]
        padded_states = None if states is None else self._tensor(_padded(states, row_layout, must_copy))
        with _one_thread():
            outputs = [_run(self.policy, inputs, padded_states, call) for call in row_layout.calls()]
        params, values, *next_states = (torch.cat(column) for column in zip(*outputs, strict=True))
        rows = row_layout.rows if isinstance(row_layout.rows, slice) else torch.from_numpy(row_layout.rows)
        return _Output(params[rows], values[rows], next_states[0][rows].cpu().numpy() if next_states else None)

    def _mask(self, masks: Array | None) -> Tensor | None:
        return None if masks is None else self._tensor(masks)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.policy.log_std.device)


def _run(policy: Policy, inputs: dict[str, Tensor], states: Tensor | None, call: slice) -> tuple[Tensor, ...]:
    """Return action parameters and values of the rows ``call``; if the policy is recurrent, its next states too."""
    call_inputs = {name: leaf[call] for name, leaf in inputs.items()}
    if states is None:
        outputs: tuple[Tensor, ...] = policy(call_inputs)
        return outputs
    return policy.step(call_inputs, states[call])


def _padded(leaf: Array, row_layout: RowLayout, must_copy: bool) -> Array:
    """Return the rows of ``leaf`` at their places in a batch, with zeros between them."""
    if not must_copy and isinstance(row_layout.rows, slice) and len(leaf) == row_layout.padded:
        return leaf
    padded = np.zeros((row_layout.padded, *leaf.shape[1:]), leaf.dtype)
    padded[row_layout.rows] = leaf
    return padded


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()  # not inference mode: lazy layers create their weights here, and these need gradients later
def _test_outputs(policy: Policy, observations: Sequence[Any] = (), states: Floats | None = None) -> list[Array]:
    """Return the network's outputs for these observations, or for a random one."""
    observations = observations or [policy.layout.space.sample()]
    leaves = policy.layout.allocate(len(observations))
    for i, observation in enumerate(observations):
        policy.layout.write(leaves, i, observation)
    if states is None:
        states = np.zeros((len(observations), policy.n_state), np.float32)
    state_tensor = torch.from_numpy(states).to(policy.log_std.device) if policy.n_state else None
    return [output.cpu().numpy() for output in _run(policy, policy.prepare(leaves), state_tensor, slice(None))]


def find_torch_batch_layout(policy: Policy, n_envs: int) -> BatchLayout:
    """Return the layout of batches with which the result of a row does not depend on the other rows."""
    space, expensive = policy.layout.space, policy.pictures is not None
    space.seed(0)  # a network may store something about the first observation that it is given
    with torch.random.fork_rng(devices=[]):
        _test_outputs(policy)  # gives lazy layers their shapes
    space.seed(0)
    if n_envs == 1 or sum(weights.numel() for weights in policy.parameters()) > MAX_TESTED_WEIGHTS:
        return SINGLE_ROW if n_envs == 1 or expensive else FIXED_BATCHES
    observations: list[Any] = []

    def run(n_rows: int, first: int, stop: int) -> list[Array]:
        while len(observations) < n_rows:
            observations.append(space.sample())
        states = np.random.default_rng(n_rows).uniform(-1, 1, (n_rows, policy.n_state)).astype(np.float32)
        return _test_outputs(policy, observations[first:stop], states[first:stop])

    with torch.random.fork_rng(devices=[]), _one_thread():
        return find_batch_layout(run, n_envs, expensive)
