"""The one loop that acts, steps and stores. It imports no torch and does not know where its envs or its arrays live.

``local`` hosts it in this process; other sources host it unchanged where their envs are, on their own rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from corral.core.seeding import action_noise
from corral.core.spaces import poisoned
from corral.core.types import Actor, EpisodeRecord, Leaves, Rollout
from corral.vec.api import CorralVectorEnv

__all__ = ["Collector"]


class Collector:
    """Collects rollouts of ``n_steps`` from a vector env whose first env is number ``first_env`` of the run."""

    def __init__(self, env: CorralVectorEnv, actor: Actor, n_steps: int, seed: int, first_env: int = 0) -> None:
        self.env = env
        self.actor = actor
        self.n_steps = n_steps
        self.seed = seed
        self.first_env = first_env
        env.reset_arrays()
        n = env.num_envs
        self._reward_so_far = np.zeros(n)
        self._length_so_far = np.zeros(n, np.int64)
        self._observations = env.layout.allocate(n_steps, n)
        self._actions = poisoned((n_steps, n, env.codec.n_actions), env.codec.dtype)
        self._masks = poisoned((n_steps, n, env.codec.n_mask), np.bool_) if env.has_masks else None
        self._log_probs, self._values, self._rewards, self._final_values = (
            poisoned((n_steps, n), np.float32) for _ in range(4)
        )
        self._terminated, self._truncated = (poisoned((n_steps, n), np.bool_) for _ in range(2))

    def collect(self, iteration: int) -> Rollout:
        """Play ``n_steps`` steps in every env. The arrays of the rollout are overwritten by the next call."""
        env, now = self.env, self.env.arrays
        noise = self._noise(iteration)  # [T, N, D]
        episodes: list[EpisodeRecord] = []
        finals = _FinalObservations(env)
        self._final_values.fill(0.0)

        for t in range(self.n_steps):
            masks = env.masks
            for path, leaf in now.observations.items():
                self._observations[path][t] = leaf
            if self._masks is not None:
                self._masks[t] = masks

            acts = self.actor.act(now.observations, masks, noise[t])
            self._actions[t] = acts.actions
            self._log_probs[t] = acts.log_probs
            self._values[t] = acts.values

            env.codec.decode(self._actions[t], now.actions)
            env.send()
            env.recv()
            self._rewards[t] = now.rewards
            self._terminated[t] = now.terminated
            self._truncated[t] = now.truncated

            self._reward_so_far += now.rewards
            self._length_so_far += 1
            done = now.terminated | now.truncated
            if done.any():
                for i in np.flatnonzero(done):
                    episodes.append(self._finish_episode(int(i)))
                finals.keep(t, now.truncated & ~now.terminated)

        if finals.places:
            steps, envs = zip(*finals.places, strict=True)
            self._final_values[list(steps), list(envs)] = self.actor.values(finals.stacked())
        return Rollout(
            observations=self._observations,
            actions=self._actions,
            log_probs=self._log_probs,
            values=self._values,
            rewards=self._rewards,
            terminated=self._terminated,
            truncated=self._truncated,
            final_values=self._final_values,
            last_values=self.actor.values(now.observations),
            masks=self._masks,
            episodes=tuple(episodes),
            infos=env.drain_infos(),
        )

    def _noise(self, iteration: int) -> npt.NDArray[np.float32]:
        envs = range(self.first_env, self.first_env + self.env.num_envs)
        gaussian = self.env.codec.gaussian
        return np.stack([action_noise(self.seed, env, iteration, self.n_steps, gaussian) for env in envs], axis=1)

    def _finish_episode(self, i: int) -> EpisodeRecord:
        truncated = bool(self.env.arrays.truncated[i]) and not bool(self.env.arrays.terminated[i])
        record = EpisodeRecord(
            self.first_env + i, float(self._reward_so_far[i]), int(self._length_so_far[i]), truncated
        )
        self._reward_so_far[i] = 0.0
        self._length_so_far[i] = 0
        return record


class _FinalObservations:
    """Observations at which episodes were cut off: their values are asked for together, at the end of the rollout."""

    def __init__(self, env: CorralVectorEnv) -> None:
        self._env = env
        self.places: list[tuple[int, int]] = []  # (step, env)
        self._rows: list[Leaves] = []

    def keep(self, t: int, truncated: npt.NDArray[np.bool_]) -> None:
        envs = np.flatnonzero(truncated)
        if envs.size:
            self.places += [(t, int(i)) for i in envs]
            self._rows.append({path: leaf[envs] for path, leaf in self._env.arrays.final_observations.items()})

    def stacked(self) -> Leaves:
        return {path: np.concatenate([row[path] for row in self._rows]) for path in self._rows[0]}
