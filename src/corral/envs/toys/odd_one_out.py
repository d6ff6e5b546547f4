"""A small env that nobody solves without looking: four figures in a picture, and one of them is not like the others."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

__all__ = ["Sight"]

Pixels = npt.NDArray[np.uint8]
_SIDE = 36
_FIGURE = 7
_ROOM = _SIDE // 2 - _FIGURE


class Sight(gym.Env[Pixels, Any]):
    """Say in which quarter the full square is; the other three are hollow. Each step shows another picture.

    Reward: 1 for the right quarter (0 and 1 above, 2 and 3 below), so ``length`` for an episode at best, and a quarter
    of it by guessing. Figures are anywhere in their quarters, and vary in brightness, as the background does.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}

    def __init__(self, length: int = 16, render_mode: str | None = None) -> None:
        self.length, self.render_mode = length, render_mode
        self.observation_space = spaces.Box(0, 255, (_SIDE, _SIDE, 1), np.uint8)
        self.action_space = spaces.Discrete(4)
        self._steps, self._odd = 0, 0
        self._picture = np.zeros((_SIDE, _SIDE, 1), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Pixels, dict[str, Any]]:
        """Show the first picture."""
        super().reset(seed=seed)
        self._steps = 0
        return self._draw(), {}

    def step(self, action: int) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        """Name a quarter; see the next picture."""
        right = float(action == self._odd)
        self._steps += 1
        return self._draw(), right, self._steps >= self.length, False, {}

    def render(self) -> Any:
        """The picture, larger and with a colour for each brightness."""
        grey = self._picture.repeat(8, axis=0).repeat(8, axis=1)
        return np.concatenate([grey, grey, 255 - (255 - grey) // 2], axis=2)

    def _draw(self) -> Pixels:
        rng = self.np_random
        picture = rng.integers(0, 64, (_SIDE, _SIDE, 1), np.uint8)
        self._odd = int(rng.integers(4))
        for quarter, (row, column, light) in enumerate(rng.integers(0, (_ROOM + 1, _ROOM + 1, 96), (4, 3)).tolist()):
            row, column = row + quarter // 2 * _SIDE // 2, column + quarter % 2 * _SIDE // 2
            inside = picture[row + 2 : row + _FIGURE - 2, column + 2 : column + _FIGURE - 2].copy()
            picture[row : row + _FIGURE, column : column + _FIGURE] = 160 + light
            if quarter != self._odd:
                picture[row + 2 : row + _FIGURE - 2, column + 2 : column + _FIGURE - 2] = inside
        self._picture = picture
        return picture.copy()
