"""Three small envs for tests: a maze with action masks, an env with every kind of space, and one that is only slow."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

__all__ = ["BusyWork", "Everything", "MaskedMaze"]

_WALLS = ("......#.", ".####.#.", ".#....#.", ".#.####.", ".#......", ".####.#.", "......#.", ".####...")
_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Up, right, down and left, as differences of row and column."""


class MaskedMaze(gym.Env[npt.NDArray[np.float32], Any]):
    """A maze in which the agent walks from a random cell to the corner. Moves into walls are masked, and raise.

    The reward is 1 at the goal, minus 0.01 for every step. Episodes are truncated after ``limit`` steps.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 8}

    def __init__(self, limit: int = 60, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.limit = limit
        self.size = len(_WALLS)
        self.observation_space = spaces.Box(0.0, 1.0, (2 * self.size,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._free_cells = [(r, c) for r in range(self.size) for c in range(self.size) if _WALLS[r][c] == "."]
        self._masks = {
            (r, c): np.array([(r + dr, c + dc) in self._free_cells for dr, dc in _MOVES], np.bool_)
            for r, c in self._free_cells
        }
        self._goal = (self.size - 1, self.size - 1)
        self._cell, self._steps = self._goal, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin an episode in a random cell that is not the goal."""
        super().reset(seed=seed)
        starts = [cell for cell in self._free_cells if cell != self._goal]
        self._cell, self._steps = starts[int(self.np_random.integers(len(starts)))], 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move up, right, down or left."""
        if not self._masks[self._cell][action]:
            raise ValueError(f"move {action} from {self._cell} runs into a wall; it was masked")
        dr, dc = _MOVES[action]
        self._cell = (self._cell[0] + dr, self._cell[1] + dc)
        self._steps += 1
        done = self._cell == self._goal
        return self._observe(), 0.99 if done else -0.01, done, not done and self._steps >= self.limit, {}

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which of the four moves lead to a free cell."""
        return self._masks[self._cell].copy()

    def render(self) -> Any:
        """Return the maze as text, or as an image with 16 x 16 pixels per cell."""
        if self.render_mode == "rgb_array":
            colours = {".": (235, 230, 220), "#": (60, 60, 70)}
            image = np.array([[colours[cell] for cell in row] for row in _WALLS], np.uint8)
            image[self._goal], image[self._cell] = (80, 170, 90), (210, 90, 60)
            return image.repeat(16, axis=0).repeat(16, axis=1)
        rows = [list(row) for row in _WALLS]
        rows[self._goal[0]][self._goal[1]], rows[self._cell[0]][self._cell[1]] = "G", "@"
        return "\n".join("".join(row) for row in rows)

    def _observe(self) -> npt.NDArray[np.float32]:
        observation = np.zeros(2 * self.size, np.float32)
        observation[self._cell[0]] = observation[self.size + self._cell[1]] = 1.0
        return observation


class Everything(gym.Env[dict[str, Any], dict[str, Any]]):
    """An env whose observations and actions nest every kind of space. It rewards the action that repeats the cue."""

    metadata = {"render_modes": []}

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.render_mode = None
        self.observation_space = spaces.Dict(
            {
                "cue": spaces.Discrete(4, start=1),
                "image": spaces.Box(0, 255, (4, 4, 1), np.uint8),
                "pair": spaces.Tuple((spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.MultiBinary(3))),
                "deep": spaces.Dict({"dice": spaces.MultiDiscrete([6, 6]), "fine": spaces.Box(-1, 1, (), np.float64)}),
            }
        )
        self.action_space = spaces.Dict(
            {
                "choice": spaces.Discrete(4, start=1),
                "rest": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), spaces.Box(-1, 1, (2,)))),
            }
        )
        self._steps, self._cue = 0, 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode and return an observation with the first cue."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step: reward 1 for repeating the cue, and up to 0.5 for keeping the Box action near 0."""
        assert self.action_space.contains(action), action
        right = float(action["choice"] == self._cue)
        calm = 0.5 - 0.5 * float(np.abs(action["rest"][2]).mean())
        self._steps += 1
        return self._observe(), right + calm, False, self._steps >= self.length, {"right": right, "calm": calm}

    def _observe(self) -> dict[str, Any]:
        rng = self.np_random
        self._cue = int(rng.integers(1, 5))
        return {
            "cue": np.int64(self._cue),
            "image": rng.integers(0, 16, (4, 4, 1), np.uint8),
            "pair": (rng.normal(size=3).astype(np.float32), rng.integers(0, 2, 3, np.int8)),
            "deep": {"dice": rng.integers(0, 6, 2), "fine": np.array(rng.uniform(-1, 1))},
        }


class BusyWork(gym.Env[npt.NDArray[np.float32], Any]):
    """A substitute for a slow simulator: each step takes ``step_ms`` of CPU time, varied by the fraction ``spread``."""

    metadata = {"render_modes": []}

    def __init__(self, step_ms: float = 0.8, spread: float = 0.0, length: int = 200) -> None:
        self.step_ms, self.spread, self.length = step_ms, spread, length
        self.render_mode = None
        self.observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. This takes no CPU time."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step: use CPU time and reward action 0."""
        seconds = self.step_ms / 1000 * (1 + self.spread * float(self.np_random.uniform(-1, 1)))
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        self._steps += 1
        return self._observe(), float(action == 0), False, self._steps >= self.length, {}

    def _observe(self) -> npt.NDArray[np.float32]:
        return self.np_random.uniform(-1, 1, 8).astype(np.float32)
