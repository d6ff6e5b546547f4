"""A trained policy, ready to act: ``corral.load(run).predict(observation)``."""

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
from corral.opponents.frozen_policy import FrozenPolicy
from corral.policy.factory import build_policy, check_encoding
from corral.policy.policy import NetworkFactory
from corral.rollout.actors import actor_setup
from corral.storage.checkpoint import Checkpoint, load_checkpoint, newest_checkpoint
from corral.storage.run_dir import find_run
from corral.training.checkpoint_checks import check_checkpoint, check_tensors, spaces_of

__all__ = ["Model", "Prediction", "load"]


class Prediction(NamedTuple):
    """What ``predict`` answers; unpacks as in Stable-Baselines3."""

    action: Any
    state: npt.NDArray[np.float32] | None = None
    """What a policy with a memory remembers now, [n, S]; to be given with the next observation."""


class Model:
    """A policy with its spaces. It needs no env, and making one runs no code but Corral's."""

    def __init__(self, config: TrainConfig, checkpoint: Checkpoint, network: NetworkFactory | None = None) -> None:
        self.config, self.network = config, network
        check_checkpoint(config, checkpoint)
        self.timesteps = checkpoint.timesteps
        self.masked = bool(checkpoint.state["masked"])
        """Whether it was trained with action masks, and so should be asked with them."""
        self.observation_space, self.action_space = spaces_of(checkpoint.state)
        self.policy = build_policy(config, self.observation_space, self.action_space, network)
        check_encoding(checkpoint.state, self.policy)
        check_tensors("policy", checkpoint.policy, self.policy.state_dict())
        self.policy.load_state_dict(dict(checkpoint.policy))
        self.policy.eval()
        self.actor_setup = actor_setup(self.policy, network, torch.device("cpu"), n_envs=1)
        self.actor = self.actor_setup.build(0, 1)
        self.actor.load(self.policy.state_dict())
        self._seed, self._drawn = fresh_seed(), 0

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """The weights as arrays, for an actor in any process."""
        return {name: weight.detach().cpu().numpy() for name, weight in self.policy.state_dict().items()}

    def frozen(self, name: str) -> FrozenPolicy:
        """Return the policy as an opponent of this name."""
        return FrozenPolicy(name, self.actor_setup, self.weights(), self.observation_space, self.action_space)

    def predict(
        self,
        observation: Any,
        state: npt.ArrayLike | None = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = True,
        action_masks: npt.ArrayLike | None = None,
    ) -> Prediction:
        """The action for one observation, or for a batch of them: the most likely, or a sample.

        ``action_masks`` is what the env's ``action_masks()`` gives: one row, or one for each observation.
        A policy with a memory is given the ``state`` that it returned last (None: it remembers nothing yet), and
        ``episode_start`` says where an episode begins, so that it forgets the last; others ignore both.
        """
        layout, codec = self.policy.layout, self.policy.codec
        leaves = layout.unbatch(observation)
        first = layout.leaves[0]
        single = leaves[first.path].ndim == len(first.shape)
        if single:
            leaves = {path: leaf[None] for path, leaf in leaves.items()}
        n = len(leaves[first.path])
        for leaf in layout.leaves:
            if leaves[leaf.path].shape != (n, *leaf.shape):
                where = f" at {leaf.path!r}" if leaf.path else ""
                given = leaves[leaf.path].shape[single:]
                raise ValueError(f"observation of shape {given}{where}, expected {leaf.shape} or a batch of it")
        leaves = {leaf.path: leaves[leaf.path].astype(leaf.dtype, copy=False) for leaf in layout.leaves}
        if isinstance(action_masks, tuple):  # one array for each dimension of a MultiDiscrete
            action_masks = np.concatenate(action_masks, axis=-1)
        if action_masks is None and self.masked:
            warnings.warn(
                "this policy was trained with action masks; without them it may choose illegal actions", stacklevel=2
            )
        masks = None if action_masks is None else np.atleast_2d(np.asarray(action_masks, np.bool_))
        if masks is not None and (masks.shape != (n, codec.n_mask) or not masks.any(-1).all()):
            raise ValueError(f"action masks of shape {masks.shape}, expected {(n, codec.n_mask)}, none all false")
        states = self._remembered(n, state, episode_start) if self.actor.n_state else None
        if deterministic:
            rows, states = self.actor.act_greedy(leaves, masks, states)
        else:
            noise = action_noise(self._seed, np.zeros(1, np.int64), self._drawn, n, codec.gaussian)[:, 0]
            self._drawn += 1
            acts = self.actor.act(leaves, masks, noise, states)
            rows, states = acts.actions, acts.states
        actions = codec.layout.allocate(n)
        codec.decode(rows, actions)
        return Prediction(codec.layout.read(actions, 0) if single else codec.layout.batch(actions, copy=False), states)

    def _remembered(
        self, n: int, state: npt.ArrayLike | None, episode_start: npt.ArrayLike | None
    ) -> npt.NDArray[np.float32]:
        """The states [n, S] to act with."""
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
    """The trained policy of a run.

    ``checkpoint`` is ``best`` (the best evaluation; the latest, if there was none), ``latest``, or a directory.
    ``policy`` gives the network again if the run had one of its own.
    """
    directory = find_run(run)
    config = directory.read_config()
    if config.policy is not None and policy is None:
        raise UsageError(f"the run has a network of its own, {config.policy}; give it as load(run, policy=...)")
    if checkpoint not in ("best", "latest"):
        if not is_directory(checkpoint):
            raise UsageError(f"checkpoint {checkpoint!r}: should be best, latest or a checkpoint's directory")
        return Model(config, load_checkpoint(Path(checkpoint)), policy)
    found = None
    if checkpoint == "best":
        try:
            found = newest_checkpoint(directory.best)
        except CheckpointError as error:
            warnings.warn(f"{error}; using the latest checkpoint instead", stacklevel=2)
    found = found or newest_checkpoint(directory.checkpoints)
    if found is None:
        raise CheckpointError(f"{directory.display_path} has no checkpoint yet")
    for complaint in found.complaints:
        warnings.warn(f"{complaint}; using an older checkpoint", stacklevel=2)
    return Model(config, found.checkpoint, policy)
