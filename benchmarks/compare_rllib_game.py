"""The game of ``compare_rllib.py`` whose step takes 0.8 ms; both libraries import it, so it needs only Gymnasium."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

STEP_SECONDS = 0.0008
EPISODE_STEPS = 50


class Work(gym.Env):
    """A game whose step takes 0.8 ms of processor time, not of wall-clock time, so that waiting for a core is not work.

    It has 8 random observations and 4 actions; the reward is the observation that the action selects.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin an episode, which takes no processor time."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Use up the processor time, then return the reward and the next observation."""
        end = time.thread_time() + STEP_SECONDS
        while time.thread_time() < end:
            pass
        self._steps += 1
        reward = float(self._observation[action])
        return self._observe(), reward, self._steps >= EPISODE_STEPS, False, {}

    def _observe(self) -> np.ndarray:
        self._observation = self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32)
        return self._observation.copy()
