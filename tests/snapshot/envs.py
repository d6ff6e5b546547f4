"""Envs and a network for the compared runs. Both versions of the code load this file by its path, as a user's file."""

import json
import os
import signal

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import FrameStackObservation, TimeLimit

KILL_STEP = 40
"""The number of steps after which the first env that took so many kills its own process."""


def stacked_cartpole() -> gym.Env:
    """Return CartPole with the last four observations of each step."""
    return FrameStackObservation(TimeLimit(CartPoleEnv(), 200), 4)


class DeadlyCartPole(CartPoleEnv):
    """Kill the process that hosts this env, once in a run: when ``marker`` does not exist yet."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self._marker, self._steps_taken = marker, 0

    def step(self, action):
        self._steps_taken += 1
        if self._steps_taken == KILL_STEP:
            try:
                os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class FaultyCartPole(CartPoleEnv):
    """Raise in every step in which the cart is far to the left: Corral truncates the episode and continues."""

    def step(self, action):
        result = super().step(action)
        if result[0][0] < -0.15:
            raise RuntimeError("the cart left the rail")
        return result


class StatefulCounter(gym.Env):
    """Reward the action that is the goal. It has a state, so that Corral saves that rather than the actions."""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._counts, self._goal = [0, 0, 0], int(self.np_random.integers(3))
        return self._observe(), {}

    def step(self, action):
        self._counts[int(action)] += 1
        ended = sum(self._counts) == 17
        return self._observe(), float(action == self._goal), ended, False, {"goal": self._goal}

    def get_state(self) -> bytes:
        return json.dumps([self._counts, self._goal]).encode()

    def set_state(self, state: bytes) -> None:
        self._counts, self._goal = json.loads(state)

    def _observe(self):
        return np.array(self._counts, np.float32) / 17


def small_network(observation_space: gym.Space, action_space: gym.Space) -> torch.nn.Module:
    """Return a network with one hidden layer, as docs/python.md describes it."""
    return _Network(observation_space.shape[0], action_space.n)


class _Network(torch.nn.Module):
    def __init__(self, n_inputs: int, n_actions: int) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(n_inputs, 16)
        self.actions, self.value = torch.nn.Linear(16, n_actions), torch.nn.Linear(16, 1)

    def forward(self, observations):
        hidden = torch.tanh(self.hidden(observations))
        return self.actions(hidden), self.value(hidden).squeeze(-1)
