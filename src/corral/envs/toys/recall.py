"""A test for recurrent policies: the first observation shows a cue, which the agent must name some steps later."""

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
    """An env that shows one of ``cues`` cues, then nothing for ``delay`` steps, then asks which cue it was.

    The answer ends the episode; its reward is 1 if it is right. A policy without a recurrent state can only guess. The
    observation has an entry for each cue and a last one for the question. Each action names a cue, except the last one,
    which waits. Actions before the question have no effect. With ``masked``, only waiting is legal before the question,
    and only answers are legal after it.
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
            self.action_masks = self._legal_actions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin an episode and return an observation with a cue."""
        super().reset(seed=seed)
        self._cue, self._step = int(self.np_random.integers(self.cues)), 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Wait, or answer."""
        if self.masked and not self._legal_actions()[action]:
            raise ValueError(f"action {action} is masked in step {self._step}")
        done = self._is_question
        reward = float(done and int(action) == self._cue)
        self._step += 1
        return self._observe(), reward, done, False, {}

    def render(self) -> str:
        """Return the observation as text."""
        return f"{self._step:3d}: " + ("?" if self._is_question else str(self._cue) if self._step == 0 else ".")

    def get_state(self) -> bytes:
        """Return everything that decides how the episode continues."""
        rng = self.np_random.bit_generator.state
        return json.dumps({"cue": self._cue, "step": self._step, "rng": rng}).encode()

    def set_state(self, state: bytes) -> None:
        """Restore a state of an env with the same settings."""
        saved = json.loads(state)
        self._cue, self._step = int(saved["cue"]), int(saved["step"])
        self.np_random.bit_generator.state = saved["rng"]

    @property
    def _is_question(self) -> bool:
        """Whether the current observation asks for the cue."""
        return self._step == self.delay + 1

    def _legal_actions(self) -> npt.NDArray[np.bool_]:
        """Return the action mask: all answers if the env asks for one, only waiting otherwise."""
        mask = np.full(self.cues + 1, self._is_question)
        mask[-1] = not self._is_question
        return mask

    def _observe(self) -> npt.NDArray[np.float32]:
        observation = np.zeros(self.cues + 1, np.float32)
        if self._step == 0:
            observation[self._cue] = 1.0
        elif self._is_question:
            observation[-1] = 1.0
        return observation
