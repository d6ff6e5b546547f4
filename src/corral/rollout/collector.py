"""The one loop that acts, steps and stores. It imports no torch and does not know where its envs or its arrays live.

``local`` hosts it in this process; ``worker`` hosts it where the envs are, on their columns of the arrays.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from corral.core.seeding import action_noise
from corral.core.types import Actor, EpisodeRecord, InfoSums, Leaves, Rollout, Seconds
from corral.vec.api import CorralVectorEnv, merge_sums

__all__ = ["Collector", "Segment", "SoFar", "Stopped", "join"]


@dataclass(frozen=True, slots=True)
class Segment:
    """What there is to say about some envs' part of a rollout, besides the arrays."""

    episodes: list[tuple[int, EpisodeRecord]]  # with the step at which it ended
    infos: list[dict[str, InfoSums]]  # by env
    seconds: Seconds


class Stopped(Exception):
    """A rollout was no longer wanted."""


class SoFar(NamedTuple):
    """Reward and length of an episode until now."""

    reward: float
    length: int


class Collector:
    """Collects rollouts of ``n_steps`` from a vector env whose first env is number ``first_env`` of the run."""

    def __init__(self, env: CorralVectorEnv, actor: Actor, n_steps: int, seed: int, first_env: int = 0) -> None:
        self.env = env
        self.actor = actor
        self.n_steps = n_steps
        self.seed = seed
        self.first_env = first_env
        self._envs = np.arange(first_env, first_env + env.num_envs)
        self._reward_so_far = np.zeros(env.num_envs)
        self._length_so_far = np.zeros(env.num_envs, np.int64)

    def collect(self, iteration: int, out: Rollout, stopped: Callable[[], bool] = lambda: False) -> Segment:
        """Play ``n_steps`` steps in every env, into the env's columns of the rollout, or until ``stopped``."""
        env, now, clock = self.env, self.env.arrays, time.perf_counter
        noise = self._noise(iteration)  # [T, N, D]
        episodes: list[tuple[int, EpisodeRecord]] = []
        finals = _FinalObservations(env)
        leaves = [(leaf, out.observations[path]) for path, leaf in now.observations.items()]
        out.final_values.fill(0.0)
        acting = stepping = 0.0

        for t in range(self.n_steps):
            if stopped():
                raise Stopped
            started = clock()
            for leaf, column in leaves:
                column[t] = leaf
            masks = env.masks
            if out.masks is not None:
                out.masks[t] = masks

            acts = self.actor.act(now.observations, masks, noise[t])
            out.actions[t] = acts.actions
            out.log_probs[t] = acts.log_probs
            if acts.values is not None:
                out.values[t] = acts.values

            env.codec.decode(acts.actions, now.actions)
            acted = clock()
            env.send()
            env.recv()
            stepped = clock()
            acting += acted - started
            stepping += stepped - acted
            out.rewards[t] = now.rewards
            out.terminated[t] = now.terminated
            out.truncated[t] = now.truncated

            self._reward_so_far += now.rewards
            self._length_so_far += 1
            done = now.terminated | now.truncated
            if done.any():
                for i in np.flatnonzero(done):
                    episodes.append((t, self._finish_episode(int(i))))
                finals.keep(t, now.truncated & ~now.terminated)

        started = clock()
        if acts.values is None:
            seen = {path: column.reshape(-1, *column.shape[2:]) for path, column in out.observations.items()}
            out.values[...] = self.actor.values(seen, np.tile(self._envs, self.n_steps)).reshape(out.values.shape)
        if finals.places:
            steps, envs = (np.array(part) for part in zip(*finals.places, strict=True))
            out.final_values[steps, envs] = self.actor.values(finals.stacked(), self._envs[envs])
        out.last_values[...] = self.actor.values(now.observations, self._envs)
        acting += clock() - started
        return Segment(episodes, env.drain_infos(), Seconds(acting, stepping))

    def so_far(self, i: int) -> SoFar:
        """The episode that an env is in."""
        return SoFar(float(self._reward_so_far[i]), int(self._length_so_far[i]))

    def go_on(self, i: int, so_far: SoFar) -> None:
        """Begin in the middle of an episode."""
        self._reward_so_far[i], self._length_so_far[i] = so_far

    def _noise(self, iteration: int) -> npt.NDArray[np.float32]:
        return action_noise(self.seed, self._envs, iteration, self.n_steps, self.env.codec.gaussian)

    def _finish_episode(self, i: int) -> EpisodeRecord:
        truncated = bool(self.env.arrays.truncated[i]) and not bool(self.env.arrays.terminated[i])
        record = EpisodeRecord(
            int(self._envs[i]), float(self._reward_so_far[i]), int(self._length_so_far[i]), truncated
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


def join(written: Rollout, segments: list[Segment]) -> Rollout:
    """A rollout whose arrays are written, with what each collector of them said, in env order."""
    episodes = sorted((item for segment in segments for item in segment.episodes), key=lambda e: (e[0], e[1].env))
    return dataclasses.replace(
        written,
        episodes=tuple(record for _, record in episodes),
        infos=merge_sums([env for segment in segments for env in segment.infos]),
        collectors=sum(1 for segment in segments if segment.infos),
        seconds=Seconds(max(s.seconds.act for s in segments), max(s.seconds.step for s in segments)),
    )
