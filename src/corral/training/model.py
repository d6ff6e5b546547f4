"""A trained policy that predicts actions: ``corral.load(run).predict(observation)``."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from corral.config.schema import TrainConfig
from corral.core.errors import CheckpointError, UsageError
from corral.core.files import is_directory
from corral.core.seeding import action_noise, fresh_seed
from corral.core.types import Leaves
from corral.opponents.frozen_policy import FrozenPolicy
from corral.policy.factory import build_policy, check_encoding
from corral.policy.policy import NetworkFactory
from corral.rollout.actors import actor_spec
from corral.storage.checkpoint import Checkpoint, load_checkpoint, newest_checkpoint
from corral.storage.run_dir import find_run
from corral.training.untrusted_checkpoint import check_checkpoint, check_tensors, spaces_of

__all__ = ["Model", "Prediction", "load"]


class Prediction(NamedTuple):
    """The result of ``predict``. It unpacks into action and state, as in Stable-Baselines3."""

    action: Any
    state: npt.NDArray[np.float32] | None = None
    """The state [n, S] of a recurrent policy, to be passed with the next observation; None for other policies."""


class Model:
    """A policy with its spaces. It needs no env, and loading it imports no code that the run directory names."""

    def __init__(self, config: TrainConfig, checkpoint: Checkpoint, network: NetworkFactory | None = None) -> None:
        self.config, self.network = config, network
        check_checkpoint(config, checkpoint)
        self.timesteps = checkpoint.timesteps
        self.masked = bool(checkpoint.state["masked"])
        """Whether the policy was trained with action masks, so that ``predict`` should be given masks."""
        self.observation_space, self.action_space = spaces_of(checkpoint.state)
        self.policy = build_policy(config, self.observation_space, self.action_space, network)
        check_encoding(checkpoint.state, self.policy)
        check_tensors("policy", checkpoint.policy, self.policy.state_dict())
        self.policy.load_state_dict(dict(checkpoint.policy))
        self.policy.eval()
        self.actor_spec = actor_spec(self.policy, network, torch.device("cpu"), n_envs=1)
        self.actor = self.actor_spec.build(0, 1)
        self.actor.load(self.policy.state_dict())
        self._seed, self._n_samples = fresh_seed(), 0

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """Return the weights as arrays, for an actor in any process."""
        return {name: weight.detach().cpu().numpy() for name, weight in self.policy.state_dict().items()}

    def frozen(self, name: str) -> FrozenPolicy:
        """Return the policy as an opponent with this name."""
        return FrozenPolicy(name, self.actor_spec, self.weights(), self.observation_space, self.action_space)

    def predict(
        self,
        observation: Any,
        state: npt.ArrayLike | None = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = True,
        action_masks: npt.ArrayLike | None = None,
    ) -> Prediction:
        """Return the action for one observation or a batch of n: the most likely action, or a sampled one.

        ``action_masks`` is what the env's ``action_masks()`` returns: one row, or one for each observation.
        A recurrent policy takes the ``state`` of the last prediction (None: zeros); ``episode_start`` says where an
        episode begins, which sets the state to zero. Other policies ignore both.
        """
        codec = self.policy.codec
        leaves, is_single = self._batched(observation)
        n = len(next(iter(leaves.values())))
        if action_masks is None and self.masked:
            warnings.warn(
                "this policy was trained with action masks; without them it may choose illegal actions", stacklevel=2
            )
        masks = self._checked_masks(action_masks, n)
        states = self._checked_states(n, state, episode_start) if self.actor.n_state else None
        if deterministic:
            rows, states = self.actor.act_greedy(leaves, masks, states)
        else:
            noise = action_noise(self._seed, np.zeros(1, np.int64), self._n_samples, n, codec.gaussian)[:, 0]
            self._n_samples += 1
            sample = self.actor.act(leaves, masks, noise, states)
            rows, states = sample.actions, sample.states
        actions = codec.layout.allocate(n)
        codec.decode(rows, actions)
        action = codec.layout.read(actions, 0) if is_single else codec.layout.batch(actions, copy=False)
        return Prediction(action, states)

    def _batched(self, observation: Any) -> tuple[Leaves, bool]:
        """Return an observation as leaves [n, ...], and whether it was a single one and not a batch."""
        layout = self.policy.layout
        leaves = layout.unbatch(observation)
        first = layout.leaves[0]
        is_single = leaves[first.path].ndim == len(first.shape)
        if is_single:
            leaves = {path: leaf[None] for path, leaf in leaves.items()}
        n = len(leaves[first.path])
        for leaf in layout.leaves:
            if leaves[leaf.path].shape != (n, *leaf.shape):
                position = f" at {leaf.path!r}" if leaf.path else ""
                shape = leaves[leaf.path].shape[is_single:]
                raise ValueError(f"observation of shape {shape}{position}, expected {leaf.shape} or a batch of it")
        return {leaf.path: leaves[leaf.path].astype(leaf.dtype, copy=False) for leaf in layout.leaves}, is_single

    def _checked_masks(self, action_masks: npt.ArrayLike | None, n: int) -> npt.NDArray[np.bool_] | None:
        """Return the action masks as [n, A]; raise a ValueError if they have another shape or allow no action."""
        if action_masks is None:
            return None
        if isinstance(action_masks, tuple):  # one array for each dimension of a MultiDiscrete
            action_masks = np.concatenate(action_masks, axis=-1)
        masks, expected = np.atleast_2d(np.asarray(action_masks, np.bool_)), (n, self.policy.codec.n_mask)
        if masks.shape != expected or not masks.any(-1).all():
            raise ValueError(f"action masks of shape {masks.shape}, expected {expected}, none all false")
        return masks

    def _checked_states(
        self, n: int, state: npt.ArrayLike | None, episode_start: npt.ArrayLike | None
    ) -> npt.NDArray[np.float32]:
        """Return the recurrent states [n, S] to act with; raise a ValueError if they have another shape."""
        size = self.actor.n_state
        if state is None:
            return np.zeros((n, size), np.float32)
        states = np.array(state, np.float32, ndmin=2)
        if states.shape != (n, size):
            raise ValueError(f"state of shape {np.shape(state)}, expected {(n, size)}, as the last predict returned it")
        if episode_start is not None:
            states[np.broadcast_to(np.asarray(episode_start, np.bool_), n)] = 0.0
        return states


def load(run: str | os.PathLike[str], *, checkpoint: str = "best", policy: NetworkFactory | None = None) -> Model:
    """Load the trained policy of a run.

    ``checkpoint`` is ``best`` (of the best evaluation; the latest if the run had none), ``latest``, or a directory.
    ``policy`` is the function that makes the network; it must be given if the run was trained with the user's network.
    """
    directory = find_run(run)
    config = directory.read_config()
    if config.policy is not None and policy is None:
        raise UsageError(f"the run was trained with the network {config.policy}; give it as load(run, policy=...)")
    if checkpoint not in ("best", "latest"):
        if not is_directory(checkpoint):
            raise UsageError(f"checkpoint {checkpoint!r}: should be best, latest or a checkpoint's directory")
        return Model(config, load_checkpoint(Path(checkpoint)), policy)
    verified = None
    if checkpoint == "best":
        try:
            verified = newest_checkpoint(directory.best)
        except CheckpointError as error:
            warnings.warn(f"{error}; using the latest checkpoint instead", stacklevel=2)
    verified = verified or newest_checkpoint(directory.checkpoints)
    if verified is None:
        raise CheckpointError(f"{directory.display_path} has no checkpoint yet")
    for problem in verified.problems:
        warnings.warn(f"{problem}; using an older checkpoint", stacklevel=2)
    return Model(config, verified.checkpoint, policy)
