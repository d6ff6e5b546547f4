"""The actor for every network: it runs a torch policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
from corral.rollout.batch_layout import MOST_WEIGHTS, SINGLE_ROW, UNTRIED, BatchLayout, RowLayout, find_batch_layout

__all__ = ["TorchActor", "TorchActorSetup", "find_torch_batch_layout"]


Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TorchActorSetup:
    """What a worker needs to build the policy again, besides weights."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    options: Mapping[str, Any]
    network: bytes | None
    """A cloudpickled factory of the network, if it is not the built-in one."""
    network_file: str | None
    """The file that has to be imported before that."""
    device: str
    batch_layout: BatchLayout
    n_state: int

    def build(self, first_env: int, n_envs: int) -> TorchActor:
        """An actor with a policy of its own."""
        with torch.random.fork_rng(devices=[]):
            if self.network_file is not None:
                import_file(self.network_file, "policy")
            network = None if self.network is None else cloudpickle.loads(self.network)
            policy = Policy(self.observation_space, self.action_space, network=network, **self.options)
            policy = policy.to(torch.device(self.device)).eval()
            if self.network is not None:
                _try_out(policy)  # lazy layers get their shapes
        return TorchActor(policy, self.batch_layout, first_env, n_envs)


class TorchActor:
    """Runs a torch policy, on whatever device it is. With one thread: another number could change the last bits."""

    defers_values = False
    value_leaves: frozenset[str] | None = None

    def __init__(self, policy: Policy, batch_layout: BatchLayout, first_env: int = 0, n_envs: int = 1) -> None:
        self.policy = policy
        self.batch_layout = batch_layout
        self.n_state = policy.n_state
        self._n_envs = n_envs
        self._place = batch_layout.rows_of(range(first_env, first_env + n_envs))

    def load(self, weights: Weights) -> None:
        """Act with these weights from now on."""
        mine = self.policy.state_dict()
        for name, weight in weights.items():
            mine[name].copy_(torch.as_tensor(weight))

    @torch.inference_mode()
    def act(
        self, observations: Leaves, masks: Array | None, noise: Floats, states: Floats | None = None
    ) -> ActionSample:
        """Sample actions, with their log-probabilities and the values of the observations."""
        policy, mask = self.policy, self._mask(masks)
        place = self._place if len(noise) == self._n_envs else self.batch_layout.rows_of(range(len(noise)))
        params, values, after = self._forward(observations, place, states)
        heads = policy.codec.heads
        actions = distributions.sample(heads, params, policy.log_std, mask, self._tensor(noise))
        known = distributions.likelihood(heads, params, policy.log_std, actions, mask)
        return ActionSample(actions.cpu().numpy(), known.log_probs.cpu().numpy(), values.cpu().numpy(), after)

    @torch.inference_mode()
    def act_greedy(self, observations: Leaves, masks: Array | None, states: Floats | None = None) -> GreedyAction:
        """The most likely actions."""
        rows = len(next(iter(observations.values())))
        params, _, after = self._forward(observations, self.batch_layout.rows_of(range(rows)), states)
        return GreedyAction(distributions.mode(self.policy.codec.heads, params, self._mask(masks)).cpu().numpy(), after)

    @torch.inference_mode()
    def values(self, observations: Leaves, envs: npt.NDArray[np.int64], states: Floats | None = None) -> Floats:
        """The values of observations of these envs."""
        _, values, _ = self._forward(observations, self.batch_layout.rows_of(envs), states)
        found: Floats = values.cpu().numpy()
        return found

    def _forward(
        self, observations: Leaves, place: RowLayout, states: Floats | None
    ) -> tuple[Tensor, Tensor, Floats | None]:
        """Action parameters, values and, with a memory, the states afterwards, which are given to be kept."""
        keep = self.policy.custom  # such a network may change what it is given
        inputs = self.policy.prepare({path: _padded(leaf, place, keep) for path, leaf in observations.items()})
        remembered = None if states is None else self._tensor(_padded(states, place, keep))
        with _one_thread():
            parts = [_run(self.policy, inputs, remembered, call) for call in place.calls()]
        params, values, *after = (torch.cat(column) for column in zip(*parts, strict=True))
        rows = place.rows if isinstance(place.rows, slice) else torch.from_numpy(place.rows)
        return params[rows], values[rows], after[0][rows].cpu().numpy() if after else None

    def _mask(self, masks: Array | None) -> Tensor | None:
        return None if masks is None else self._tensor(masks)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.policy.log_std.device)


def _run(policy: Policy, inputs: dict[str, Tensor], states: Tensor | None, call: slice) -> tuple[Tensor, ...]:
    some = {name: leaf[call] for name, leaf in inputs.items()}
    if states is None:
        found: tuple[Tensor, ...] = policy(some)
        return found
    return policy.step(some, states[call])


def _padded(leaf: Array, place: RowLayout, keep: bool) -> Array:
    if not keep and isinstance(place.rows, slice) and len(leaf) == place.padded:
        return leaf
    padded = np.zeros((place.padded, *leaf.shape[1:]), leaf.dtype)
    padded[place.rows] = leaf
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


@torch.no_grad()  # not inference mode: lazy layers are born here, and will be learned
def _try_out(policy: Policy, rows: Sequence[Any] = (), states: Floats | None = None) -> list[Array]:
    """The network's outputs for some observations, or for one of its space."""
    rows = rows or [policy.layout.space.sample()]
    leaves = policy.layout.allocate(len(rows))
    for i, row in enumerate(rows):
        policy.layout.write(leaves, i, row)
    if states is None:
        states = np.zeros((len(rows), policy.n_state), np.float32)
    remembered = torch.from_numpy(states).to(policy.log_std.device) if policy.n_state else None
    return [out.cpu().numpy() for out in _run(policy, policy.prepare(leaves), remembered, slice(None))]


def find_torch_batch_layout(policy: Policy, n_envs: int) -> BatchLayout:
    """Return how rows lie in batches, so that a row's result does not depend on the others."""
    space, expensive = policy.layout.space, policy.pictures is not None
    space.seed(0)  # a network may keep something of the first observation that it sees
    with torch.random.fork_rng(devices=[]):
        _try_out(policy)  # which gives lazy layers their size
    space.seed(0)
    if n_envs == 1 or sum(weights.numel() for weights in policy.parameters()) > MOST_WEIGHTS:
        return SINGLE_ROW if n_envs == 1 or expensive else UNTRIED
    rows: list[Any] = []

    def run(count: int, first: int, stop: int) -> list[Array]:
        while len(rows) < count:
            rows.append(space.sample())
        states = np.random.default_rng(count).uniform(-1, 1, (count, policy.n_state)).astype(np.float32)
        return _try_out(policy, rows[first:stop], states[first:stop])

    with torch.random.fork_rng(devices=[]), _one_thread():
        return find_batch_layout(run, n_envs, expensive)
