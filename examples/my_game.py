"""A small env from which you can start: throw dice until their sum is near 21, but not above. Try it:

corral doctor examples/my_game.py:make_env
corral train examples/my_game.py:make_env --timesteps 30000 --n-steps 128 --num-workers 2
corral play latest --env examples/my_game.py:make_env
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class TwentyOne(gym.Env):
    """Each step throws one die, throws two dice or stops.

    Stopping ends the episode with the reward total / limit. A total above the limit ends it with the reward 0.
    """

    metadata = {"render_modes": ["ansi"]}

    def __init__(self, limit: int = 21, render_mode: str | None = None) -> None:
        self.limit, self.render_mode = limit, render_mode
        self.observation_space = spaces.Dict(total=spaces.Discrete(limit + 13), thrown=spaces.MultiBinary(2))
        self.action_space = spaces.Discrete(3)  # stop, one die, two dice

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random; draw all random numbers from it
        self.total, self.thrown = 0, np.zeros(2, np.int8)
        return self._observe(), {}

    def step(self, action):
        dice = self.np_random.integers(1, 7, size=int(action))
        self.total += int(dice.sum())
        self.thrown = np.array([action == 1, action == 2], np.int8)
        bust = self.total > self.limit
        over = bust or action == 0
        reward = self.total / self.limit if over and not bust else 0.0
        return self._observe(), reward, over, False, {"bust": bust}  # numbers in info become metrics

    def action_masks(self):
        return np.array([self.total > 0, True, True])  # stopping before the first throw is not allowed

    def render(self):
        return f"total {self.total} of {self.limit}"

    def _observe(self):
        return {"total": self.total, "thrown": self.thrown}


def make_env(limit: int = 21, render_mode: str | None = None) -> gym.Env:
    return TwentyOne(limit, render_mode)
