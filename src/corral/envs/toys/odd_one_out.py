"""A small test for CNN policies: an image with four squares, of which the agent must find the filled one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

__all__ = ["Sight"]

Pixels = npt.NDArray[np.uint8]
_SIDE = 36
"""Height and width of the image in pixels."""
_SQUARE = 7
"""Height and width of a square in pixels."""
_BORDER = 2
"""Width of a hollow square's border in pixels."""
_MAX_OFFSET = _SIDE // 2 - _SQUARE
"""The largest distance of a square from the top and left edges of its quarter."""


class Sight(gym.Env[Pixels, Any]):
    """An env in which the action names the quarter of the image with the filled square; the other three are hollow.

    Each step shows a new image. The reward is 1 for the right quarter (0 and 1 at the top, 2 and 3 at the bottom), so
    the best return of an episode is ``length``, and guessing gets a quarter of it. Squares lie anywhere in their
    quarters. Their brightness and the background are random.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}

    def __init__(self, length: int = 16, render_mode: str | None = None) -> None:
        self.length, self.render_mode = length, render_mode
        self.observation_space = spaces.Box(0, 255, (_SIDE, _SIDE, 1), np.uint8)
        self.action_space = spaces.Discrete(4)
        self._steps, self._filled = 0, 0
        self._image = np.zeros((_SIDE, _SIDE, 1), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Pixels, dict[str, Any]]:
        """Begin an episode and return the first image."""
        super().reset(seed=seed)
        self._steps = 0
        return self._draw(), {}

    def step(self, action: int) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        """Name a quarter and return the next image."""
        reward = float(action == self._filled)
        self._steps += 1
        return self._draw(), reward, self._steps >= self.length, False, {}

    def render(self) -> Any:
        """Return the image eight times as large, tinted blue."""
        grey = self._image.repeat(8, axis=0).repeat(8, axis=1)
        return np.concatenate([grey, grey, 255 - (255 - grey) // 2], axis=2)

    def _draw(self) -> Pixels:
        """Draw a random image and choose the quarter with the filled square."""
        rng = self.np_random
        image = rng.integers(0, 64, (_SIDE, _SIDE, 1), np.uint8)
        self._filled = int(rng.integers(4))
        draws = rng.integers(0, (_MAX_OFFSET + 1, _MAX_OFFSET + 1, 96), (4, 3)).tolist()
        for quarter, (row, column, brightness) in enumerate(draws):
            top, left = row + quarter // 2 * _SIDE // 2, column + quarter % 2 * _SIDE // 2
            rows, columns = slice(top, top + _SQUARE), slice(left, left + _SQUARE)
            inner_rows = slice(top + _BORDER, top + _SQUARE - _BORDER)
            inner_columns = slice(left + _BORDER, left + _SQUARE - _BORDER)
            background = image[inner_rows, inner_columns].copy()
            image[rows, columns] = 160 + brightness
            if quarter != self._filled:
                image[inner_rows, inner_columns] = background
        self._image = image
        return image.copy()
