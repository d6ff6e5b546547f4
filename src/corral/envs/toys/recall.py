"""A test of memory: what to answer is shown in the first step, and asked for after a while."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.errors import UsageError

__all__ = ["Recall"]


class Recall(gym.Env[npt.NDArray[np.float32], Any]):
    """One of ``cues`` is shown, then nothing for ``delay`` steps, then the agent is asked which one it was.

    Reward 1 for the right answer, which ends the episode; without a memory no policy gets it more often than by chance.
    The observation has a number for each cue and one for the question. Actions name a cue, or are the last one, which
    waits. What is done before the question does not matter; with ``masked``, only waiting is legal there, and only
    answers are when asked.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 8}

    def __init__(self, delay: int = 20, cues: int = 4, masked: bool = False, render_mode: str | None = None) -> None:
        if not (isinstance(delay, int) and isinstance(cues, int) and delay >= 0 and cues >= 2):
            raise UsageError(f"delay {delay!r}, cues {cues!r}: delay should be a number from 0, cues a number from 2")
        self.render_mode = render_mode
        self.delay, self.cues, self.masked = delay, cues, masked
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues + 1)
        self._cue, self._step = 0, 0
        if masked:
            self.action_masks = self._masks

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Show a cue."""
        super().reset(seed=seed)
        self._cue, self._step = int(self.np_random.integers(self.cues)), 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Wait, or answer."""
        if self.masked and not self._masks()[action]:
            raise ValueError(f"action {action} is masked in step {self._step}")
        done = self._asked
        reward = float(done and int(action) == self._cue)
        self._step += 1
        return self._observe(), reward, done, False, {}

    def render(self) -> str:
        """What is shown now."""
        return f"{self._step:3d}: " + ("?" if self._asked else str(self._cue) if self._step == 0 else ".")

    def get_state(self) -> bytes:
        """Everything that decides how the env goes on."""
        rng = self.np_random.bit_generator.state
        return json.dumps({"cue": self._cue, "step": self._step, "rng": rng}).encode()

    def set_state(self, state: bytes) -> None:
        """Go to where an env with the same settings was."""
        told = json.loads(state)
        self._cue, self._step = int(told["cue"]), int(told["step"])
        self.np_random.bit_generator.state = told["rng"]

    @property
    def _asked(self) -> bool:
        return self._step == self.delay + 1

    def _masks(self) -> npt.NDArray[np.bool_]:
        """Waiting, or answers."""
        masks = np.full(self.cues + 1, self._asked)
        masks[-1] = not self._asked
        return masks

    def _observe(self) -> npt.NDArray[np.float32]:
        observation = np.zeros(self.cues + 1, np.float32)
        if self._step == 0:
            observation[self._cue] = 1.0
        elif self._asked:
            observation[-1] = 1.0
        return observation
