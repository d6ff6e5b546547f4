"""Deterministic envs with slow steps. Tests copy this file into the directory of a run, as a user's file."""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env):
    """A random walk on a line. Observations depend on the seed and on every action since the reset."""

    size = 3

    def __init__(self, pause: float = 0.002) -> None:
        self.pause = pause
        self.observation_space = spaces.Box(-np.inf, np.inf, (self.size,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.speed, self.position = 0, 0.0, float(self.np_random.normal())
        return self._observe(), {}

    def step(self, action):
        time.sleep(self.pause)
        self.steps += 1
        self.speed = 0.5 * self.speed + 0.3 * (int(action) - 1) + 0.2 * float(self.np_random.normal())
        self.position += self.speed
        out_of_bounds = abs(self.position) > 4
        return self._observe(), 1.0 - abs(self.position), out_of_bounds, not out_of_bounds and self.steps >= 40, {}

    def _observe(self):
        observation = np.zeros(self.size, np.float32)
        observation[:3] = self.position, self.speed, self.steps / 40
        return observation


class WideWalk(Walk):
    """A walk with observations of 1 KB, so that a rollout of two envs takes a second on a link of 1 Mbit/s."""

    size = 256


class LargeWalk(Walk):
    """A walk with observations of 16 KB, so that rollouts and weights travel through Ray's object store."""

    size = 4096
